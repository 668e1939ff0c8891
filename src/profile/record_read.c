#include "profile/kernel_name.h"
#include "profile/record_file.h"

typedef struct reader {
    const char *path;
    char **names;
    size_t n_names, capacity;
    status (*add)(void *ctx, const gpu_record *r);
    void *ctx;
    record_summary *out;
} reader;

static status broken(const reader *r, const char *what) {
    return fail(ERR_FORMAT, "%s: %s; it was not written by this build of hstu", r->path, what);
}

static void copy_text(char out[RECORD_NOTE_BYTES], const void *bytes, size_t n) {
    snprintf(out, RECORD_NOTE_BYTES, "%.*s", (int)(n < RECORD_NOTE_BYTES ? n : RECORD_NOTE_BYTES),
             (const char *)bytes);
}

/* Names of kernels are made readable once, here. */
static status read_name(reader *r, const uint8_t *bytes, size_t n) {
    char *name, mangled[RECORD_MAX_NAME];
    if (n >= RECORD_MAX_NAME || r->n_names >= RECORD_MAX_NAMES || memchr(bytes, '\0', n) != NULL)
        return broken(r, "a name is wrong");
    TRY(MEM_RESERVE(&r->names, &r->capacity, r->n_names + 1));
    TRY(MEM_NEW(&name, RECORDER_NAME_BYTES));
    memcpy(mangled, bytes, n);
    mangled[n] = '\0';
    kernel_name(mangled, name, RECORDER_NAME_BYTES);
    r->names[r->n_names++] = name;
    return OK;
}

static status read_record(reader *r, const uint8_t *bytes, size_t n) {
    stored_record s;
    if (n != sizeof s) return broken(r, "a record has the wrong size");
    memcpy(&s, bytes, sizeof s);
    gpu_record g = s.record;
    bool needs_name = g.kind == GPU_KERNEL || g.kind == GPU_CALL || g.kind == HOST_RANGE ||
                      g.kind == GPU_COUNTERS;
    if ((unsigned)g.kind >= GPU_DEVICE || s.name < (needs_name ? 0 : -1) ||
        s.name >= (int64_t)r->n_names || g.end_ns < g.start_ns)
        return broken(r, "a record is wrong");
    g.name = s.name >= 0 ? r->names[s.name] : NULL;
    g.gpu = NULL;
    g.graph_op = 0; /* graphs are not known by their ops in other programs */
    g.is_first = g.has_work = false;
    r->out->n_records++;
    return r->add(r->ctx, &g);
}

static status read_gpu(reader *r, const uint8_t *bytes, size_t n) {
    gpu_facts f;
    if (n != sizeof f) return broken(r, "the facts of a GPU have the wrong size");
    memcpy(&f, bytes, sizeof f);
    f.name[sizeof f.name - 1] = '\0';
    gpu_record g = {.kind = GPU_DEVICE, .device = f.device, .gpu = &f};
    return r->add(r->ctx, &g);
}

static status read_item(reader *r, uint32_t kind, const uint8_t *bytes, size_t n) {
    switch (kind) {
    case ITEM_PROCESS:
        if (n < sizeof r->out->pid) return broken(r, "no process");
        memcpy(&r->out->pid, bytes, sizeof r->out->pid);
        copy_text(r->out->command, bytes + sizeof r->out->pid, n - sizeof r->out->pid);
        return OK;
    case ITEM_NAME:
        return read_name(r, bytes, n);
    case ITEM_RECORD:
        return read_record(r, bytes, n);
    case ITEM_NOTE:
        copy_text(r->out->note, bytes, n);
        return OK;
    case ITEM_GPU:
        return read_gpu(r, bytes, n);
    case ITEM_END:
        if (n != sizeof r->out->n_lost) return broken(r, "its end is wrong");
        memcpy(&r->out->n_lost, bytes, n);
        r->out->is_whole = true;
        return OK;
    default:
        return broken(r, "an item of unknown kind");
    }
}

static status read_items(reader *r, const uint8_t *at, size_t n) {
    item head;
    while (!r->out->is_whole && n >= sizeof head) {
        memcpy(&head, at, sizeof head);
        if (head.bytes > n - sizeof head) return OK; /* cut short */
        TRY(read_item(r, head.kind, at + sizeof head, head.bytes));
        at += sizeof head + head.bytes;
        n -= sizeof head + head.bytes;
    }
    return OK;
}

status record_file_read(const char *path, status (*add)(void *ctx, const gpu_record *r), void *ctx,
                        record_summary *out) {
    reader r = {.path = path, .add = add, .ctx = ctx, .out = out};
    char header[RECORD_HEADER_BYTES] = "";
    file_map whole;
    *out = (record_summary){0};
    snprintf(header, sizeof header, RECORD_HEADER, (int)sizeof(stored_record));
    TRY(file_map_open(&whole, path));
    status st = OK;
    if (whole.n_bytes >= RECORD_HEADER_BYTES) {
        st = memcmp(whole.bytes, header, RECORD_HEADER_BYTES) == 0
                 ? read_items(&r, (const uint8_t *)whole.bytes + RECORD_HEADER_BYTES,
                              whole.n_bytes - RECORD_HEADER_BYTES)
                 : broken(&r, "its first line is another one");
    }
    for (size_t i = 0; i < r.n_names; i++)
        mem_free(r.names[i]);
    mem_free(r.names);
    file_map_close(&whole);
    return st;
}
