/* Each baseline is a function that finds the position of one user's target; the code for all users
 * (the window, the seen marks, the counts) is here once.  A worker has its own marks and counts;
 * counts are integers, so their sum is the same whoever counted. */
#include "train/loop/baselines.h"

#include "model/infer.h"
#include "model/pass.h"

enum { CHUNK_USERS = 64, CHUNK_ITEMS = 16, WEEK = 7 };

const char *const baseline_names[N_BASELINES] = {"popularity", "last-week", "item-knn", "markov"};

/* Bytes of all neighbours at most. */
#define NEIGHBOR_BYTES (UINT64_C(1) << 31)

typedef struct neighbor {
    uint32_t item;
    float sim;
} neighbor;

baseline_config baseline_config_default(uint64_t n_items) {
    uint64_t most = NEIGHBOR_BYTES / sizeof(neighbor) / (n_items + 1);
    int32_t n = most >= 100 ? 100 : most > 0 ? (int32_t)most : 1;
    return (baseline_config){.max_history = 200, .n_neighbors = n, .max_events = 1000};
}

/* A user's window and target. */
typedef struct window {
    const uint32_t *item; /* (n) */
    uint64_t n;
    uint32_t target;
} window;

/* Scratch memory of a worker; arrays of (n_items + 1) are zero between users. */
typedef struct worker_state {
    uint8_t *is_seen;  /* (n_items + 1) */
    float *score;      /* (n_items + 1); of neighbours */
    uint32_t *touched; /* (n_items): items with a score */
    position_counts counts;
} worker_state;

typedef struct evaluation evaluation;
typedef int32_t (*position_fn)(const evaluation *e, const window *w, worker_state *state);

struct evaluation {
    const split *split;
    split_part part;
    int32_t max_history;
    bool keeps_seen;
    split_users users;
    position_fn position_of;
    const uint32_t *place; /* (n_items + 1): popularity, 0 for the best */
    const struct neighbor_list *near;
    worker_state *workers; /* (n_threads) */
};

static window window_of(const evaluation *e, uint64_t user) {
    const seq_file *data = e->split->data;
    event_range range;
    split_range(e->split, e->part, user, &range);
    uint64_t n = range.end - 1 - range.begin, most = (uint64_t)e->max_history;
    n = n < most ? n : most;
    return (window){data->item + (range.end - 1 - n), n, data->item[range.end - 1]};
}

static status evaluate_chunk(void *ctx, int64_t chunk, int worker) {
    const evaluation *e = ctx;
    worker_state *state = &e->workers[worker];
    int64_t n_items = (int64_t)e->split->data->n_items;
    uint64_t first = (uint64_t)chunk * CHUNK_USERS, end = first + CHUNK_USERS;
    for (uint64_t i = first; i < end && i < e->users.n; i++) {
        window w = window_of(e, e->users.user != NULL ? e->users.user[i] : i);
        for (uint64_t k = 0; k < w.n; k++)
            state->is_seen[w.item[k]] = 1;
        int32_t position = POSITION_MISS;
        /* 0: an item of a test file that the data does not have */
        if (w.target != 0 && (e->keeps_seen || !state->is_seen[w.target]))
            position = e->position_of(e, &w, state);
        position_counts_add(&state->counts, &position, 1, n_items);
        for (uint64_t k = 0; k < w.n; k++)
            state->is_seen[w.item[k]] = 0;
    }
    return OK;
}

static status create_workers(evaluation *e, int n_workers, bool has_scores) {
    size_t n = (size_t)e->split->data->n_items + 1;
    TRY(MEM_NEW(&e->workers, (size_t)n_workers));
    for (int i = 0; i < n_workers; i++) {
        TRY(MEM_NEW(&e->workers[i].is_seen, n));
        if (!has_scores) continue;
        TRY(MEM_NEW(&e->workers[i].score, n));
        TRY(MEM_NEW_RAW(&e->workers[i].touched, n));
    }
    return OK;
}

static void destroy_workers(evaluation *e, int n_workers) {
    for (int i = 0; e->workers != NULL && i < n_workers; i++)
        MEM_FREE(e->workers[i].is_seen, e->workers[i].score, e->workers[i].touched);
    mem_free(e->workers);
}

/* A position_counts is too large for the stack, so the counts of all workers are merged into the
 * first worker's. */
static status evaluate(evaluation *e, bool has_scores, pool *p, position_counts *out) {
    int n_workers = p != NULL ? pool_n_threads(p) : 1;
    status st = split_users_init(&e->users, e->split, e->part);
    if (st == OK) st = split_users_check(&e->users, e->split, e->part, 1);
    if (st == OK) st = create_workers(e, n_workers, has_scores);
    int64_t n_chunks = ((int64_t)e->users.n + CHUNK_USERS - 1) / CHUNK_USERS;
    if (st == OK) st = pool_run(p, n_chunks, evaluate_chunk, e);
    if (st == OK) {
        for (int i = 1; i < n_workers; i++)
            position_counts_merge(&e->workers[0].counts, &e->workers[i].counts);
        e->workers[0].counts.count[POSITION_MISS] += e->users.n_lost;
        *out = e->workers[0].counts;
    }
    destroy_workers(e, n_workers);
    split_users_fini(&e->users);
    return st;
}

/* Numbers of items and users are kept in 32 bits. */
static status check_config(const split *s, const baseline_config *c) {
    if (c->max_history < 1 || c->n_neighbors < 1 || c->max_events < 1)
        return fail(ERR_CONFIG, "a baseline needs a history, neighbours and events of at least 1");
    if (s->data->n_items >= INT32_MAX || s->data->n_users > UINT32_MAX)
        return fail(ERR_UNSUPPORTED, "%s: baselines take up to 2^31 items and 2^32 users",
                    s->data->path);
    return OK;
}

/* The newest time of the training events; INT64_MIN if there are none. */
static int64_t newest_time(const split *s) {
    event_range range;
    int64_t newest = INT64_MIN;
    for (uint64_t user = 0; user < s->data->n_users; user++) {
        if (!split_range(s, PART_TRAIN, user, &range)) continue;
        for (uint64_t row = range.begin; row < range.end; row++)
            if (s->data->time[row] > newest) newest = s->data->time[row];
    }
    return newest;
}

/* Only events later than this count. */
static int64_t time_before(const split *s, int32_t last_days) {
    int64_t before;
    if (last_days == 0 ||
        __builtin_sub_overflow(newest_time(s), 86400 * s->data->time_per_second * last_days,
                               &before))
        return INT64_MIN;
    return before;
}

/* place[item] = its place in the order of popularity, from 0. */
static status order_items(const split *s, int32_t last_days, uint32_t *place) {
    const seq_file *data = s->data;
    popular_item *all;
    event_range range;
    int64_t before = time_before(s, last_days);
    TRY(MEM_NEW(&all, (size_t)data->n_items + 1));
    for (uint64_t i = 0; i <= data->n_items; i++)
        all[i].item = (uint32_t)i;
    for (uint64_t user = 0; user < data->n_users; user++) {
        if (!split_range(s, PART_TRAIN, user, &range)) continue;
        for (uint64_t row = range.begin; row < range.end; row++)
            all[data->item[row]].n_events += last_days == 0 || data->time[row] > before;
    }
    popular_sort(all + 1, (size_t)data->n_items);
    for (uint64_t i = 1; i <= data->n_items; i++)
        place[all[i].item] = (uint32_t)i - 1;
    mem_free(all);
    return OK;
}

/* The target's place, minus the number of seen items before it; is_seen is 2 for a counted item. */
static int32_t position_by_popularity(const evaluation *e, const window *w, worker_state *state) {
    uint32_t place = e->place[w->target], n_removed = 0;
    for (uint64_t k = 0; k < w->n && !e->keeps_seen; k++) {
        uint8_t *mark = &state->is_seen[w->item[k]];
        n_removed += *mark == 1 && e->place[w->item[k]] < place;
        *mark = 2;
    }
    return (int32_t)(place - n_removed) + 1;
}

static uint64_t n_training_events(const split *s, uint64_t user, uint64_t max_events,
                                  event_range *range) {
    if (!split_range(s, PART_TRAIN, user, range)) return 0;
    uint64_t n = range->end - range->begin;
    return n < max_events ? n : max_events;
}

static status collect_items(incidence *in, const split *s, uint64_t stride, uint64_t max_events) {
    event_range range = {0};
    uint64_t n = 0;
    for (uint64_t user = 0; user < in->n_users; user++)
        n += n_training_events(s, user * stride, max_events, &range);
    TRY(MEM_NEW(&in->user_begin, (size_t)in->n_users + 1));
    TRY(MEM_NEW_RAW(&in->item, (size_t)n));
    for (uint64_t user = 0; user < in->n_users; user++) {
        uint32_t *item = in->item + in->user_begin[user];
        n = n_training_events(s, user * stride, max_events, &range);
        if (n > 0) memcpy(item, s->data->item + range.end - n, (size_t)n * sizeof *item);
        in->user_begin[user + 1] =
            in->user_begin[user] + (uint64_t)sort_distinct((int32_t *)item, (int32_t)n);
    }
    return OK;
}

static status collect_users(incidence *in) {
    uint64_t n = in->user_begin[in->n_users];
    TRY(MEM_NEW(&in->item_begin, (size_t)in->n_items + 2));
    TRY(MEM_NEW_RAW(&in->user, (size_t)n));
    for (uint64_t i = 0; i < n; i++)
        in->item_begin[in->item[i] + 1]++;
    for (uint64_t i = 0; i <= in->n_items; i++)
        in->item_begin[i + 1] += in->item_begin[i];
    for (uint64_t user = 0; user < in->n_users; user++) {
        for (uint64_t i = in->user_begin[user]; i < in->user_begin[user + 1]; i++)
            in->user[in->item_begin[in->item[i]]++] = (uint32_t)user;
    }
    /* Each begin has advanced to its end, which is the begin of the next. */
    memmove(in->item_begin + 1, in->item_begin, ((size_t)in->n_items + 1) * sizeof *in->item_begin);
    in->item_begin[0] = 0;
    return OK;
}

uint64_t incidence_n_users(const incidence *in, uint32_t item) {
    return in->item_begin[item + 1] - in->item_begin[item];
}

void incidence_fini(incidence *in) {
    MEM_FREE(in->user_begin, in->item, in->item_begin, in->user);
    *in = (incidence){0};
}

status incidence_init(incidence *in, const split *s, uint64_t stride, uint64_t max_events) {
    *in = (incidence){.n_users = (s->data->n_users + stride - 1) / stride,
                      .n_items = s->data->n_items};
    TRY(collect_items(in, s, stride, max_events));
    return collect_users(in);
}

/* Pairs of consecutive training events, each as a user who is counted with the first item and has
 * the second: what an item shares with others are then the pairs that it begins. */
static status incidence_init_pairs(incidence *in, const split *s, uint64_t max_events) {
    event_range range;
    uint64_t n = 0;
    uint32_t *second;
    *in = (incidence){.n_items = s->data->n_items};
    for (uint64_t user = 0; user < s->data->n_users; user++) {
        uint64_t n_own = n_training_events(s, user, max_events, &range);
        in->n_users += n_own > 0 ? n_own - 1 : 0;
    }
    if (in->n_users > UINT32_MAX)
        return fail(ERR_UNSUPPORTED, "%s: a Markov chain takes up to 2^32 pairs of events",
                    s->data->path);
    TRY(MEM_NEW_RAW(&in->user_begin, (size_t)in->n_users + 1));
    TRY(MEM_NEW_RAW(&in->item, (size_t)in->n_users));
    TRY(MEM_NEW_RAW(&second, (size_t)in->n_users));
    for (uint64_t user = 0; user < s->data->n_users; user++) {
        uint64_t n_own = n_training_events(s, user, max_events, &range);
        for (uint64_t row = range.end - n_own; n_own > 0 && row + 1 < range.end; row++, n++) {
            in->item[n] = s->data->item[row];
            second[n] = s->data->item[row + 1];
        }
    }
    for (uint64_t i = 0; i <= n; i++)
        in->user_begin[i] = i;
    status st = collect_users(in);
    mem_free(in->item);
    in->item = second;
    return st;
}

typedef struct neighbor_list {
    bool is_chain; /* of pairs: neighbours come after an item, and only the last one counts */
    int32_t n_most;
    uint32_t *n;   /* (n_items + 1) */
    neighbor *all; /* (n_items + 1, n_most), nearest first */
} neighbor_list;

typedef struct neighbor_job {
    const incidence *in;
    neighbor_list *near;
    struct counter {
        uint32_t *n_both;    /* (n_items + 1), zero between items */
        uint32_t *touched;   /* (n_items + 1) */
        neighbor *candidate; /* (n_items) */
    } * counters;            /* (n_threads) */
} neighbor_job;

static int compare_neighbors(const void *a, const void *b) {
    const neighbor *x = a, *y = b;
    if (x->sim != y->sim) return x->sim > y->sim ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

/* Counts the users that an item shares with every other item; returns the number of such items.
 * Their list is written without a branch: the count says whether an entry stays. */
static uint32_t count_shared(const incidence *in, uint32_t item, struct counter *c) {
    uint32_t n = 0;
    for (uint64_t k = in->item_begin[item]; k < in->item_begin[item + 1]; k++) {
        uint32_t user = in->user[k];
        for (uint64_t i = in->user_begin[user]; i < in->user_begin[user + 1]; i++) {
            uint32_t other = in->item[i];
            c->touched[n] = other;
            n += c->n_both[other]++ == 0;
        }
    }
    return n;
}

/* Moves the `most` nearest to the front, in no order: quickselect on the middle of three. */
static void select_nearest(neighbor *x, int64_t n, int64_t most) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        neighbor pivot = x[low + (high - low) / 2];
        int64_t i = low, k = high;
        while (i <= k) {
            while (compare_neighbors(&x[i], &pivot) < 0)
                i++;
            while (compare_neighbors(&x[k], &pivot) > 0)
                k--;
            if (i > k) break;
            neighbor other = x[i];
            x[i++] = x[k];
            x[k--] = other;
        }
        if (most <= k) {
            high = k;
        } else if (most >= i) {
            low = i;
        } else {
            return;
        }
    }
}

static void find_neighbors(const neighbor_job *j, uint32_t item, struct counter *c) {
    uint32_t n = count_shared(j->in, item, c), n_found = 0;
    double own = (double)incidence_n_users(j->in, item);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other = c->touched[i];
        double both = c->n_both[other], product = own * (double)incidence_n_users(j->in, other);
        c->n_both[other] = 0;
        if (j->near->is_chain)
            c->candidate[n_found++] = (neighbor){other, (float)both};
        else if (other != item)
            c->candidate[n_found++] = (neighbor){other, (float)(both / sqrt(product))};
    }
    uint32_t most = (uint32_t)j->near->n_most, n_kept = n_found < most ? n_found : most;
    if (n_found > most) select_nearest(c->candidate, n_found, most);
    qsort(c->candidate, n_kept, sizeof *c->candidate, compare_neighbors);
    j->near->n[item] = n_kept;
    memcpy(j->near->all + (size_t)item * most, c->candidate, n_kept * sizeof *c->candidate);
}

static status neighbor_chunk(void *ctx, int64_t chunk, int worker) {
    const neighbor_job *j = ctx;
    uint64_t first = (uint64_t)chunk * CHUNK_ITEMS + 1;
    for (uint64_t i = first; i < first + CHUNK_ITEMS && i <= j->in->n_items; i++)
        find_neighbors(j, (uint32_t)i, &j->counters[worker]);
    return OK;
}

static status create_counters(neighbor_job *j, int n_workers) {
    size_t n = (size_t)j->in->n_items + 1;
    TRY(MEM_NEW(&j->counters, (size_t)n_workers));
    for (int i = 0; i < n_workers; i++) {
        TRY(MEM_NEW(&j->counters[i].n_both, n));
        TRY(MEM_NEW_RAW(&j->counters[i].touched, n));
        TRY(MEM_NEW_RAW(&j->counters[i].candidate, n));
    }
    return OK;
}

static status find_all_neighbors(const incidence *in, neighbor_list *near, pool *p) {
    int n_workers = p != NULL ? pool_n_threads(p) : 1;
    neighbor_job j = {.in = in, .near = near};
    status st = create_counters(&j, n_workers);
    int64_t n_chunks = ((int64_t)in->n_items + CHUNK_ITEMS - 1) / CHUNK_ITEMS;
    if (st == OK) st = pool_run(p, n_chunks, neighbor_chunk, &j);
    for (int i = 0; j.counters != NULL && i < n_workers; i++)
        MEM_FREE(j.counters[i].n_both, j.counters[i].touched, j.counters[i].candidate);
    mem_free(j.counters);
    return st;
}

static status neighbor_list_init(neighbor_list *near, const split *s, const baseline_config *c,
                                 bool is_chain, pool *p) {
    uint64_t n = s->data->n_items + 1, max_events = (uint64_t)c->max_events;
    incidence in;
    *near = (neighbor_list){.is_chain = is_chain, .n_most = c->n_neighbors};
    if (n > NEIGHBOR_BYTES / sizeof *near->all / (uint64_t)c->n_neighbors)
        return fail(ERR_UNSUPPORTED,
                    "%s: %d neighbours of %llu items take more than 2 GiB; ask for fewer",
                    s->data->path, c->n_neighbors, (unsigned long long)s->data->n_items);
    TRY(MEM_NEW(&near->n, (size_t)n));
    TRY(MEM_NEW_RAW(&near->all, (size_t)(n * (uint64_t)c->n_neighbors)));
    status st =
        is_chain ? incidence_init_pairs(&in, s, max_events) : incidence_init(&in, s, 1, max_events);
    if (st == OK) st = find_all_neighbors(&in, near, p);
    incidence_fini(&in);
    return st;
}

static uint32_t add_scores(const neighbor_list *near, const window *w, worker_state *state) {
    uint32_t n_touched = 0;
    for (uint64_t k = near->is_chain ? w->n - 1 : 0; k < w->n; k++) {
        uint32_t item = w->item[k];
        const neighbor *list = near->all + (size_t)item * (size_t)near->n_most;
        if (state->is_seen[item] == 2) continue; /* once, however often it is in the window */
        state->is_seen[item] = 2;
        for (uint32_t i = 0; i < near->n[item]; i++) {
            float *score = &state->score[list[i].item];
            if (*score == 0) state->touched[n_touched++] = list[i].item;
            *score += list[i].sim;
        }
    }
    return n_touched;
}

/* Only touched items have a score above 0.  A target without a score ranks after all items with
 * one, and after those of smaller number without one. */
static int32_t position_by_neighbors(const evaluation *e, const window *w, worker_state *state) {
    uint32_t n_touched = add_scores(e->near, w, state), target = w->target, n_above = 0, n_less = 0;
    float own = state->score[target];
    for (uint32_t i = 0; i < n_touched; i++) {
        uint32_t item = state->touched[i];
        float score = state->score[item];
        if (state->is_seen[item] && !e->keeps_seen) continue;
        n_above += score > own || (score == own && item < target);
        n_less += item < target;
    }
    if (own == 0) {
        n_above += target - 1 - n_less;
        for (uint64_t k = 0; k < w->n && !e->keeps_seen; k++) {
            uint8_t *mark = &state->is_seen[w->item[k]];
            n_above -= *mark != 3 && w->item[k] < target;
            *mark = 3;
        }
    }
    for (uint32_t i = 0; i < n_touched; i++)
        state->score[state->touched[i]] = 0;
    return (int32_t)n_above + 1;
}

status baseline_measure(baseline_kind kind, const split *s, split_part part,
                        const baseline_config *c, pool *p, position_counts *out) {
    bool is_popular = kind == BASELINE_POPULARITY || kind == BASELINE_LAST_WEEK;
    neighbor_list near = {0};
    uint32_t *place = NULL;
    *out = (position_counts){0};
    TRY(check_config(s, c));
    status st = is_popular ? MEM_NEW(&place, (size_t)s->data->n_items + 1)
                           : neighbor_list_init(&near, s, c, kind == BASELINE_MARKOV, p);
    if (st == OK && is_popular)
        st = order_items(s, kind == BASELINE_LAST_WEEK ? WEEK : c->last_days, place);
    evaluation e = {s,
                    part,
                    c->max_history,
                    c->keeps_seen,
                    .position_of = is_popular ? position_by_popularity : position_by_neighbors,
                    .place = place,
                    .near = &near};
    if (st == OK) st = evaluate(&e, !is_popular, p, out);
    MEM_FREE(place, near.n, near.all);
    return st;
}
