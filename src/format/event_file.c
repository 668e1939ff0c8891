#include "format/event_file.h"

enum { MAX_TRIES = 1000 };

/* Protocol buffers: a field is its number and wire type in one varint, and its value. */
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static status put_varint(buf *b, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        TRY(buf_char(b, (char)(value | 0x80)));
    return buf_char(b, (char)value);
}

static status put_key(buf *b, int field, int wire) {
    return put_varint(b, (uint64_t)(field << 3 | wire));
}

static status put_bytes(buf *b, int field, const void *bytes, size_t n) {
    TRY(put_key(b, field, WIRE_BYTES));
    TRY(put_varint(b, n));
    return buf_append(b, bytes, n);
}

/* Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. */
static status begin_event(buf *b, double wall, int64_t step) {
    uint64_t bits;
    memcpy(&bits, &wall, sizeof bits);
    TRY(put_key(b, 1, WIRE_64));
    TRY(buf_little(b, bits, 8));
    TRY(put_key(b, 2, WIRE_VARINT));
    return put_varint(b, (uint64_t)step);
}

/* Summary.value (1) with Value.tag (1) and Value.simple_value (2). */
static status put_scalar(buf *summary, const event_scalar *s) {
    buf value = {0};
    uint32_t bits;
    float x = (float)s->value;
    memcpy(&bits, &x, sizeof bits);
    status st = put_bytes(&value, 1, s->tag, strlen(s->tag));
    if (st == OK) st = put_key(&value, 2, WIRE_32);
    if (st == OK) st = buf_little(&value, bits, 4);
    if (st == OK) st = put_bytes(summary, 1, value.data, value.n_bytes);
    buf_fini(&value);
    return st;
}

static uint32_t masked(const void *bytes, size_t n) {
    uint32_t crc = crc32c_add(0, bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Length, its checksum, the event, its checksum: one write, so that a kill tears at most this one.
 */
static status append(event_file *f, const buf *event) {
    buf record = {0};
    status st = buf_little(&record, event->n_bytes, 8);
    if (st == OK) st = buf_little(&record, masked(record.data, 8), 4);
    if (st == OK) st = buf_append(&record, event->data, event->n_bytes);
    if (st == OK) st = buf_little(&record, masked(event->data, event->n_bytes), 4);
    size_t done = 0;
    while (st == OK && done < record.n_bytes) {
        ssize_t n = write(f->fd, record.data + done, record.n_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = fail_errno("%s: cannot be written", f->path);
        if (n > 0) done += (size_t)n;
    }
    buf_fini(&record);
    return st;
}

static status create(event_file *f, const char *folder, int64_t now) {
    char host[128] = "host", name[256];
    if (gethostname(host, sizeof host - 1) != 0) snprintf(host, sizeof host, "host");
    for (char *c = host; *c != '\0'; c++)
        if (*c == '/') *c = '-';
    for (int i = 0; i < MAX_TRIES; i++) {
        snprintf(name, sizeof name, "events.out.tfevents.%" PRId64 ".%.100s.%d.%d", now, host,
                 (int)getpid(), i);
        TRY(path_join(f->path, sizeof f->path, folder, name));
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (f->fd >= 0) return OK;
        if (errno != EEXIST) break;
    }
    return fail_errno("%s: cannot be created", f->path);
}

/* An event with one field besides its time and step. */
static status put_event(event_file *f, double wall, int64_t step, int field, const void *bytes,
                        size_t n) {
    buf event = {0};
    status st = begin_event(&event, wall, step);
    if (st == OK) st = put_bytes(&event, field, bytes, n);
    if (st == OK) st = append(f, &event);
    buf_fini(&event);
    return st;
}

status event_file_open(event_file *f, const char *folder, int64_t first_step) {
    static const char version[] = "brain.Event:2";
    int64_t now = (int64_t)time(NULL);
    f->fd = -1;
    TRY(folder_create(folder, NULL));
    status st = create(f, folder, now);
    if (st == OK) st = put_event(f, (double)now, 0, 3, version, sizeof version - 1);
    /* SessionLog.status (1) = START (1). */
    if (st == OK && first_step > 0) st = put_event(f, (double)now, first_step, 7, "\x08\x01", 2);
    if (st != OK) event_file_close(f);
    return st;
}

void event_file_close(event_file *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

status event_file_add(event_file *f, double wall, int64_t step, const event_scalar *scalars,
                      size_t n) {
    buf summary = {0};
    status st = OK;
    for (size_t i = 0; i < n && st == OK; i++)
        st = put_scalar(&summary, &scalars[i]);
    if (st == OK) st = put_event(f, wall, step, 5, buf_str(&summary), summary.n_bytes);
    buf_fini(&summary);
    return st;
}
