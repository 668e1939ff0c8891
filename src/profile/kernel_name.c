#include "profile/kernel_name.h"

#include <dlfcn.h>

typedef struct reader {
    const char *at;
    char *out; /* (size); what does not fit is left out */
    size_t n, size;
} reader;

static void put(reader *r, const char *text, size_t n) {
    for (size_t i = 0; i < n && r->n + 1 < r->size; i++)
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
    static const char *const names[] = {['f'] = "float",
                                        ['d'] = "double",
                                        ['i'] = "int",
                                        ['j'] = "unsigned",
                                        ['l'] = "long",
                                        ['m'] = "unsigned long",
                                        ['x'] = "long long",
                                        ['y'] = "unsigned long long",
                                        ['h'] = "unsigned char",
                                        ['a'] = "signed char",
                                        ['t'] = "unsigned short",
                                        ['s'] = "short",
                                        ['c'] = "char",
                                        ['b'] = "bool",
                                        ['v'] = "void"};
    size_t at = (unsigned char)letter;
    return at < sizeof names / sizeof *names ? names[at] : NULL;
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
    char unused[96];
    reader type = {r->at + 1, unused, 0, sizeof unused};
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

/* The demangler of the C++ runtime, for names that are not ours; loaded when it is first needed,
 * and where it is missing the name stays as it is.  It may replace the block it is given if a name
 * does not fit: a block of a megabyte for mangled names of a few kilobytes. */
enum { DEMANGLED_BYTES = 1 << 20, MAX_MANGLED = 4096 };

static bool demangle(const char *mangled, char *out, size_t size) {
    static char *(*cxa_demangle)(const char *, char *, size_t *, int *);
    static bool is_looked_for;
    char *block;
    size_t n = DEMANGLED_BYTES;
    int failed = 0;
    if (!is_looked_for) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
        if (library != NULL) *(void **)&cxa_demangle = dlsym(library, "__cxa_demangle");
        is_looked_for = true;
    }
    if (cxa_demangle == NULL || strlen(mangled) > MAX_MANGLED) return false;
    if (mem_alloc_raw((void **)&block, n, 1) != OK) return false;
    char *name = cxa_demangle(mangled, block, &n, &failed);
    bool is_read = name != NULL && failed == 0;
    if (is_read) snprintf(out, size, "%s", name);
    mem_free(name != NULL ? name : block);
    return is_read;
}

void kernel_name(const char *mangled, char *out, size_t size) {
    reader r = {mangled + 2, out, 0, size};
    if (strncmp(mangled, "_Z", 2) == 0 && (read_name(&r) || demangle(mangled, out, size))) return;
    snprintf(out, size, "%s", mangled);
}
