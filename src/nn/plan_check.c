/* What of a batch is checked before it is laid out, and what is counted of its labels. */
#include "nn/plan_int.h"

static status refuse(const batch *b, int32_t user, const char *what, int64_t value, int64_t n) {
    return fail(ERR_FORMAT,
                "user %llu of the data has %s %lld, but the model knows 0..%lld: these are not the "
                "data it was made for",
                (unsigned long long)b->users[user], what, (long long)value, (long long)n - 1);
}

/* Whether all items, 1 .. last, and actions of events first .. end - 1 are known; in one loop that
 * the compiler vectorises, as a server does this for every event of every request. */
static bool has_known(const plan_config *c, const batch *b, uint32_t last, int32_t first,
                      int32_t end) {
    uint32_t n_actions = c->has_actions ? (uint32_t)c->n_actions : UINT32_MAX;
    uint32_t n_labels = c->is_ranking && c->n_labels > 0 ? (uint32_t)c->n_labels : UINT32_MAX;
    uint32_t most = n_actions < n_labels ? n_actions : n_labels;
    uint32_t most_item = 0, most_action = 0;
    const uint32_t *item = b->item;
    const uint16_t *action = b->action;
#pragma omp simd reduction(max : most_item, most_action)
    for (int32_t i = first; i < end; i++) {
        most_item = item[i] - 1 > most_item ? item[i] - 1 : most_item;
        most_action = action[i] > most_action ? action[i] : most_action;
    }
    return first == end || (most_item < last && most_action < most);
}

static status check_events(const plan_config *c, const batch *b, int32_t user, int32_t first) {
    int32_t end = b->offsets[user + 1];
    uint32_t last = (uint32_t)(c->items.row != NULL ? c->items.n - 1 : c->n_items);
    bool is_fine = has_known(c, b, last, first, end);
    for (int32_t i = first; !is_fine && i < end; i++) {
        if (b->item[i] == 0 || b->item[i] > last)
            return refuse(b, user, "item", b->item[i], (int64_t)last + 1);
        if (c->has_actions && b->action[i] >= c->n_actions)
            return refuse(b, user, "action", b->action[i], c->n_actions);
        if (c->is_ranking && c->n_labels > 0 && b->action[i] >= c->n_labels)
            return refuse(b, user, "label", b->action[i], c->n_labels);
    }
    for (int32_t f = 0; f < c->n_context; f++) {
        uint32_t v = b->context[(int64_t)user * c->n_context + f];
        plan_rows rows = plan_rows_of(c, f);
        int32_t n = rows.row != NULL ? rows.n : c->n_context_values[f];
        if (v >= (uint32_t)n) return refuse(b, user, "contextual value", v, n);
    }
    return OK;
}

status plan_check(const plan *p, const batch *b, const plan_cache *cache) {
    const plan_config *c = &p->config;
    if (b->n_users > c->max_users)
        return fail(ERR_CONFIG, "a batch of %d users; the pass was made for %d", b->n_users,
                    c->max_users);
    if (c->n_context > 0 && b->n_context != c->n_context)
        return fail(ERR_FORMAT, "the data have %d contextual features, the model %d", b->n_context,
                    c->n_context);
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t n = b->offsets[u + 1] - b->offsets[u];
        if (n < 0 || n > c->max_events || b->n_targets[u] < 0 || b->n_targets[u] > n)
            return fail(ERR_CONFIG, "a user with %d events; the model was made for %d", n,
                        c->max_events);
        if (c->has_candidates && b->n_targets[u] > c->max_targets)
            return fail(ERR_CONFIG, "a user with %d candidates; the model was made for %d",
                        b->n_targets[u], c->max_targets);
        int32_t n_skipped = cache != NULL ? plan_n_skipped(p, cache->n_reused[u]) : 0;
        TRY(check_events(c, b, u, b->offsets[u] + (n_skipped < n ? n_skipped : n)));
    }
    return OK;
}

int64_t plan_count_loss(const plan_config *c, const batch *b) {
    int64_t n = 0;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t length = b->offsets[u + 1] - b->offsets[u], n_targets = b->n_targets[u];
        int32_t n_history = length - n_targets;
        if (c->is_ranking)
            n += c->has_candidates ? n_targets : length;
        else
            n += n_history < length ? n_history : length > 0 ? length - 1 : 0;
    }
    return n;
}

/* An item that the model does not know is no label here; plan_build says what is wrong with it. */
int64_t plan_mark_labels(const plan_config *c, const batch *b, const uint8_t *has_no_row,
                         uint8_t *is_label) {
    int64_t n = 0;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t end = b->offsets[u + 1], n_inputs = end - b->offsets[u] - b->n_targets[u];
        for (int32_t i = b->offsets[u]; i < b->offsets[u] + n_inputs && i + 1 < end; i++) {
            uint32_t label = b->item[i + 1] - 1;
            if (label >= (uint32_t)c->n_items || (has_no_row != NULL && has_no_row[label]))
                continue;
            is_label[label] = 1;
            n++;
        }
    }
    return n;
}
