/* HMAC-SHA-256 (RFC 2104, FIPS 180-4): a proof that its maker knows a secret. */
#ifndef HSTU_BASE_HMAC_H
#define HSTU_BASE_HMAC_H

#include <stdbool.h>
#include <stddef.h>

enum { HMAC_BYTES = 32 };

/* One piece of a message. */
typedef struct hmac_part {
    const void *bytes;
    size_t n;
} hmac_part;

/* Of the parts, one after the other; a key may have any length, 0 included. */
void hmac_sha256(const void *key, size_t n_key, const hmac_part *parts, int n_parts,
                 unsigned char out[HMAC_BYTES]);

/* Compares in a time that does not depend on where they differ. */
bool hmac_equal(const unsigned char a[HMAC_BYTES], const unsigned char b[HMAC_BYTES]);

#endif
