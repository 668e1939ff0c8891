/* Products (contract: product.h).  What is stored where:
 *
 * B is packed into blocks of PRODUCT_DEPTH rows, each of which holds its panels in a row.  The rows
 * of A are taken BLOCK_ROWS at a time: for a block of k they are packed into strips as high as a
 * register tile, which stay in the L2 cache while the panels of B pass; a panel comes into the L2
 * cache once and is multiplied with all strips.  So A is packed once for all columns, B is read
 * from the L3 cache once for each BLOCK_ROWS rows, and no size depends on the machine.  With few
 * columns packing A would not pay: the tile reads it in place, and strips are the outer loop.
 *
 * Edges: the last panel and the last strip are padded with zeros; their tiles are computed in a
 * buffer, and the valid part is copied.  So every element is computed by the same instructions,
 * wherever it is. */
#include "cpu/product.h"

#include "ops/ops.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { BLOCK_ROWS = 96 }; /* of A, packed together: a multiple of the height of every tile */
enum { PACK_COLUMNS = 192, MIN_SHARED_PACK = 1 << 15 };
enum { MAX_DIRECT_COLUMNS = 128 }; /* with more columns, packing A costs little */

#if defined(HSTU_HAS_SVE)
#include <sys/auxv.h>
#include <sys/prctl.h>

/* Does this CPU have SVE, and has a vector 256 bits in this process? */
static bool has_sve_256(void) {
    if ((getauxval(AT_HWCAP) & HWCAP_SVE) == 0) return false;
    int length = prctl(PR_SVE_GET_VL);
    return length >= 0 && (length & PR_SVE_VL_LEN_MASK) == 32;
}
#endif

const product_isa *product_choice(int i) {
    const product_isa *all[4];
    int n = 0;
#if defined(HSTU_HAS_SVE)
    if (has_sve_256()) all[n++] = &product_sve;
#endif
#if defined(__aarch64__)
    all[n++] = &product_neon;
#elif defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) all[n++] = &product_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all[n++] = &product_avx2;
#endif
    all[n++] = &product_plain;
    return i >= 0 && i < n ? all[i] : NULL;
}

const product_isa *product_choose(void) {
    return product_choice(0);
}

const char *backend_cpu_products(void) {
    return product_choose()->name;
}

/* The kernels for a right operand of n columns.  All of one instruction set have the same bits. */
static const product_isa *shape_for(const product_isa *isa, int64_t n) {
    return n <= PRODUCT_NARROW && isa->narrow != NULL ? isa->narrow : isa;
}

static int panel_columns(const product_isa *isa) {
    return isa->vectors * isa->lanes;
}

static int64_t whole_vectors(const product_isa *isa, int64_t n) {
    return (n + isa->lanes - 1) / isa->lanes * isa->lanes;
}

int64_t product_packed_size(const product_isa *isa, int64_t k, int64_t n) {
    return k * whole_vectors(isa, n);
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Rows of contiguous elements that are packed at a time, so that the cache lines they share with
 * the next panel are still in the L1 cache then: rows a multiple of 4 KiB apart compete for eight
 * lines. */
static int64_t rows_at_a_time(ptrdiff_t stride) {
    return stride % 1024 == 0 ? 8 : 32;
}

/* Whole panels; width is a compile-time constant where this is inlined. */
static inline __attribute__((always_inline)) void
copy_whole(float *to, int width, const float *from, ptrdiff_t stride, ptrdiff_t kk) {
    for (ptrdiff_t k = 0; k < kk; k++, to += width, from += stride)
        memcpy(to, from, (size_t)width * sizeof *to);
}

/* n < width columns of each row: 16 and four at a time, then the rest, a constant number in each
 * loop. */
static void copy_part(float *to, int width, const float *from, ptrdiff_t stride, int n,
                      ptrdiff_t kk) {
    int sixteens = n / 16 * 16, fours = n / 4 * 4, rest = n - fours;
    memset(to, 0, (size_t)(kk * width) * sizeof *to);
    for (int j = 0; j < sixteens; j += 16)
        for (ptrdiff_t k = 0; k < kk; k++)
            memcpy(to + k * width + j, from + k * stride + j, 16 * sizeof *to);
    for (int j = sixteens; j < fours; j += 4)
        for (ptrdiff_t k = 0; k < kk; k++)
            memcpy(to + k * width + j, from + k * stride + j, 4 * sizeof *to);
    to += fours, from += fours;
    for (ptrdiff_t k = 0; rest == 1 && k < kk; k++)
        to[k * width] = from[k * stride];
    for (ptrdiff_t k = 0; rest >= 2 && k < kk; k++)
        memcpy(to + k * width, from + k * stride, 2 * sizeof *to);
    for (ptrdiff_t k = 0; rest == 3 && k < kk; k++)
        to[k * width + 2] = from[k * stride + 2];
}

/* to[k * width + j] = from[k * stride + j], j < n <= width. */
static void pack_copy(float *to, int width, const float *from, ptrdiff_t stride, int n,
                      ptrdiff_t kk) {
    if (n < width)
        copy_part(to, width, from, stride, n, kk);
    else if (width == 6)
        copy_whole(to, 6, from, stride, kk);
    else if (width == 8)
        copy_whole(to, 8, from, stride, kk);
    else if (width == 12)
        copy_whole(to, 12, from, stride, kk);
    else if (width == 16)
        copy_whole(to, 16, from, stride, kk);
    else if (width == 32)
        copy_whole(to, 32, from, stride, kk);
    else if (width == 48)
        copy_whole(to, 48, from, stride, kk);
    else
        copy_whole(to, width, from, stride, kk);
}

/* Transposes four rows of four floats.  Rows of `to` are `width` apart. */
static inline void transpose4(float *to, int width, const float *from, ptrdiff_t stride) {
#if defined(__aarch64__)
    float32x4_t r0 = vld1q_f32(from), r1 = vld1q_f32(from + stride);
    float32x4_t r2 = vld1q_f32(from + 2 * stride), r3 = vld1q_f32(from + 3 * stride);
    float32x4_t a = vtrn1q_f32(r0, r1), b = vtrn2q_f32(r0, r1);
    float32x4_t c = vtrn1q_f32(r2, r3), d = vtrn2q_f32(r2, r3);
    vst1q_f32(to, vcombine_f32(vget_low_f32(a), vget_low_f32(c)));
    vst1q_f32(to + width, vcombine_f32(vget_low_f32(b), vget_low_f32(d)));
    vst1q_f32(to + 2 * width, vcombine_f32(vget_high_f32(a), vget_high_f32(c)));
    vst1q_f32(to + 3 * width, vcombine_f32(vget_high_f32(b), vget_high_f32(d)));
#elif defined(__SSE2__)
    __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + stride);
    __m128 r2 = _mm_loadu_ps(from + 2 * stride), r3 = _mm_loadu_ps(from + 3 * stride);
    _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
    _mm_storeu_ps(to, r0);
    _mm_storeu_ps(to + width, r1);
    _mm_storeu_ps(to + 2 * width, r2);
    _mm_storeu_ps(to + 3 * width, r3);
#else
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 4; j++)
            to[k * width + j] = from[j * stride + k];
#endif
}

/* `n` columns beginning with column j0, four k at a time where there are four columns. */
static void transpose_columns(float *to, int width, const float *from, ptrdiff_t stride, int n,
                              ptrdiff_t kk) {
    ptrdiff_t k = 0;
    for (; n == 4 && k + 4 <= kk; k += 4)
        transpose4(to + k * width, width, from + k, stride);
    for (; k < kk; k++)
        for (int j = 0; j < n; j++)
            to[k * width + j] = from[j * stride + k];
}

void product_pack_transpose(float *to, int width, const float *from, ptrdiff_t stride, int n,
                            ptrdiff_t kk) {
    for (int j = 0; j < n; j += 4)
        transpose_columns(to + j, width, from + j * stride, stride, n - j < 4 ? n - j : 4, kk);
    for (ptrdiff_t k = 0; n < width && k < kk; k++)
        memset(to + k * width + n, 0, (size_t)(width - n) * sizeof *to);
}

/* Packs one panel of kk rows, which has the columns of b. */
static void pack_panel(float *to, int width, matrix b, int n, int64_t kk) {
    if (b.column == 1)
        pack_copy(to, width, b.data, b.row, n, kk);
    else
        product_pack_transpose(to, width, b.data, b.column, n, kk);
}

/* Packs n columns of kk rows; their panels begin at `to`.  Contiguous rows are packed a few at a
 * time into all panels, so that they are read once. */
static void pack_block(const product_isa *isa, matrix b, int64_t kk, int64_t n, float *to) {
    int64_t panel = panel_columns(isa), n_rows = b.column == 1 ? rows_at_a_time(b.row) : kk;
    for (int64_t k = 0; k < kk; k += n_rows)
        for (int64_t j = 0; j < n; j += panel) {
            int columns = (int)smaller(panel, n - j), width = (int)whole_vectors(isa, columns);
            pack_panel(to + j * kk + k * width, width, matrix_at(b, k, j), columns,
                       smaller(n_rows, kk - k));
        }
}

/* The address of the packed block that begins with row `at` and column j. */
static float *block_at(const product_panels *b, int64_t at, int64_t j) {
    int64_t kk = smaller(PRODUCT_DEPTH, b->k - at);
    return b->data + at * whole_vectors(b->isa, b->n) + j * kk;
}

typedef struct pack_job {
    const product_isa *isa;
    const product_panels *to;
    matrix from;
    int64_t n_columns; /* of a chunk */
} pack_job;

static status pack_chunk(void *ctx, int64_t chunk, int worker) {
    const pack_job *job = ctx;
    const product_panels *to = job->to;
    int64_t first = chunk * job->n_columns, n = smaller(job->n_columns, to->n - first);
    for (int64_t at = 0; at < to->k; at += PRODUCT_DEPTH)
        pack_block(job->isa, matrix_at(job->from, at, first), smaller(PRODUCT_DEPTH, to->k - at), n,
                   block_at(to, at, first));
    return OK;
}

status product_pack(const product_panels *to, matrix b, pool *workers) {
    pack_job job = {shape_for(to->isa, to->n), to, b, PACK_COLUMNS};
    if (to->k * to->n < MIN_SHARED_PACK) workers = NULL; /* to wake a thread would take longer */
    return pool_run(workers, (to->n + job.n_columns - 1) / job.n_columns, pack_chunk, &job);
}

/* A strip of A for kk values of k, packed or in place; `tiles` is indexed by the number of vectors
 * minus one. */
typedef struct strip {
    const float *data;
    ptrdiff_t stride;
    int rows, height; /* rows that exist, and rows of the tiles */
    product_tile *const *tiles;
} strip;

/* Rows a multiple of 4 KiB apart would compete for the same few lines of the L1 cache. */
static bool reads_directly(const product_isa *isa, matrix a, int64_t n) {
    return isa->direct[0][0] != NULL && a.column == 1 && n <= MAX_DIRECT_COLUMNS &&
           a.row % 1024 != 0;
}

/* The lowest tile for so many rows. */
static int tile_of(const product_isa *isa, int64_t rows) {
    int h = PRODUCT_HEIGHTS - 1;
    while (isa->height[h] < rows)
        h--;
    return h;
}

/* packed is NULL where the strip is read in place: then it must have all rows of a tile. */
static strip take_strip(const product_isa *isa, matrix a, int rows, const float *packed) {
    int h = tile_of(isa, rows);
    strip s = {packed, isa->height[0], rows, isa->height[h], isa->packed[h]};
    if (packed == NULL) s.data = a.data, s.stride = a.row, s.tiles = isa->direct[h];
    return s;
}

/* `m` rows of A, packed into strips. */
static void pack_strips(const product_isa *isa, matrix a, int64_t m, int64_t kk, float *to) {
    int height = isa->height[0];
    int64_t n_rows = a.row == 1 ? rows_at_a_time(a.column) : kk;
    for (int64_t k = 0; k < kk; k += n_rows)
        for (int64_t i = 0; i < m; i += height)
            pack_panel(to + i * kk + k * height, height, matrix_transposed(matrix_at(a, i, k)),
                       (int)smaller(height, m - i), smaller(n_rows, kk - k));
}

/* A tile at the edge: computed whole, then its valid part is copied. */
static void edge_tile(const strip *s, product_tile *tile, const float *b, int64_t kk, int columns,
                      bool adds, float *c, ptrdiff_t c_row) {
    float buffer[PRODUCT_MAX_ROWS * PRODUCT_MAX_COLUMNS];
    tile(s->data, s->stride, b, kk, false, buffer, PRODUCT_MAX_COLUMNS);
    for (int i = 0; i < s->rows; i++)
        for (int j = 0; j < columns; j++) {
            float *at = c + i * c_row + j, sum = buffer[i * PRODUCT_MAX_COLUMNS + j];
            *at = adds ? *at + sum : sum;
        }
}

/* A block of C: m rows, n columns, kk values of k; b is its first panel. */
typedef struct block {
    const product_isa *isa;
    const float *b;
    int64_t m, n, kk;
    bool adds;
    float *c;
    ptrdiff_t c_row;
} block;

/* Multiplies the strip of rows beginning with i and the panel of columns beginning with j. */
static void run_tile(const block *w, const strip *s, int64_t i, int64_t j) {
    int columns = (int)smaller(panel_columns(w->isa), w->n - j);
    int width = (int)whole_vectors(w->isa, columns);
    product_tile *tile = s->tiles[width / w->isa->lanes - 1];
    const float *b = w->b + j * w->kk;
    float *c = w->c + i * w->c_row + j;
    if (s->rows == s->height && columns == width)
        tile(s->data, s->stride, b, w->kk, w->adds, c, w->c_row);
    else
        edge_tile(s, tile, b, w->kk, columns, w->adds, c, w->c_row);
}

/* A is read in place, but for the last rows if they fill no tile. */
static void run_direct(const block *w, matrix a) {
    float room[PRODUCT_MAX_ROWS * PRODUCT_DEPTH];
    int64_t height = w->isa->height[0], panel = panel_columns(w->isa);
    for (int64_t i = 0; i < w->m; i += height) {
        int rows = (int)smaller(height, w->m - i);
        bool packs = w->isa->height[tile_of(w->isa, rows)] != rows;
        if (packs) pack_strips(w->isa, matrix_at(a, i, 0), rows, w->kk, room);
        strip s = take_strip(w->isa, matrix_at(a, i, 0), rows, packs ? room : NULL);
        for (int64_t j = 0; j < w->n; j += panel)
            run_tile(w, &s, i, j);
    }
}

static void run_packed(const block *w, matrix a) {
    float room[BLOCK_ROWS * PRODUCT_DEPTH];
    int64_t height = w->isa->height[0], panel = panel_columns(w->isa);
    for (int64_t first = 0; first < w->m; first += BLOCK_ROWS) {
        int64_t end = smaller(first + BLOCK_ROWS, w->m);
        pack_strips(w->isa, matrix_at(a, first, 0), end - first, w->kk, room);
        for (int64_t j = 0; j < w->n; j += panel)
            for (int64_t i = first; i < end; i += height) {
                strip s = take_strip(w->isa, a, (int)smaller(height, end - i),
                                     room + (i - first) * w->kk);
                run_tile(w, &s, i, j);
            }
    }
}

static void run_block(const block *w, matrix a) {
    if (reads_directly(w->isa, a, w->n))
        run_direct(w, a);
    else
        run_packed(w, a);
}

int64_t product_even_columns(const product_isa *isa, int64_t n, int64_t n_blocks) {
    int64_t panel = panel_columns(shape_for(isa, n)), n_panels = (n + panel - 1) / panel;
    return (n_panels + n_blocks - 1) / n_blocks * panel;
}

/* A product over no k. */
static void set_to_zero(int64_t m, int64_t n, float *c, ptrdiff_t c_row) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * c_row + j] = 0;
}

void product_run(matrix a, int64_t m, const product_panels *b, int64_t first, int64_t end,
                 bool adds, float *c, ptrdiff_t c_row) {
    const product_isa *isa = shape_for(b->isa, b->n);
    block w = {.isa = isa, .m = m, .n = end - first, .c = c + first, .c_row = c_row};
    if (b->k == 0 && !adds) set_to_zero(m, end - first, c + first, c_row);
    for (int64_t at = 0; at < b->k; at += PRODUCT_DEPTH) {
        w.kk = smaller(PRODUCT_DEPTH, b->k - at);
        w.b = block_at(b, at, first);
        w.adds = adds || at > 0;
        run_block(&w, matrix_at(a, 0, at));
    }
}

void product_run_once(const product_isa *isa, matrix a, matrix b, int64_t m, int64_t k, int64_t n,
                      bool adds, float *c, ptrdiff_t c_row, float *room) {
    block w = {.isa = shape_for(isa, n), .b = room, .m = m, .c_row = c_row};
    if (k == 0 && !adds) set_to_zero(m, n, c, c_row);
    for (int64_t j = 0; j < n; j += PRODUCT_COLUMNS)
        for (int64_t at = 0; at < k; at += PRODUCT_DEPTH) {
            w.kk = smaller(PRODUCT_DEPTH, k - at);
            w.n = smaller(PRODUCT_COLUMNS, n - j);
            w.adds = adds || at > 0;
            w.c = c + j;
            pack_block(w.isa, matrix_at(b, at, j), w.kk, w.n, room);
            run_block(&w, matrix_at(a, 0, at));
        }
}
