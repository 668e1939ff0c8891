/* Hashes: hash64 for tables and file checksums (fast, not cryptographic), md5 for downloads (the
 * publishers of the data sets state md5 sums). */
#ifndef HSTU_BASE_HASH_H
#define HSTU_BASE_HASH_H

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

#endif
