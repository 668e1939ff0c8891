#include "train/loop/evaluate.h"

#include "nn/dynamic.h"
#include "ops/comm.h"
#include "train/loop/list_metrics.h"

/* Metrics of the tasks of ranking: AUC, GAUC and ECE. */
typedef struct task_values {
    double of[METRIC_KINDS][AUC_MAX_TASKS];
} task_values;

struct evaluator {
    arena memory; /* of the arrays */
    session *s;
    const volatile sig_atomic_t *stop; /* or NULL */
    batcher *batches;
    batcher_state first; /* before the first user */
    pass *pass;
    /* retrieval */
    int32_t *target;   /* (B): rows of the corpus */
    int32_t *position; /* (B): of the target among the candidates */
    uint8_t *is_lost;  /* (B): the target has no row */
    position_counts *counts;
    split split;        /* its training events say what is novel */
    list_metrics lists; /* where a metric is of lists: */
    int32_t *list;      /* (B, lists.k) */
    float *list_score;  /* (B, lists.k) */
    /* ranking */
    int32_t *label;     /* (T): bits, or one bit for the class */
    float *logits;      /* (T, n_columns), host */
    int64_t n_scored;   /* rows of these two that this rank scored in the round of batches */
    int32_t *all_label; /* with several ranks: of all ranks, in the order of the batches */
    float *all_logits;
    int32_t n_columns; /* tasks, or classes */
    bool is_bits;
    auc areas;
    double *user_area; /* (n_users, tasks): for GAUC */
    log_losses losses;
    int64_t n_right,
        n_rows; /* classes: rows whose highest logit is the label; bits: of all tasks */
    metric_list metrics;
    bool keeps_seen;
    /* the users of the last run, of all ranks when it is over */
    user_position *users;
    int64_t n_users;
    size_t users_capacity;
    user_position *round; /* (B): ranking, of this rank's batch in the round */
    int64_t n_round, n_unknown, n_runs;
    task_values tasks;      /* of all rows, or of a replicate */
    bool is_group;          /* the state is that of some users */
    bool has_estimate;      /* the time of an evaluation was told */
    int32_t n_items_ranked; /* of the last run */
    int n_usual; /* the first of the metrics: those of all evaluations, not of the end alone */
};

double eval_value(const eval_result *r, const char *name) {
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->item[i].name, name) == 0) return r->item[i].value;
    return NAN;
}

static void add_metric(eval_result *r, double value, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void add_metric(eval_result *r, double value, const char *fmt, ...) {
    va_list args;
    if (r->n == EVAL_MAX_METRICS) return;
    va_start(args, fmt);
    vsnprintf(r->item[r->n].name, EVAL_NAME_BYTES, fmt, args);
    va_end(args);
    r->item[r->n].alias = 0;
    r->item[r->n].low = r->item[r->n].high = NAN;
    r->item[r->n++].value = value;
}

bool eval_is_beyond(const eval_result *r, const char *metric_name) {
    const char *at = strchr(metric_name, '@');
    return r->is_retrieval && at != NULL && atoi(at + 1) >= r->n_items_ranked;
}

static status note_user(evaluator *e, user_position found) {
    TRY(MEM_RESERVE(&e->users, &e->users_capacity, (size_t)e->n_users + 1));
    e->users[e->n_users++] = found;
    return OK;
}

static void write_intervals(const eval_result *r, json_writer *w) {
    bool has_any = false;
    for (int i = 0; i < r->n; i++)
        has_any |= isfinite(r->item[i].low);
    if (!has_any) return;
    json_key_object(w, "intervals");
    for (int i = 0; i < r->n; i++) {
        if (!isfinite(r->item[i].low) || eval_is_beyond(r, r->item[i].name)) continue;
        json_key_array(w, r->item[i].name);
        json_double(w, r->item[i].low);
        json_double(w, r->item[i].high);
        json_array_close(w);
    }
    json_object_close(w);
}

/* [mean prediction, share of positives, rows] of each bin that has rows. */
static void write_bins(const eval_task *t, json_writer *w) {
    json_key_array(w, t->name);
    for (const calibration_bin *b = t->bin; b < t->bin + CALIBRATION_BINS; b++) {
        if (b->n == 0) continue;
        json_array_open(w);
        json_double(w, b->predicted / (double)b->n);
        json_double(w, b->observed / (double)b->n);
        json_int(w, b->n);
        json_array_close(w);
    }
    json_array_close(w);
}

void eval_write_metrics(const eval_result *r, json_writer *w) {
    char name[EVAL_NAME_BYTES];
    for (int i = 0; i < r->n; i++)
        if (!eval_is_beyond(r, r->item[i].name))
            json_key_double(w, r->item[i].name, r->item[i].value);
    for (int i = 0; i < r->n; i++) {
        if (r->item[i].alias == 0) continue;
        snprintf(name, sizeof name, "auc:class%d", r->item[i].alias - 1);
        json_key_double(w, name, r->item[i].value);
    }
    write_intervals(r, w);
    if (r->has_gauc) {
        json_key_object(w, "gauc_left_out");
        for (int k = 0; k < r->n_tasks; k++)
            json_key_int(w, r->task[k].name, r->task[k].n_left_out);
        json_object_close(w);
    }
    if (!r->has_ece) return;
    json_key_object(w, "calibration");
    for (int k = 0; k < r->n_tasks; k++)
        write_bins(&r->task[k], w);
    json_object_close(w);
}

void eval_write_misses(const eval_result *r, json_writer *w) {
    if (r->n_unknown > 0) json_key_int(w, "targets_unknown", r->n_unknown);
    if (r->n_unlabelled > 0) json_key_int(w, "users_unlabelled", r->n_unlabelled);
    if (r->n_ids == 0) return;
    json_key_int(w, "ids_read", r->n_ids);
    json_key_int(w, "ids_without_row", r->n_absent);
    if (!r->is_retrieval) return;
    json_key_int(w, "items_ranked", r->n_items_ranked);
    json_key_int(w, "targets_without_row", r->n_lost);
}

bool eval_describe_misses(const eval_result *r, char text[EVAL_MISSES_BYTES]) {
    text[0] = '\0';
    if (r->n_unknown > 0)
        text_add(text, EVAL_MISSES_BYTES,
                 "evaluation: held-out events of items that the model does not know: %" PRId64
                 " (%s)",
                 r->n_unknown, r->is_retrieval ? "counted as not found" : "left out");
    if (r->n_unlabelled > 0)
        text_add(text, EVAL_MISSES_BYTES,
                 "%sevaluation: users left out, as their held-out events have no action: %" PRId64,
                 text[0] != '\0' ? "; " : "", r->n_unlabelled);
    if (r->n_ids == 0) return text[0] != '\0';
    text_add(text, EVAL_MISSES_BYTES,
             "%sevaluation: %" PRId64 " of %" PRId64
             " ids had no row in their dynamic table (hit rate %.2f %%)",
             text[0] != '\0' ? "; " : "", r->n_absent, r->n_ids,
             100 * (1 - (double)r->n_absent / (double)r->n_ids));
    if (r->is_retrieval)
        text_add(text, EVAL_MISSES_BYTES,
                 "; %d item%s one and %s ranked; of %" PRId64 " held-out items %" PRId64
                 " had none and count as not found",
                 r->n_items_ranked, r->n_items_ranked == 1 ? " has" : "s have",
                 r->n_items_ranked == 1 ? "was" : "were", r->n_users, r->n_lost);
    return true;
}

/* The rows of the held-out items.  An item without a row gets row 0 until mark_lost corrects its
 * position. */
static void list_targets(evaluator *e, const batch *b, const model_items *corpus,
                         eval_result *out) {
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t last = b->offsets[u + 1] - 1, i = b->offsets[u];
        int32_t row = corpus->row[b->item[last]];
        e->is_lost[u] = row < 0;
        e->target[u] = row < 0 ? 0 : row;
        while (i < last && b->item[i] != b->item[last])
            i++;
        out->n_repeated += i < last;
    }
}

static void mark_lost(evaluator *e, int32_t n_users, eval_result *out) {
    for (int32_t u = 0; u < n_users; u++) {
        if (!e->is_lost[u]) continue;
        e->position[u] = e->s->limits.n_items + 1;
        out->n_lost++;
    }
}

static status rank_batch(evaluator *e, const batch *b, const model_items *corpus,
                         eval_result *out) {
    rank_query q = {.corpus = corpus,
                    .target = e->target,
                    .rank = e->position,
                    .k = e->lists.k < corpus->n ? e->lists.k : corpus->n,
                    .best = e->list,
                    .score = e->list_score,
                    .keeps_seen = e->keeps_seen};
    list_targets(e, b, corpus, out);
    TRY(pass_rank(e->pass, b, &q));
    mark_lost(e, b->n_users, out);
    for (int32_t u = 0; u < b->n_users; u++) {
        const int32_t *list = e->list + (int64_t)u * q.k;
        int32_t n = 0;
        user_position found = {.user = b->users[u],
                               .position = position_counted(e->position[u], e->s->limits.n_items)};
        while (n < q.k && list[n] >= 0)
            n++;
        list_metrics_add(&e->lists, list, n, found.list);
        TRY(note_user(e, found));
    }
    position_counts_add(e->counts, e->position, b->n_users, e->s->limits.n_items);
    return OK;
}

/* The actions of the scored events, in the order of pass_score; -1: unknown, no label. */
static int64_t collect_labels(evaluator *e, const batch *b) {
    int64_t n = 0;
    e->n_round = b->n_users;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t end = b->offsets[u + 1];
        int32_t from = e->s->max_targets > 0 ? end - b->n_targets[u] : b->offsets[u];
        e->round[u] = (user_position){.user = b->users[u]};
        for (int32_t i = from; i < end; i++) {
            bool is_known = b->action[i] != ACTION_UNKNOWN;
            e->label[n++] = is_known ? b->action[i] : -1;
            e->round[u].position += is_known;
        }
    }
    return n;
}

/* Leaves the rows without a label out; returns how many have one. */
static int64_t keep_labelled(evaluator *e, int64_t n) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (e->label[i] < 0) continue;
        memmove(e->logits + kept * e->n_columns, e->logits + i * e->n_columns,
                sizeof *e->logits * (size_t)e->n_columns);
        e->label[kept++] = e->label[i];
    }
    return kept;
}

static void count_right(evaluator *e, const float *logits, const int32_t *label, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = logits + i * e->n_columns;
        int32_t best = 0;
        for (int32_t c = 1; c < e->n_columns; c++)
            if (row[c] > row[best]) best = c;
        e->n_right += best == label[i];
    }
    e->n_rows += n;
}

/* Of a task: whether the sign of the logit says what the label says. */
static void count_right_bits(evaluator *e, const float *logits, const int32_t *label, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int32_t k = 0; k < e->n_columns; k++)
            e->n_right += (logits[i * e->n_columns + k] > 0) == (label[i] >> k & 1);
    e->n_rows += n * e->n_columns;
}

/* Class c becomes a binary task, one against all others: label bit c. */
static void classes_to_bits(int32_t *label, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        label[i] = (int32_t)(1u << label[i]);
}

static status score_batch(evaluator *e, const batch *b) {
    session *s = e->s;
    const void *scores;
    int64_t n_rows = 0, n = collect_labels(e, b);
    TRY(pass_score(e->pass, b, &scores, &n_rows));
    if (n_rows != n)
        return fail(ERR_FORMAT, "%lld events were scored, but there are %lld labels",
                    (long long)n_rows, (long long)n);
    TRY(backend_read_act(s->be, e->logits, scores, (size_t)(n * e->n_columns)));
    e->n_scored = keep_labelled(e, n);
    return OK;
}

static status add_scores(evaluator *e, const float *logits, int32_t *label, int64_t n) {
    if (e->n_columns <= AUC_MAX_TASKS) log_losses_add(&e->losses, logits, label, n);
    if (e->is_bits) {
        count_right_bits(e, logits, label, n);
    } else {
        count_right(e, logits, label, n);
        if (e->n_columns > AUC_MAX_TASKS) return OK;
        classes_to_bits(label, n);
    }
    return auc_add(&e->areas, logits, label, n);
}

/* The number of rows of each rank, and of all. */
static status gather_counts(comm *c, int64_t n_own, int64_t n_rows[SESSION_MAX_RANKS], int64_t *n) {
    int64_t one[SESSION_MAX_RANKS];
    for (int r = 0; r < c->size; r++)
        one[r] = 1;
    all_gather_args a = {.row_bytes = sizeof n_own, .n_rows = one, .from = &n_own, .to = n_rows};
    TRY(comm_host_gather(c, &a));
    *n = 0;
    for (int r = 0; r < c->size; r++)
        *n += n_rows[r];
    return OK;
}

/* Adds what each rank has found of its users, in the order of the ranks. */
static status gather_users(evaluator *e, const user_position *own, int64_t n_own) {
    comm *c = e->s->comm;
    int64_t n_rows[SESSION_MAX_RANKS], n = n_own;
    if (comm_size(c) > 1) TRY(gather_counts(c, n_own, n_rows, &n));
    TRY(MEM_RESERVE(&e->users, &e->users_capacity, (size_t)(e->n_users + n)));
    user_position *to = e->users + e->n_users;
    e->n_users += n;
    if (comm_size(c) == 1) {
        memcpy(to, own, (size_t)n * sizeof *to);
        return OK;
    }
    all_gather_args a = {.row_bytes = sizeof *to, .n_rows = n_rows, .from = own, .to = to};
    return comm_host_gather(c, &a);
}

/* The scores of all ranks of a round, one batch each, in the order of the batches: as if one rank
 * had scored them. */
static status gather_scores(evaluator *e) {
    comm *c = e->s->comm;
    int64_t n_rows[SESSION_MAX_RANKS], n;
    all_gather_args a;
    TRY(gather_counts(c, e->n_scored, n_rows, &n));
    TRY(MEM_RESIZE(&e->all_label, (size_t)n));
    TRY(MEM_RESIZE(&e->all_logits, (size_t)(n * e->n_columns)));
    a = (all_gather_args){
        .row_bytes = sizeof *e->label, .n_rows = n_rows, .from = e->label, .to = e->all_label};
    TRY(comm_host_gather(c, &a));
    a.row_bytes = (int64_t)sizeof *e->logits * e->n_columns;
    a.from = e->logits;
    a.to = e->all_logits;
    TRY(comm_host_gather(c, &a));
    e->n_scored = 0;
    return add_scores(e, e->all_logits, e->all_label, n);
}

/* After a round of some batches, one for each of the first ranks; the others must take part where
 * tables are read. */
static status end_round(evaluator *e, int n_batches) {
    comm *c = e->s->comm;
    if (n_batches > 0 && n_batches < comm_size(c) && c->rank >= n_batches)
        TRY(dynamic_take_nothing(model_tables(e->s->model)));
    if (e->s->config->task == TASK_RETRIEVAL) return OK;
    TRY(gather_users(e, e->round, e->n_round));
    e->n_round = 0;
    if (comm_size(e->s->comm) > 1) return gather_scores(e);
    int64_t n = e->n_scored;
    e->n_scored = 0;
    return add_scores(e, e->logits, e->label, n);
}

/* A metric of tasks: the mean over those that have it, and each of several. */
static void report_tasks(const evaluator *e, metric_kind kind, eval_result *r) {
    char name[EVAL_NAME_BYTES];
    const double *value = e->tasks.of[kind];
    double sum = 0;
    int n_defined = 0;
    for (int k = 0; k < e->n_columns; k++)
        if (isfinite(value[k])) sum += value[k], n_defined++;
    add_metric(r, n_defined > 0 ? sum / n_defined : NAN, "%s", metric_table[kind].name);
    for (int k = 0; k < e->n_columns && e->n_columns > 1; k++) {
        seq_task_name(e->s->data, e->is_bits, k, name);
        add_metric(r, value[k], "%s:%.23s", metric_table[kind].name, name);
        if (kind == METRIC_AUC && !e->is_bits && e->s->data->actions != ACTION_CODE)
            r->item[r->n - 1].alias = k + 1;
    }
}

static double value_of(const evaluator *e, const metric *m) {
    switch (m->kind) {
    case METRIC_COVERAGE:
    case METRIC_NOVELTY:
    case METRIC_DIVERSITY:
        return m->kind == METRIC_COVERAGE && e->is_group
                   ? NAN
                   : list_metrics_value(&e->lists, m, e->users, e->n_users);
    case METRIC_ACCURACY:
        return e->n_rows > 0 ? (double)e->n_right / (double)e->n_rows : NAN;
    case METRIC_LOGLOSS:
        return log_losses_mean(&e->losses);
    case METRIC_NE:
        return log_losses_ne(&e->losses);
    default:
        return position_counts_metric(e->counts, m);
    }
}

static void report(const evaluator *e, eval_result *r) {
    char name[METRIC_NAME_BYTES];
    for (int i = 0; i < e->metrics.n; i++) {
        const metric *m = &e->metrics.item[i];
        if (m->kind != METRIC_AUC && m->kind != METRIC_GAUC && m->kind != METRIC_ECE)
            add_metric(r, value_of(e, m), "%s", metric_name(m, name));
        else if (e->n_columns <= AUC_MAX_TASKS)
            report_tasks(e, m->kind, r);
        if (i < e->n_usual) r->n_usual = r->n;
    }
}

static bool asks_for(const evaluator *e, metric_kind kind) {
    for (int i = 0; i < e->metrics.n; i++)
        if (e->metrics.item[i].kind == kind) return true;
    return false;
}

static double grouped(const evaluator *e, int k, const uint8_t *weight, int64_t *n_left_out) {
    return auc_grouped(&e->areas, k, e->user_area, e->users, e->n_users, weight, n_left_out);
}

/* After all rows of ranking: what their tasks are like. */
static status sum_tasks(evaluator *e, eval_result *r) {
    const auc *a = &e->areas;
    r->n_tasks = e->n_columns;
    r->has_gauc = asks_for(e, METRIC_GAUC);
    r->has_ece = asks_for(e, METRIC_ECE);
    TRY(auc_compute(a, e->tasks.of[METRIC_AUC]));
    if (r->has_gauc) {
        TRY(MEM_RESIZE(&e->user_area, (size_t)(e->n_users * e->n_columns)));
        TRY(auc_of_users(a, e->users, e->n_users, e->user_area));
    }
    for (int k = 0; k < e->n_columns; k++) {
        eval_task *t = &r->task[k];
        seq_task_name(e->s->data, e->is_bits, k, t->name);
        if (r->has_gauc) e->tasks.of[METRIC_GAUC][k] = grouped(e, k, NULL, &t->n_left_out);
        if (!r->has_ece) continue;
        TRY(calibrate(a, k, e->is_bits, t->bin));
        e->tasks.of[METRIC_ECE][k] =
            isnan(e->tasks.of[METRIC_AUC][k]) ? NAN : calibration_error(t->bin);
    }
    return OK;
}

/* Memory for the lists that some metrics need. */
static status make_lists(evaluator *e) {
    list_metrics_fini(&e->lists);
    TRY(list_metrics_init(&e->lists, &e->split, &e->metrics));
    size_t n = (size_t)e->s->eval_batch * (size_t)e->lists.k;
    TRY(MEM_RESIZE(&e->list, n));
    return MEM_RESIZE(&e->list_score, n);
}

status evaluator_choose(evaluator *e, const metric_list *metrics, bool keeps_seen) {
    if (metrics != NULL)
        e->metrics = *metrics;
    else
        TRY(metric_list_of(&e->metrics, e->s->config));
    e->n_usual = e->metrics.n;
    e->keeps_seen = keeps_seen;
    return e->s->config->task == TASK_RETRIEVAL ? make_lists(e) : OK;
}

status evaluator_choose_final(evaluator *e) {
    metric_list metrics;
    TRY(metric_list_of(&metrics, e->s->config));
    int n_usual = metrics.n;
    metric_list_add_final(&metrics, e->s->config->task);
    TRY(evaluator_choose(e, &metrics, e->keeps_seen));
    e->n_usual = n_usual;
    return OK;
}

static status make_retrieval(evaluator *e) {
    size_t n_users = (size_t)e->s->eval_batch;
    TRY(ARENA_NEW(&e->memory, &e->target, n_users));
    TRY(ARENA_NEW(&e->memory, &e->position, n_users));
    TRY(ARENA_NEW(&e->memory, &e->is_lost, n_users));
    return ARENA_NEW(&e->memory, &e->counts, 1);
}

static status make_ranking(evaluator *e) {
    const config_ranking *r = &e->s->config->ranking;
    size_t n_tokens = (size_t)batcher_max_tokens(e->batches);
    e->n_columns = (int32_t)r->head.item[r->head.n - 1];
    e->is_bits = e->n_columns == r->n_tasks;
    TRY(ARENA_NEW(&e->memory, &e->label, n_tokens));
    TRY(ARENA_NEW(&e->memory, &e->round, (size_t)e->s->eval_batch));
    return arena_alloc_raw(&e->memory, (void **)&e->logits, n_tokens * (size_t)e->n_columns,
                           sizeof *e->logits);
}

status evaluator_create(evaluator **out, session *s, split_rule rule, split_part part) {
    evaluator *e;
    batcher_config c = session_eval_batches(s, rule, part);
    pass_config p = {.max_users = s->eval_batch, .lender = s->train};
    *out = NULL;
    TRY(MEM_NEW(&e, 1));
    e->s = s;
    e->split = split_make(s->data, rule, SESSION_SPLIT_SEED);
    status st = pass_create(&e->pass, s->model, &p);
    if (st == OK) st = batcher_create(&e->batches, s->data, &c);
    if (st == OK) batcher_save(e->batches, &e->first);
    if (st == OK) st = s->config->task == TASK_RETRIEVAL ? make_retrieval(e) : make_ranking(e);
    if (st == OK) st = evaluator_choose(e, NULL, rule.target_actions != 0);
    return CREATED(st, out, e, evaluator_destroy);
}

/* What a run, or a group of its users, has made. */
static void free_users(evaluator *e) {
    MEM_FREE(e->users, e->user_area);
    auc_fini(&e->areas);
}

void evaluator_destroy(evaluator *e) {
    if (e == NULL) return;
    batcher_destroy(e->batches);
    pass_destroy(e->pass);
    MEM_FREE(e->list, e->list_score);
    list_metrics_fini(&e->lists);
    MEM_FREE(e->all_label, e->all_logits);
    free_users(e);
    arena_fini(&e->memory);
    mem_free(e);
}

uint64_t evaluator_bytes(const evaluator *e) {
    return pass_memory_bytes(e->pass);
}

/* Users whose held-out item is unknown are in no batch: a miss each.  Ranking counts users without
 * a label. */
static void count_unknown(evaluator *e, eval_result *out) {
    out->n_unknown = (int64_t)batcher_n_lost_targets(e->batches);
    for (int64_t i = 0; i < e->n_users && !out->is_retrieval; i++)
        out->n_unlabelled += e->users[i].position == 0;
    if (!out->is_retrieval) return;
    e->counts->count[POSITION_MISS] += (uint64_t)out->n_unknown;
    e->n_unknown = out->n_unknown;
    out->n_users += out->n_unknown;
}

/* What the dynamic tables could not answer. */
static void count_reads(const evaluator *e, eval_result *out) {
    const dynamic_tables *tables = model_tables(e->s->model);
    for (int i = 0; i < tables->n; i++) {
        out->n_ids += tables->item[i].n_read;
        out->n_absent += tables->item[i].n_absent;
    }
}

/* Places count from 1, and 0 is none: of all ranks the best place, the smallest that is not 0. */
static status merge_places(evaluator *e) {
    comm *c = e->s->comm;
    int64_t n = (int64_t)e->s->limits.n_items + 1, *turned;
    list_metrics *l = &e->lists;
    if (l->k == 0) return OK;
    TRY(MEM_NEW(&turned, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        turned[i] = l->first_place[i] > 0 ? l->k + 1 - l->first_place[i] : 0;
    status st = comm_host_reduce(c, COMM_I64, COMM_MAX, n, turned);
    for (int64_t i = 0; i < n && st == OK; i++)
        l->first_place[i] = turned[i] > 0 ? l->k + 1 - (int32_t)turned[i] : 0;
    mem_free(turned);
    return st;
}

/* What each rank has counted of its own batches. */
static status merge_counts(evaluator *e, eval_result *out) {
    comm *c = e->s->comm;
    int64_t counts[] = {out->n_ids, out->n_absent, out->n_lost, out->n_repeated};
    if (comm_size(c) == 1) return OK;
    TRY(comm_host_reduce(c, COMM_I64, COMM_SUM, 4, counts));
    out->n_ids = counts[0];
    out->n_absent = counts[1];
    out->n_lost = counts[2];
    out->n_repeated = counts[3];
    if (!out->is_retrieval) return OK;
    TRY(comm_host_reduce(c, COMM_I64, COMM_SUM, POSITION_MISS + 1, e->counts->count));
    return merge_places(e);
}

bool eval_describe_time(double seconds, uint64_t n_users, int64_t n_items,
                        char text[EVAL_MISSES_BYTES]) {
    enum { LONG_S = 15 };
    char time[32], items[48] = "";
    if (seconds < LONG_S) return false;
    human_duration(time, sizeof time, seconds);
    if (n_items > 0) snprintf(items, sizeof items, " x %" PRId64 " items", n_items);
    snprintf(text, EVAL_MISSES_BYTES,
             "evaluation: about %s for %" PRIu64 " users%s; --eval-users N evaluates a sample",
             time, n_users, items);
    return true;
}

/* Says once how long an evaluation takes: from the batches after the first, which alone pays for
 * what is made on first use. */
static void estimate(evaluator *e, const progress *bar, int64_t n_items, uint64_t since_ns,
                     uint64_t n_before) {
    const double least = .5;
    double seconds = (double)(clock_ns() - since_ns) / 1e9;
    uint64_t n = bar->done - n_before;
    char text[EVAL_MISSES_BYTES];
    if (e->has_estimate || n_before == 0 || n == 0 || seconds < least) return;
    e->has_estimate = true;
    seconds *= (double)bar->total / (double)n;
    if (comm_is_first(e->s->comm) && eval_describe_time(seconds, bar->total, n_items, text))
        log_info("%s", text);
}

/* One batch of the evaluation: number i of them, which is one rank's. */
static status evaluate_batch(evaluator *e, const batch *b, const model_items *corpus, int64_t i,
                             eval_result *out) {
    int size = comm_size(e->s->comm), rank = e->s->comm != NULL ? e->s->comm->rank : 0;
    if (i % size == rank && b->n_users > 0) {
        /* As in a step of training, a GPU's work is only handed over here. */
        wait_kind before = waits_begin(e->s->be->is_host ? WAIT_NONE : WAIT_GPU);
        status st = out->is_retrieval ? rank_batch(e, b, corpus, out) : score_batch(e, b);
        waits_end(before);
        TRY(st);
    } else if (i % size == rank) {
        TRY(dynamic_take_nothing(model_tables(e->s->model)));
    }
    return i % size == size - 1 || b->is_last ? end_round(e, i % size + 1) : OK;
}

static status run_batches(evaluator *e, int64_t max_batches, eval_result *out) {
    model_items corpus = {0};
    bool is_retrieval = e->s->config->task == TASK_RETRIEVAL, is_last = false;
    progress bar;
    status st = batcher_restore(e->batches, &e->first);
    if (st == OK && is_retrieval) st = model_corpus(e->s->model, &corpus);
    out->n_items_ranked = e->n_items_ranked = corpus.n;
    dynamic_begin_reads(model_tables(e->s->model));
    progress_begin(&bar, "evaluating", "users", batcher_n_users(e->batches));
    int64_t n_batches = 0;
    uint64_t since_ns = 0, n_before = 0;
    for (int64_t i = 0; st == OK && !is_last && (max_batches == 0 || i < max_batches); i++) {
        const batch *b;
        st = batcher_next(e->batches, &b);
        if (st != OK) break;
        is_last = b->is_last;
        n_batches++;
        out->n_users += b->n_users;
        st = evaluate_batch(e, b, &corpus, i, out);
        if (st == OK && train_is_stopped(e->stop))
            st = fail(ERR_INTERRUPTED, "interrupted after %" PRId64 " users of an evaluation",
                      out->n_users);
        progress_update(&bar, (uint64_t)out->n_users);
        if (max_batches == 0) estimate(e, &bar, corpus.n, since_ns, n_before);
        if (i == 0) since_ns = clock_ns(), n_before = (uint64_t)out->n_users;
    }
    progress_end(&bar);
    if (st == OK && !is_last) st = end_round(e, (int)(n_batches % comm_size(e->s->comm)));
    out->is_partial = !is_last;
    count_reads(e, out);
    if (st == OK) st = merge_counts(e, out);
    if (is_last) count_unknown(e, out);
    return st;
}

/* In retrieval each rank has its own users. */
static status gather_all_users(evaluator *e) {
    user_position *mine = e->users;
    int64_t n_mine = e->n_users;
    if (e->s->config->task != TASK_RETRIEVAL || comm_size(e->s->comm) == 1) return OK;
    e->users = NULL;
    e->n_users = 0;
    e->users_capacity = 0;
    status st = gather_users(e, mine, n_mine);
    mem_free(mine);
    return st;
}

void evaluator_watch(evaluator *e, const volatile sig_atomic_t *stop) {
    e->stop = stop;
}

status evaluator_run(evaluator *e, int64_t max_batches, eval_result *out) {
    uint64_t start = clock_ns();
    bool is_retrieval = e->s->config->task == TASK_RETRIEVAL;
    *out = (eval_result){
        .is_retrieval = is_retrieval, .keeps_seen = e->keeps_seen, .run = ++e->n_runs};
    e->n_users = e->n_unknown = e->n_round = 0;
    if (is_retrieval) {
        memset(e->counts, 0, sizeof *e->counts);
        list_metrics_clear(&e->lists);
    } else {
        e->n_right = e->n_rows = 0;
        e->losses = (log_losses){.n_columns = e->n_columns, .is_bits = e->is_bits};
        auc_fini(&e->areas);
        TRY(auc_init(&e->areas, e->n_columns <= AUC_MAX_TASKS ? e->n_columns : 1));
    }
    status st = run_batches(e, max_batches, out);
    if (st == OK) st = gather_all_users(e);
    if (st == OK && !is_retrieval && e->n_columns <= AUC_MAX_TASKS) st = sum_tasks(e, out);
    if (st == OK) report(e, out);
    out->seconds = (double)(clock_ns() - start) / 1e9;
    return st;
}

/* Bootstrap: the state that `report` reads, of users with weights. */

/* Of ranking: what each user adds to the sums. */
typedef struct user_sums {
    log_losses losses;
    int64_t n_right;
} user_sums;

static status sum_users(evaluator *e, user_sums *sums) {
    const auc *a = &e->areas;
    int32_t *class_;
    TRY(MEM_NEW_RAW(&class_, a->n));
    for (size_t i = 0; i < a->n; i++)
        class_[i] = e->is_bits ? (int32_t)a->label[i] : __builtin_ctz(a->label[i] | 1u << 31);
    size_t row = 0;
    for (int64_t u = 0; u < e->n_users; u++) {
        const float *logits = a->score + row * (size_t)a->n_tasks;
        int64_t n = e->users[u].position;
        sums[u].losses = (log_losses){.n_columns = e->n_columns, .is_bits = e->is_bits};
        log_losses_add(&sums[u].losses, logits, class_ + row, n);
        e->n_right = 0;
        (e->is_bits ? count_right_bits : count_right)(e, logits, class_ + row, n);
        sums[u].n_right = e->n_right;
        row += (size_t)n;
    }
    mem_free(class_);
    return OK;
}

static void weigh_users(evaluator *e, const user_sums *sums, int replicate, uint8_t *weight) {
    e->losses = (log_losses){.n_columns = e->n_columns, .is_bits = e->is_bits};
    e->n_right = 0;
    for (int64_t u = 0; u < e->n_users; u++) {
        int w = bootstrap_weight(e->users[u].user, replicate);
        const log_losses *l = &sums[u].losses;
        memset(weight, w, (size_t)l->n);
        weight += l->n;
        for (int32_t k = 0; k < e->n_columns; k++) {
            e->losses.sum[k] += w * l->sum[k];
            e->losses.n_of[k] += w * l->n_of[k];
        }
        e->losses.n += w * l->n;
        e->n_right += w * sums[u].n_right;
    }
    e->n_rows = e->losses.n * (e->is_bits ? e->n_columns : 1);
}

static status ranking_replicates(evaluator *e, replicates *out) {
    log_losses losses = e->losses;
    task_values tasks = e->tasks;
    int64_t n_right = e->n_right, n_rows = e->n_rows, n_left_out;
    bool has_gauc = asks_for(e, METRIC_GAUC);
    user_sums *sums = NULL;
    uint8_t *weight = NULL;
    weighted_auc areas = {0};
    status st = MEM_NEW(&sums, (size_t)e->n_users);
    if (st == OK) st = MEM_NEW(&weight, e->areas.n);
    if (st == OK) st = weighted_auc_init(&areas, &e->areas);
    if (st == OK) st = sum_users(e, sums);
    for (int r = 0; r < out->n && st == OK; r++) {
        eval_result one = {0};
        weigh_users(e, sums, r, weight);
        weighted_auc_compute(&areas, weight, e->tasks.of[METRIC_AUC]);
        for (int k = 0; k < e->n_columns; k++) {
            if (has_gauc) e->tasks.of[METRIC_GAUC][k] = grouped(e, k, weight, &n_left_out);
            e->tasks.of[METRIC_ECE][k] = NAN; /* the bins of a sample are noisier: no interval */
        }
        report(e, &one);
        for (int i = 0; i < one.n; i++)
            out->value[i * out->n + r] = one.item[i].value;
    }
    e->tasks = tasks;
    e->losses = losses;
    e->n_right = n_right;
    e->n_rows = n_rows;
    weighted_auc_fini(&areas);
    MEM_FREE(weight, sums);
    return st;
}

status evaluator_bootstrap(evaluator *e, eval_result *r, replicates *out) {
    int64_t cost = r->is_retrieval ? r->n_users : (int64_t)e->areas.n * e->n_columns;
    replicates own = {0};
    if (r->run != e->n_runs || (!r->is_retrieval && e->n_columns > AUC_MAX_TASKS)) return OK;
    status st = replicates_init(&own, r->n, cost);
    if (st == OK && r->is_retrieval)
        st = replicates_of_positions(&own, e->users, e->n_users, e->n_unknown, &e->metrics);
    if (st == OK && !r->is_retrieval) st = ranking_replicates(e, &own);
    replicates_set_users(&own, e->users, e->n_users, e->n_unknown, batcher_fingerprint(e->s->data));
    for (int i = 0; i < r->n && st == OK; i++) {
        bootstrap_bounds x = replicates_bounds(&own, i);
        r->item[i].low = x.low;
        r->item[i].high = x.high;
        memcpy(own.metric[i].name, r->item[i].name, sizeof own.metric[i].name);
        own.metric[i].figure = r->item[i].value;
    }
    if (st == OK && out != NULL)
        *out = own;
    else
        replicates_fini(&own);
    return st;
}

const user_position *evaluator_users(const evaluator *e, int64_t *n) {
    *n = e->n_users;
    return e->users;
}

/* Adds the rows of a user, whose classes are bits by now, again. */
static status add_user_rows(evaluator *to, const auc *from, size_t row, int64_t n) {
    for (int64_t i = 0; i < n; i++, row++) {
        uint32_t bits = from->label[row];
        int32_t label = to->is_bits ? (int32_t)bits : __builtin_ctz(bits | 1u << 31);
        TRY(add_scores(to, from->score + row * (size_t)from->n_tasks, &label, 1));
    }
    return OK;
}

/* The state of the group is made in a copy of the evaluator, which owns what it makes. */
static status fill_group(evaluator *g, const evaluator *e, const uint8_t *is_in) {
    bool is_retrieval = e->s->config->task == TASK_RETRIEVAL;
    size_t row = 0;
    if (is_retrieval)
        TRY(MEM_NEW(&g->counts, 1));
    else
        TRY(auc_init(&g->areas, e->areas.n_tasks));
    for (int64_t i = 0; i < e->n_users; i++) {
        int64_t n = e->users[i].position;
        if (is_in[i]) {
            TRY(note_user(g, e->users[i]));
            if (is_retrieval)
                g->counts->count[n]++;
            else
                TRY(add_user_rows(g, &e->areas, row, n));
        }
        row += is_retrieval ? 0 : (size_t)n;
    }
    return OK;
}

status evaluator_group(evaluator *e, const uint8_t *is_in, eval_result *out) {
    evaluator g = *e;
    session alone = *e->s; /* the users of all ranks are here */
    alone.comm = NULL;
    g.s = &alone;
    g.users = NULL;
    g.counts = NULL;
    g.areas = (auc){0};
    g.losses = (log_losses){.n_columns = e->n_columns, .is_bits = e->is_bits};
    g.n_users = g.n_unknown = g.n_right = g.n_rows = 0;
    g.users_capacity = 0;
    g.user_area = NULL;
    g.is_group = true;
    *out = (eval_result){.is_retrieval = e->s->config->task == TASK_RETRIEVAL,
                         .n_items_ranked = e->n_items_ranked,
                         .run = e->n_runs};
    status st = fill_group(&g, e, is_in);
    out->n_users = g.n_users;
    if (st == OK && !out->is_retrieval && g.n_columns <= AUC_MAX_TASKS) st = sum_tasks(&g, out);
    if (st == OK) report(&g, out);
    if (st == OK) st = evaluator_bootstrap(&g, out, NULL);
    free_users(&g);
    mem_free(g.counts);
    return st;
}

enum { TEXT_BYTES = 160 };

/* What the model has to predict. */
static const char *target_text(const protocol *p, char text[TEXT_BYTES]) {
    bool is_test = p->part == PART_TEST, is_ranking = p->session->config->task == TASK_RANKING;
    int32_t n = p->session->max_targets;
    switch (p->rule.kind) {
    case SPLIT_LEAVE_ONE_OUT:
    case SPLIT_LEAVE_TWO_OUT:
        return is_test ? "the last event of each user" : "the event before the last of each user";
    case SPLIT_TIME:
        return is_test ? "each user's first event at or after the cut"
                       : "each user's last event before the cut";
    case SPLIT_TEST_FILE:
        return is_test ? "each user's first event in the test file"
                       : "each user's last event in the data";
    default:
        break;
    }
    if (is_ranking && n == 0) return "every event of each held-out user";
    if (!is_ranking || n == 1) return "the last event of each held-out user";
    snprintf(text, TEXT_BYTES, "the last %d events of each held-out user", n);
    return text;
}

/* A window that holds every history leaves nothing out of sight: it is called that of all events,
 * so that the protocols of equal figures are equal. */
static bool holds_every_history(const session *s) {
    uint64_t n = 0;
    for (uint64_t u = 0; u < s->data->n_users && n <= (uint64_t)s->max_history + 1; u++)
        if (seq_length(s->data, u) > n) n = seq_length(s->data, u);
    return n <= (uint64_t)s->max_history + 1; /* with the target */
}

static const char *seen_text(const protocol *p, char text[TEXT_BYTES]) {
    bool keeps_seen = p->result != NULL ? p->result->keeps_seen : p->keeps_seen;
    if (keeps_seen || (p->result == NULL && p->rule.target_actions != 0))
        return "none, items of the history stay in the ranking";
    if (holds_every_history(p->session)) return "items of all events before the target";
    snprintf(text, TEXT_BYTES, "items of the last %d events before the target",
             p->session->max_history);
    return text;
}

static const char *const position_ties =
    "of equal scores the item with the smaller number comes first";
static const char *const score_ties = "equal scores count half";

static int32_t n_candidates(const protocol *p) {
    return p->result != NULL ? p->result->n_items_ranked : p->session->limits.n_items;
}

void protocol_write(const protocol *p, json_writer *w) {
    char text[TEXT_BYTES], rule[SPLIT_TEXT_BYTES];
    bool is_retrieval = p->session->config->task == TASK_RETRIEVAL;
    json_key_object(w, "protocol");
    JSON_FIELDS(w, FIELD("split", split_rule_text(&p->rule, rule)),
                FIELD("part", split_part_name(p->part)), FIELD("target", target_text(p, text)));
    if (is_retrieval) {
        JSON_FIELDS(w, FIELD("candidates", n_candidates(p)),
                    FIELD("catalogue", p->session->limits.n_items),
                    FIELD("left_out", seen_text(p, text)));
        if (p->result != NULL) json_key_int(w, "repeated_targets", p->result->n_repeated);
    }
    json_key_string(w, "ties", is_retrieval ? position_ties : score_ties);
    if (p->rule.target_actions != 0) {
        char names[SEQ_ACTIONS_BYTES];
        json_key_string(w, "target_actions",
                        seq_actions_text(p->session->data, p->rule.target_actions, names));
    }
    if (p->rule.n_sample > 0) json_key_int(w, "eval_users", p->rule.n_sample);
    json_object_close(w);
}

static status describe_candidates(const protocol *p, buf *out) {
    char text[TEXT_BYTES];
    int32_t n = n_candidates(p), n_items = p->session->limits.n_items;
    char a[GROUPED_BYTES], b[GROUPED_BYTES];
    const eval_result *r = p->result;
    TRY(buf_printf(out,
                   n == n_items ? "  Ranked    all %s items of the catalogue\n"
                                : "  Ranked    %s of the catalogue's %s items\n",
                   text_grouped(a, (uint64_t)n), text_grouped(b, (uint64_t)n_items)));
    TRY(buf_printf(out, "  Left out  %s\n", seen_text(p, text)));
    TRY(buf_printf(out, "  Ties      %s\n", position_ties));
    if (r == NULL || r->n_users == 0) return OK;
    return buf_printf(
        out,
        "  Repeated  %s of %s targets (%.2f %%) are in that "
        "history: %s\n",
        text_grouped(a, (uint64_t)r->n_repeated), text_grouped(b, (uint64_t)r->n_users),
        100.0 * (double)r->n_repeated / (double)r->n_users,
        r->keeps_seen ? "ranked like any other" : "never found (--keep-seen ranks them)");
}

status protocol_describe(const protocol *p, buf *out) {
    char text[TEXT_BYTES], rule[SPLIT_TEXT_BYTES];
    TRY(buf_printf(out, "  Split     %s, %s part\n", split_rule_text(&p->rule, rule),
                   split_part_name(p->part)));
    char names[SEQ_ACTIONS_BYTES] = "";
    if (p->rule.target_actions != 0)
        seq_actions_text(p->session->data, p->rule.target_actions, names);
    TRY(buf_printf(out, "  Target    %s%s%s\n", target_text(p, text),
                   names[0] != '\0' ? ", of the actions " : "", names));
    if (p->rule.n_sample > 0)
        TRY(buf_printf(out, "  Users     a fixed random sample of %" PRId64 " (--eval-users)\n",
                       p->rule.n_sample));
    if (p->session->config->task == TASK_RETRIEVAL) return describe_candidates(p, out);
    return buf_printf(out, "  Ties      %s\n", score_ties);
}
