#include "data/set/batcher.h"

#include "data/set/balance.h"
#include "data/set/prefetch.h"

/* A slot of the ring: the batch, and scratch to divide a step (balanced mode only). */
typedef struct batch_slot {
    batch view;
    balancer *balance;
    uint64_t *step_users; /* (step_size) */
    int32_t *step_length; /* (step_size) */
    int32_t *step_group;  /* (step_size) */
} batch_slot;

struct batcher {
    const seq_file *data;
    batcher_config config;
    split parts;
    split_users users;
    int32_t n_groups;   /* batches a step is divided into: n_ranks * n_micro */
    uint64_t step_size; /* users of a step */
    uint64_t n_visited; /* users of an epoch: all, or those of whole steps */
    uint64_t n_batches; /* of this rank, in an epoch */
    uint64_t data_fingerprint;
    batch_slot *slots; /* (n_slots) */
    prefetch *ring;
};

batcher_config batcher_config_default(void) {
    return (batcher_config){.split = split_rule_of(SPLIT_LEAVE_ONE_OUT),
                            .part = PART_TRAIN,
                            .batch_size = 128,
                            .max_history = 200,
                            .max_targets = 1,
                            .n_ranks = 1,
                            .n_micro = 1,
                            .is_shuffled = true,
                            .n_threads = 2,
                            .n_slots = 8};
}

static status check_range(const char *name, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return OK;
    return fail(ERR_CONFIG, "%s is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, name,
                value, min, max);
}

static status check_config(const batcher_config *c) {
    TRY(check_range("the batch size", c->batch_size, 1, INT32_MAX));
    TRY(check_range("the length of the history", c->max_history, 1, INT32_MAX));
    TRY(check_range("the number of targets", c->max_targets, 0, INT32_MAX));
    TRY(check_range("the number of ranks", c->n_ranks, 1, 1 << 16));
    TRY(check_range("the rank", c->rank, 0, c->n_ranks - 1));
    TRY(check_range("the number of micro-batches", c->n_micro, 1, 1 << 14));
    TRY(check_range("the number of batches to prefetch", c->n_slots, 2, PREFETCH_MAX_SLOTS));
    /* Offsets are 32-bit.  Both factors are below 2^32, so the product is exact in 64 bits. */
    int64_t row_events = (int64_t)c->max_history + c->max_targets;
    if (row_events > INT32_MAX / c->batch_size)
        return fail(ERR_CONFIG,
                    "a batch of %d users x %" PRId64 " events does not fit 32-bit offsets; make "
                    "the batch or the history smaller",
                    c->batch_size, row_events);
    if ((int64_t)c->n_ranks * c->n_micro > INT32_MAX / c->batch_size)
        return fail(ERR_CONFIG, "a step of %d ranks x %d micro-batches x %d users is too large",
                    c->n_ranks, c->n_micro, c->batch_size);
    return OK;
}

uint64_t batcher_fingerprint(const seq_file *data) {
    uint64_t sizes[3] = {data->n_users, data->n_items, data->n_events - data->n_test_events};
    uint64_t h = hash64(sizes, sizeof sizes, 0);
    for (uint32_t i = 0; i < data->file.n_columns; i++) {
        const column *c = &data->file.columns[i];
        if (strcmp(c->name, "meta") == 0) continue;
        uint64_t content[2] = {c->n, c->checksum};
        h = hash64(c->name, strlen(c->name), h);
        h = hash64(content, sizeof content, h);
    }
    return h;
}

/* The events a user contributes: rows begin..end-1, the last n_targets of them targets. */
typedef struct window {
    uint64_t begin;
    int32_t n_events, n_targets;
} window;

static window user_window(const batcher *b, uint64_t user) {
    event_range range;
    if (!split_range(&b->parts, b->config.part, user, &range)) return (window){0};
    uint64_t first_target = split_first_target(&b->parts, &range, (uint64_t)b->config.max_targets);
    uint64_t n_targets = range.end - first_target, n_events = range.end - range.begin;
    uint64_t most = (uint64_t)b->config.max_history + n_targets;
    if (n_events > most) n_events = most;
    return (window){range.end - n_events, (int32_t)n_events, (int32_t)n_targets};
}

static uint64_t user_at(const batcher *b, const permutation *order, uint64_t position) {
    uint64_t i = b->config.is_shuffled ? permutation_at(order, position) : position;
    return b->users.user != NULL ? b->users.user[i] : i;
}

static void add_user(const batcher *b, batch *out, uint64_t user) {
    window w = user_window(b, user);
    size_t n = (size_t)w.n_events, at = (size_t)out->n_tokens;
    memcpy(out->item + at, b->data->item + w.begin, n * sizeof *out->item);
    memcpy(out->action + at, b->data->action + w.begin, n * sizeof *out->action);
    memcpy(out->time + at, b->data->time + w.begin, n * sizeof *out->time);
    uint32_t *context = out->context + (size_t)out->n_users * (size_t)out->n_context;
    for (int f = 0; f < out->n_context; f++)
        context[f] = b->data->context[f].value[user];
    out->users[out->n_users] = user;
    out->n_targets[out->n_users] = w.n_targets;
    out->n_tokens += w.n_events;
    out->offsets[++out->n_users] = out->n_tokens;
}

/* Divides the whole step and keeps this batch's share, in the order of the step. */
static void add_balanced(const batcher *b, batch_slot *s, const permutation *order, uint64_t first,
                         uint64_t n, int32_t group) {
    for (uint64_t i = 0; i < n; i++) {
        s->step_users[i] = user_at(b, order, first + i);
        s->step_length[i] = user_window(b, s->step_users[i]).n_events;
    }
    balancer_run(s->balance, s->step_length, (int64_t)n, s->step_group);
    for (uint64_t i = 0; i < n; i++)
        if (s->step_group[i] == group) add_user(b, &s->view, s->step_users[i]);
}

static status fill_batch(void *ctx, uint64_t number, int slot) {
    const batcher *b = ctx;
    batch_slot *s = &b->slots[slot];
    uint64_t n_micro = (uint64_t)b->config.n_micro, n_groups = (uint64_t)b->n_groups;
    s->view.epoch = number / b->n_batches;
    s->view.index = number % b->n_batches;
    s->view.is_last = s->view.index + 1 == b->n_batches;
    s->view.n_users = s->view.n_tokens = 0;
    uint64_t group = (uint64_t)b->config.rank * n_micro + s->view.index % n_micro;
    uint64_t first = s->view.index / n_micro * b->step_size, n = b->n_visited - first;
    if (n > b->step_size) n = b->step_size;
    permutation order = permutation_make(b->users.n, b->config.seed, RNG_SHUFFLE, s->view.epoch);
    if (b->config.is_balanced) {
        add_balanced(b, s, &order, first, n, (int32_t)group);
        return OK;
    }
    uint64_t end = first + (group + 1) * n / n_groups;
    for (uint64_t i = first + group * n / n_groups; i < end; i++)
        add_user(b, &s->view, user_at(b, &order, i));
    return OK;
}

status batch_init(batch *b, size_t n_users, size_t n_tokens, int32_t n_context) {
    *b = (batch){.n_context = n_context};
    TRY(MEM_NEW(&b->offsets, n_users + 1));
    TRY(MEM_NEW(&b->users, n_users));
    TRY(MEM_NEW(&b->n_targets, n_users));
    TRY(MEM_NEW(&b->context, n_users * (size_t)n_context));
    TRY(MEM_NEW(&b->item, n_tokens));
    TRY(MEM_NEW(&b->action, n_tokens));
    return MEM_NEW(&b->time, n_tokens);
}

void batch_fini(batch *b) {
    MEM_FREE(b->offsets, b->users, b->n_targets, b->context, b->item, b->action, b->time);
    *b = (batch){0};
}

static status init_slot(const batcher *b, batch_slot *s) {
    const batcher_config *c = &b->config;
    size_t n_users = (size_t)c->batch_size, n_tokens = (size_t)batcher_max_tokens(b);
    TRY(batch_init(&s->view, n_users, n_tokens, b->data->n_context));
    if (!c->is_balanced) return OK;
    TRY(MEM_NEW(&s->step_users, b->step_size));
    TRY(MEM_NEW(&s->step_length, b->step_size));
    TRY(MEM_NEW(&s->step_group, b->step_size));
    return balancer_create(&s->balance, (int64_t)b->step_size, b->n_groups,
                           c->max_history + c->max_targets);
}

static void fini_slot(batch_slot *s) {
    batch_fini(&s->view);
    MEM_FREE(s->step_users, s->step_length, s->step_group);
    balancer_destroy(s->balance);
}

static status count_batches(batcher *b) {
    const batcher_config *c = &b->config;
    char rule[SPLIT_TEXT_BYTES];
    b->n_groups = c->n_ranks * c->n_micro;
    b->step_size = (uint64_t)c->batch_size * (uint64_t)b->n_groups;
    uint64_t n_steps = b->users.n / b->step_size;
    if (!c->drops_last && b->users.n % b->step_size != 0) n_steps++;
    b->n_visited = c->drops_last ? n_steps * b->step_size : b->users.n;
    b->n_batches = n_steps * (uint64_t)c->n_micro;
    if (b->users.n == 0 && b->users.n_lost > 0)
        return fail(ERR_FORMAT,
                    "%s: no user can be used for the %s part of %s: the model does not know the "
                    "held-out item of %" PRIu64 " users, and %" PRIu64 " are too short",
                    b->data->path, split_part_name(c->part), split_rule_text(&c->split, rule),
                    b->users.n_lost, b->users.n_too_short);
    if (b->users.n == 0)
        return fail(ERR_FORMAT,
                    "%s: no user has enough events for the %s part of %s (%" PRIu64
                    " are too short)",
                    b->data->path, split_part_name(c->part), split_rule_text(&c->split, rule),
                    b->users.n_too_short);
    if (n_steps == 0)
        return fail(ERR_CONFIG,
                    "%" PRIu64 " users do not fill one step of %" PRIu64
                    "; make the batch smaller or keep the last batch",
                    b->users.n, b->step_size);
    return OK;
}

static status build(batcher *b) {
    const batcher_config *c = &b->config;
    b->parts = split_make(b->data, c->split, c->split_seed);
    b->data_fingerprint = batcher_fingerprint(b->data);
    TRY(split_users_init(&b->users, &b->parts, c->part));
    TRY(split_users_check(&b->users, &b->parts, c->part, (uint64_t)c->max_targets));
    TRY(count_batches(b));
    TRY(MEM_NEW(&b->slots, (size_t)c->n_slots));
    for (int i = 0; i < c->n_slots; i++)
        TRY(init_slot(b, &b->slots[i]));
    return prefetch_create(&b->ring, c->n_slots, c->n_threads, 0, fill_batch, b);
}

status batcher_create(batcher **out, const seq_file *data, const batcher_config *config) {
    batcher *b;
    *out = NULL;
    TRY(check_config(config));
    TRY(MEM_NEW(&b, 1));
    b->data = data;
    b->config = *config;
    status st = build(b);
    return CREATED(st, out, b, batcher_destroy);
}

void batcher_destroy(batcher *b) {
    if (b == NULL) return;
    prefetch_destroy(b->ring);
    for (int i = 0; b->slots != NULL && i < b->config.n_slots; i++)
        fini_slot(&b->slots[i]);
    mem_free(b->slots);
    split_users_fini(&b->users);
    mem_free(b);
}

status batcher_next(batcher *b, const batch **out) {
    int slot;
    *out = NULL;
    TRY(prefetch_next(b->ring, &slot));
    *out = &b->slots[slot].view;
    return OK;
}

status batcher_peek(batcher *b, const batch **out) {
    int slot;
    *out = NULL;
    TRY(prefetch_peek(b->ring, &slot));
    *out = &b->slots[slot].view;
    return OK;
}

uint64_t batcher_n_batches(const batcher *b) {
    return b->n_batches;
}

uint64_t batcher_n_users(const batcher *b) {
    return b->n_visited;
}

uint64_t batcher_n_lost_targets(const batcher *b) {
    return b->users.n_lost_targets;
}

int32_t batcher_max_tokens(const batcher *b) {
    return b->config.batch_size * (b->config.max_history + b->config.max_targets);
}

/* Everything the stream depends on, besides data and seed.  The rank is left out: all ranks are at
 * the same position and share one saved state. */
static void describe_settings(const batcher *b, char *text, size_t n) {
    const batcher_config *c = &b->config;
    char rule[SPLIT_TEXT_BYTES];
    snprintf(text, n,
             "%s %s (split seed %" PRIu64
             "), %d users x (%d + %d) events, %d ranks x %d micro-batches%s%s%s",
             split_rule_text(&c->split, rule), split_part_name(c->part),
             c->split.kind == SPLIT_BY_USER ? c->split_seed : 0, c->batch_size, c->max_history,
             c->max_targets, c->n_ranks, c->n_micro, c->is_shuffled ? ", shuffled" : "",
             c->is_balanced ? ", balanced" : "", c->drops_last ? ", whole steps only" : "");
}

void batcher_save(const batcher *b, batcher_state *out) {
    uint64_t number = prefetch_position(b->ring);
    *out = (batcher_state){.seed = b->config.seed,
                           .epoch = number / b->n_batches,
                           .next_batch = number % b->n_batches,
                           .data = b->data_fingerprint};
    describe_settings(b, out->settings, sizeof out->settings);
}

status batcher_restore(batcher *b, const batcher_state *state) {
    batcher_state own;
    uint64_t number;
    batcher_save(b, &own);
    if (strcmp(state->settings, own.settings) != 0)
        return fail(ERR_CONFIG,
                    "the saved data position belongs to other settings: '%.250s', but this run has "
                    "'%s'",
                    state->settings, own.settings);
    if (state->seed != own.seed)
        return fail(ERR_CONFIG,
                    "the saved data position belongs to seed %" PRIu64
                    ", but this run has %" PRIu64,
                    state->seed, own.seed);
    if (state->data != own.data)
        return fail(ERR_CONFIG,
                    "the saved data position belongs to other data (fingerprint %016" PRIx64
                    "); %s has %016" PRIx64,
                    state->data, b->data->path, own.data);
    if (state->next_batch >= b->n_batches ||
        __builtin_mul_overflow(state->epoch, b->n_batches, &number) ||
        __builtin_add_overflow(number, state->next_batch, &number) || number > INT64_MAX)
        return fail(ERR_CONFIG,
                    "the saved data position, epoch %" PRIu64 " batch %" PRIu64
                    ", does not exist: an epoch has %" PRIu64 " batches",
                    state->epoch, state->next_batch, b->n_batches);
    prefetch_seek(b->ring, number);
    return OK;
}

static void write_word(json_writer *w, const char *key, const char *fmt, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, fmt, value);
    json_key_string(w, key, text);
}

void batcher_state_write(const batcher_state *state, json_writer *w) {
    json_object_open(w);
    write_word(w, "seed", "%" PRIu64, state->seed);
    json_key_int(w, "epoch", (int64_t)state->epoch);
    json_key_int(w, "next_batch", (int64_t)state->next_batch);
    write_word(w, "data", "%016" PRIx64, state->data);
    json_key_string(w, "settings", state->settings);
    json_object_close(w);
}

static status read_word(const json_value *object, const char *key, int base, uint64_t *out) {
    const char *text;
    TRY(json_member_string(object, key, &text));
    const char *digits = base == 16 ? "0123456789abcdef" : "0123456789";
    size_t n = strlen(text);
    /* Only digits, and not too many: strtoull would accept signs, spaces and prefixes. */
    if (n == 0 || n > 20 || strspn(text, digits) != n)
        return fail(ERR_FORMAT, "saved data position: '%s' is \"%.40s\", not a number", key, text);
    *out = strtoull(text, NULL, base);
    return OK;
}

static status read_count(const json_value *object, const char *key, uint64_t *out) {
    int64_t value;
    TRY(json_member_int(object, key, &value));
    if (value < 0)
        return fail(ERR_FORMAT, "saved data position: '%s' is %" PRId64 ", below 0", key, value);
    *out = (uint64_t)value;
    return OK;
}

status batcher_state_read(batcher_state *out, const json_value *object) {
    const char *settings;
    *out = (batcher_state){0};
    if (object == NULL || object->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "saved data position: not a JSON object");
    TRY(read_word(object, "seed", 10, &out->seed));
    TRY(read_word(object, "data", 16, &out->data));
    TRY(read_count(object, "epoch", &out->epoch));
    TRY(read_count(object, "next_batch", &out->next_batch));
    TRY(json_member_string(object, "settings", &settings));
    if (strlen(settings) >= sizeof out->settings)
        return fail(ERR_FORMAT, "saved data position: 'settings' is too long");
    memcpy(out->settings, settings, strlen(settings) + 1);
    return OK;
}
