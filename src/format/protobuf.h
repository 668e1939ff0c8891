/* Protocol buffers, written: a message is a list of fields in any order, each its number and wire
 * type in one varint and then its value.  A zeroed writer is empty; the first failure stays in st,
 * and nothing is written after it. */
#pragma once

#include "base/base.h"

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

static inline void pb_int(pb *p, int field, int64_t value) {
    pb_varint(p, (uint64_t)field << 3);
    pb_varint(p, (uint64_t)value);
}

static inline void pb_bytes(pb *p, int field, const void *bytes, size_t n) {
    pb_varint(p, (uint64_t)field << 3 | 2);
    pb_varint(p, n);
    pb_append(p, bytes, n);
}

/* A message within: what is written until pb_end, which gets what pb_begin returned. */
static inline size_t pb_begin(pb *p, int field) {
    pb_varint(p, (uint64_t)field << 3 | 2);
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

/* Several fields: "1s2{3i*b}" - each its number, or * for an int, and the kind of its value: s text
 * (const char *), b bytes (const void *, size_t), i int, l int64_t, d double, f a float32 (double),
 * {...} a message; m alone: fields of a writer (const pb *), or none where that is NULL. */
static inline void pb_put(pb *p, const char *format, ...) {
    size_t begin[8];
    int depth = 0;
    va_list args;
    va_start(args, format);
    for (char *end; *format != '\0'; format = end + 1) {
        int field = (int)strtol(format, &end, 10);
        if (*end == '*') field = va_arg(args, int), end++;
        if (*end == '{') begin[depth++] = pb_begin(p, field);
        if (*end == '}') pb_end(p, begin[--depth]);
        if (*end == 'i') pb_int(p, field, va_arg(args, int));
        if (*end == 'l') pb_int(p, field, va_arg(args, int64_t));
        const void *bytes = strchr("sbm", *end) != NULL ? va_arg(args, const void *) : NULL;
        const pb *more = *end == 'm' ? bytes : NULL;
        if (*end == 's') pb_bytes(p, field, bytes, strlen(bytes));
        if (*end == 'b') pb_bytes(p, field, bytes, va_arg(args, size_t));
        if (more != NULL && p->st == OK) p->st = more->st;
        if (more != NULL) pb_append(p, buf_str(&more->text), more->text.n_bytes);
        double wide = strchr("df", *end) != NULL ? va_arg(args, double) : 0;
        float narrow = (float)wide;
        if (strchr("df", *end) != NULL) pb_varint(p, (uint64_t)field << 3 | (*end == 'd' ? 1 : 5));
        if (*end == 'd') pb_append(p, &wide, sizeof wide);
        if (*end == 'f') pb_append(p, &narrow, sizeof narrow);
    }
    va_end(args);
}
