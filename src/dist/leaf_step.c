#include "dist/leaf_step.h"

#include "dist/grad_sum.h"
#include "dist/leaves.h"
#include "nn/dynamic.h"

struct leaf_step {
    session *s;
    comm *comm; /* or NULL */
    int rank, size, n_leaves;
    bool is_host_memory; /* gradients are summed in the order of the leaves */
    bool is_fixed;       /* a GPU's are, too */
    leaf_cut *cut;
    grad_sum *sum;
    uint8_t leaf_rank[MAX_LEAVES]; /* which rank has a leaf */
    uint8_t *user_rank;            /* (train_batch): and a user of the batch */
    int64_t n_unlabelled;
    double cost_max, cost_mean;
    uint64_t busy_ns;
};

/* FLOPs of a token outside the attention, in FLOPs of one pair of tokens in it: a layer has about
 * 10 E^2 and 2 E of them. */
static int64_t token_cost(const session *s) {
    return 5 * (int64_t)model_dim(s->model);
}

static status build(leaf_step *l) {
    session *s = l->s;
    int64_t n_events = (int64_t)s->train_batch * (s->max_history + s->max_targets);
    TRY(leaf_cut_create(&l->cut, l->n_leaves, s->train_batch, n_events, token_cost(s)));
    leaf_cut_set_room(l->cut, session_part_events(s, l->n_leaves), s->limits.n_context);
    TRY(MEM_NEW(&l->user_rank, (size_t)s->train_batch));
    for (int r = 0, leaf = 0, end; r < l->size; r++) {
        (void)leaves_of_rank(l->n_leaves, r, l->size, &end);
        for (; leaf < end; leaf++)
            l->leaf_rank[leaf] = (uint8_t)r;
    }
    TRY(model_alloc_grads(s->model));
    bool has_leaves = l->is_fixed || l->is_host_memory;
    TRY(grad_sum_create(&l->sum, s->model, s->be, l->comm, has_leaves ? l->n_leaves : 1,
                        l->is_fixed ? pass_loss(s->train) : NULL));
    /* Ranks that share tokens sum the gradients of a layer among themselves first. */
    if (s->early_bytes > 0 && l->size > 1 && !l->is_host_memory && s->sequence == NULL)
        TRY(grad_early_create(l->sum, s->model, s->early_bytes));
    return OK;
}

static bool shares_grads(const session *s) {
    return s->shares_grads && session_group(s) != NULL;
}

status leaf_step_create(leaf_step **out, session *s) {
    leaf_step *l;
    bool is_host = s->be->is_host && !s->has_fixed_leaves;
    int size = s->comm != NULL ? s->comm->size : 1;
    bool is_fixed = !is_host && s->has_fixed_leaves && CPU_LEAVES % size == 0;
    int n_leaves = is_host || is_fixed ? CPU_LEAVES : size;
    *out = NULL;
    if (size == 1 && n_leaves == 1 && s->sequence == NULL && !shares_grads(s)) return OK;
    if (size > (is_host ? CPU_LEAVES : MAX_LEAVES))
        return fail(ERR_USAGE, "%d ranks; a step can be divided among at most %d%s", size,
                    is_host ? CPU_LEAVES : MAX_LEAVES, is_host ? " on the CPU" : "");
    TRY(MEM_NEW(&l, 1));
    *l = (leaf_step){.s = s,
                     .comm = s->comm,
                     .rank = s->comm != NULL ? s->comm->rank : 0,
                     .size = size,
                     .n_leaves = n_leaves,
                     .is_host_memory = is_host,
                     .is_fixed = is_fixed};
    status st = build(l);
    return CREATED(st, out, l, leaf_step_destroy);
}

void leaf_step_destroy(leaf_step *l) {
    if (l == NULL) return;
    leaf_cut_destroy(l->cut);
    grad_sum_destroy(l->sum);
    MEM_FREE(l->user_rank, l);
}

/* What the slowest rank has to do, and what they have to do on average. */
static void note_costs(leaf_step *l) {
    uint64_t most = 0, sum = 0;
    for (int r = 0; r < l->size; r++) {
        uint64_t cost = 0;
        int end;
        for (int leaf = leaves_of_rank(l->n_leaves, r, l->size, &end); leaf < end; leaf++)
            cost += leaf_cut_cost(l->cut, leaf);
        most = cost > most ? cost : most;
        sum += cost;
    }
    l->cost_max += (double)most;
    l->cost_mean += (double)sum / l->size;
}

/* is_last: gradients that this leaf completes are complete for the whole rank. */
static status train_leaf(leaf_step *l, const batch *whole, int leaf, const model_step *at,
                         bool is_last) {
    pass *p = l->s->train;
    if (leaf_cut_n_users(l->cut, leaf) == 0) return OK;
    uint64_t start = clock_ns();
    if (is_last && grad_early_is_used(l->sum)) pass_watch_grads(p, grad_early_part, l->sum);
    status st = pass_train_part(p, leaf_cut_take(l->cut, whole, leaf), whole, at);
    pass_watch_grads(p, NULL, NULL);
    TRY(st);
    l->busy_ns += clock_ns() - start;
    return OK;
}

/* The sum of the losses is kept apart for each leaf, and the pass gets the sum over all. */
static status train_leaves(leaf_step *l, const batch *whole, const model_step *at,
                           int64_t *n_unlabelled) {
    double *loss = pass_loss(l->s->train), before = *loss;
    bool is_absent[MAX_LEAVES];
    leaf_loss total;
    int end;
    for (int leaf = 0; leaf < l->n_leaves; leaf++)
        is_absent[leaf] = leaf_cut_n_users(l->cut, leaf) == 0;
    TRY(grad_sum_begin(l->sum, is_absent));
    for (int leaf = leaves_of_rank(l->n_leaves, l->rank, l->size, &end); leaf < end; leaf++) {
        *loss = 0;
        TRY(train_leaf(l, whole, leaf, at, false));
        leaf_loss own = {.sum = *loss, .n_unlabelled = pass_n_unlabelled(l->s->train)};
        TRY(grad_sum_leaf(l->sum, leaf, own));
    }
    TRY(grad_sum_end(l->sum, &total));
    *loss = before + total.sum;
    *n_unlabelled = total.n_unlabelled;
    return OK;
}

/* Loss and gradients stay on the GPU. */
static status train_on_device(leaf_step *l, const batch *whole, const model_step *at) {
    int end;
    TRY(grad_device_begin(l->sum));
    for (int leaf = leaves_of_rank(l->n_leaves, l->rank, l->size, &end); leaf < end; leaf++) {
        TRY(train_leaf(l, whole, leaf, at, leaf + 1 == end));
        if (leaf_cut_n_users(l->cut, leaf) > 0) l->n_unlabelled += pass_n_unlabelled(l->s->train);
        TRY(grad_device_leaf(l->sum, leaf));
    }
    return grad_device_end(l->sum);
}

status leaf_step_train(leaf_step *l, const batch *b, const model_step *at, bool is_last,
                       int64_t *n_unlabelled) {
    const batch *whole;
    dynamic_tables *tables = model_tables(l->s->model);
    *n_unlabelled = 0;
    leaf_cut_run(l->cut, b);
    for (int32_t u = 0; u < b->n_users; u++)
        l->user_rank[u] = l->leaf_rank[leaf_cut_of_user(l->cut, u)];
    tables->user_ranks = l->user_rank;
    TRY(pass_take_rows(l->s->train, b, &whole));
    note_costs(l);
    if (l->is_host_memory) return train_leaves(l, whole, at, n_unlabelled);
    if (l->is_fixed) return train_on_device(l, whole, at);
    TRY(train_leaf(l, whole, l->rank, at, is_last));
    if (leaf_cut_n_users(l->cut, l->rank) > 0) l->n_unlabelled += pass_n_unlabelled(l->s->train);
    return OK;
}

/* A number of the host over the ranks of c, while the GPU works on. */
static status reduce_word(comm *c, comm_rule rule, int64_t *value) {
    return comm_host_reduce(c, COMM_I64, rule, 1, value);
}

/* Ranks that share the tokens have the gradients of input and head whole, and those of the layers
 * for their rows and heads. */
static status sum_layers(leaf_step *l) {
    comm *c = l->s->sequence;
    if (c == NULL) return OK;
    param_range r = model_layer_grads(l->s->model);
    all_reduce_args a = {COMM_F32, COMM_SUM, r.n, r.first, r.first};
    return c->ops->all_reduce(c, &a);
}

status leaf_step_end(leaf_step *l, int64_t *n_unlabelled) {
    *n_unlabelled = 0;
    grad_sum_step(l->sum);
    TRY(sum_layers(l));
    if (l->is_host_memory)
        return shares_grads(l->s) ? grad_sum_share(l->sum, l->s->model, session_group(l->s)) : OK;
    if (!l->is_fixed && l->size > 1) {
        double *loss = pass_loss(l->s->train);
        all_reduce_args a = {COMM_F64, COMM_SUM, 1, loss, loss};
        TRY(grad_sum_reduce(l->sum));
        TRY(l->comm->ops->all_reduce(l->comm, &a));
    }
    if (shares_grads(l->s)) TRY(grad_sum_share(l->sum, l->s->model, session_group(l->s)));
    *n_unlabelled = l->n_unlabelled;
    l->n_unlabelled = 0;
    return reduce_word(l->comm, COMM_SUM, n_unlabelled);
}

status leaf_step_any(leaf_step *l, bool *value) {
    int64_t word = *value;
    TRY(reduce_word(session_world(l->s), COMM_MAX, &word));
    *value = word != 0;
    return OK;
}

status leaf_step_balance(leaf_step *l, leaf_balance *out) {
    int64_t most = (int64_t)l->busy_ns, sum = most;
    *out = (leaf_balance){1, 1};
    TRY(reduce_word(l->comm, COMM_MAX, &most));
    TRY(reduce_word(l->comm, COMM_SUM, &sum));
    if (l->cost_max > 0) out->predicted = l->cost_mean / l->cost_max;
    if (most > 0) out->measured = (double)sum / l->size / (double)most;
    l->cost_max = l->cost_mean = 0;
    l->busy_ns = 0;
    return OK;
}
