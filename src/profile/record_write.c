#include "base/map.h"
#include "profile/record_file.h"

enum { BUFFER_BYTES = 1 << 16 };

struct record_writer {
    int fd;
    status failed;
    uint8_t buffer[BUFFER_BYTES];
    size_t n;

    text_map names;
};

static status write_all(record_writer *w, const void *bytes, size_t n) {
    const char *at = bytes;
    while (w->failed == OK && n > 0) {
        ssize_t done = write(w->fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            w->failed = fail_errno("a file of records");
            break;
        }
        at += done;
        n -= (size_t)done;
    }
    return w->failed;
}

status record_writer_flush(record_writer *w) {
    size_t n = w->n;
    w->n = 0;
    return write_all(w, w->buffer, n);
}

static status put(record_writer *w, const void *bytes, size_t n) {
    if (w->n + n > BUFFER_BYTES) TRY(record_writer_flush(w));
    if (n > BUFFER_BYTES) return write_all(w, bytes, n);
    memcpy(w->buffer + w->n, bytes, n);
    w->n += n;
    return w->failed;
}

static status put_item(record_writer *w, item_kind kind, const void *bytes, size_t n) {
    item head = {(uint32_t)kind, (uint32_t)n};
    TRY(put(w, &head, sizeof head));
    return put(w, bytes, n);
}

/* The number of a name; a new one is written first.  A program may give every range a name of its
 * own: the last of them share one. */
static status intern(record_writer *w, const char *name, int32_t *out) {
    size_t n = strnlen(name, RECORD_MAX_NAME - 1);
    if (w->names.n >= RECORD_KEPT_NAMES && text_map_find(&w->names, name, n) == TEXT_MAP_NONE) {
        name = "(further names)";
        n = strlen(name);
    }
    TRY(text_map_reserve(&w->names, 1, n));
    uint32_t before = w->names.n;
    *out = (int32_t)text_map_put(&w->names, name, n);
    return w->names.n > before ? put_item(w, ITEM_NAME, name, n) : OK;
}

status record_writer_add(record_writer *w, const gpu_record *r) {
    stored_record s;
    if (r->kind == GPU_DEVICE) return put_item(w, ITEM_GPU, r->gpu, sizeof *r->gpu);
    memset(&s, 0, sizeof s);
    s.record = *r;
    s.record.name = NULL;
    s.name = -1;
    if (r->name != NULL) TRY(intern(w, r->name, &s.name));
    return put_item(w, ITEM_RECORD, &s, sizeof s);
}

status record_writer_note(record_writer *w, const char *text) {
    return put_item(w, ITEM_NOTE, text, strnlen(text, RECORD_NOTE_BYTES - 1));
}

/* The number of this process, and its command line with spaces between the words. */
static status put_process(record_writer *w) {
    char line[RECORD_NOTE_BYTES] = "";
    int64_t pid = getpid();
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
    if (fd >= 0) close(fd);
    for (ssize_t i = 0; i + 1 < n; i++)
        if (line[i] == '\0' || line[i] == '\n') line[i] = ' ';
    char both[sizeof pid + RECORD_NOTE_BYTES];
    size_t length = strlen(line);
    memcpy(both, &pid, sizeof pid);
    memcpy(both + sizeof pid, line, length);
    return put_item(w, ITEM_PROCESS, both, sizeof pid + length);
}

static status open_file(record_writer *w, const char *folder) {
    char path[4096];
    for (int i = 1; i < 1000; i++) {
        int n = i == 1
                    ? snprintf(path, sizeof path, "%s/%ld.records", folder, (long)getpid())
                    : snprintf(path, sizeof path, "%s/%ld-%d.records", folder, (long)getpid(), i);
        if (n >= (int)sizeof path) return fail(ERR_IO, "%.100s...: the path is too long", folder);
        w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (w->fd >= 0 || errno != EEXIST) break;
    }
    return w->fd >= 0 ? OK : fail_errno("%s", path);
}

static void destroy(record_writer *w) {
    if (w->fd >= 0) close(w->fd);
    text_map_fini(&w->names);
    mem_free(w);
}

status record_writer_create(record_writer **out, const char *folder) {
    record_writer *w;
    char header[RECORD_HEADER_BYTES] = "";
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    w->fd = -1;
    text_map_init(&w->names, 1);
    status st = open_file(w, folder);
    snprintf(header, sizeof header, RECORD_HEADER, (int)sizeof(stored_record));
    if (st == OK) st = put(w, header, sizeof header);
    if (st == OK) st = put_process(w);
    if (st == OK) st = record_writer_flush(w);
    if (st != OK) {
        destroy(w);
        return st;
    }
    *out = w;
    return OK;
}

status record_writer_close(record_writer *w, uint64_t n_lost) {
    if (w == NULL) return OK;
    status st = put_item(w, ITEM_END, &n_lost, sizeof n_lost);
    if (st == OK) st = record_writer_flush(w);
    destroy(w);
    return st;
}
