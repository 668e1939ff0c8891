/* Readable kernel names.  Of the C++ ABI's mangling it understands what our kernels use: a name,
 * perhaps in namespaces, and template arguments that are types with a name, numbers and flags. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "profile/busy_log.h"

typedef struct reader {
    const char *at;
    char *out; /* BUSY_NAME_BYTES; what does not fit is left out */
    size_t n;
} reader;

static void put(reader *r, const char *text, size_t n) {
    for (size_t i = 0; i < n && r->n + 1 < BUSY_NAME_BYTES; i++)
        r->out[r->n++] = text[i];
    r->out[r->n] = '\0';
}

static void put_text(reader *r, const char *text) {
    put(r, text, strlen(text));
}

/* A length and as many letters: "4gate". */
static bool read_identifier(reader *r) {
    size_t n = 0;
    if (!isdigit((unsigned char)*r->at)) return false;
    for (; isdigit((unsigned char)*r->at); r->at++) {
        n = n * 10 + (size_t)(*r->at - '0');
        if (n > 4096) return false;
    }
    if (strnlen(r->at, n) < n) return false;
    put(r, r->at, n);
    r->at += n;
    return true;
}

static const char *builtin_type(char letter) {
    static const char letters[] = "fdijlmxyhatscbv";
    static const char *const names[] = {"float",
                                        "double",
                                        "int",
                                        "unsigned",
                                        "long",
                                        "unsigned long",
                                        "long long",
                                        "unsigned long long",
                                        "unsigned char",
                                        "signed char",
                                        "unsigned short",
                                        "short",
                                        "char",
                                        "bool",
                                        "void"};
    const char *at = letter == '\0' ? NULL : strchr(letters, letter);
    return at == NULL ? NULL : names[at - letters];
}

static bool read_arguments(reader *r);

static bool read_type(reader *r) {
    const char *builtin = builtin_type(*r->at);
    if (builtin != NULL) {
        put_text(r, builtin);
        r->at++;
        return true;
    }
    return read_identifier(r) && (*r->at != 'I' || read_arguments(r));
}

/* A number with its type, which is left out: "Li8E", "Lb1E", "Lin3E", or an enum's "L4mode1E". */
static bool read_literal(reader *r) {
    char unused[BUSY_NAME_BYTES];
    reader type = {r->at + 1, unused, 0};
    bool is_flag = *type.at == 'b';
    if (!read_type(&type)) return false;
    r->at = type.at;
    if (is_flag) {
        put_text(r, *r->at == '1' ? "true" : "false");
        r->at += *r->at != '\0';
    } else {
        if (*r->at == 'n') put(r, "-", 1), r->at++;
        for (; isdigit((unsigned char)*r->at); r->at++)
            put(r, r->at, 1);
    }
    return *r->at++ == 'E';
}

/* "I", the arguments, "E".  The recursion is bounded by the length of the name: each level consumes
 * a letter. */
static bool read_arguments(reader *r) {
    put(r, "<", 1);
    r->at++;
    for (int i = 0; *r->at != 'E'; i++) {
        if (i > 0) put_text(r, ", ");
        if (!(*r->at == 'L' ? read_literal(r) : read_type(r))) return false;
    }
    r->at++;
    put(r, ">", 1);
    return true;
}

/* For "N3foo4gateI...E" the last name and its arguments. */
static bool read_name(reader *r) {
    bool is_nested = *r->at == 'N';
    if (is_nested) r->at++;
    do {
        r->n = 0;
        if (!read_identifier(r)) return false;
    } while (is_nested && isdigit((unsigned char)*r->at));
    return *r->at != 'I' || read_arguments(r);
}

void busy_kernel_name(const char *mangled, char out[BUSY_NAME_BYTES]) {
    reader r = {mangled + 2, out, 0};
    if (strncmp(mangled, "_Z", 2) == 0 && read_name(&r)) return;
    snprintf(out, BUSY_NAME_BYTES, "%s", mangled);
}
