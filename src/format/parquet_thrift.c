#include "format/parquet_thrift.h"

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

static status take_bytes(thrift *t, uint64_t n) {
    if (n > (uint64_t)(t->end - t->at)) return fail_short(t);
    t->at += n;
    return OK;
}

status thrift_next_field(thrift *t, thrift_field *f) {
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

static status wrong_type(const thrift_field *f, const char *wanted) {
    return fail(ERR_FORMAT, "Thrift field %d has type %d and should be %s", (int)f->id, f->type,
                wanted);
}

status thrift_get_bool(thrift *t, const thrift_field *f, bool *out) {
    (void)t; /* the type is the value */
    *out = f->type == THRIFT_TRUE;
    return f->type == THRIFT_TRUE || f->type == THRIFT_FALSE ? OK : wrong_type(f, "a boolean");
}

status thrift_get_int(thrift *t, const thrift_field *f, int64_t *out) {
    if (f->type == THRIFT_BYTE) {
        unsigned byte;
        TRY(take_byte(t, &byte));
        *out = (int8_t)byte;
        return OK;
    }
    if (f->type < THRIFT_I16 || f->type > THRIFT_I64) return wrong_type(f, "a number");
    return take_zigzag(t, out);
}

status thrift_get_i32(thrift *t, const thrift_field *f, int32_t *out) {
    int64_t wide = 0;
    TRY(thrift_get_int(t, f, &wide));
    if (wide < INT32_MIN || wide > INT32_MAX)
        return fail(ERR_FORMAT, "Thrift field %d does not fit 32 bits", (int)f->id);
    *out = (int32_t)wide;
    return OK;
}

status thrift_get_binary(thrift *t, const thrift_field *f, const char **bytes, size_t *n) {
    uint64_t length;
    if (f->type != THRIFT_BINARY) return wrong_type(f, "a string");
    TRY(take_varint(t, &length));
    *bytes = (const char *)t->at;
    TRY(take_bytes(t, length));
    *n = (size_t)length;
    return OK;
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

status thrift_open_list(thrift *t, const thrift_field *f, thrift_type element, uint64_t *n) {
    unsigned type = 0;
    if (f->type != THRIFT_LIST) return wrong_type(f, "a list");
    TRY(take_list(t, &type, n));
    if (*n > 0 && type != (unsigned)element)
        return fail(ERR_FORMAT, "Thrift field %d is a list of type %u and should be of type %d",
                    (int)f->id, type, (int)element);
    return OK;
}

status thrift_check_struct(const thrift *t, const thrift_field *f) {
    (void)t;
    return f->type == THRIFT_STRUCT ? OK : wrong_type(f, "a struct");
}

static status skip_value(thrift *t, unsigned type, bool is_element, int depth);

static status skip_struct(thrift *t, int depth) {
    thrift_field f = {0};
    for (;;) {
        TRY(thrift_next_field(t, &f));
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
        return take_bytes(t, is_element);
    case THRIFT_BYTE:
        return take_bytes(t, 1);
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        return take_varint(t, &n);
    case THRIFT_DOUBLE:
        return take_bytes(t, 8);
    case THRIFT_BINARY:
        TRY(take_varint(t, &n));
        return take_bytes(t, n);
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

status thrift_skip(thrift *t, const thrift_field *f) {
    return skip_value(t, f->type, false, 0);
}
