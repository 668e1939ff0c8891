/* How the mirror moves memory; what each op's arguments hold is in mirror_ops.c.
 *
 * The parts of one call are put into one block of memory of the backend below, each region between
 * guards.  `before` is the image that is sent, `after` what came back, `mask` the bytes that are
 * results. */
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/mem.h"
#include "mirror_int.h"

enum { GUARD_BYTES = 256, GUARD = 0xff }; /* all bits set: a NaN of every type, and index -1 */

static int host_size(mirror_kind kind) {
    return kind == F64 || kind == I64 ? 8 : kind == U8 || kind == RAW ? 1 : 4;
}

static bool is_act(mirror_kind kind) {
    return kind == ACT || kind == ACT_FACTOR;
}

static int size_below(const mirror *m, mirror_kind kind) {
    return is_act(kind) ? (int)act_bytes(m->below->act) : host_size(kind);
}

void mirror_begin(mirror *m) {
    m->n_parts = m->n_regions = 0;
    m->failed = OK;
}

void mirror_part_add(mirror *m, const char *name, mirror_use use, mirror_kind kind, void **slot,
                     int64_t rows, int64_t width, int64_t stride) {
    if (*slot == NULL) return;
    status st = MEM_RESERVE(&m->part, &m->part_capacity, m->n_parts + 1);
    if (st == OK) st = MEM_RESERVE(&m->order, &m->order_capacity, m->n_parts + 1);
    if (st == OK) st = MEM_RESERVE(&m->region, &m->region_capacity, m->n_parts + 1);
    if (st != OK) {
        m->failed = st;
        return;
    }
    m->part[m->n_parts++] = (mirror_part){.name = name,
                                          .slot = slot,
                                          .host = *slot,
                                          .rows = rows,
                                          .width = width,
                                          .stride = stride,
                                          .use = use,
                                          .kind = kind};
}

static int64_t elements(const mirror_part *p) {
    return p->rows > 0 && p->width > 0 ? (p->rows - 1) * p->stride + p->width : 0;
}

static const mirror_part *sorted_part; /* for the comparison: qsort has no argument for it */

static int compare_places(const void *a, const void *b) {
    const mirror_part *x = &sorted_part[*(const int *)a], *y = &sorted_part[*(const int *)b];
    return (x->host > y->host) - (x->host < y->host);
}

/* Gives each part its region, and each region its place in the block. */
static status lay_out(mirror *m) {
    const char *end = NULL; /* of the last region */
    int64_t at = 0;
    for (size_t i = 0; i < m->n_parts; i++)
        m->order[i] = (int)i;
    sorted_part = m->part;
    if (m->n_parts > 0) qsort(m->order, m->n_parts, sizeof *m->order, compare_places);
    for (size_t i = 0; i < m->n_parts; i++) {
        mirror_part *p = &m->part[m->order[i]];
        mirror_region *last = &m->region[m->n_regions - (m->n_regions > 0)];
        const char *p_end = p->host + elements(p) * host_size(p->kind);
        bool is_inside = end != NULL && p->host < end && p_end > p->host;
        if (is_inside &&
            (last->size != size_below(m, p->kind) || last->host_size != host_size(p->kind)))
            return fail(ERR_USAGE, "%s is in memory of another type", p->name);
        if (!is_inside) {
            last = &m->region[m->n_regions++];
            *last = (mirror_region){
                .host = p->host, .host_size = host_size(p->kind), .size = size_below(m, p->kind)};
            end = p->host;
        }
        end = p_end > end ? p_end : end;
        last->n = (end - last->host) / last->host_size;
        p->region = (int)m->n_regions - 1;
    }
    for (size_t i = 0; i < m->n_regions; i++) {
        mirror_region *r = &m->region[i];
        r->at = at + GUARD_BYTES;
        at = r->at + (r->n * r->size + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES + GUARD_BYTES;
    }
    m->used_bytes = (size_t)at;
    return OK;
}

/* The content of a result before the op: bits that no op computes. */
static void poison(char *to, const mirror *m, mirror_kind kind) {
    static const uint64_t f64 = 0x7ff8deaddeaddead, i64 = 0x5eadbeef5eadbeef;
    static const uint32_t f32 = 0x7fc0dead, i32 = 0x5eadbeef;
    static const uint16_t bf16 = 0x7fad, f16 = 0x7ead;
    int size = size_below(m, kind);
    const void *from = kind == F64   ? (const void *)&f64
                       : kind == I64 ? (const void *)&i64
                       : kind == I32 ? (const void *)&i32
                       : size == 4   ? (const void *)&f32
                                     : (const void *)(m->below->act == ACT_BF16 ? &bf16 : &f16);
    memcpy(to, from, (size_t)size);
}

static float round_here(const mirror *m, mirror_kind kind, float x) {
    if (!m->is_rounding || (!is_act(kind) && kind != FACTOR)) return x;
    double v = (double)x * m->grid;
    v = kind == ACT ? precision_round_act(m->p, v) : precision_round_factor(m->p, v);
    return (float)(v / m->grid);
}

/* One element on its way down. */
static void send_one(char *to, const char *from, const mirror *m, mirror_kind kind) {
    float x;
    if (!is_act(kind) && kind != FACTOR) {
        memcpy(to, from, (size_t)host_size(kind));
        return;
    }
    memcpy(&x, from, sizeof x);
    if (size_below(m, kind) == 2) {
        uint16_t bits = m->below->act == ACT_BF16 ? bf16_from_float(x) : f16_from_float(x);
        memcpy(to, &bits, sizeof bits);
        return;
    }
    x = round_here(m, kind, x);
    memcpy(to, &x, sizeof x);
}

static void receive_one(char *to, const char *from, const mirror *m, mirror_kind kind) {
    float x;
    uint16_t bits;
    if (!is_act(kind)) {
        memcpy(to, from, (size_t)host_size(kind));
        return;
    }
    if (size_below(m, kind) == 2) {
        memcpy(&bits, from, sizeof bits);
        x = m->below->act == ACT_BF16 ? half_bf16_to_float(bits) : half_f16_to_float(bits);
    } else {
        memcpy(&x, from, sizeof x);
        x = round_here(m, ACT, x);
    }
    memcpy(to, &x, sizeof x);
}

/* The element (row, column) of a part: its place here and in the block. */
static int64_t index_of(const mirror_part *p, const mirror_region *r, int64_t row, int64_t column) {
    return (p->host - r->host) / r->host_size + row * p->stride + column;
}

/* A whole region as it is on the host: the gaps between rows keep their values. */
static void fill_region(mirror *m, const mirror_region *r, mirror_kind kind) {
    for (int64_t i = 0; i < r->n; i++)
        send_one(m->before + r->at + i * r->size, r->host + i * r->host_size, m, kind);
}

static void mark_results(mirror *m, const mirror_part *p) {
    const mirror_region *r = &m->region[p->region];
    for (int64_t row = 0; row < p->rows && p->use != IN; row++)
        for (int64_t c = 0; c < p->width; c++) {
            int64_t at = r->at + index_of(p, r, row, c) * r->size;
            memset(m->mask + at, 1, (size_t)r->size);
            if (p->use == OUT || p->use == LOOSE) poison(m->before + at, m, p->kind);
        }
}

/* Where a result overwrites an input in place, the input is put back over the mark. */
static void put_inputs(mirror *m, const mirror_part *p) {
    const mirror_region *r = &m->region[p->region];
    for (int64_t row = 0; row < p->rows && (p->use == IN || p->use == BOTH); row++)
        for (int64_t c = 0; c < p->width; c++) {
            int64_t i = index_of(p, r, row, c);
            send_one(m->before + r->at + i * r->size, r->host + i * r->host_size, m, p->kind);
        }
}

static status reserve_block(mirror *m) {
    backend *below = m->below;
    TRY(MEM_RESERVE(&m->before, &m->before_capacity, m->used_bytes + 1));
    TRY(MEM_RESERVE(&m->after, &m->after_capacity, m->used_bytes + 1));
    TRY(MEM_RESERVE(&m->mask, &m->mask_capacity, m->used_bytes + 1));
    if (m->used_bytes <= m->block_bytes) return OK;
    below->ops->release(below, m->block);
    m->block = NULL;
    m->block_bytes = 0;
    TRY(below->ops->alloc(below, &m->block, m->used_bytes));
    m->block_bytes = m->used_bytes;
    return OK;
}

status mirror_send(mirror *m) {
    if (m->failed != OK) return m->failed;
    TRY(lay_out(m));
    TRY(reserve_block(m));
    memset(m->before, GUARD, m->used_bytes);
    memset(m->mask, 0, m->used_bytes);
    for (size_t i = 0; i < m->n_parts; i++) {
        const mirror_part *p = &m->part[i];
        if (p->kind != RAW) fill_region(m, &m->region[p->region], p->kind);
    }
    for (size_t i = 0; i < m->n_parts; i++)
        mark_results(m, &m->part[i]);
    for (size_t i = 0; i < m->n_parts; i++)
        put_inputs(m, &m->part[i]);
    for (size_t i = 0; i < m->n_parts; i++) {
        const mirror_part *p = &m->part[i];
        const mirror_region *r = &m->region[p->region];
        *p->slot = (char *)m->block + r->at + index_of(p, r, 0, 0) * r->size;
    }
    if (m->used_bytes == 0) return OK;
    return m->below->ops->copy_in(m->below, m->block, m->before, m->used_bytes);
}

/* The region around or before a byte of the block. */
static status stray_write(const mirror *m, const char *op, int64_t at) {
    size_t i = m->n_regions - 1;
    while (i > 0 && m->region[i].at - GUARD_BYTES > at)
        i--;
    const char *name = "?";
    for (size_t k = 0; k < m->n_parts; k++)
        if (m->part[k].region == (int)i) name = m->part[k].name;
    const mirror_region *r = &m->region[i];
    return fail(ERR_DEVICE, "%s wrote where it must not: element %lld of %lld around %s", op,
                (long long)((at - r->at) / r->size), (long long)r->n, name);
}

static status check_strays(const mirror *m, const char *op) {
    for (size_t i = 0; i < m->used_bytes; i++)
        if (!m->mask[i] && m->before[i] != m->after[i]) return stray_write(m, op, (int64_t)i);
    return OK;
}

static status check_written(const mirror *m, const char *op, const mirror_part *p, int64_t at,
                            int64_t row, int64_t column) {
    char marked[8];
    size_t size = (size_t)m->region[p->region].size;
    poison(marked, m, p->kind);
    if (memcmp(m->before + at, marked, size) != 0 || memcmp(m->after + at, marked, size) != 0)
        return OK;
    return fail(ERR_DEVICE, "%s did not write %s[%lld][%lld] of (%lld, %lld)", op, p->name,
                (long long)row, (long long)column, (long long)p->rows, (long long)p->width);
}

status mirror_receive(mirror *m, const char *op) {
    if (m->used_bytes == 0) return OK;
    TRY(m->below->ops->copy_out(m->below, m->after, m->block, m->used_bytes));
    TRY(check_strays(m, op));
    for (size_t i = 0; i < m->n_parts; i++) {
        const mirror_part *p = &m->part[i];
        const mirror_region *r = &m->region[p->region];
        if (p->use == IN || p->kind == RAW) continue;
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t c = 0; c < p->width; c++) {
                int64_t k = index_of(p, r, row, c), at = r->at + k * r->size;
                if (p->use == OUT) TRY(check_written(m, op, p, at, row, c));
                receive_one((char *)(uintptr_t)r->host + k * r->host_size, m->after + at, m,
                            p->kind);
            }
    }
    return OK;
}

/* Memory of the mirror itself is the host's. */

status mirror_set_precision(backend *be, act_type act, bool is_tf32) {
    (void)be, (void)act, (void)is_tf32; /* below has its own */
    return OK;
}

status mirror_alloc(backend *be, void **out, size_t bytes) {
    (void)be;
    return mem_alloc(out, bytes, 1);
}

void mirror_release(backend *be, void *memory) {
    (void)be;
    mem_free(memory);
}

status mirror_host_alloc(backend *be, void **out, size_t bytes) {
    backend *below = mirror_of(be)->below;
    return below->ops->host_alloc(below, out, bytes);
}

void mirror_host_release(backend *be, void *memory) {
    backend *below = mirror_of(be)->below;
    below->ops->host_release(below, memory);
}

status mirror_zero(backend *be, void *memory, size_t bytes) {
    (void)be;
    if (bytes > 0) memset(memory, 0, bytes);
    return OK;
}

status mirror_copy(backend *be, void *to, const void *from, size_t bytes) {
    (void)be;
    if (bytes > 0) memcpy(to, from, bytes);
    return OK;
}

status mirror_copy_in(backend *be, void *to, const void *from_host, size_t bytes) {
    return mirror_copy(be, to, from_host, bytes);
}

status mirror_copy_out(backend *be, void *to_host, const void *from, size_t bytes) {
    return mirror_copy(be, to_host, from, bytes);
}

status mirror_fetch(backend *be, void *to_host, const void *from, size_t bytes, uint64_t *ticket) {
    *ticket = 0;
    return mirror_copy(be, to_host, from, bytes);
}

status mirror_wait(backend *be, uint64_t ticket) {
    (void)be, (void)ticket;
    return OK;
}

status mirror_sync(backend *be) {
    (void)be;
    return OK;
}

void *mirror_stream(backend *be) {
    (void)be;
    return NULL;
}

status mirror_aside(backend *be, bool is_on) {
    (void)be, (void)is_on;
    return OK;
}

status mirror_rejoin(backend *be) {
    (void)be;
    return OK;
}

status mirror_record(backend *be, uint64_t key, record_state *out) {
    (void)be, (void)key;
    *out = RECORD_RUN;
    return OK;
}

status mirror_record_end(backend *be) {
    (void)be;
    return OK;
}

static const ops mirror_table = {
#define OP(result, name, parameters, arguments, test) .name = mirror_##name,
#include "ops/ops.def"
};

static void destroy(backend *be) {
    mirror *m = mirror_of(be);
    void *all[] = {m->part, m->region, m->order, m->before, m->after, m->mask};
    if (m->block != NULL) m->below->ops->release(m->below, m->block);
    for (int i = 0; i < 6; i++)
        mem_free(all[i]);
    if (m->owns_below) backend_destroy(m->below);
    mem_free(m);
    mem_free(be);
}

void mirror_shift_grid(backend *be, double by) {
    mirror_of(be)->grid = by;
}

status mirror_create(backend **out, backend *below, bool owns_below, precision p) {
    backend *be = NULL;
    mirror *m = NULL;
    *out = NULL;
    status st = MEM_NEW(&be, 1);
    if (st == OK) st = MEM_NEW(&m, 1);
    if (st != OK) {
        mem_free(be);
        if (owns_below) backend_destroy(below);
        return st;
    }
    *m = (mirror){.below = below,
                  .owns_below = owns_below,
                  .grid = 1,
                  .p = p,
                  .is_rounding = p != PRECISION_F32 && below->act == ACT_F32 && below->is_host};
    *be = (backend){.ops = &mirror_table,
                    .act = ACT_F32,
                    .is_host = below->is_host,
                    .name = below->name,
                    .workers = below->workers,
                    .state = m,
                    .destroy = destroy};
    *out = be;
    return OK;
}
