/* The sampled softmax over the label and R negatives of each loss position (ops.h).  Where R is the
 * number of positions, they are processed in pieces, to bound the memory. */
#include <string.h>

#include "nn/loss.h"

/* Negatives drawn in one call, at most. */
enum { PIECE_NUMBERS = 1 << 22 };

static int64_t at_least_1(int64_t n) {
    return n > 1 ? n : 1;
}

status sampled_loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room) {
    int64_t r = c->n_negatives > 0 ? c->n_negatives : at_least_1(room->max_loss);
    int64_t rows = at_least_1(PIECE_NUMBERS / r),
            n_pool = c->type == LOSS_IN_BATCH ? c->n_items : 0;
    backend *be = room->memory->be;
    char *scratch;
    if (rows > room->max_loss) rows = at_least_1(room->max_loss);
    a->max_rows = (int32_t)rows;
    size_t bytes = be->ops->sampled_softmax_scratch(be, rows, (int32_t)r, c->width, c->n_items);
    TRY(NN_NEW(room->memory, &scratch, (int64_t)bytes));
    a->scratch = scratch;
    TRY(STAGED_NEW(room->memory, &a->pool, n_pool));
    TRY(NN_NEW_HOST(room->memory, &a->is_label, n_pool));
    return STAGED_NEW(room->memory, &a->negative, rows * r);
}

/* The distinct labels, ascending; returns their number.  *n_loss: the loss positions. */
static int32_t fill_pool(const loss_config *c, const loss_acts *a, const plan *p,
                         const loss_rows *rows, int32_t *n_loss) {
    int32_t n = 0;
    memset(a->is_label, 0, (size_t)c->n_items);
    *n_loss = p->n_loss;
    if (rows->whole != NULL)
        *n_loss = (int32_t)plan_mark_labels(&p->config, rows->whole, rows->has_no_row, a->is_label);
    for (int32_t i = 0; i < p->n_loss && rows->whole == NULL; i++)
        a->is_label[p->label.host[i]] = 1;
    for (int32_t row = 0; row < c->n_items; row++)
        if (a->is_label[row]) a->pool.host[n++] = row;
    return n;
}

/* Rows first .. first + n - 1 of the losses; R negatives each. */
typedef struct piece {
    int32_t first, n, n_negatives, n_pool;
} piece;

static status take_given(const loss_config *c, const loss_acts *a, backend *be, const piece *s,
                         const int32_t *given) {
    int64_t n = (int64_t)s->n * s->n_negatives;
    const int32_t *from = given + (int64_t)s->first * s->n_negatives;
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 1 || from[i] > c->n_items)
            return fail(ERR_FORMAT, "the negative %d is no item", from[i]);
        a->negative.host[i] = from[i] - 1;
    }
    return STAGED_SEND(be, &a->negative, n);
}

static status draw(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                   const piece *s, const loss_rows *rows) {
    if (rows->negatives != NULL) return take_given(c, a, be, s, rows->negatives);
    bool is_in_batch = c->type == LOSS_IN_BATCH;
    negatives_args args = {.n = s->n,
                           .n_negatives = s->n_negatives,
                           .n_pool = is_in_batch ? s->n_pool : c->n_items,
                           .pool = is_in_batch ? a->pool.device : NULL,
                           .key = rng_make_key(rows->seed, RNG_NEGATIVES),
                           .step = p->step.device,
                           .user = p->loss_user.device + s->first,
                           .position = p->loss_position.device + s->first,
                           .index = a->negative.device};
    return be->ops->negatives(be, &args);
}

static status train_piece(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                          const piece *s, const loss_rows *rows) {
    size_t skip = (size_t)s->first * (size_t)c->width * act_bytes(be->act);
    sampled_softmax_args args = {.n = s->n,
                                 .n_negatives = s->n_negatives,
                                 .dim = c->width,
                                 .n_rows = c->n_items,
                                 .query = (const char *)rows->x + skip,
                                 .table = c->item->value + c->width,
                                 .positive = p->label.device + s->first,
                                 .negative = a->negative.device,
                                 .normalises = c->normalises_items,
                                 .eps = c->eps,
                                 .temperature = c->temperature,
                                 .grad_scale = p->grad_scale.device,
                                 .loss = rows->sum,
                                 .dquery = (char *)rows->dx + skip,
                                 .dtable = c->item->grad + c->width,
                                 .scratch = a->scratch};
    return be->ops->sampled_softmax(be, &args);
}

/* Marks the rows of the pool: labels, which include in-batch negatives (in a part of a batch: those
 * of the whole batch); tables with marks have no other negatives. */
status sampled_loss_train(const loss_config *c, const loss_acts *a, backend *be, const plan *p,
                          const loss_rows *rows) {
    piece s = {.n_negatives = c->n_negatives};
    int32_t n_loss = p->n_loss;
    if (c->type == LOSS_IN_BATCH) {
        s.n_pool = fill_pool(c, a, p, rows, &n_loss);
        TRY(STAGED_SEND(be, &a->pool, s.n_pool));
    }
    if (s.n_negatives == 0) s.n_negatives = n_loss;
    /* A whole batch has at most as many loss positions as the memory was made for. */
    for (s.first = 0; s.first < p->n_loss; s.first += s.n) {
        s.n = p->n_loss - s.first < a->max_rows ? p->n_loss - s.first : a->max_rows;
        TRY(draw(c, a, be, p, &s, rows));
        TRY(train_piece(c, a, be, p, &s, rows));
    }
    if (c->item->marks == NULL) return OK;
    return be->ops->mark(be, s.n_pool, a->pool.device, 1, c->item->marks);
}
