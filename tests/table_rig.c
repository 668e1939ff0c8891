#include "table_rig.h"

void rig_init(rig *r, pool *workers, int64_t n_buckets, int32_t n_floats) {
    void *index, *rows;
    *r = (rig){.l = {.n_buckets = n_buckets, .row_bytes = (n_floats + 3) / 4 * 16}};
    size_t index_bytes = (size_t)n_buckets * TABLE_BUCKET_BYTES;
    size_t rows_bytes = (size_t)(n_buckets * TABLE_SLOTS * r->l.row_bytes);
    CHECK_OK(test_real_backend(&r->be, workers));
    r->t = r->be->tables;
    if (r->t == NULL) SKIP_TEST("%s has no dynamic tables", r->be->name);
    CHECK_OK(r->t->alloc(r->be, &index, index_bytes, TABLE_ON_DEVICE));
    CHECK_OK(r->t->alloc(r->be, &rows, rows_bytes, TABLE_ON_DEVICE));
    CHECK_OK(r->be->ops->zero(r->be, index, index_bytes));
    CHECK_OK(r->be->ops->zero(r->be, rows, rows_bytes));
    r->l.index = index;
    r->l.rows = rows;
}

void rig_fini(rig *r) {
    rig_drop(r);
    r->t->release(r->be, r->l.index, TABLE_ON_DEVICE);
    r->t->release(r->be, r->l.rows, TABLE_ON_DEVICE);
    test_real_backend_end(r->be);
}

void *rig_up(rig *r, const void *host, size_t bytes) {
    CHECK(r->n_held < RIG_MAX);
    void *memory;
    CHECK_OK(r->be->ops->alloc(r->be, &memory, bytes));
    if (host != NULL && bytes > 0) CHECK_OK(r->be->ops->copy_in(r->be, memory, host, bytes));
    r->held[r->n_held++] = memory;
    return memory;
}

void rig_down(rig *r, void *host, const void *device, size_t bytes) {
    if (bytes > 0) CHECK_OK(r->be->ops->copy_out(r->be, host, device, bytes));
}

void rig_drop(rig *r) {
    while (r->n_held > 0)
        r->be->ops->release(r->be, r->held[--r->n_held]);
}

unsigned char *rig_index(rig *r) {
    size_t bytes = (size_t)r->l.n_buckets * TABLE_BUCKET_BYTES;
    unsigned char *copy = malloc(bytes);
    CHECK(copy != NULL);
    rig_down(r, copy, r->l.index, bytes);
    return copy;
}

uint64_t rig_random(uint64_t *state, uint64_t n) {
    *state += 0x9e3779b97f4a7c15ull;
    return n == 0 ? 0 : table_hash(*state) % n;
}

uint64_t rig_key(uint64_t *state, uint64_t n_universe) {
    static const uint64_t ends[] = {0, 1, UINT64_MAX, UINT64_MAX - 1, 1ull << 63, UINT64_MAX - 2};
    uint64_t k = rig_random(state, n_universe);
    return k < 6 ? ends[k] : k * 0x123456789abcdefull;
}
