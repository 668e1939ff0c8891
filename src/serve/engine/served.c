#include "serve/engine/served.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "ops/device.h"
#include "serve/engine/warm.h"

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
    if (!m->trained.is_engine) return OK;
    int code = pthread_create(&m->checker, NULL, check, m);
    if (code != 0) return fail(ERR_IO, "no thread to check %s: %s", m->path, strerror(code));
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

/* The vocabulary of a model names its items; one without a vocabulary needs the data. */
static status open_trained(served *m, const served_config *c) {
    backend *be = m->compute.be;
    status st = trained_open_unchecked(&m->trained, c->path, NULL, be, c->max_batch);
    if (st == ERR_CONFIG && c->data != NULL && m->trained.vocabulary == NULL)
        st = trained_open_unchecked(&m->trained, c->path, c->data, be, c->max_batch);
    TRY(st);
    TRY(start_check(m));
    m->s = &m->trained.session;
    m->names = m->s->data;
    if (c->data == NULL || m->trained.vocabulary == NULL) return OK;
    m->has_map = true;
    return vocabulary_map_init(&m->map, m->trained.vocabulary, c->data, m->compute.workers);
}

/* Tokens of the longest history with one event more. */
static int32_t longest_history(const served *m) {
    const session *s = m->s;
    return s->limits.n_context + (m->is_ranking ? 2 : 1) * (s->max_history + 1);
}

/* A dynamic table has a buffer for the rows of the model's own largest batch; other models take as
 * many candidates of a user as the batch has room for. */
static int32_t choose_sizes(served *m, const served_config *c) {
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
    if (m->s->config->model == MODEL_SASREC) {
        m->flops_token = layers * 2 * e * (4 * e + 2 * (double)n->ffn_hidden_size);
        m->flops_pair = layers * 4 * e;
    }
}

double served_flops(const served *m, int32_t n, int32_t n_targets, int32_t n_cached) {
    double rows = n - n_cached, history = n - n_targets;
    double pairs = (history - n_cached) * (history + n_cached) / 2 + n_targets * (history + 1);
    return rows * m->flops_token + pairs * m->flops_pair + m->flops_head;
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

static status open_cache(served *m, const served_config *c) {
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
static status choose_limits(served_config *c) {
    engine_facts facts = {.limits.kv_pages = -1};
    if (engine_folder_is(c->path)) TRY(engine_folder_facts(c->path, &facts));
    if (c->max_batch <= 0) c->max_batch = facts.limits.max_batch;
    if (c->max_batch <= 0) c->max_batch = DEFAULT_BATCH;
    if (c->max_tokens <= 0) c->max_tokens = facts.limits.max_tokens;
    if (c->max_tokens <= 0) c->max_tokens = DEFAULT_TOKENS;
    if (c->kv_pages < 0) c->kv_pages = facts.limits.kv_pages;
    c->has_int8_items = c->has_int8_items || facts.limits.has_int8_items;
    return OK;
}

static status make(served *m, const served_config *c) {
    int n_threads = c->n_threads;
    if (n_threads == 0) TRY(env_threads(&n_threads));
    TRY(pool_create_lower(&m->compute.workers, n_threads, SERVED_NICE));
    TRY(backend_open(&m->compute.be, m->compute.workers, c->device, false));
    TRY(open_trained(m, c));
    TRY(model_pack(m->s->model));
    infer_config f = {.max_part = choose_sizes(m, c), .is_serving = true};
    find_dense(m);
    count_flops(m);
    TRY(open_cache(m, c));
    f.max_users = m->max_batch;
    f.max_tokens = m->max_tokens;
    f.has_int8_items = c->has_int8_items;
    f.store = m->cache != NULL ? &m->store : NULL;
    f.has_fp8_kv = m->has_fp8_kv;
    return infer_init(&m->infer, m->s, &f);
}

status served_open(served **out, const served_config *c) {
    served *m;
    served_config chosen = *c;
    uint64_t start = clock_ns();
    *out = NULL;
    TRY(choose_limits(&chosen));
    TRY(MEM_NEW(&m, 1));
    arena_init(&m->scratch, 1 << 16);
    atomic_init(&m->refs, 1);
    pthread_mutex_init(&m->check_lock, NULL);
    rwlock_init(&m->cache_lock);
    snprintf(m->path, sizeof m->path, "%s", c->path);
    status st = make(m, &chosen);
    if (st == OK) st = warm_up(m);
    if (st == OK) st = served_measure(m, &chosen);
    if (st != OK) {
        served_drop(m);
        return st;
    }
    m->load_s = (double)(clock_ns() - start) / 1e9;
    *out = m;
    return OK;
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
    if (m->has_map) vocabulary_map_fini(&m->map);
    trained_close(&m->trained);
    backend_destroy(m->compute.be);
    pool_destroy(m->compute.workers);
    mem_free(m->extra);
    mem_free(m->popular);
    pthread_mutex_destroy(&m->check_lock);
    pthread_rwlock_destroy(&m->cache_lock);
    mem_free(m);
}

uint32_t served_find_item(const served *m, const id_text *id) {
    return seq_find_item(m->names, id->text);
}

status served_find_id(const served *m, const engine_id *id, const char *what, uint32_t *out) {
    id_text text;
    if (id->text == NULL && !m->names->has_text_items) {
        *out = seq_find_item_number(m->names, id->number);
        return OK;
    }
    TRY(id_text_make(&text, id, what));
    *out = served_find_item(m, &text);
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
        m->extra[m->n_extra] = served_find_item(m, &id);
    }
    return OK;
}

uint32_t served_item(const served *m, const users *u, uint32_t item) {
    if (item > u->n_data_items) return m->extra[item - u->n_data_items - 1];
    return m->has_map ? m->map.item[item] : item;
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

static const char *text_at(const text_column *t, uint64_t i, size_t *n) {
    *n = (size_t)(t->offsets[i + 1] - t->offsets[i]);
    return t->bytes + t->offsets[i];
}

engine_item served_item_names(const served *m, uint32_t item) {
    const seq_file *data = m->names;
    engine_item out = {.number = item};
    if (data->has_text_items)
        out.id.text = text_at(&data->item_text, item, &out.id.n);
    else
        out.id.number = data->item_id[item];
    if (data->title.n > 0) out.title = text_at(&data->title, item, &out.title_bytes);
    if (out.title_bytes == 0) out.title = NULL;
    return out;
}

void served_info(const served *m, const char *name, engine_model_info *out) {
    *out = (engine_model_info){.step = m->trained.origin.step,
                               .n_items = m->names->n_items,
                               .dim = m->infer.table.dim,
                               .max_history = m->s->max_history,
                               .n_columns = m->infer.columns.n,
                               .load_s = m->load_s};
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->version, sizeof out->version, "%s", m->version_text);
    snprintf(out->path, sizeof out->path, "%s", m->path);
    snprintf(out->device, sizeof out->device, "%s", m->compute.be->name);
    snprintf(out->task, sizeof out->task, "%s", m->is_ranking ? "ranking" : "retrieval");
    for (int i = 0; i < m->infer.columns.n && i < ENGINE_MAX_COLUMNS; i++)
        out->columns[i] = m->infer.columns.names[i];
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
