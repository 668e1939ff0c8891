#include "format/parquet_codec.h"

#include <limits.h>
#include <string.h>

#ifdef HSTU_HAS_SNAPPY
#include <snappy-c.h>
#endif
#ifdef HSTU_HAS_ZSTD
#include <zstd.h>
#endif
#ifdef HSTU_HAS_ZLIB
#include <zlib.h>
#endif

static status damaged(const char *codec) {
    return fail(ERR_FORMAT, "the %s data of a page is damaged or has another size than it says",
                codec);
}

static status lacks(const char *codec, const char *package) {
    return fail(
        ERR_UNSUPPORTED,
        "it is compressed by %s, which this build cannot read; install %s and make again, or "
        "write the file with another compression",
        codec, package);
}

status codec_check(parquet_codec codec) {
#ifndef HSTU_HAS_SNAPPY
    if (codec == PARQUET_SNAPPY) return lacks("SNAPPY", "libsnappy-dev");
#endif
#ifndef HSTU_HAS_ZSTD
    if (codec == PARQUET_ZSTD) return lacks("ZSTD", "libzstd-dev");
#endif
#ifndef HSTU_HAS_ZLIB
    if (codec == PARQUET_GZIP) return lacks("GZIP", "zlib1g-dev");
#endif
    (void)codec, (void)lacks, (void)damaged; /* a build may need none of them */
    return OK;
}

#ifdef HSTU_HAS_SNAPPY
static status from_snappy(const void *bytes, size_t n, void *out, size_t out_bytes) {
    size_t length;
    /* The library trusts that the room is as large as the data says. */
    if (snappy_uncompressed_length(bytes, n, &length) != SNAPPY_OK || length != out_bytes ||
        snappy_uncompress(bytes, n, out, &length) != SNAPPY_OK)
        return damaged("SNAPPY");
    return OK;
}
#endif

#ifdef HSTU_HAS_ZSTD
static status from_zstd(codec_state *s, const void *bytes, size_t n, void *out, size_t out_bytes) {
    if (s->zstd == NULL) s->zstd = ZSTD_createDCtx();
    if (s->zstd == NULL) return fail(ERR_NOMEM, "no memory for a ZSTD decompressor");
    size_t got = ZSTD_decompressDCtx(s->zstd, out, out_bytes, bytes, n);
    return ZSTD_isError(got) || got != out_bytes ? damaged("ZSTD") : OK;
}
#endif

#ifdef HSTU_HAS_ZLIB
/* Gzip data may have several members, one after the other. */
static status from_gzip(const void *bytes, size_t n, void *out, size_t out_bytes) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)bytes, .next_out = out};
    if (n > UINT_MAX || out_bytes > UINT_MAX) return damaged("GZIP");
    z.avail_in = (uInt)n;
    z.avail_out = (uInt)out_bytes;
    if (inflateInit2(&z, MAX_WBITS + 32) != Z_OK)
        return fail(ERR_NOMEM, "no memory for a GZIP decompressor");
    int code = inflate(&z, Z_FINISH);
    while (code == Z_STREAM_END && z.avail_in > 0 && inflateReset(&z) == Z_OK)
        code = inflate(&z, Z_FINISH);
    bool is_whole = code == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return is_whole ? OK : damaged("GZIP");
}
#endif

status codec_decompress(codec_state *s, parquet_codec codec, const void *bytes, size_t n, void *out,
                        size_t out_bytes) {
    (void)s;
#ifdef HSTU_HAS_SNAPPY
    if (codec == PARQUET_SNAPPY) return from_snappy(bytes, n, out, out_bytes);
#endif
#ifdef HSTU_HAS_ZSTD
    if (codec == PARQUET_ZSTD) return from_zstd(s, bytes, n, out, out_bytes);
#endif
#ifdef HSTU_HAS_ZLIB
    if (codec == PARQUET_GZIP) return from_gzip(bytes, n, out, out_bytes);
#endif
    if (codec != PARQUET_UNCOMPRESSED) return codec_check(codec);
    if (n != out_bytes)
        return fail(ERR_FORMAT, "an uncompressed page of %zu bytes says it has %zu", n, out_bytes);
    if (n > 0) memcpy(out, bytes, n);
    return OK;
}

void codec_state_fini(codec_state *s) {
#ifdef HSTU_HAS_ZSTD
    ZSTD_freeDCtx(s->zstd);
#endif
    s->zstd = NULL;
}
