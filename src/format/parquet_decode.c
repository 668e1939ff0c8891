#include "format/parquet_decode.h"

#include <string.h>

#include "base/mem.h"

void parquet_values_init(parquet_values *v) {
    *v = (parquet_values){0};
    buf_init(&v->joined);
}

void parquet_values_fini(parquet_values *v) {
    buf_fini(&v->joined);
}

/* Bytes of a value of fixed size; 0 for strings and booleans. */
static size_t value_bytes(const parquet_column *c) {
    static const uint8_t bytes[] = {0, 4, 8, 12, 4, 8, 0, 0};
    return c->type == PARQUET_FIXED ? c->fixed_bytes : bytes[c->type];
}

static status refuse_encoding(int encoding, const parquet_column *c) {
    static const char *const names[] = {
        "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
        "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    if (encoding < 0 || encoding > ENCODING_BYTE_STREAM_SPLIT)
        return fail(ERR_UNSUPPORTED, "encoding %d is unknown", encoding);
    return fail(ERR_UNSUPPORTED, "the encoding %s of %s values is not read", names[encoding],
                parquet_type_name(c->type));
}

/* Dictionary indices: a byte with their width, then runs. */
static status begin_indices(parquet_values *v) {
    if (v->at == v->end) return hybrid_init(&v->runs, v->at, 0, 0);
    return hybrid_init(&v->runs, v->at + 1, (size_t)(v->end - v->at - 1), *v->at);
}

/* Booleans as runs have their length in front. */
static status begin_booleans(parquet_values *v) {
    uint32_t n;
    if (v->end - v->at < 4) return fail(ERR_FORMAT, "the booleans are cut off");
    memcpy(&n, v->at, sizeof n);
    if (n > (size_t)(v->end - v->at) - 4) return fail(ERR_FORMAT, "the booleans are cut off");
    return hybrid_init(&v->runs, v->at + 4, n, 1);
}

static status begin_lengths(parquet_values *v, delta *d) {
    delta skipped;
    TRY(delta_init(d, v->at, (size_t)(v->end - v->at)));
    skipped = *d;
    TRY(delta_skip(&skipped));
    v->at = skipped.at;
    return OK;
}

static status begin_split(parquet_values *v) {
    size_t n = (size_t)(v->end - v->at), width = value_bytes(v->column);
    if (n % width != 0)
        return fail(ERR_FORMAT, "%zu bytes cannot be values of %zu bytes each", n, width);
    v->stride = n / width;
    return OK;
}

status parquet_values_begin(parquet_values *v, const parquet_column *column, int encoding,
                            const void *bytes, size_t n_bytes) {
    bool is_int = column->type == PARQUET_INT32 || column->type == PARQUET_INT64;
    bool is_float = column->type == PARQUET_FLOAT || column->type == PARQUET_DOUBLE;
    bool is_text = column->type == PARQUET_BYTE_ARRAY;
    v->column = column;
    v->encoding = (parquet_encoding)encoding;
    v->at = bytes;
    v->end = v->at + n_bytes;
    v->bit = 0;
    v->previous = v->previous_bytes = 0;
    buf_clear(&v->joined);
    if (encoding == ENCODING_PLAIN) return OK;
    if (encoding == ENCODING_PLAIN_DICTIONARY || encoding == ENCODING_RLE_DICTIONARY)
        return begin_indices(v);
    if (encoding == ENCODING_RLE && column->type == PARQUET_BOOLEAN) return begin_booleans(v);
    if (encoding == ENCODING_DELTA_BINARY_PACKED && is_int)
        return delta_init(&v->first, v->at, n_bytes);
    if (encoding == ENCODING_DELTA_LENGTH_BYTE_ARRAY && is_text) return begin_lengths(v, &v->first);
    if (encoding == ENCODING_DELTA_BYTE_ARRAY && (is_text || column->type == PARQUET_FIXED)) {
        TRY(begin_lengths(v, &v->first));
        return begin_lengths(v, &v->second);
    }
    if (encoding == ENCODING_BYTE_STREAM_SPLIT && (is_int || is_float)) return begin_split(v);
    return refuse_encoding(encoding, column);
}

/* n values of fixed size; their bytes. */
static status take_fixed(parquet_values *v, size_t n, size_t width, const unsigned char **out) {
    if (n > (size_t)(v->end - v->at) / width)
        return fail(ERR_FORMAT, "the page has fewer values than it says");
    *out = v->at;
    v->at += n * width;
    return OK;
}

static uint32_t load32(const unsigned char *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t load64(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static int64_t widen(const parquet_column *c, uint32_t word) {
    return c->meaning == MEANS_UNSIGNED ? (int64_t)word : (int64_t)(int32_t)word;
}

/* Nanoseconds of the day, then the Julian day, as Impala and older Spark write times. */
static status from_int96(const unsigned char *at, int64_t *out) {
    const int64_t epoch_day = 2440588, day_ns = (int64_t)86400 * 1000000000;
    int64_t ns = (int64_t)load64(at), day = (int64_t)load32(at + 8) - epoch_day;
    if (ns < 0 || ns > day_ns || __builtin_mul_overflow(day, day_ns, out) ||
        __builtin_add_overflow(*out, ns, out))
        return fail(ERR_FORMAT, "a time is outside the years 1678 to 2261");
    return OK;
}

static status plain_ints(parquet_values *v, size_t n, int64_t *out) {
    const parquet_column *c = v->column;
    const unsigned char *at = NULL;
    TRY(take_fixed(v, n, value_bytes(c), &at));
    if (c->type == PARQUET_INT64) {
        if (n > 0) memcpy(out, at, n * sizeof *out); /* an empty dictionary has no memory */
        return OK;
    }
    if (c->type == PARQUET_INT32) {
        for (size_t i = 0; i < n; i++)
            out[i] = widen(c, load32(at + 4 * i));
        return OK;
    }
    for (size_t i = 0; i < n; i++)
        TRY(from_int96(at + 12 * i, &out[i]));
    return OK;
}

static status plain_booleans(parquet_values *v, size_t n, int64_t *out) {
    if (n > (uint64_t)(v->end - v->at) * 8 - v->bit)
        return fail(ERR_FORMAT, "the page has fewer values than it says");
    for (size_t i = 0; i < n; i++, v->bit++)
        out[i] = v->at[v->bit >> 3] >> (v->bit & 7) & 1;
    return OK;
}

static status run_booleans(parquet_values *v, size_t n, int64_t *out) {
    uint32_t some[64];
    for (size_t i = 0; i < n; i += 64) {
        size_t k = n - i < 64 ? n - i : 64;
        TRY(hybrid_take(&v->runs, k, some));
        for (size_t j = 0; j < k; j++)
            out[i + j] = some[j];
    }
    return OK;
}

/* One value of a page whose first bytes come first, then the second ones, and so on. */
static uint64_t join_bytes(const parquet_values *v, size_t width) {
    uint64_t word = 0;
    for (size_t k = 0; k < width; k++)
        word |= (uint64_t)v->at[k * v->stride] << (8 * k);
    return word;
}

static status check_split(const parquet_values *v, size_t n) {
    /* v->at moves through the first of the streams. */
    size_t left = v->stride - (v->stride * value_bytes(v->column) - (size_t)(v->end - v->at));
    return n > left ? fail(ERR_FORMAT, "the page has fewer values than it says") : OK;
}

static status split_ints(parquet_values *v, size_t n, int64_t *out) {
    size_t width = value_bytes(v->column);
    TRY(check_split(v, n));
    for (size_t i = 0; i < n; i++, v->at++) {
        uint64_t word = join_bytes(v, width);
        out[i] = width == 4 ? widen(v->column, (uint32_t)word) : (int64_t)word;
    }
    return OK;
}

status parquet_values_ints(parquet_values *v, size_t n, int64_t *out) {
    const parquet_column *c = v->column;
    if (v->encoding == ENCODING_DELTA_BINARY_PACKED) {
        TRY(delta_take(&v->first, n, out));
        for (size_t i = 0; c->type == PARQUET_INT32 && i < n; i++)
            out[i] = widen(c, (uint32_t)out[i]);
        return OK;
    }
    if (v->encoding == ENCODING_BYTE_STREAM_SPLIT) return split_ints(v, n, out);
    if (v->encoding == ENCODING_RLE) return run_booleans(v, n, out);
    return c->type == PARQUET_BOOLEAN ? plain_booleans(v, n, out) : plain_ints(v, n, out);
}

static double to_double(const parquet_column *c, uint64_t word) {
    if (c->type == PARQUET_DOUBLE) {
        double d;
        memcpy(&d, &word, sizeof d);
        return d;
    }
    uint32_t low = (uint32_t)word;
    float f;
    memcpy(&f, &low, sizeof f);
    return f;
}

status parquet_values_doubles(parquet_values *v, size_t n, double *out) {
    const parquet_column *c = v->column;
    size_t width = value_bytes(c);
    if (v->encoding == ENCODING_BYTE_STREAM_SPLIT) {
        TRY(check_split(v, n));
        for (size_t i = 0; i < n; i++, v->at++)
            out[i] = to_double(c, join_bytes(v, width));
        return OK;
    }
    const unsigned char *at = NULL;
    TRY(take_fixed(v, n, width, &at));
    for (size_t i = 0; i < n; i++)
        out[i] = to_double(c, width == 8 ? load64(at + 8 * i) : load32(at + 4 * i));
    return OK;
}

static status check_length(int64_t n_bytes) {
    if (n_bytes < 0 || n_bytes > PARQUET_VALUE_BYTES)
        return fail(ERR_FORMAT, "a string of %lld bytes; ids have at most %d", (long long)n_bytes,
                    PARQUET_VALUE_BYTES);
    return OK;
}

static status take_text(parquet_values *v, int64_t n_bytes, parquet_text *out) {
    TRY(check_length(n_bytes));
    if ((size_t)n_bytes > (size_t)(v->end - v->at))
        return fail(ERR_FORMAT, "the page ends in a string");
    *out = (parquet_text){(const char *)v->at, (uint32_t)n_bytes};
    v->at += n_bytes;
    return OK;
}

static status plain_texts(parquet_values *v, size_t n, parquet_text *out) {
    bool is_fixed = v->column->type == PARQUET_FIXED;
    for (size_t i = 0; i < n; i++) {
        int64_t length = v->column->fixed_bytes;
        if (!is_fixed) {
            if (v->end - v->at < 4) return fail(ERR_FORMAT, "the page ends in a string");
            length = load32(v->at);
            v->at += 4;
        }
        TRY(take_text(v, length, &out[i]));
    }
    return OK;
}

static status length_texts(parquet_values *v, size_t n, parquet_text *out) {
    int64_t length[64];
    for (size_t i = 0; i < n; i++) {
        size_t k = n - i < 64 ? n - i : 64;
        if (i % 64 == 0) TRY(delta_take(&v->first, k, length));
        TRY(take_text(v, length[i % 64], &out[i]));
    }
    return OK;
}

/* Moves the last value to the front: all before it was handed out in calls before. */
static void keep_previous(parquet_values *v) {
    if (v->previous_bytes > 0)
        memmove(v->joined.data, v->joined.data + v->previous, v->previous_bytes);
    v->previous = 0;
    v->joined.n_bytes = v->previous_bytes;
}

/* Appends one value: the start of the previous one, and a suffix. */
static status join_text(parquet_values *v, int64_t prefix, int64_t suffix) {
    parquet_text tail = {0};
    if (prefix < 0 || (size_t)prefix > v->previous_bytes)
        return fail(ERR_FORMAT, "a string shares more with the one before than that has");
    TRY(take_text(v, suffix, &tail));
    TRY(check_length(prefix + suffix));
    TRY(buf_reserve(&v->joined, (size_t)(prefix + suffix) + 1));
    size_t start = v->joined.n_bytes;
    if (prefix > 0) TRY(buf_append(&v->joined, v->joined.data + v->previous, (size_t)prefix));
    TRY(buf_append(&v->joined, tail.bytes, tail.n_bytes));
    v->previous = start;
    v->previous_bytes = (size_t)(prefix + suffix);
    return OK;
}

static status joined_texts(parquet_values *v, size_t n, parquet_text *out) {
    int64_t prefix[PARQUET_TEXT_BATCH], suffix[PARQUET_TEXT_BATCH];
    size_t start[PARQUET_TEXT_BATCH];
    TRY(delta_take(&v->first, n, prefix));
    TRY(delta_take(&v->second, n, suffix));
    keep_previous(v);
    for (size_t i = 0; i < n; i++) {
        TRY(join_text(v, prefix[i], suffix[i]));
        if (v->column->type == PARQUET_FIXED && v->previous_bytes != v->column->fixed_bytes)
            return fail(ERR_FORMAT, "a value of %zu bytes in a column of %u", v->previous_bytes,
                        v->column->fixed_bytes);
        start[i] = v->previous;
        out[i].n_bytes = (uint32_t)v->previous_bytes;
    }
    for (size_t i = 0; i < n; i++)
        out[i].bytes = buf_str(&v->joined) + start[i];
    return OK;
}

status parquet_values_texts(parquet_values *v, size_t n, parquet_text *out) {
    if (v->encoding == ENCODING_DELTA_LENGTH_BYTE_ARRAY) return length_texts(v, n, out);
    if (v->encoding == ENCODING_DELTA_BYTE_ARRAY) return joined_texts(v, n, out);
    return plain_texts(v, n, out);
}

status parquet_values_indices(parquet_values *v, size_t n, uint32_t n_dictionary, uint32_t *out) {
    uint32_t largest = 0;
    TRY(hybrid_take(&v->runs, n, out));
    for (size_t i = 0; i < n; i++)
        largest = out[i] > largest ? out[i] : largest;
    if (n > 0 && largest >= n_dictionary)
        return fail(ERR_FORMAT, "value %u of a dictionary of %u", largest, n_dictionary);
    return OK;
}
