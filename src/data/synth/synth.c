#include "data/synth/synth.h"

#include "data/build/builder.h"
#include "data/synth/synth_model.h"
#include "format/json.h"

enum { CHUNK_USERS = 256 };

synth_config synth_config_default(void) {
    return (synth_config){.n_users = 5000, .n_items = 2000, .mean_len = 60, .seed = 1};
}

/* Everything the loops over users share.  Sums of doubles are kept per chunk and added in the order
 * of chunks; counts are exact in any order. */
typedef struct synth_job {
    const synth_world *world;
    builder *out;
    int n_workers;
    synth_user *scratch;    /* (n_workers) */
    uint64_t *count;        /* (n_items + 1): training events of an item, added atomically */
    uint32_t *target;       /* (n_users): the last item of each */
    uint32_t *popular_rank; /* (n_items + 1): 0 for the item with most training events */
    int64_t n_chunks;
    struct chunk_sums {
        double best_hr, best_ndcg;
        uint64_t n_foretold, n_popular, n_events, max_len;
    } * sums; /* (n_chunks) */
} synth_job;

static uint64_t chunk_end(const synth_job *job, int64_t chunk) {
    uint64_t end = ((uint64_t)chunk + 1) * CHUNK_USERS;
    return end < job->world->config.n_users ? end : job->world->config.n_users;
}

static status add_user(synth_job *job, builder_sink *sink, uint64_t user, const synth_user *u) {
    for (uint32_t i = 0; i < u->n_events; i++)
        TRY(sink_add(sink, (int64_t)user + 1, u->item[i], u->action[i], u->time[i]));
    for (uint32_t i = 0; i + 1 < u->n_events; i++)
        __atomic_fetch_add(&job->count[u->item[i]], 1, __ATOMIC_RELAXED);
    job->target[user] = u->item[u->n_events - 1];
    return OK;
}

static status make_chunk(void *ctx, int64_t chunk, int worker) {
    synth_job *job = ctx;
    synth_user *u = &job->scratch[worker];
    builder_sink *sink = builder_get_sink(job->out, worker);
    struct chunk_sums *sums = &job->sums[chunk];
    uint64_t first = (uint64_t)chunk * CHUNK_USERS, end = chunk_end(job, chunk);
    for (uint64_t user = first; user < end; user++)
        sums->n_events += synth_user_length(job->world, user);
    TRY(sink_begin_block(sink, (uint64_t)chunk, sums->n_events));
    for (uint64_t user = first; user < end; user++) {
        synth_user_make(job->world, user, u);
        TRY(add_user(job, sink, user, u));
        sums->best_hr += u->best_hr;
        sums->best_ndcg += u->best_ndcg;
        sums->n_foretold += u->is_foretold;
        if (u->n_events > sums->max_len) sums->max_len = u->n_events;
    }
    return sink_end_block(sink);
}

/* Popularity recommends the ten best-ranked items a user has not had: the target is one of them if
 * fewer than ten items of better rank are new to the user.  The user's events are generated again
 * only where the target's rank alone does not decide it. */
static status check_popular_chunk(void *ctx, int64_t chunk, int worker) {
    synth_job *job = ctx;
    synth_user *u = &job->scratch[worker];
    uint64_t end = chunk_end(job, chunk);
    for (uint64_t user = (uint64_t)chunk * CHUNK_USERS; user < end; user++) {
        uint32_t rank = job->popular_rank[job->target[user]], n_better = rank;
        if (rank >= SYNTH_TOP + synth_user_length(job->world, user)) continue;
        synth_user_make(job->world, user, u);
        for (uint32_t i = 0; i + 1 < u->n_events; i++)
            n_better -= job->popular_rank[u->item[i]] < rank;
        job->sums[chunk].n_popular += n_better < SYNTH_TOP;
    }
    return OK;
}

typedef struct counted_item {
    uint64_t count;
    uint32_t item;
} counted_item;

static int compare_count(const void *a, const void *b) {
    const counted_item *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

static status rank_by_count(synth_job *job) {
    uint32_t n_items = job->world->config.n_items;
    counted_item *all;
    TRY(MEM_NEW_RAW(&all, n_items));
    for (uint32_t i = 0; i < n_items; i++)
        all[i] = (counted_item){job->count[i + 1], i + 1};
    qsort(all, n_items, sizeof *all, compare_count);
    for (uint32_t i = 0; i < n_items; i++)
        job->popular_rank[all[i].item] = i;
    mem_free(all);
    return OK;
}

/* Titles "... (topic)", the topic of nine items in ten as a category, and as tags the item's part
 * of the ring, in which the items that follow each other share one. */
static status add_items(const synth_job *job) {
    static const content_spec specs[] = {{"topic", CONTENT_CATEGORY, "", false},
                                         {"tags", CONTENT_LIST, "|", false}};
    const synth_world *w = job->world;
    char id[16], title[128], tags[64];
    int category, list;
    TRY(builder_add_content(job->out, &specs[0], &category));
    TRY(builder_add_content(job->out, &specs[1], &list));
    for (uint32_t item = 1; item <= w->config.n_items; item++) {
        int n = snprintf(id, sizeof id, "%" PRIu32, item);
        uint32_t slot = w->slot_of[item], topic = w->topic_of[slot];
        synth_item_title(w, item, title, sizeof title);
        TRY(builder_add_item(job->out, id, (size_t)n, title, strlen(title)));
        const char *name = strrchr(title, '(') + 1;
        if (item % 10 != 0) TRY(builder_put_content(job->out, category, name, strlen(name) - 1));
        n = snprintf(tags, sizeof tags, "shelf %u|series %u-%u", topic / 4, topic,
                     w->place_of[slot] / 16);
        TRY(builder_put_content(job->out, list, tags, (size_t)n));
    }
    return OK;
}

static status add_context(const synth_job *job) {
    char id[24];
    int age, country;
    TRY(builder_add_context(job->out, "age_group", &age));
    TRY(builder_add_context(job->out, "country", &country));
    for (uint64_t user = 0; user < job->world->config.n_users; user++) {
        size_t n = (size_t)snprintf(id, sizeof id, "%" PRIu64, user + 1);
        synth_profile who = synth_user_profile(job->world, user);
        const char *age_name = synth_age_name(who.age);
        const char *country_name = synth_country_name(who.country);
        TRY(builder_set_context(job->out, age, id, n, age_name, strlen(age_name)));
        TRY(builder_set_context(job->out, country, id, n, country_name, strlen(country_name)));
    }
    return OK;
}

static void sum_up(const synth_job *job, synth_report *r) {
    const synth_config *c = &job->world->config;
    *r = (synth_report){
        .n_users = c->n_users, .n_items = c->n_items, .n_topics = job->world->n_topics};
    uint64_t n_foretold = 0, n_popular = 0;
    for (int64_t i = 0; i < job->n_chunks; i++) {
        const struct chunk_sums *s = &job->sums[i];
        r->best_hr10 += s->best_hr;
        r->best_ndcg10 += s->best_ndcg;
        r->n_events += s->n_events;
        if (s->max_len > r->max_len) r->max_len = s->max_len;
        n_foretold += s->n_foretold;
        n_popular += s->n_popular;
    }
    r->best_hr10 /= (double)c->n_users;
    r->best_ndcg10 /= (double)c->n_users;
    r->foretold_hr10 = (double)n_foretold / (double)c->n_users;
    r->popularity_hr10 = (double)n_popular / (double)c->n_users;
}

static status describe(const synth_config *c, const synth_report *r, buf *out) {
    json_writer w;
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, c->seed);
    json_begin_object(&w, out, 0);
    json_key_string(&w, "name", "synth");
    json_key_object(&w, "synth");
    JSON_FIELDS(&w, FIELD("users", c->n_users), FIELD("items", c->n_items),
                FIELD("mean_len", c->mean_len), FIELD("seed", seed), FIELD("topics", r->n_topics),
                FIELD("best_hr10", r->best_hr10), FIELD("best_ndcg10", r->best_ndcg10),
                FIELD("foretold_hr10", r->foretold_hr10),
                FIELD("popularity_hr10", r->popularity_hr10));
    json_object_close(&w);
    return json_finish_object(&w);
}

static status check_config(const synth_config *c) {
    if (c->n_users < 1 || c->n_users > (uint64_t)1 << 31)
        return fail(ERR_USAGE, "%" PRIu64 " users: give a number from 1 to 2^31", c->n_users);
    if (c->n_items < 20 || c->n_items > (uint32_t)1 << 31)
        return fail(ERR_USAGE, "%" PRIu32 " items: give a number from 20 to 2^31", c->n_items);
    /* !(a && b) also refuses a mean that is not a number. */
    if (!(c->mean_len >= 3 && c->mean_len <= c->n_items / 4))
        return fail(ERR_USAGE,
                    "%g events a user: give a mean from 3 to a quarter of the items, %" PRIu32
                    " here; nobody has an item twice",
                    c->mean_len, c->n_items / 4);
    return OK;
}

static status prepare(synth_job *job, pool *p) {
    const synth_config *c = &job->world->config;
    job->n_workers = p != NULL ? pool_n_threads(p) : 1;
    job->n_chunks = (int64_t)((c->n_users + CHUNK_USERS - 1) / CHUNK_USERS);
    TRY(MEM_NEW(&job->scratch, (size_t)job->n_workers));
    TRY(MEM_NEW(&job->count, (size_t)c->n_items + 1));
    TRY(MEM_NEW(&job->target, c->n_users));
    TRY(MEM_NEW(&job->popular_rank, (size_t)c->n_items + 1));
    TRY(MEM_NEW(&job->sums, (size_t)job->n_chunks));
    for (int i = 0; i < job->n_workers; i++)
        TRY(synth_user_init(&job->scratch[i], job->world));
    builder_options options = {.actions = ACTION_STARS, .time_per_second = 1};
    return builder_create(&job->out, &options, p);
}

static void clean_up(synth_job *job) {
    for (int i = 0; job->scratch != NULL && i < job->n_workers; i++)
        synth_user_fini(&job->scratch[i]);
    MEM_FREE(job->scratch, job->count, job->target, job->popular_rank, job->sums);
    builder_destroy(job->out);
}

static status write_world(synth_job *job, const char *folder, pool *p, synth_report *report) {
    builder_stats stats;
    buf meta = {0};
    TRY(prepare(job, p));
    TRY(pool_run(p, job->n_chunks, make_chunk, job));
    TRY(rank_by_count(job));
    TRY(pool_run(p, job->n_chunks, check_popular_chunk, job));
    sum_up(job, report);
    TRY(add_items(job));
    TRY(add_context(job));
    status st = describe(&job->world->config, report, &meta);
    if (st == OK) st = builder_write(job->out, folder, buf_str(&meta), &stats);
    buf_fini(&meta);
    return st;
}

status synth_write(const synth_config *config, const char *folder, pool *p, synth_report *report) {
    synth_world *world;
    *report = (synth_report){0};
    TRY(check_config(config));
    TRY(synth_world_create(&world, config));
    synth_job job = {.world = world};
    status st = write_world(&job, folder, p, report);
    clean_up(&job);
    synth_world_destroy(world);
    return st;
}

static status write_temp(void *ctx, const char *folder, pool *p) {
    synth_report report;
    return synth_write(ctx, folder, p, &report);
}

status synth_open(seq_file **out, const synth_config *config, pool *p) {
    synth_config copy = *config;
    return temp_data_open(out, write_temp, &copy, p);
}
