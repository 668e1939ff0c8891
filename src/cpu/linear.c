/* Dense layers (ops.h): products by OpenBLAS on one thread a call, threads by the pool.
 *
 * Forward, and backward to x: a chunk owns rows and does all of them while they are in cache: bias
 * and residual are laid down first, the product is added to them, the activation follows.  Backward
 * to W, of which all rows are part: a small W is one product a group of rows, the groups added in
 * order; a large one is cut into tiles, each one product over all rows.  The limit is flops, but
 * for narrow layers (n_in about 50), whose time is half bytes. */
#include "cpu/linear_f.h"

#include <cblas.h>
#include <string.h>

#include "cpu/cpu.h"

/* A chunk must be long enough to pay for OpenBLAS's packing of W (about 3 % of the product at 1024
 * rows of a large layer), and there must be chunks for every thread of a large machine. */
enum { MIN_CHUNK = 128, MAX_CHUNK = 1024, MIN_CHUNKS = 64 };

/* dW: up to this many numbers a partial sum for each group of rows, beyond it tiles of W. */
enum { MAX_SPLIT_SIZE = 1 << 20, MAX_PARTIALS_SIZE = 1 << 22, MAX_GROUPS = 16 };
enum { MIN_GROUP_ROWS = 512, TILE_ROWS = 256, TILE_COLUMNS = 512, ADD_CHUNK = 8192 };

typedef struct linear_job {
    const linear_args *a;
    int64_t n_rows;       /* of a chunk */
    float *bias_partials; /* (chunks, n_out) or NULL */
    int64_t n_groups, group_rows;
    float *partials; /* (n_groups, n_in * n_out) */
} linear_job;

static int64_t rows_per_chunk(int64_t n) {
    int64_t rows = cpu_n_chunks(cpu_n_chunks(n, MIN_CHUNKS), 64) * 64;
    return rows < MIN_CHUNK ? MIN_CHUNK : rows > MAX_CHUNK ? MAX_CHUNK : rows;
}

/* Lays bias + residual into the rows of z; false if there is neither, and z is as it was. */
static bool lay_down(const linear_args *a, cpu_range rows, float *z) {
    size_t row_bytes = (size_t)a->n_out * sizeof *z;
    if (a->bias == NULL && a->residual == NULL) return false;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *residual = (const float *)a->residual + i * a->n_out;
        float *to = z + i * a->n_out;
        if (a->residual == NULL) {
            memcpy(to, a->bias, row_bytes);
        } else {
            memmove(to, residual, row_bytes); /* y may be the residual itself */
            for (int32_t c = 0; a->bias != NULL && c < a->n_out; c++)
                to[c] += a->bias[c];
        }
    }
    return true;
}

static status forward_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    const linear_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    float *z = a->f == EPILOGUE_NONE ? a->y : a->z;
    float *at = z + rows.first * a->n_out;
    bool adds = lay_down(a, rows, z);
    int n = (int)(rows.end - rows.first);
    (void)worker;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, a->is_transposed ? CblasTrans : CblasNoTrans, n,
                a->n_out, a->n_in, 1, (const float *)a->x + rows.first * a->n_in, a->n_in, a->w,
                a->is_transposed ? a->n_in : a->n_out, adds ? 1 : 0, at, a->n_out);
    if (a->f != EPILOGUE_NONE)
        linear_f_forward(a->f, (int64_t)n * a->n_out, at, (float *)a->y + rows.first * a->n_out);
    return OK;
}

status cpu_linear_fwd(backend *be, const linear_args *a) {
    linear_job job = {.a = a, .n_rows = rows_per_chunk(a->n)};
    if (a->n_in == 0 || a->n_out == 0) return OK;
    return pool_run(be->workers, cpu_n_chunks(a->n, job.n_rows), forward_chunk, &job);
}

/* dz in place of dy, the chunk's share of dbias, and dx, for its rows. */
static status backward_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    const linear_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->n_rows, a->n);
    float *dz = (float *)a->dy + rows.first * a->n_out;
    int n = (int)(rows.end - rows.first);
    (void)worker;
    if (a->f != EPILOGUE_NONE)
        linear_f_backward(a->f, (int64_t)n * a->n_out, (const float *)a->z + rows.first * a->n_out,
                          dz);
    if (job->bias_partials != NULL) {
        float *sum = job->bias_partials + chunk * a->n_out;
        memset(sum, 0, (size_t)a->n_out * sizeof *sum);
        cpu_add_partials(sum, a->n_out, dz, n, a->n_out);
    }
    if (a->dx != NULL)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, a->is_transposed ? CblasNoTrans : CblasTrans, n,
                    a->n_in, a->n_out, 1, dz, a->n_out, a->w, a->is_transposed ? a->n_in : a->n_out,
                    a->adds_dx ? 1 : 0, (float *)a->dx + rows.first * a->n_in, a->n_in);
    return OK;
}

/* The part (rows, columns) of dW, whose layout is that of W, from `n` rows of x and dz: both
 * layouts are left^T right, with x left of dz or dz left of x. */
static void product_over_rows(const linear_args *a, int64_t first, int64_t n, int32_t row,
                              int32_t n_tile_rows, int32_t column, int32_t n_tile_columns,
                              float beta, float *to) {
    int32_t n_left = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_right = a->is_transposed ? a->n_in : a->n_out;
    const float *left = (const float *)(a->is_transposed ? a->dy : a->x) + first * n_left;
    const float *right = (const float *)(a->is_transposed ? a->x : a->dy) + first * n_right;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n_tile_rows, n_tile_columns, (int)n, 1,
                left + row, n_left, right + column, n_right, beta,
                to + (int64_t)row * n_right + column, n_right);
}

static status group_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    const linear_args *a = job->a;
    cpu_range rows = cpu_chunk(chunk, job->group_rows, a->n);
    int32_t n_rows = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_columns = a->is_transposed ? a->n_in : a->n_out;
    (void)worker;
    product_over_rows(a, rows.first, rows.end - rows.first, 0, n_rows, 0, n_columns, 0,
                      job->partials + chunk * a->n_in * a->n_out);
    return OK;
}

static status add_groups_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    int64_t size = (int64_t)job->a->n_in * job->a->n_out;
    cpu_range part = cpu_chunk(chunk, ADD_CHUNK, size);
    (void)worker;
    cpu_add_partials(job->a->dw + part.first, part.end - part.first, job->partials + part.first,
                     job->n_groups, size);
    return OK;
}

/* The tiles of dW in rows of tiles; each adds to what is there. */
static status tile_chunk(void *ctx, int64_t chunk, int worker) {
    const linear_job *job = ctx;
    const linear_args *a = job->a;
    int32_t n_rows = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_columns = a->is_transposed ? a->n_in : a->n_out;
    int64_t across = cpu_n_chunks(n_columns, TILE_COLUMNS);
    cpu_range rows = cpu_chunk(chunk / across, TILE_ROWS, n_rows);
    cpu_range columns = cpu_chunk(chunk % across, TILE_COLUMNS, n_columns);
    (void)worker;
    product_over_rows(a, 0, a->n, (int32_t)rows.first, (int32_t)(rows.end - rows.first),
                      (int32_t)columns.first, (int32_t)(columns.end - columns.first), 1, a->dw);
    return OK;
}

static status backward_to_w(backend *be, linear_job *job, float *partials) {
    const linear_args *a = job->a;
    int32_t n_rows = a->is_transposed ? a->n_out : a->n_in;
    int32_t n_columns = a->is_transposed ? a->n_in : a->n_out;
    int64_t n_tiles = cpu_n_chunks(n_rows, TILE_ROWS) * cpu_n_chunks(n_columns, TILE_COLUMNS);
    if (job->n_groups == 0) return pool_run(be->workers, n_tiles, tile_chunk, job);
    job->partials = partials;
    TRY(pool_run(be->workers, job->n_groups, group_chunk, job));
    return pool_run(be->workers, cpu_n_chunks((int64_t)a->n_in * a->n_out, ADD_CHUNK),
                    add_groups_chunk, job);
}

/* Groups of rows for a small W, as many as there are rows and room for; 0 for a large one. */
static void plan_groups(linear_job *job) {
    const linear_args *a = job->a;
    int64_t size = (int64_t)a->n_in * a->n_out;
    int64_t room = MAX_PARTIALS_SIZE / size, n = cpu_n_chunks(a->n, MIN_GROUP_ROWS);
    if (size > MAX_SPLIT_SIZE) return;
    if (n > room) n = room;
    if (n > MAX_GROUPS) n = MAX_GROUPS;
    job->group_rows = cpu_n_chunks(a->n, n);
    job->n_groups = cpu_n_chunks(a->n, job->group_rows);
}

status cpu_linear_bwd(backend *be, const linear_args *a) {
    linear_job job = {.a = a, .n_rows = rows_per_chunk(a->n)};
    int64_t n_chunks = cpu_n_chunks(a->n, job.n_rows);
    void *memory;
    if (a->n == 0 || a->n_in == 0 || a->n_out == 0) return OK;
    plan_groups(&job);
    int64_t n_bias = a->dbias != NULL ? n_chunks * a->n_out : 0;
    int64_t n_partials = job.n_groups * a->n_in * a->n_out;
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)(n_bias + n_partials) * sizeof(float), &memory));
    if (a->dbias != NULL) job.bias_partials = (float *)memory + n_partials;
    TRY(pool_run(be->workers, n_chunks, backward_chunk, &job));
    if (a->dbias != NULL)
        cpu_add_partials(a->dbias, a->n_out, job.bias_partials, n_chunks, a->n_out);
    return backward_to_w(be, &job, memory);
}

typedef struct activate_job {
    epilogue f;
    int64_t n;
    const float *z;
    float *y;
} activate_job;

static status activate_chunk(void *ctx, int64_t chunk, int worker) {
    const activate_job *job = ctx;
    cpu_range part = cpu_chunk(chunk, ADD_CHUNK, job->n);
    (void)worker;
    linear_f_forward(job->f, part.end - part.first, job->z + part.first, job->y + part.first);
    return OK;
}

status cpu_activate(backend *be, epilogue f, int64_t n, const void *z, void *y) {
    activate_job job = {f, n, z, y};
    return pool_run(be->workers, cpu_n_chunks(n, ADD_CHUNK), activate_chunk, &job);
}
