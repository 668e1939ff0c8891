#include "format/parquet_meta.h"

/* Parquet's own structs nest eight deep. */
enum { MAX_DEPTH = 16 };

static status fail_short(thrift *t) {
    t->is_short = true;
    return fail(ERR_FORMAT, "the Thrift data ends in the middle of a value");
}

static status take_byte(thrift *t, unsigned *out) {
    *out = 0;
    if (t->at == t->end) return fail_short(t);
    *out = *t->at++;
    return OK;
}

static status take_varint(thrift *t, uint64_t *out) {
    unsigned byte;
    *out = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        TRY(take_byte(t, &byte));
        if (shift == 63 && byte > 1) break;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return OK;
    }
    return fail(ERR_FORMAT, "a Thrift number has more than 64 bits");
}

static status take_zigzag(thrift *t, int64_t *out) {
    uint64_t u;
    TRY(take_varint(t, &u));
    *out = (int64_t)(u >> 1 ^ (0 - (u & 1)));
    return OK;
}

static status pass_bytes(thrift *t, uint64_t n) {
    if (n > (uint64_t)(t->end - t->at)) return fail_short(t);
    t->at += n;
    return OK;
}

typedef struct field {
    int32_t id; /* 0 before the first field */
    uint8_t type;
} field;

/* `f` is the previous one; f->type = THRIFT_STOP at the end of a struct. */
static status next_field(thrift *t, field *f) {
    unsigned byte;
    int64_t id = f->id;
    TRY(take_byte(t, &byte));
    f->type = byte & 15;
    if (byte >> 4 == 0 && f->type != THRIFT_STOP)
        TRY(take_zigzag(t, &id));
    else
        id += byte >> 4;
    if (f->type > THRIFT_STRUCT) return fail(ERR_FORMAT, "Thrift type %d is unknown", f->type);
    if (id < INT16_MIN || id > INT16_MAX)
        return fail(ERR_FORMAT, "a Thrift field has a number of more than 16 bits");
    f->id = (int32_t)id;
    return OK;
}

static status wrong_type(const field *f, const char *wanted) {
    return fail(ERR_FORMAT, "Thrift field %d has type %d and should be %s", (int)f->id, f->type,
                wanted);
}

static status take_int(thrift *t, const field *f, int64_t *out) {
    if (f->type == THRIFT_BYTE) {
        unsigned byte;
        TRY(take_byte(t, &byte));
        *out = (int8_t)byte;
        return OK;
    }
    if (f->type < THRIFT_I16 || f->type > THRIFT_I64) return wrong_type(f, "a number");
    return take_zigzag(t, out);
}

static status take_i32(thrift *t, const field *f, int32_t *out) {
    int64_t wide = 0;
    TRY(take_int(t, f, &wide));
    if (wide < INT32_MIN || wide > INT32_MAX)
        return fail(ERR_FORMAT, "Thrift field %d does not fit 32 bits", (int)f->id);
    *out = (int32_t)wide;
    return OK;
}

static status take_binary(thrift *t, const field *f, thrift_bytes *out) {
    uint64_t length;
    if (f->type != THRIFT_BINARY) return wrong_type(f, "a string");
    TRY(take_varint(t, &length));
    *out = (thrift_bytes){(const char *)t->at, (size_t)length};
    return pass_bytes(t, length);
}

static status take_list(thrift *t, unsigned *element, uint64_t *n) {
    unsigned byte;
    TRY(take_byte(t, &byte));
    *element = byte & 15;
    *n = byte >> 4;
    if (*n == 15) TRY(take_varint(t, n));
    /* Every element has at least one byte. */
    return *n > (uint64_t)(t->end - t->at) ? fail_short(t) : OK;
}

static status skip_value(thrift *t, unsigned type, bool is_element, int depth);

static status skip_struct(thrift *t, int depth) {
    field f = {0};
    for (;;) {
        TRY(next_field(t, &f));
        if (f.type == THRIFT_STOP) return OK;
        TRY(skip_value(t, f.type, false, depth));
    }
}

static status skip_list(thrift *t, int depth) {
    unsigned element = 0;
    uint64_t n;
    TRY(take_list(t, &element, &n));
    for (uint64_t i = 0; i < n; i++)
        TRY(skip_value(t, element, true, depth));
    return OK;
}

static status skip_map(thrift *t, int depth) {
    uint64_t n;
    unsigned types = 0;
    TRY(take_varint(t, &n));
    if (n == 0) return OK;
    TRY(take_byte(t, &types));
    if (n > (uint64_t)(t->end - t->at)) return fail_short(t);
    for (uint64_t i = 0; i < n; i++) {
        TRY(skip_value(t, types >> 4, true, depth));
        TRY(skip_value(t, types & 15, true, depth));
    }
    return OK;
}

/* A boolean has a byte of its own as an element, and none as a field. */
static status skip_value(thrift *t, unsigned type, bool is_element, int depth) {
    uint64_t n;
    if (depth == MAX_DEPTH) return fail(ERR_FORMAT, "Thrift data nests more than %d deep", depth);
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        return pass_bytes(t, is_element);
    case THRIFT_BYTE:
        return pass_bytes(t, 1);
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        return take_varint(t, &n);
    case THRIFT_DOUBLE:
        return pass_bytes(t, 8);
    case THRIFT_BINARY:
        TRY(take_varint(t, &n));
        return pass_bytes(t, n);
    case THRIFT_LIST:
    case THRIFT_SET:
        return skip_list(t, depth + 1);
    case THRIFT_MAP:
        return skip_map(t, depth + 1);
    case THRIFT_STRUCT:
        return skip_struct(t, depth + 1);
    default:
        return fail(ERR_FORMAT, "Thrift type %u is unknown", type);
    }
}

static status take_structs(thrift *t, const field *f, const thrift_want *w, void *to) {
    unsigned type = 0;
    uint64_t n;
    if (f->type != THRIFT_LIST) return wrong_type(f, "a list");
    TRY(take_list(t, &type, &n));
    if (n > 0 && type != THRIFT_STRUCT)
        return fail(ERR_FORMAT, "Thrift field %d is a list of type %u and should be of type %d",
                    (int)f->id, type, THRIFT_STRUCT);
    for (uint64_t i = 0; i < n; i++)
        TRY(w->each(to, t, i, n));
    return OK;
}

static status take_value(thrift *t, const field *f, const thrift_want *w, void *to) {
    void *at = (char *)to + w->at;
    switch (w->kind) {
    case WANT_BOOL:
        *(bool *)at = f->type == THRIFT_TRUE;
        return f->type == THRIFT_TRUE || f->type == THRIFT_FALSE ? OK : wrong_type(f, "a boolean");
    case WANT_I32:
        return take_i32(t, f, at);
    case WANT_I64:
        return take_int(t, f, at);
    case WANT_BYTES:
        return take_binary(t, f, at);
    case WANT_STRUCT:
        return f->type == THRIFT_STRUCT ? thrift_read(t, w->fields, to) : wrong_type(f, "a struct");
    default:
        return take_structs(t, f, w, to);
    }
}

status thrift_read(thrift *t, const thrift_want *wants, void *to) {
    field f = {0};
    for (;;) {
        bool is_taken = false;
        TRY(next_field(t, &f));
        if (f.type == THRIFT_STOP) return OK;
        for (const thrift_want *w = wants; w->kind != WANT_END; w++) {
            if (w->id != f.id && w->id != THRIFT_ANY) continue;
            if (w->kind == WANT_ID) *(int32_t *)((char *)to + w->at) = f.id;
            if (w->kind == WANT_SEEN) *(bool *)((char *)to + w->at) = true;
            if (w->kind == WANT_ID || w->kind == WANT_SEEN) continue;
            TRY(take_value(t, &f, w, to));
            is_taken = true;
        }
        if (!is_taken) TRY(skip_value(t, f.type, false, 0));
    }
}

/* The footer of a wide table with thousands of row groups has some tens of megabytes. */
enum { MAX_FOOTER_BYTES = 256 << 20, MAX_ELEMENTS = 100000, TAIL_BYTES = 8 };
enum { REQUIRED = 0, OPTIONAL, REPEATED };

const char *parquet_type_name(parquet_type type) {
    static const char *const names[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                        "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
    return names[type];
}

/* ConvertedType, the older of the two annotations. */
static void set_converted(schema_element *e, int32_t type) {
    static const uint8_t meanings[] = {
        [0] = MEANS_TEXT,         [4] = MEANS_TEXT,          [5] = MEANS_DECIMAL,
        [6] = MEANS_DATE,         [7] = MEANS_TIME_OF_DAY,   [8] = MEANS_TIME_OF_DAY,
        [9] = MEANS_MILLISECONDS, [10] = MEANS_MICROSECONDS, [11] = MEANS_UNSIGNED,
        [12] = MEANS_UNSIGNED,    [13] = MEANS_UNSIGNED,     [14] = MEANS_UNSIGNED,
        [19] = MEANS_TEXT,        [20] = MEANS_OTHER,        [21] = MEANS_OTHER};
    e->is_list |= type == 3;
    e->is_map |= type == 1 || type == 2;
    if (type < 0 || type > 21)
        e->meaning = MEANS_OTHER;
    else if (type > 3 || type == 0)
        e->meaning = (parquet_meaning)meanings[type];
}

/* What the footer says of an entry, before it is checked. */
typedef struct element_claims {
    int32_t type, fixed_bytes, repetition, n_children, converted;
    thrift_bytes name;
    bool has_logical, is_utc, is_signed;
    int32_t logical, unit; /* unions: the numbers of their fields */
} element_claims;

static const thrift_want TIME_UNIT[] = {WANT(THRIFT_ANY, ID, element_claims, unit), {0}};
static const thrift_want TIMESTAMP[] = {
    WANT(1, BOOL, element_claims, is_utc), {2, WANT_STRUCT, 0, TIME_UNIT, NULL}, {0}};
static const thrift_want INTEGER[] = {WANT(2, BOOL, element_claims, is_signed), {0}};
static const thrift_want LOGICAL[] = {WANT(THRIFT_ANY, ID, element_claims, logical),
                                      {8, WANT_STRUCT, 0, TIMESTAMP, NULL},
                                      {10, WANT_STRUCT, 0, INTEGER, NULL},
                                      {0}};
static const thrift_want ELEMENT[] = {WANT(1, I32, element_claims, type),
                                      WANT(2, I32, element_claims, fixed_bytes),
                                      WANT(3, I32, element_claims, repetition),
                                      WANT(4, BYTES, element_claims, name),
                                      WANT(5, I32, element_claims, n_children),
                                      WANT(6, I32, element_claims, converted),
                                      WANT(10, SEEN, element_claims, has_logical),
                                      {10, WANT_STRUCT, 0, LOGICAL, NULL},
                                      {0}};

/* LogicalType, the newer annotation, which wins where there are both. */
static void set_logical(schema_element *e, const element_claims *c) {
    static const uint8_t meanings[] = {
        [1] = MEANS_TEXT,        [4] = MEANS_TEXT,  [5] = MEANS_DECIMAL, [6] = MEANS_DATE,
        [7] = MEANS_TIME_OF_DAY, [8] = MEANS_OTHER, [10] = MEANS_PLAIN,  [12] = MEANS_TEXT,
        [13] = MEANS_OTHER,      [14] = MEANS_UUID};
    e->is_list |= c->logical == 3;
    e->is_map |= c->logical == 2;
    e->is_local = !c->is_utc;
    e->meaning =
        c->logical >= 0 && c->logical <= 14 ? (parquet_meaning)meanings[c->logical] : MEANS_OTHER;
    if (c->logical == 8 && c->unit >= 1 && c->unit <= 3)
        e->meaning = (parquet_meaning)(MEANS_MILLISECONDS + c->unit - 1);
    if (c->logical == 10 && !c->is_signed) e->meaning = MEANS_UNSIGNED;
}

static status read_element(void *to, thrift *t, uint64_t i, uint64_t n) {
    parquet_file *f = to;
    element_claims c = {.type = -1, .name = {"", 0}, .converted = -1};
    c.is_utc = c.is_signed = true;
    if (n > MAX_ELEMENTS)
        return fail(ERR_UNSUPPORTED, "the schema has more than %d columns", MAX_ELEMENTS);
    TRY(thrift_read(t, ELEMENT, &c));
    if (c.type < -1 || c.type > PARQUET_FIXED || c.repetition < REQUIRED ||
        c.repetition > REPEATED || c.n_children < 0 || (c.type >= 0 && c.n_children > 0))
        return fail(ERR_FORMAT,
                    "the schema has an entry that cannot be: type %d, repetition %d, "
                    "%d children",
                    (int)c.type, (int)c.repetition, (int)c.n_children);
    if (i == 0) f->n_elements = 0;
    TRY(MEM_RESERVE(&f->schema, &f->element_capacity, f->n_elements + 1));
    schema_element *e = &f->schema[f->n_elements++];
    *e = (schema_element){.name = c.name,
                          .n_children = (uint32_t)c.n_children,
                          .type = c.type,
                          .fixed_bytes = c.fixed_bytes,
                          .repetition = (uint8_t)c.repetition};
    if (c.converted != -1) set_converted(e, c.converted);
    if (c.has_logical) set_logical(e, &c);
    return OK;
}

/* The entry after a subtree; *n_leaves grows by its leaves.  0: the subtree does not end. */
static size_t skip_subtree(const parquet_file *f, size_t at, uint32_t *n_leaves) {
    for (uint64_t n_open = 1; n_open > 0; at++) {
        if (at >= f->n_elements) return 0;
        n_open += f->schema[at].n_children;
        n_open--;
        *n_leaves += f->schema[at].type >= 0;
    }
    return at;
}

/* The tree must use every entry once. */
static status check_schema(parquet_file *f) {
    uint32_t leaf = 0;
    size_t at = 1;
    if (f->n_elements == 0 || f->schema[0].type >= 0 ||
        skip_subtree(f, 0, &f->n_leaves) != f->n_elements)
        return fail(ERR_FORMAT, "the schema is not a tree of %zu entries", f->n_elements);
    TRY(MEM_NEW(&f->column, f->schema[0].n_children));
    for (uint32_t i = 0; i < f->schema[0].n_children; i++) {
        f->column[i] = &f->schema[at];
        f->schema[at].first_leaf = leaf;
        at = skip_subtree(f, at, &leaf);
    }
    return OK;
}

static thrift footer_of(const parquet_file *f) {
    return (thrift){.at = (unsigned char *)f->footer,
                    .end = (unsigned char *)f->footer + f->footer_bytes};
}

static status read_file_meta(parquet_file *f) {
    static const thrift_want wants[] = {{2, WANT_LIST, 0, NULL, read_element},
                                        WANT(3, I64, parquet_file, n_rows),
                                        WANT(8, SEEN, parquet_file, is_encrypted),
                                        {0}};
    thrift t = footer_of(f);
    f->n_rows = -1;
    TRY(thrift_read(&t, wants, f));
    if (f->is_encrypted)
        return fail(ERR_UNSUPPORTED, "the file is encrypted; write it again without encryption");
    if (f->n_rows < 0) return fail(ERR_FORMAT, "the footer does not say how many rows there are");
    return check_schema(f);
}

status parquet_read_at(const parquet_file *f, uint64_t offset, void *out, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, (char *)out + done, n - done, (off_t)(offset + done));
        if (got < 0) return fail_errno("the file cannot be read");
        if (got == 0) return fail(ERR_FORMAT, "the file was cut off while it was read");
        done += (size_t)got;
    }
    return OK;
}

/* What a file that is none may be instead, and what to do with it; "" where nobody knows. */
static const char *remedy_of(const unsigned char *head) {
    static const char *const packed[] = {"\x1f\x8b", "PK\3\4", "BZh", "\x28\xb5\x2f\xfd",
                                         "\xfd\x37zX"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (memcmp(head, packed[i], strlen(packed[i])) == 0)
            return "; it is compressed as a whole: unpack it first, or read it with 'hstu prep "
                   "csv' "
                   "or 'hstu prep jsonl' if it holds text";
    if (head[0] == '{') return "; it looks like JSON lines: 'hstu prep jsonl' reads them";
    for (int i = 0; i < 4; i++)
        if (head[i] < ' ' && strchr("\t\r\n", head[i]) == NULL) return "";
    return "; if it is text, 'hstu prep csv' reads it";
}

static status check_magic(const unsigned char *magic, bool is_head) {
    if (memcmp(magic, "PARE", 4) == 0)
        return fail(ERR_UNSUPPORTED, "the file is encrypted; write it again without encryption");
    if (memcmp(magic, "PAR1", 4) == 0) return OK;
    if (is_head)
        return fail(ERR_FORMAT, "not a Parquet file: it does not begin with PAR1%s",
                    remedy_of(magic));
    return fail(ERR_FORMAT, "not a Parquet file: it does not end with PAR1; was it cut off?");
}

static status read_footer(parquet_file *f) {
    struct stat info;
    unsigned char head[4], tail[TAIL_BYTES];
    if (fstat(f->fd, &info) != 0) return fail_errno("the file cannot be read");
    if (!S_ISREG(info.st_mode))
        return fail(ERR_USAGE, "a Parquet file is read from its end; a pipe cannot be");
    uint64_t n_bytes = (uint64_t)info.st_size;
    if (n_bytes < sizeof head + TAIL_BYTES)
        return fail(ERR_FORMAT, "not a Parquet file: it has %llu bytes",
                    (unsigned long long)n_bytes);
    TRY(parquet_read_at(f, 0, head, sizeof head));
    TRY(check_magic(head, true));
    TRY(parquet_read_at(f, n_bytes - TAIL_BYTES, tail, sizeof tail));
    TRY(check_magic(tail + 4, false));
    uint32_t length = (uint32_t)read_little(tail, 4);
    if (length > n_bytes - TAIL_BYTES - sizeof head || length > MAX_FOOTER_BYTES)
        return fail(ERR_FORMAT, "the footer claims %u bytes; the file has %llu", length,
                    (unsigned long long)n_bytes);
    f->data_bytes = n_bytes - TAIL_BYTES - length;
    f->footer_bytes = length;
    TRY(MEM_NEW_RAW(&f->footer, length));
    TRY(parquet_read_at(f, f->data_bytes, f->footer, length));
    return read_file_meta(f);
}

status parquet_file_open(parquet_file *f, const char *path) {
    /* O_NONBLOCK: a pipe is refused, not waited for. */
    *f = (parquet_file){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f->fd < 0) return fail_errno("%s cannot be opened", path);
    status st = read_footer(f);
    if (st == OK) return OK;
    parquet_file_close(f);
    return st == ERR_NOMEM ? st : fail_prefix(st, "%s", path);
}

void parquet_file_close(parquet_file *f) {
    MEM_FREE(f->footer, f->schema, f->column);
    if (f->fd >= 0) close(f->fd);
    *f = (parquet_file){.path = f->path, .fd = -1};
}

/* Calls for a primitive: the leaf of a column, whatever is around it. */
static status set_leaf(const schema_element *e, parquet_column *c) {
    if (e->meaning == MEANS_DECIMAL)
        return fail(ERR_UNSUPPORTED, "decimals are not read; cast the column to an integer or a "
                                     "float");
    if (e->meaning == MEANS_TIME_OF_DAY || e->meaning == MEANS_OTHER)
        return fail(ERR_UNSUPPORTED, "its type cannot be an id, a time or an action; cast it to an "
                                     "integer, a string or a timestamp");
    if (e->type == PARQUET_FIXED && (e->fixed_bytes < 1 || e->fixed_bytes > PARQUET_VALUE_BYTES))
        return fail(ERR_FORMAT, "values of %d bytes", (int)e->fixed_bytes);
    bool is_text = e->type == PARQUET_BYTE_ARRAY || e->type == PARQUET_FIXED;
    bool is_number = e->type == PARQUET_INT32 || e->type == PARQUET_INT64;
    if ((e->meaning == MEANS_TEXT && !is_text) ||
        (e->meaning == MEANS_UUID && (e->type != PARQUET_FIXED || e->fixed_bytes != 16)) ||
        (e->meaning >= MEANS_UNSIGNED && e->meaning <= MEANS_NANOSECONDS && !is_number))
        return fail(ERR_FORMAT, "its logical type does not fit its type %s",
                    parquet_type_name((parquet_type)e->type));
    c->type = (parquet_type)e->type;
    c->fixed_bytes = e->type == PARQUET_FIXED ? (uint32_t)e->fixed_bytes : 0;
    c->meaning = e->type == PARQUET_INT96 ? MEANS_NANOSECONDS : e->meaning;
    c->is_local = e->is_local || e->meaning == MEANS_DATE;
    return OK;
}

/* A list: a group that says so, with one repeated entry in it, which is the element or (three
 * levels, the usual form) a group with the element alone. */
static status set_list(const schema_element *list, parquet_column *c) {
    const schema_element *repeated = list + 1, *element = repeated;
    if (list->n_children != 1 || repeated->repetition != REPEATED || list->repetition == REPEATED)
        return fail(ERR_FORMAT, "the schema of the list is not one");
    c->max_repeat = 1;
    c->max_define = (uint8_t)((list->repetition == OPTIONAL) + 1);
    c->element_define = c->max_define;
    if (repeated->type < 0) {
        element = repeated + 1;
        if (repeated->n_children != 1 || element->type < 0 || element->repetition == REPEATED)
            return fail(ERR_UNSUPPORTED,
                        "lists of lists or structs are not read; give columns with "
                        "one level of lists");
        c->max_define = (uint8_t)(c->max_define + (element->repetition == OPTIONAL));
    }
    return set_leaf(element, c);
}

static status set_column(const schema_element *e, parquet_column *c) {
    if (e->is_map) return fail(ERR_UNSUPPORTED, "maps are not read; give plain columns or lists");
    if (e->is_list && e->type < 0) return set_list(e, c);
    if (e->type < 0)
        return fail(ERR_UNSUPPORTED,
                    "structs are not read; give its fields as columns of their own");
    c->max_repeat = e->repetition == REPEATED;
    c->max_define = e->repetition != REQUIRED;
    c->element_define = c->max_repeat;
    return set_leaf(e, c);
}

static bool is_name(const schema_element *e, const char *wanted, bool is_exact) {
    return e->name.n == strlen(wanted) &&
           (is_exact ? memcmp(e->name.at, wanted, e->name.n)
                     : strncasecmp(e->name.at, wanted, e->name.n)) == 0;
}

/* Whether a top-level entry, the number-th, is the wanted one on this pass: name, any case, number.
 */
static bool is_wanted(const schema_element *e, uint32_t number, const char *wanted, int pass) {
    char digits[16];
    if (pass < 2) return is_name(e, wanted, pass == 0);
    snprintf(digits, sizeof digits, "%u", number);
    return strcmp(digits, wanted) == 0;
}

status parquet_find_column(const parquet_file *f, const char *wanted, parquet_column *out,
                           bool *is_found) {
    char text[64];
    *is_found = false;
    for (int pass = 0; pass < 3; pass++) {
        for (uint32_t i = 0; i < f->schema[0].n_children; i++) {
            const schema_element *e = f->column[i];
            if (!is_wanted(e, i + 1, wanted, pass)) continue;
            *is_found = true;
            *out = (parquet_column){.leaf = e->first_leaf};
            snprintf(out->name, sizeof out->name, "%s",
                     escape_excerpt(text, e->name.at, e->name.n));
            status st = set_column(e, out);
            return st == OK ? OK : fail_prefix(st, "%s: column '%s'", f->path, out->name);
        }
    }
    return OK;
}

void parquet_list_names(const parquet_file *f, char *out, size_t size) {
    out[0] = '\0';
    for (uint32_t i = 0; i < f->schema[0].n_children; i++)
        escape_list_add(out, size, f->column[i]->name.at, f->column[i]->name.n);
}

status parquet_get_names(const parquet_file *f, arena *memory, const char ***out, int *n) {
    *n = (int)f->schema[0].n_children;
    TRY(ARENA_NEW(memory, out, (size_t)*n));
    for (int i = 0; i < *n; i++)
        TRY(arena_copy_text(memory, f->column[i]->name.at, f->column[i]->name.n, &(*out)[i]));
    return OK;
}

enum { MAGIC_BYTES = 4 };

/* What a footer says of a column chunk, before it is checked. */
typedef struct chunk_claims {
    int32_t type, codec;
    int64_t n_values, compressed_bytes, data_offset, dictionary_offset;
    bool has_meta, is_elsewhere, is_encrypted;
} chunk_claims;

static const thrift_want CHUNK_META[] = {WANT(1, I32, chunk_claims, type),
                                         WANT(4, I32, chunk_claims, codec),
                                         WANT(5, I64, chunk_claims, n_values),
                                         WANT(7, I64, chunk_claims, compressed_bytes),
                                         WANT(9, I64, chunk_claims, data_offset),
                                         WANT(11, I64, chunk_claims, dictionary_offset),
                                         {0}};
static const thrift_want CHUNK[] = {
    WANT(1, SEEN, chunk_claims, is_elsewhere), WANT(3, SEEN, chunk_claims, has_meta),
    {3, WANT_STRUCT, 0, CHUNK_META, NULL},     WANT(8, SEEN, chunk_claims, is_encrypted),
    WANT(9, SEEN, chunk_claims, is_encrypted), {0}};

static status check_codec(int32_t codec) {
    static const char *const refused[] = {NULL,     NULL,  NULL, "LZO",
                                          "BROTLI", "LZ4", NULL, "LZ4_RAW"};
    if (codec < 0 || codec > PARQUET_LZ4_RAW)
        return fail(ERR_UNSUPPORTED, "it is compressed by method %d, which is unknown", (int)codec);
    if (refused[codec] != NULL)
        return fail(ERR_UNSUPPORTED,
                    "it is compressed by %s; write it again with SNAPPY, ZSTD, GZIP or none",
                    refused[codec]);
    return OK;
}

/* Offsets of 0 or less mean "none" to some writers. */
static status check_claims(const parquet_file *f, const parquet_column *column,
                           const chunk_claims *c, parquet_chunk *out) {
    if (c->is_encrypted) return fail(ERR_UNSUPPORTED, "it is encrypted");
    if (c->is_elsewhere)
        return fail(ERR_UNSUPPORTED, "its data is in another file, which is not read");
    if (!c->has_meta) return fail(ERR_FORMAT, "the footer does not say where its data is");
    if (c->type != (int32_t)column->type)
        return fail(ERR_FORMAT, "its type is %d in a row group and %d in the schema", (int)c->type,
                    (int)column->type);
    TRY(check_codec(c->codec));
    int64_t begin = c->data_offset;
    if (c->dictionary_offset > 0 && c->dictionary_offset < begin) begin = c->dictionary_offset;
    bool is_inside = begin >= MAGIC_BYTES && (uint64_t)begin <= f->data_bytes &&
                     c->compressed_bytes >= 0 &&
                     (uint64_t)c->compressed_bytes <= f->data_bytes - (uint64_t)begin;
    if (!is_inside || c->n_values < 0)
        return fail(
            ERR_FORMAT,
            "the footer claims %lld values in %lld bytes at byte %lld, but the data ends at "
            "byte %llu",
            (long long)c->n_values, (long long)c->compressed_bytes, (long long)begin,
            (unsigned long long)f->data_bytes);
    *out = (parquet_chunk){.codec = (parquet_codec)c->codec,
                           .begin = (uint64_t)begin,
                           .end = (uint64_t)begin + (uint64_t)c->compressed_bytes,
                           .n_values = (uint64_t)c->n_values};
    return OK;
}

typedef struct groups_reader {
    const parquet_file *file;
    const parquet_column *columns;
    int n_columns;
    parquet_group_fn fn;
    void *ctx;
    parquet_chunk chunk[PARQUET_MAX_WANTED];
    bool is_there, has_chunks; /* the list of groups; the columns of the group in hand */
    int64_t n_rows, first_row; /* of the group in hand */
} groups_reader;

/* Chunks are in the order of the leaves; those of other columns are skipped. */
static status read_chunk(void *to, thrift *t, uint64_t leaf, uint64_t n) {
    groups_reader *r = to;
    chunk_claims c = {.type = -1,
                      .codec = -1,
                      .n_values = -1,
                      .compressed_bytes = -1,
                      .data_offset = -1,
                      .dictionary_offset = -1};
    if (n != r->file->n_leaves)
        return fail(ERR_FORMAT, "a row group has %llu columns, but the schema has %u",
                    (unsigned long long)n, r->file->n_leaves);
    TRY(thrift_read(t, CHUNK, &c));
    r->has_chunks = true;
    for (int i = 0; i < r->n_columns; i++) {
        if (r->columns[i].leaf != leaf) continue;
        status st = check_claims(r->file, &r->columns[i], &c, &r->chunk[i]);
        if (st != OK) return fail_prefix(st, "column '%s'", r->columns[i].name);
    }
    return OK;
}

static status check_group(const groups_reader *r) {
    if (r->n_rows < 0 || !r->has_chunks)
        return fail(ERR_FORMAT, "a row group does not say how many rows or columns it has");
    for (int i = 0; i < r->n_columns; i++)
        if (r->columns[i].max_repeat == 0 && r->chunk[i].n_values != (uint64_t)r->n_rows)
            return fail(ERR_FORMAT, "column '%s' has %llu values in a row group of %lld rows",
                        r->columns[i].name, (unsigned long long)r->chunk[i].n_values,
                        (long long)r->n_rows);
    if (r->n_rows > r->file->n_rows - r->first_row)
        return fail(ERR_FORMAT, "the row groups have more rows than the %lld of the file",
                    (long long)r->file->n_rows);
    return OK;
}

static status read_group(void *to, thrift *t, uint64_t i, uint64_t n) {
    static const thrift_want wants[] = {
        {1, WANT_LIST, 0, NULL, read_chunk}, WANT(3, I64, groups_reader, n_rows), {0}};
    groups_reader *r = to;
    r->n_rows = -1;
    r->has_chunks = false;
    TRY(thrift_read(t, wants, r));
    TRY(check_group(r));
    parquet_group g = {(uint64_t)r->n_rows, (uint64_t)r->first_row, r->chunk};
    r->first_row += r->n_rows;
    return g.n_rows > 0 ? r->fn(r->ctx, &g) : OK;
}

static status read_groups(groups_reader *r) {
    static const thrift_want wants[] = {
        {4, WANT_LIST, 0, NULL, read_group}, WANT(4, SEEN, groups_reader, is_there), {0}};
    thrift t = footer_of(r->file);
    TRY(thrift_read(&t, wants, r));
    if (!r->is_there) return fail(ERR_FORMAT, "the footer has no list of row groups");
    if (r->first_row == r->file->n_rows) return OK;
    return fail(ERR_FORMAT, "the row groups have %lld rows in all, but the file %lld",
                (long long)r->first_row, (long long)r->file->n_rows);
}

status parquet_read_groups(const parquet_file *f, const parquet_column *columns, int n_columns,
                           parquet_group_fn fn, void *ctx) {
    groups_reader r = {.file = f, .columns = columns, .n_columns = n_columns, .fn = fn, .ctx = ctx};
    status st = read_groups(&r);
    return st == OK || st == ERR_NOMEM ? st : fail_prefix(st, "%s", f->path);
}
