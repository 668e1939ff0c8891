#include "model/score_columns.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"

static void name_ranking(score_columns *c) {
    const seq_file *data = c->data;
    bool is_rated = data->actions == ACTION_STARS || data->actions == ACTION_HALF_STARS;
    for (int i = 0; i < c->n; i++) {
        const char *signal = data->actions == ACTION_BITS ? seq_signal_name(i) : NULL;
        if (c->is_bits && signal != NULL)
            snprintf(c->name[i], SCORE_NAME_BYTES, "%s", signal);
        else if (c->is_bits)
            snprintf(c->name[i], SCORE_NAME_BYTES, "task%d", i);
        else if (i == 0)
            snprintf(c->name[i], SCORE_NAME_BYTES, "%s", is_rated ? "rating" : "action");
        else
            snprintf(c->name[i], SCORE_NAME_BYTES, "p_%g", seq_rating(data, (uint16_t)(i - 1)));
    }
}

status score_columns_init(score_columns *c, const session *s) {
    const config_ranking *k = &s->config->ranking;
    bool is_ranking = s->config->task == TASK_RANKING;
    *c = (score_columns){.data = s->data};
    c->width = is_ranking ? (int32_t)k->head.item[k->head.n - 1] : 1;
    c->is_bits = is_ranking && c->width == k->n_tasks;
    c->n_classes = c->width;
    if (s->limits.n_actions > 0 && s->limits.n_actions < c->width)
        c->n_classes = s->limits.n_actions;
    c->n = is_ranking && !c->is_bits ? 1 + c->n_classes : c->width;
    TRY(MEM_NEW(&c->name, (size_t)c->n));
    TRY(MEM_NEW(&c->names, (size_t)c->n));
    for (int i = 0; i < c->n; i++)
        c->names[i] = c->name[i];
    if (is_ranking)
        name_ranking(c);
    else
        snprintf(c->name[0], SCORE_NAME_BYTES, "score");
    return OK;
}

void score_columns_fini(score_columns *c) {
    mem_free(c->name);
    mem_free(c->names);
    *c = (score_columns){0};
}

static void finish_bits(const score_columns *c, const float *logit, float *to) {
    for (int32_t i = 0; i < c->width; i++)
        to[i] = (float)(1 / (1 + exp(-(double)logit[i])));
}

/* Softmax over the logits of the ratings alone: a head may have more logits than ratings.  A
 * request has hundreds of candidates, so exponentials are kept where there is room for them. */
static void finish_classes(const score_columns *c, const float *logit, float *to) {
    enum { KEPT = 32 };
    double sum = 0, mean = 0, kept[KEPT];
    float most = logit[0];
    for (int32_t i = 1; i < c->n_classes; i++)
        if (logit[i] > most) most = logit[i];
    for (int32_t i = 0; i < c->n_classes; i++) {
        double e = exp((double)logit[i] - (double)most);
        if (i < KEPT) kept[i] = e;
        sum += e;
    }
    for (int32_t i = 0; i < c->n_classes; i++) {
        double p = (i < KEPT ? kept[i] : exp((double)logit[i] - (double)most)) / sum;
        to[1 + i] = (float)p;
        mean += p * seq_rating(c->data, (uint16_t)i);
    }
    to[0] = (float)mean;
}

void score_columns_finish(const score_columns *c, const float *logit, float *to) {
    (c->is_bits ? finish_bits : finish_classes)(c, logit, to);
}
