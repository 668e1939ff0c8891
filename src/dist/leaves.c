#include "dist/leaves.h"

int leaves_of_rank(int n_leaves, int rank, int size, int *end) {
    *end = (int)((int64_t)n_leaves * (rank + 1) / size);
    return (int)((int64_t)n_leaves * rank / size);
}

bool leaf_nodes_join(const leaf_node *left, const leaf_node *right) {
    return left->n == right->n && left->first + left->n == right->first &&
           left->first % (2 * left->n) == 0;
}

int leaf_nodes_of_rank(int n_leaves, int rank, int size, leaf_node node[MAX_NODES]) {
    int end, n = 0;
    for (int leaf = leaves_of_rank(n_leaves, rank, size, &end); leaf < end; leaf++) {
        node[n++] = (leaf_node){leaf, 1};
        for (; n > 1 && leaf_nodes_join(&node[n - 2], &node[n - 1]); n--)
            node[n - 2].n *= 2;
    }
    return n;
}

struct leaf_cut {
    int n_leaves;
    int64_t token_cost;
    int32_t max_users;
    uint64_t *order; /* (max_users): keys of users, the longest first */
    int32_t *leaf;   /* (max_users): of each user */
    int32_t n_users[MAX_LEAVES];
    uint64_t cost[MAX_LEAVES];
    int64_t room, per_user, used[MAX_LEAVES]; /* room 0: any number of events */
    batch view;
};

status leaf_cut_create(leaf_cut **out, int n_leaves, int32_t max_users, int64_t max_events,
                       int64_t token_cost) {
    leaf_cut *c;
    *out = NULL;
    TRY(MEM_NEW(&c, 1));
    c->n_leaves = n_leaves;
    c->token_cost = token_cost;
    c->max_users = max_users;
    status st = MEM_NEW(&c->order, (size_t)max_users);
    if (st == OK) st = MEM_NEW(&c->leaf, (size_t)max_users);
    if (st == OK) st = batch_init(&c->view, (size_t)max_users, (size_t)max_events, CONTEXT_MAX);
    return CREATED(st, out, c, leaf_cut_destroy);
}

void leaf_cut_destroy(leaf_cut *c) {
    if (c == NULL) return;
    batch_fini(&c->view);
    MEM_FREE(c->order, c->leaf, c);
}

void leaf_cut_set_room(leaf_cut *c, int64_t room, int64_t per_user) {
    c->room = room;
    c->per_user = per_user;
}

static bool has_room(const leaf_cut *c, int leaf, int64_t size) {
    return c->room == 0 || c->used[leaf] + size <= c->room;
}

/* The first leaf with the least cost that has room; of leaves without any cost the one with the
 * fewest users. */
static int lightest(const leaf_cut *c, int64_t size) {
    int best = -1;
    for (int i = 0; i < c->n_leaves; i++) {
        if (!has_room(c, i, size)) continue;
        if (best < 0 || c->cost[i] < c->cost[best] ||
            (c->cost[i] == c->cost[best] && c->n_users[i] < c->n_users[best]))
            best = i;
    }
    return best < 0 ? 0 : best; /* a batch that is too large: the pass will say so */
}

void leaf_cut_run(leaf_cut *c, const batch *b) {
    memset(c->n_users, 0, sizeof c->n_users);
    memset(c->cost, 0, sizeof c->cost);
    memset(c->used, 0, sizeof c->used);
    /* Ascending keys: the longest user first, of equal ones the first of the batch. */
    for (int32_t u = 0; u < b->n_users; u++) {
        uint32_t length = (uint32_t)(b->offsets[u + 1] - b->offsets[u]);
        c->order[u] = (uint64_t)(UINT32_MAX - length) << 32 | (uint32_t)u;
    }
    sort_uint64(c->order, (size_t)b->n_users);
    for (int32_t i = 0; i < b->n_users; i++) {
        uint32_t user = (uint32_t)c->order[i];
        uint64_t length = UINT32_MAX - (uint32_t)(c->order[i] >> 32);
        int64_t size = (int64_t)length + c->per_user;
        int leaf = lightest(c, size);
        c->leaf[user] = leaf;
        c->n_users[leaf]++;
        c->used[leaf] += size;
        c->cost[leaf] += length * (length + (uint64_t)c->token_cost);
    }
}

int32_t leaf_cut_n_users(const leaf_cut *c, int leaf) {
    return c->n_users[leaf];
}

uint64_t leaf_cut_cost(const leaf_cut *c, int leaf) {
    return c->cost[leaf];
}

int leaf_cut_of_user(const leaf_cut *c, int32_t user) {
    return c->leaf[user];
}

static void add_user(batch *v, const batch *b, int32_t user) {
    size_t from = (size_t)b->offsets[user], at = (size_t)v->n_tokens;
    size_t n = (size_t)(b->offsets[user + 1] - b->offsets[user]), f = (size_t)b->n_context;
    memcpy(v->item + at, b->item + from, n * sizeof *v->item);
    memcpy(v->action + at, b->action + from, n * sizeof *v->action);
    memcpy(v->time + at, b->time + from, n * sizeof *v->time);
    if (f > 0)
        memcpy(v->context + (size_t)v->n_users * f, b->context + (size_t)user * f,
               f * sizeof *v->context);
    v->users[v->n_users] = b->users[user];
    v->n_targets[v->n_users] = b->n_targets[user];
    v->n_tokens += (int32_t)n;
    v->offsets[++v->n_users] = v->n_tokens;
}

const batch *leaf_cut_take(leaf_cut *c, const batch *b, int leaf) {
    batch *v = &c->view;
    v->n_users = v->n_tokens = 0;
    v->offsets[0] = 0;
    v->n_context = b->n_context;
    v->epoch = b->epoch;
    v->index = b->index;
    v->is_last = b->is_last;
    for (int32_t u = 0; u < b->n_users; u++)
        if (c->leaf[u] == leaf) add_user(v, b, u);
    return v;
}
