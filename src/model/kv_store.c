#include "model/kv_store.h"

#include "model/model_int.h"

const char *kv_store_check(const model *m) {
    if (m->n_layers == 0) return "a model without layers has nothing to keep";
    if (!m->layers[0].kind->keeps_pages)
        return "softmax attention cannot read pages: every request computes the whole history";
    if (m->plan.has_context_mask)
        return "contextual tokens see the whole history, so that every new event changes all rows";
    if (m->is_ranking && !m->plan.has_candidates)
        return "the model has no candidates: each is scored as an event of its own";
    return NULL;
}

bool kv_store_reads_times(const model *m) {
    return m->plan.has_times;
}

static const hstu_layer_config *layer_config_of(const model *m) {
    return &m->layers[0].hstu.config;
}

static int64_t page_bytes(const model *m, bool is_fp8) {
    const hstu_layer_config *c = layer_config_of(m);
    if (is_fp8) return kv_fp8_page_bytes(KV_PAGE_LEN, c->n_heads, c->dim_qk, c->dim_v);
    return (int64_t)KV_PAGE_LEN * c->n_heads * (c->dim_qk + c->dim_v) *
           (int64_t)act_bytes(m->be->act);
}

uint64_t kv_store_page_bytes(const model *m, bool is_fp8) {
    return (uint64_t)page_bytes(m, is_fp8) * (uint64_t)m->n_layers;
}

static status alloc_wide(kv_store *s, const model *m, const kv_store_config *c) {
    int64_t max_pages = (c->max_len + KV_PAGE_LEN - 1) / KV_PAGE_LEN,
            most = max_pages * c->max_users;
    int64_t n_wide = most < c->n_pages ? most : c->n_pages;
    s->max_pages = (int32_t)max_pages;
    TRY(NN_NEW(&s->memory, &s->wide, n_wide * page_bytes(m, false)));
    TRY(STAGED_NEW(&s->memory, &s->used, n_wide));
    TRY(NN_NEW_HOST(&s->memory, &s->place, c->n_pages));
    TRY(NN_NEW_HOST(&s->memory, &s->table, most));
    return NN_NEW_HOST(&s->memory, &s->rows, c->max_users);
}

status kv_store_init(kv_store *s, model *m, const kv_store_config *c) {
    const hstu_layer_config *of = layer_config_of(m);
    backend *be = m->be;
    *s = (kv_store){.n_pages = c->n_pages,
                    .n_host_pages = c->n_host_pages,
                    .n_layers = m->n_layers,
                    .n_heads = of->n_heads,
                    .dim_qk = of->dim_qk,
                    .dim_v = of->dim_v,
                    .page_bytes = page_bytes(m, c->is_fp8),
                    .is_fp8 = c->is_fp8};
    nn_memory_init(&s->memory, be);
    TRY(NN_NEW(&s->memory, &s->data, s->page_bytes * m->n_layers * c->n_pages));
    if (c->is_fp8) TRY(alloc_wide(s, m, c));
    for (int32_t i = 0; c->is_fp8 && i < c->n_pages; i++)
        s->place[i] = -1;
    if (c->n_host_pages == 0) return OK;
    size_t bytes = (size_t)s->page_bytes * (size_t)m->n_layers * (size_t)c->n_host_pages;
    TRY(be->ops->host_alloc(be, (void **)&s->host, bytes));
    memset(s->host, 0, bytes); /* pages are moved whole, and rows without a token must be finite */
    return OK;
}

void kv_store_fini(kv_store *s) {
    backend *be = s->memory.be;
    if (be != NULL) {
        if (s->host != NULL) (void)be->ops->kv_wait(be, -1);
        be->ops->host_release(be, s->host);
        nn_memory_fini(&s->memory);
    }
    *s = (kv_store){0};
}

void kv_store_set_moves(kv_store *s, const kv_move *out, int32_t n_out, const kv_move *in,
                        int32_t n_in) {
    s->moves = (kv_move_args){.out = out, .in = in, .n_out = n_out, .n_in = n_in};
}

bool kv_store_can_record(const kv_store *s) {
    return !s->is_fp8 && s->moves.n_out == 0 && s->moves.n_in == 0;
}

/* The pages of a layer begin to move. */
static status move_layer(const kv_store *s, int index) {
    backend *be = s->memory.be;
    kv_move_args a = s->moves;
    if ((a.n_out == 0 && a.n_in == 0) || index >= s->n_layers) return OK;
    a.stage = index % KV_MOVE_STAGES;
    a.page_bytes = (size_t)s->page_bytes;
    a.device = s->data + (int64_t)index * s->n_pages * s->page_bytes;
    a.host = s->host + (int64_t)index * s->n_host_pages * s->page_bytes;
    return be->ops->kv_move(be, &a);
}

status kv_store_move_all(kv_store *s, const kv_move *in, int32_t n_in) {
    backend *be = s->memory.be;
    kv_store_set_moves(s, NULL, 0, in, n_in);
    status st = OK;
    for (int i = 0; i < s->n_layers && st == OK; i++)
        st = move_layer(s, i);
    if (st == OK) st = be->ops->kv_wait(be, -1);
    kv_store_set_moves(s, NULL, 0, NULL, 0);
    return st;
}

/* The place of a page among those of the batch. */
static int32_t use_page(kv_store *s, int32_t page) {
    if (s->place[page] < 0) {
        s->place[page] = s->n_used;
        s->used.host[s->n_used++] = page;
    }
    return s->place[page];
}

status kv_store_begin(kv_store *s, int32_t n_users, const layout_cache *cache, layout_cache *own) {
    *own = *cache;
    if (!s->is_fp8) return OK;
    for (int32_t i = 0; i < s->n_used; i++)
        s->place[s->used.host[i]] = -1;
    s->n_used = 0;
    for (int32_t b = 0; b < n_users; b++) /* a page that is written belongs to one sequence */
        for (int32_t i = cache->n_reused[b] / KV_PAGE_LEN;
             cache->n_stored[b] > cache->n_reused[b] && i * KV_PAGE_LEN < cache->n_stored[b]; i++)
            use_page(s, cache->page[b][i]);
    s->n_written = s->n_used;
    for (int32_t b = 0; b < n_users; b++) {
        int32_t *row = s->table + (int64_t)b * s->max_pages;
        for (int32_t i = 0; i * KV_PAGE_LEN < cache->n_stored[b]; i++)
            row[i] = use_page(s, cache->page[b][i]);
        s->rows[b] = row;
    }
    own->page = s->rows;
    return STAGED_SEND(s->memory.be, &s->used, s->n_used);
}

static void set_pages(const kv_store *s, char *pages, kv_batch *out) {
    int64_t size = (int64_t)act_bytes(s->memory.be->act);
    int64_t row_k = (int64_t)s->n_heads * s->dim_qk, row_v = (int64_t)s->n_heads * s->dim_v;
    out->k = pages;
    out->v = pages + KV_PAGE_LEN * row_k * size;
    out->stride = KV_PAGE_LEN * (row_k + row_v);
}

static status convert(const kv_store *s, int index, kv_fp8_kind kind, int32_t n_pages) {
    backend *be = s->memory.be;
    kv_batch wide;
    if (!s->is_fp8 || n_pages == 0) return OK;
    set_pages(s, s->wide, &wide);
    kv_fp8_args a = {.kind = kind,
                     .n_heads = s->n_heads,
                     .dim_qk = s->dim_qk,
                     .dim_v = s->dim_v,
                     .n_pages = n_pages,
                     .page_len = KV_PAGE_LEN,
                     .page = s->used.device,
                     .pages_k = wide.k,
                     .pages_v = wide.v,
                     .stride = wide.stride,
                     .narrow = (uint8_t *)s->data + (int64_t)index * s->n_pages * s->page_bytes};
    return be->ops->kv_fp8(be, &a);
}

/* The next layer's pages are copied while this one is computed. */
status kv_store_begin_layer(kv_store *s, int index, kv_batch *out) {
    backend *be = s->memory.be;
    bool has_moves = s->moves.n_out > 0 || s->moves.n_in > 0;
    if (index == 0) TRY(move_layer(s, 0));
    TRY(move_layer(s, index + 1));
    if (has_moves) TRY(be->ops->kv_wait(be, index % KV_MOVE_STAGES));
    char *own = s->data + (int64_t)index * s->n_pages * s->page_bytes;
    set_pages(s, s->is_fp8 ? s->wide : own, out);
    out->n_pages = s->is_fp8 ? s->n_used : s->n_pages;
    return convert(s, index, KV_UNPACK, s->n_used);
}

status kv_store_end_layer(kv_store *s, int index) {
    return convert(s, index, KV_PACK, s->n_written);
}
