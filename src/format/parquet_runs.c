/* Numbers packed in bits: the RLE/bit-packing hybrid and DELTA_BINARY_PACKED. */
#include <string.h>

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
