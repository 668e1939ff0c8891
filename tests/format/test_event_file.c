/* Event files: every byte of a record, and torn tails. */
#include "format/event_file.h"

#include <dirent.h>

#include "base/file.h"
#include "base/hash.h"
#include "test.h"

TEST(crc32c_of_known_texts) {
    unsigned char zeros[32] = {0};
    CHECK_EQ(crc32c_add(0, "123456789", 9), 0xe3069283u); /* RFC 3720 */
    CHECK_EQ(crc32c_add(0, zeros, 32), 0x8a9136aau);
    CHECK_EQ(crc32c_add(crc32c_add(0, "1234", 4), "56789", 5), 0xe3069283u);
}

static uint64_t number(const unsigned char *p, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static uint32_t masked(const void *bytes, size_t n) {
    uint32_t crc = crc32c_add(0, bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Checks the record at *p and moves on; its event. */
static const unsigned char *next(const unsigned char **p, const unsigned char *end, size_t *n) {
    CHECK(end - *p >= 16);
    *n = number(*p, 8);
    CHECK_EQ(number(*p + 8, 4), masked(*p, 8));
    const unsigned char *event = *p + 12;
    CHECK((size_t)(end - event) >= *n + 4);
    CHECK_EQ(number(event + *n, 4), masked(event, *n));
    *p = event + *n + 4;
    return event;
}

TEST(event_file_records) {
    static const unsigned char summary[] = {0x2a, 15,  0x0a, 13,   0x0a, 6, 'a',  '/', 'h',
                                            'r',  '@', '1',  0x15, 0,    0, 0x80, 0x3e};
    char folder[512];
    event_file f;
    file_map m;
    size_t n;
    snprintf(folder, sizeof folder, "%s/tb", test_folder());
    CHECK_OK(event_file_open(&f, folder, 301));
    CHECK_OK(event_file_add(&f, 2.5, 300, &(event_scalar){"a/hr@1", 0.25}, 1));
    event_file_close(&f);
    event_file_close(&f);
    CHECK_CONTAINS(f.path, "/tb/events.out.tfevents.");
    CHECK_OK(file_map_open(&m, f.path));
    const unsigned char *p = m.bytes, *end = m.bytes + m.n_bytes, *event;
    event = next(&p, end, &n);
    CHECK(event[0] == 9 && event[9] == 0x10 && event[10] == 0 && event[11] == 0x1a);
    CHECK(n == 26 && memcmp(event + 13, "brain.Event:2", 13) == 0);
    event = next(&p, end, &n); /* the start of a session at step 301 */
    CHECK(n == 16 && memcmp(event + 9, "\x10\xad\x02\x3a\x02\x08\x01", 7) == 0);
    event = next(&p, end, &n);
    CHECK(n == 12 + sizeof summary && event[0] == 9 && event[8] == 0x40 && event[7] == 4);
    CHECK(memcmp(event + 9, "\x10\xac\x02", 3) == 0);
    CHECK(memcmp(event + 12, summary, sizeof summary) == 0);
    CHECK(p == end);
    file_map_close(&m);
    /* A second file of the same second has a name of its own. */
    event_file g;
    CHECK_OK(event_file_open(&g, folder, 0));
    CHECK(strcmp(f.path, g.path) != 0);
    event_file_close(&g);
    CHECK_FAILS(event_file_open(&g, "/dev/null/x", 0), ERR_IO, "/dev/null");
    CHECK_EQ(g.fd, -1);
}
