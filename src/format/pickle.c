#include "format/pickle.h"

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
    *out = read_little(p, n);
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

/* n_length: bytes of its length, below 0 of one of PICKLE_BYTES. */
static status push_string(machine *m, int n_length) {
    pickle_type type = n_length > 0 ? PICKLE_TEXT : PICKLE_BYTES;
    pickle_value *v = NULL;
    uint64_t n = 0;
    const unsigned char *p = NULL;
    TRY(take_number(m, abs(n_length), &n));
    if (n > m->n_bytes - m->at) return refuse(m, "a text is longer than the pickle");
    TRY(take(m, (size_t)n, &p));
    if (type == PICKLE_TEXT && !utf8_is_valid((const char *)p, (size_t)n))
        return refuse(m, "a text is not UTF-8");
    TRY(push_new(m, type, &v));
    v->n = (size_t)n;
    return arena_copy_text(m->memory, (const char *)p, (size_t)n, &v->text);
}

static status push_mark(machine *m, int n) {
    return push(m, NULL);
}

static status push_empty(machine *m, int type) {
    return push_new(m, (pickle_type)type, NULL);
}

static status push_bool(machine *m, int value) {
    return push_int(m, PICKLE_BOOL, value);
}

/* Two's complement of up to eight bytes. */
static status push_long(machine *m, int n_length) {
    uint64_t n = 0, value = 0;
    TRY(take_number(m, n_length, &n));
    if (n > 8) return refuse(m, "an integer has more than 64 bits");
    TRY(take_number(m, (int)n, &value));
    if (n > 0 && n < 8 && value >> (8 * n - 1) & 1) value |= UINT64_MAX << 8 * n;
    return push_int(m, PICKLE_INT, (int64_t)value);
}

/* The one number with its highest byte first. */
static status push_float(machine *m, int n) {
    const unsigned char *p = NULL;
    uint64_t bits = 0;
    pickle_value *v = NULL;
    TRY(take(m, (size_t)n, &p));
    for (int i = 0; i < n; i++)
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

static status read_global(machine *m, int n) {
    const char *module = NULL, *name = NULL;
    size_t n_module = 0, n_name = 0;
    TRY(take_line(m, &module, &n_module));
    TRY(take_line(m, &name, &n_name));
    return push_global(m, module, n_module, name, n_name);
}

static status read_stack_global(machine *m, int n) {
    pickle_value *module = NULL, *name = NULL;
    TRY(pop(m, &name));
    TRY(pop(m, &module));
    if (module->type != PICKLE_TEXT || name->type != PICKLE_TEXT)
        return refuse(m, "the name of a global is not a text");
    return push_global(m, module->text, module->n, name->text, name->n);
}

/* Python numbers what it remembers without gaps, so a number beyond the next one is no pickle of
 * Python, and would ask for memory. */
static status remember(machine *m, int n) {
    pickle_value *v = NULL;
    uint64_t index = m->n_memo; /* where it has no number of its own */
    if (n > 0) TRY(take_number(m, n, &index));
    TRY(top(m, &v));
    if (index > m->n_memo) return refuse(m, "a number of the memo leaves a gap");
    if (index == m->n_memo) {
        TRY(MEM_RESERVE(&m->memo, &m->memo_capacity, m->n_memo + 1));
        m->n_memo++;
    }
    m->memo[index] = v;
    return OK;
}

static status recall(machine *m, int n) {
    uint64_t index = 0;
    TRY(take_number(m, n, &index));
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
    if (n == 0) {
        TRY(count_marked(m, &n_marked));
        return make_tuple(m, n_marked, true);
    }
    if (m->n < (size_t)n) return refuse(m, "a value is missing");
    return make_tuple(m, (size_t)n, false);
}

/* The container below n values, or with n = 0 below a mark and what is above it; from *first on. */
static status find_container(machine *m, int n, pickle_type type, const char *missing,
                             pickle_value **out, size_t *first) {
    size_t n_values = (size_t)n;
    if (n == 0) TRY(count_marked(m, &n_values));
    size_t below = n_values + (n == 0) + 1;
    if (m->n < below || m->stack[m->n - below] == NULL || m->stack[m->n - below]->type != type)
        return refuse(m, missing);
    *out = m->stack[m->n - below];
    *first = m->n - n_values;
    for (size_t i = *first; i < m->n; i++)
        if (m->stack[i] == NULL) return refuse(m, "a value is missing");
    m->n -= below - 1;
    return OK;
}

static status append(machine *m, int n) {
    pickle_value *list = NULL;
    size_t end = m->n, first = 0;
    TRY(find_container(m, n, PICKLE_LIST, "there is no list to append to", &list, &first));
    for (size_t i = first; i < end; i++)
        TRY(add_item(m, list, NULL, m->stack[i]));
    return OK;
}

static status set_items(machine *m, int n) {
    pickle_value *dict = NULL;
    size_t end = m->n, first = 0;
    TRY(find_container(m, n, PICKLE_DICT, "there is no dict to put items in", &dict, &first));
    if ((end - first) % 2 != 0) return refuse(m, "a key has no value");
    for (size_t i = first; i < end; i += 2)
        TRY(add_item(m, dict, m->stack[i], m->stack[i + 1]));
    return OK;
}

/* A call is recorded, not made; only an empty OrderedDict is known here, because items are put into
 * it. */
static status call(machine *m, int n) {
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
static status drop_state(machine *m, int n) {
    pickle_value *state = NULL, *object = NULL;
    TRY(pop(m, &state));
    TRY(top(m, &object));
    if (object->type != PICKLE_DICT && object->type != PICKLE_CALL)
        return refuse(m, "attributes are set on what has none");
    return OK;
}

static status read_outside(machine *m, int n) {
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

static status read_protocol(machine *m, int n) {
    uint64_t version = 0;
    TRY(take_number(m, n, &version));
    if (version < 2 || version > 5) return refuse(m, "the protocol is not one of 2 to 5");
    return OK;
}

/* FRAME says how much a reader may fetch at once, which does not matter here. */
static status skip_frame(machine *m, int n) {
    uint64_t bytes = 0;
    TRY(take_number(m, n, &bytes));
    return bytes <= m->n_bytes - m->at ? OK : refuse(m, "a frame is longer than the pickle");
}

/* What torch.save writes.  The argument is a number of bytes or of values, 0 where a mark says how
 * many; a type; or a value. */
static const struct {
    int code;
    status (*execute)(machine *m, int argument);
    int argument;
} opcodes[] = {{0x80, read_protocol, 1},
               {0x95, skip_frame, 8},
               {'(', push_mark, 0},
               {'N', push_empty, PICKLE_NONE},
               {0x88, push_bool, 1},
               {0x89, push_bool, 0},
               {'J', read_signed, 4},
               {'K', read_signed, 1},
               {'M', read_signed, 2},
               {0x8a, push_long, 1},
               {'G', push_float, 8},
               {'X', push_string, 4},
               {0x8c, push_string, 1},
               {0x8d, push_string, 8},
               {'B', push_string, -4},
               {'C', push_string, -1},
               {0x8e, push_string, -8},
               {')', push_empty, PICKLE_TUPLE},
               {']', push_empty, PICKLE_LIST},
               {'}', push_empty, PICKLE_DICT},
               {'t', read_tuple, 0},
               {0x85, read_tuple, 1},
               {0x86, read_tuple, 2},
               {0x87, read_tuple, 3},
               {'a', append, 1},
               {'e', append, 0},
               {'s', set_items, 2},
               {'u', set_items, 0},
               {'c', read_global, 0},
               {0x93, read_stack_global, 0},
               {'R', call, 0},
               {0x81, call, 0},
               {'b', drop_state, 0},
               {'Q', read_outside, 0},
               {'q', remember, 1},
               {'r', remember, 4},
               {0x94, remember, 0},
               {'h', recall, 1},
               {'j', recall, 4}};

static status execute(machine *m, int code) {
    char what[96];
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++)
        if (opcodes[i].code == code) return opcodes[i].execute(m, opcodes[i].argument);
    snprintf(what, sizeof what, "opcode 0x%02x is not one that torch.save writes", (unsigned)code);
    return refuse(m, what);
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
    MEM_FREE(m.stack, m.memo);
    return st;
}
