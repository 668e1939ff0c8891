/* Dense layers (ops.h).
 *
 * Forward, and backward to x: W is packed once; a chunk owns rows and passes over them in strips
 * that stay in the L2 cache: bias and residual are written first, the product is added to them,
 * then the activation is applied.  Backward to W, a sum over all rows: for a small W there is one
 * product for each group of rows, and the groups are added in order; a large W, of which the groups
 * would not fit the caches, is cut into tiles, each one product over all rows.  Bound by FLOPs;
 * narrow layers (n_in about 50) spend half of their time on bytes. */
#include "base/half.h"
#include "cpu/cpu.h"
#include "cpu/product.h"

#include "cpu/vec.h"

/* Phi, the normal distribution function: gelu(z) = z Phi(z).  Without branches, so that its loops
 * are vectors.  With t = |z| / sqrt(2), near zero erf(t) = t + t P(t^2); from t = 0.93 on it is
 * 1 - e^Q(t), of which a negative z needs e^Q / 2 alone: nothing cancels.  (The polynomials are
 * Juffa's, for erff within one ulp.) */
static inline float normal(float z) {
    float t = fabsf(z) * 0.70710678f, s = t * t;
    float q = (-1.72853470e-5f * t + 3.83197126e-4f) * s + (-3.88396438e-3f * t + 2.42546219e-2f);
    q = ((q * t - 1.06777877e-1f) * t - 6.34846687e-1f) * t - 1.28717512e-1f;
    float tail = 0.5f * vec_exp(q * t - t);
    float p = ((-5.96761703e-4f * s + 4.99119423e-3f) * s - 2.67681349e-2f) * s + 1.12819925e-1f;
    p = (p * s - 3.76125336e-1f) * s + 1.28379166e-1f;
    float half = 0.5f * (p * t + t), far = z > 0 ? 1.0f - tail : tail;
    return t > 0.927734375f ? far : z > 0 ? 0.5f + half : 0.5f - half;
}

/* Functions of z and their slopes, by vectors: of a loop over floats compilers make one that
 * multiplies by the sigmoid of a clamped argument in every lane before it selects, and that product
 * is denormal, 150 cycles a vector. */
typedef vec vec_function(vec z);

/* y = f(z) z.  The last elements are a vector too: every element has the same bits at any place. */
static inline __attribute__((always_inline)) void multiply(vec_function *f, int64_t n,
                                                           const float *z, float *y) {
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec x = vec_load(z + i);
        vec_store(y + i, x * f(x));
    }
    if (i == n) return;
    vec x = vec_load_part(z + i, n - i), product = x * f(x);
    memcpy(y + i, &product, (size_t)(n - i) * sizeof *y);
}

/* dy = dy slope(z) */
static inline __attribute__((always_inline)) void descend(vec_function *slope, int64_t n,
                                                          const float *z, float *dy) {
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(dy + i, vec_load(dy + i) * slope(vec_load(z + i)));
    if (i == n) return;
    vec product = vec_load_part(dy + i, n - i) * slope(vec_load_part(z + i, n - i));
    memcpy(dy + i, &product, (size_t)(n - i) * sizeof *dy);
}

static inline vec silu_slope(vec z) {
    vec s = vecs_sigmoid(z);
    return s * (1.0f + z * (1.0f - s));
}

/* gelu by tanh: z / 2 (1 + tanh(u)) = z sigmoid(2 u). */
static inline vec gelu_tanh_factor(vec z) {
    return vecs_sigmoid(z * (1.59576912f + 0.0713548162726f * z * z));
}

static inline vec gelu_tanh_slope(vec z) {
    vec s = gelu_tanh_factor(z);
    return s + z * s * (1.0f - s) * (1.59576912f + 0.2140644488f * z * z);
}

static void relu_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] > 0 ? z[i] : 0;
}

static void relu_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++)
        dy[i] = z[i] > 0 ? dy[i] : 0;
}

static void gelu_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = z[i] * normal(z[i]);
}

/* gelu' = Phi(z) + z phi(z), phi being the normal density. */
static void gelu_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++)
        dy[i] *= normal(z[i]) + z[i] * 0.39894228f * vec_exp(-0.5f * z[i] * z[i]);
}

/* Once a sequence, so the library's is fast enough. */
static void tanh_forward(int64_t n, const float *z, float *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] = tanhf(z[i]);
}

static void tanh_backward(int64_t n, const float *restrict z, float *restrict dy) {
    for (int64_t i = 0; i < n; i++) {
        float t = tanhf(z[i]);
        dy[i] *= (1.0f - t) * (1.0f + t);
    }
}

/* y = f(z); y may be z. */
static void activate(epilogue f, int64_t n, const float *z, float *y) {
    if (f == EPILOGUE_SILU) multiply(vecs_sigmoid, n, z, y);
    if (f == EPILOGUE_RELU) relu_forward(n, z, y);
    if (f == EPILOGUE_GELU_TANH) multiply(gelu_tanh_factor, n, z, y);
    if (f == EPILOGUE_TANH) tanh_forward(n, z, y);
    if (f == EPILOGUE_GELU) gelu_forward(n, z, y);
}

/* dy *= f'(z). */
static void activate_grad(epilogue f, int64_t n, const float *z, float *dy) {
    if (f == EPILOGUE_SILU) descend(silu_slope, n, z, dy);
    if (f == EPILOGUE_RELU) relu_backward(n, z, dy);
    if (f == EPILOGUE_GELU_TANH) descend(gelu_tanh_slope, n, z, dy);
    if (f == EPILOGUE_TANH) tanh_backward(n, z, dy);
    if (f == EPILOGUE_GELU) gelu_backward(n, z, dy);
}

/* Enough chunks for every thread of a large machine, and enough rows in each that the packed W is
 * read from the cache. */
enum { MIN_CHUNK = 128, MAX_CHUNK = 1024, MIN_CHUNKS = 64, MIN_COLUMN_CHUNKS = 16 };

/* Rows of a strip: a multiple of the height of every register tile, some 64k elements of output. */
enum { STRIP_UNIT = 24, MIN_STRIP = 96, MAX_STRIP = 240, STRIP_NUMBERS = 1 << 16 };

/* dW: up to this many elements there is a partial sum for each group of rows; above, W is cut into
 * tiles. */
enum { MAX_SPLIT_SIZE = 1 << 17, MAX_GROUPS = 16, MIN_GROUP_ROWS = PRODUCT_DEPTH };
enum { MIN_TILE_ROWS = 96, MAX_TILE_ROWS = 1056, TILES_PER_THREAD = 4, ADD_CHUNK = 8192 };

typedef struct linear_job {
    const linear_args *a;
    backend *be;
    int64_t n_rows;       /* of a chunk */
    int64_t n_columns;    /* of a block; forward only, like the next two */
    int64_t n_blocks;     /* of a chunk */
    int64_t n_across;     /* chunks that share the same rows */
    product_panels w;     /* W, or its transpose for the way back to x */
    float *bias_partials; /* (chunks, n_out) or NULL */
    int64_t n_groups, group_rows;
    float *partials;                 /* (n_groups, n_in * n_out) */
    int64_t tile_rows, tile_columns; /* of dW */
} linear_job;

static int64_t rows_per_chunk(int64_t n) {
    int64_t rows = cpu_n_chunks(cpu_n_chunks(n, MIN_CHUNKS), 64) * 64;
    return rows < MIN_CHUNK ? MIN_CHUNK : rows > MAX_CHUNK ? MAX_CHUNK : rows;
}

static int64_t rows_per_strip(int32_t n_out) {
    int64_t rows = STRIP_NUMBERS / n_out / STRIP_UNIT * STRIP_UNIT;
    return rows < MIN_STRIP ? MIN_STRIP : rows > MAX_STRIP ? MAX_STRIP : rows;
}

/* W as a matrix (n_in, n_out). */
static matrix weight_of(const linear_args *a) {
    return a->is_transposed ? matrix_transposed(matrix_rows(a->w, a->n_in))
                            : matrix_rows(a->w, a->n_out);
}

/* A rectangle of z: rows and columns. */
typedef struct part {
    cpu_range rows, columns;
} part;

/* Writes bias + residual to a part of z; false if there is neither, and z is unchanged. */
static bool lay_down(const linear_args *a, part p, float *z) {
    size_t bytes = (size_t)(p.columns.end - p.columns.first) * sizeof *z;
    if (a->bias == NULL && a->residual == NULL) return false;
    for (int64_t i = p.rows.first; i < p.rows.end; i++) {
        int64_t at = i * a->n_out + p.columns.first;
        if (a->residual == NULL) {
            memcpy(z + at, a->bias + p.columns.first, bytes);
        } else {
            memmove(z + at, (const float *)a->residual + at, bytes); /* y may be the residual */
            for (int64_t c = p.columns.first; a->bias != NULL && c < p.columns.end; c++)
                z[i * a->n_out + c] += a->bias[c];
        }
    }
    return true;
}

/* Where the product goes: y, if z is not kept. */
static float *z_of(const linear_args *a) {
    return a->f == EPILOGUE_NONE || a->z == NULL ? a->y : a->z;
}

static void activate_part(const linear_args *a, part p) {
    int64_t n = p.columns.end - p.columns.first;
    const float *z = z_of(a);
    float *y = a->y;
    if (n == a->n_out) {
        int64_t at = p.rows.first * n;
        activate(a->f, (p.rows.end - p.rows.first) * n, z + at, y + at);
        return;
    }
    for (int64_t i = p.rows.first; i < p.rows.end; i++) {
        int64_t at = i * a->n_out + p.columns.first;
        activate(a->f, n, z + at, y + at);
    }
}

static void forward_part(const linear_job *job, part p) {
    const linear_args *a = job->a;
    float *z = z_of(a);
    const float *x = (const float *)a->x + p.rows.first * a->n_in;
    bool adds = lay_down(a, p, z);
    product_run(matrix_rows(x, a->n_in), p.rows.end - p.rows.first, &job->w, p.columns.first,
                p.columns.end, adds, z + p.rows.first * a->n_out, a->n_out);
    if (a->f != EPILOGUE_NONE) activate_part(a, p);
}

/* Columns are cut into blocks of about equal width.  With few chunks of rows, a chunk has some of
 * the blocks only, so that many threads share one short sequence. */
static void plan_columns(linear_job *job) {
    int64_t n_out = job->a->n_out, n_row_chunks = cpu_n_chunks(job->a->n, job->n_rows);
    int64_t n_wanted = cpu_n_chunks(n_out, PRODUCT_COLUMNS);
    job->n_columns = product_even_columns(job->w.isa, n_out, n_wanted);
    int64_t n_blocks = cpu_n_chunks(n_out, job->n_columns);
    int64_t n_across = cpu_n_chunks(MIN_COLUMN_CHUNKS, n_row_chunks);
    if (n_across > n_blocks) n_across = n_blocks;
    job->n_blocks = cpu_n_chunks(n_blocks, n_across);
    job->n_across = cpu_n_chunks(n_blocks, job->n_blocks);
}

static status forward_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    const linear_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk / job->n_across, job->n_rows, a->n);
    cpu_range blocks =
        cpu_chunk(chunk % job->n_across, job->n_blocks, cpu_n_chunks(a->n_out, job->n_columns));
    int64_t n_strip = rows_per_strip((int32_t)job->n_columns);
    for (int64_t i = rows.first; i < rows.end; i += n_strip)
        for (int64_t block = blocks.first; block < blocks.end; block++) {
            part p = {{i, i + n_strip < rows.end ? i + n_strip : rows.end},
                      cpu_chunk(block, job->n_columns, a->n_out)};
            forward_part(job, p);
        }
    return OK;
}

size_t cpu_linear_packed_bytes(backend *be, int32_t n_in, int32_t n_out) {
    return (size_t)product_packed_size(product_choose(), n_in, n_out) * sizeof(float);
}

/* A row as 8-bit floats have it. */
static void round_row(int64_t n, const float *x, float *to) {
    float largest = LINEAR_FP8_LEAST;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    float down = FP8_MAX / largest, up = largest / FP8_MAX;
    for (int64_t i = 0; i < n; i++)
        to[i] = fp8_to_float(fp8_from_float(x[i] * down)) * up;
}

/* Of layers in 8 bits: bias W (that of the norm) + bias, (n_out), after the panels. */
static float *shift_of(backend *be, const linear_packed_args *a) {
    return (float *)((char *)a->packed +
                     cpu_linear_packed_bytes(be, a->layer.n_in, a->layer.n_out));
}

/* Columns of W with the norm's weight in it, one after the other, rounded; and the shift. */
static void round_columns(const linear_packed_args *packed, float *w, float *shift) {
    const linear_args *a = &packed->layer;
    const float *weight = packed->norm != NULL ? packed->norm->weight : NULL;
    const float *bias = packed->norm != NULL ? packed->norm->bias : NULL;
    for (int64_t n = 0; n < a->n_out; n++) {
        float *column = w + n * a->n_in;
        shift[n] = a->bias != NULL ? a->bias[n] : 0;
        for (int64_t k = 0; k < a->n_in; k++) {
            float x = a->w[a->is_transposed ? n * a->n_in + k : k * a->n_out + n];
            if (bias != NULL) shift[n] += bias[k] * x;
            column[k] = weight != NULL ? x * weight[k] : x;
        }
        round_row(a->n_in, column, column);
    }
}

/* The bias is read where it is, except in 8 bits. */
status cpu_linear_pack(backend *be, const linear_packed_args *a) {
    int64_t n_in = a->layer.n_in, n_out = a->layer.n_out;
    product_panels to = {product_choose(), n_in, n_out, a->packed};
    float *w;
    if (!a->is_fp8) return product_pack(&to, weight_of(&a->layer), be->workers);
    TRY(MEM_NEW_RAW(&w, (size_t)(n_in * n_out)));
    round_columns(a, w, shift_of(be, a));
    status st = product_pack(&to, matrix_transposed(matrix_rows(w, n_in)), be->workers);
    mem_free(w);
    return st;
}

/* Of linear_args: x to y. */
static status round_chunk(const cpu_rows *w) {
    const linear_args *a = w->ctx;
    for (int64_t i = w->first * a->n_in; i < w->end * a->n_in; i += a->n_in)
        round_row(a->n_in, (const float *)a->x + i, (float *)a->y + i);
    return OK;
}

/* *a = the layer on rounded rows, after the norm without its weight and bias. */
static status round_rows(backend *be, const linear_packed_args *packed, linear_args *a) {
    void *rows;
    if (packed->norm != NULL) {
        norm_args norm = *packed->norm;
        norm.weight = norm.bias = NULL;
        TRY(cpu_norm_fwd(be, &norm));
    }
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)(a->n * a->n_in) * sizeof(float), &rows));
    linear_args to = {.n_in = a->n_in, .x = a->x, .y = rows};
    TRY(cpu_each_row(be, a->n, a->n_in, round_chunk, &to));
    a->x = rows;
    a->bias = shift_of(be, packed);
    return OK;
}

status cpu_linear_packed(backend *be, const linear_packed_args *packed) {
    linear_args own = packed->layer, *a = &own;
    linear_job job = {.a = a, .be = be, .n_rows = rows_per_chunk(a->n)};
    if (packed->moments != NULL) packed->moments->width = 0;
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    if (packed->is_fp8)
        TRY(round_rows(be, packed, a));
    else if (packed->norm != NULL)
        TRY(cpu_norm_fwd(be, packed->norm));
    job.w = (product_panels){product_choose(), a->n_in, a->n_out, packed->packed};
    plan_columns(&job);
    TRY(pool_run(be->workers, cpu_n_chunks(a->n, job.n_rows) * job.n_across, forward_chunk, &job));
    return packed->put != NULL ? cpu_kv_put(be, packed->put) : OK;
}

status cpu_linear_fwd(backend *be, const linear_args *a) {
    linear_packed_args packed = {.layer = *a};
    size_t bytes = cpu_linear_packed_bytes(be, a->n_in, a->n_out);
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    TRY(cpu_scratch(be, CPU_SHARED, bytes, &packed.packed));
    TRY(cpu_linear_pack(be, &packed));
    return cpu_linear_packed(be, &packed);
}

/* For the rows of a chunk: replaces dy by dz, and computes the chunk's part of dbias, and dx. */
static void backward_strip(const linear_job *job, cpu_range rows, float *dbias) {
    const linear_args *a = job->a;
    float *dz = (float *)a->dy + rows.first * a->n_out;
    int64_t n = rows.end - rows.first;
    if (a->f != EPILOGUE_NONE)
        activate_grad(a->f, n * a->n_out, (const float *)a->z + rows.first * a->n_out, dz);
    if (dbias != NULL) cpu_add_partials(dbias, a->n_out, dz, n, a->n_out);
    if (a->dx != NULL)
        product_run(matrix_rows(dz, a->n_out), n, &job->w, 0, a->n_in, a->adds_dx,
                    (float *)a->dx + rows.first * a->n_in, a->n_in);
}

static status backward_chunk(const cpu_rows *w) {
    const linear_job *job = w->ctx;
    const linear_args *a = job->a;
    int64_t n_strip = rows_per_strip(a->n_out);
    float *dbias = job->bias_partials != NULL ? job->bias_partials + w->chunk * a->n_out : NULL;
    if (dbias != NULL) memset(dbias, 0, (size_t)a->n_out * sizeof *dbias);
    for (int64_t i = w->first; i < w->end; i += n_strip) {
        cpu_range strip = {i, i + n_strip < w->end ? i + n_strip : w->end};
        backward_strip(job, strip, dbias);
    }
    return OK;
}

/* Part p (rows, columns) of dW, summed over rows `over` of x and dz.  dW has the layout of W: it is
 * x^T dz or, where W is transposed, dz^T x; both are left^T right here. */
static status product_over_rows(const linear_job *job, cpu_range over, part p, bool adds, float *to,
                                int worker) {
    const linear_args *a = job->a;
    int32_t n_left = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_right = a->is_transposed ? a->n_in : a->n_out;
    matrix left = matrix_rows(a->is_transposed ? a->dy : a->x, n_left);
    matrix right = matrix_rows(a->is_transposed ? a->x : a->dy, n_right);
    void *room;
    TRY(cpu_scratch(job->be, worker, PRODUCT_ROOM * sizeof(float), &room));
    product_run_once(job->w.isa, matrix_transposed(matrix_at(left, over.first, p.rows.first)),
                     matrix_at(right, over.first, p.columns.first), p.rows.end - p.rows.first,
                     over.end - over.first, p.columns.end - p.columns.first, adds,
                     to + p.rows.first * n_right + p.columns.first, n_right, room);
    return OK;
}

static status group_chunk(const cpu_rows *w) {
    const linear_job *job = w->ctx;
    const linear_args *a = job->a;
    part whole = {{0, a->is_transposed ? a->n_out : a->n_in},
                  {0, a->is_transposed ? a->n_in : a->n_out}};
    return product_over_rows(job, (cpu_range){w->first, w->end}, whole, false,
                             job->partials + w->chunk * a->n_in * a->n_out, w->worker);
}

static status add_groups_chunk(const cpu_rows *w) {
    const linear_job *job = w->ctx;
    int64_t size = (int64_t)job->a->n_in * job->a->n_out;
    cpu_add_partials(job->a->dw + w->first, w->end - w->first, job->partials + w->first,
                     job->n_groups, size);
    return OK;
}

/* The tiles of dW, row by row; each adds to the old value. */
static status tile_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    const linear_args *a = job->a;
    int32_t n_rows = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_columns = a->is_transposed ? a->n_in : a->n_out;
    int64_t across = cpu_n_chunks(n_columns, job->tile_columns);
    part p = {cpu_chunk(chunk / across, job->tile_rows, n_rows),
              cpu_chunk(chunk % across, job->tile_columns, n_columns)};
    return product_over_rows(job, (cpu_range){0, a->n}, p, true, a->dw, worker);
}

/* Tiles of about equal size.  Each packs its columns of the right matrix for itself, so high tiles
 * are less work; they are lower where threads would otherwise have too few.  The number of threads
 * may decide this, as an element has the same bits in any tile. */
static int64_t plan_tiles(linear_job *job, int64_t n_rows, int64_t n_columns) {
    int64_t across = cpu_n_chunks(n_columns, PRODUCT_COLUMNS), rows = MAX_TILE_ROWS;
    pool *workers = job->be->workers;
    int64_t n_threads = workers == NULL ? 1 : pool_n_threads(workers);
    int64_t n_wanted = n_threads == 1 ? 1 : cpu_n_chunks(TILES_PER_THREAD * n_threads, across);
    job->tile_columns = product_even_columns(job->w.isa, n_columns, across);
    while (cpu_n_chunks(n_rows, rows) < n_wanted && rows > MIN_TILE_ROWS)
        rows -= MIN_TILE_ROWS;
    job->tile_rows = rows;
    return cpu_n_chunks(n_rows, rows) * cpu_n_chunks(n_columns, job->tile_columns);
}

static status backward_to_w(backend *be, linear_job *job) {
    const linear_args *a = job->a;
    int32_t n_rows = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_columns = a->is_transposed ? a->n_in : a->n_out;
    if (job->n_groups == 0)
        return pool_run(be->workers, plan_tiles(job, n_rows, n_columns), tile_chunk, job);
    TRY(cpu_each(be, a->n, job->group_rows, group_chunk, job));
    return cpu_each(be, (int64_t)a->n_in * a->n_out, ADD_CHUNK, add_groups_chunk, job);
}

/* The number of groups of rows for a small W; 0 for a large W. */
static void plan_groups(linear_job *job) {
    const linear_args *a = job->a;
    int64_t size = (int64_t)a->n_in * a->n_out;
    int64_t n = cpu_n_chunks(a->n, MIN_GROUP_ROWS);
    if (size > MAX_SPLIT_SIZE) return;
    if (n > 2) n = (n + 3) / 4 * 4; /* few threads get equal shares */
    if (n > MAX_GROUPS) n = MAX_GROUPS;
    job->group_rows = cpu_n_chunks(a->n, n);
    job->n_groups = cpu_n_chunks(a->n, job->group_rows);
}

status cpu_linear_bwd(backend *be, const linear_args *a) {
    linear_job job = {.a = a, .be = be, .n_rows = rows_per_chunk(a->n)};
    int64_t n_chunks = cpu_n_chunks(a->n, job.n_rows);
    void *memory;
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    plan_groups(&job);
    job.w = (product_panels){.isa = product_choose(), .k = a->n_out, .n = a->n_in};
    int64_t n_packed = a->dx != NULL ? product_packed_size(job.w.isa, job.w.k, job.w.n) : 0;
    int64_t n_bias = a->dbias != NULL ? n_chunks * a->n_out : 0;
    int64_t n_partials = job.n_groups * a->n_in * a->n_out;
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)(n_packed + n_partials + n_bias) * sizeof(float),
                    &memory));
    job.w.data = memory;
    job.partials = job.w.data + n_packed;
    if (a->dbias != NULL) job.bias_partials = job.partials + n_partials;
    if (a->dx != NULL) TRY(product_pack(&job.w, matrix_transposed(weight_of(a)), be->workers));
    if (a->dx != NULL || a->dbias != NULL || a->f != EPILOGUE_NONE)
        TRY(cpu_each(be, a->n, job.n_rows, backward_chunk, &job));
    if (a->dbias != NULL)
        cpu_add_partials(a->dbias, a->n_out, job.bias_partials, n_chunks, a->n_out);
    return backward_to_w(be, &job);
}

typedef struct activate_job {
    epilogue f;
    const float *z;
    float *y;
} activate_job;

static status activate_chunk(const cpu_rows *w) {
    const activate_job *job = w->ctx;
    activate(job->f, w->end - w->first, job->z + w->first, job->y + w->first);
    return OK;
}

status cpu_activate(backend *be, epilogue f, int64_t n, const void *z, void *y) {
    activate_job job = {f, z, y};
    return cpu_each(be, n, ADD_CHUNK, activate_chunk, &job);
}
