/* Rows of dynamic tables (ops/table.h): copies, first values, optimizers and pooling against
 * float64. */
#include "table_rig.h"

enum { N = 300, BUCKETS = 12 };

static float draw(uint64_t *state) {
    return (float)rig_random(state, 2000) / 1000 - 1;
}

static float *draw_many(uint64_t *state, size_t n) {
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = draw(state);
    return x;
}

/* N different slots out of all, some of them -1. */
static void draw_slots(uint64_t *state, int64_t *slot) {
    for (int i = 0; i < N; i++)
        slot[i] = rig_random(state, 10) == 0 ? -1 : i * 2 + (int64_t)rig_random(state, 2);
}

static void level_write(rig *r, const int64_t *slot, const uint8_t *only, int32_t n_floats,
                        const float *rows) {
    table_rows_args a = {.n = N,
                         .slot = rig_up(r, slot, N * 8),
                         .only = only == NULL ? NULL : rig_up(r, only, N),
                         .n_floats = n_floats,
                         .staging = rig_up(r, rows, (size_t)(N * n_floats) * 4),
                         .stride = n_floats};
    CHECK_OK(r->t->write(r->be, &r->l, &a));
    rig_drop(r);
}

static float *level_read(rig *r, const int64_t *slot, int32_t n_floats) {
    float *rows = malloc((size_t)(N * n_floats) * 4);
    table_rows_args a = {.n = N,
                         .slot = rig_up(r, slot, N * 8),
                         .n_floats = n_floats,
                         .staging = rig_up(r, NULL, (size_t)(N * n_floats) * 4),
                         .stride = n_floats};
    CHECK_OK(r->t->read(r->be, &r->l, &a));
    rig_down(r, rows, a.staging, (size_t)(N * n_floats) * 4);
    rig_drop(r);
    return rows;
}

TEST(table_rows_are_read_as_written) {
    static const int32_t sizes[] = {1, 3, 4, 17, 64, 129};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int32_t n_floats = sizes[k];
        uint64_t state = k;
        int64_t slot[N];
        uint8_t only[N];
        rig r;
        rig_init(&r, NULL, BUCKETS, n_floats);
        draw_slots(&state, slot);
        for (int i = 0; i < N; i++)
            only[i] = i % 3 != 0;
        float *rows = draw_many(&state, (size_t)(N * n_floats));
        level_write(&r, slot, only, n_floats, rows);
        float *back = level_read(&r, slot, n_floats);
        for (int i = 0; i < N; i++)
            for (int32_t c = 0; c < n_floats; c++)
                CHECK(back[i * n_floats + c] ==
                      (slot[i] < 0 || only[i] == 0 ? 0 : rows[i * n_floats + c]));
        free(rows), free(back);
        rig_fini(&r);
    }
}

/* Many rows of host memory: a GPU has a separate path for them. */
TEST(table_rows_of_host_memory_are_read_as_written) {
    enum { MANY = 9000, FLOATS = 20, WANTED = 7777 };
    uint64_t state = 8;
    int64_t *slot = malloc(MANY * 8), n_real = WANTED;
    void *memory;
    rig r;
    rig_init(&r, NULL, 1, FLOATS);
    table_level far = {.n_buckets = MANY / TABLE_SLOTS + 1, .row_bytes = r.l.row_bytes};
    size_t n_slots = (size_t)far.n_buckets * TABLE_SLOTS;
    CHECK_OK(r.t->alloc(r.be, &memory, n_slots * (size_t)far.row_bytes, TABLE_ON_HOST));
    far.rows = memory;
    float *rows = draw_many(&state, n_slots * FLOATS), *back = draw_many(&state, MANY * FLOATS);
    int64_t *all = malloc(n_slots * 8);
    for (size_t i = 0; i < n_slots; i++)
        all[i] = (int64_t)i;
    table_rows_args write = {.n = (int64_t)n_slots,
                             .slot = rig_up(&r, all, n_slots * 8),
                             .n_floats = FLOATS,
                             .staging = rig_up(&r, rows, n_slots * FLOATS * 4),
                             .stride = FLOATS};
    CHECK_OK(r.t->write(r.be, &far, &write));
    for (int i = 0; i < MANY; i++)
        slot[i] = rig_random(&state, 10) == 0 ? -1 : (int64_t)rig_random(&state, n_slots);
    table_rows_args read = {.n = MANY,
                            .n_real = rig_up(&r, &n_real, 8),
                            .slot = rig_up(&r, slot, MANY * 8),
                            .n_floats = FLOATS - 1,
                            .staging = rig_up(&r, back, MANY * FLOATS * 4),
                            .stride = FLOATS};
    CHECK_OK(r.t->read(r.be, &far, &read));
    float *have = malloc(MANY * FLOATS * 4);
    rig_down(&r, have, read.staging, MANY * FLOATS * 4);
    for (int i = 0; i < MANY; i++)
        for (int c = 0; c < FLOATS; c++) {
            float want = back[i * FLOATS + c]; /* neither the rest of a row nor of the batch */
            if (i < WANTED && c < FLOATS - 1) want = slot[i] < 0 ? 0 : rows[slot[i] * FLOATS + c];
            CHECK(have[i * FLOATS + c] == want);
        }
    r.t->release(r.be, memory, TABLE_ON_HOST);
    free(slot), free(rows), free(back), free(all), free(have);
    rig_fini(&r);
}

/* Different stamps, then one for all, of which n_real counts only the first. */
TEST(table_stamps_are_set_where_there_is_a_slot) {
    enum { N_REAL = 100 };
    uint64_t state = 5;
    int64_t slot[N], n_real = N_REAL;
    uint32_t stamps[N];
    rig r;
    rig_init(&r, NULL, BUCKETS, 4);
    draw_slots(&state, slot);
    for (int i = 0; i < N; i++)
        stamps[i] = 1000 + (uint32_t)i;
    table_stamp_args a = {
        .n = N, .slot = rig_up(&r, slot, N * 8), .stamps = rig_up(&r, stamps, N * 4)};
    CHECK_OK(r.t->stamp(r.be, &r.l, &a));
    a = (table_stamp_args){
        .n = N, .n_real = rig_up(&r, &n_real, 8), .slot = a.slot, .stamp = 7 | TABLE_CLEAN};
    CHECK_OK(r.t->stamp(r.be, &r.l, &a));
    uint32_t want[BUCKETS * TABLE_SLOTS] = {0};
    for (int i = 0; i < N; i++)
        if (slot[i] >= 0) want[slot[i]] = i < N_REAL ? 7 | TABLE_CLEAN : stamps[i];
    table_level copy = r.l;
    copy.index = rig_index(&r);
    for (int64_t s = 0; s < BUCKETS * TABLE_SLOTS; s++)
        CHECK_EQ(table_stamps(&copy, s / TABLE_SLOTS)[s % TABLE_SLOTS], want[s]);
    free(copy.index);
    rig_drop(&r);
    rig_fini(&r);
}

TEST(table_first_values_are_a_function_of_seed_key_and_column) {
    enum { DIM = 33, STATE = 5 };
    uint64_t state = 9, keys[N];
    int64_t slot[N];
    rig r;
    rig_init(&r, NULL, BUCKETS, DIM + STATE);
    draw_slots(&state, slot);
    for (int i = 0; i < N; i++)
        keys[i] = rig_random(&state, UINT64_MAX);
    for (int kind = FIRST_CONSTANT; kind <= FIRST_NORMAL; kind++) {
        double sum = 0, squares = 0, most = 0;
        int64_t n = 0;
        table_first first = {(first_kind)kind, rng_make_key(77, RNG_TABLE),
                             (float)table_first_unit((first_kind)kind, 0.5), 0.25f};
        table_init_args a = {.n = N,
                             .slot = rig_up(&r, slot, sizeof slot),
                             .keys = rig_up(&r, keys, sizeof keys),
                             .dim = DIM,
                             .n_state = STATE,
                             .first = first};
        CHECK_OK(r.t->init(r.be, &r.l, &a));
        rig_drop(&r);
        float *rows = level_read(&r, slot, DIM + STATE);
        for (int i = 0; i < N; i++)
            for (int c = 0; c < DIM + STATE && slot[i] >= 0; c++) {
                float x = rows[i * (DIM + STATE) + c];
                if (c >= DIM) {
                    CHECK(x == 0.25f);
                    continue;
                }
                CHECK(x == table_first_value(&first, keys[i], (uint32_t)c));
                sum += x, squares += x * x, n++;
                most = fmax(most, fabs(x));
            }
        double mean = sum / (double)n, deviation = sqrt(squares / (double)n - mean * mean);
        if (kind == FIRST_CONSTANT) CHECK(mean == 0.5 && deviation == 0);
        if (kind == FIRST_UNIFORM)
            CHECK(fabs(mean) < 0.02 && fabs(deviation - 0.5 / sqrt(3)) < 0.01 && most <= 0.5);
        if (kind == FIRST_NORMAL)
            CHECK(fabs(mean) < 0.03 && fabs(deviation - 0.5) < 0.02 && most > 1.2 && most < 2.5);
        free(rows);
    }
    rig_fini(&r);
}

/* New rows among old ones, and all of them to staging. */
TEST(table_first_values_come_with_the_rows_that_were_there) {
    static const int32_t dims[] = {1, 16, 64, 35};
    for (int k = 0; k < 4; k++) {
        int32_t dim = dims[k], stride = dim + 4;
        uint64_t state = (uint64_t)k, keys[N];
        int64_t slot[N];
        uint8_t only[N];
        rig r;
        rig_init(&r, NULL, BUCKETS, dim + 3);
        draw_slots(&state, slot);
        for (int i = 0; i < N; i++) {
            keys[i] = rig_random(&state, UINT64_MAX);
            only[i] = rig_random(&state, 3) == 0;
        }
        float *rows = draw_many(&state, (size_t)(N * dim));
        level_write(&r, slot, NULL, dim, rows);
        table_init_args a = {.n = N,
                             .slot = rig_up(&r, slot, sizeof slot),
                             .only = rig_up(&r, only, sizeof only),
                             .keys = rig_up(&r, keys, sizeof keys),
                             .dim = dim,
                             .n_state = 3,
                             .first = {FIRST_UNIFORM, rng_make_key(5, RNG_TABLE), 0.5f, 0.75f},
                             .staging = rig_up(&r, NULL, (size_t)(N * stride) * 4),
                             .stride = stride};
        CHECK_OK(r.t->init(r.be, &r.l, &a));
        float *staging = malloc((size_t)(N * stride) * 4);
        rig_down(&r, staging, a.staging, (size_t)(N * stride) * 4);
        rig_drop(&r);
        float *back = level_read(&r, slot, dim + 3);
        for (int i = 0; i < N; i++)
            for (int32_t c = 0; c < dim; c++) {
                float want = rows[i * dim + c];
                if (only[i] != 0) want = table_first_value(&a.first, keys[i], (uint32_t)c);
                if (slot[i] < 0) want = 0;
                CHECK(staging[i * stride + c] == want && back[i * (dim + 3) + c] == want);
                CHECK(slot[i] < 0 || only[i] == 0 || back[i * (dim + 3) + dim + 2] == 0.75f);
            }
        free(rows), free(staging), free(back);
        rig_fini(&r);
    }
}

typedef struct row64 {
    double w[64], m[64], v[64];
} row64;

/* One step in float64, by the words of the contract. */
static void step64(const table_update_args *a, row64 *x, const float *grad, double scale) {
    double squares = 0;
    for (int c = 0; c < a->dim; c++)
        squares += grad[c] * scale * (grad[c] * scale);
    if (a->opt == OPT_ROWWISE_ADAGRAD) x->m[0] += squares / a->dim;
    for (int c = 0; c < a->dim; c++) {
        double g = grad[c] * scale;
        if (a->opt == OPT_SGD) x->w[c] -= a->lr * (g + a->weight_decay * x->w[c]);
        if (a->opt == OPT_ROWWISE_ADAGRAD) x->w[c] -= a->lr * g / (sqrt(x->m[0]) + a->eps);
        if (a->opt == OPT_ADAGRAD) {
            x->m[c] += g * g;
            x->w[c] -= a->lr * g / (sqrt(x->m[c]) + a->eps);
        }
        if (a->opt != OPT_ADAMW) continue;
        x->w[c] *= 1 - (double)a->lr * a->weight_decay;
        x->m[c] = a->beta1 * x->m[c] + (1 - (double)a->beta1) * g;
        x->v[c] = a->beta2 * x->v[c] + (1 - (double)a->beta2) * g * g;
        x->w[c] -= a->lr * (x->m[c] / (1 - pow(a->beta1, (double)a->step))) /
                   (sqrt(x->v[c] / (1 - pow(a->beta2, (double)a->step))) + a->eps);
    }
}

static void check_optimizer(opt_kind opt, int32_t dim) {
    enum { STEPS = 20 };
    int32_t n_state = optimizer_n_state(opt, dim), n_floats = dim + n_state;
    uint64_t state = (uint64_t)dim + (uint64_t)opt * 1000;
    int64_t slot[N];
    float scale = 0.5f;
    row64 *want = calloc(N, sizeof *want);
    rig r;
    rig_init(&r, NULL, BUCKETS, n_floats);
    draw_slots(&state, slot);
    float *rows = draw_many(&state, (size_t)(N * n_floats));
    for (int i = 0; i < N; i++)
        for (int32_t c = 0; c < n_floats; c++) {
            float *x = &rows[i * n_floats + c];
            if (c >= dim) *x = 0;
            if (c < dim) want[i].w[c] = *x;
        }
    level_write(&r, slot, NULL, n_floats, rows);
    for (int step = 1; step <= STEPS; step++) {
        float *grad = draw_many(&state, (size_t)(N * dim));
        table_update_args a = {.n = N,
                               .slot = rig_up(&r, slot, sizeof slot),
                               .opt = opt,
                               .dim = dim,
                               .grad = rig_up(&r, grad, (size_t)(N * dim) * 4),
                               .grad_scale = rig_up(&r, &scale, 4),
                               .lr = 0.01f,
                               .beta1 = 0.9f,
                               .beta2 = 0.99f,
                               .eps = 1e-6f,
                               .weight_decay = opt == OPT_SGD || opt == OPT_ADAMW ? 0.1f : 0,
                               .step = step,
                               .stamp = (uint32_t)step};
        CHECK_OK(r.t->update(r.be, &r.l, &a));
        rig_drop(&r);
        for (int i = 0; i < N; i++)
            if (slot[i] >= 0) step64(&a, &want[i], grad + i * dim, scale);
        free(grad);
    }
    float *back = level_read(&r, slot, dim);
    unsigned char *index = rig_index(&r);
    table_level copy = r.l;
    copy.index = index;
    for (int i = 0; i < N; i++)
        for (int32_t c = 0; c < dim && slot[i] >= 0; c++) {
            if (fabs(back[i * dim + c] - want[i].w[c]) > 5e-6)
                FAIL_TEST("optimizer %d, dim %d, row %d, column %d: %g, wanted %g", (int)opt, dim,
                          i, c, (double)back[i * dim + c], want[i].w[c]);
            CHECK_EQ(table_stamps(&copy, slot[i] / TABLE_SLOTS)[slot[i] % TABLE_SLOTS], STEPS);
        }
    free(index), free(back), free(rows), free(want);
    rig_fini(&r);
}

TEST(table_optimizers_equal_float64) {
    static const int32_t dims[] = {1, 5, 16, 64};
    for (int opt = OPT_SGD; opt <= OPT_ROWWISE_ADAGRAD; opt++)
        for (int k = 0; k < 4; k++)
            check_optimizer((opt_kind)opt, dims[k]);
}

/* A bag for every few places, some of them empty. */
static int draw_bags(uint64_t *state, int64_t *offsets) {
    int n = 0;
    for (int64_t at = 0; at < N; n++) {
        offsets[n] = at;
        at += (int64_t)rig_random(state, 4) * (rig_random(state, 12) == 0 ? 30 : 1);
        if (at > N) at = N;
    }
    offsets[n] = N;
    return n;
}

static void check_pool(bool has_bags, bool has_weights, int32_t dim) {
    uint64_t state = (uint64_t)dim * 7 + has_bags;
    int64_t slot[N], offsets[N * 4];
    int32_t inverse[N];
    float weights[N];
    rig r;
    rig_init(&r, NULL, BUCKETS, dim);
    draw_slots(&state, slot);
    int n_bags = has_bags ? draw_bags(&state, offsets) : N;
    float *rows = draw_many(&state, (size_t)(N * dim));
    for (int i = 0; i < N; i++)
        inverse[i] = (int32_t)rig_random(&state, N + 10) - 10;
    for (int i = 0; i < N; i++)
        weights[i] = has_weights ? draw(&state) : 1;
    level_write(&r, slot, NULL, dim, rows);
    table_pool_args a = {.n = N,
                         .n_bags = n_bags,
                         .offsets = has_bags ? rig_up(&r, offsets, sizeof offsets) : NULL,
                         .slot = rig_up(&r, slot, sizeof slot),
                         .inverse = rig_up(&r, inverse, sizeof inverse),
                         .weights = has_weights ? rig_up(&r, weights, sizeof weights) : NULL,
                         .dim = dim,
                         .y = rig_up(&r, NULL, (size_t)(n_bags * dim) * 4)};
    CHECK_OK(r.t->pool(r.be, &r.l, &a));
    float *y = malloc((size_t)(n_bags * dim) * 4);
    rig_down(&r, y, a.y, (size_t)(n_bags * dim) * 4);
    for (int b = 0; b < n_bags; b++)
        for (int32_t c = 0; c < dim; c++) {
            int64_t first = has_bags ? offsets[b] : b, end = has_bags ? offsets[b + 1] : b + 1;
            double sum = 0;
            for (int64_t i = first; i < end; i++)
                if (inverse[i] >= 0 && slot[inverse[i]] >= 0)
                    sum += (double)weights[i] * rows[inverse[i] * dim + c];
            CHECK(fabs(sum - y[b * dim + c]) < 3e-5);
        }
    free(y), free(rows);
    rig_fini(&r);
}

TEST(table_pooling_equals_float64) {
    static const int32_t dims[] = {1, 16, 35, 64, 128};
    for (int k = 0; k < 5; k++) {
        check_pool(false, false, dims[k]);
        check_pool(true, false, dims[k]);
        check_pool(true, true, dims[k]);
    }
}

TEST(table_pooling_gradients_equal_float64) {
    enum { DIM = 9, IDS = 40 };
    uint64_t state = 4, ids[N];
    int64_t n_unique;
    static double want[IDS][DIM];
    rig r;
    rig_init(&r, NULL, 1, DIM);
    float *dy = draw_many(&state, N * DIM);
    for (int i = 0; i < N; i++)
        ids[i] = rig_random(&state, IDS);
    table_unique_args u = {.n = N,
                           .ids = rig_up(&r, ids, sizeof ids),
                           .keys = rig_up(&r, NULL, N * 8),
                           .n_unique = rig_up(&r, NULL, 8),
                           .inverse = rig_up(&r, NULL, N * 4),
                           .order = rig_up(&r, NULL, N * 4),
                           .begin = rig_up(&r, NULL, N * 4 + 4)};
    CHECK_OK(r.t->unique(r.be, &u));
    table_pool_grad_args a = {.n = N,
                              .order = u.order,
                              .begin = u.begin,
                              .n_groups = N,
                              .n_real = u.n_unique,
                              .dim = DIM,
                              .dy = rig_up(&r, dy, N * DIM * 4),
                              .grad = rig_up(&r, NULL, N * DIM * 4)};
    CHECK_OK(r.t->pool_grad(r.be, &a));
    uint64_t keys[N];
    static float grad[N * DIM];
    rig_down(&r, &n_unique, u.n_unique, 8);
    rig_down(&r, keys, u.keys, sizeof keys);
    rig_down(&r, grad, a.grad, sizeof grad);
    memset(want, 0, sizeof want);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < DIM; c++)
            want[ids[i]][c] += dy[i * DIM + c];
    for (int64_t k = 0; k < n_unique; k++)
        for (int c = 0; c < DIM; c++)
            CHECK(fabs(grad[k * DIM + c] - want[keys[k]][c]) < 3e-5);
    free(dy);
    rig_fini(&r);
}

TEST(table_lookup_finds_and_reads_over_tables) {
    enum { DIM = 20, PARTS = 2 };
    uint64_t state = 1, keys[N];
    int64_t begin[PARTS + 1] = {0, 130, N}, counts[PLACED_COUNTS], slot[N];
    rig r[PARTS];
    for (int p = 0; p < PARTS; p++)
        rig_init(&r[p], NULL, 8 + p, DIM);
    for (int i = 0; i < N; i++)
        keys[i] = (uint64_t)(i % 200); /* repeats, and two tables with the same keys */
    float *rows[PARTS];
    for (int p = 0; p < PARTS; p++) { /* table p holds the keys below 100 * (p + 1) */
        size_t n = 100 * ((size_t)p + 1);
        rows[p] = draw_many(&state, n * DIM);
        table_place_args a = {.n = (int64_t)n,
                              .keys = rig_up(&r[p], keys, n * 8),
                              .slot = rig_up(&r[p], NULL, n * 8),
                              .is_new = rig_up(&r[p], NULL, n),
                              .counts = rig_up(&r[p], NULL, sizeof counts)};
        CHECK_OK(r[p].t->place(r[p].be, &r[p].l, &a));
        table_rows_args w = {.n = (int64_t)n,
                             .slot = a.slot,
                             .n_floats = DIM,
                             .staging = rig_up(&r[p], rows[p], n * DIM * 4),
                             .stride = DIM};
        CHECK_OK(r[p].t->write(r[p].be, &r[p].l, &w));
        rig_down(&r[p], slot, a.slot, n * 8);
        CHECK(slot[0] >= 0 && slot[n - 1] >= 0);
    }
    table_level levels[PARTS] = {r[0].l, r[1].l};
    table_first first[PARTS] = {{FIRST_UNIFORM, rng_make_key(1, RNG_TABLE), 0.5f, 0},
                                {FIRST_NORMAL, rng_make_key(2, RNG_TABLE), 0.5f, 0}};
    static float y[N * DIM];
    uint8_t is_found[N];
    for (int has_first = 0; has_first < 2; has_first++) {
        table_lookup_args a = {.n_parts = PARTS,
                               .levels = levels,
                               .begin = begin,
                               .keys = rig_up(&r[0], keys, sizeof keys),
                               .dim = DIM,
                               .first = has_first ? first : NULL,
                               .y = rig_up(&r[0], NULL, sizeof y),
                               .is_found = rig_up(&r[0], NULL, N)};
        CHECK_OK(r[0].t->lookup(r[0].be, &a));
        rig_down(&r[0], y, a.y, sizeof y);
        rig_down(&r[0], is_found, a.is_found, N);
        for (int i = 0; i < N; i++) {
            int p = i >= begin[1];
            bool is_there = keys[i] < 100 * ((uint64_t)p + 1);
            CHECK_EQ(is_found[i], is_there);
            for (uint32_t c = 0; c < DIM; c++) {
                float none = has_first ? table_first_value(&first[p], keys[i], c) : 0;
                CHECK(y[i * DIM + (int)c] == (is_there ? rows[p][keys[i] * DIM + c] : none));
            }
        }
    }
    for (int p = 0; p < PARTS; p++) {
        rig_fini(&r[p]);
        free(rows[p]);
    }
}
