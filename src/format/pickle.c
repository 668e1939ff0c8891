#include "format/pickle.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum { MAX_NAME_BYTES = 256 };

typedef struct machine {
    const char *path;
    const unsigned char *bytes;
    size_t n_bytes, at;
    size_t op_at; /* of the opcode that is being executed */
    const char *const *allowed;
    arena *memory;
    pickle_value **stack; /* (n); a mark is a NULL */
    size_t n, capacity;
    pickle_value **memo; /* (n_memo) */
    size_t n_memo, memo_capacity;
} machine;

static status refuse(const machine *m, const char *what) {
    return fail(ERR_FORMAT, "%s: the pickle is refused at byte %zu: %s", m->path, m->op_at, what);
}

static status take(machine *m, size_t n, const unsigned char **out) {
    if (n > m->n_bytes - m->at) return refuse(m, "it ends in the middle of a value");
    *out = m->bytes + m->at;
    m->at += n;
    return OK;
}

static status take_number(machine *m, int n, uint64_t *out) {
    const unsigned char *p = NULL;
    TRY(take(m, (size_t)n, &p));
    *out = 0;
    for (int i = 0; i < n; i++)
        *out |= (uint64_t)p[i] << 8 * i;
    return OK;
}

static status push(machine *m, pickle_value *v) {
    TRY(MEM_RESERVE(&m->stack, &m->capacity, m->n + 1));
    m->stack[m->n++] = v;
    return OK;
}

static status push_new(machine *m, pickle_type type, pickle_value **out) {
    pickle_value *v = NULL;
    TRY(ARENA_NEW(m->memory, &v, 1));
    v->type = type;
    v->at = m->op_at;
    if (out != NULL) *out = v;
    return push(m, v);
}

static status push_int(machine *m, pickle_type type, int64_t value) {
    pickle_value *v = NULL;
    TRY(push_new(m, type, &v));
    v->integer = value;
    return OK;
}

static status pop(machine *m, pickle_value **out) {
    if (m->n == 0 || m->stack[m->n - 1] == NULL) return refuse(m, "a value is missing");
    *out = m->stack[--m->n];
    return OK;
}

static status top(const machine *m, pickle_value **out) {
    if (m->n == 0 || m->stack[m->n - 1] == NULL) return refuse(m, "a value is missing");
    *out = m->stack[m->n - 1];
    return OK;
}

/* The number of values above the last mark. */
static status count_marked(const machine *m, size_t *out) {
    for (size_t i = m->n; i > 0; i--) {
        if (m->stack[i - 1] != NULL) continue;
        *out = m->n - i;
        return OK;
    }
    return refuse(m, "a mark is missing");
}

static status add_item(machine *m, pickle_value *to, const pickle_value *key,
                       const pickle_value *value) {
    pickle_item *item;
    TRY(ARENA_NEW(m->memory, &item, 1));
    item->key = key;
    item->value = value;
    if (to->last != NULL)
        to->last->next = item;
    else
        to->first = item;
    to->last = item;
    to->n++;
    return OK;
}

static bool is_utf8(const char *text, size_t n) {
    while (n > 0) {
        int length = utf8_length(text, n);
        if (length == 0) return false;
        text += length;
        n -= (size_t)length;
    }
    return true;
}

static status push_text(machine *m, pickle_type type, int n_length) {
    pickle_value *v = NULL;
    uint64_t n = 0;
    const unsigned char *p = NULL;
    TRY(take_number(m, n_length, &n));
    if (n > m->n_bytes - m->at) return refuse(m, "a text is longer than the pickle");
    TRY(take(m, (size_t)n, &p));
    if (type == PICKLE_TEXT && !is_utf8((const char *)p, (size_t)n))
        return refuse(m, "a text is not UTF-8");
    TRY(push_new(m, type, &v));
    v->n = (size_t)n;
    return arena_copy_text(m->memory, (const char *)p, (size_t)n, &v->text);
}

/* Two's complement of up to eight bytes. */
static status push_long(machine *m) {
    uint64_t n = 0, value = 0;
    TRY(take_number(m, 1, &n));
    if (n > 8) return refuse(m, "an integer has more than 64 bits");
    TRY(take_number(m, (int)n, &value));
    if (n > 0 && n < 8 && value >> (8 * n - 1) & 1) value |= UINT64_MAX << 8 * n;
    return push_int(m, PICKLE_INT, (int64_t)value);
}

/* The one number with its highest byte first. */
static status push_float(machine *m) {
    const unsigned char *p = NULL;
    uint64_t bits = 0;
    pickle_value *v = NULL;
    TRY(take(m, 8, &p));
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    TRY(push_new(m, PICKLE_FLOAT, &v));
    memcpy(&v->number, &bits, sizeof bits);
    return OK;
}

/* Names what is refused, so that its user can judge it. */
static status push_global(machine *m, const char *module, size_t n_module, const char *name,
                          size_t n_name) {
    char whole[2 * MAX_NAME_BYTES + 2], shown[4 * sizeof whole];
    pickle_value *v = NULL;
    if (n_module > MAX_NAME_BYTES || n_name > MAX_NAME_BYTES)
        return refuse(m, "the name of a global is too long");
    snprintf(whole, sizeof whole, "%.*s.%.*s", (int)n_module, module, (int)n_name, name);
    for (const char *const *allowed = m->allowed; *allowed != NULL; allowed++) {
        if (strcmp(whole, *allowed) != 0) continue;
        TRY(push_new(m, PICKLE_GLOBAL, &v));
        v->text = *allowed;
        return OK;
    }
    escape_text(shown, sizeof shown, whole);
    return fail(ERR_FORMAT,
                "%s: the pickle is refused at byte %zu: it wants '%s', which is not on the list of "
                "what a file of weights may name; nothing of it was executed.  In Python, save the "
                "tensors alone: torch.save(model.state_dict(), FILE)",
                m->path, m->op_at, shown);
}

static status take_line(machine *m, const char **line, size_t *n) {
    const unsigned char *p = m->bytes + m->at;
    const unsigned char *end = memchr(p, '\n', m->n_bytes - m->at);
    if (end == NULL) return refuse(m, "the name of a global does not end");
    *line = (const char *)p;
    *n = (size_t)(end - p);
    m->at += *n + 1;
    return OK;
}

static status read_global(machine *m) {
    const char *module = NULL, *name = NULL;
    size_t n_module = 0, n_name = 0;
    TRY(take_line(m, &module, &n_module));
    TRY(take_line(m, &name, &n_name));
    return push_global(m, module, n_module, name, n_name);
}

static status read_stack_global(machine *m) {
    pickle_value *module = NULL, *name = NULL;
    TRY(pop(m, &name));
    TRY(pop(m, &module));
    if (module->type != PICKLE_TEXT || name->type != PICKLE_TEXT)
        return refuse(m, "the name of a global is not a text");
    return push_global(m, module->text, module->n, name->text, name->n);
}

/* Python numbers what it remembers without gaps, so a number beyond the next one is no pickle of
 * Python, and would ask for memory. */
static status remember(machine *m, uint64_t index) {
    pickle_value *v = NULL;
    TRY(top(m, &v));
    if (index > m->n_memo) return refuse(m, "a number of the memo leaves a gap");
    if (index == m->n_memo) {
        TRY(MEM_RESERVE(&m->memo, &m->memo_capacity, m->n_memo + 1));
        m->n_memo++;
    }
    m->memo[index] = v;
    return OK;
}

static status recall(machine *m, uint64_t index) {
    if (index >= m->n_memo) return refuse(m, "it reads from the memo what was never put there");
    return push(m, m->memo[index]);
}

/* The last n values become a tuple; a mark below them goes too. */
static status make_tuple(machine *m, size_t n, bool has_mark) {
    pickle_value *v = NULL;
    size_t first = m->n - n;
    for (size_t i = first; i < m->n; i++)
        if (m->stack[i] == NULL) return refuse(m, "a value is missing");
    TRY(ARENA_NEW(m->memory, &v, 1));
    v->type = PICKLE_TUPLE;
    v->at = m->op_at;
    for (size_t i = first; i < m->n; i++)
        TRY(add_item(m, v, NULL, m->stack[i]));
    m->n = first - (has_mark ? 1 : 0);
    return push(m, v);
}

static status read_tuple(machine *m, int n) {
    size_t n_marked = 0;
    if (n < 0) {
        TRY(count_marked(m, &n_marked));
        return make_tuple(m, n_marked, true);
    }
    if (m->n < (size_t)n) return refuse(m, "a value is missing");
    return make_tuple(m, (size_t)n, false);
}

static status append(machine *m, bool is_one) {
    size_t n = 1;
    if (!is_one) TRY(count_marked(m, &n));
    size_t below = n + (is_one ? 0 : 1);
    if (m->n < below + 1 || m->stack[m->n - below - 1] == NULL ||
        m->stack[m->n - below - 1]->type != PICKLE_LIST || (is_one && m->stack[m->n - 1] == NULL))
        return refuse(m, "there is no list to append to");
    pickle_value *list = m->stack[m->n - below - 1];
    for (size_t i = m->n - n; i < m->n; i++)
        TRY(add_item(m, list, NULL, m->stack[i]));
    m->n -= below;
    return OK;
}

static status set_items(machine *m, bool is_one) {
    size_t n = 2;
    if (!is_one) TRY(count_marked(m, &n));
    size_t below = n + (is_one ? 0 : 1);
    if (n % 2 != 0) return refuse(m, "a key has no value");
    if (m->n < below + 1 || m->stack[m->n - below - 1] == NULL ||
        m->stack[m->n - below - 1]->type != PICKLE_DICT)
        return refuse(m, "there is no dict to put items in");
    pickle_value *dict = m->stack[m->n - below - 1];
    for (size_t i = m->n - n; i < m->n; i += 2) {
        if (m->stack[i] == NULL || m->stack[i + 1] == NULL) return refuse(m, "a value is missing");
        TRY(add_item(m, dict, m->stack[i], m->stack[i + 1]));
    }
    m->n -= below;
    return OK;
}

/* A call is recorded, not made; only an empty OrderedDict is known here, because items are put into
 * it. */
static status call(machine *m) {
    pickle_value *function = NULL, *args = NULL, *v = NULL;
    TRY(pop(m, &args));
    TRY(pop(m, &function));
    if (function->type != PICKLE_GLOBAL || args->type != PICKLE_TUPLE)
        return refuse(m, "a call is not of a global with a tuple of arguments");
    if (strcmp(function->text, "collections.OrderedDict") == 0) {
        if (args->n > 0) return refuse(m, "an OrderedDict is made with arguments");
        return push_new(m, PICKLE_DICT, NULL);
    }
    TRY(push_new(m, PICKLE_CALL, &v));
    v->function = function;
    v->args = args;
    return OK;
}

/* Attributes of an object, such as the versions of modules in a state_dict, say nothing about
 * tensors. */
static status drop_state(machine *m) {
    pickle_value *state = NULL, *object = NULL;
    TRY(pop(m, &state));
    TRY(top(m, &object));
    if (object->type != PICKLE_DICT && object->type != PICKLE_CALL)
        return refuse(m, "attributes are set on what has none");
    return OK;
}

static status read_outside(machine *m) {
    pickle_value *id = NULL, *v = NULL;
    TRY(pop(m, &id));
    TRY(push_new(m, PICKLE_OUTSIDE, &v));
    v->args = id;
    return OK;
}

static status read_signed(machine *m, int n) {
    uint64_t value = 0;
    TRY(take_number(m, n, &value));
    return push_int(m, PICKLE_INT, n == 4 ? (int32_t)(uint32_t)value : (int64_t)value);
}

static status read_memo(machine *m, int n, status (*f)(machine *m, uint64_t index)) {
    uint64_t index = 0;
    TRY(take_number(m, n, &index));
    return f(m, index);
}

static status read_protocol(machine *m) {
    uint64_t version = 0;
    TRY(take_number(m, 1, &version));
    if (version < 2 || version > 5) return refuse(m, "the protocol is not one of 2 to 5");
    return OK;
}

/* FRAME says how much a reader may fetch at once, which does not matter here. */
static status skip_frame(machine *m) {
    uint64_t n = 0;
    TRY(take_number(m, 8, &n));
    return n <= m->n_bytes - m->at ? OK : refuse(m, "a frame is longer than the pickle");
}

static status unknown_opcode(const machine *m, int op) {
    char what[96];
    snprintf(what, sizeof what, "opcode 0x%02x is not one that torch.save writes", (unsigned)op);
    return refuse(m, what);
}

static status execute(machine *m, int op) {
    switch (op) {
    case 0x80:
        return read_protocol(m);
    case 0x95:
        return skip_frame(m);
    case '(':
        return push(m, NULL);
    case 'N':
        return push_new(m, PICKLE_NONE, NULL);
    case 0x88:
        return push_int(m, PICKLE_BOOL, 1);
    case 0x89:
        return push_int(m, PICKLE_BOOL, 0);
    case 'J':
        return read_signed(m, 4);
    case 'K':
        return read_signed(m, 1);
    case 'M':
        return read_signed(m, 2);
    case 0x8a:
        return push_long(m);
    case 'G':
        return push_float(m);
    case 'X':
        return push_text(m, PICKLE_TEXT, 4);
    case 0x8c:
        return push_text(m, PICKLE_TEXT, 1);
    case 0x8d:
        return push_text(m, PICKLE_TEXT, 8);
    case 'B':
        return push_text(m, PICKLE_BYTES, 4);
    case 'C':
        return push_text(m, PICKLE_BYTES, 1);
    case 0x8e:
        return push_text(m, PICKLE_BYTES, 8);
    case ')':
        return push_new(m, PICKLE_TUPLE, NULL);
    case ']':
        return push_new(m, PICKLE_LIST, NULL);
    case '}':
        return push_new(m, PICKLE_DICT, NULL);
    case 't':
        return read_tuple(m, -1);
    case 0x85:
        return read_tuple(m, 1);
    case 0x86:
        return read_tuple(m, 2);
    case 0x87:
        return read_tuple(m, 3);
    case 'a':
        return append(m, true);
    case 'e':
        return append(m, false);
    case 's':
        return set_items(m, true);
    case 'u':
        return set_items(m, false);
    case 'c':
        return read_global(m);
    case 0x93:
        return read_stack_global(m);
    case 'R':
    case 0x81:
        return call(m);
    case 'b':
        return drop_state(m);
    case 'Q':
        return read_outside(m);
    case 'q':
        return read_memo(m, 1, remember);
    case 'r':
        return read_memo(m, 4, remember);
    case 0x94:
        return remember(m, m->n_memo);
    case 'h':
        return read_memo(m, 1, recall);
    case 'j':
        return read_memo(m, 4, recall);
    default:
        return unknown_opcode(m, op);
    }
}

static status run(machine *m, const pickle_value **out) {
    pickle_value *v = NULL;
    for (;;) {
        m->op_at = m->at;
        if (m->at == m->n_bytes) return refuse(m, "it has no end");
        int op = m->bytes[m->at++];
        if (op == '.') break;
        TRY(execute(m, op));
    }
    TRY(pop(m, &v));
    if (m->n > 0 || m->at != m->n_bytes) return refuse(m, "it holds more than one value");
    *out = v;
    return OK;
}

status pickle_read(const pickle_value **out, arena *a, const char *path, const unsigned char *bytes,
                   size_t n_bytes, const char *const *allowed) {
    machine m = {.path = path, .bytes = bytes, .n_bytes = n_bytes, .allowed = allowed, .memory = a};
    *out = NULL;
    status st = run(&m, out);
    mem_free(m.stack);
    mem_free(m.memo);
    return st;
}
