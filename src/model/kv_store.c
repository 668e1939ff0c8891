#include "model/kv_store.h"

#include "model/model_int.h"

const char *kv_store_check(const model *m) {
    if (m->n_layers == 0) return "a model without layers has nothing to keep";
    if (m->layers[0].kind != &hstu_layer_kind)
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

static int64_t page_elements(const kv_store *s) {
    return KV_PAGE_LEN * (s->dim_k + s->dim_v);
}

uint64_t kv_store_page_bytes(const model *m) {
    const hstu_layer_config *c = layer_config_of(m);
    uint64_t row = (uint64_t)c->n_heads * (uint64_t)(c->dim_qk + c->dim_v);
    return row * KV_PAGE_LEN * (uint64_t)m->n_layers * act_bytes(m->be->act);
}

status kv_store_init(kv_store *s, model *m, int32_t n_pages) {
    const hstu_layer_config *c = layer_config_of(m);
    *s = (kv_store){.n_pages = n_pages,
                    .dim_k = (int64_t)c->n_heads * c->dim_qk,
                    .dim_v = (int64_t)c->n_heads * c->dim_v};
    nn_memory_init(&s->memory, m->be);
    return NN_NEW(&s->memory, &s->data, (int64_t)kv_store_page_bytes(m) * n_pages);
}

void kv_store_fini(kv_store *s) {
    if (s->memory.be != NULL) nn_memory_fini(&s->memory);
    *s = (kv_store){0};
}

void kv_store_layer(const kv_store *s, int index, kv_batch *out) {
    int64_t size = (int64_t)act_bytes(s->memory.be->act), page = page_elements(s);
    out->k = s->data + (int64_t)index * s->n_pages * page * size;
    out->v = (char *)out->k + KV_PAGE_LEN * s->dim_k * size;
    out->stride = page;
    out->n_pages = s->n_pages;
}
