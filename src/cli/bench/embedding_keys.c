/* The bench of dynamic tables: the workload of HierarchicalKV's own benchmark on the calls of
 * ops/table.h: rows of 64 floats, 2^20 different keys a call of which 60 % are in the table, find,
 * find_or_insert and insert_or_assign at two loads, and find with half of the rows in host memory.
 *
 * The key of id k is k times an odd number; ids are inserted in order, so that it is known which
 * are in the table, and rows hold their initial values, so that every value can be checked.
 * Evicted keys are counted but not listed, as in HierarchicalKV's calls of these names.  New keys
 * are drawn for each pass over the batches. */
#include "cli/bench/embedding.h"

enum { FIRST_SCORE = 2, CHECK_ROWS = 4096 };

/* The rows of bench/results/peers/embedding.csv. */
typedef enum { VERB_FIND, VERB_FIND_OR_INSERT, VERB_INSERT_OR_ASSIGN, VERB_FIND_BOTH } verb;
static const char *const verb_keys[] = {"find", "find_or_insert", "insert_or_assign", "find_both"};

enum { PEER_DIM = 64, PEER_KEYS = 1 << 20, PEER_SLOTS = 1 << 26 };

typedef struct keys_ctx {
    embed_bench *b;
    table_level near, far; /* far: rows in host memory; has an index only if measured */
    bool is_full;
    verb v;
    uint64_t n_ids, n_far; /* ids inserted into near (from 0 on) and far (from FAR_IDS on) */
    uint64_t fresh;        /* ids from here on were never used */
    uint64_t score;
    uint64_t *erased[N_BATCHES]; /* (n) on the device: the ids of a batch that are new */
    uint64_t *host;              /* (n) */
    int64_t n_new;               /* keys of a batch that are new */
    float *other;                /* (n, dim) on the device */
    int64_t *line;               /* (n) on the device: 0, 1, 2, ... */
    table_first first;
    float *check;     /* (n, dim) on the host */
    nn_memory memory; /* of the arrays */
} keys_ctx;

static const uint64_t FAR_IDS = 1ull << 45, FRESH_IDS = 1ull << 50;

static uint64_t key_of(uint64_t id) {
    return id * 0x9e3779b97f4a7c15ull;
}

static table_place_args place_args(keys_ctx *c, const uint64_t *keys) {
    embed_bench *b = c->b;
    return (table_place_args){.n = b->n,
                              .keys = keys,
                              .rule = SCORE_SET,
                              .score = ++c->score,
                              .stamp = 1,
                              .evict = EVICT_LOWER,
                              .slot = b->slot,
                              .is_new = b->is_new,
                              .counts = b->counts};
}

static status look_up(keys_ctx *c, const table_level *l, int round, float *y) {
    embed_bench *b = c->b;
    int64_t begin[2] = {0, b->n};
    table_lookup_args a = {.n_parts = 1,
                           .levels = l,
                           .begin = begin,
                           .keys = b->keys[round],
                           .dim = (int32_t)b->dim,
                           .y = y,
                           .is_found = b->is_new};
    return b->v->lookup(b->be, &a);
}

static status find_or_insert(keys_ctx *c, const table_level *l, const uint64_t *keys, float *y) {
    table_init_args init = {
        .dim = (int32_t)c->b->dim, .first = c->first, .staging = y, .stride = c->b->dim};
    table_place_args a = place_args(c, keys);
    a.init = &init;
    return c->b->v->place(c->b->be, l, &a);
}

static status insert_or_assign(keys_ctx *c, int round) {
    table_rows_args write = {
        .n_floats = (int32_t)c->b->dim, .staging = c->b->rows, .stride = c->b->dim};
    table_place_args a = place_args(c, c->b->keys[round]);
    a.write = &write;
    return c->b->v->place(c->b->be, &c->near, &a);
}

/* The rows of the keys found in either level, zeros for a key in neither: reads far first, then
 * near overwrites. */
static status find_both(keys_ctx *c, int round) {
    embed_bench *b = c->b;
    table_level y = {.rows = (unsigned char *)b->rows, .row_bytes = b->dim * 4};
    table_rows_args write = {.n = b->n,
                             .slot = c->line,
                             .only = b->is_new,
                             .n_floats = (int32_t)b->dim,
                             .staging = c->other,
                             .stride = b->dim};
    TRY(look_up(c, &c->far, round, b->rows));
    TRY(look_up(c, &c->near, round, c->other));
    return b->v->write(b->be, &y, &write);
}

static status run_verb(void *ctx, int round) {
    keys_ctx *c = ctx;
    embed_bench *b = c->b;
    if (c->v == VERB_FIND) return look_up(c, &c->near, round, b->rows);
    if (c->v == VERB_FIND_OR_INSERT) return find_or_insert(c, &c->near, b->keys[round], b->rows);
    return c->v == VERB_INSERT_OR_ASSIGN ? insert_or_assign(c, round) : find_both(c, round);
}

/* Inserts n more ids into a level, with their initial values. */
static status fill(keys_ctx *c, const table_level *l, uint64_t *next, int64_t n) {
    embed_bench *b = c->b;
    for (int64_t done = 0; done < n; done += b->n) {
        for (int64_t i = 0; i < b->n; i++)
            b->host[i] = key_of(*next + (uint64_t)i);
        TRY(b->be->ops->copy_in(b->be, b->keys[0], b->host, (size_t)b->n * 8));
        TRY(find_or_insert(c, l, b->keys[0], NULL));
        *next += (uint64_t)b->n;
    }
    return OK;
}

static bool is_hit(int64_t i) {
    return i * 7 % 10 < 6;
}

static bool is_far(const keys_ctx *c, int64_t i) {
    return c->v == VERB_FIND_BOTH && i % 2 == 1;
}

/* Every fourth id of the most recently inserted ones, a quarter of the slots in number: all are in
 * the table, spread over all places of the buckets.  Different for different i below a sixteenth of
 * the slots. */
static uint64_t hit_id(const keys_ctx *c, int round, int64_t i) {
    uint64_t n_known = (uint64_t)c->near.n_buckets * (TABLE_SLOTS / 16);
    uint64_t j = ((uint64_t)(round * c->b->n + i) + c->b->salt) * 2654435761u % n_known;
    return (is_far(c, i) ? FAR_IDS + c->n_far : c->n_ids) - 4 * n_known + 4 * j;
}

/* The keys of a batch, and separately those that are new. */
static status draw_batch(void *ctx, int round) {
    keys_ctx *c = ctx;
    embed_bench *b = c->b;
    c->n_new = 0;
    for (int64_t i = 0; i < b->n; i++) {
        uint64_t id = is_hit(i) ? hit_id(c, round, i) : c->fresh++;
        b->host[i] = key_of(id);
        if (!is_hit(i)) c->host[c->n_new++] = b->host[i];
    }
    TRY(b->be->ops->copy_in(b->be, b->keys[round], b->host, (size_t)b->n * 8));
    return b->be->ops->copy_in(b->be, c->erased[round], c->host, (size_t)c->n_new * 8);
}

static bool inserts(const keys_ctx *c) {
    return c->v == VERB_FIND_OR_INSERT || c->v == VERB_INSERT_OR_ASSIGN;
}

/* Erases the new keys of a batch, so that the load stays the same. */
static status erase_batch(void *ctx, int round) {
    keys_ctx *c = ctx;
    embed_bench *b = c->b;
    table_erase_args a = {.n = c->n_new, .keys = c->erased[round]};
    return inserts(c) && !c->is_full ? b->v->erase(b->be, &c->near, &a) : OK;
}

typedef struct check_job {
    const keys_ctx *c;
    int64_t wrong[256]; /* by thread */
    bool are_zeros;     /* else initial values where the key is in the table */
    bool are_all_there;
} check_job;

static status check_chunk(void *ctx, int64_t chunk, int worker) {
    check_job *job = ctx;
    const keys_ctx *c = job->c;
    int64_t dim = c->b->dim, end = (chunk + 1) * CHECK_ROWS;
    for (int64_t i = chunk * CHECK_ROWS; i < end && i < c->b->n; i++) {
        bool is_zero = job->are_zeros || !(job->are_all_there || is_hit(i));
        for (int64_t k = 0; k < dim; k++) {
            float want = is_zero ? 0 : table_first_value(&c->first, c->b->host[i], (uint32_t)k);
            job->wrong[worker] += c->check[i * dim + k] != want;
        }
    }
    return OK;
}

/* Compares b.rows with the expected rows of the keys in b.host. */
static status check_rows(const keys_ctx *c, bool are_zeros, bool are_all_there, embed_figure *f) {
    embed_bench *b = c->b;
    check_job job = {.c = c, .are_zeros = are_zeros, .are_all_there = are_all_there};
    TRY(b->be->ops->copy_out(b->be, c->check, b->rows, (size_t)(b->n * b->dim) * 4));
    TRY(pool_run(b->workers, (b->n + CHECK_ROWS - 1) / CHECK_ROWS, check_chunk, &job));
    for (int k = 0; k < 256; k++)
        f->n_wrong += job.wrong[k];
    f->n_checked += b->n * b->dim;
    return OK;
}

/* Fills the rows with one value, so that a row that is not written is noticed. */
static status poison(keys_ctx *c, float x) {
    embed_bench *b = c->b;
    for (int64_t i = 0; i < b->n * b->dim; i++)
        c->check[i] = x;
    return b->be->ops->copy_in(b->be, b->rows, c->check, (size_t)(b->n * b->dim) * 4);
}

/* insert_or_assign is checked by what a find reads after zeros were assigned. */
static status check_verb(keys_ctx *c, embed_figure *f) {
    bool assigns = c->v == VERB_INSERT_OR_ASSIGN;
    TRY(draw_batch(c, 0));
    TRY(poison(c, assigns ? 0 : -7));
    TRY(run_verb(c, 0));
    if (!assigns) TRY(check_rows(c, false, inserts(c), f));
    if (inserts(c)) {
        TRY(poison(c, -7));
        TRY(look_up(c, &c->near, 0, c->b->rows));
        TRY(check_rows(c, assigns, true, f));
    }
    return erase_batch(c, 0);
}

static bool is_peers_shape(const embed_bench *b) {
    return !b->be->is_host && b->dim == PEER_DIM && b->n == PEER_KEYS &&
           embed_bench_slots(b) == PEER_SLOTS;
}

static status measure(keys_ctx *c, verb v, const char *name, const char *size) {
    embed_figure f = {.what = show_printf("%s, load %s", name, c->is_full ? "1.0" : "0.5"),
                      .size = size,
                      .bytes = (double)c->b->dim * 4};
    c->v = v;
    if (is_peers_shape(c->b)) f.peer = bench_peer("embedding", verb_keys[v], c->is_full);
    TRY(check_verb(c, &f));
    return embed_bench_time(c->b, (embed_calls){run_verb, c, draw_batch, erase_batch}, f);
}

/* Counts the new keys of half a pass, so that the load is exact in the middle of a pass. */
static status bench_loads(keys_ctx *c, const char *size) {
    int64_t slots = c->near.n_buckets * TABLE_SLOTS, n_added = N_BATCHES / 2 * (c->b->n * 4 / 10);
    TRY(fill(c, &c->near, &c->n_ids, slots / 2 - n_added));
    for (int k = 0; k < 2; k++) {
        c->is_full = k == 1;
        if (c->is_full) TRY(fill(c, &c->near, &c->n_ids, slots + n_added));
        TRY(measure(c, VERB_FIND, "find", size));
        TRY(measure(c, VERB_FIND_OR_INSERT, "find_or_insert", size));
        TRY(measure(c, VERB_INSERT_OR_ASSIGN, "insert_or_assign", size));
    }
    return OK;
}

/* The near level is full at both loads; the new ids replace the rows that insert_or_assign wrote.
 */
static status bench_far(keys_ctx *c) {
    embed_bench *b = c->b;
    int64_t slots = c->near.n_buckets * TABLE_SLOTS;
    const char *size = show_printf("%.4g M slots", (double)slots / 5e5);
    TRY(embed_level_create(b, &c->far, slots, embed_bench_row_bytes(b), TABLE_ON_HOST));
    TRY(fill(c, &c->near, &c->n_ids, slots / 2));
    for (int k = 0; k < 2; k++) {
        uint64_t next = FAR_IDS + c->n_far;
        c->is_full = k == 1;
        TRY(fill(c, &c->far, &next, k == 0 ? slots / 2 : slots));
        c->n_far = next - FAR_IDS;
        TRY(measure(c, VERB_FIND_BOTH, "find, half in host memory", size));
    }
    return OK;
}

static status make_buffers(keys_ctx *c) {
    embed_bench *b = c->b;
    nn_memory *m = &c->memory;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(NN_NEW(m, &c->erased[i], b->n));
    TRY(NN_NEW(m, &c->other, b->n * b->dim));
    TRY(NN_NEW(m, &c->line, b->n));
    TRY(NN_NEW_HOST(m, &c->check, b->n * b->dim));
    TRY(NN_NEW_HOST(m, &c->host, b->n));
    for (int64_t i = 0; i < b->n; i++)
        b->host_slot[i] = i;
    return b->be->ops->copy_in(b->be, c->line, b->host_slot, (size_t)b->n * 8);
}

status embed_bench_keys(embed_bench *b) {
    keys_ctx c = {.b = b, .fresh = FRESH_IDS, .score = FIRST_SCORE};
    c.first = (table_first){FIRST_UNIFORM, rng_make_key(b->salt, RNG_TABLE),
                            (float)table_first_unit(FIRST_UNIFORM, 0.05), 0};
    nn_memory_init(&c.memory, b->be);
    status st = embed_level_create(b, &c.near, embed_bench_slots(b), embed_bench_row_bytes(b),
                                   TABLE_ON_DEVICE);
    const char *size = show_printf("%.4g M slots", (double)(c.near.n_buckets * TABLE_SLOTS) / 1e6);
    if (st == OK) st = make_buffers(&c);
    if (st == OK) st = bench_loads(&c, size);
    if (st == OK && !b->be->is_host) st = bench_far(&c);
    embed_level_destroy(b, &c.near, TABLE_ON_DEVICE);
    embed_level_destroy(b, &c.far, TABLE_ON_HOST);
    nn_memory_fini(&c.memory);
    return st;
}
