#include "dist/nccl.h"

#include <dlfcn.h>
#include <link.h>

#include "base/machine.h"
#include "ops/comm.h"

/* ncclSend and ncclRecv came with 2.7; the bits of the rest are older. */
enum { MIN_VERSION = 2700 };

static status find_symbols(nccl_lib *l, void *library) {
    const struct {
        const char *name;
        void **to;
    } all[] = {{"ncclGetVersion", (void **)&l->get_version},
               {"ncclGetUniqueId", (void **)&l->get_id},
               {"ncclCommInitRank", (void **)&l->init_rank},
               {"ncclCommDestroy", (void **)&l->destroy},
               {"ncclCommAbort", (void **)&l->abort},
               {"ncclCommGetAsyncError", (void **)&l->async_error},
               {"ncclGetErrorString", (void **)&l->error_text},
               {"ncclAllReduce", (void **)&l->all_reduce},
               {"ncclBroadcast", (void **)&l->broadcast},
               {"ncclSend", (void **)&l->send},
               {"ncclRecv", (void **)&l->receive},
               {"ncclGroupStart", (void **)&l->group_start},
               {"ncclGroupEnd", (void **)&l->group_end}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].to = dlsym(library, all[i].name);
        if (*all[i].to == NULL)
            return fail(ERR_UNSUPPORTED, "%s: not NCCL 2.7 or newer: it has no %s", l->path,
                        all[i].name);
    }
    if (l->get_version(&l->version) != NCCL_OK || l->version < MIN_VERSION)
        return fail(ERR_UNSUPPORTED, "%s: NCCL %d; 2.7 or newer is needed", l->path, l->version);
    return OK;
}

static status load(nccl_lib *l, const char *path) {
    snprintf(l->path, sizeof l->path, "%s", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fail(ERR_UNSUPPORTED, "%.400s", dlerror());
    return find_symbols(l, library);
}

static status load_found(nccl_lib *l) {
    void *library = library_find("libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2");
    struct link_map *map;
    if (library == NULL)
        return fail(ERR_UNSUPPORTED,
                    "NCCL was not found (libnccl.so.2, also in Python's packages): install "
                    "libnccl2 or 'pip install nvidia-nccl-cu13', or say where it is with --nccl "
                    "PATH");
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
        snprintf(l->path, sizeof l->path, "%s", map->l_name);
    return find_symbols(l, library);
}

status nccl_lib_load(nccl_lib *out, const char *path) {
    char file[PATH_MAX];
    *out = (nccl_lib){.path = "libnccl.so.2"};
    if (path == NULL) return load_found(out);
    if (!folder_exists(path)) return load(out, path);
    TRY(path_join(file, sizeof file, path, "libnccl.so.2"));
    return load(out, file);
}

typedef struct nccl_state {
    transport *t;
    const nccl_lib *lib;
    void *comm;
    bool is_fixed, is_failed;
    char *parts; /* memory of the backend: the slices of all ranks */
    size_t parts_bytes;
    int64_t *slice, *own; /* (size): elements of each rank's slice, and of this one's */
} nccl_state;

static void nccl_give_up(comm *c) {
    nccl_state *s = c->state;
    s->is_failed = true;
    comm_give_up(c->host);
}

static status check(comm *c, int code, const char *what) {
    nccl_state *s = c->state;
    if (code == NCCL_OK) return OK;
    nccl_give_up(c);
    return fail(ERR_IO, "NCCL, %s: %s (NCCL_DEBUG=WARN says more)", what, s->lib->error_text(code));
}

/* NCCL's own errors of calls that were enqueued before. */
static status check_earlier(comm *c) {
    nccl_state *s = c->state;
    int error = NCCL_OK;
    if (s->is_failed) return fail(ERR_IO, "the ranks lost their connection earlier");
    TRY(check(c, s->lib->async_error(s->comm, &error), "asking for errors"));
    return error == NCCL_IN_PROGRESS ? OK : check(c, error, "an earlier exchange");
}

static status reserve(comm *c, size_t bytes) {
    nccl_state *s = c->state;
    if (bytes <= s->parts_bytes) return OK;
    c->be->ops->release(c->be, s->parts);
    s->parts = NULL;
    s->parts_bytes = 0;
    TRY(c->be->ops->alloc(c->be, (void **)&s->parts, bytes));
    s->parts_bytes = bytes;
    return OK;
}

/* Between group_start and group_end.  Nothing is sent where there is nothing to say; the other side
 * knows. */
static status send(comm *c, const char *from, int64_t bytes, int rank) {
    nccl_state *s = c->state;
    if (bytes == 0 || rank == c->rank) return OK;
    return check(
        c, s->lib->send(from, (size_t)bytes, NCCL_U8, rank, s->comm, c->be->ops->stream(c->be)),
        "sending");
}

static status receive(comm *c, char *to, int64_t bytes, int rank) {
    nccl_state *s = c->state;
    if (bytes == 0 || rank == c->rank) return OK;
    return check(
        c, s->lib->receive(to, (size_t)bytes, NCCL_U8, rank, s->comm, c->be->ops->stream(c->be)),
        "receiving");
}

static status group_start(comm *c) {
    nccl_state *s = c->state;
    TRY(check_earlier(c));
    return check(c, s->lib->group_start(), "beginning an exchange");
}

static status group_end(comm *c, status st) {
    nccl_state *s = c->state;
    wait_kind before = waits_begin(WAIT_NCCL);
    int code = s->lib->group_end(); /* also after a failure: groups are counted */
    waits_end(before);
    return st == OK ? check(c, code, "an exchange") : st;
}

static status copy_own(comm *c, char *to, const char *from, int64_t bytes) {
    if (bytes == 0 || to == from) return OK;
    return c->be->ops->copy(c->be, to, from, (size_t)bytes);
}

static status nccl_all_to_all(comm *c, const all_to_all_args *a) {
    const char *from = a->from;
    char *to = a->to;
    int64_t bytes = a->row_bytes;
    status st = OK;
    TRY(group_start(c));
    for (int i = 1; i < c->size && st == OK; i++) {
        int r = (c->rank + i) % c->size;
        st = send(c, from + sum_before(a->n_send, r) * bytes, a->n_send[r] * bytes, r);
        if (st == OK)
            st = receive(c, to + sum_before(a->n_receive, r) * bytes, a->n_receive[r] * bytes, r);
    }
    TRY(group_end(c, st));
    return copy_own(c, to + sum_before(a->n_receive, c->rank) * bytes,
                    from + sum_before(a->n_send, c->rank) * bytes, a->n_send[c->rank] * bytes);
}

static status nccl_all_gather(comm *c, const all_gather_args *a) {
    char *to = a->to;
    int64_t bytes = a->row_bytes;
    status st = OK;
    TRY(group_start(c));
    for (int i = 1; i < c->size && st == OK; i++) {
        int r = (c->rank + i) % c->size;
        st = send(c, a->from, a->n_rows[c->rank] * bytes, r);
        if (st == OK)
            st = receive(c, to + sum_before(a->n_rows, r) * bytes, a->n_rows[r] * bytes, r);
    }
    TRY(group_end(c, st));
    return copy_own(c, to + sum_before(a->n_rows, c->rank) * bytes, a->from,
                    a->n_rows[c->rank] * bytes);
}

/* The pairs of ops/comm.h: the result is part 0. */
static status combine_parts(comm *c, const all_reduce_args *a, int64_t own) {
    nccl_state *s = c->state;
    int64_t bytes = own * (int64_t)comm_type_bytes(a->type);
    for (int step = 1; step < c->size; step *= 2)
        for (int i = 0; i + step < c->size; i += 2 * step)
            TRY(combine(c->be, a->type, a->rule, own, s->parts + (i + step) * bytes,
                        s->parts + i * bytes));
    return OK;
}

/* Every rank gets its slice of all ranks, and sends the sum of these to all. */
static status reduce_fixed(comm *c, const all_reduce_args *a) {
    nccl_state *s = c->state;
    int64_t bytes = (int64_t)comm_type_bytes(a->type), own = slice_count(a->n, c->rank, c->size);
    status st = reserve(c, (size_t)(own * bytes * c->size));
    if (st != OK) nccl_give_up(c); /* the others will send */
    TRY(st);
    for (int r = 0; r < c->size; r++) {
        s->slice[r] = slice_count(a->n, r, c->size);
        s->own[r] = own;
    }
    all_to_all_args scatter = {bytes, s->slice, s->own, a->from, s->parts};
    all_gather_args gather = {bytes, s->slice, s->parts, a->to};
    TRY(nccl_all_to_all(c, &scatter));
    TRY(combine_parts(c, a, own));
    return nccl_all_gather(c, &gather);
}

/* Integers and maxima have one result in any order. */
static status nccl_all_reduce(comm *c, const all_reduce_args *a) {
    nccl_state *s = c->state;
    static const int types[] = {
        [COMM_F32] = NCCL_F32, [COMM_F64] = NCCL_F64,   [COMM_I64] = NCCL_I64,
        [COMM_U8] = NCCL_U8,   [COMM_BF16] = NCCL_BF16, [COMM_F16] = NCCL_F16};
    bool is_float = a->type != COMM_I64 && a->type != COMM_U8;
    if (a->n == 0) return check_earlier(c);
    if (s->is_fixed && is_float && a->rule == COMM_SUM) return reduce_fixed(c, a);
    TRY(check_earlier(c));
    wait_kind before = waits_begin(WAIT_NCCL);
    int code = s->lib->all_reduce(a->from, a->to, (size_t)a->n, types[a->type],
                                  a->rule == COMM_SUM ? NCCL_SUM : NCCL_MAX, s->comm,
                                  c->be->ops->stream(c->be));
    waits_end(before);
    return check(c, code, "a sum");
}

static status nccl_broadcast(comm *c, void *memory, size_t bytes, int root) {
    nccl_state *s = c->state;
    if (root < 0 || root >= c->size)
        return fail(ERR_USAGE, "broadcast: there is no rank %d among %d", root, c->size);
    TRY(check_earlier(c));
    if (bytes == 0) return OK;
    wait_kind before = waits_begin(WAIT_NCCL);
    int code =
        s->lib->broadcast(memory, memory, bytes, NCCL_U8, root, s->comm, c->be->ops->stream(c->be));
    waits_end(before);
    return check(c, code, "a broadcast");
}

static status nccl_barrier(comm *c) {
    nccl_state *s = c->state;
    TRY(c->be->ops->sync(c->be));
    TRY(check_earlier(c));
    status st = s->t->ops->barrier(s->t);
    if (st != OK) nccl_give_up(c);
    return st;
}

static void nccl_note_step(comm *c, uint64_t step) {
    nccl_state *s = c->state;
    s->t->ops->note_step(s->t, step);
}

/* After a failure NCCL must not wait for the others. */
static void nccl_destroy(comm *c) {
    nccl_state *s = c->state;
    wait_kind before = waits_begin(WAIT_NCCL);
    if (s->comm != NULL) (void)(s->is_failed ? s->lib->abort(s->comm) : s->lib->destroy(s->comm));
    waits_end(before);
    c->be->ops->release(c->be, s->parts);
    MEM_FREE(s->slice, s->own);
    comm_free(c);
}

static const comm_ops nccl_ops = {.all_reduce = nccl_all_reduce,
                                  .all_to_all = nccl_all_to_all,
                                  .all_gather = nccl_all_gather,
                                  .broadcast = nccl_broadcast,
                                  .barrier = nccl_barrier,
                                  .note_step = nccl_note_step,
                                  .give_up = nccl_give_up};

/* Rank 0 makes the id, all get it by the transport. */
static status join(comm *c) {
    nccl_state *s = c->state;
    nccl_id id = {{0}}, *all = NULL;
    TRY(MEM_NEW(&all, (size_t)c->size));
    /* A rank that cannot make the id sends zeros: the others must not wait for it. */
    status st = c->rank == 0 ? check(c, s->lib->get_id(&id), "starting") : OK;
    failure f;
    failure_save(&f, st);
    status sent = transport_gather(s->t, &id, sizeof id, all);
    if (st != OK) st = failure_restore(&f);
    if (st == OK) st = sent;
    if (st == OK && memcmp(&all[0], &(nccl_id){{0}}, sizeof id) == 0)
        st = fail(ERR_IO, "NCCL did not start on rank 0");
    if (st == OK) {
        wait_kind before = waits_begin(WAIT_NCCL);
        int code = s->lib->init_rank(&s->comm, c->size, all[0], c->rank);
        waits_end(before);
        st = check(c, code, "joining the ranks");
    }
    mem_free(all);
    return st;
}

status comm_create_nccl(comm **out, backend *be, transport *t, const nccl_lib *lib, bool is_fixed) {
    comm *c;
    *out = NULL;
    TRY(comm_new(&c, &nccl_ops, be, t, nccl_destroy, sizeof(nccl_state)));
    nccl_state *s = c->state;
    *s = (nccl_state){.t = t, .lib = lib, .is_fixed = is_fixed};
    status st = comm_create_beside(&c->host, be, t);
    if (st == OK) st = MEM_NEW(&s->slice, (size_t)c->size);
    if (st == OK) st = MEM_NEW(&s->own, (size_t)c->size);
    if (st == OK) st = join(c);
    if (st == OK) {
        *out = c;
        return OK;
    }
    failure f;
    failure_save(&f, st);
    nccl_destroy(c);
    return failure_restore(&f);
}

bool comm_is_nccl(const comm *c) {
    return c != NULL && c->ops == &nccl_ops;
}

status comm_create_nccl_group(comm **out, const comm *c, transport *t) {
    const nccl_state *s = c->state;
    return comm_create_nccl(out, c->be, t, s->lib, true);
}
