/* Hashes: hash64 for tables and file checksums (fast, not cryptographic), md5 for downloads (the
 * publishers of the data sets state md5 sums), the CRCs of file formats, and HMAC-SHA-256 for ranks
 * that prove that they know a secret.  Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A 64-bit hash of n bytes (the XXH64 algorithm): stable across machines, part of our file formats.
 */
uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

/* A bijective mix of one 64-bit word, for hash tables of integer keys. */
static inline uint64_t hash64_mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

typedef struct md5_state {
    uint32_t word[4];
    uint64_t n_bytes;
    uint8_t block[64];
} md5_state;

void md5_begin(md5_state *m);
void md5_add(md5_state *m, const void *bytes, size_t n);
void md5_end(md5_state *m, char hex[33]); /* lower case, NUL-terminated */

/* The CRC-32 of gzip, zip and Ethernet (polynomial 0x04c11db7, reflected).  Start with 0 and feed
 * the bytes in any number of calls. */
uint32_t crc32_add(uint32_t crc, const void *bytes, size_t n);

/* CRC-32C, with Castagnoli's polynomial 0x1edc6f41: of TensorBoard's event files. */
uint32_t crc32c_add(uint32_t crc, const void *bytes, size_t n);

enum { HMAC_BYTES = 32 };

/* One piece of a message. */
typedef struct hmac_part {
    const void *bytes;
    size_t n;
} hmac_part;

/* HMAC-SHA-256 (RFC 2104, FIPS 180-4) of the parts, one after the other; a key may have any length,
 * 0 included. */
void hmac_sha256(const void *key, size_t n_key, const hmac_part *parts, int n_parts,
                 unsigned char out[HMAC_BYTES]);

/* Compares in a time that does not depend on where they differ. */
bool hmac_equal(const unsigned char a[HMAC_BYTES], const unsigned char b[HMAC_BYTES]);
