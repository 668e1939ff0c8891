/* Rows of distinct ids (embed_take_rows) without waiting for the device: the same table as with
 * embed_fetch, the path of a table that tracks the keys that leave. */
#include "device.h"
#include "embed/table.h"
#include "table_rig.h"

enum { DIM = 4, UNIVERSE = 700, MOST = 300, N_ROUNDS = 700 };

static embed_config config_of(embed_policy policy, int64_t level0, int64_t level1) {
    return (embed_config){.dim = DIM,
                          .opt = OPT_ADAGRAD,
                          .policy = policy,
                          .capacity = {level0, level1},
                          .max_batch = MOST,
                          .seed = 11,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
}

/* Two tables, one for each code path, and the input of a round that both get. */
typedef struct pair {
    backend *be;
    embed_table *by_fetch, *by_rows;
    uint64_t random;
    int64_t n;
    uint64_t ids[MOST], uses[MOST];
    const uint64_t *scores; /* uses, or NULL */
    float *rows, *grad;     /* (MOST, DIM), memory of the backend */
} pair;

/* Different ids, the front ones more often. */
static void draw_ids(pair *p, int64_t most) {
    bool is_drawn[UNIVERSE] = {false};
    p->n = 0;
    for (int64_t k = 1 + (int64_t)rig_random(&p->random, (uint64_t)most); k > 0; k--) {
        uint64_t id = rig_random(&p->random, rig_random(&p->random, UNIVERSE) + 1);
        if (is_drawn[id]) continue;
        is_drawn[id] = true;
        p->uses[p->n] = 1 + rig_random(&p->random, 5);
        p->ids[p->n++] = id * 0x9e3779b97f4a7c15ull;
    }
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* rejected (n): a copy, sorted. */
static void copy_rejected(const embed_batch *b, uint64_t *rejected) {
    memcpy(rejected, b->rejected, (size_t)b->n_rejected * sizeof *rejected);
    qsort(rejected, (size_t)b->n_rejected, sizeof *rejected, by_value);
}

/* Takes the rows by both paths; rows and rejected keys are the same. */
static void take_both(pair *p, bool makes_rows) {
    float x[MOST * DIM], y[MOST * DIM];
    uint64_t out_x[MOST], out_y[MOST];
    size_t bytes = (size_t)p->n * DIM * sizeof *x;
    const embed_batch *a, *b;
    const uint64_t *scores = makes_rows ? p->scores : NULL;
    CHECK_OK(embed_take_rows(p->by_fetch, makes_rows, p->n, p->ids, scores, p->rows, &a));
    CHECK_OK(p->be->ops->copy_out(p->be, x, p->rows, bytes));
    copy_rejected(a, out_x);
    CHECK_OK(embed_take_rows(p->by_rows, makes_rows, p->n, p->ids, scores, p->rows, &b));
    CHECK_OK(p->be->ops->copy_out(p->be, y, p->rows, bytes));
    copy_rejected(b, out_y);
    CHECK(memcmp(x, y, bytes) == 0);
    CHECK(a->n_rejected == b->n_rejected && a->n_absent == b->n_absent && b->n == p->n);
    CHECK(memcmp(out_x, out_y, (size_t)a->n_rejected * sizeof *out_x) == 0);
}

static void step_both(pair *p, int step) {
    float host[MOST * DIM];
    embed_step_args args = {.lr = 0.1f, .eps = 1e-6f, .step = step};
    for (int64_t i = 0; i < p->n * DIM; i++)
        host[i] = (float)(p->ids[i / DIM] % 17 + (uint64_t)(i % DIM)) / 16;
    CHECK_OK(p->be->ops->copy_in(p->be, p->grad, host, (size_t)p->n * DIM * sizeof *host));
    CHECK_OK(embed_step_rows(p->by_fetch, p->grad, &args));
    CHECK_OK(embed_step_rows(p->by_rows, p->grad, &args));
}

typedef struct dump {
    uint64_t sum;
    int64_t n;
} dump;

static status add_rows(void *ctx, const embed_rows *rows) {
    dump *d = ctx;
    for (int64_t i = 0; i < rows->n; i++) {
        uint64_t h = table_hash(rows->keys[i]) + table_hash(rows->scores[i]) * 3 + rows->stamps[i];
        for (int c = 0; c < rows->n_floats; c++) {
            uint32_t bits;
            memcpy(&bits, &rows->rows[i * rows->n_floats + c], sizeof bits);
            h = table_hash(h + bits);
        }
        d->sum = d->sum * 31 + h; /* the order of slots counts */
    }
    d->n += rows->n;
    return OK;
}

static void check_same_tables(pair *p) {
    dump x = {0}, y = {0};
    CHECK_OK(embed_export(p->by_fetch, 0, add_rows, &x));
    CHECK_OK(embed_export(p->by_rows, 0, add_rows, &y));
    CHECK(x.n == y.n && x.sum == y.sum);
    CHECK_OK(embed_catch_up(p->by_rows));
    CHECK(memcmp(embed_counts_of(p->by_fetch), embed_counts_of(p->by_rows), sizeof(embed_counts)) ==
          0);
}

/* Small batches never overfill a bucket, so the host does not wait; large ones do, sometimes with
 * four buckets and mostly with two. */
static void compare(embed_policy policy, int64_t level0, int64_t level1, int64_t most) {
    pair p = {.random = 7};
    embed_config c = config_of(policy, level0, level1);
    CHECK_OK(test_real_backend(&p.be, NULL));
    if (p.be->tables == NULL) SKIP_TEST("%s has no dynamic tables", p.be->name);
    CHECK_OK(embed_create(&p.by_fetch, p.be, &c));
    CHECK_OK(embed_create(&p.by_rows, p.be, &c));
    embed_track_left(p.by_fetch);
    CHECK_OK(p.be->ops->alloc(p.be, (void **)&p.rows, MOST * DIM * sizeof *p.rows));
    CHECK_OK(p.be->ops->alloc(p.be, (void **)&p.grad, MOST * DIM * sizeof *p.grad));
    for (int round = 1; round <= N_ROUNDS; round++) {
        p.scores = policy == POLICY_LFU && round % 3 > 0 ? p.uses : NULL;
        CHECK_OK(embed_set_step(p.by_fetch, round));
        CHECK_OK(embed_set_step(p.by_rows, round));
        draw_ids(&p, most);
        take_both(&p, round % 5 > 0);
        step_both(&p, round);
        /* Late enough that the buffer of counts on the device is full in between. */
        if (round % 350 == 0) check_same_tables(&p);
    }
    CHECK(embed_counts_of(p.by_rows)->n_evicted > 100);
    if (level1 == 0)
        CHECK((embed_counts_of(p.by_rows)->n_rejected > 0) == (most > 2 * TABLE_SLOTS));
    p.be->ops->release(p.be, p.rows);
    p.be->ops->release(p.be, p.grad);
    embed_destroy(p.by_fetch);
    embed_destroy(p.by_rows);
    test_real_backend_end(p.be);
}

TEST(direct_rows_are_those_of_a_fetch) {
    for (int policy = POLICY_LRU; policy <= POLICY_STEP; policy++) {
        compare((embed_policy)policy, 3 * TABLE_SLOTS, 0, 60);
        compare((embed_policy)policy, 2 * TABLE_SLOTS, 0, MOST);
        compare((embed_policy)policy, TABLE_SLOTS, 2 * TABLE_SLOTS, 60);
        compare((embed_policy)policy, 4 * TABLE_SLOTS, 3 * TABLE_SLOTS, MOST);
    }
}

static status (*true_copy_out)(backend *, void *, const void *, size_t);
static int n_copies;

static status count_copy(backend *be, void *to_host, const void *from, size_t bytes) {
    n_copies++;
    return true_copy_out(be, to_host, from, bytes);
}

/* Nothing is read from the device in a step whose ids fit, a few hundred times. */
static void check_no_wait(int64_t level1) {
    pair p = {.random = 3};
    embed_config c = config_of(POLICY_LFU, 8 * TABLE_SLOTS, level1);
    c.admit_count = 1, c.admit_rate = 1; /* every key is admitted, as without admission */
    embed_step_args args = {.lr = 0.1f, .eps = 1e-6f, .step = 1};
    const embed_batch *b;
    CHECK_OK(test_real_backend(&p.be, NULL));
    if (p.be->tables == NULL) SKIP_TEST("%s has no dynamic tables", p.be->name);
    const ops *true_ops = p.be->ops;
    ops counted = *true_ops;
    true_copy_out = counted.copy_out;
    counted.copy_out = count_copy;
    CHECK_OK(embed_create(&p.by_rows, p.be, &c));
    CHECK_OK(p.be->ops->alloc(p.be, (void **)&p.rows, MOST * DIM * sizeof *p.rows));
    p.be->ops = &counted;
    n_copies = 0;
    for (int round = 0; round < 250; round++) {
        draw_ids(&p, 200);
        CHECK_OK(embed_take_rows(p.by_rows, true, p.n, p.ids, p.uses, p.rows, &b));
        CHECK_OK(embed_step_rows(p.by_rows, p.rows, &args));
        /* Also where the rows of several batches are updated together. */
        CHECK_OK(embed_take_rows(p.by_rows, false, p.n, p.ids, NULL, NULL, &b));
        CHECK_OK(embed_step_rows(p.by_rows, p.rows, &args));
    }
    CHECK_EQ(n_copies, 0);
    CHECK_EQ(embed_counts_of(p.by_rows)->n_new, 0);
    CHECK_OK(embed_catch_up(p.by_rows));
    CHECK_EQ(n_copies, 1);
    CHECK(embed_counts_of(p.by_rows)->n_new > 400);
    CHECK((embed_counts_of(p.by_rows)->hits[1] > 100) == (level1 > 0));
    p.be->ops = true_ops;
    p.be->ops->release(p.be, p.rows);
    embed_destroy(p.by_rows);
    test_real_backend_end(p.be);
}

TEST(direct_rows_are_not_waited_for) {
    check_no_wait(0);
    check_no_wait(4 * TABLE_SLOTS);
}

TEST(direct_rows_are_refused_where_they_do_not_fit) {
    pair p = {.random = 3};
    embed_config c = config_of(POLICY_LRU, TABLE_SLOTS, 0);
    uint64_t ids[MOST + 1] = {0};
    const embed_batch *b;
    CHECK_OK(test_real_backend(&p.be, NULL));
    if (p.be->tables == NULL) SKIP_TEST("%s has no dynamic tables", p.be->name);
    CHECK_OK(embed_create(&p.by_rows, p.be, &c));
    CHECK_FAILS(embed_take_rows(p.by_rows, true, MOST + 1, ids, NULL, NULL, &b), ERR_USAGE,
                "made for 300");
    embed_destroy(p.by_rows);
    test_real_backend_end(p.be);
}
