#include "base/hash.h"

#include "base/base.h"

/* hash64 is XXH64: four lanes of multiply-rotate over 32-byte stripes, then a tail and a mix.  The
 * constants are those of its specification; words are read little-endian. */
static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t rotl64(uint64_t x, int r) {
    return x << r | x >> (64 - r);
}

static uint64_t read64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    return x;
}

static uint32_t read32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap32(x);
#endif
    return x;
}

static uint64_t xxh_round(uint64_t lane, uint64_t word) {
    return rotl64(lane + word * P2, 31) * P1;
}

static uint64_t xxh_merge(uint64_t hash, uint64_t lane) {
    return (hash ^ xxh_round(0, lane)) * P1 + P4;
}

static uint64_t xxh_tail(uint64_t hash, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8)
        hash = rotl64(hash ^ xxh_round(0, read64(p)), 27) * P1 + P4;
    if (n >= 4) {
        hash = rotl64(hash ^ read32(p) * P1, 23) * P2 + P3;
        p += 4, n -= 4;
    }
    for (; n > 0; p++, n--)
        hash = rotl64(hash ^ *p * P5, 11) * P1;
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}

uint64_t hash64(const void *bytes, size_t n, uint64_t seed) {
    const uint8_t *p = bytes;
    size_t left = n;
    if (n < 32) return xxh_tail(seed + P5 + n, p, n);
    uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
    for (; left >= 32; p += 32, left -= 32) {
        a = xxh_round(a, read64(p));
        b = xxh_round(b, read64(p + 8));
        c = xxh_round(c, read64(p + 16));
        d = xxh_round(d, read64(p + 24));
    }
    uint64_t hash = rotl64(a, 1) + rotl64(b, 7) + rotl64(c, 12) + rotl64(d, 18);
    hash = xxh_merge(xxh_merge(xxh_merge(xxh_merge(hash, a), b), c), d);
    return xxh_tail(hash + n, p, left);
}

/* MD5 by RFC 1321.  K[i] = floor(2^32 |sin(i + 1)|). */
static const uint32_t K[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};
static const uint8_t R[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

static uint32_t rotl32(uint32_t x, int r) {
    return x << r | x >> (32 - r);
}

static void md5_block(md5_state *m, const uint8_t *p) {
    uint32_t a = m->word[0], b = m->word[1], c = m->word[2], d = m->word[3];
    for (int i = 0; i < 64; i++) {
        uint32_t f;
        int word;
        switch (i / 16) {
        case 0:
            f = (b & c) | (~b & d), word = i;
            break;
        case 1:
            f = (d & b) | (~d & c), word = (5 * i + 1) % 16;
            break;
        case 2:
            f = b ^ c ^ d, word = (3 * i + 5) % 16;
            break;
        default:
            f = c ^ (b | ~d), word = 7 * i % 16;
        }
        uint32_t turned = rotl32(a + f + K[i] + read32(p + 4 * word), R[i / 16 * 4 + i % 4]);
        a = d, d = c, c = b, b += turned;
    }
    m->word[0] += a, m->word[1] += b, m->word[2] += c, m->word[3] += d;
}

void md5_begin(md5_state *m) {
    *m = (md5_state){.word = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}};
}

void md5_add(md5_state *m, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    size_t held = m->n_bytes % 64;
    m->n_bytes += n;
    if (held > 0) {
        size_t take = n < 64 - held ? n : 64 - held;
        memcpy(m->block + held, p, take);
        if (held + take < 64) return;
        md5_block(m, m->block);
        p += take, n -= take;
    }
    for (; n >= 64; p += 64, n -= 64)
        md5_block(m, p);
    if (n > 0) memcpy(m->block, p, n);
}

void md5_end(md5_state *m, char hex[33]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t n_bits = m->n_bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(n_bits >> 8 * i);
    size_t held = m->n_bytes % 64;
    md5_add(m, padding, held < 56 ? 56 - held : 120 - held);
    md5_add(m, length, 8);
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned)(m->word[i / 4] >> i % 4 * 8) & 0xff);
}

/* table[0] advances the remainder by one byte; table[k] by k further zero bytes, so that four bytes
 * can be taken at once, with look-ups that do not depend on each other. */
static uint32_t table[4][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        table[0][byte] = crc;
    }
    for (int k = 1; k < 4; k++)
        for (int byte = 0; byte < 256; byte++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 0xff];
}

uint32_t crc32_add(uint32_t crc, const void *bytes, size_t n) {
    const unsigned char *u = bytes;
    pthread_once(&table_once, fill_table);
    crc = ~crc;
    for (; n >= 4; n -= 4, u += 4)
        crc = table[3][(crc ^ u[0]) & 0xff] ^ table[2][(crc >> 8 ^ u[1]) & 0xff] ^
              table[1][(crc >> 16 ^ u[2]) & 0xff] ^ table[0][crc >> 24 ^ u[3]];
    for (; n > 0; n--, u++)
        crc = crc >> 8 ^ table[0][(crc ^ *u) & 0xff];
    return ~crc;
}

/* Records of a few hundred bytes: a bit at a time is fast enough, and needs no table. */
uint32_t crc32c_add(uint32_t crc, const void *bytes, size_t n) {
    const unsigned char *u = bytes;
    crc = ~crc;
    for (; n > 0; n--, u++) {
        crc ^= *u;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

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
