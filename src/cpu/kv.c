/* Pages of keys and values (ops.h): kv_put, kv_move, kv_fp8. */
#include "base/half.h"
#include "cpu/cpu.h"

enum { PUT_ROWS = 256, ROUND_ROWS = 64 }; /* of a chunk */

static void put_row(float *pages, int64_t stride, int32_t slot, const kv_put_args *a,
                    const float *row, int32_t dim) {
    memcpy(pages + slot / a->page_len * stride + (int64_t)(slot % a->page_len) * dim, row,
           (size_t)dim * sizeof *row);
}

static status put_rows(const cpu_rows *w) {
    const kv_put_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++) {
        if (a->slot[i] < 0) continue;
        put_row(a->pages_k, a->stride, a->slot[i], a, (const float *)a->k + i * a->stride_k,
                a->dim_k);
        put_row(a->pages_v, a->stride, a->slot[i], a, (const float *)a->v + i * a->stride_v,
                a->dim_v);
    }
    return OK;
}

status cpu_kv_put(backend *be, const kv_put_args *a) {
    return cpu_each(be, a->n, PUT_ROWS, put_rows, a);
}

enum { PIECE_BYTES = 1 << 16 };

/* A piece of every page, in the order of the moves: a page may come to where another one left. */
static status move_pieces(const cpu_rows *w) {
    const kv_move_args *a = w->ctx;
    size_t n = (size_t)(w->end - w->first);
    char *device = (char *)a->device + w->first, *host = (char *)a->host + w->first;
    for (int32_t i = 0; i < a->n_out; i++)
        memcpy(host + (size_t)a->out[i].host * a->page_bytes,
               device + (size_t)a->out[i].device * a->page_bytes, n);
    for (int32_t i = 0; i < a->n_in; i++)
        memcpy(device + (size_t)a->in[i].device * a->page_bytes,
               host + (size_t)a->in[i].host * a->page_bytes, n);
    return OK;
}

status cpu_kv_move(backend *be, const kv_move_args *a) {
    return cpu_each(be, (int64_t)a->page_bytes, PIECE_BYTES, move_pieces, a);
}

status cpu_kv_wait(backend *be, int stage) {
    return OK;
}

static int exponent_of(const float *x, int32_t n) {
    float largest = 0;
    for (int32_t i = 0; i < n; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return fp8_exponent(largest);
}

/* One head of a row, in place. */
static void round_head(float *x, int32_t n) {
    int exponent = exponent_of(x, n);
    float down = ldexpf(1, -exponent), up = ldexpf(1, exponent);
    for (int32_t i = 0; i < n; i++)
        x[i] = fp8_to_float(fp8_from_float(x[i] * down)) * up;
}

static status round_rows(const cpu_rows *w) {
    const kv_fp8_args *a = w->ctx;
    for (int64_t i = w->first; i < w->end; i++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            round_head((float *)a->k + i * a->stride_k + (int64_t)h * a->dim_qk, a->dim_qk);
            round_head((float *)a->v + i * a->stride_v + (int64_t)h * a->dim_v, a->dim_v);
        }
    return OK;
}

/* All rows of the keys or the values of a page. */
typedef struct page_part {
    float *wide;
    uint8_t *narrow;
    int8_t *exponent;
    int32_t n_heads, dim; /* n_heads: of all rows */
} page_part;

static void pack_part(const page_part *p) {
    for (int32_t h = 0; h < p->n_heads; h++) {
        const float *from = p->wide + (int64_t)h * p->dim;
        int exponent = exponent_of(from, p->dim);
        float down = ldexpf(1, -exponent);
        p->exponent[h] = (int8_t)exponent;
        for (int32_t i = 0; i < p->dim; i++)
            p->narrow[(int64_t)h * p->dim + i] = fp8_from_float(from[i] * down);
    }
}

static void unpack_part(const page_part *p) {
    for (int32_t h = 0; h < p->n_heads; h++) {
        float up = ldexpf(1, p->exponent[h]);
        for (int64_t i = (int64_t)h * p->dim; i < ((int64_t)h + 1) * p->dim; i++)
            p->wide[i] = fp8_to_float(p->narrow[i]) * up;
    }
}

static status convert_page(const cpu_rows *w) {
    const kv_fp8_args *a = w->ctx;
    int32_t n_heads = a->page_len * a->n_heads;
    int64_t bytes = kv_fp8_page_bytes(a->page_len, a->n_heads, a->dim_qk, a->dim_v);
    uint8_t *narrow = a->narrow + a->page[w->chunk] * bytes;
    uint8_t *narrow_v = narrow + (int64_t)n_heads * a->dim_qk;
    int8_t *exponent = (int8_t *)(narrow_v + (int64_t)n_heads * a->dim_v);
    page_part part[] = {
        {(float *)a->pages_k + w->chunk * a->stride, narrow, exponent, n_heads, a->dim_qk},
        {(float *)a->pages_v + w->chunk * a->stride, narrow_v, exponent + n_heads, n_heads,
         a->dim_v}};
    for (int k = 0; k < 2; k++)
        if (a->kind == KV_PACK)
            pack_part(&part[k]);
        else
            unpack_part(&part[k]);
    return OK;
}

status cpu_kv_fp8(backend *be, const kv_fp8_args *a) {
    if (a->kind == KV_ROUND) return cpu_each(be, a->n, ROUND_ROWS, round_rows, a);
    return cpu_each(be, a->n_pages, 1, convert_page, a);
}
