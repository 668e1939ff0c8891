/* Arbitrary bytes as rows.log, the file of a store on disk.  First byte even: the bytes are the
 * file.  Odd: they are the content of records whose checksums are right, so that the reader gets
 * behind them; records of raw bytes between them stand for torn and damaged ones.
 *
 * Opening must refuse, or give a store that keeps what it has: opened again after a put and a
 * flush, it has the same rows and the new one. */
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "embed/store.h"
#include "fuzz_folder.h"

enum { N_FLOATS = 2, ROW_BYTES = 20 + 4 * N_FLOATS, MAX_LOG_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct log_bytes {
    uint8_t data[MAX_LOG_BYTES];
    size_t n;
} log_bytes;

static void add(log_bytes *log, const void *bytes, size_t n) {
    if (n > sizeof log->data - log->n) n = sizeof log->data - log->n;
    memcpy(log->data + log->n, bytes, n);
    log->n += n;
}

/* The layout of docs/formats.md: kind, n, checksum of the payload, checksum of these. */
static void add_record(log_bytes *log, uint32_t kind, uint32_t n, uint32_t crc,
                       const uint8_t *payload, size_t bytes) {
    uint32_t head[4] = {kind, n, crc};
    head[3] = crc32_add(0, head, 12);
    add(log, head, sizeof head);
    add(log, payload, bytes);
}

static void compose(log_bytes *log, const uint8_t *data, size_t n) {
    uint32_t n_floats = N_FLOATS, crc;
    add(log, "HSTULOG", 8);
    add(log, &n_floats, 4);
    crc = crc32_add(0, log->data, 12);
    add(log, &crc, 4);
    for (size_t at = 0; at + 2 <= n;) {
        uint8_t payload[8 * ROW_BYTES] = {0};
        uint32_t kind = data[at] & 3, rows = data[at + 1] & 7;
        size_t bytes = kind == 1 ? rows * ROW_BYTES : kind == 2 ? 8 * rows : kind == 0 ? rows : 0;
        at += 2;
        size_t here = bytes < n - at ? bytes : n - at;
        memcpy(payload, data + at, here);
        at += here;
        if (kind == 0)
            add(log, payload, here);
        else if (kind == 3) /* a mark: its own place */
            add_record(log, kind, 0, (uint32_t)log->n, payload, 0);
        else
            add_record(log, kind, rows, crc32_add(0, payload, bytes), payload, bytes);
    }
}

static status count_rows(void *ctx, const embed_rows *rows) {
    *(int64_t *)ctx += rows->n;
    return OK;
}

static int64_t n_rows(embed_store *s) {
    int64_t n = 0;
    if (s->each(s, count_rows, &n) != OK) abort();
    return n;
}

/* The values of one key, which must be there. */
static void check_row(embed_store *s, uint64_t key, const float row[N_FLOATS]) {
    uint8_t is_found = 0;
    uint64_t score = 0;
    uint32_t stamp = 0;
    float got[N_FLOATS];
    if (s->get(s, 1, &key, &is_found, &score, &stamp, got) != OK) abort();
    if (!is_found || score != 5 || stamp != 6 || memcmp(got, row, sizeof got) != 0) abort();
}

static void use(embed_store *s) {
    static const float row[N_FLOATS] = {1.5f, -2};
    const uint64_t key = 77, score = 5;
    const uint32_t stamp = 6;
    const embed_rows rows = {1, &key, &score, &stamp, row, N_FLOATS};
    embed_store *again;
    if (s->put(s, &rows) != OK || s->flush(s) != OK) abort();
    int64_t n = n_rows(s);
    check_row(s, key, row);
    embed_store_destroy(s);
    if (embed_store_open_log(&again, fuzz_folder, N_FLOATS) != OK) abort();
    if (n_rows(again) != n) abort();
    check_row(again, key, row);
    if (again->erase(again, 1, &key) != OK || n_rows(again) != n - 1) abort();
    embed_store_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static log_bytes log;
    embed_store *s;
    if (n == 0) return 0;
    if (fuzz_folder[0] == '\0') fuzz_folder_make("log_store");
    log.n = 0;
    if (data[0] & 1)
        compose(&log, data + 1, n - 1);
    else
        add(&log, data + 1, n - 1);
    fuzz_file_write("rows.log", log.data, log.n);
    if (embed_store_open_log(&s, fuzz_folder, N_FLOATS) == OK) use(s);
    return 0;
}
