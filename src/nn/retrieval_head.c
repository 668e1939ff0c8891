#include "nn/retrieval_head.h"

#include <string.h>

/* Rows of negatives in one call: pieces bound the memory where R is the number of positions. */
enum { PIECE_NUMBERS = 1 << 22 };

static int64_t at_least_1(int64_t n) {
    return n > 1 ? n : 1;
}

static status alloc_negatives(retrieval_head *h, backend *be, nn_memory *memory) {
    const retrieval_config *c = &h->config;
    int64_t r = c->n_negatives > 0 ? c->n_negatives : at_least_1(h->max_loss);
    int64_t rows = at_least_1(PIECE_NUMBERS / r);
    if (rows > h->max_loss) rows = at_least_1(h->max_loss);
    h->max_negatives = rows * r;
    char *scratch;
    size_t bytes = be->ops->sampled_softmax_scratch(be, rows, (int32_t)r, c->dim, c->n_items);
    TRY(NN_NEW(memory, &scratch, (int64_t)bytes));
    h->scratch = scratch;
    return STAGED_NEW(memory, &h->negative, h->max_negatives);
}

status retrieval_alloc(retrieval_head *h, const retrieval_config *c, const param *item,
                       nn_memory *memory, int64_t max_loss, int64_t max_tokens) {
    *h = (retrieval_head){.config = *c, .item = item, .max_loss = max_loss};
    int64_t n_pool = c->is_in_batch ? c->n_items : 0;
    TRY(choice_alloc(&h->tokens, memory, max_loss, max_tokens, c->dim));
    TRY(nn_new_act(memory, &h->query, max_loss, c->dim));
    TRY(nn_new_act(memory, &h->d_query, max_loss, c->dim));
    TRY(NN_NEW(memory, &h->stats, 2 * max_loss));
    TRY(STAGED_NEW(memory, &h->pool, n_pool));
    TRY(NN_NEW_HOST(memory, &h->is_label, n_pool));
    TRY(NN_NEW(memory, &h->corpus, c->normalises_items ? (int64_t)c->n_corpus * c->dim : 0));
    TRY(NN_NEW(memory, &h->corpus_scale, c->normalises_items ? c->n_corpus : 0));
    return alloc_negatives(h, memory->be, memory);
}

/* ---- queries --------------------------------------------------------------------------------- */

static l2_args l2_of(const retrieval_head *h, int64_t n, const void *x) {
    return (l2_args){.n = n,
                     .dim = h->config.dim,
                     .eps = h->config.eps,
                     .x = x,
                     .y = h->query,
                     .scale = h->stats,
                     .dy = h->d_query};
}

static norm_args norm_of(const retrieval_head *h, int64_t n, const void *x) {
    return (norm_args){.n = n,
                       .dim = h->config.dim,
                       .eps = h->config.eps,
                       .x = x,
                       .y = h->query,
                       .mean = h->stats,
                       .rstd = h->stats + h->max_loss,
                       .dy = h->d_query};
}

status retrieval_encode(retrieval_head *h, backend *be, const plan *p, const void *hidden,
                        const void **out) {
    const void *x = NULL;
    TRY(choice_fwd(&h->tokens, be, p, hidden, &x));
    l2_args l2 = l2_of(h, p->n_loss, x);
    norm_args norm = norm_of(h, p->n_loss, x);
    *out = h->query;
    return h->config.has_layer_norm ? be->ops->norm_fwd(be, &norm) : be->ops->l2_fwd(be, &l2);
}

static status encode_bwd(retrieval_head *h, backend *be, const plan *p, const void *hidden,
                         void *d_hidden) {
    const void *x = h->tokens.is_all ? hidden : h->tokens.x;
    l2_args l2 = l2_of(h, p->n_loss, x);
    norm_args norm = norm_of(h, p->n_loss, x);
    l2.dx = norm.dx = choice_gradient(&h->tokens, d_hidden);
    TRY(h->config.has_layer_norm ? be->ops->norm_bwd(be, &norm) : be->ops->l2_bwd(be, &l2));
    return choice_bwd(&h->tokens, be, p, d_hidden);
}

/* ---- negatives ------------------------------------------------------------------------------- */

/* The distinct labels, ascending; returns their number. */
static int32_t fill_pool(retrieval_head *h, const plan *p) {
    int32_t n = 0;
    memset(h->is_label, 0, (size_t)h->config.n_items);
    for (int32_t i = 0; i < p->n_loss; i++)
        h->is_label[p->label.host[i]] = 1;
    for (int32_t row = 0; row < h->config.n_items; row++)
        if (h->is_label[row]) h->pool.host[n++] = row;
    return n;
}

/* Rows first .. first + n - 1 of the losses; R negatives each. */
typedef struct piece {
    int32_t first, n, n_negatives, n_pool;
} piece;

static status take_given(retrieval_head *h, backend *be, const piece *s, const int32_t *given) {
    int64_t n = (int64_t)s->n * s->n_negatives;
    const int32_t *from = given + (int64_t)s->first * s->n_negatives;
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 1 || from[i] > h->config.n_items)
            return fail(ERR_FORMAT, "the negative %d is no item", from[i]);
        h->negative.host[i] = from[i] - 1;
    }
    return STAGED_SEND(be, &h->negative, n);
}

static status draw(retrieval_head *h, backend *be, const plan *p, const piece *s,
                   const retrieval_step *at) {
    if (at->negatives != NULL) return take_given(h, be, s, at->negatives);
    bool is_in_batch = h->config.is_in_batch;
    negatives_args a = {.n = s->n,
                        .n_negatives = s->n_negatives,
                        .n_pool = is_in_batch ? s->n_pool : h->config.n_items,
                        .pool = is_in_batch ? h->pool.device : NULL,
                        .key = rng_make_key(at->seed, RNG_NEGATIVES),
                        .step = p->step.device,
                        .user = p->loss_user.device + s->first,
                        .position = p->loss_position.device + s->first,
                        .index = h->negative.device};
    return be->ops->negatives(be, &a);
}

/* In-batch negatives are labels, which are marked anyway. */
static status mark_negatives(retrieval_head *h, backend *be, const piece *s,
                             const retrieval_step *at) {
    if (h->item->marks == NULL || (h->config.is_in_batch && at->negatives == NULL)) return OK;
    int64_t n = (int64_t)s->n * s->n_negatives;
    return be->ops->mark(be, n, h->negative.device, 1, h->item->marks);
}

/* ---- loss ------------------------------------------------------------------------------------ */

static status train_piece(retrieval_head *h, backend *be, const plan *p, const piece *s,
                          double *loss) {
    const retrieval_config *c = &h->config;
    size_t skip = (size_t)s->first * (size_t)c->dim * act_bytes(be->act);
    sampled_softmax_args a = {.n = s->n,
                              .n_negatives = s->n_negatives,
                              .dim = c->dim,
                              .n_rows = c->n_items,
                              .query = (const char *)h->query + skip,
                              .table = h->item->value + c->dim,
                              .positive = p->label.device + s->first,
                              .negative = h->negative.device,
                              .normalises = c->normalises_items,
                              .eps = c->eps,
                              .temperature = c->temperature,
                              .grad_scale = p->grad_scale.device,
                              .loss = loss,
                              .dquery = (char *)h->d_query + skip,
                              .dtable = h->item->grad + c->dim,
                              .scratch = h->scratch};
    return be->ops->sampled_softmax(be, &a);
}

static status train_all(retrieval_head *h, backend *be, const plan *p, const retrieval_step *at,
                        double *loss) {
    piece s = {.n_negatives = h->config.n_negatives > 0 ? h->config.n_negatives : p->n_loss};
    int64_t rows = at_least_1(h->max_negatives / at_least_1(s.n_negatives));
    if (h->config.is_in_batch) {
        s.n_pool = fill_pool(h, p);
        TRY(STAGED_SEND(be, &h->pool, s.n_pool));
    }
    for (s.first = 0; s.first < p->n_loss; s.first += s.n) {
        s.n = p->n_loss - s.first < rows ? p->n_loss - s.first : (int32_t)rows;
        TRY(draw(h, be, p, &s, at));
        TRY(train_piece(h, be, p, &s, loss));
        TRY(mark_negatives(h, be, &s, at));
    }
    return OK;
}

status retrieval_train(retrieval_head *h, backend *be, const plan *p, const retrieval_step *at,
                       const void *hidden, void *d_hidden, double *loss) {
    const void *query = NULL;
    TRY(retrieval_encode(h, be, p, hidden, &query));
    TRY(train_all(h, be, p, at, loss));
    if (h->item->marks != NULL)
        TRY(be->ops->mark(be, p->n_loss, p->label.device, 1, h->item->marks));
    return encode_bwd(h, be, p, hidden, d_hidden);
}

status retrieval_corpus(retrieval_head *h, backend *be, int32_t n, const float **out) {
    const retrieval_config *c = &h->config;
    const float *rows = c->corpus_rows != NULL ? c->corpus_rows : h->item->value + c->dim;
    *out = c->normalises_items ? h->corpus : rows;
    if (!c->normalises_items) return OK;
    l2_args a = {.n = n,
                 .dim = c->dim,
                 .is_f32 = true,
                 .eps = c->eps,
                 .x = rows,
                 .y = h->corpus,
                 .scale = h->corpus_scale};
    return be->ops->l2_fwd(be, &a);
}
