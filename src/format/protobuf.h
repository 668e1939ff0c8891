/* Protocol buffers, written: a message is a list of fields in any order, each its number and wire
 * type in one varint and then its value.  A zeroed writer is empty; the first failure stays in st,
 * and nothing is written after it. */
#pragma once

#include "base/base.h"

typedef enum { PB_VARINT = 0, PB_64 = 1, PB_BYTES = 2, PB_32 = 5 } pb_wire;

typedef struct pb {
    buf text; /* by buf_fini */
    status st;
} pb;

static inline void pb_append(pb *p, const void *bytes, size_t n) {
    if (p->st == OK) p->st = buf_append(&p->text, bytes, n);
}

static inline void pb_varint(pb *p, uint64_t value) {
    char bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (char)(value | 0x80);
    bytes[n++] = (char)value;
    pb_append(p, bytes, n);
}

static inline void pb_key(pb *p, int field, pb_wire wire) {
    pb_varint(p, (uint64_t)field << 3 | (uint64_t)wire);
}

static inline void pb_int(pb *p, int field, int64_t value) {
    pb_key(p, field, PB_VARINT);
    pb_varint(p, (uint64_t)value);
}

static inline void pb_little(pb *p, int field, pb_wire wire, uint64_t bits) {
    pb_key(p, field, wire);
    if (p->st == OK) p->st = buf_little(&p->text, bits, wire == PB_64 ? 8 : 4);
}

static inline void pb_float(pb *p, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pb_little(p, field, PB_32, bits);
}

static inline void pb_double(pb *p, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    pb_little(p, field, PB_64, bits);
}

static inline void pb_bytes(pb *p, int field, const void *bytes, size_t n) {
    pb_key(p, field, PB_BYTES);
    pb_varint(p, n);
    pb_append(p, bytes, n);
}

static inline void pb_text(pb *p, int field, const char *text) {
    pb_bytes(p, field, text, strlen(text));
}

/* A message within: what is written until pb_end, which gets what pb_begin returned. */
static inline size_t pb_begin(pb *p, int field) {
    pb_key(p, field, PB_BYTES);
    return p->text.n_bytes;
}

static inline void pb_end(pb *p, size_t begin) {
    size_t n = p->text.n_bytes - begin;
    pb_varint(p, n);
    if (p->st != OK) return;
    char bytes[10], *at = p->text.data + begin;
    size_t n_varint = p->text.n_bytes - begin - n;
    memcpy(bytes, at + n, n_varint);
    memmove(at + n_varint, at, n);
    memcpy(at, bytes, n_varint);
}
