/* Decompression of Parquet pages: SNAPPY, ZSTD and GZIP, each through its library where the build
 * has it.  The size of the result is known beforehand and never exceeded.  One thread at a time per
 * state. */
#ifndef HSTU_FORMAT_PARQUET_CODEC_H
#define HSTU_FORMAT_PARQUET_CODEC_H

#include "format/parquet_meta.h"

/* What a library keeps between pages. */
typedef struct codec_state {
    void *zstd; /* a ZSTD_DCtx, created with the first page */
} codec_state;

void codec_state_fini(codec_state *s);

/* ERR_UNSUPPORTED with what to install, if this build lacks the library. */
status codec_check(parquet_codec codec);

/* Decompresses n bytes to exactly out_bytes. */
status codec_decompress(codec_state *s, parquet_codec codec, const void *bytes, size_t n, void *out,
                        size_t out_bytes);

#endif
