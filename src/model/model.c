#include "model/model.h"

#include "base/range.h"

#include "model/model_int.h"

status model_create(model **out, backend *be, const config *c, const model_limits *limits) {
    model *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1));
    m->be = be;
    nn_memory_init(&m->memory, be);
    range_begin("weights", RANGE_NO_NUMBER);
    status st = model_make(m, c, limits);
    range_end();
    if (st != OK) {
        model_destroy(m);
        return status_frame(st, __FILE__, __LINE__);
    }
    *out = m;
    return OK;
}

void model_destroy(model *m) {
    if (m == NULL) return;
    dynamic_fini(&m->dynamic);
    nn_memory_fini(&m->memory);
    mem_free(m);
}

param *model_params(model *m, int *n) {
    *n = m->params.n;
    return m->params.item;
}

status model_alloc_grads(model *m) {
    range_begin("gradients", RANGE_NO_NUMBER);
    status st = param_list_alloc_grads(&m->params);
    if (st == OK) st = input_alloc_grads(&m->input, &m->memory);
    range_end();
    TRY(st);
    for (int i = 0; i < m->dynamic.n_all; i++) {
        dynamic_table *t = &m->dynamic.item[i];
        dynamic_set_grad(t, input_rows(&m->input, t->feature));
    }
    return OK;
}

status model_pack(model *m) {
    bool is_packed = m->be->act != ACT_F32;
    TRY(dynamic_freeze(&m->dynamic, &m->input, &m->memory, &m->plan.items, &m->plan.contexts));
    for (int i = 0; i < m->n_layers; i++) {
        hstu_layer *l = &m->layers[i].hstu;
        if (m->layers[i].kind != &hstu_layer_kind) continue;
        if (is_packed) TRY(hstu_layer_pack(l, &m->memory));
        if (i == m->n_layers - 1) TRY(hstu_layer_split(l, &m->memory));
    }
    return m->is_ranking && is_packed ? ranking_pack(&m->ranking, &m->memory) : OK;
}

param_range model_dense_grads(model *m) {
    return m->params.dense_grads;
}

param_range model_layer_grads(model *m) {
    if (m->n_layer_params == 0) return (param_range){0};
    const param *first = &m->params.item[m->first_layer_param];
    const param *last = first + m->n_layer_params - 1;
    return (param_range){first->grad, last->grad + last->n - first->grad};
}

int model_n_layers(const model *m) {
    return m->n_layers;
}

/* Where the gradients of parameter i begin among the dense ones; tables have theirs elsewhere. */
static float *dense_grad(const model *m, int i) {
    const param_range *all = &m->params.dense_grads;
    while (i < m->params.n && m->params.item[i].is_table)
        i++;
    return i < m->params.n ? m->params.item[i].grad : all->first + all->n;
}

/* Every layer has the same number of parameters. */
param_range model_part_grads(model *m, int part) {
    int n = m->n_layers, each = n > 0 ? m->n_layer_params / n : 0;
    float *first =
        part < 0 ? m->params.dense_grads.first : dense_grad(m, m->first_layer_param + part * each);
    float *end = part < n ? dense_grad(m, m->first_layer_param + (part + 1) * each)
                          : m->params.dense_grads.first + m->params.dense_grads.n;
    return (param_range){first, end - first};
}

dynamic_tables *model_tables(model *m) {
    return &m->dynamic;
}

param *model_rows(model *m, int32_t feature) {
    if (feature >= m->input.config.n_context || dynamic_find(&m->dynamic, feature) != NULL)
        return NULL;
    return input_rows(&m->input, feature);
}

param *model_action_rows(model *m) {
    return m->input.action;
}

status model_init(model *m, uint64_t seed) {
    TRY(dynamic_clear(&m->dynamic));
    return param_list_start(&m->params, seed);
}

comm *model_tensor(const model *m) {
    return m->tensor;
}

int64_t model_count_loss(const model *m, const batch *b) {
    return batch_layout_count_loss(&m->plan, b);
}

status model_corpus(model *m, model_items *out) {
    const catalogue *c = &m->corpus;
    const loss_config *loss = &m->retrieval.loss;
    if (m->is_ranking) return fail(ERR_CONFIG, "a ranking model has no corpus to search in");
    *out = (model_items){.n = c->n, .item = c->item, .row = c->row};
    if (c->rows != NULL) TRY(dynamic_read_items(&m->dynamic, c->rows, c->item, c->row, &out->n));
    const float *rows = c->rows != NULL ? c->rows : m->input.item->value + m->dim;
    out->rows = c->normed != NULL ? c->normed : rows;
    if (c->normed == NULL) return OK;
    if (c->mapped != NULL) {
        out->rows = c->mapped;
        return OK;
    }
    l2_args l2 = {.n = out->n,
                  .dim = m->dim,
                  .is_f32 = true,
                  .eps = loss->eps,
                  .x = rows,
                  .y = c->normed,
                  .scale = c->scale};
    return m->be->ops->l2_fwd(m->be, &l2);
}

bool model_can_map_items(const model *m) {
    const input *in = &m->input;
    return !m->is_ranking && m->be->card == NULL && m->corpus.rows == NULL && in->is_merged &&
           in->events.n_rows == in->config.n_items + 1;
}

bool model_normalises_items(const model *m) {
    return m->corpus.normed != NULL;
}

const param *model_item_param(const model *m) {
    return m->input.item;
}

/* Nothing writes to parameters without training. */
void model_map_items(model *m, const float *rows, const float *normed) {
    m->input.item->value = m->input.events.value = (float *)(uintptr_t)rows;
    m->corpus.mapped = normed;
}

int32_t model_dim(const model *m) {
    return m->dim;
}

int64_t model_n_numbers(const model *m) {
    return m->params.n_numbers;
}

uint64_t model_memory_bytes(const model *m) {
    return m->memory.device_bytes;
}
