/* The CRC-32 of gzip, zip and Ethernet (polynomial 0x04c11db7, reflected).  Start with 0 and feed
 * the bytes in any number of calls.  Any thread. */
#ifndef HSTU_BASE_CRC32_H
#define HSTU_BASE_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_add(uint32_t crc, const void *bytes, size_t n);

/* CRC-32C, with Castagnoli's polynomial 0x1edc6f41: of TensorBoard's event files. */
uint32_t crc32c_add(uint32_t crc, const void *bytes, size_t n);

#endif
