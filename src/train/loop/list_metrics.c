#include "train/loop/list_metrics.h"

void list_metrics_fini(list_metrics *l) {
    incidence_fini(&l->in);
    MEM_FREE(l->first_place, l->bits, l->of_user);
    *l = (list_metrics){0};
}

void list_metrics_clear(list_metrics *l) {
    if (l->k > 0) memset(l->first_place, 0, ((size_t)l->n_items + 1) * sizeof *l->first_place);
}

/* An item that nobody has counts as one that a single user has. */
static status count_users(list_metrics *l, const split *s) {
    const seq_file *data = s->data;
    uint64_t *last, n_users = 0; /* last: 1 + the user who was counted for the item last */
    event_range r;
    TRY(MEM_NEW(&l->bits, (size_t)l->n_items + 1));
    TRY(MEM_NEW(&last, (size_t)l->n_items + 1));
    for (uint64_t u = 0; u < data->n_users; u++) {
        if (!split_range(s, PART_TRAIN, u, &r)) continue;
        n_users++;
        for (uint64_t i = r.begin; i < r.end; i++)
            if (last[data->item[i]] != u + 1) l->bits[data->item[i]]++, last[data->item[i]] = u + 1;
    }
    for (uint64_t i = 0; i <= l->n_items; i++)
        l->bits[i] = n_users > 0 ? log2((double)n_users / fmax(l->bits[i], 1)) : 0;
    mem_free(last);
    return OK;
}

status list_metrics_init(list_metrics *l, const split *s, const metric_list *metrics) {
    bool has_diversity = false;
    *l = (list_metrics){.n_items = s->data->n_items};
    for (int i = 0; i < metrics->n; i++) {
        const metric *m = &metrics->item[i];
        if (m->kind != METRIC_COVERAGE && !metric_is_of_list(m->kind)) continue;
        if (m->k > l->k) l->k = m->k;
        if (m->kind != METRIC_COVERAGE) l->own.item[l->own.n++] = *m;
        has_diversity |= m->kind == METRIC_DIVERSITY;
    }
    if (l->own.n > LIST_MAX)
        return fail(ERR_USAGE, "more than %d metrics of novelty and diversity", LIST_MAX);
    if (l->k == 0) return OK;
    TRY(MEM_NEW(&l->first_place, (size_t)l->n_items + 1));
    if (l->own.n > 0) TRY(count_users(l, s));
    if (!has_diversity) return OK;
    TRY(incidence_init(&l->in, s, (s->data->n_users + LIST_USERS - 1) / LIST_USERS, UINT64_MAX));
    return MEM_NEW(&l->of_user, (size_t)l->in.n_users);
}

/* An item is a vector over the users, 1 / sqrt(its users) where a user has it, so that the product
 * of two is their cosine.  Adds one to the sum of those before it; returns their products. */
static double add_vector(list_metrics *l, uint32_t item) {
    double size = 1 / sqrt((double)incidence_n_users(&l->in, item)), product = 0;
    for (uint64_t i = l->in.item_begin[item]; i < l->in.item_begin[item + 1]; i++) {
        product += size * l->of_user[l->in.user[i]];
        l->of_user[l->in.user[i]] += size;
    }
    return product;
}

static void remove_vector(list_metrics *l, uint32_t item) {
    for (uint64_t i = l->in.item_begin[item]; i < l->in.item_begin[item + 1]; i++)
        l->of_user[l->in.user[i]] = 0;
}

void list_metrics_add(list_metrics *l, const int32_t *item, int32_t n, int32_t value[LIST_MAX]) {
    double bits = 0, cosines = 0, n_known = 0;
    for (int m = 0; m < LIST_MAX; m++)
        value[m] = LIST_NONE;
    for (int32_t place = 1; place <= n && place <= l->k; place++) {
        int32_t i = item[place - 1], *first = &l->first_place[i];
        if (*first == 0 || place < *first) *first = place;
        if (i > 0 && l->bits != NULL) bits += l->bits[i];
        if (i > 0 && l->of_user != NULL) cosines += add_vector(l, (uint32_t)i);
        n_known += i > 0;
        double n_pairs = n_known * (n_known - 1) / 2;
        for (int m = 0; m < l->own.n; m++) {
            bool is_novelty = l->own.item[m].kind == METRIC_NOVELTY;
            if (place > l->own.item[m].k || (is_novelty ? n_known : n_pairs) == 0) continue;
            double x = is_novelty ? bits / n_known : 1 - cosines / n_pairs;
            value[m] = (int32_t)lrint(x * LIST_UNIT);
        }
    }
    for (int32_t place = 0; l->of_user != NULL && place < n && place < l->k; place++)
        if (item[place] > 0) remove_vector(l, (uint32_t)item[place]);
}

double list_metrics_value(const list_metrics *l, const metric *m, const user_position *users,
                          int64_t n_users) {
    int64_t sum = 0, n = 0;
    int at = 0;
    if (m->kind == METRIC_COVERAGE) {
        for (uint64_t i = 1; i <= l->n_items; i++)
            sum += l->first_place[i] > 0 && l->first_place[i] <= m->k;
        return l->n_items > 0 ? (double)sum / (double)l->n_items : NAN;
    }
    while (l->own.item[at].kind != m->kind || l->own.item[at].k != m->k)
        at++;
    for (int64_t u = 0; u < n_users; u++)
        if (users[u].list[at] != LIST_NONE) sum += users[u].list[at], n++;
    return n > 0 ? (double)sum / LIST_UNIT / (double)n : NAN;
}
