#include "dist/transport.h"

/* A zeroed object of so many bytes, and its zeroed state. */
static status alloc_pair(void **out, size_t bytes, void **state, size_t state_bytes) {
    TRY(mem_alloc(out, 1, bytes));
    status st = mem_alloc(state, 1, state_bytes);
    if (st != OK) mem_free(*out);
    return st;
}

status transport_new(transport **out, const transport_ops *how, size_t state_bytes) {
    transport *t;
    void *state;
    *out = NULL;
    TRY(alloc_pair((void **)&t, sizeof *t, &state, state_bytes));
    t->ops = how;
    t->state = state;
    *out = t;
    return OK;
}

status comm_new(comm **out, const comm_ops *how, backend *be, const transport *t,
                void (*destroy)(comm *c), size_t state_bytes) {
    comm *c;
    void *state;
    *out = NULL;
    TRY(alloc_pair((void **)&c, sizeof *c, &state, state_bytes));
    *c = (comm){
        .ops = how, .be = be, .rank = t->rank, .size = t->size, .state = state, .destroy = destroy};
    *out = c;
    return OK;
}

void comm_free(comm *c) {
    mem_free(c->state);
    comm_destroy(c->host);
    mem_free(c);
}

void transport_free(transport *t) {
    MEM_FREE(t->state, t);
}

void transport_destroy(transport *t) {
    if (t != NULL) (void)t->ops->leave(t, OK);
}

void transport_silence(void) {
    int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    if (nowhere > STDOUT_FILENO) close(nowhere);
    log_set_level(LOG_QUIET);
}

void transport_copy_own(const transport *t, const exchange_args *a) {
    const void *from = a->from[t->rank];
    void *to = a->to[t->rank];
    if (a->n_to[t->rank] > 0 && to != from) memmove(to, from, (size_t)a->n_to[t->rank]);
}

status transport_check_size(const transport *t, const exchange_args *a, int from, int64_t n) {
    if (n == a->n_to[from]) return OK;
    return fail(ERR_USAGE,
                "rank %d sends %lld bytes to rank %d, which expects %lld: the ranks do not make "
                "the same calls",
                from, (long long)n, t->rank, (long long)a->n_to[from]);
}

status host_buffer_reserve(host_buffer *b, int64_t bytes) {
    if ((size_t)bytes <= b->bytes && b->memory != NULL) return OK;
    mem_free(b->memory);
    *b = (host_buffer){0};
    TRY(MEM_NEW_RAW(&b->memory, (size_t)bytes));
    b->bytes = (size_t)bytes;
    return OK;
}

/* The arguments of an exchange, (size) each. */
typedef struct message_list {
    const void **from;
    void **to;
    int64_t *n_from, *n_to;
} message_list;

static void list_fini(message_list *l) {
    MEM_FREE(l->from, l->to, l->n_from, l->n_to);
}

/* list_fini frees it, after a failure too. */
static status list_init(message_list *l, int size) {
    size_t n = (size_t)size;
    TRY(MEM_NEW(&l->from, n));
    TRY(MEM_NEW(&l->to, n));
    TRY(MEM_NEW(&l->n_from, n));
    return MEM_NEW(&l->n_to, n);
}

static void list_set(const message_list *l, int r, const void *from, int64_t n_from, void *to,
                     int64_t n_to) {
    l->from[r] = from;
    l->n_from[r] = n_from;
    l->to[r] = to;
    l->n_to[r] = n_to;
}

static status list_exchange(const message_list *l, transport *t) {
    exchange_args a = {.from = l->from, .n_from = l->n_from, .to = l->to, .n_to = l->n_to};
    return t->ops->exchange(t, &a);
}

status transport_gather(transport *t, const void *own, int64_t bytes, void *all) {
    message_list l = {0};
    status st = list_init(&l, t->size);
    for (int r = 0; r < t->size && st == OK; r++)
        list_set(&l, r, own, bytes, (char *)all + r * bytes, bytes);
    if (st == OK) st = list_exchange(&l, t);
    list_fini(&l);
    return st;
}

/* A group on a transport whose exchanges need only the ranks that have messages. */
typedef struct group_state {
    transport *all;
    rank_group group;
    message_list list; /* of an exchange among all ranks of the job */
} group_state;

static void clear_list(group_state *s) {
    for (int r = 0; r < s->all->size; r++) {
        int64_t n = r == s->all->rank ? 0 : NO_MESSAGE;
        list_set(&s->list, r, NULL, n, NULL, n);
    }
}

static status group_exchange(transport *t, const exchange_args *a) {
    group_state *s = t->state;
    clear_list(s);
    for (int i = 0; i < t->size; i++)
        list_set(&s->list, rank_of_group(&s->group, i), a->from[i], a->n_from[i], a->to[i],
                 a->n_to[i]);
    return list_exchange(&s->list, s->all);
}

/* A byte between all pairs: an empty message need not travel. */
static status group_barrier(transport *t) {
    group_state *s = t->state;
    char out = 0, in;
    clear_list(s);
    for (int i = 0; i < t->size; i++)
        if (i != t->rank) list_set(&s->list, rank_of_group(&s->group, i), &out, 1, &in, 1);
    return list_exchange(&s->list, s->all);
}

static void group_note_step(transport *t, uint64_t step) {
    group_state *s = t->state;
    s->all->ops->note_step(s->all, step);
}

static void group_destroy(transport *t) {
    list_fini(&((group_state *)t->state)->list);
    transport_free(t);
}

/* The job is left by its own transport. */
static status group_leave(transport *t, status st) {
    group_destroy(t);
    return st;
}

static const transport_ops group_ops = {.name = "group",
                                        .exchange = group_exchange,
                                        .barrier = group_barrier,
                                        .note_step = group_note_step,
                                        .leave = group_leave};

static status create_group(transport **out, transport *all, const rank_group *g) {
    transport *t;
    TRY(transport_new(&t, &group_ops, sizeof(group_state)));
    group_state *s = t->state;
    s->all = all;
    s->group = *g;
    t->rank = (all->rank - g->first) / g->stride;
    t->size = g->size;
    t->local_rank = all->local_rank;
    t->local_size = all->local_size;
    t->stop = all->stop;
    status st = list_init(&s->list, all->size);
    return CREATED(st, out, t, group_destroy);
}

status transport_group(transport **out, transport *t, const rank_group *g) {
    int at = t->rank - g->first;
    *out = NULL;
    if (g->first < 0 || g->stride < 1 || g->size < 1 || rank_of_group(g, g->size - 1) >= t->size)
        return fail(ERR_USAGE, "ranks %d, %d, ... (%d of them) are no group of %d ranks", g->first,
                    g->first + g->stride, g->size, t->size);
    if (at < 0 || at % g->stride != 0 || at / g->stride >= g->size)
        return fail(ERR_USAGE, "rank %d is not in the group it asks for", t->rank);
    return t->ops->group != NULL ? t->ops->group(out, t, g) : create_group(out, t, g);
}

/* The host's collectives.  An all-reduce is a reduce-scatter and an all-gather: every rank gets one
 * slice of all ranks, sums it by the tree of ops/comm.h, and sends the result to all.  So
 * 2 (G - 1) / G of the data cross a link, as in a ring, and the sum has one fixed order.  Memory of
 * a GPU is copied to the host and back. */
typedef struct host_state {
    transport *t;
    bool is_failed;
    bool is_host_memory; /* the backend's memory is the host's */
    host_buffer in, out; /* copies of a GPU's memory */
    host_buffer parts;   /* of an all-reduce: the slices of all ranks */
    message_list list;
} host_state;

/* The host's view of memory that a collective reads. */
static status view_in(comm *c, const void *memory, size_t bytes, const char **out) {
    host_state *s = c->state;
    *out = memory;
    if (s->is_host_memory || bytes == 0) return OK;
    TRY(host_buffer_reserve(&s->in, (int64_t)bytes));
    *out = s->in.memory;
    return c->be->ops->copy_out(c->be, s->in.memory, memory, bytes);
}

/* Where a collective writes on the host; `send_back` then copies it. */
static status view_out(comm *c, void *memory, size_t bytes, char **out) {
    host_state *s = c->state;
    *out = memory;
    if (s->is_host_memory || bytes == 0) return OK;
    TRY(host_buffer_reserve(&s->out, (int64_t)bytes));
    *out = s->out.memory;
    return OK;
}

static status send_back(comm *c, void *memory, const char *host, size_t bytes) {
    if (host == memory || bytes == 0) return OK;
    return c->be->ops->copy_in(c->be, memory, host, bytes);
}

static status check_alive(const host_state *s) {
    return s->is_failed ? fail(ERR_IO, "the ranks lost their connection earlier") : OK;
}

static status exchange(comm *c) {
    host_state *s = c->state;
    TRY(check_alive(s));
    status st = list_exchange(&s->list, s->t);
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
    for (int r = 0; r < c->size; r++)
        list_set(&s->list, r, from + slice_first(a->n, r, c->size) * bytes,
                 slice_count(a->n, r, c->size) * bytes, s->parts.memory + r * own * bytes,
                 own * bytes);
    return exchange(c);
}

static status gather_slices(comm *c, const all_reduce_args *a, char *to, int64_t own) {
    host_state *s = c->state;
    int64_t bytes = (int64_t)comm_type_bytes(a->type);
    for (int r = 0; r < c->size; r++)
        list_set(&s->list, r, s->parts.memory, own * bytes,
                 to + slice_first(a->n, r, c->size) * bytes, slice_count(a->n, r, c->size) * bytes);
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
    int64_t bytes = own * (int64_t)comm_type_bytes(a->type) * c->size;
    TRY(ready(c, host_buffer_reserve(&s->parts, bytes)));
    TRY(scatter_slices(c, a, from, own));
    combine_parts(a, s->parts.memory, own, c->size);
    TRY(gather_slices(c, a, to, own));
    return send_back(c, a->to, to, all);
}

static status host_all_to_all(comm *c, const all_to_all_args *a) {
    host_state *s = c->state;
    int64_t n_out = sum_before(a->n_send, c->size) * a->row_bytes;
    int64_t n_in = sum_before(a->n_receive, c->size) * a->row_bytes;
    const char *from;
    char *to;
    TRY(ready(c, view_in(c, a->from, (size_t)n_out, &from)));
    TRY(ready(c, view_out(c, a->to, (size_t)n_in, &to)));
    int64_t at_out = 0, at_in = 0;
    for (int r = 0; r < c->size; r++) {
        list_set(&s->list, r, from != NULL ? from + at_out : NULL, a->n_send[r] * a->row_bytes,
                 to != NULL ? to + at_in : NULL, a->n_receive[r] * a->row_bytes);
        at_out += a->n_send[r] * a->row_bytes;
        at_in += a->n_receive[r] * a->row_bytes;
    }
    TRY(exchange(c));
    return send_back(c, a->to, to, (size_t)n_in);
}

static status host_all_gather(comm *c, const all_gather_args *a) {
    host_state *s = c->state;
    int64_t n = sum_before(a->n_rows, c->size) * a->row_bytes,
            own = a->n_rows[c->rank] * a->row_bytes;
    const char *from;
    char *to;
    TRY(ready(c, view_in(c, a->from, (size_t)own, &from)));
    TRY(ready(c, view_out(c, a->to, (size_t)n, &to)));
    int64_t at = 0;
    for (int r = 0; r < c->size; r++) {
        list_set(&s->list, r, from, own, to != NULL ? to + at : NULL, a->n_rows[r] * a->row_bytes);
        at += a->n_rows[r] * a->row_bytes;
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
    for (int r = 0; r < c->size; r++)
        list_set(&s->list, r, from, is_root && r != root ? (int64_t)bytes : 0, to,
                 !is_root && r == root ? (int64_t)bytes : 0);
    TRY(exchange(c));
    return is_root ? OK : send_back(c, memory, to, bytes);
}

static status host_barrier(comm *c) {
    host_state *s = c->state;
    TRY(c->be->ops->sync(c->be));
    TRY(check_alive(s));
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
    MEM_FREE(s->in.memory, s->out.memory, s->parts.memory);
    list_fini(&s->list);
    comm_free(c);
}

static const comm_ops host_ops = {.all_reduce = host_all_reduce,
                                  .all_to_all = host_all_to_all,
                                  .all_gather = host_all_gather,
                                  .broadcast = host_broadcast,
                                  .barrier = host_barrier,
                                  .note_step = host_note_step,
                                  .give_up = host_give_up};

static status create_comm(comm **out, backend *be, transport *t, bool is_host_memory) {
    comm *c;
    *out = NULL;
    TRY(comm_new(&c, &host_ops, be, t, host_destroy, sizeof(host_state)));
    host_state *s = c->state;
    s->t = t;
    s->is_host_memory = is_host_memory;
    status st = list_init(&s->list, t->size);
    if (st == OK && !is_host_memory) st = comm_create_beside(&c->host, be, t);
    return CREATED(st, out, c, host_destroy);
}

status comm_create_beside(comm **out, backend *be, transport *t) {
    return create_comm(out, be, t, true);
}

status comm_create_host(comm **out, backend *be, transport *t) {
    return create_comm(out, be, t, be->is_host);
}
