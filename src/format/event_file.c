#include "format/event_file.h"

#include "format/protobuf.h"

enum { MAX_TRIES = 1000 };

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

/* Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.  One with one field besides
 * its time and step. */
static status put_event(event_file *f, double wall, int64_t step, int field, const void *bytes,
                        size_t n) {
    pb event = {0};
    pb_put(&event, "1d2l*b", wall, step, field, bytes, n);
    status st = event.st;
    if (st == OK) st = append(f, &event.text);
    buf_fini(&event.text);
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

/* Summary.value (1) with Value.tag (1) and Value.simple_value (2). */
status event_file_add(event_file *f, double wall, int64_t step, const event_scalar *scalars,
                      size_t n) {
    pb summary = {0};
    for (size_t i = 0; i < n; i++)
        pb_put(&summary, "1{1s2f}", scalars[i].tag, scalars[i].value);
    status st = summary.st;
    if (st == OK) st = put_event(f, wall, step, 5, buf_str(&summary.text), summary.text.n_bytes);
    buf_fini(&summary.text);
    return st;
}
