#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "profile/record_file.h"

enum { BUFFER_BYTES = 1 << 16 };

struct record_writer {
    int fd;
    status failed;
    uint8_t buffer[BUFFER_BYTES];
    size_t n;

    char *text; /* the names, each with its NUL */
    size_t n_text, text_capacity;
    size_t *names; /* where each begins */
    size_t n_names, names_capacity;
    int32_t *slots; /* open addressing by hash; -1: free */
    size_t n_slots;
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

static size_t slot_of(const record_writer *w, const char *name) {
    size_t at = (size_t)hash64(name, strlen(name), 1) & (w->n_slots - 1);
    while (w->slots[at] >= 0 && strcmp(w->text + w->names[w->slots[at]], name) != 0)
        at = (at + 1) & (w->n_slots - 1);
    return at;
}

static status grow_slots(record_writer *w) {
    int32_t *larger, *old = w->slots;
    size_t n = w->n_slots > 0 ? 2 * w->n_slots : 1024;
    TRY(mem_alloc_raw((void **)&larger, n, sizeof *larger));
    memset(larger, 0xff, n * sizeof *larger);
    w->slots = larger;
    w->n_slots = n;
    for (size_t i = 0; i < w->n_names; i++)
        w->slots[slot_of(w, w->text + w->names[i])] = (int32_t)i;
    mem_free(old);
    return OK;
}

/* The number of a name; a new one is written first.  A program may give every range a name of its
 * own: the last of them share one. */
static status intern(record_writer *w, const char *given, int32_t *out) {
    char name[RECORD_MAX_NAME];
    snprintf(name, sizeof name, "%s", given);
    if (2 * w->n_names >= w->n_slots) TRY(grow_slots(w));
    size_t at = slot_of(w, name);
    if (w->slots[at] < 0 && w->n_names >= RECORD_KEPT_NAMES) {
        snprintf(name, sizeof name, "(further names)");
        at = slot_of(w, name);
    }
    size_t n = strlen(name);
    if (w->slots[at] < 0) {
        TRY(MEM_RESERVE(&w->text, &w->text_capacity, w->n_text + n + 1));
        TRY(MEM_RESERVE(&w->names, &w->names_capacity, w->n_names + 1));
        memcpy(w->text + w->n_text, name, n + 1);
        w->names[w->n_names] = w->n_text;
        w->n_text += n + 1;
        w->slots[at] = (int32_t)w->n_names++;
        TRY(put_item(w, ITEM_NAME, name, n));
    }
    *out = w->slots[at];
    return OK;
}

status record_writer_add(record_writer *w, const gpu_record *r) {
    stored_record s = {.start_ns = r->start_ns,
                       .end_ns = r->end_ns,
                       .bytes = r->bytes,
                       .mark = r->mark,
                       .correlation = r->correlation,
                       .device = r->device,
                       .stream = r->stream,
                       .thread = r->thread,
                       .kind = (uint32_t)r->kind,
                       .name = -1,
                       .launch = r->launch};
    if (r->kind == GPU_DEVICE) return put_item(w, ITEM_GPU, r->gpu, sizeof *r->gpu);
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

status record_writer_create(record_writer **out, const char *folder) {
    record_writer *w;
    char header[RECORD_HEADER_BYTES] = "";
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    w->fd = -1;
    status st = open_file(w, folder);
    snprintf(header, sizeof header, RECORD_HEADER, (int)sizeof(stored_record));
    if (st == OK) st = put(w, header, sizeof header);
    if (st == OK) st = put_process(w);
    if (st == OK) st = record_writer_flush(w);
    if (st != OK) {
        record_writer_forget(w);
        return st;
    }
    *out = w;
    return OK;
}

void record_writer_forget(record_writer *w) {
    if (w->fd >= 0) close(w->fd);
    mem_free(w->text);
    mem_free(w->names);
    mem_free(w->slots);
    mem_free(w);
}

status record_writer_close(record_writer *w, uint64_t n_lost) {
    if (w == NULL) return OK;
    status st = put_item(w, ITEM_END, &n_lost, sizeof n_lost);
    if (st == OK) st = record_writer_flush(w);
    record_writer_forget(w);
    return st;
}
