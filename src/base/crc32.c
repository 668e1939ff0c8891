#include "base/crc32.h"

#include <pthread.h>

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
