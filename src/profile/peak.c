#include "profile/peak.h"

enum { N_WARM = 2, N_TIMED = 9, PIECE = 1 << 16 };
enum { GPU_DIM = 8192, CPU_MIN_DIM = 128, CPU_MAX_DIM = 1024 };

static const double CPU_SECONDS = .01;

typedef struct product {
    backend *be;
    int32_t n, dim; /* (n, dim) times (dim, dim) */
    float *w;       /* (dim, dim) */
    void *x, *y;    /* (n, dim) act */
    int32_t *row;   /* (n) */
} product;

static status alloc(product *p) {
    const ops *f = p->be->ops;
    size_t n_x = (size_t)p->n * (size_t)p->dim, n_w = (size_t)p->dim * (size_t)p->dim;
    TRY(f->alloc(p->be, (void **)&p->w, n_w * sizeof *p->w));
    TRY(f->alloc(p->be, &p->x, n_x * act_bytes(p->be->act)));
    TRY(f->alloc(p->be, &p->y, n_x * act_bytes(p->be->act)));
    return f->alloc(p->be, (void **)&p->row, (size_t)p->n * sizeof *p->row);
}

/* Random numbers in [-1, 1): products of zeros run faster than those of a model.  One piece,
 * repeated, is random enough. */
static status fill_weights(product *p, float *piece) {
    rng_key key = rng_make_key(1, RNG_TEST);
    int64_t n = (int64_t)p->dim * p->dim;
    for (uint32_t i = 0; i < PIECE; i++)
        piece[i] = 2 * rng_uniform(rng_draw64(key, i, 0).word[0]) - 1;
    for (int64_t at = 0; at < n; at += PIECE) {
        size_t bytes = (size_t)(n - at < PIECE ? n - at : PIECE) * sizeof *piece;
        TRY(p->be->ops->copy_in(p->be, p->w + at, piece, bytes));
    }
    return OK;
}

/* The rows of the weights, as activations. */
static status fill_rows(product *p) {
    int32_t *row;
    TRY(MEM_NEW(&row, (size_t)p->n));
    for (int32_t i = 0; i < p->n; i++)
        row[i] = i % p->dim;
    gather_args a = {
        .n = p->n, .dim = p->dim, .table = p->w, .index = p->row, .scale = 1, .y = p->x};
    status st = p->be->ops->copy_in(p->be, p->row, row, (size_t)p->n * sizeof *row);
    if (st == OK) st = p->be->ops->gather(p->be, &a);
    mem_free(row);
    return st;
}

static status fill(product *p) {
    float *piece;
    TRY(MEM_NEW(&piece, PIECE));
    status st = fill_weights(p, piece);
    mem_free(piece);
    return st == OK ? fill_rows(p) : st;
}

/* Seconds of a turn, the median. */
static status time_turns(backend *be, status (*turn)(void *ctx), void *ctx, double *out) {
    double took[N_TIMED];
    for (int i = -N_WARM; i < N_TIMED; i++) {
        uint64_t start = clock_ns();
        TRY(turn(ctx));
        TRY(be->ops->sync(be));
        if (i >= 0) took[i] = (double)(clock_ns() - start) / 1e9;
    }
    *out = median(took, N_TIMED);
    return OK;
}

static status multiply(void *ctx) {
    const product *p = ctx;
    linear_args a = {.n = p->n, .n_in = p->dim, .n_out = p->dim, .x = p->x, .w = p->w, .y = p->y};
    return p->be->ops->linear_fwd(p->be, &a);
}

static status measure_size(backend *be, int32_t n, int32_t dim, double *out) {
    product p = {.be = be, .n = n, .dim = dim};
    status st = alloc(&p);
    if (st == OK) st = fill(&p);
    if (st == OK) st = be->ops->sync(be);
    double seconds = 1;
    if (st == OK) st = time_turns(be, multiply, &p, &seconds);
    *out = 2.0 * n * dim * dim / seconds;
    be->ops->release(be, p.w);
    be->ops->release(be, p.x);
    be->ops->release(be, p.y);
    be->ops->release(be, p.row);
    return st;
}

/* A GPU needs a large matrix product to reach its peak, with more rows than columns: the float32
 * weights are converted to the activation type first, which must take a small share of the time.
 * On a CPU the product grows until it takes long enough to be timed, so that a slow one, or a build
 * with sanitizers, does not work on it for minutes. */
status peak_measure(backend *be, double *out) {
    if (!be->is_host) return measure_size(be, 4 * GPU_DIM, GPU_DIM, out);
    for (int32_t dim = CPU_MIN_DIM;; dim *= 2) {
        TRY(measure_size(be, dim, dim, out));
        double seconds = 2.0 * dim * dim * dim / *out;
        if (dim == CPU_MAX_DIM || seconds > CPU_SECONDS) return OK;
    }
}

enum { GPU_COPY_BYTES = 256 << 20, CPU_COPY_BYTES = 128 << 20, COPY_CHUNK = 1 << 20 };

typedef struct copy_job {
    backend *be;
    void *to, *from;
    size_t bytes;
} copy_job;

static status copy_chunk(void *ctx, int64_t chunk, int worker) {
    const copy_job *j = ctx;
    memcpy((char *)j->to + chunk * COPY_CHUNK, (char *)j->from + chunk * COPY_CHUNK, COPY_CHUNK);
    return OK;
}

/* On a CPU by all threads, as its ops copy. */
static status copy(void *ctx) {
    const copy_job *j = ctx;
    if (!j->be->is_host) return j->be->ops->copy(j->be, j->to, j->from, j->bytes);
    return pool_run(j->be->workers, (int64_t)j->bytes / COPY_CHUNK, copy_chunk, ctx);
}

status peak_measure_bytes(backend *be, double *out) {
    copy_job j = {.be = be, .bytes = !be->is_host ? GPU_COPY_BYTES : CPU_COPY_BYTES};
    double seconds = 1;
    status st = be->ops->alloc(be, &j.from, j.bytes);
    if (st == OK) st = be->ops->alloc(be, &j.to, j.bytes);
    if (st == OK) st = time_turns(be, copy, &j, &seconds);
    *out = 2.0 * (double)j.bytes / seconds;
    be->ops->release(be, j.from);
    be->ops->release(be, j.to);
    return st;
}
