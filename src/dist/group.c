#include "dist/group.h"

#include "base/mem.h"
#include "dist/nccl.h"

typedef struct group_state {
    transport *all;
    rank_group group;
    /* (size of the job): an exchange among all ranks. */
    const void **from;
    void **to;
    int64_t *n_from, *n_to;
} group_state;

static status group_exchange(transport *t, const exchange_args *a) {
    group_state *s = t->state;
    for (int r = 0; r < s->all->size; r++) {
        s->from[r] = s->to[r] = NULL;
        s->n_from[r] = s->n_to[r] = r == s->all->rank ? 0 : NO_MESSAGE;
    }
    for (int i = 0; i < t->size; i++) {
        int r = rank_of_group(&s->group, i);
        s->from[r] = a->from[i];
        s->to[r] = a->to[i];
        s->n_from[r] = a->n_from[i];
        s->n_to[r] = a->n_to[i];
    }
    exchange_args all = {.from = s->from, .n_from = s->n_from, .to = s->to, .n_to = s->n_to};
    return s->all->ops->exchange(s->all, &all);
}

/* A byte between all pairs: an empty message need not travel. */
static status group_barrier(transport *t) {
    group_state *s = t->state;
    char out = 0, in[1] = {0};
    for (int r = 0; r < s->all->size; r++) {
        s->from[r] = &out;
        s->to[r] = in;
        s->n_from[r] = s->n_to[r] = NO_MESSAGE;
    }
    for (int i = 0; i < t->size; i++) {
        int r = rank_of_group(&s->group, i);
        s->n_from[r] = s->n_to[r] = r != s->all->rank;
    }
    exchange_args a = {.from = s->from, .n_from = s->n_from, .to = s->to, .n_to = s->n_to};
    return s->all->ops->exchange(s->all, &a);
}

static void group_note_step(transport *t, uint64_t step) {
    group_state *s = t->state;
    s->all->ops->note_step(s->all, step);
}

static void group_destroy(transport *t) {
    group_state *s = t->state;
    mem_free(s->from);
    mem_free(s->to);
    mem_free(s->n_from);
    mem_free(s->n_to);
    mem_free(s);
    mem_free(t);
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
                                        .leave = group_leave,
                                        .destroy = group_destroy};

/* A group on a transport whose exchanges need only the ranks that have messages. */
static status create(transport **out, transport *all, const rank_group *g) {
    transport *t;
    group_state *s;
    size_t n = (size_t)all->size;
    TRY(MEM_NEW(&t, 1));
    status st = MEM_NEW(&s, 1);
    if (st != OK) {
        mem_free(t);
        return st;
    }
    *s = (group_state){.all = all, .group = *g};
    *t = (transport){.ops = &group_ops,
                     .rank = (all->rank - g->first) / g->stride,
                     .size = g->size,
                     .local_rank = all->local_rank,
                     .local_size = all->local_size,
                     .stop = all->stop,
                     .state = s};
    st = MEM_NEW(&s->from, n);
    if (st == OK) st = MEM_NEW(&s->to, n);
    if (st == OK) st = MEM_NEW(&s->n_from, n);
    if (st == OK) st = MEM_NEW(&s->n_to, n);
    if (st != OK)
        group_destroy(t);
    else
        *out = t;
    return st;
}

status transport_group(transport **out, transport *t, const rank_group *g) {
    int at = t->rank - g->first;
    *out = NULL;
    if (g->first < 0 || g->stride < 1 || g->size < 1 || rank_of_group(g, g->size - 1) >= t->size)
        return fail(ERR_USAGE, "ranks %d, %d, ... (%d of them) are no group of %d ranks", g->first,
                    g->first + g->stride, g->size, t->size);
    if (at < 0 || at % g->stride != 0 || at / g->stride >= g->size)
        return fail(ERR_USAGE, "rank %d is not in the group it asks for", t->rank);
    return t->ops->group != NULL ? t->ops->group(out, t, g) : create(out, t, g);
}

typedef struct grid_job {
    transport *ranks;
    backend *be;
    const comm *world;
} grid_job;

/* All members must end with the same bits, so that what they have in common stays the same: sums
 * have a fixed order. */
static status make_comm(transport **t, comm **c, const grid_job *job, rank_group g) {
    if (g.size == 1) return OK;
    TRY(transport_group(t, job->ranks, &g));
    if (comm_is_nccl(job->world)) return comm_create_nccl_group(c, job->world, *t);
    return comm_create_host(c, job->be, *t);
}

status rank_grid_create(rank_grid *g, transport *ranks, backend *be, const comm *world, int size) {
    int n = ranks->size;
    grid_job job = {ranks, be, world};
    *g = (rank_grid){0};
    if (size < 2 || n % size != 0)
        return fail(ERR_USAGE, "%d ranks cannot be divided into groups of %d", n, size);
    rank_group near = {ranks->rank / size * size, 1, size};
    rank_group far = {ranks->rank % size, size, n / size};
    status st = make_comm(&g->near, &g->group, &job, near);
    if (st == OK) st = make_comm(&g->far, &g->data, &job, far);
    if (st != OK) rank_grid_destroy(g);
    return st;
}

void rank_grid_give_up(rank_grid *g) {
    comm_give_up(g->group);
    comm_give_up(g->data);
}

void rank_grid_destroy(rank_grid *g) {
    comm_destroy(g->group);
    comm_destroy(g->data);
    transport_destroy(g->near);
    transport_destroy(g->far);
    *g = (rank_grid){0};
}
