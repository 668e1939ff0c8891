#include "nn/model.h"

#include "nn/model_int.h"

status model_create(model **out, backend *be, const config *c, const model_limits *limits) {
    model *m;
    *out = NULL;
    TRY(MEM_NEW(&m, 1));
    m->be = be;
    nn_memory_init(&m->memory, be);
    status st = model_make(m, c, limits);
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

param_range model_dense_gradients(model *m) {
    return m->params.dense_grads;
}

dynamic_tables *model_tables(model *m) {
    return &m->dynamic;
}

status model_init(model *m, uint64_t seed) {
    TRY(dynamic_clear(&m->dynamic));
    return param_list_start(&m->params, seed);
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

int64_t model_count_loss(const model *m, const batch *b) {
    return plan_count_loss(&m->plan.config, b);
}

int64_t model_n_unlabelled(const model *m) {
    return m->plan.n_unlabelled;
}

/* ---- passes ---------------------------------------------------------------------------------- */

status model_forward(model *m, const sequences *s) {
    TRY(input_fwd(&m->input, m->be, &m->plan, s, m->hidden[0]));
    for (int i = 0; i < m->n_layers; i++) {
        const void *x = m->hidden[i];
        void *out = m->hidden[i + 1];
        TRY(m->hstu != NULL ? hstu_layer_fwd(&m->hstu[i], m->be, s, x, out)
                            : sasrec_layer_fwd(&m->sasrec[i], m->be, s, x, out));
    }
    return OK;
}

status model_backward(model *m, const sequences *s) {
    for (int i = m->n_layers - 1; i >= 0; i--) {
        const void *x = m->hidden[i];
        TRY(m->hstu != NULL
                ? hstu_layer_bwd(&m->hstu[i], m->be, s, &m->hstu_scratch, x, m->d_hidden)
                : sasrec_layer_bwd(&m->sasrec[i], m->be, s, &m->sasrec_scratch, x, m->d_hidden));
    }
    return input_bwd(&m->input, m->be, &m->plan, s, m->d_hidden);
}

/* Loss and the gradient of the last hidden state. */
static status train_head(model *m, const retrieval_step *step) {
    const void *last = m->hidden[m->n_layers];
    if (m->is_ranking)
        return ranking_train(&m->ranking, m->be, &m->plan, last, m->d_hidden, m->loss);
    return retrieval_train(&m->retrieval, m->be, &m->plan, step, last, m->d_hidden, m->loss);
}

static status train_passes(model *m, const model_step *at, const int32_t *negatives) {
    sequences s = plan_sequences(&m->plan);
    retrieval_step step = {at->seed, negatives};
    s.has_dropout = true;
    s.drop.key = rng_make_key(at->seed, RNG_DROPOUT);
    TRY(model_forward(m, &s));
    TRY(train_head(m, &step));
    TRY(model_backward(m, &s));
    return input_mark(&m->input, m->be, &m->plan);
}

void model_expect(model *m, const batch *next) {
    m->expected = next;
}

/* Of the passes only what the plan sent changes from batch to batch of a shape, so they can be
 * recorded; negatives that are given are copied in the middle of them. */
static status train_recorded(model *m, const model_step *at) {
    record_state state;
    uint64_t key = plan_record_key(&m->plan) ^ at->seed ^ (uint64_t)(uintptr_t)m << 16;
    TRY(m->be->ops->record(m->be, key, &state));
    status st = state == RECORD_REPLAY ? OK : train_passes(m, at, NULL);
    status end = m->be->ops->record_end(m->be);
    return st != OK ? st : end;
}

status model_train_batch(model *m, const batch *b, const model_step *at, const int32_t *negatives) {
    plan_request request = {.purpose = PLAN_TRAIN, .step = at->step, .grad_scale = at->grad_scale};
    const batch *expected = m->expected;
    m->expected = NULL;
    if (m->dynamic.n > 0 && model_count_loss(m, b) == 0) return OK; /* it touches no rows */
    if (m->corpus != NULL && negatives != NULL)
        return fail(ERR_UNSUPPORTED, "negatives can be given where the item table is static");
    TRY(dynamic_take(&m->dynamic, b, true, &b));
    if (expected != NULL) TRY(dynamic_announce(&m->dynamic, expected));
    if (m->corpus != NULL) request.has_no_row = dynamic_missing_items(&m->dynamic);
    TRY(plan_build(&m->plan, m->be, b, &request));
    if (m->plan.n_loss == 0) return OK;
    if (m->plan.config.bucket > 0 && negatives == NULL) return train_recorded(m, at);
    return train_passes(m, at, negatives);
}

status model_fetch_loss(model *m, double *to, uint64_t *ticket) {
    TRY(m->be->ops->fetch(m->be, to, m->loss, sizeof *to, ticket));
    return m->be->ops->zero(m->be, m->loss, sizeof *m->loss);
}

status model_take_loss(model *m, double *sum) {
    uint64_t ticket;
    TRY(model_fetch_loss(m, sum, &ticket));
    return m->be->ops->wait(m->be, ticket);
}

status model_encode(model *m, const batch *b, const void **out) {
    if (m->is_ranking)
        return fail(ERR_CONFIG, "a ranking model scores candidates; it has no "
                                "encoded user to search with");
    TRY(dynamic_take(&m->dynamic, b, false, &b));
    TRY(plan_build(&m->plan, m->be, b, &(plan_request){.purpose = PLAN_ENCODE}));
    sequences s = plan_sequences(&m->plan);
    TRY(model_forward(m, &s));
    return retrieval_encode(&m->retrieval, m->be, &m->plan, m->hidden[m->n_layers], out);
}

status model_corpus(model *m, model_items *out) {
    if (m->is_ranking) return fail(ERR_CONFIG, "a ranking model has no corpus to search in");
    *out = (model_items){.n = m->n_corpus, .item = m->corpus_item, .row = m->corpus_row};
    if (m->corpus != NULL)
        TRY(dynamic_read_items(&m->dynamic, m->corpus, m->corpus_item, m->corpus_row, &out->n));
    return retrieval_corpus(&m->retrieval, m->be, out->n, &out->rows);
}

status model_score(model *m, const batch *b, const void **out, int64_t *n_rows) {
    if (!m->is_ranking) return fail(ERR_CONFIG, "a retrieval model has no ranking head");
    TRY(dynamic_take(&m->dynamic, b, false, &b));
    TRY(plan_build(&m->plan, m->be, b, &(plan_request){.purpose = PLAN_SCORE}));
    sequences s = plan_sequences(&m->plan);
    TRY(model_forward(m, &s));
    *n_rows = m->plan.n_loss;
    return ranking_score(&m->ranking, m->be, &m->plan, m->hidden[m->n_layers], out);
}
