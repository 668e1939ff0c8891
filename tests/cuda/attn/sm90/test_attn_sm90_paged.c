/* The attention over pages of 64 keys, the size that GPUs have kernels for, against the naive
 * version: pages in any order, a last page that is partly filled, and keys that are cut into parts
 * for several blocks of a GPU. */
#include "attn_sample.h"

enum { LEN = 64, SEQUENCES = 3, BEYOND = 7 };

typedef struct shape {
    int32_t n_heads, dim;
    int32_t keys[SEQUENCES], queries[SEQUENCES], fresh[SEQUENCES]; /* fresh: keys in k and v */
    int32_t targets[SEQUENCES];
    int32_t max_len;       /* of the keys, a bound that may be too large; 0: the longest */
    sample_mask_kind mask; /* SAMPLE_CAUSAL: with `targets` */
} shape;

/* What a sample is with its first keys in pages. */
typedef struct paged {
    int32_t offsets_q[SEQUENCES + 1], offsets_new[SEQUENCES + 1];
    int32_t *table;
    float *pages, *k, *v;
} paged;

/* Another page for each 64 keys, in no order; pages are K, then V, then some unused numbers.  What
 * no key is written to is large, but finite. */
static void fill_pages(sample *s, const shape *c, paged *p, int32_t n_pages, int64_t stride,
                       int32_t max_pages) {
    int64_t row = (int64_t)c->n_heads * c->dim;
    int32_t next = 0;
    for (int64_t i = 0; i < n_pages * stride; i++)
        p->pages[i] = exact(30000);
    for (int b = 0; b < SEQUENCES; b++) {
        int32_t n_paged = c->keys[b] - c->fresh[b];
        for (int32_t j = 0; j < c->keys[b]; j++) {
            int64_t from = s->a.offsets_k[b] + j;
            const float *k = s->a.k, *v = s->a.v;
            int64_t to = p->offsets_new[b] + j - n_paged;
            float *to_k = p->k + to * row, *to_v = p->v + to * row;
            if (j < n_paged) {
                if (j % LEN == 0)
                    p->table[b * max_pages + j / LEN] = (next++ * BEYOND + 3) % n_pages;
                to_k = p->pages + p->table[b * max_pages + j / LEN] * stride + j % LEN * row;
                to_v = to_k + LEN * row;
            }
            memcpy(to_k, k + from * s->a.stride_k, (size_t)row * sizeof *k);
            memcpy(to_v, v + from * s->a.stride_v, (size_t)row * sizeof *v);
        }
    }
}

static attn_args with_pages(sample *s, const shape *c, paged *p) {
    attn_args a = s->a;
    int64_t row = (int64_t)c->n_heads * c->dim, stride = 2 * LEN * row + 8 * BEYOND;
    int32_t n_pages = 0, max_pages = a.max_len_k / LEN + 1;
    for (int b = 0; b < SEQUENCES; b++) {
        n_pages += (c->keys[b] - c->fresh[b] + LEN - 1) / LEN;
        p->offsets_new[b + 1] = p->offsets_new[b] + c->fresh[b];
    }
    while (n_pages % BEYOND == 0) /* so that the order visits every page */
        n_pages++;
    int64_t n_new = p->offsets_new[SEQUENCES];
    CHECK_OK(MEM_NEW(&p->table, (size_t)(SEQUENCES * max_pages)));
    CHECK_OK(MEM_NEW(&p->pages, (size_t)(n_pages * stride)));
    CHECK_OK(MEM_NEW(&p->k, (size_t)(n_new * row)));
    CHECK_OK(MEM_NEW(&p->v, (size_t)(n_new * row)));
    fill_pages(s, c, p, n_pages, stride, max_pages);
    a.pages = (attn_pages){.table = p->table,
                           .offsets = s->a.offsets_k,
                           .page_len = LEN,
                           .max_pages = max_pages,
                           .n_pages = n_pages,
                           .k = p->pages,
                           .v = p->pages + LEN * row,
                           .stride = stride};
    a.offsets_k = p->offsets_new;
    a.k = p->k;
    a.v = p->v;
    a.stride_k = a.stride_v = row;
    a.n_rows_k = n_new;
    a.dout = NULL;
    a.dq = a.dk = a.dv = NULL;
    return a;
}

/* The error of `out` is at most twice that of naive code and one rounding. */
static void check_out(const sample *s) {
    double largest = 1e-30, error = 0, naive = 0;
    int64_t used = (int64_t)s->a.n_heads * s->a.dim_v;
    for (int64_t i = 0; i < s->n_q * s->a.stride_out; i++) {
        if (i % s->a.stride_out >= used) {
            CHECK(s->out[i] == 9.0f);
            continue;
        }
        double want = s->want[0].out[i], d = fabs((double)s->out[i] - want);
        largest = fmax(largest, fabs(want));
        error = worse_error(error, d);
        naive = fmax(naive, fabs(ract(s->want[1].out[i], true) - want));
    }
    double limit = test_on.p == PRECISION_F32 ? 3e-6 * largest
                                              : 2 * naive + precision_unit(test_on.p) * largest;
    if (!(error <= limit)) FAIL_TEST("error %g of %g, limit %g", error, largest, limit);
}

/* Only `out` is wanted. */
static void forget_gradients(sample *s) {
    for (int f = 0; f < 2; f++) {
        double **d[] = {&s->want[f].dq, &s->want[f].dk, &s->want[f].dv};
        for (int i = 0; i < 3; i++) {
            mem_free(*d[i]);
            *d[i] = NULL;
        }
    }
}

/* With the gate inside, attention and gate give what two ops give, up to the rounding of the rows
 * between them. */
static void check_gate(backend *be, const attn_args *from) {
    double limit = precision_is_half(test_on.p) ? 16 * precision_unit(test_on.p) : 1e-5;
    attn_args a = *from;
    int64_t n = a.n_rows_q, width = (int64_t)a.n_heads * a.dim_v;
    float *o = floats(n * width, 21), *u = floats(n * width, 22), *y[3], *statistics;
    float *weight = floats(width, 23), *bias = floats(width, 24);
    CHECK_OK(MEM_NEW(&statistics, (size_t)(2 * n)));
    gate_args gate = {.n = n,
                      .dim = (int32_t)width,
                      .eps = 1e-5f,
                      .o = o,
                      .u = u,
                      .stride_u = width,
                      .weight = weight,
                      .bias = bias,
                      .mean = statistics,
                      .rstd = statistics + n};
    a.out = o;
    a.stride_out = width;
    for (int side = 0; side < 3; side++) {
        gate.y = y[side] = floats(n * width, 25);
        a.gate = side > 0 ? &gate : NULL;
        a.is_repeated = side == 2; /* as in the next layer of a pass */
        CHECK_OK(be->ops->attn_fwd(be, &a));
        if (side == 0) CHECK_OK(be->ops->gate_fwd(be, &gate));
    }
    for (int64_t i = 0; i < n * width; i++)
        CHECK(fabs((double)y[1][i] - y[0][i]) <= limit);
    CHECK_SAME(y[2], y[1], n * width);
    void *owned[] = {o, u, y[0], y[1], y[2], weight, bias, statistics};
    for (int i = 0; i < 8; i++)
        mem_free(owned[i]);
}

static void run_forward(const attn_args *a) {
    pool *workers;
    backend *be;
    CHECK_OK(pool_create(&workers, 2));
    CHECK_OK(test_backend(&be, workers));
    CHECK_OK(be->ops->attn_fwd(be, a));
    attn_args again = *a; /* as in the next layer of a pass */
    again.is_repeated = true;
    CHECK_OK(be->ops->attn_fwd(be, &again));
    check_gate(be, a);
    backend_destroy(be);
    pool_destroy(workers);
}

static void refill(sample *s) {
    for (int64_t i = 0; i < s->n_q * s->a.stride_out; i++)
        s->out[i] = 9.0f;
}

/* A sample of this shape, with contiguous keys; p: its queries. */
static void make_shape(const shape *c, sample *s, inputs *in, paged *p) {
    *p = (paged){{0}, {0}, NULL, NULL, NULL, NULL};
    rows_are = ROWS_KNOWN;
    sample_make(s, in, c->keys, SEQUENCES, false, c->n_heads, c->dim, c->dim);
    rows_are = ROWS_ODD;
    s->a.max_len_q = 0;
    for (int b = 0; b < SEQUENCES; b++) {
        p->offsets_q[b + 1] = p->offsets_q[b] + c->queries[b];
        s->a.max_len_q = c->queries[b] > s->a.max_len_q ? c->queries[b] : s->a.max_len_q;
    }
    s->a.offsets_q = p->offsets_q;
    s->a.n_rows_q = s->n_q = p->offsets_q[SEQUENCES];
    if (c->max_len > 0) s->a.max_len_k = c->max_len;
    sample_mask(&s->a, in, c->mask);
    if (c->mask == SAMPLE_CAUSAL) s->a.n_targets = c->targets;
    for (int b = 0; b < SEQUENCES; b++) /* targets are not in pages */
        if (in->n_targets[b] > c->fresh[b]) in->n_targets[b] = c->fresh[b];
    sample_bias(s, in, BIAS_NONE, 1, 1);
    sample_results(s);
    forget_gradients(s);
}

static void free_shape(sample *s, inputs *in, paged *p) {
    void *owned[] = {p->table, p->pages, p->k, p->v};
    for (int i = 0; i < 4; i++)
        mem_free(owned[i]);
    sample_free(s);
    sample_free_inputs(in);
}

/* Contiguous keys, and some of them in pages, twice: a sum has one order. */
static void check_shape(const shape *c) {
    sample s;
    inputs in;
    paged p;
    make_shape(c, &s, &in, &p);
    sample_naive(&s);
    attn_args a = with_pages(&s, c, &p);
    run_forward(&s.a);
    check_out(&s);
    refill(&s);
    run_forward(&a);
    check_out(&s);
    float *first = copy_floats(s.out, s.n_q * a.stride_out);
    refill(&s);
    run_forward(&a);
    CHECK_SAME(s.out, first, s.n_q * a.stride_out);
    mem_free(first);
    free_shape(&s, &in, &p);
}

/* The largest difference of rows of `used` numbers, over the largest number. */
static double apart(const attn_args *a, const attn_args *b, int64_t used) {
    double largest = 1e-30, error = 0;
    for (int64_t i = 0; i < a->n_rows_q * used; i++) {
        double want = ((float *)b->out)[i / used * b->stride_out + i % used];
        double d = fabs(((float *)a->out)[i / used * a->stride_out + i % used] - want);
        largest = fmax(largest, fabs(want));
        error = worse_error(error, d);
    }
    return error / largest;
}

/* More rows than there is time for with naive code: sums that are cut against sums that are not, as
 * a GPU does where it cannot store 16 bytes of a row at a time. */
static void check_cut(const shape *c) {
    sample s;
    inputs in;
    paged p;
    pool *workers;
    backend *be;
    make_shape(c, &s, &in, &p);
    attn_args all[] = {s.a, with_pages(&s, c, &p)};
    int64_t used = (int64_t)c->n_heads * c->dim;
    float *whole = floats(s.n_q * (used + 2), 31);
    CHECK_OK(pool_create(&workers, 2));
    CHECK_OK(test_backend(&be, workers));
    for (int i = 0; i < 2; i++) {
        attn_args a = all[i], odd = a;
        odd.out = whole;
        odd.stride_out = used + 2;
        CHECK_OK(be->ops->attn_fwd(be, &odd));
        CHECK_OK(be->ops->attn_fwd(be, &a));
        double unit = precision_is_half(test_on.p) ? precision_unit(test_on.p) : 1e-6;
        CHECK(apart(&a, &odd, used) <= 2 * unit);
    }
    check_gate(be, &all[1]);
    backend_destroy(be);
    pool_destroy(workers);
    mem_free(whole);
    free_shape(&s, &in, &p);
}

/* Few queries and many keys: on a GPU the keys are cut. */
TEST(attn_over_pages_cuts_keys) {
    static const int32_t dims[] = {64, 128, 256};
    for (int i = 0; i < 3; i++) {
        shape c = {.n_heads = 1 + i % 2,
                   .dim = dims[i],
                   .keys = {900, 70, 600},
                   .queries = {96, 70, 33},
                   .fresh = {96, 70, 40},
                   .targets = {64, 10, 0}};
        if (test_is_brief()) c.keys[0] = 200, c.keys[2] = 150;
        check_shape(&c);
    }
}

/* More than one tile of queries, with keys that the L2 cache does not hold (or so it seems by the
 * bound): blocks of a GPU work in groups. */
TEST(attn_over_pages_in_groups) {
    shape c = {.n_heads = 2,
               .dim = 128,
               .keys = {640, 300, 513},
               .queries = {140, 20, 300},
               .fresh = {140, 21, 301},
               .targets = {130, 3, 257},
               .max_len = 20000};
    if (test_is_brief()) c.keys[0] = 200, c.keys[1] = 80, c.keys[2] = 310;
    check_shape(&c);
    c.dim = 256;
    c.n_heads = 1;
    check_shape(&c);
}

/* Tiles of queries that see ever more keys, in parts which the blocks of a GPU dequeue, as there
 * are more of them than blocks; a sequence of one tile. */
TEST(attn_over_pages_of_many_rows) {
    shape c = {.n_heads = 8,
               .dim = 256,
               .keys = {900, 930, 100},
               .queries = {897, 897, 3},
               .targets = {300, 3, 1}};
    if (test_on.kind != ON_CUDA) /* which cut nothing */
        c = (shape){.n_heads = 1, .dim = 32, .keys = {130, 9, 1}, .queries = {99, 3, 1}};
    for (int b = 0; b < SEQUENCES; b++)
        c.fresh[b] = c.queries[b];
    check_cut(&c);
}

/* Tiles of queries that see about as many keys each, as many as a GPU has blocks, or a few less: it
 * does not cut them and computes the gate in the same kernel. */
TEST(attn_over_pages_gates_whole_tiles) {
    shape c = {.n_heads = 8,
               .dim = 256,
               .keys = {520, 300, 310},
               .queries = {513, 3, 65},
               .targets = {300, 1, 0}};
    if (test_on.kind != ON_CUDA) /* which have one way for all */
        c = (shape){.n_heads = 1, .dim = 32, .keys = {130, 9, 1}, .queries = {99, 3, 1}};
    for (int b = 0; b < SEQUENCES; b++)
        c.fresh[b] = c.queries[b];
    check_cut(&c);
}

/* Short sequences: units have all their keys. */
TEST(attn_over_pages_whole) {
    shape c = {.n_heads = 3,
               .dim = 64,
               .keys = {200, 1, 128},
               .queries = {150, 1, 2},
               .fresh = {72, 1, 64},
               .targets = {50, 1, 0}};
    check_shape(&c);
    c.dim = 256;
    check_shape(&c);
}

/* Few rows of head dimension 256, for which a GPU has kernels with the gate inside, under each
 * mask: keys that are cut into parts, and, with more heads, one block a head. */
TEST(attn_over_pages_of_few_rows) {
    static const sample_mask_kind masks[] = {SAMPLE_CAUSAL, SAMPLE_FULL, SAMPLE_WINDOW,
                                             SAMPLE_TARGETS, SAMPLE_TARGETS};
    for (int i = 0; i < (test_is_brief() ? 1 : 5); i++) {
        bool has_many = i == 4; /* three tiles of queries and 8 heads of three sequences */
        shape c = {.n_heads = has_many ? 8 : 1 + i % 2,
                   .dim = 256,
                   .keys = {has_many ? 150 : 130, has_many ? 70 : 200, 65},
                   .queries = {has_many ? 130 : 100, has_many ? 5 : 33, 1},
                   .fresh = {has_many ? 131 : 101, has_many ? 5 : 33, 1},
                   .targets = {70, 20, 1},
                   .mask = masks[i]};
        if (test_is_brief()) c.keys[1] = 100;
        check_shape(&c);
    }
}

/* Head dimensions and numbers of queries that only the general way takes. */
TEST(attn_over_pages_of_any_dim) {
    shape c = {.n_heads = 2,
               .dim = 36,
               .keys = {200, 64, 129},
               .queries = {150, 0, 2},
               .fresh = {72, 0, 1},
               .targets = {50, 0, 1}};
    check_shape(&c);
}

/* Those that the kernels of every card take: a tile of columns in a page, in new rows, in both. */
TEST(attn_over_pages_of_every_card) {
    static const int32_t dims[] = {40, 96, 200};
    for (int i = 0; i < 3; i++) {
        shape c = {.n_heads = 1 + i % 2,
                   .dim = dims[i],
                   .keys = {150, 200, 129},
                   .queries = {80, 70, 2},
                   .fresh = {72, 70, 1},
                   .targets = {40, 30, 1}};
        check_shape(&c);
    }
}
