/* place with rows (ops/table.h) against place and then init or write, on a level of its own: the
 * same index, rows, staging and answers, through evictions and rejected keys, whether what is
 * evicted is listed or only counted. */
#include <sys/mman.h>

#include "table_rig.h"

enum { N = 700, BUCKETS = 5, ROUNDS = 12 };

/* The results of a call. */
typedef struct answers {
    int64_t slot[N], counts[PLACED_COUNTS];
    uint8_t is_new[N];
    float *staging; /* (N, stride) */
} answers;

typedef struct call {
    int64_t n;
    uint64_t keys[N];
    evict_rule evict;
    score_rule rule;
    uint64_t score;
    bool writes; /* else init */
    int32_t dim, n_state;
    int64_t stride; /* 0: no staging, which is for init alone */
    float *given;   /* staging before the call */
    bool lists;     /* the single call lists evicted keys; two calls always do */
} call;

static void run(rig *r, const call *c, bool is_one, answers *out) {
    size_t n = (size_t)c->n, staging_bytes = n * (size_t)c->stride * sizeof(float);
    float *staging = c->stride > 0 ? rig_up(r, c->given, staging_bytes) : NULL;
    table_init_args init = {.dim = c->dim,
                            .n_state = c->n_state,
                            .first = {FIRST_UNIFORM, rng_make_key(3, RNG_TABLE), 0.5f, 0.125f},
                            .staging = staging,
                            .stride = c->stride};
    table_rows_args write = {.n_floats = c->dim, .staging = staging, .stride = c->stride};
    table_place_args a = {.n = c->n,
                          .keys = rig_up(r, c->keys, n * 8),
                          .rule = c->rule,
                          .score = c->score,
                          .stamp = 1,
                          .evict = c->evict,
                          .slot = rig_up(r, NULL, n * 8),
                          .is_new = rig_up(r, NULL, n),
                          .evicted = {rig_up(r, NULL, n * 8), rig_up(r, NULL, n * 8),
                                      rig_up(r, NULL, n * 4), rig_up(r, NULL, n * 8)},
                          .counts = rig_up(r, NULL, sizeof out->counts),
                          .init = c->writes ? NULL : &init,
                          .write = c->writes ? &write : NULL};
    table_init_args init_then = c->writes ? init : table_place_init(&a);
    table_rows_args write_then = c->writes ? table_place_write(&a) : write;
    if (!is_one) a.init = NULL, a.write = NULL;
    if (is_one && !c->lists) a.evicted = (table_evicted){NULL, NULL, NULL, NULL};
    CHECK_OK(r->t->place(r->be, &r->l, &a));
    if (!is_one && c->writes) CHECK_OK(r->t->write(r->be, &r->l, &write_then));
    if (!is_one && !c->writes) CHECK_OK(r->t->init(r->be, &r->l, &init_then));
    rig_down(r, out->slot, a.slot, n * 8);
    rig_down(r, out->is_new, a.is_new, n);
    rig_down(r, out->counts, a.counts, sizeof out->counts);
    rig_down(r, out->staging, staging, staging_bytes);
    rig_drop(r);
}

static void check_same(rig *one, rig *two, const call *c, const answers *x, const answers *y) {
    size_t n = (size_t)c->n;
    size_t bytes = (size_t)(one->l.n_buckets * TABLE_SLOTS * one->l.row_bytes);
    unsigned char *rows = malloc(2 * bytes), *i = rig_index(one), *j = rig_index(two);
    CHECK(memcmp(x->slot, y->slot, n * 8) == 0);
    CHECK(memcmp(x->is_new, y->is_new, n) == 0);
    CHECK(memcmp(x->counts, y->counts, sizeof x->counts) == 0);
    CHECK(memcmp(x->staging, y->staging, n * (size_t)c->stride * sizeof(float)) == 0);
    rig_down(one, rows, one->l.rows, bytes);
    rig_down(two, rows + bytes, two->l.rows, bytes);
    CHECK(memcmp(rows, rows + bytes, bytes) == 0);
    CHECK(memcmp(i, j, (size_t)one->l.n_buckets * TABLE_BUCKET_BYTES) == 0);
    free(rows), free(i), free(j);
}

/* Distinct keys of a universe twice as large as the table. */
static void draw_call(uint64_t *state, int round, call *c) {
    uint64_t first = rig_random(state, 2 * BUCKETS * TABLE_SLOTS);
    c->n = round % 4 == 3 ? N : 1 + (int64_t)rig_random(state, 90);
    for (int64_t i = 0; i < c->n; i++)
        c->keys[i] = (first + (uint64_t)i * 7) % (2 * N + 1) * 0x9e3779b97f4a7c15ull;
    c->evict = (evict_rule)rig_random(state, 3);
    c->rule = (score_rule)rig_random(state, 3);
    c->score = (uint64_t)round / 2;
    c->lists = rig_random(state, 2) == 0;
    for (int64_t i = 0; i < N * c->stride; i++)
        c->given[i] = (float)rig_random(state, 1000);
}

static void check_rows_move_with_keys(int32_t dim, int32_t n_state, int64_t stride, bool writes) {
    uint64_t state = (uint64_t)dim;
    call c = {.writes = writes, .dim = dim, .n_state = n_state, .stride = stride};
    answers x, y;
    rig one, two;
    size_t n = N * (size_t)stride + 1;
    c.given = malloc(n * sizeof(float));
    x.staging = malloc(n * sizeof(float));
    y.staging = malloc(n * sizeof(float));
    rig_init(&one, NULL, BUCKETS, dim + n_state);
    rig_init(&two, NULL, BUCKETS, dim + n_state);
    int64_t counts[PLACED_COUNTS] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        draw_call(&state, round, &c);
        run(&one, &c, true, &x);
        run(&two, &c, false, &y);
        check_same(&one, &two, &c, &x, &y);
        for (int k = 0; k < PLACED_COUNTS; k++)
            counts[k] += x.counts[k];
    }
    for (int k = 0; k < PLACED_COUNTS; k++)
        CHECK(counts[k] > 0); /* else less was tested than was meant */
    rig_fini(&one), rig_fini(&two);
    free(c.given), free(x.staging), free(y.staging);
}

TEST(table_place_makes_rows_as_init_would) {
    check_rows_move_with_keys(8, 4, 12, false);
    check_rows_move_with_keys(64, 0, 64, false);
    check_rows_move_with_keys(5, 2, 9, false);
    check_rows_move_with_keys(16, 0, 0, false);
}

TEST(table_place_writes_rows_as_write_would) {
    check_rows_move_with_keys(8, 0, 8, true);
    check_rows_move_with_keys(132, 0, 136, true);
    check_rows_move_with_keys(7, 0, 7, true);
}

/* 2^32 slots in memory of which only the touched pages exist. */
TEST(table_index_beyond_two_to_the_31) {
    enum { N_KEYS = 3000 };
    table_level l = {.n_buckets = (int64_t)1 << 26, .row_bytes = 16};
    size_t index_bytes = (size_t)l.n_buckets * TABLE_BUCKET_BYTES;
    size_t rows_bytes = (size_t)l.n_buckets * TABLE_SLOTS * 16;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    backend *be;
    void *index = mmap(NULL, index_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *rows = mmap(NULL, rows_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (index == MAP_FAILED || rows == MAP_FAILED) SKIP_TEST("no address space of 160 GB");
    l.index = index;
    l.rows = rows;
    CHECK_OK(backend_create_cpu(&be, NULL));
    static uint64_t keys[N_KEYS];
    static int64_t slot[N_KEYS], found[N_KEYS], counts[PLACED_COUNTS];
    static uint8_t is_new[N_KEYS];
    static float row[N_KEYS];
    int n_high = 0;
    for (uint64_t i = 0; i < N_KEYS; i++) {
        keys[i] = i;
        row[i] = (float)i;
    }
    table_place_args a = {
        .n = N_KEYS, .keys = keys, .slot = slot, .is_new = is_new, .counts = counts};
    CHECK_OK(be->tables->place(be, &l, &a));
    CHECK_EQ(counts[PLACED_NEW], N_KEYS);
    table_rows_args w = {.n = N_KEYS, .slot = slot, .n_floats = 1, .staging = row, .stride = 1};
    CHECK_OK(be->tables->write(be, &l, &w));
    table_find_args f = {.n = N_KEYS, .keys = keys, .slot = found};
    CHECK_OK(be->tables->find(be, &l, &f));
    memset(row, 0, sizeof row);
    CHECK_OK(be->tables->read(be, &l, &w));
    for (int i = 0; i < N_KEYS; i++) {
        CHECK_EQ(found[i], slot[i]);
        CHECK(row[i] == (float)i);
        CHECK((unsigned char *)table_row(&l, slot[i]) == l.rows + slot[i] * 16);
        n_high += slot[i] > INT32_MAX;
    }
    CHECK(n_high > N_KEYS / 3);
    backend_destroy(be);
    munmap(index, index_bytes);
    munmap(rows, rows_bytes);
}

/* The same on a GPU that has the memory, slot for slot: 2.4 billion of them, 90 GB. */
TEST(table_of_more_than_two_to_the_31_slots) {
    enum { N_KEYS = 1 << 20 };
    rig r = {.l = {.n_buckets = (int64_t)9 << 22, .row_bytes = 16}};
    void *index = NULL, *rows = NULL;
    if (test_on.kind != ON_CUDA) SKIP_TEST("real memory only on a GPU");
    CHECK_OK(test_real_backend(&r.be, NULL));
    r.t = r.be->tables;
    size_t index_bytes = (size_t)r.l.n_buckets * TABLE_BUCKET_BYTES;
    status st = r.t->alloc(r.be, &index, index_bytes, TABLE_ON_DEVICE);
    if (st == OK)
        st = r.t->alloc(r.be, &rows, (size_t)r.l.n_buckets * TABLE_SLOTS * 16, TABLE_ON_DEVICE);
    if (st != OK && index != NULL) r.t->release(r.be, index, TABLE_ON_DEVICE);
    if (st != OK) SKIP_TEST("%s", status_reason());
    CHECK_OK(r.be->ops->zero(r.be, index, index_bytes));
    r.l.index = index;
    r.l.rows = rows;
    uint64_t *keys = malloc(N_KEYS * sizeof *keys);
    int64_t *placed = malloc(N_KEYS * sizeof *placed), *found = malloc(N_KEYS * sizeof *found);
    float *row = malloc(N_KEYS * sizeof *row);
    CHECK(keys != NULL && placed != NULL && found != NULL && row != NULL);
    for (uint64_t i = 0; i < N_KEYS; i++) {
        keys[i] = i * 0x9e3779b97f4a7c15ull;
        row[i] = (float)i;
    }
    int64_t counts[PLACED_COUNTS], n_high = 0;
    table_place_args a = {.n = N_KEYS,
                          .keys = rig_up(&r, keys, N_KEYS * sizeof *keys),
                          .slot = rig_up(&r, NULL, N_KEYS * sizeof *placed),
                          .is_new = rig_up(&r, NULL, N_KEYS),
                          .counts = rig_up(&r, NULL, sizeof counts)};
    CHECK_OK(r.t->place(r.be, &r.l, &a));
    rig_down(&r, placed, a.slot, N_KEYS * sizeof *placed);
    rig_down(&r, counts, a.counts, sizeof counts);
    CHECK_EQ(counts[PLACED_NEW], N_KEYS);
    table_rows_args w = {.n = N_KEYS,
                         .slot = a.slot,
                         .n_floats = 1,
                         .staging = rig_up(&r, row, N_KEYS * sizeof *row),
                         .stride = 1};
    CHECK_OK(r.t->write(r.be, &r.l, &w));
    table_find_args f = {
        .n = N_KEYS, .keys = a.keys, .slot = rig_up(&r, NULL, N_KEYS * sizeof *found)};
    CHECK_OK(r.t->find(r.be, &r.l, &f));
    rig_down(&r, found, f.slot, N_KEYS * sizeof *found);
    w.slot = f.slot;
    w.staging = rig_up(&r, NULL, N_KEYS * sizeof *row);
    CHECK_OK(r.t->read(r.be, &r.l, &w));
    rig_down(&r, row, w.staging, N_KEYS * sizeof *row);
    for (int64_t i = 0; i < N_KEYS; i++) {
        CHECK_EQ(found[i], placed[i]);
        CHECK_EQ(found[i] / TABLE_SLOTS, table_bucket(table_hash(keys[i]), r.l.n_buckets));
        CHECK(row[i] == (float)i);
        n_high += found[i] > INT32_MAX;
    }
    CHECK(n_high > N_KEYS / 16);
    free(keys);
    free(placed);
    free(found);
    free(row);
    rig_fini(&r);
}
