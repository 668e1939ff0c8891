/* Any bytes as the values of a page, in every encoding and type; and as Thrift data.  The first
 * byte chooses the encoding, the second the type and how many values are taken at a time. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/parquet_decode.h"
#include "format/parquet_meta.h"

enum { MAX_BATCHES = 64, MAX_BATCH = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Strings must lie in the page or in the decoder's own memory: touch every byte. */
static void check_texts(const parquet_text *texts, size_t n) {
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (texts[i].n_bytes > PARQUET_VALUE_BYTES) abort();
        for (size_t k = 0; k < texts[i].n_bytes; k++)
            sum += (unsigned char)texts[i].bytes[k];
    }
    if (sum == UINT32_MAX) abort();
}

static status take(parquet_values *v, size_t n) {
    static int64_t ints[MAX_BATCH];
    static double doubles[MAX_BATCH];
    static parquet_text texts[MAX_BATCH];
    static uint32_t index[MAX_BATCH];
    if (parquet_is_dictionary(v->encoding)) {
        TRY(parquet_values_indices(v, n, 1000, index));
        for (size_t i = 0; i < n; i++)
            if (index[i] >= 1000) abort();
        return OK;
    }
    switch (v->column->type) {
    case PARQUET_FLOAT:
    case PARQUET_DOUBLE:
        return parquet_values_doubles(v, n, doubles);
    case PARQUET_BYTE_ARRAY:
    case PARQUET_FIXED:
        TRY(parquet_values_texts(v, n, texts));
        check_texts(texts, n);
        return OK;
    default:
        return parquet_values_ints(v, n, ints);
    }
}

static void skip_thrift(const uint8_t *data, size_t size) {
    thrift t = {.at = data, .end = data + size};
    static const thrift_want wants[] = {{0}};
    (void)thrift_read(&t, wants, NULL);
    if (t.at > t.end) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    parquet_column c = {.type = (parquet_type)(data[1] & 7), .fixed_bytes = 5};
    size_t batch = 1 + (data[1] >> 3) * 2u;
    parquet_values v;
    /* An exact allocation, so that a read past the end is found. */
    uint8_t *bytes = malloc(size - 2 + (size == 2));
    if (bytes == NULL) return 0;
    memcpy(bytes, data + 2, size - 2);
    parquet_values_init(&v);
    if (parquet_values_begin(&v, &c, data[0] % 11, bytes, size - 2) == OK)
        for (int i = 0; i < MAX_BATCHES; i++)
            if (take(&v, batch) != OK) break;
    parquet_values_fini(&v);
    skip_thrift(bytes, size - 2);
    free(bytes);
    return 0;
}
