#include "attn_sample.h"

enum { NAIVE_THREADS = 8 };

row_kind rows_are = ROWS_ODD;

static uint32_t n_drawn;

uint64_t sample_seed(void) {
    const char *text = getenv("HSTU_TEST_SEED");
    return text != NULL ? strtoull(text, NULL, 10) : 7;
}

uint32_t sample_draw(void) {
    static uint64_t seed;
    if (n_drawn == 0) seed = sample_seed();
    return rng_draw64(rng_make_key(seed, RNG_TEST), n_drawn++, 0).word[0];
}

static float draw_float(void) {
    return exact(2.0f * rng_uniform(sample_draw()) - 1.0f);
}

static void *zeros(int64_t n, size_t size) {
    void *memory;
    CHECK_OK(mem_alloc(&memory, (size_t)n, size));
    return memory;
}

/* The first POOL are drawn, the others are those again: drawing takes longer than an attention. */
static float *random_floats(int64_t n) {
    enum { POOL = 99991 };
    float *x = zeros(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = i < POOL ? draw_float() : x[i - POOL];
    return x;
}

/* Results start as garbage where the op overwrites, as 0.5 where it adds. */
static float *filled(int64_t n, float value) {
    float *x = zeros(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

static double stored(double x) {
    return ract(x, true);
}

static double factor(double x) {
    return rfactor(x, true);
}

static void naive_sequence(const sample *s, int32_t b, bool is_rounded) {
    static const attn_rounding rounding = {stored, factor};
    attn_naive_sequence(&s->a, b, is_rounded ? &rounding : NULL, &s->want[is_rounded]);
}

/* A chunk is one sequence, exact or rounded; all sequences where they add to the same cells. */
static status naive_chunk(void *ctx, int64_t chunk, int worker) {
    const sample *s = ctx;
    int32_t n = s->a.n_sequences;
    (void)worker;
    if (s->a.bias != BIAS_TIME) {
        naive_sequence(s, (int32_t)(chunk % n), chunk >= n);
        return OK;
    }
    for (int32_t b = 0; b < n; b++)
        naive_sequence(s, b, chunk > 0);
    return OK;
}

void sample_naive(const sample *s) {
    int n_roundings = test_on.p == PRECISION_F32 ? 1 : 2;
    pool *workers;
    CHECK_OK(pool_create(&workers, NAIVE_THREADS));
    CHECK_OK(pool_run(workers, n_roundings * (s->a.bias == BIAS_TIME ? 1 : s->a.n_sequences),
                      naive_chunk, (void *)(uintptr_t)s));
    pool_destroy(workers);
}

/* Memory for the results of s->a, whose shapes are set. */
void sample_results(sample *s) {
    attn_args *a = &s->a;
    int64_t n_q = s->n_q * a->stride_q, n_k = s->n_k * a->stride_k, n_v = s->n_k * a->stride_v;
    int64_t n_out = s->n_q * a->stride_out, n_position = 2 * (int64_t)a->bias_len;
    for (int f = 0; f < 2; f++)
        s->want[f] = (attn_naive_results){.out = doubles(n_out),
                                          .dq = doubles(n_q),
                                          .dk = doubles(n_k),
                                          .dv = doubles(n_v),
                                          .dtable = doubles(s->n_table),
                                          .dposition_w = doubles(n_position),
                                          .dtime_w = doubles(ATTN_TIME_BUCKETS + 1)};
    a->out = s->out = filled(n_out, 9.0f);
    a->dq = s->dq = filled(n_q, 9.0f);
    a->dk = s->dk = filled(n_k, 9.0f);
    a->dv = s->dv = filled(n_v, 9.0f);
    if (a->bias == BIAS_TABLE) a->dtable = s->dtable = filled(s->n_table, 0.5f);
    a->dposition_w = s->dposition = filled(n_position, 0.5f);
    a->dtime_w = s->dtime = filled(ATTN_TIME_BUCKETS + 1, 0.5f);
}

void sample_free(sample *s) {
    float *owned[] = {s->out, s->dq, s->dk, s->dv, s->dtable, s->dposition, s->dtime};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
    for (int f = 0; f < 2; f++) {
        attn_naive_results *e = &s->want[f];
        double *all[] = {e->out, e->dq, e->dk, e->dv, e->dtable, e->dposition_w, e->dtime_w};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            mem_free(all[i]);
    }
}

void sample_run(const attn_args *a, int n_threads) {
    pool *workers = NULL;
    backend *be;
    if (n_threads > 0) CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    CHECK_OK(be->ops->attn_fwd(be, a));
    CHECK_OK(be->ops->attn_bwd(be, a));

    backend_destroy(be);
    pool_destroy(workers);
}

/* With few elements naive code may be right by luck: they say nothing about its error.  With few
 * scores every gradient is a multiple of a few numbers.  One of them is silu'(x), which is close to
 * 0 at some x and then has a large relative error: a GPU's tanh is 2^-11 off. */
enum { ENOUGH_NUMBERS = 1000, ENOUGH_SCORES = 16, FEW_SCORES_UNITS = 16 };

static double units_of(const sample *s) {
    int64_t n = 0;
    for (int32_t b = 0; b < s->a.n_sequences; b++)
        n += (int64_t)(s->a.offsets_q[b + 1] - s->a.offsets_q[b]) *
             (s->a.offsets_k[b + 1] - s->a.offsets_k[b]);
    return n < ENOUGH_SCORES ? FEW_SCORES_UNITS : 1;
}

static void note_error(sample_error *worst, const char *what, double error, double naive_error,
                       int64_t n) {
    if (n < ENOUGH_NUMBERS || naive_error == 0 || error / naive_error <= worst->ratio) return;
    *worst = (sample_error){error / naive_error, what};
}

/* Elements of a result: the largest one, its error and that of naive code, how many there are. */
typedef struct compared {
    double largest, error, naive_error;
    int64_t n;
} compared;

static void compare(compared *c, const float *got, const double *want, const double *plain,
                    int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        c->largest = fmax(c->largest, fabs(want[i]));
        c->error = worse_error(c->error, fabs((double)got[i] - want[i]));
        c->naive_error = fmax(c->naive_error, fabs(ract(plain[i], true) - want[i]));
    }
    c->n += n;
}

/* The error relative to the largest element: 3e-6 in float32; else twice the naive error and
 * `units` roundings. */
static void judge(sample_error *worst, const char *what, const compared *c, double units) {
    double limit = test_on.p == PRECISION_F32
                       ? 3e-6 * c->largest
                       : 2 * c->naive_error + units * precision_unit(test_on.p) * c->largest;
    if (!(c->error <= fmax(limit, 1e-35)))
        FAIL_TEST("%s: error %g of %g, limit %g", what, c->error, c->largest, limit);
    note_error(worst, what, c->error, c->naive_error, c->n);
}

/* Compares rows of n_heads * dim elements, `stride` apart; the gaps between rows must be unchanged.
 */
static void check_rows(sample_error *worst, const char *what, const float *got, const double *want,
                       const double *plain, int64_t n_rows, int64_t stride, int64_t used,
                       double units) {
    compared c = {0};
    for (int64_t at = 0; at < n_rows * stride; at += stride) {
        compare(&c, got + at, want + at, plain + at, used);
        for (int64_t i = at + used; i < at + stride; i++)
            if (got[i] != 9.0f) FAIL_TEST("%s: element %lld was written", what, (long long)i);
    }
    judge(worst, what, &c, units);
}

/* Added to 0.5, which costs half an ulp of the sum. */
static void check_added(const char *what, const float *got, const double *want, const double *plain,
                        int64_t n) {
    double largest = 0.5, error = 0.0, naive_error = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - 0.5 - want[i]);
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
        error = worse_error(error, d);
        naive_error = fmax(naive_error, fabs(plain[i] - want[i]));
    }
    double limit = 1e-5 * largest + (test_on.p == PRECISION_F32 ? 0 : 2 * naive_error);
    if (!(error <= limit)) FAIL_TEST("%s: error %g of %g, limit %g", what, error, largest, limit);
}

sample_error sample_check(const sample *s) {
    sample_error worst = {0, "nothing"};
    const attn_args *a = &s->a;
    const attn_naive_results *e = &s->want[0], *p = &s->want[1];
    int64_t used_qk = (int64_t)a->n_heads * a->dim_qk, used_v = (int64_t)a->n_heads * a->dim_v;
    double units = units_of(s);
    check_rows(&worst, "out", s->out, e->out, p->out, s->n_q, a->stride_out, used_v, units);
    check_rows(&worst, "dq", s->dq, e->dq, p->dq, s->n_q, a->stride_q, used_qk, units);
    check_rows(&worst, "dk", s->dk, e->dk, p->dk, s->n_k, a->stride_k, used_qk, units);
    check_rows(&worst, "dv", s->dv, e->dv, p->dv, s->n_k, a->stride_v, used_v, units);
    if (a->dtable != NULL) check_added("dtable", s->dtable, e->dtable, p->dtable, s->n_table);
    if (a->bias != BIAS_TIME) return worst;
    check_added("dposition_w", s->dposition, e->dposition_w, p->dposition_w, 2 * a->bias_len - 1);
    check_added("dtime_w", s->dtime, e->dtime_w, p->dtime_w, ATTN_TIME_BUCKETS + 1);
    return worst;
}

enum { SOME_ROWS = 4 };

/* Row `which` of those that are checked of n: the last, the first, one next to the edge of a tile,
 * any. */
static int32_t some_row(int which, int32_t n) {
    int32_t any = (int32_t)rng_below(sample_draw(), (uint32_t)n),
            edge = (any + 32) / 64 * 64 - any % 2;
    if (which == 2 && edge >= 0 && edge < n) return edge;
    return which == 0 ? n - 1 : which == 1 ? 0 : any;
}

/* out and dq of a query, or dk and dv of a key, by the naive version and compared. */
static void check_some_row(const sample *s, int32_t b, int32_t head, bool is_key, int32_t row,
                           compared c[2]) {
    const attn_args *a = &s->a;
    static const attn_rounding rounding = {stored, factor};
    int32_t first = (is_key ? a->offsets_k : a->offsets_q)[b] + row;
    int32_t n =
        is_key ? a->offsets_q[b + 1] - a->offsets_q[b] : a->offsets_k[b + 1] - a->offsets_k[b];
    int64_t at_qk = first * (is_key ? a->stride_k : a->stride_q) + (int64_t)head * a->dim_qk;
    int64_t at_v = first * (is_key ? a->stride_v : a->stride_out) + (int64_t)head * a->dim_v;
    double *qk[2], *v[2];
    for (int f = 0; f < 2; f++) {
        attn_naive_results to = {0};
        *(is_key ? &to.dk : &to.dq) = is_key ? s->want[f].dk : s->want[f].dq;
        *(is_key ? &to.dv : &to.out) = is_key ? s->want[f].dv : s->want[f].out;
        qk[f] = (is_key ? to.dk : to.dq) + at_qk;
        v[f] = (is_key ? to.dv : to.out) + at_v;
        memset(qk[f], 0, sizeof(double) * (size_t)a->dim_qk);
        memset(v[f], 0, sizeof(double) * (size_t)a->dim_v);
        for (int32_t i = 0; i < n && (f == 0 || test_on.p != PRECISION_F32); i++)
            attn_naive_pair(a, b, head, is_key ? i : row, is_key ? row : i,
                            f == 1 ? &rounding : NULL, &to);
    }
    compare(&c[0], (is_key ? s->dk : s->dq) + at_qk, qk[0], qk[1], a->dim_qk);
    compare(&c[1], (is_key ? s->dv : s->out) + at_v, v[0], v[1], a->dim_v);
}

sample_error sample_check_some(const sample *s, int n) {
    static const char *const names[2][2] = {{"dq", "out"}, {"dk", "dv"}};
    const attn_args *a = &s->a;
    sample_error worst = {0, "nothing"};
    compared c[2][2] = {{{0}}};
    for (int i = 0; i < n && s->n_q > 0; i++) {
        int32_t b = (int32_t)rng_below(sample_draw(), (uint32_t)a->n_sequences);
        int32_t head = (int32_t)rng_below(sample_draw(), (uint32_t)a->n_heads);
        for (int which = 0; which < 2 * SOME_ROWS; which++) {
            const int32_t *offsets = which % 2 == 1 ? a->offsets_k : a->offsets_q;
            int32_t len = offsets[b + 1] - offsets[b];
            if (len > 0)
                check_some_row(s, b, head, which % 2, some_row(which / 2, len), c[which % 2]);
        }
    }
    for (int i = 0; i < 4; i++)
        judge(&worst, names[i / 2][i % 2], &c[i / 2][i % 2], units_of(s));
    return worst;
}

/* Spans that leave some tiles empty and some full: the first keys, and two spans near the row. */
static void draw_sparse(const attn_args *a, inputs *in) {
    for (int32_t b = 0; b < a->n_sequences; b++) {
        for (int32_t i = in->offsets_q[b]; i < in->offsets_q[b + 1]; i++) {
            int32_t row = i - in->offsets_q[b], end = row - 40;
            in->func[i] = row < 64 ? 0 : 70;
            for (int32_t f = 1; f < a->n_func; f++) {
                end += (int32_t)rng_below(sample_draw(), 15);
                in->func[f * a->func_stride + i] = end;
            }
        }
    }
}

void sample_mask(attn_args *a, inputs *in, sample_mask_kind mask) {
    a->window_left = mask == SAMPLE_WINDOW ? 5 : -1;
    a->window_right = mask == SAMPLE_FULL ? -1 : mask == SAMPLE_WINDOW ? 3 : 0;
    a->target_group = 3;
    if (mask == SAMPLE_TARGETS) {
        a->n_contexts = in->n_contexts;
        a->n_targets = in->n_targets;
        for (int32_t b = 0; b < a->n_sequences; b++) {
            int32_t len = in->offsets_k[b + 1] - in->offsets_k[b];
            in->n_targets[b] = (int32_t)rng_below(sample_draw(), (uint32_t)len / 2 + 1);
            in->n_contexts[b] =
                (int32_t)rng_below(sample_draw(), (uint32_t)(len - in->n_targets[b]) + 1);
        }
    }
    if (mask != SAMPLE_FUNC) return;
    int64_t n_q = in->offsets_q[a->n_sequences];
    a->n_func = 5;
    a->func_stride = n_q + 2;
    a->func = in->func = zeros(a->n_func * a->func_stride, sizeof *in->func);
    for (int64_t i = 0; i < a->n_func * a->func_stride; i++)
        in->func[i] = (int32_t)rng_below(sample_draw(), (uint32_t)a->max_len_k + 10) - 5;
    if (sample_draw() % 2 == 0) draw_sparse(a, in);
}

void sample_bias(sample *s, inputs *in, attn_bias bias, int32_t table_heads, int64_t span) {
    attn_args *a = &s->a;
    a->bias = bias;
    a->bias_len = a->max_len_k + 3;
    if (bias == BIAS_TABLE) {
        a->table_heads = table_heads;
        a->table_len = a->max_len_k + 1;
        s->n_table = (int64_t)a->n_sequences * table_heads * a->table_len * a->table_len;
        a->table = in->table = random_floats(s->n_table);
    }
    a->position_w = in->position = random_floats(2 * a->bias_len);
    a->time_w = in->time_w = random_floats(ATTN_TIME_BUCKETS + 1);
    a->query_time = in->query_time = zeros(s->n_q, sizeof(int64_t));
    a->key_time = in->key_time = zeros(s->n_k, sizeof(int64_t));
    for (int64_t i = 0; i < s->n_q; i++)
        in->query_time[i] = (int64_t)(rng_uniform(sample_draw()) * (float)span);
    for (int64_t i = 0; i < s->n_k; i++)
        in->key_time[i] = (int64_t)(rng_uniform(sample_draw()) * (float)span);
}

void sample_make(sample *s, inputs *in, const int32_t *lengths, int n_sequences, int32_t queries,
                 int32_t n_heads, int32_t dim_qk, int32_t dim_v) {
    attn_args *a = &s->a;
    *s = (sample){0};
    *in = (inputs){0};
    a->n_sequences = n_sequences;
    for (int b = 0; b < n_sequences; b++) {
        int32_t len = lengths[b], len_q = len, most = len;
        if (queries > QUERIES_ANY && queries < len) most = queries;
        if (queries != QUERIES_ALL) len_q = (int32_t)rng_below(sample_draw(), (uint32_t)most + 1);
        in->offsets_k[b + 1] = in->offsets_k[b] + len;
        in->offsets_q[b + 1] = in->offsets_q[b] + len_q;
        a->max_len_k = len > a->max_len_k ? len : a->max_len_k;
    }
    a->max_len_k += 2;
    a->max_len_q = a->max_len_k;
    a->offsets_q = in->offsets_q;
    a->offsets_k = in->offsets_k;
    s->n_q = in->offsets_q[n_sequences];
    s->n_k = in->offsets_k[n_sequences];
    a->n_heads = n_heads;
    a->dim_qk = dim_qk;
    a->dim_v = dim_v;
    a->stride_q = n_heads * dim_qk + 1;
    a->stride_k = n_heads * dim_qk + 2;
    a->stride_v = n_heads * dim_v + 3;
    a->stride_out = n_heads * dim_v + 4;
    if (rows_are != ROWS_ODD) {
        a->stride_q = a->stride_k = n_heads * dim_qk + 8;
        a->stride_v = a->stride_out = n_heads * dim_v + 16;
    }
    if (rows_are == ROWS_KNOWN) {
        a->n_rows_q = s->n_q;
        a->n_rows_k = s->n_k;
    }
    a->alpha = 0.7f;
    a->scale = 1.0f / 50.0f;
    a->q = in->q = random_floats(s->n_q * a->stride_q);
    a->k = in->k = random_floats(s->n_k * a->stride_k);
    a->v = in->v = random_floats(s->n_k * a->stride_v);
    a->dout = in->dout = random_floats(s->n_q * a->stride_out);
}

void sample_free_inputs(inputs *in) {
    void *owned[] = {in->q,        in->k,      in->v,    in->dout,       in->table,
                     in->position, in->time_w, in->func, in->query_time, in->key_time};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
}
