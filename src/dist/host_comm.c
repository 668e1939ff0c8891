/* Collectives on a transport.
 *
 * An all-reduce is a reduce-scatter and an all-gather: every rank gets the same slice of all ranks,
 * sums it by the tree of ops/comm.h, and sends the result to all: 2 (G - 1) / G of the data cross
 * a link, as in a ring, and the sum has one fixed order.  Memory of a GPU is copied to the host and
 * back. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "dist/transport.h"
#include "ops/comm.h"

typedef struct host_buffer {
    char *memory;
    size_t bytes;
} host_buffer;

typedef struct host_state {
    transport *t;
    bool is_failed;
    bool is_host_memory; /* the backend's memory is the host's */
    host_buffer in, out; /* copies of a GPU's memory */
    host_buffer parts;   /* of an all-reduce: the slices of all ranks */
    const void **from;   /* (size), of an exchange */
    void **to;           /* (size) */
    int64_t *n_from, *n_to;
} host_state;

static status reserve(host_buffer *b, size_t bytes) {
    if (bytes <= b->bytes && b->memory != NULL) return OK;
    mem_free(b->memory);
    *b = (host_buffer){0};
    TRY(MEM_NEW_RAW(&b->memory, bytes));
    b->bytes = bytes;
    return OK;
}

/* The host's view of memory that a collective reads. */
static status view_in(comm *c, const void *memory, size_t bytes, const char **out) {
    host_state *s = c->state;
    *out = memory;
    if (s->is_host_memory || bytes == 0) return OK;
    TRY(reserve(&s->in, bytes));
    *out = s->in.memory;
    return c->be->ops->copy_out(c->be, s->in.memory, memory, bytes);
}

/* Where a collective writes on the host; `send_back` then copies it. */
static status view_out(comm *c, void *memory, size_t bytes, char **out) {
    host_state *s = c->state;
    *out = memory;
    if (s->is_host_memory || bytes == 0) return OK;
    TRY(reserve(&s->out, bytes));
    *out = s->out.memory;
    return OK;
}

static status send_back(comm *c, void *memory, const char *host, size_t bytes) {
    if (host == memory || bytes == 0) return OK;
    return c->be->ops->copy_in(c->be, memory, host, bytes);
}

/* Exchanges what `from`, `to` and their sizes say. */
static status exchange(comm *c) {
    host_state *s = c->state;
    exchange_args a = {.from = s->from, .n_from = s->n_from, .to = s->to, .n_to = s->n_to};
    if (s->is_failed) return fail(ERR_IO, "the ranks lost each other before");
    status st = s->t->ops->exchange(s->t, &a);
    s->is_failed = st != OK;
    return st;
}

static void host_give_up(comm *c) {
    host_state *s = c->state;
    s->is_failed = true;
    comm_give_up(c->host);
}

/* What a rank needs before an exchange; without it the ranks are out of step. */
static status ready(comm *c, status st) {
    if (st != OK) host_give_up(c);
    return st;
}

/* Elements first .. first + count - 1 of n belong to rank r. */
static int64_t slice_first(int64_t n, int r, int size) {
    return n / size * r + n % size * r / size;
}

static int64_t slice_count(int64_t n, int r, int size) {
    return slice_first(n, r + 1, size) - slice_first(n, r, size);
}

/* The pairs of ops/comm.h: the result is part 0. */
static void combine_parts(const all_reduce_args *a, char *parts, int64_t n, int size) {
    size_t bytes = (size_t)n * comm_type_bytes(a->type);
    for (int step = 1; step < size; step *= 2)
        for (int i = 0; i + step < size; i += 2 * step)
            combine_host(a->type, a->rule, n, parts + (size_t)(i + step) * bytes,
                         parts + (size_t)i * bytes);
}

static status scatter_slices(comm *c, const all_reduce_args *a, const char *from, int64_t own) {
    host_state *s = c->state;
    int64_t bytes = (int64_t)comm_type_bytes(a->type);
    for (int r = 0; r < c->size; r++) {
        s->from[r] = from + slice_first(a->n, r, c->size) * bytes;
        s->n_from[r] = slice_count(a->n, r, c->size) * bytes;
        s->to[r] = s->parts.memory + r * own * bytes;
        s->n_to[r] = own * bytes;
    }
    return exchange(c);
}

static status gather_slices(comm *c, const all_reduce_args *a, char *to, int64_t own) {
    host_state *s = c->state;
    int64_t bytes = (int64_t)comm_type_bytes(a->type);
    for (int r = 0; r < c->size; r++) {
        s->from[r] = s->parts.memory;
        s->n_from[r] = own * bytes;
        s->to[r] = to + slice_first(a->n, r, c->size) * bytes;
        s->n_to[r] = slice_count(a->n, r, c->size) * bytes;
    }
    return exchange(c);
}

static status host_all_reduce(comm *c, const all_reduce_args *a) {
    host_state *s = c->state;
    size_t all = (size_t)a->n * comm_type_bytes(a->type);
    int64_t own = slice_count(a->n, c->rank, c->size);
    const char *from;
    char *to;
    TRY(ready(c, view_in(c, a->from, all, &from)));
    TRY(ready(c, view_out(c, a->to, all, &to)));
    TRY(ready(c, reserve(&s->parts, (size_t)own * comm_type_bytes(a->type) * (size_t)c->size)));
    TRY(scatter_slices(c, a, from, own));
    combine_parts(a, s->parts.memory, own, c->size);
    TRY(gather_slices(c, a, to, own));
    return send_back(c, a->to, to, all);
}

static status host_all_to_all(comm *c, const all_to_all_args *a) {
    host_state *s = c->state;
    int64_t n_out = 0, n_in = 0;
    const char *from;
    char *to;
    for (int r = 0; r < c->size; r++) {
        s->n_from[r] = a->n_send[r] * a->row_bytes;
        s->n_to[r] = a->n_receive[r] * a->row_bytes;
        n_out += s->n_from[r];
        n_in += s->n_to[r];
    }
    TRY(ready(c, view_in(c, a->from, (size_t)n_out, &from)));
    TRY(ready(c, view_out(c, a->to, (size_t)n_in, &to)));
    int64_t at_out = 0, at_in = 0;
    for (int r = 0; r < c->size; r++) {
        s->from[r] = from != NULL ? from + at_out : NULL;
        s->to[r] = to != NULL ? to + at_in : NULL;
        at_out += s->n_from[r];
        at_in += s->n_to[r];
    }
    TRY(exchange(c));
    return send_back(c, a->to, to, (size_t)n_in);
}

static status host_all_gather(comm *c, const all_gather_args *a) {
    host_state *s = c->state;
    int64_t n = 0, own = a->n_rows[c->rank] * a->row_bytes;
    const char *from;
    char *to;
    for (int r = 0; r < c->size; r++)
        n += a->n_rows[r] * a->row_bytes;
    TRY(ready(c, view_in(c, a->from, (size_t)own, &from)));
    TRY(ready(c, view_out(c, a->to, (size_t)n, &to)));
    int64_t at = 0;
    for (int r = 0; r < c->size; r++) {
        s->from[r] = from;
        s->n_from[r] = own;
        s->n_to[r] = a->n_rows[r] * a->row_bytes;
        s->to[r] = to != NULL ? to + at : NULL;
        at += s->n_to[r];
    }
    TRY(exchange(c));
    return send_back(c, a->to, to, (size_t)n);
}

static status host_broadcast(comm *c, void *memory, size_t bytes, int root) {
    host_state *s = c->state;
    bool is_root = c->rank == root;
    const char *from = NULL;
    char *to = NULL;
    if (root < 0 || root >= c->size)
        return fail(ERR_USAGE, "broadcast: there is no rank %d among %d", root, c->size);
    if (is_root) TRY(ready(c, view_in(c, memory, bytes, &from)));
    if (!is_root) TRY(ready(c, view_out(c, memory, bytes, &to)));
    for (int r = 0; r < c->size; r++) {
        s->from[r] = from;
        s->n_from[r] = is_root && r != root ? (int64_t)bytes : 0;
        s->to[r] = to;
        s->n_to[r] = !is_root && r == root ? (int64_t)bytes : 0;
    }
    TRY(exchange(c));
    return is_root ? OK : send_back(c, memory, to, bytes);
}

static status host_barrier(comm *c) {
    host_state *s = c->state;
    TRY(c->be->ops->sync(c->be));
    if (s->is_failed) return fail(ERR_IO, "the ranks lost each other before");
    status st = s->t->ops->barrier(s->t);
    s->is_failed = st != OK;
    return st;
}

static void host_note_step(comm *c, uint64_t step) {
    host_state *s = c->state;
    s->t->ops->note_step(s->t, step);
}

static void host_destroy(comm *c) {
    host_state *s = c->state;
    mem_free(s->in.memory);
    mem_free(s->out.memory);
    mem_free(s->parts.memory);
    mem_free(s->from);
    mem_free(s->to);
    mem_free(s->n_from);
    mem_free(s->n_to);
    mem_free(s);
    comm_destroy(c->host);
    mem_free(c);
}

static const comm_ops host_ops = {.all_reduce = host_all_reduce,
                                  .all_to_all = host_all_to_all,
                                  .all_gather = host_all_gather,
                                  .broadcast = host_broadcast,
                                  .barrier = host_barrier,
                                  .note_step = host_note_step,
                                  .give_up = host_give_up};

static status create(comm **out, backend *be, transport *t, bool is_host_memory) {
    comm *c;
    host_state *s;
    size_t n = (size_t)t->size;
    *out = NULL;
    TRY(MEM_NEW(&c, 1));
    *c = (comm){
        .ops = &host_ops, .be = be, .rank = t->rank, .size = t->size, .destroy = host_destroy};
    status st = MEM_NEW(&s, 1);
    if (st != OK) {
        mem_free(c);
        return st;
    }
    c->state = s;
    s->t = t;
    s->is_host_memory = is_host_memory;
    st = MEM_NEW(&s->from, n);
    if (st == OK) st = MEM_NEW(&s->to, n);
    if (st == OK) st = MEM_NEW(&s->n_from, n);
    if (st == OK) st = MEM_NEW(&s->n_to, n);
    if (st != OK)
        host_destroy(c);
    else
        *out = c;
    return st;
}

status comm_create_beside(comm **out, backend *be, transport *t) {
    return create(out, be, t, true);
}

status comm_create_host(comm **out, backend *be, transport *t) {
    bool is_host_memory = be->is_host;
    TRY(create(out, be, t, is_host_memory));
    status st = is_host_memory ? OK : comm_create_beside(&(*out)->host, be, t);
    if (st != OK) {
        host_destroy(*out);
        *out = NULL;
    }
    return st;
}

void transport_destroy(transport *t) {
    if (t != NULL) t->ops->destroy(t);
}

void transport_copy_own(const transport *t, const exchange_args *a) {
    const void *from = a->from[t->rank];
    void *to = a->to[t->rank];
    if (a->n_to[t->rank] > 0 && to != from) memmove(to, from, (size_t)a->n_to[t->rank]);
}

status transport_gather(transport *t, const void *own, int64_t bytes, void *all) {
    size_t n = (size_t)t->size;
    const void **from;
    void **to;
    int64_t *counts;
    TRY(MEM_NEW(&from, n));
    status st = MEM_NEW(&to, n);
    if (st == OK) st = MEM_NEW(&counts, n);
    if (st != OK) counts = NULL;
    for (int r = 0; r < t->size && st == OK; r++) {
        from[r] = own;
        to[r] = (char *)all + r * bytes;
        counts[r] = bytes;
    }
    if (st == OK)
        st = t->ops->exchange(
            t, &(exchange_args){.from = from, .n_from = counts, .to = to, .n_to = counts});
    mem_free(from);
    mem_free(to);
    mem_free(counts);
    return st;
}

void transport_silence(void) {
    int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    if (nowhere > STDOUT_FILENO) close(nowhere);
    log_set_level(LOG_QUIET);
}
