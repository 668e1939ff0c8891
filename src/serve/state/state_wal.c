#include "serve/state/state_wal.h"

#include <string.h>

enum { MAGIC = 0x377f0682, MAX_PAGE = 65536, MIN_PAGE = 512, HEAD_SUMMED = 24, FRAME_SUMMED = 8 };

/* Where things are in a frame's head. */
enum { FRAME_COMMIT = 4, FRAME_SALT = 8, FRAME_SUM = 16 };

typedef struct wal_sum {
    uint32_t a, b;
} wal_sum;

static uint32_t big_endian(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t little_endian(const unsigned char *p) {
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* n is a multiple of 8. */
static wal_sum add_bytes(wal_sum s, const unsigned char *p, size_t n, bool is_big) {
    for (size_t i = 0; i < n; i += 8) {
        s.a += (is_big ? big_endian(p + i) : little_endian(p + i)) + s.b;
        s.b += (is_big ? big_endian(p + i + 4) : little_endian(p + i + 4)) + s.a;
    }
    return s;
}

static bool is_sum(wal_sum s, const unsigned char *p) {
    return s.a == big_endian(p) && s.b == big_endian(p + 4);
}

/* Whether a frame has a salt of this log; those of the log's last round have others.  One of the
 * two is enough: a flipped bit hits one. */
static bool is_of_log(const unsigned char *head, const unsigned char *frame) {
    const unsigned char *own = head + WAL_SALT_AT, *its = frame + FRAME_SALT;
    return memcmp(own, its, 4) == 0 || memcmp(own + 4, its + 4, 4) == 0;
}

wal_end wal_inspect(const unsigned char *bytes, size_t n) {
    wal_end end = {.damaged = 0};
    if (n == 0) return end;
    if (n < WAL_HEADER_BYTES) return end; /* a crash at its first byte: no frame yet */
    uint32_t page = big_endian(bytes + 8);
    bool is_big = (big_endian(bytes) & 1) != 0;
    wal_sum sum = add_bytes((wal_sum){0, 0}, bytes, HEAD_SUMMED, is_big);
    if ((big_endian(bytes) & ~1u) != MAGIC || !is_sum(sum, bytes + HEAD_SUMMED) ||
        page < MIN_PAGE || page > MAX_PAGE) {
        end.is_damaged = n > WAL_HEADER_BYTES; /* SQLite drops all of it */
        return end;
    }
    size_t frame = WAL_FRAME_BYTES + page, at = WAL_HEADER_BYTES;
    end.n_good = at;
    bool is_whole = true;
    for (; at + frame <= n; at += frame) {
        const unsigned char *f = bytes + at;
        sum = add_bytes(sum, f, FRAME_SUMMED, is_big);
        sum = add_bytes(sum, f + WAL_FRAME_BYTES, page, is_big);
        is_whole = is_whole && memcmp(bytes + WAL_SALT_AT, f + FRAME_SALT, WAL_SALT_BYTES) == 0 &&
                   is_sum(sum, f + FRAME_SUM);
        if (is_whole && big_endian(f + FRAME_COMMIT) != 0) end.n_good = at + frame;
        if (is_whole || end.is_damaged || !is_of_log(bytes, f)) continue;
        end.is_damaged = true;
        end.damaged = at;
    }
    return end;
}
