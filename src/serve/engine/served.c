#include "serve/engine/served.h"

#include "ops/device.h"

enum { PART = 256, POPULAR_NS = 1000000000, DEFAULT_BATCH = 64, DEFAULT_TOKENS = 8192 };

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static void *check(void *argument) {
    served *m = argument;
    failure_save(&m->check, trained_check(&m->trained));
    atomic_store(&m->is_at_end, true);
    return NULL;
}

static status start_check(served *m) {
    if (!m->trained.is_engine || !comm_is_first(m->tensor.comm)) return OK;
    int code = pthread_create(&m->checker, NULL, check, m);
    if (code != 0)
        return fail(ERR_IO, "cannot start a thread to check %s: %s", m->path, strerror(code));
    m->is_checking = true;
    return OK;
}

status served_checked(served *m) {
    pthread_mutex_lock(&m->check_lock);
    if (m->is_checking) pthread_join(m->checker, NULL);
    m->is_checking = false;
    pthread_mutex_unlock(&m->check_lock);
    return m->check.code == OK ? OK : failure_restore(&m->check);
}

bool served_is_checked(served *m) {
    return !m->trained.is_engine || atomic_load(&m->is_at_end);
}

/* The vocabulary of a model names its items. */
static status open_trained(served *m, const engine_config *c, const char *path,
                           const seq_file *data) {
    backend *be = m->compute.be;
    comm *tensor = m->tensor.comm;
    TRY(trained_open_unchecked(&m->trained, path, NULL, be, c->max_batch, tensor));
    TRY(start_check(m));
    m->s = &m->trained.session;
    m->names = m->s->data;
    if (data == NULL) return OK;
    return vocabulary_map_init(&m->map, m->trained.vocabulary, data, m->compute.workers);
}

/* Tokens of the longest history with one event more. */
static int32_t longest_history(const served *m) {
    const session *s = m->s;
    return s->limits.n_context + (m->is_ranking ? 2 : 1) * (s->max_history + 1);
}

/* A dynamic table has a buffer for the rows of the model's own largest batch; other models take as
 * many candidates of a user as the batch has room for. */
static int32_t choose_sizes(served *m, const engine_config *c) {
    const session *s = m->s;
    bool is_dynamic = model_tables(s->model)->n > 0;
    m->is_ranking = s->config->task == TASK_RANKING;
    int32_t max_part = m->is_ranking && s->max_targets > 0 ? larger(PART, s->max_targets) : 1;
    if (is_dynamic && s->max_targets > 0) max_part = s->max_targets;
    int32_t longest = longest_history(m) + max_part;
    m->max_batch = c->max_batch;
    m->max_tokens = larger(c->max_tokens, longest);
    if (is_dynamic && m->max_tokens > c->max_batch * longest)
        m->max_tokens = c->max_batch * longest;
    return max_part;
}

/* Ids ascend and none is there twice. */
static void find_dense(served *m) {
    const seq_file *s = m->names;
    if (s->has_text_items || s->n_items == 0) return;
    uint64_t last = (uint64_t)s->item_id[s->n_items] - (uint64_t)s->item_id[1];
    m->first_id = s->item_id[1];
    m->n_dense = last == s->n_items - 1 ? s->n_items : 0;
}

static void count_flops(served *m) {
    const config_network *n = &m->s->config->network;
    double e = (double)n->hidden_size, h = (double)n->n_heads, layers = (double)n->n_layers;
    double heads = h * (double)(n->dim_qk + n->dim_v);
    m->flops_token = layers * 2 * e * (2 * heads + h * (double)n->dim_v);
    m->flops_pair = layers * 2 * heads;
    m->flops_head = m->is_ranking ? 0 : 2 * e * (double)m->names->n_items;
    if (m->s->config->model == MODEL_SASREC || m->s->config->model == MODEL_ESASREC) {
        bool is_sasrec = m->s->config->model == MODEL_SASREC;
        m->flops_token = layers * 2 * e * (is_sasrec ? 4 * e : 6 * e);
        m->flops_token += layers * 2 * e * (is_sasrec ? 2 : 3) * (double)n->ffn_hidden_size;
        m->flops_pair = layers * 4 * e;
    }
    if (m->s->config->model == MODEL_FUXI) { /* three channels: u and the projection are wider */
        m->flops_token +=
            layers * 2 * e * (4 * h * (double)n->dim_v + 3 * (double)n->ffn_hidden_size);
        m->flops_pair += layers * 4 * h * (double)n->dim_v;
    }
}

double served_flops(const served *m, int32_t n_history, int32_t n_targets) {
    double n = n_history, pairs = n * n / 2 + n_targets * (n + 1);
    return (n + n_targets) * m->flops_token + pairs * m->flops_pair + m->flops_head;
}

engine_work served_work(const served *m, const engine_shape *s) {
    double act = (double)act_bytes(m->compute.be->act),
           e = (double)m->s->config->network.hidden_size;
    double n_users = s->n_users, n_targets = m->is_ranking ? s->n_candidates : 0;
    double history = s->n_computed + s->n_reused - n_targets;
    double pairs =
        (history - s->n_reused) * (history + s->n_reused) / 2 + n_targets * (history + 1);
    double kv = m->cache != NULL ? (double)m->store.page_bytes * m->store.n_layers / KV_PAGE : 0;
    double item = m->infer.table.narrow != NULL ? act : sizeof(float);
    double catalogue = m->is_ranking ? 0 : e * item * (double)m->names->n_items;
    engine_work w = {.bytes = m->flops_token / 2 * act + catalogue};
    w.flops = n_users * (s->n_computed * m->flops_token + pairs * m->flops_pair + m->flops_head);
    w.bytes += n_users * (history * kv + s->n_computed * e * act);
    return w;
}

enum { CACHE_BYTES = 1 << 28, MIN_PAGES = 64, MAX_PAGES = 1 << 24 };

static status open_cache(served *m, const engine_config *c) {
    const char *why = kv_store_check(m->s->model);
    int64_t n = c->kv_pages;
    m->has_fp8_kv = c->has_fp8_kv && why == NULL;
    m->reads_times = kv_store_reads_times(m->s->model);
    if (why == NULL && n == 0) why = "the cache has no pages";
    if (why != NULL) {
        snprintf(m->cache_note, sizeof m->cache_note, "%s", why);
        return OK;
    }
    if (n < 0) n = (int64_t)(CACHE_BYTES / kv_store_page_bytes(m->s->model, m->has_fp8_kv));
    if (c->kv_pages < 0 && n < MIN_PAGES) n = MIN_PAGES;
    if (n > MAX_PAGES) n = MAX_PAGES;
    int64_t n_host = c->kv_host_pages < MAX_PAGES ? c->kv_host_pages : MAX_PAGES;
    kv_cache_config k = {.n_pages = (int32_t)n,
                         .n_host_pages = (int32_t)n_host,
                         .token_bytes = served_token_bytes(m),
                         .cost_token = m->flops_token,
                         .cost_pair = m->flops_pair};
    kv_store_config s = {.n_pages = (int32_t)n,
                         .n_host_pages = (int32_t)n_host,
                         .is_fp8 = m->has_fp8_kv,
                         .max_users = m->max_batch,
                         .max_len = longest_history(m)};
    TRY(kv_store_init(&m->store, m->s->model, &s));
    return kv_cache_create(&m->cache, &k);
}

/* An engine folder has limits of its own, for whoever names none. */
static status choose_limits(engine_config *c, const char *path) {
    engine_facts facts = {.limits.kv_pages = -1};
    if (engine_folder_is(path)) TRY(engine_folder_facts(path, &facts));
    if (c->max_batch <= 0) c->max_batch = facts.limits.max_batch;
    if (c->max_batch <= 0) c->max_batch = DEFAULT_BATCH;
    if (c->max_tokens <= 0) c->max_tokens = facts.limits.max_tokens;
    if (c->max_tokens <= 0) c->max_tokens = DEFAULT_TOKENS;
    if (c->kv_pages < 0) c->kv_pages = facts.limits.kv_pages;
    c->has_int8_items = c->has_int8_items || facts.limits.has_int8_items;
    return OK;
}

static status open_backend(served *m, engine_config *c, const char *path) {
    int n_threads = c->n_threads;
    TRY(choose_limits(c, path));
    if (n_threads == 0) TRY(env_threads(&n_threads));
    TRY(pool_create_lower(&m->compute.workers, n_threads, SERVED_NICE));
    return backend_open(&m->compute.be, m->compute.workers, c->device, false);
}

static status make(served *m, const engine_config *c, const char *path, const seq_file *data) {
    TRY(open_trained(m, c, path, data));
    TRY(model_pack(m->s->model));
    bool searches = comm_is_first(m->tensor.comm);
    infer_config f = {.max_part = choose_sizes(m, c), .is_serving = searches};
    find_dense(m);
    count_flops(m);
    TRY(open_cache(m, c));
    f.max_users = m->max_batch;
    f.max_tokens = m->max_tokens;
    f.has_int8_items = searches && c->has_int8_items;
    if (searches && c->search != NULL) TRY(mol_stages_read(&f.stages, c->search));
    f.store = m->cache != NULL ? &m->store : NULL;
    f.has_fp8_kv = m->has_fp8_kv;
    return infer_init(&m->infer, m->s, &f);
}

/* What is run before a model is ready: memory is touched, its rate is known, and the shapes that
 * requests are likely to have are recorded (pass_config.is_recorded).  Measured are the costs of
 * computing a token and of loading a page, between which requests choose, and what 8-bit keys and
 * values change. */

/* Candidates and repetitions of what is timed, pages that are moved; and users of a recorded batch,
 * at most, and how often histories are shortened to an eighth. */
enum { CANDIDATES = 64, REPEATS = 3, MOVED = 32, WARM_USERS = 16, WARM_LENGTHS = 3 };

/* An invented history as long as the model reads, and candidates; in the model's scratch memory. */
typedef struct trial {
    served *m;
    uint32_t *item, *candidate;
    uint16_t *action;
    int64_t *time;
    int32_t *zeros; /* pages */
} trial;

static status make_trial(trial *t, served *m) {
    size_t n = (size_t)m->s->max_history, n_candidates = (size_t)m->infer.max_part;
    *t = (trial){.m = m};
    TRY(ARENA_NEW(&m->scratch, &t->item, n));
    TRY(ARENA_NEW(&m->scratch, &t->action, n));
    TRY(ARENA_NEW(&m->scratch, &t->time, n));
    TRY(ARENA_NEW(&m->scratch, &t->candidate, n_candidates));
    TRY(ARENA_NEW(&m->scratch, &t->zeros, (size_t)(m->max_tokens / KV_PAGE + 1)));
    for (size_t i = 0; i < n; i++) {
        t->item[i] = 1 + (uint32_t)(i * 7919 % m->names->n_items);
        t->time[i] = untimed_seconds(i) * m->names->time_per_second;
    }
    for (size_t i = 0; i < n_candidates; i++)
        t->candidate[i] = 1 + (uint32_t)(i % m->names->n_items);
    return OK;
}

/* Users with the last events of the history; n_reused tokens of each are read from page 0, whatever
 * is there, and none is stored. */
typedef struct trial_shape {
    int32_t n_users, n_events, n_candidates, n_reused;
} trial_shape;

/* *out: n_numbers results, memory of the pass. */
static status run_trial(const trial *t, trial_shape shape, const void **out, int64_t *n_numbers) {
    infer *f = &t->m->infer;
    int32_t from = t->m->s->max_history - shape.n_events, reused[WARM_USERS];
    const int32_t *page[WARM_USERS];
    int64_t n_rows;
    user_events u = {.n = (uint64_t)shape.n_events,
                     .item = t->item + from,
                     .action = t->action + from,
                     .time = t->time + from};
    histories_clear(&f->batch);
    for (int32_t i = 0; i < shape.n_users; i++) {
        TRY(histories_add(&f->batch, &u, t->candidate, shape.n_candidates));
        reused[i] = shape.n_reused;
        page[i] = t->zeros;
    }
    layout_cache c = {reused, reused, page};
    kv_store *store = shape.n_reused > 0 ? f->store : NULL;
    const layout_cache *cache = shape.n_reused > 0 ? &c : NULL;
    if (f->is_ranking) {
        TRY(pass_score_cached(f->pass, &f->batch.view, store, cache, out, &n_rows));
        *n_numbers = n_rows * f->columns.width;
    } else {
        TRY(pass_encode_cached(f->pass, &f->batch.view, store, cache, out));
        *n_numbers = (int64_t)shape.n_users * f->table.dim;
    }
    return t->m->compute.be->ops->sync(t->m->compute.be);
}

/* The least time of a few runs of one user, and its FLOPs. */
static status time_trial(const trial *t, int repeats, trial_shape shape, double *seconds,
                         double *flops) {
    const void *out;
    int64_t n_numbers;
    *seconds = INFINITY;
    for (int i = 0; i <= repeats; i++) { /* the first one warms up */
        uint64_t start = clock_ns();
        TRY(run_trial(t, shape, &out, &n_numbers));
        if (i > 0) *seconds = fmin(*seconds, (double)(clock_ns() - start) / 1e9);
    }
    int32_t n_history = infer_tokens(&t->m->infer, (uint64_t)shape.n_events);
    *flops = served_flops(t->m, n_history, shape.n_candidates);
    return OK;
}

static status learn_rate(const trial *t) {
    served *m = t->m;
    trial_shape shape = {
        .n_users = 1, .n_events = m->s->max_history, .n_candidates = m->is_ranking};
    double seconds, flops;
    TRY(time_trial(t, 1, shape, &seconds, &flops));
    flops -= m->flops_head;
    m->flop_s = flops > 0 ? seconds / flops : 0;
    return OK;
}

/* Users who come back with one more event, by their number and the length of their histories.  A
 * shape is recorded when it runs the second time. */
static status record_shapes(const trial *t) {
    const served *m = t->m;
    int32_t per_event = m->infer.per_event, n_events = m->s->max_history;
    int32_t n_candidates = m->is_ranking ? m->infer.max_part : 0;
    const void *out;
    int64_t n_numbers;
    for (int i = 0; i < WARM_LENGTHS && n_events > 1; i++, n_events = (n_events + 7) / 8)
        for (int32_t n = 1; n <= WARM_USERS && n <= m->max_batch; n *= 2) {
            int32_t n_tokens = n * (per_event + n_candidates + 1);
            if (n_tokens > m->max_tokens || n_tokens > LAYOUT_ROUND_MOST ||
                (int64_t)n * (n_events + n_candidates) > m->max_tokens)
                break;
            int32_t n_reused = infer_tokens(&m->infer, (uint64_t)n_events) - per_event;
            trial_shape shape = {n, n_events, n_candidates, n_reused};
            for (int round = 0; round < 2; round++)
                TRY(run_trial(t, shape, &out, &n_numbers));
        }
    return OK;
}

/* A history of full length; candidates where the model ranks. */
static trial_shape measured_shape(const served *m) {
    int32_t most = m->infer.max_part < CANDIDATES ? m->infer.max_part : CANDIDATES;
    return (trial_shape){1, m->s->max_history, m->is_ranking ? most : 0, 0};
}

/* The FLOPs of a history cost the same at any length; what every request costs besides is not part
 * of the choice. */
static status measure_compute(const trial *t) {
    served *m = t->m;
    trial_shape shape = measured_shape(m);
    double s[2], flops[2];
    TRY(time_trial(t, REPEATS, shape, &s[0], &flops[0]));
    shape.n_events = shape.n_events / 4 > 0 ? shape.n_events / 4 : 1;
    TRY(time_trial(t, REPEATS, shape, &s[1], &flops[1]));
    double rate = flops[0] > flops[1] ? (s[0] - s[1]) / (flops[0] - flops[1]) : 0;
    if (rate < 0) rate = 0;
    m->costs.token_s = rate * m->flops_token;
    m->costs.pair_s = rate * m->flops_pair;
    return OK;
}

static status time_loads(served *m, const kv_move *moves, int32_t n, double *seconds) {
    *seconds = INFINITY;
    for (int i = 0; i <= REPEATS; i++) {
        uint64_t start = clock_ns();
        TRY(kv_store_move_all(&m->store, moves, n));
        if (i > 0) *seconds = fmin(*seconds, (double)(clock_ns() - start) / 1e9);
    }
    return OK;
}

/* Nothing is in the pages yet.  The fixed part is what one page costs beyond its share. */
static status measure_load(served *m) {
    int32_t n = m->store.n_pages < m->store.n_host_pages ? m->store.n_pages : m->store.n_host_pages;
    kv_move moves[MOVED];
    double one, all;
    if (n > MOVED) n = MOVED;
    for (int32_t i = 0; i < n; i++)
        moves[i] = (kv_move){i, i};
    TRY(time_loads(m, moves, 1, &one));
    TRY(time_loads(m, moves, n, &all));
    m->costs.page_s = n > 1 && all > one ? (all - one) / (n - 1) : all / n;
    m->costs.load_s = one > m->costs.page_s ? one - m->costs.page_s : 0;
    /* A GPU copies beside its computation, layer by layer. */
    m->costs.n_stages = m->compute.be->card != NULL ? m->store.n_layers : 1;
    return OK;
}

static status read_trial(const trial *t, float **out, int64_t *n) {
    const void *results;
    TRY(run_trial(t, measured_shape(t->m), &results, n));
    TRY(ARENA_NEW(&t->m->scratch, out, (size_t)*n));
    return backend_read_act(t->m->compute.be, *out, results, (size_t)*n);
}

static status measure_fp8(const trial *t) {
    served *m = t->m;
    float *exact, *rounded;
    double largest = 0, worst = 0;
    int64_t n;
    pass_set_fp8_kv(m->infer.pass, false);
    TRY(read_trial(t, &exact, &n));
    pass_set_fp8_kv(m->infer.pass, true);
    TRY(read_trial(t, &rounded, &n));
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)exact[i]));
        worst = fmax(worst, fabs((double)exact[i] - (double)rounded[i]));
    }
    m->fp8_error = largest > 0 ? worst / largest : 0;
    return OK;
}

static status warm_up(served *m, const engine_config *c) {
    bool has_host = m->cache != NULL && m->store.n_host_pages > 0 && !c->loads_always;
    trial t;
    TRY(make_trial(&t, m));
    TRY(learn_rate(&t));
    if (m->cache != NULL && m->compute.be->token_bucket > 0) TRY(record_shapes(&t));
    if (m->has_fp8_kv) TRY(measure_fp8(&t));
    if (has_host) {
        TRY(measure_compute(&t));
        TRY(measure_load(m));
        kv_cache_set_costs(m->cache, &m->costs);
    }
    arena_clear(&m->scratch);
    return OK;
}

/* What ranks that share the model must have in common. */
static uint64_t facts_of(const served *m) {
    const uint64_t all[] = {m->trained.origin.step,     m->trained.engine.weight_hash,
                            (uint64_t)m->max_batch,     (uint64_t)m->max_tokens,
                            (uint64_t)m->store.n_pages, (uint64_t)m->s->be->act};
    return hash64(all, sizeof all, 0);
}

static status open_parts(served *m, engine_config *c, const char *path, const seq_file *data) {
    TRY(tensor_part_begin(&m->tensor, c->group, path));
    status st = open_backend(m, c, path);
    st = tensor_part_connect(&m->tensor, m->compute.be, st);
    if (st == OK) st = make(m, c, path, data);
    st = tensor_part_end(&m->tensor, st == OK ? facts_of(m) : 0, m->infer.pass, st);
    return st == OK && comm_is_first(m->tensor.comm) ? warm_up(m, c) : st;
}

status served_open(served **out, const engine_config *c, const char *path, const seq_file *data) {
    served *m;
    engine_config chosen = *c;
    uint64_t start = clock_ns();
    *out = NULL;
    TRY(MEM_NEW(&m, 1));
    arena_init(&m->scratch, 1 << 16);
    atomic_init(&m->refs, 1);
    pthread_mutex_init(&m->check_lock, NULL);
    rwlock_init(&m->cache_lock);
    snprintf(m->path, sizeof m->path, "%s", path);
    status st = open_parts(m, &chosen, path, data);
    m->load_s = (double)(clock_ns() - start) / 1e9;
    return CREATED(st, out, m, served_drop);
}

void served_keep(served *m) {
    atomic_fetch_add(&m->refs, 1);
}

void served_drop(served *m) {
    if (m == NULL || atomic_fetch_sub(&m->refs, 1) > 1) return;
    if (m->is_checking) pthread_join(m->checker, NULL);
    if (m->infer.s != NULL) infer_fini(&m->infer);
    kv_cache_destroy(m->cache);
    kv_store_fini(&m->store);
    arena_fini(&m->scratch);
    vocabulary_map_fini(&m->map);
    trained_close(&m->trained);
    tensor_part_close(&m->tensor);
    backend_destroy(m->compute.be);
    pool_destroy(m->compute.workers);
    MEM_FREE(m->extra, m->popular);
    pthread_mutex_destroy(&m->check_lock);
    pthread_rwlock_destroy(&m->cache_lock);
    mem_free(m);
}

status served_find_id(const served *m, const engine_id *id, const char *what, uint32_t *out) {
    id_text text;
    if (id->text == NULL && !m->names->has_text_items) {
        *out = seq_find_item_number(m->names, id->number);
        return OK;
    }
    TRY(id_text_make(&text, id, what));
    *out = seq_find_item(m->names, text.text);
    return OK;
}

status served_know_items(served *m, const users *u) {
    size_t n = u->items.n;
    TRY(MEM_RESERVE(&m->extra, &m->extra_capacity, n));
    for (; m->n_extra < n; m->n_extra++) {
        id_text id;
        size_t bytes;
        const char *text = text_map_get(&u->items, (uint32_t)m->n_extra, &bytes);
        memcpy(id.text, text, bytes);
        id.text[id.n = bytes] = '\0';
        m->extra[m->n_extra] = seq_find_item(m->names, id.text);
    }
    return OK;
}

uint32_t served_item(const served *m, const users *u, uint32_t item) {
    if (item > u->n_data_items) return m->extra[item - u->n_data_items - 1];
    return m->map.item[item];
}

void served_set_map(served *m, vocabulary_map *other) {
    vocabulary_map old = m->map;
    m->map = *other;
    *other = old;
    m->n_extra = 0;
    mem_free(m->popular);
    m->popular = NULL;
}

/* Items without an event, and without a row in the model, are not popular. */
static size_t collect_popular(const served *m, const users *u, popular_item *to) {
    size_t n = 0;
    for (uint32_t i = 1; i < u->n_counts; i++) {
        uint32_t item = u->counts[i] > 0 ? served_item(m, u, i) : 0;
        if (item == 0 || m->infer.table.items.row[item] < 0) continue;
        to[n++] = (popular_item){u->counts[i], item};
    }
    return n;
}

status served_find_popular(served *m, const users *u) {
    uint64_t now = clock_ns();
    popular_item *all;
    if (m->popular != NULL &&
        (m->popular_change == u->n_changes || now - m->popular_ns < POPULAR_NS))
        return OK;
    TRY(served_know_items(m, u));
    TRY(MEM_NEW_RAW(&all, u->n_counts + 1));
    m->n_popular = collect_popular(m, u, all);
    popular_sort(all, m->n_popular);
    mem_free(m->popular);
    m->popular = all;
    m->popular_change = u->n_changes;
    m->popular_ns = now;
    return OK;
}

engine_item served_item_names(const served *m, uint32_t item) {
    const seq_file *data = m->names;
    engine_item out = {.number = item};
    out.id = id_at(data->has_text_items, &data->item_text, data->item_id, item);
    if (data->title.n == 0) return out;
    engine_id title = id_at(true, &data->title, NULL, item);
    out.title = title.n > 0 ? title.text : NULL;
    out.title_bytes = title.n;
    return out;
}

void served_info(const served *m, const char *name, engine_model_info *out) {
    *out = (engine_model_info){.step = m->trained.origin.step,
                               .n_items = m->names->n_items,
                               .has_text_items = m->names->has_text_items,
                               .dim = m->infer.table.dim,
                               .max_history = m->s->max_history,
                               .n_columns = m->infer.columns.n,
                               .columns = m->infer.columns.names,
                               .load_s = m->load_s};
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->version, sizeof out->version, "%s", m->version_text);
    snprintf(out->path, sizeof out->path, "%s", m->path);
    int n_ranks = comm_size(m->tensor.comm);
    snprintf(out->device, sizeof out->device, n_ranks > 1 ? "%s, rank 0 of %d" : "%s",
             m->compute.be->name, n_ranks);
    snprintf(out->task, sizeof out->task, "%s", m->is_ranking ? "ranking" : "retrieval");
    out->memory_bytes = model_memory_bytes(m->s->model) + pass_memory_bytes(m->infer.pass);
    if (m->infer.table.small.rows != NULL)
        out->memory_bytes += rank_int8_bytes(m->infer.table.items.n, m->infer.table.dim);
    out->has_int8_items = m->infer.table.small.rows != NULL;
    out->is_cached = m->cache != NULL;
    out->has_fp8_kv = m->has_fp8_kv;
    out->fp8_error = m->fp8_error;
    snprintf(out->cache_note, sizeof out->cache_note, "%s", m->cache_note);
    if (m->cache == NULL) return;
    out->n_pages = m->store.n_pages;
    out->n_host_pages = m->store.n_host_pages;
    out->page_bytes = (uint64_t)m->store.page_bytes * (uint64_t)m->store.n_layers;
    if (m->store.n_host_pages > 0 && m->costs.page_s > 0) {
        out->load_us_token = 1e6 * m->costs.page_s / KV_PAGE;
        out->compute_us_token = 1e6 * (m->costs.token_s + m->costs.pair_s * m->s->max_history / 2);
        out->load_from_tokens = kv_costs_break_even(&m->costs);
    }
    out->memory_bytes += m->store.memory.device_bytes;
}
