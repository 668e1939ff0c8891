#include "base/hmac.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK = 64, ROUNDS = 64 };

typedef struct sha256 {
    uint32_t h[8];
    unsigned char block[BLOCK];
    size_t n_block;
    uint64_t n_bytes;
} sha256;

static const uint32_t ROUND_WORDS[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void digest_block(sha256 *s) {
    uint32_t w[ROUNDS], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < ROUNDS; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t one = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + ROUND_WORDS[i] + w[i];
        uint32_t two = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
    s->n_block = 0;
}

static void begin(sha256 *s) {
    *s = (sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                        0x1f83d9ab, 0x5be0cd19}};
}

static void add(sha256 *s, const void *bytes, size_t n) {
    const unsigned char *from = bytes;
    s->n_bytes += n;
    for (size_t i = 0; i < n; i++) {
        s->block[s->n_block++] = from[i];
        if (s->n_block == BLOCK) digest_block(s);
    }
}

static void end(sha256 *s, unsigned char out[HMAC_BYTES]) {
    uint64_t n_bits = s->n_bytes * 8;
    unsigned char length[8];
    add(s, "\x80", 1);
    while (s->n_block != BLOCK - sizeof length)
        add(s, "", 1);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(n_bits >> (56 - 8 * i));
    add(s, length, sizeof length);
    for (int i = 0; i < HMAC_BYTES; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> (24 - i % 4 * 8));
}

static void begin_keyed(sha256 *s, const unsigned char key[BLOCK], unsigned char mask) {
    unsigned char pad[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        pad[i] = key[i] ^ mask;
    begin(s);
    add(s, pad, sizeof pad);
}

void hmac_sha256(const void *key, size_t n_key, const hmac_part *parts, int n_parts,
                 unsigned char out[HMAC_BYTES]) {
    unsigned char whole[BLOCK] = {0};
    sha256 s;
    if (n_key > BLOCK) {
        begin(&s);
        add(&s, key, n_key);
        end(&s, whole);
    } else if (n_key > 0) {
        memcpy(whole, key, n_key);
    }
    begin_keyed(&s, whole, 0x36);
    for (int i = 0; i < n_parts; i++)
        add(&s, parts[i].bytes, parts[i].n);
    end(&s, out);
    begin_keyed(&s, whole, 0x5c);
    add(&s, out, HMAC_BYTES);
    end(&s, out);
}

bool hmac_equal(const unsigned char a[HMAC_BYTES], const unsigned char b[HMAC_BYTES]) {
    unsigned char other = 0;
    for (int i = 0; i < HMAC_BYTES; i++)
        other |= a[i] ^ b[i];
    return other == 0;
}
