#include "nn/batch_layout.h"

static int32_t per_event(const layout_config *c) {
    return c->has_actions ? 2 : 1;
}

/* The rows of a contextual feature's ids, where they are not in the order of the ids. */
static layout_rows rows_of(const layout_config *c, int32_t feature) {
    return c->contexts != NULL ? c->contexts[feature] : (layout_rows){0};
}

/* Of all sequences, those in pages included. */
static int64_t max_keys(const batch_layout *p) {
    const layout_config *c = &p->config;
    return c->max_users * (c->n_context + (int64_t)per_event(c) * c->max_events);
}

static void lay_tokens(batch_layout *p, staging *s, int64_t n) {
    const layout_config *c = &p->config;
    STAGE(s, &p->row, n);
    STAGE(s, &p->event_row, c->is_merged ? 0 : n);
    STAGE(s, &p->place, n);
    STAGE(s, &p->added_action, c->adds_actions ? n : 0);
    STAGE(s, &p->user, n);
    STAGE(s, &p->position, n);
    STAGE(s, &p->query_time, c->has_times ? n : 0);
    STAGE(s, &p->key_time, !c->has_times ? 0 : c->max_pages > 0 ? max_keys(p) : n);
    STAGE(s, &p->slot, c->max_pages > 0 ? n : 0);
}

static void lay_losses(batch_layout *p, staging *s, int64_t n) {
    STAGE(s, &p->loss_token, n);
    STAGE(s, &p->label, n);
    STAGE(s, &p->loss_user, n);
    STAGE(s, &p->loss_position, n);
}

/* Padding sequences that fill a batch: none is longer than a real sequence may be. */
static int64_t n_fillers(const batch_layout *p) {
    return (p->config.bucket + p->len_bound - 1) / p->len_bound;
}

/* The next power of two. */
static int64_t round_double(int64_t n) {
    int64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Eight sizes between two powers of two, so that at most an eighth is added; multiples of 16. */
static int64_t round_shape(int64_t n) {
    int64_t step = 16;
    while (n > 16 * step)
        step *= 2;
    return (n + step - 1) / step * step;
}

static int64_t max_sequences(const batch_layout *p) {
    const layout_config *c = &p->config;
    return c->is_rounded ? round_double(c->max_users) : c->max_users + n_fillers(p);
}

static void lay_all(batch_layout *p, staging *s) {
    const layout_config *c = &p->config;
    int64_t n = max_sequences(p);
    s->bytes = 0;
    STAGE(s, &p->step, 1);
    STAGE(s, &p->grad_scale, 1);
    STAGE(s, &p->offsets, n + 1);
    STAGE(s, &p->chosen_offsets, n + 1);
    STAGE(s, &p->context_row, (int64_t)c->max_users * c->n_context);
    STAGE(s, &p->n_contexts, n);
    STAGE(s, &p->n_targets, n);
    STAGE(s, &p->page_table, n * c->max_pages);
    STAGE(s, &p->key_offsets, c->max_pages > 0 ? n + 1 : 0);
    lay_tokens(p, s, p->max_tokens);
    lay_losses(p, s, batch_layout_max_loss(c));
}

static int64_t fill_up(int64_t n, int64_t bucket) {
    return bucket > 0 ? (n + bucket - 1) / bucket * bucket : n;
}

status batch_layout_alloc(batch_layout *p, const layout_config *c, nn_memory *memory) {
    memset(p, 0, sizeof *p);
    p->config = *c;
    p->round_most = LAYOUT_ROUND_MOST;
    int64_t per_user = c->n_context + (int64_t)per_event(c) * c->max_events;
    int64_t n = fill_up(per_user * c->max_users, c->bucket);
    if (c->max_tokens > 0 && c->max_tokens < n) n = c->max_tokens;
    if (c->is_rounded) n = round_shape(n);
    p->len_bound = c->max_len > 0 ? c->max_len : (int32_t)per_user;
    if (n > INT32_MAX)
        return fail(ERR_CONFIG,
                    "%d users of up to %lld tokens are more than 2^31 tokens in a batch; make the "
                    "batch smaller",
                    c->max_users, (long long)per_user);
    p->max_tokens = (int32_t)n;
    staging s = {0};
    lay_all(p, &s);
    TRY(NN_NEW_HOST(memory, &s.host, (int64_t)s.bytes));
    TRY(NN_NEW(memory, &s.device, (int64_t)s.bytes));
    lay_all(p, &s);
    p->block = s;
    if (c->is_rounded) return nn_new_pinned(memory, (void **)&p->packed, s.bytes);
    return NN_NEW_HOST(memory, &p->packed, (int64_t)s.bytes);
}

int32_t batch_layout_n_reused(const batch_layout *p, int32_t n) {
    int32_t n_events = n - p->config.n_context;
    return n_events > 0 ? n_events / per_event(&p->config) : 0;
}

int32_t batch_layout_n_skipped(const batch_layout *p, int32_t n) {
    const layout_config *c = &p->config;
    bool has_all_losses = c->is_ranking && !c->has_candidates;
    return c->has_times || has_all_losses ? 0 : batch_layout_n_reused(p, n);
}

/* One user, while its tokens are laid out. */
typedef struct user_layout {
    batch_layout *p;
    const batch *b;
    layout_purpose purpose;
    const uint8_t *has_no_row;
    rng_key drop_key; /* of item_dropout */
    int32_t user;
    int32_t first, n;  /* events of the user: rows first .. first + n - 1 of the batch */
    int32_t n_input;   /* of these, how many are tokens */
    int32_t n_targets; /* of these, how many are targets */
    int32_t at;        /* next token, of the batch */
    int32_t high;      /* the last row of the position table that it uses */
    int32_t start;
    int32_t place;     /* of the next token in its sequence */
    int32_t n_reused;  /* tokens before this place are not laid out, */
    int32_t n_stored;  /* those before this one are kept */
    int32_t in_page;   /* of the next token, where it is kept; -1: not known yet */
    int32_t page_slot; /* the first place of its page */
    int32_t first_key; /* of the sequence, among all keys of the batch */
    const int32_t *page;
} user_layout;

/* Skips a token that is in pages. */
static bool skip_token(user_layout *l) {
    if (l->place >= l->n_reused) return false;
    l->place++;
    return true;
}

/* Where the next n tokens go, page by page. */
static void put_slots(user_layout *l, int32_t n) {
    int32_t len = l->p->config.page_len, left = l->n_stored - l->place;
    int32_t n_kept = left < 0 ? 0 : left < n ? left : n;
    int32_t *slot = l->p->slot.host + l->at;
    for (int32_t i = 0, count; i < n_kept; i += count) {
        if (l->in_page < 0 || l->in_page == len) {
            l->in_page = (l->place + i) % len;
            l->page_slot = l->page[(l->place + i) / len] * len;
        }
        count = len - l->in_page < n_kept - i ? len - l->in_page : n_kept - i;
        int32_t first = l->page_slot + l->in_page;
#pragma omp simd
        for (int32_t k = 0; k < count; k++)
            slot[i + k] = first + k;
        l->in_page += count;
    }
    for (int32_t i = n_kept; i < n; i++)
        slot[i] = -1;
}

/* Everything of n tokens but their rows. */
static void put_tokens(user_layout *l, int32_t n) {
    batch_layout *p = l->p;
    int32_t position = l->place + l->start, high = l->high;
    int32_t *place = p->place.host + l->at;
#pragma omp simd
    for (int32_t i = 0; i < n; i++)
        place[i] = position + i < high ? position + i : high;
    for (int32_t i = 0; i < n && p->config.is_training; i++) {
        p->user.host[l->at + i] = (uint32_t)l->b->users[l->user];
        p->position.host[l->at + i] = (uint32_t)(position + i);
    }
    if (p->has_cache) put_slots(l, n);
    l->place += n;
    l->at += n;
}

/* A contextual token has the time of the first event: so it is as far from each event in time as
 * the first event is, and other contextual tokens are at no distance. */
static void put_context_times(user_layout *l) {
    int64_t first = l->n > 0 ? l->b->time[l->first] : 0;
    first = seq_seconds(first, l->p->config.time_per_second);
    l->p->key_time.host[l->first_key + l->place] = first;
    if (l->place >= l->n_reused) l->p->query_time.host[l->at] = first;
}

static void put_context(user_layout *l) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    for (int32_t f = 0; f < c->n_context; f++) {
        int64_t k = (int64_t)l->user * c->n_context + f;
        int32_t value = (int32_t)l->b->context[k];
        layout_rows rows = rows_of(c, f);
        int32_t row = rows.row != NULL ? rows.row[value] : c->context_row[f] + value;
        p->context_row.host[k] = row;
        if (c->has_times) put_context_times(l);
        if (skip_token(l)) continue;
        if (c->adds_actions) p->added_action.host[l->at] = -1;
        p->row.host[l->at] = c->is_merged ? row : -1 - (int32_t)k; /* numbered at the end */
        put_tokens(l, 1);
    }
}

static void put_event_token(user_layout *l, int32_t table_row) {
    batch_layout *p = l->p;
    if (skip_token(l)) return;
    if (!p->config.is_merged) p->event_row.host[p->n_events] = table_row;
    p->row.host[l->at] = p->config.is_merged ? table_row : p->n_events;
    p->n_events++;
    put_tokens(l, 1);
}

static void put_times(user_layout *l, int32_t event) {
    const layout_config *c = &l->p->config;
    const int64_t *time = l->b->time + l->first;
    int32_t next = event + 1 < l->n ? event + 1 : event;
    l->p->key_time.host[l->first_key + l->place] = seq_seconds(time[event], c->time_per_second);
    if (l->place >= l->n_reused)
        l->p->query_time.host[l->at] = seq_seconds(time[next], c->time_per_second);
}

static void put_loss(user_layout *l, int32_t token, int32_t label, int32_t event) {
    batch_layout *p = l->p;
    p->loss_token.host[p->n_loss] = token;
    p->label.host[p->n_loss] = label;
    p->loss_user.host[p->n_loss] = (uint32_t)l->b->users[l->user];
    p->loss_position.host[p->n_loss] = (uint32_t)event;
    p->n_loss++;
}

/* The losses of n candidates from `event` on, each of one token. */
static void put_losses(user_layout *l, int32_t token, int32_t event, int32_t n) {
    batch_layout *p = l->p;
    int32_t *to = p->loss_token.host + p->n_loss;
    if (p->config.is_training) {
        for (int32_t i = 0; i < n; i++)
            put_loss(l, token + i, l->b->action[l->first + event + i], event + i);
        return;
    }
#pragma omp simd
    for (int32_t i = 0; i < n; i++)
        to[i] = token + i;
    p->n_loss += n;
}

/* Whether event i of a batch is one that retrieval learns to predict. */
static bool is_label(const layout_config *c, const batch *b, int32_t i) {
    return action_in(c->target_actions, b->action[i]);
}

/* The loss of a token that predicts the item of an event. */
static void put_item_loss(user_layout *l, int32_t token, int32_t event, int32_t position) {
    if (!is_label(&l->p->config, l->b, l->first + event)) return;
    int32_t label = (int32_t)l->b->item[l->first + event] - 1;
    if (l->has_no_row != NULL && l->has_no_row[label])
        l->p->n_unlabelled++;
    else
        put_loss(l, token, label, position);
}

/* The loss of an event's item token, if it has one. */
static void put_event_loss(user_layout *l, int32_t event, int32_t token) {
    const layout_config *c = &l->p->config;
    const batch *b = l->b;
    bool is_target = event >= l->n - l->n_targets;
    uint16_t action = b->action[l->first + event];
    bool has_label = action != ACTION_UNKNOWN || l->purpose != LAYOUT_TRAIN;
    if (c->is_ranking && (is_target || !c->has_candidates) && has_label)
        put_loss(l, token, action, event);
    if (!c->is_ranking && l->purpose == LAYOUT_TRAIN && event + 1 < l->n)
        put_item_loss(l, token, event + 1, event);
}

/* The actions that are added to n tokens of as many events; one that the model does not know, as of
 * an event that came without, is none. */
static void put_added(user_layout *l, int32_t event, int32_t n) {
    const uint16_t *action = l->b->action + l->first + event;
    int32_t *to = l->p->added_action.host + l->at, n_actions = l->p->config.n_actions;
#pragma omp simd
    for (int32_t i = 0; i < n; i++)
        to[i] = action[i] < n_actions ? action[i] : -1;
}

/* The token of an unknown action reads as zeros. */
static int32_t action_row(const layout_config *c, uint16_t action) {
    return action == ACTION_UNKNOWN ? -1 : c->action_row + action;
}

/* Drawn by item and user: all events of the item, or none. */
static bool drops_item(const user_layout *l, int32_t item) {
    float rate = l->p->config.item_dropout;
    if (!(rate > 0) || l->purpose != LAYOUT_TRAIN) return false;
    uint32_t user = (uint32_t)l->b->users[l->user];
    rng_block b = rng_draw(l->drop_key, (uint32_t)item, user, *l->p->step.host, 0);
    return rng_uniform(b.word[0]) < rate;
}

static void put_event(user_layout *l, int32_t event) {
    const layout_config *c = &l->p->config;
    bool is_target = event >= l->n - l->n_targets;
    int32_t token = l->at;
    int32_t item = (int32_t)l->b->item[l->first + event];
    if (c->has_times) put_times(l, event);
    if (c->adds_actions && l->place >= l->n_reused) put_added(l, event, 1);
    int32_t row = c->items.row != NULL ? c->items.row[item] : item;
    put_event_token(l, drops_item(l, item) ? -1 : row);
    put_event_loss(l, event, token);
    if (c->has_actions && !(is_target && l->purpose == LAYOUT_SCORE))
        put_event_token(l, action_row(c, l->b->action[l->first + event]));
}

/* Skips the events whose tokens are all in pages, where they have no times and no losses; returns
 * how many.  Targets are never in pages. */
static int32_t skip_events(user_layout *l) {
    int32_t n = batch_layout_n_skipped(l->p, l->n_reused);
    l->place += n * per_event(&l->p->config);
    return n;
}

/* The table rows of n events from `event` on, of one or two tokens each.  These loops and those of
 * put_tokens are most of the work for a large batch. */
static void put_rows(const user_layout *l, int32_t event, int32_t n, int32_t per, int32_t *to) {
    const layout_config *c = &l->p->config;
    const uint32_t *item = l->b->item + l->first + event;
    const uint16_t *action = l->b->action + l->first + event;
    const int32_t *rows = c->items.row;
    if (rows != NULL)
#pragma omp simd
        for (int32_t i = 0; i < n; i++)
            to[i * per] = rows[item[i]];
    else
#pragma omp simd
        for (int32_t i = 0; i < n; i++)
            to[i * per] = (int32_t)item[i];
    if (per == 2)
#pragma omp simd
        for (int32_t i = 0; i < n; i++)
            to[2 * i + 1] = action_row(c, action[i]);
}

/* Lays out events that are nothing but tokens, without times: most of a server's, of its histories
 * or of its candidates, of which there are losses but no actions.  None of their tokens is in
 * pages. */
static void put_plain(user_layout *l, int32_t event, int32_t end) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    bool are_targets = c->is_ranking && event >= l->n - l->n_targets;
    int32_t per = are_targets ? 1 : per_event(c), n = (end - event) * per;
    int32_t first = p->n_events, token = l->at;
    int32_t *row = p->row.host + l->at, *to = c->is_merged ? row : p->event_row.host + first;
    put_rows(l, event, end - event, per, to);
    if (!c->is_merged)
#pragma omp simd
        for (int32_t i = 0; i < n; i++)
            row[i] = first + i;
    p->n_events += n;
    if (c->adds_actions) put_added(l, event, n);
    put_tokens(l, n);
    if (are_targets) put_losses(l, token, event, n);
}

/* The events from `event` on that put_plain may lay out end there. */
static int32_t plain_end(const user_layout *l, int32_t event) {
    const layout_config *c = &l->p->config;
    bool has_all_losses = c->is_ranking && !c->has_candidates;
    bool is_plain = !c->has_times && !has_all_losses && l->purpose != LAYOUT_TRAIN;
    int32_t end = c->is_ranking ? l->n - l->n_targets : l->n_input;
    if (event >= end) end = l->n_input;
    return is_plain && l->place >= l->n_reused ? end : event;
}

/* Tokens of a user, and how many of them are targets that do not see each other. */
static void measure(const user_layout *l, int32_t *n_tokens, int32_t *n_target_tokens) {
    const layout_config *c = &l->p->config;
    int32_t per = per_event(c), per_target = l->purpose == LAYOUT_SCORE ? 1 : per;
    int32_t n_targets = l->n_targets;
    *n_target_tokens = c->is_ranking ? n_targets * per_target : 0;
    *n_tokens =
        c->n_context + (l->n_input - (c->is_ranking ? n_targets : 0)) * per + *n_target_tokens;
}

/* The sequence's part of the cache. */
static status put_pages(user_layout *l, const layout_cache *cache, int32_t n_tokens,
                        int32_t n_history) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    l->n_reused = cache->n_reused[l->user];
    l->n_stored = cache->n_stored[l->user];
    l->page = cache->page[l->user];
    if (l->n_reused < 0 || l->n_stored < l->n_reused || l->n_stored > n_history ||
        l->n_reused >= n_tokens || l->n_stored > c->max_pages * c->page_len)
        return fail(ERR_CONFIG, "%d of %d tokens reused, %d stored: such a cache does not fit",
                    l->n_reused, n_tokens, l->n_stored);
    int32_t n_pages = (l->n_stored + c->page_len - 1) / c->page_len;
    int32_t *table = p->page_table.host + (int64_t)l->user * c->max_pages;
    for (int32_t i = 0; i < c->max_pages; i++)
        table[i] = i < n_pages ? l->page[i] : 0;
    p->key_offsets.host[l->user + 1] = l->first_key + n_tokens;
    if (n_tokens > p->max_keys) p->max_keys = n_tokens;
    return OK;
}

/* Ends the chosen tokens of a sequence.  Without training they are its last tokens, in order; only
 * a sequence without events that is encoded has none. */
static void end_losses(user_layout *l) {
    batch_layout *p = l->p;
    int32_t *offsets = p->chosen_offsets.host, n = p->n_loss - offsets[l->user];
    offsets[l->user + 1] = p->n_loss;
    if (n > p->max_chosen) p->max_chosen = n;
    if (l->purpose == LAYOUT_ENCODE && l->n_input == 0 && !p->config.has_first_loss)
        p->takes_last = false;
}

static status put_user(user_layout *l, const layout_cache *cache) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    l->first = l->b->offsets[l->user];
    l->n = l->b->offsets[l->user + 1] - l->first;
    l->n_targets = c->is_ranking && !c->has_candidates ? 0 : l->b->n_targets[l->user];
    l->n_input = c->is_ranking ? l->n : l->n - l->n_targets;
    l->place = l->n_reused = 0;
    l->in_page = -1;
    int32_t n_tokens, n_target_tokens;
    measure(l, &n_tokens, &n_target_tokens);
    if (cache != NULL) TRY(put_pages(l, cache, n_tokens, n_tokens - n_target_tokens));
    if (c->max_len > 0 && n_tokens > c->max_len)
        return fail(ERR_FORMAT, "a history of %d events; the model has positions for %d", n_tokens,
                    c->max_len);
    if (n_tokens - l->n_reused > p->max_tokens - l->at)
        return fail(ERR_CONFIG, "a batch of more than %d tokens; the pass was made for these",
                    p->max_tokens);
    l->high = n_tokens + l->start - n_target_tokens;
    if (l->high > c->n_places - 1) l->high = c->n_places - 1;
    put_context(l);
    if (c->has_first_loss && l->purpose == LAYOUT_TRAIN && l->n > 0)
        put_item_loss(l, l->at - 1, 0, l->n); /* no event's loss has that position */
    for (int32_t e = skip_events(l), end; e < l->n_input; e = end) {
        end = plain_end(l, e);
        if (end > e) {
            put_plain(l, e, end);
        } else {
            end = e + 1;
            put_event(l, e);
        }
    }
    bool has_token = l->n_input > 0 || c->has_first_loss;
    if (l->purpose == LAYOUT_ENCODE) put_loss(l, has_token ? l->at - 1 : -1, 0, l->n_input);
    p->n_contexts.host[l->user] = c->n_context;
    p->n_targets.host[l->user] = n_target_tokens;
    p->offsets.host[l->user + 1] = l->at;
    end_losses(l);
    l->first_key += n_tokens;
    if (n_tokens - l->n_reused > p->max_len) p->max_len = n_tokens - l->n_reused;
    return OK;
}

/* A padding token: it has no row and no position. */
static void put_filler(user_layout *l) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    int32_t token = l->at++;
    if (c->has_times) p->query_time.host[token] = 0;
    if (c->has_times && !p->has_cache) p->key_time.host[token] = 0;
    if (!c->is_merged) p->event_row.host[p->n_events] = -1;
    p->row.host[token] = c->is_merged ? -1 : p->n_events;
    p->n_events++;
    p->place.host[token] = -1;
    if (c->adds_actions) p->added_action.host[token] = -1;
    p->user.host[token] = p->position.host[token] = 0;
}

/* Adds padding sequences, always the same number, up to the next multiple of the bucket, and
 * padding losses likewise.  Where every token has a loss, in order, that stays true. */
static void fill_batch(user_layout *l) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    bool is_all = p->n_loss == l->at;
    int64_t n_tokens = fill_up(l->at, c->bucket), n_loss = fill_up(p->n_loss, c->bucket);
    for (int64_t i = 0; i < n_fillers(p); i++) {
        int64_t end = l->at + (int64_t)p->len_bound < n_tokens ? l->at + p->len_bound : n_tokens;
        while (l->at < end)
            put_filler(l);
        p->n_contexts.host[p->n_sequences] = p->n_targets.host[p->n_sequences] = 0;
        p->offsets.host[++p->n_sequences] = l->at;
    }
    for (; p->n_loss < n_loss; p->n_loss++) {
        p->loss_token.host[p->n_loss] = is_all ? p->n_loss : -1;
        p->label.host[p->n_loss] = -1;
        p->loss_user.host[p->n_loss] = p->loss_position.host[p->n_loss] = 0;
    }
    p->max_len = p->len_bound;
}

/* No sequence is longer. */
static int32_t bounded(const batch_layout *p, int64_t n) {
    return n < p->len_bound ? (int32_t)n : p->len_bound;
}

/* Rounds the shapes of a batch up.  The tokens that are added belong to no sequence: what ops make
 * of them nobody reads. */
static void round_batch(user_layout *l) {
    batch_layout *p = l->p;
    const layout_config *c = &p->config;
    int64_t n_tokens = round_shape(l->at), n_sequences = round_double(p->n_users);
    int64_t n_loss = c->is_ranking ? round_shape(p->n_loss) : n_sequences;
    for (; p->n_sequences < n_sequences; p->n_sequences++) {
        p->n_contexts.host[p->n_sequences] = p->n_targets.host[p->n_sequences] = 0;
        p->offsets.host[p->n_sequences + 1] = l->at;
        p->chosen_offsets.host[p->n_sequences + 1] = p->n_loss;
        if (!p->has_cache) continue;
        p->key_offsets.host[p->n_sequences + 1] = l->first_key;
        for (int32_t i = 0; i < c->max_pages; i++)
            p->page_table.host[(int64_t)p->n_sequences * c->max_pages + i] = 0;
    }
    while (l->at < n_tokens) {
        if (p->has_cache) p->slot.host[l->at] = -1;
        put_filler(l);
    }
    for (; p->n_loss < n_loss; p->n_loss++) {
        p->loss_token.host[p->n_loss] = p->label.host[p->n_loss] = -1;
        p->loss_user.host[p->n_loss] = p->loss_position.host[p->n_loss] = 0;
    }
    p->max_len = bounded(p, (p->max_len + 127) / 128 * 128);
    p->max_chosen = bounded(p, (p->max_chosen + 63) / 64 * 64);
    if (p->has_cache) p->max_keys = bounded(p, round_double(p->max_keys));
}

static bool takes_all(const batch_layout *p) {
    if (p->n_loss != p->n_tokens) return false;
    for (int32_t i = 0; i < p->n_loss; i++)
        if (p->loss_token.host[i] != i) return false;
    return true;
}

static void *pack(staging *s, const void *from, int64_t n, size_t size) {
    size_t at = staging_take(s, n, size);
    memcpy(s->host + at, from, (size_t)n * size);
    return s->device + at;
}

#define PACK(s, x, n) ((x)->device = pack((s), (x)->host, (n), sizeof *(x)->host))

/* The arrays have room for the largest batch; what a batch has of them is sent, closely packed:
 * most requests of a server are a hundredth of the largest batch.  What only training reads is not
 * sent where the layout is not for training.  A recorded kernel reads the arrays at the addresses
 * they had when its shape was recorded, so all offsets follow from what batch_layout_record_key
 * hashes.  It does not hash the number of keys: the keys' times are last. */
static size_t pack_all(batch_layout *p) {
    const layout_config *c = &p->config;
    staging s = {.host = p->packed, .device = p->block.device};
    int64_t n = p->n_sequences, n_paged = p->has_cache ? n : 0;
    int64_t n_keys = p->has_cache ? p->key_offsets.host[n] : p->n_tokens;
    int64_t n_labels = c->is_training ? p->n_loss : 0;
    PACK(&s, &p->step, 1);
    PACK(&s, &p->grad_scale, 1);
    PACK(&s, &p->offsets, n + 1);
    PACK(&s, &p->chosen_offsets, p->takes_last ? n + 1 : 0);
    PACK(&s, &p->context_row, (int64_t)p->n_users * c->n_context);
    PACK(&s, &p->n_contexts, n);
    PACK(&s, &p->n_targets, n);
    PACK(&s, &p->page_table, n_paged * c->max_pages);
    PACK(&s, &p->key_offsets, p->has_cache ? n + 1 : 0);
    PACK(&s, &p->row, p->n_tokens);
    PACK(&s, &p->event_row, c->is_merged ? 0 : p->n_events);
    PACK(&s, &p->place, p->n_tokens);
    PACK(&s, &p->added_action, c->adds_actions ? p->n_tokens : 0);
    PACK(&s, &p->user, c->is_training ? p->n_tokens : 0);
    PACK(&s, &p->position, c->is_training ? p->n_tokens : 0);
    PACK(&s, &p->query_time, c->has_times ? p->n_tokens : 0);
    PACK(&s, &p->slot, p->has_cache ? p->n_tokens : 0);
    PACK(&s, &p->loss_token, p->n_loss);
    PACK(&s, &p->label, n_labels);
    PACK(&s, &p->loss_user, n_labels);
    PACK(&s, &p->loss_position, n_labels);
    PACK(&s, &p->key_time, c->has_times ? n_keys : 0);
    return s.bytes;
}

static status refuse(const batch *b, int32_t user, const char *what, int64_t value, int64_t n) {
    return fail(ERR_FORMAT,
                "user %llu of the data has %s %lld, but the model knows 0..%lld: these are not the "
                "data it was made for",
                (unsigned long long)b->users[user], what, (long long)value, (long long)n - 1);
}

/* Whether all items, 1 .. last, and actions of events first .. end - 1 are known; in one loop that
 * the compiler vectorises, as a server does this for every event of every request. */
static bool has_known(const layout_config *c, const batch *b, uint32_t last, int32_t first,
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
        uint32_t known = action[i] == ACTION_UNKNOWN ? 0 : action[i];
        most_action = known > most_action ? known : most_action;
    }
    return first == end || (most_item < last && most_action < most);
}

static status check_events(const layout_config *c, const batch *b, int32_t user, int32_t first) {
    int32_t end = b->offsets[user + 1];
    uint32_t last = (uint32_t)(c->items.row != NULL ? c->items.n - 1 : c->n_items);
    bool is_fine = has_known(c, b, last, first, end);
    for (int32_t i = first; !is_fine && i < end; i++) {
        if (b->item[i] == 0 || b->item[i] > last)
            return refuse(b, user, "item", b->item[i], (int64_t)last + 1);
        if (b->action[i] == ACTION_UNKNOWN) continue;
        if (c->has_actions && b->action[i] >= c->n_actions)
            return refuse(b, user, "action", b->action[i], c->n_actions);
        if (c->is_ranking && c->n_labels > 0 && b->action[i] >= c->n_labels)
            return refuse(b, user, "label", b->action[i], c->n_labels);
    }
    for (int32_t f = 0; f < c->n_context; f++) {
        uint32_t v = b->context[(int64_t)user * c->n_context + f];
        layout_rows rows = rows_of(c, f);
        int32_t n = rows.row != NULL ? rows.n : c->n_context_values[f];
        if (v >= (uint32_t)n) return refuse(b, user, "contextual value", v, n);
    }
    return OK;
}

/* Whether a batch is one that the model was made for; events that are not read are not checked. */
static status check_batch(const batch_layout *p, const batch *b, const layout_cache *cache) {
    const layout_config *c = &p->config;
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
        int32_t n_skipped = cache != NULL ? batch_layout_n_skipped(p, cache->n_reused[u]) : 0;
        TRY(check_events(c, b, u, b->offsets[u] + (n_skipped < n ? n_skipped : n)));
    }
    return OK;
}

status batch_layout_build(batch_layout *p, backend *be, const batch *b,
                          const layout_request *request) {
    if (request->purpose == LAYOUT_TRAIN && !p->config.is_training)
        return fail(ERR_USAGE, "this pass was made without the memory for training");
    if (request->cache != NULL && (p->config.max_pages == 0 || request->purpose == LAYOUT_TRAIN))
        return fail(ERR_USAGE, "this pass was made for whole sequences, without pages");
    TRY(check_batch(p, b, request->cache));
    p->has_cache = request->cache != NULL;
    p->max_keys = 0;
    if (p->has_cache) p->key_offsets.host[0] = 0;
    p->n_users = p->n_sequences = b->n_users;
    p->max_len = p->n_events = p->n_loss = p->n_unlabelled = p->max_chosen = 0;
    p->takes_last =
        request->purpose != LAYOUT_TRAIN && (!p->config.is_ranking || p->config.has_candidates);
    p->offsets.host[0] = p->chosen_offsets.host[0] = 0;
    *p->step.host = request->step;
    *p->grad_scale.host = request->grad_scale;
    user_layout l = {
        .p = p, .b = b, .purpose = request->purpose, .has_no_row = request->has_no_row};
    l.drop_key = rng_make_key(request->seed, RNG_ITEM_DROP);
    for (l.user = 0; l.user < b->n_users; l.user++) {
        l.start = request->start != NULL ? request->start[l.user] : 0;
        TRY(put_user(&l, request->cache));
    }
    p->n_rows = p->n_loss;
    if (p->config.bucket > 0 && request->purpose == LAYOUT_TRAIN && p->n_loss > 0) fill_batch(&l);
    p->is_round = p->config.is_rounded && p->n_users > 0 && l.at <= p->round_most;
    if (p->is_round) round_batch(&l);
    p->n_tokens = l.at;
    p->takes_all = takes_all(p);
    /* Contextual tokens are numbered after all events, whose number is known only now. */
    bool has_numbers = !p->config.is_merged && p->config.n_context > 0;
    for (int32_t t = 0; t < p->n_tokens && has_numbers; t++)
        if (p->row.host[t] < 0) p->row.host[t] = p->n_events - 1 - p->row.host[t];
    size_t bytes = pack_all(p);
    /* The times of keys are as many as the keys, which a recorded copy does not know. */
    bool is_recorded = p->config.is_rounded && !(p->has_cache && p->config.has_times);
    p->unsent_bytes = is_recorded ? bytes : 0;
    return is_recorded ? OK : be->ops->copy_in(be, p->block.device, p->packed, bytes);
}

status batch_layout_send(batch_layout *p, backend *be) {
    size_t bytes = p->unsent_bytes;
    p->unsent_bytes = 0;
    return be->ops->copy(be, p->block.device, p->packed, bytes);
}

/* FNV-1a over what decides the shapes, and which kernels run. */
uint64_t batch_layout_record_key(const batch_layout *p) {
    bool has_users = !p->config.is_rounded || p->config.n_context > 0;
    const int32_t part[] = {has_users ? p->n_users : 0,
                            p->n_sequences,
                            p->n_tokens,
                            p->n_events,
                            p->n_loss,
                            p->takes_all,
                            p->takes_last ? p->max_chosen : -1,
                            p->max_len,
                            p->has_cache ? p->max_keys : -1};
    uint64_t key = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        key = (key ^ (uint32_t)part[i]) * 0x100000001b3u;
    return key;
}

/* Encoding has one for each user. */
int64_t batch_layout_max_loss(const layout_config *c) {
    int32_t per_user = c->has_candidates ? c->max_targets : c->max_events;
    if (!c->is_training && !c->is_ranking) per_user = 1;
    int64_t n = fill_up((int64_t)c->max_users * per_user, c->bucket);
    if (c->is_ranking && c->max_tokens > 0 && c->max_tokens < n) n = c->max_tokens;
    if (!c->is_rounded) return n;
    return c->is_ranking ? round_shape(n) : round_double(c->max_users);
}

sequences batch_layout_sequences(const batch_layout *p) {
    const layout_config *c = &p->config;
    return (sequences){
        .n_sequences = p->n_sequences,
        .n_tokens = p->n_tokens,
        .max_len = p->max_len,
        .len_bound = p->len_bound,
        .is_round = p->is_round,
        .offsets = p->offsets.device,
        .n_contexts = c->has_context_mask ? p->n_contexts.device : NULL,
        .n_targets = c->is_ranking && c->has_candidates ? p->n_targets.device : NULL,
        .query_time = p->query_time.device,
        .key_time = p->key_time.device,
        .kv = {.table = p->has_cache ? p->page_table.device : NULL,
               .offsets = p->key_offsets.device,
               .slot = p->slot.device,
               .page_len = c->page_len,
               .max_pages = c->max_pages,
               .max_len = p->max_keys},
        .drop = {.step = p->step.device, .user = p->user.device, .position = p->position.device}};
}

int64_t batch_layout_count_loss(const layout_config *c, const batch *b) {
    int64_t n = 0;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t length = b->offsets[u + 1] - b->offsets[u], n_targets = b->n_targets[u];
        int32_t n_history = length - n_targets, first = c->has_candidates ? n_history : 0;
        for (int32_t i = first; i < length && c->is_ranking; i++)
            n += b->action[b->offsets[u] + i] != ACTION_UNKNOWN;
        int32_t last = n_history < length ? n_history : length - 1;
        for (int32_t i = !c->has_first_loss; i <= last && !c->is_ranking; i++)
            n += is_label(c, b, b->offsets[u] + i);
    }
    return n;
}

/* An item that the model does not know is no label here; batch_layout_build says what is wrong with
 * it. */
int64_t batch_layout_list_labels(const layout_config *c, const batch *b, const uint8_t *has_no_row,
                                 sort_pair *label) {
    int64_t n = 0;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t end = b->offsets[u + 1], n_inputs = end - b->offsets[u] - b->n_targets[u];
        int32_t first = b->offsets[u] + !c->has_first_loss;
        for (int32_t i = first; i <= b->offsets[u] + n_inputs && i < end; i++) {
            uint32_t row = b->item[i] - 1;
            if (!is_label(c, b, i) || row >= (uint32_t)c->n_items ||
                (has_no_row != NULL && has_no_row[row]))
                continue;
            label[n++].key = row;
        }
    }
    return n;
}
