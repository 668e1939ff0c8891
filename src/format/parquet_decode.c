#include "format/parquet_decode.h"

/* The number of `width` bits (at most 64) that begins at this bit; the bytes end at `end`. */
static inline uint64_t slow_bits(const unsigned char *packed, const unsigned char *end,
                                 uint64_t bit, unsigned width) {
    uint64_t value = 0;
    for (unsigned i = 0; i < width;) {
        const unsigned char *at = packed + ((bit + i) >> 3);
        unsigned shift = (unsigned)((bit + i) & 7), n = 8 - shift;
        if (n > width - i) n = width - i;
        if (at < end) value |= (uint64_t)((*at >> shift) & ((1u << n) - 1)) << i;
        i += n;
    }
    return value;
}

/* Numbers of up to 57 bits come out of one unaligned load where eight bytes are left. */
static inline uint64_t take_bits(const unsigned char *packed, const unsigned char *end,
                                 uint64_t bit, unsigned width) {
    const unsigned char *at = packed + (bit >> 3);
    if (width > 57 || end - at < 8) return slow_bits(packed, end, bit, width);
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word >> (bit & 7) & (((uint64_t)1 << width) - 1);
}

static bool take_varint(const unsigned char **at, const unsigned char *end, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        unsigned byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

status hybrid_init(hybrid *h, const void *bytes, size_t n_bytes, unsigned width) {
    if (width > 32) return fail(ERR_FORMAT, "numbers of %u bits", width);
    *h = (hybrid){.at = bytes, .end = (const unsigned char *)bytes + n_bytes, .width = width};
    return OK;
}

static status open_packed(hybrid *h, uint64_t n_groups) {
    uint64_t left = (uint64_t)(h->end - h->at), n_bytes = n_groups * h->width;
    h->n_packed = n_groups * 8;
    h->packed = h->at;
    h->packed_bit = 0;
    /* Some writers leave the padding of the last run out. */
    if (n_bytes > left) {
        n_bytes = left;
        h->n_packed = left * 8 / h->width;
    }
    h->at += n_bytes;
    return h->n_packed > 0 ? OK : fail(ERR_FORMAT, "an empty run of packed numbers");
}

static status open_run(hybrid *h) {
    uint64_t header;
    size_t value_bytes = (h->width + 7) / 8;
    if (!take_varint(&h->at, h->end, &header) || header > UINT32_MAX)
        return fail(ERR_FORMAT, "the levels or indices end too early");
    if (header & 1) return open_packed(h, header >> 1);
    if ((size_t)(h->end - h->at) < value_bytes)
        return fail(ERR_FORMAT, "the levels or indices end in a run");
    h->value = 0;
    for (size_t i = 0; i < value_bytes; i++)
        h->value |= (uint32_t)h->at[i] << (8 * i);
    h->at += value_bytes;
    h->n_equal = header >> 1;
    if (h->n_equal == 0) return fail(ERR_FORMAT, "an empty run of equal numbers");
    if (h->width < 32 && h->value >> h->width != 0)
        return fail(ERR_FORMAT, "the number %u has more than %u bits", h->value, h->width);
    return OK;
}

static void take_packed(hybrid *h, size_t n, uint32_t *out) {
    for (size_t i = 0; i < n; i++, h->packed_bit += h->width)
        out[i] = (uint32_t)take_bits(h->packed, h->end, h->packed_bit, h->width);
    h->n_packed -= n;
}

static void take_equal(hybrid *h, size_t n, uint32_t *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = h->value;
    h->n_equal -= n;
}

status hybrid_take(hybrid *h, size_t n, uint32_t *out) {
    while (n > 0) {
        if (h->n_equal == 0 && h->n_packed == 0) TRY(open_run(h));
        uint64_t run = h->n_equal > 0 ? h->n_equal : h->n_packed;
        size_t k = run < n ? (size_t)run : n;
        if (h->n_equal > 0)
            take_equal(h, k, out);
        else
            take_packed(h, k, out);
        out += k;
        n -= k;
    }
    return OK;
}

status hybrid_skip_equal(hybrid *h, uint32_t value, size_t n, size_t *n_skipped) {
    *n_skipped = 0;
    if (n == 0) return OK;
    if (h->n_equal == 0 && h->n_packed == 0) TRY(open_run(h));
    if (h->n_equal == 0 || h->value != value) return OK;
    *n_skipped = h->n_equal < n ? (size_t)h->n_equal : n;
    h->n_equal -= *n_skipped;
    return OK;
}

static int64_t from_zigzag(uint64_t u) {
    return (int64_t)(u >> 1 ^ (0 - (u & 1)));
}

status delta_init(delta *d, const void *bytes, size_t n_bytes) {
    uint64_t block, first;
    *d = (delta){.at = bytes, .end = (const unsigned char *)bytes + n_bytes, .is_first = true};
    if (n_bytes == 0) return OK; /* A page of nulls has nothing at all. */
    if (!take_varint(&d->at, d->end, &block) || !take_varint(&d->at, d->end, &d->n_minis) ||
        !take_varint(&d->at, d->end, &d->n_left) || !take_varint(&d->at, d->end, &first))
        return fail(ERR_FORMAT, "the header of the deltas is cut off");
    if (block == 0 || block > INT32_MAX || d->n_minis == 0 || block % d->n_minis != 0 ||
        block / d->n_minis % 8 != 0 || d->n_left > INT32_MAX)
        return fail(ERR_FORMAT,
                    "deltas in blocks of %llu values, %llu miniblocks each, %llu in all: these "
                    "cannot be",
                    (unsigned long long)block, (unsigned long long)d->n_minis,
                    (unsigned long long)d->n_left);
    d->values_per_mini = block / d->n_minis;
    d->mini = d->n_minis;
    d->last = (uint64_t)from_zigzag(first);
    return OK;
}

static status open_block(delta *d) {
    uint64_t smallest;
    if (!take_varint(&d->at, d->end, &smallest) || (uint64_t)(d->end - d->at) < d->n_minis)
        return fail(ERR_FORMAT, "the deltas end too early");
    d->min_delta = (uint64_t)from_zigzag(smallest);
    d->widths = d->at;
    d->at += d->n_minis;
    d->mini = 0;
    return OK;
}

/* A miniblock is padded to its full size; only what it needs has to be there. */
static status open_mini(delta *d) {
    if (d->mini == d->n_minis) TRY(open_block(d));
    d->width = d->widths[d->mini++];
    if (d->width > 64) return fail(ERR_FORMAT, "deltas of %u bits", d->width);
    uint64_t n = d->n_left < d->values_per_mini ? d->n_left : d->values_per_mini;
    uint64_t left = (uint64_t)(d->end - d->at), full = d->values_per_mini / 8 * d->width;
    if ((n * d->width + 7) / 8 > left) return fail(ERR_FORMAT, "the deltas end in a miniblock");
    d->packed = d->at;
    d->packed_bit = 0;
    d->at += full < left ? full : left;
    d->n_in_mini = n;
    return OK;
}

static void take_mini(delta *d, size_t n, int64_t *out) {
    for (size_t i = 0; i < n; i++, d->packed_bit += d->width) {
        d->last += d->min_delta + take_bits(d->packed, d->end, d->packed_bit, d->width);
        out[i] = (int64_t)d->last;
    }
    d->n_in_mini -= n;
    d->n_left -= n;
}

status delta_take(delta *d, size_t n, int64_t *out) {
    if (n > d->n_left) return fail(ERR_FORMAT, "there are fewer deltas than values");
    if (n > 0 && d->is_first) {
        *out++ = (int64_t)d->last;
        d->is_first = false;
        d->n_left--;
        n--;
    }
    while (n > 0) {
        if (d->n_in_mini == 0) TRY(open_mini(d));
        size_t k = d->n_in_mini < n ? (size_t)d->n_in_mini : n;
        take_mini(d, k, out);
        out += k;
        n -= k;
    }
    return OK;
}

status delta_skip(delta *d) {
    if (d->n_left > 0 && d->is_first) d->n_left--;
    d->is_first = false;
    for (; d->n_left > 0; d->n_left -= d->n_in_mini)
        TRY(open_mini(d));
    return OK;
}

void parquet_values_init(parquet_values *v) {
    *v = (parquet_values){0};
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

/* Nanoseconds of the day, then the Julian day, as Impala and older Spark write times. */
static status from_int96(const unsigned char *at, int64_t *out) {
    const int64_t epoch_day = 2440588, day_ns = (int64_t)86400 * 1000000000;
    int64_t ns = (int64_t)load64(at), day = (int64_t)load32(at + 8) - epoch_day;
    if (ns < 0 || ns > day_ns || __builtin_mul_overflow(day, day_ns, out) ||
        __builtin_add_overflow(*out, ns, out))
        return fail(ERR_FORMAT, "a time is outside the years 1678 to 2261");
    return OK;
}

/* The next n values of 4 or 8 bytes, of plain pages or of those that have their first bytes first,
 * then the second ones, and so on; (n) words of 64 bits. */
static status take_words(parquet_values *v, size_t n, void *out) {
    size_t width = value_bytes(v->column);
    const unsigned char *at = v->at;
    char *to = out;
    bool is_split = v->encoding == ENCODING_BYTE_STREAM_SPLIT;
    /* Of a split page v->at moves through the first of the streams. */
    size_t left = (size_t)(v->end - at);
    left = is_split ? left - (width - 1) * v->stride : left / width;
    if (n > left) return fail(ERR_FORMAT, "the page has fewer values than it says");
    v->at += is_split ? n : n * width;
    if (!is_split && width == 8 && n > 0) memcpy(to, at, n * 8); /* a dictionary may be empty */
    for (size_t i = 0; !is_split && width == 4 && i < n; i++) {
        uint64_t word = load32(at + 4 * i);
        memcpy(to + 8 * i, &word, 8);
    }
    for (size_t i = 0; is_split && i < n; i++) {
        uint64_t word = 0;
        for (size_t k = 0; k < width; k++)
            word |= (uint64_t)at[i + k * v->stride] << (8 * k);
        memcpy(to + 8 * i, &word, 8);
    }
    return OK;
}

static status take_int96(parquet_values *v, size_t n, int64_t *out) {
    const unsigned char *at = NULL;
    TRY(take_fixed(v, n, value_bytes(v->column), &at));
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

status parquet_values_ints(parquet_values *v, size_t n, int64_t *out) {
    const parquet_column *c = v->column;
    if (v->encoding == ENCODING_RLE) return run_booleans(v, n, out);
    if (c->type == PARQUET_BOOLEAN) return plain_booleans(v, n, out);
    if (c->type == PARQUET_INT96) return take_int96(v, n, out);
    TRY(v->encoding == ENCODING_DELTA_BINARY_PACKED ? delta_take(&v->first, n, out)
                                                    : take_words(v, n, out));
    for (size_t i = 0; c->type == PARQUET_INT32 && i < n; i++)
        out[i] = c->meaning == MEANS_UNSIGNED ? (int64_t)(uint32_t)out[i] : (int32_t)out[i];
    return OK;
}

status parquet_values_doubles(parquet_values *v, size_t n, double *out) {
    TRY(take_words(v, n, out));
    for (size_t i = 0; v->column->type == PARQUET_FLOAT && i < n; i++) {
        float f;
        memcpy(&f, &out[i], sizeof f); /* the low half of the word */
        out[i] = (double)f;
    }
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
