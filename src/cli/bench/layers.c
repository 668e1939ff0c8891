/* hstu bench layers: the layers of a ranking request alone, as in NVIDIA's benchmark of its KV
 * cache (8 layers, width 1024, 4 heads x 256, 256 candidates a user): of each user's history all
 * but the newest tokens have their keys and values in pages.
 *
 * Before a row is timed, the whole history is computed without a cache, which fills the pages, and
 * the rows of new tokens and candidates must come out the same with it, and in 16 bits nearly the
 * same as in float32.  Two sets of inputs on disjoint pages are used in turn. */
#include "cli/bench/load.h"
#include "nn/layer.h"

enum { PAGE = 64, SETS = 2, MAX_LAYERS = 64 };

/* The peaks of an H200 that rows are compared with: products and attention in 16 bits, FLOP/s. */
static const double H200_PRODUCTS = 780e12, H200_ATTENTION = 646e12;

/* The rows of NVIDIA's benchmark: batch, length, new. */
static const int32_t rows[][3] = {{1, 4096, 4096}, {1, 4096, 1024}, {1, 4096, 128},  {1, 1024, 128},
                                  {1, 128, 128},   {8, 4096, 4096}, {8, 4096, 1024}, {8, 4096, 128},
                                  {8, 1024, 128},  {8, 128, 128}};

/* One way through the layers: the whole history, or what is new with the rest in pages. */
enum { OFFSETS, OFFSETS_ALL, SLOT, TABLE, N_TARGETS, ROWS, N_STAGED };
typedef struct walk {
    int32_t n_tokens, len; /* of all users, of one */
    staged_i32 staged[N_STAGED];
    sequences s;
    void *in; /* (T, E) */
} walk;

typedef struct problem {
    backend *be;
    const layers_shape *shape;
    layers_row *row;
    nn_memory memory;
    param_list params;
    layer layers[MAX_LAYERS];
    layer_acts acts;
    void *hidden[2]; /* (T, E) */
    char *pages;     /* [layer][page][K | V][token][head][dim] */
    int32_t n_pages, user_pages;
    walk whole[SETS], cached[SETS];
    bench_pool inputs;
    int32_t *rows[SETS]; /* (batch, length + n_candidates): of inputs */
    float *exact;        /* or NULL: the rows of set 0 in float32, on the host */
} problem;

static int32_t width_of(const problem *p) {
    return p->shape->n_heads * p->shape->head_dim;
}

static bool has_cache(const problem *p) {
    return p->row->n_new < p->row->length;
}

/* The same numbers in every type. */
static status draw_inputs(problem *p) {
    int64_t n = (int64_t)p->row->batch * (p->row->length + p->shape->n_candidates);
    rng_key key = rng_make_key((uint64_t)p->shape->seed, RNG_TEST);
    TRY(bench_pool_init(&p->inputs, &p->memory, key));
    for (int set = 0; set < SETS; set++)
        TRY(bench_pool_draw(&p->inputs, 1 + (uint64_t)set, n, width_of(p), &p->rows[set]));
    return OK;
}

/* Parameters that start as zeros: a product that forgets its bias would not show. */
static status fill_biases(problem *p) {
    rng_key key = rng_make_key((uint64_t)p->shape->seed, RNG_SYNTH);
    for (int i = 0; i < p->params.n; i++) {
        const param *b = &p->params.item[i];
        float *x;
        if (p->params.rule[i].kind != INIT_ZERO) continue;
        TRY(MEM_NEW(&x, (size_t)b->n));
        for (int64_t j = 0; j < b->n; j++)
            x[j] = rng_uniform(rng_draw64(key, (uint64_t)j, 1 + (uint64_t)i).word[0]) - .5f;
        status st = p->be->ops->copy_in(p->be, b->value, x, (size_t)b->n * sizeof *x);
        mem_free(x);
        TRY(st);
    }
    return OK;
}

static status make_layers(problem *p) {
    const layers_shape *s = p->shape;
    layer_config c = {.type = LAYER_HSTU, .hstu = hstu_layer_fused()};
    c.hstu.dim = width_of(p);
    c.hstu.n_heads = s->n_heads;
    c.hstu.dim_qk = c.hstu.dim_v = s->head_dim;
    c.hstu.eps = 1e-5f;
    c.hstu.alpha = 1 / sqrtf((float)s->head_dim);
    c.hstu.scale = 1 / (float)(p->row->length + s->n_candidates);
    c.hstu.is_fp8 = s->is_fp8;
    TRY(param_list_init(&p->params, &p->memory, 8 * s->n_layers));
    for (int i = 0; i < s->n_layers; i++)
        TRY(layer_add_params(&p->layers[i], &c, &p->params, &(layer_place){.index = i}));
    TRY(param_list_start(&p->params, (uint64_t)s->seed));
    TRY(fill_biases(p));
    for (int i = 0; i < s->n_layers; i++)
        TRY(hstu_layer_pack(&p->layers[i].hstu, &p->memory));
    return OK;
}

static int64_t page_size(const problem *p) {
    return 2 * PAGE * (int64_t)width_of(p);
}

/* Page i of a user: pages of all users and sets in no order. */
static int32_t page_of(const problem *p, int set, int32_t user, int32_t i) {
    int64_t n = ((int64_t)set * p->row->batch + user) * p->user_pages + i;
    return (int32_t)(n * 7919 % p->n_pages);
}

static status make_pages(problem *p) {
    p->user_pages = (p->row->length + PAGE - 1) / PAGE;
    p->n_pages = SETS * p->row->batch * p->user_pages;
    while (p->n_pages % 7919 == 0)
        p->n_pages++;
    int64_t n = (int64_t)p->shape->n_layers * p->n_pages * page_size(p);
    return nn_new(&p->memory, (void **)&p->pages, n, act_bytes(p->be->act));
}

/* The last n_new tokens of every history, then the candidates, which are not kept. */
static status make_walk(problem *p, walk *w, int set, int32_t n_new, bool has_pages) {
    const layers_row *r = p->row;
    int32_t n_candidates = p->shape->n_candidates, all = r->length + n_candidates, n = r->batch;
    *w = (walk){.len = n_new + n_candidates, .n_tokens = n * (n_new + n_candidates)};
    const int32_t sizes[N_STAGED] = {n + 1, n + 1, w->n_tokens, n * p->user_pages, n, w->n_tokens};
    for (int i = 0; i < N_STAGED; i++)
        TRY(STAGED_NEW(&p->memory, &w->staged[i], sizes[i]));
    for (int32_t b = 0; b < n; b++) {
        w->staged[OFFSETS].host[b + 1] = (b + 1) * w->len;
        w->staged[OFFSETS_ALL].host[b + 1] = (b + 1) * all;
        w->staged[N_TARGETS].host[b] = n_candidates;
        for (int32_t i = 0; i < p->user_pages; i++)
            w->staged[TABLE].host[b * p->user_pages + i] = page_of(p, set, b, i);
        for (int32_t i = 0; i < w->len; i++) {
            int32_t token = all - w->len + i, at = b * w->len + i;
            w->staged[SLOT].host[at] =
                token < r->length ? page_of(p, set, b, token / PAGE) * PAGE + token % PAGE : -1;
            w->staged[ROWS].host[at] = p->rows[set][(int64_t)b * all + token];
        }
    }
    for (int i = 0; i < N_STAGED; i++)
        TRY(STAGED_SEND(p->be, &w->staged[i], sizes[i]));
    w->s = (sequences){.n_sequences = n,
                       .n_tokens = w->n_tokens,
                       .max_len = w->len,
                       .len_bound = all,
                       .offsets = w->staged[OFFSETS].device,
                       .n_targets = w->staged[N_TARGETS].device};
    if (has_pages)
        w->s.kv = (kv_batch){.table = w->staged[TABLE].device,
                             .offsets = w->staged[OFFSETS_ALL].device,
                             .slot = w->staged[SLOT].device,
                             .page_len = PAGE,
                             .max_pages = p->user_pages,
                             .n_pages = p->n_pages,
                             .max_len = all,
                             .stride = page_size(p)};
    return bench_pool_rows(&p->inputs, w->staged[ROWS].device, w->n_tokens, width_of(p), 1, &w->in);
}

/* All layers; *out: the last hidden state. */
static status go(problem *p, const walk *w, void **out) {
    size_t size = act_bytes(p->be->act);
    const void *x = w->in;
    for (int i = 0; i < p->shape->n_layers; i++) {
        const layer *l = &p->layers[i];
        sequences s = w->s;
        s.is_repeated = s.has_moments = i > 0;
        if (s.kv.table != NULL) {
            s.kv.k = p->pages + (size_t)i * (size_t)(p->n_pages * page_size(p)) * size;
            s.kv.v = (char *)s.kv.k + (size_t)(PAGE * width_of(p)) * size;
        }
        TRY(l->kind->forward(l, &p->acts, p->be, &s, x, p->hidden[i % 2]));
        x = *out = p->hidden[i % 2];
    }
    return OK;
}

/* The error of a batch's last `len` rows of each user against those of `want`, which has `all` of
 * them, by root mean square, relative. */
static double compare(const problem *p, int32_t len, int32_t all, const float *want,
                      const float *got) {
    int64_t e = width_of(p);
    double difference = 0, sum = 0;
    for (int32_t b = 0; b < p->row->batch; b++) {
        const float *x = want + ((int64_t)b * all + all - len) * e, *y = got + b * len * e;
        for (int64_t i = 0; i < len * e; i++) {
            difference += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
            sum += (double)x[i] * x[i];
        }
    }
    return sum > 0 ? sqrt(difference / sum) : NAN;
}

static status read_rows(const problem *p, const void *from, int64_t n_rows, float **out) {
    size_t n = (size_t)n_rows * (size_t)width_of(p);
    TRY(MEM_NEW(out, n));
    return backend_read_act(p->be, *out, from, n);
}

static status judge(const problem *p, const char *with, double error, double limit) {
    if (error <= limit) return OK;
    return fail(ERR_NUMERIC,
                "batch %d, %d tokens, %d of them new: %s results are off by %.2g of their values, "
                "more than %.2g: not timed",
                p->row->batch, p->row->length, p->row->n_new, with, error, limit);
}

/* Of products in 8 bits: 7 % of 8 layers; with the cache there may be too few rows for them. */
#define FP8_LIMIT 0.12

/* Fills the pages of a set and compares. */
static status check_set(problem *p, int set) {
    static const double limits[] = {[ACT_F32] = 1e-5, [ACT_BF16] = 1.5e-2, [ACT_F16] = 2e-3};
    static const double inexact[] = {[ACT_F32] = 0, [ACT_BF16] = 2e-2, [ACT_F16] = 4e-3};
    act_type act = p->be->act;
    bool is_fp8 = p->shape->is_fp8;
    float *whole = NULL, *cached = NULL;
    void *out = NULL;
    int32_t all = p->row->length + p->shape->n_candidates, len = p->cached[0].len;
    bool has_exact = set == 0 && p->exact != NULL;
    status st = go(p, &p->whole[set], &out);
    if (st == OK) st = read_rows(p, out, p->whole[set].n_tokens, &whole);
    if (st == OK) st = go(p, &p->cached[set], &out);
    if (st == OK) st = read_rows(p, out, p->cached[set].n_tokens, &cached);
    if (st == OK) p->row->error = compare(p, len, all, whole, cached);
    if (st == OK && has_exact) p->row->error_exact = compare(p, len, all, p->exact, cached);
    MEM_FREE(whole, cached);
    TRY(st);
    TRY(judge(p, "with the cache", p->row->error, is_fp8 ? FP8_LIMIT : limits[act]));
    if (!has_exact) return OK;
    return judge(p, "against float32", p->row->error_exact, is_fp8 ? FP8_LIMIT : inexact[act]);
}

/* All that a walk needs but its inputs. */
static status make_room(problem *p) {
    const layers_row *r = p->row;
    int64_t n_tokens = (int64_t)r->batch * (r->length + p->shape->n_candidates);
    nn_room room = {.memory = &p->memory, .max_tokens = n_tokens, .max_users = r->batch};
    TRY(draw_inputs(p));
    TRY(make_layers(p));
    TRY(make_pages(p));
    TRY(p->layers[0].kind->alloc(&p->acts, &p->layers[0], NULL, &room));
    for (int i = 0; i < 2; i++)
        TRY(nn_new_act(&p->memory, &p->hidden[i], n_tokens, width_of(p)));
    return OK;
}

static void problem_init(problem *p, backend *be, const layers_shape *shape, layers_row *row) {
    p->be = be;
    p->shape = shape;
    p->row = row;
    nn_memory_init(&p->memory, be);
}

/* *out: all rows of set 0 in float32, without pages, from the same inputs and weights; the caller
 * frees them. */
static status compute_exact(backend *be, const layers_shape *shape, layers_row *row, float **out) {
    problem *p;
    layers_shape exact = *shape;
    act_type act = be->act;
    void *last = NULL;
    *out = NULL;
    if (act == ACT_F32 && !shape->is_fp8) return OK;
    exact.is_fp8 = false;
    TRY(MEM_NEW(&p, 1));
    problem_init(p, be, &exact, row);
    status st = be->ops->set_precision(be, ACT_F32, false);
    if (st == OK) st = make_room(p);
    if (st == OK) st = make_walk(p, &p->whole[0], 0, row->length, false);
    if (st == OK) st = go(p, &p->whole[0], &last);
    if (st == OK) st = read_rows(p, last, p->whole[0].n_tokens, out);
    nn_memory_fini(&p->memory);
    mem_free(p);
    status back = be->ops->set_precision(be, act, false);
    return st != OK ? st : back;
}

static status make_problem(problem *p) {
    const layers_row *r = p->row;
    TRY(make_room(p));
    for (int set = 0; set < SETS; set++) {
        TRY(make_walk(p, &p->whole[set], set, r->length, true));
        TRY(make_walk(p, &p->cached[set], set, r->n_new, has_cache(p)));
        TRY(check_set(p, set));
    }
    return OK;
}

static status timed(void *ctx, int i) {
    problem *p = ctx;
    void *out;
    return go(p, &p->cached[i % SETS], &out);
}

/* Products 2 E (4 E + E) a token and layer; attention 4 E for each pair of query and key. */
static void count_flops(const layers_shape *s, layers_row *r) {
    double e = (double)s->n_heads * s->head_dim, cached = r->length - r->n_new;
    double tokens = r->n_new + s->n_candidates;
    double pairs =
        r->n_new * (cached + (r->n_new + 1) / 2.0) + (double)s->n_candidates * (r->length + 1);
    double all = r->batch * (double)s->n_layers;
    double products = all * tokens * 10 * e * e, attention = all * pairs * 4 * e;
    r->flops = products + attention;
    r->floor = 1e3 * (products / H200_PRODUCTS + attention / H200_ATTENTION);
}

status layers_measure(backend *be, const layers_shape *shape, layers_row *row) {
    problem *p;
    if (row->n_new > row->length)
        return fail(ERR_USAGE, "%d new tokens of a history of %d", row->n_new, row->length);
    TRY(MEM_NEW(&p, 1));
    problem_init(p, be, shape, row);
    count_flops(shape, row);
    row->error_exact = row->bf16 = NAN;
    uint64_t key = (uint64_t)row->batch << 48 ^ (uint64_t)row->length << 24 ^ (uint64_t)row->n_new;
    status st = compute_exact(be, shape, row, &p->exact);
    if (st == OK) st = make_problem(p);
    if (st == OK) st = timing_plain(be, timed, p, &row->plain);
    if (st == OK) st = timing_replay(be, key, timed, p, &row->replay);
    nn_memory_fini(&p->memory);
    MEM_FREE(p->exact, p);
    return st;
}

/* In the order of act_type, then products in 8 bits. */
enum { FP8 = 3 };
static const char *const dtypes[] = {"float32", "bfloat16", "float16", "fp8", NULL};

typedef struct bench_args {
    bench io;
    layers_shape shape;
    layers_row row; /* the one to measure: its batch, length and n_new; 0: any */
} bench_args;

static status print_row(bench_args *a, const layers_row *r) {
    bool is_fp8 = a->shape.is_fp8;
    double best = bench_best(r->plain, r->replay);
    return BENCH_ROW(
        &a->io, COLUMN("batch", "5", "batch", r->batch),
        COLUMN("length", " 6", "length", r->length), COLUMN("new", " 5", "new", r->n_new),
        MEMBER("candidates", a->shape.n_candidates), COLUMN("ms", " 8.4f", "ms", r->plain * 1e3),
        COLUMN("replay", " 8.4f", "replay_ms", r->replay * 1e3),
        COLUMN("TFLOP/s", " 8.1f", "tflops", r->flops / best / 1e12),
        COLUMN("error", " 8.1e", "error", r->error),
        COLUMN("float32", " 8.1e", "error_float32", r->error_exact), MEMBER("floor_ms", r->floor),
        /* how much of the speed that is possible */
        COLUMN("% H200", " 8.0f", "percent_of_floor", 100 * r->floor / (best * 1e3)),
        COLUMN(is_fp8 ? "bf16" : NULL, " 8.4f", "bf16_ms", r->bf16 * 1e3),
        COLUMN(is_fp8 ? "speedup" : NULL, " 8.2f", NULL, r->bf16 / best));
}

static status measure(bench_args *a, layers_row *row) {
    layers_shape plain = a->shape;
    layers_row bf16 = *row;
    plain.is_fp8 = false;
    if (a->shape.is_fp8) TRY(layers_measure(a->io.be, &plain, &bf16));
    TRY(layers_measure(a->io.be, &a->shape, row));
    if (a->shape.is_fp8) row->bf16 = bench_best(bf16.plain, bf16.replay);
    return print_row(a, row);
}

static status run(void *ctx) {
    bench_args *a = ctx;
    layers_row *only = &a->row;
    bool is_known = false;
    a->shape.seed = a->io.seed;
    if (a->shape.is_fp8 && a->io.be->is_host)
        return fail(ERR_UNSUPPORTED, "--dtype fp8: the CPU only imitates these products, which "
                                     "takes longer; use a GPU of SM 9.0");
    bench_title(&a->io, "%d HSTU layers, %d heads x %d, %d candidates a user, on %s in %s",
                a->shape.n_layers, a->shape.n_heads, a->shape.head_dim, a->shape.n_candidates,
                bench_device(a->io.be), a->shape.is_fp8 ? dtypes[FP8] : a->io.dtype);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        layers_row row = {.batch = rows[i][0], .length = rows[i][1], .n_new = rows[i][2]};
        if ((only->batch > 0 && only->batch != row.batch) ||
            (only->length > 0 && only->length != row.length) ||
            (only->n_new > 0 && only->n_new != row.n_new))
            continue;
        is_known = true;
        TRY(measure(a, &row));
    }
    if (is_known) return OK;
    if (only->batch == 0 || only->length == 0 || only->n_new == 0)
        return fail(ERR_USAGE, "no such row; --batch, --length and --new together name any");
    return measure(a, only);
}

status bench_layers(int argc, char **argv) {
    bench_args a = {.io = {.name = "layers", .device = "auto", .act = ACT_BF16, .seed = 1},
                    .shape = {.n_layers = 8, .n_heads = 4, .head_dim = 256, .n_candidates = 256}};
    const arg_option options[] = {
        BENCH_OPTIONS(
            &a.io, dtypes,
            "bfloat16 (default), float16 or float32, in which the CPU always computes; or fp8: "
            "bfloat16 and large products in 8 bits, measured after bfloat16.",
            "Seed of weights and inputs (default 1)."),
        OPT_INT("--batch", &a.row.batch, "B", 1, 4096, "Users per batch."),
        OPT_INT("--length", &a.row.length, "L", 1, 1 << 17, "Tokens per history."),
        OPT_INT("--new", &a.row.n_new, "N", 1, 1 << 17, "How many of them are not cached."),
        OPT_INT("--candidates", &a.shape.n_candidates, "C", 0, 1 << 16,
                "Candidates per user (default 256)."),
        OPT_INT("--layers", &a.shape.n_layers, "N", 1, 64, "Layers (default 8)."),
        OPT_INT("--heads", &a.shape.n_heads, "H", 1, 64, "Heads (default 4)."),
        OPT_INT("--dim", &a.shape.head_dim, "D", 1, 256, "Head dimension (default 256)."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench layers [options]",
        .summary =
            "Measure the layers of ranking requests when most keys and values of the histories are "
            "cached, after comparing the results with those without a cache. Measures the shapes "
            "of NVIDIA's benchmark, or the one that --batch, --length and --new name.",
        .options = options,
        .notes =
            "error: with the cache against without it; float32: against float32. % H200: share of "
            "the speed at which an H200 would compute nothing but products and attention (780 and "
            "646 TFLOP/s in 16 bits). "
            "bf16, speedup: of fp8, the time of bfloat16 in ms and its ratio."};
    ARGS_PARSE(&spec, NULL, NULL);
    a.shape.is_fp8 = a.io.act == FP8;
    if (a.shape.is_fp8) a.io.act = ACT_BF16;
    return bench_run(&a.io, run, &a);
}
