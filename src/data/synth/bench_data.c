#include "data/synth/bench_data.h"

#include "format/json.h"

enum { CHUNK_USERS = 16 };

/* The purpose of a draw; contextual feature f is FOR_CONTEXT + f. */
enum { FOR_LENGTH = 1, FOR_ITEM, FOR_ACTION, FOR_CONTEXT };

/* A sensible distribution never rejects this many draws in a row; any other then gives `low`. */
enum { MAX_ATTEMPTS = 1024 };

static double normal(const rng_block *b) {
    return sqrt(-2 * log(1 - rng_uniform_pair(b, 0))) *
           cos(6.283185307179586 * rng_uniform_pair(b, 1));
}

/* Devroye's rejection: a power of a uniform number has nearly the right tail, and is accepted with
 * the probability that makes it exact.  false: rejected. */
static bool draw_zipf(double alpha, const rng_block *b, double *out) {
    double less = alpha - 1, top = pow(2, less);
    double k = floor(pow(1 - rng_uniform_pair(b, 0), -1 / less));
    if (!(k <= 9e18)) return false;
    double ratio = pow(1 + 1 / k, less);
    *out = k;
    return rng_uniform_pair(b, 1) * k * (ratio - 1) / (top - 1) <= ratio / top;
}

static double draw_lognormal(const draw_rule *r, const rng_block *b) {
    double spread = r->deviation / r->mean, square = log1p(spread * spread);
    return exp(log(r->mean) - square / 2 + sqrt(square) * normal(b));
}

/* false: draw again. */
static bool draw_real(const draw_rule *r, const rng_block *b, double *out) {
    double low = (double)r->low, n = (double)r->high - low + 1;
    switch (r->kind) {
    case DRAW_UNIFORM:
        *out = low + floor(n * rng_uniform_pair(b, 0));
        return true;
    case DRAW_NORMAL:
        *out = round(r->mean + r->deviation * normal(b));
        return true;
    case DRAW_LOGNORMAL:
        *out = round(draw_lognormal(r, b));
        return true;
    case DRAW_ZIPF:
        if (!draw_zipf(r->alpha, b, out)) return false;
        *out += low - 1;
        return true;
    }
    return false;
}

int64_t draw_number(const draw_rule *r, rng_key key, uint32_t user, uint32_t position,
                    uint32_t purpose) {
    for (uint32_t attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        rng_block b = rng_draw(key, user, position, purpose, attempt);
        double x;
        if (!draw_real(r, &b, &x)) continue;
        if (x >= (double)r->low && x <= (double)r->high) return (int64_t)x;
        if (r->is_clamped) return x < (double)r->low ? r->low : r->high;
    }
    return r->low;
}

typedef struct bench_job {
    const bench_data_config *config;
    rng_key key;
    builder *out;
} bench_job;

static uint32_t user_length(const bench_job *job, uint64_t user) {
    int64_t n = draw_number(&job->config->length, job->key, (uint32_t)user, 0, FOR_LENGTH);
    return n < BENCH_MIN_EVENTS ? BENCH_MIN_EVENTS : (uint32_t)n;
}

static status add_user(const bench_job *job, builder_sink *sink, uint64_t user) {
    const bench_data_config *c = job->config;
    uint32_t n = user_length(job, user), u = (uint32_t)user;
    for (uint32_t i = 0; i < n; i++) {
        int64_t item = draw_number(&c->item, job->key, u, i, FOR_ITEM);
        int64_t action = c->has_actions ? draw_number(&c->action, job->key, u, i, FOR_ACTION) : 0;
        TRY(sink_add(sink, (int64_t)user, item, (uint16_t)action, i));
    }
    return OK;
}

static status make_chunk(void *ctx, int64_t chunk, int worker) {
    const bench_job *job = ctx;
    builder_sink *sink = builder_get_sink(job->out, worker);
    uint64_t first = (uint64_t)chunk * CHUNK_USERS, end = first + CHUNK_USERS, n_events = 0;
    if (end > job->config->n_users) end = job->config->n_users;
    for (uint64_t user = first; user < end; user++)
        n_events += user_length(job, user);
    TRY(sink_begin_block(sink, (uint64_t)chunk, n_events));
    for (uint64_t user = first; user < end; user++)
        TRY(add_user(job, sink, user));
    return sink_end_block(sink);
}

static status add_context(const bench_job *job, int f) {
    const bench_data_config *c = job->config;
    char id[24], value[24];
    int feature;
    TRY(builder_add_context(job->out, c->context[f].name, &feature));
    for (uint64_t user = 0; user < c->n_users; user++) {
        int64_t v = draw_number(&c->context[f].value, job->key, (uint32_t)user, 0,
                                FOR_CONTEXT + (uint32_t)f);
        size_t n_id = (size_t)snprintf(id, sizeof id, "%" PRIu64, user);
        size_t n_value = (size_t)snprintf(value, sizeof value, "%" PRId64, v);
        TRY(builder_set_context(job->out, feature, id, n_id, value, n_value));
    }
    return OK;
}

static status describe(const bench_data_config *c, buf *out) {
    json_writer w;
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, c->seed);
    json_begin(&w, out, 0);
    JSON_OBJECT(&w, FIELD("name", "generated"), FIELD("seed", seed));
    return json_finish(&w);
}

static status write_all(bench_job *job, const char *folder, pool *p, builder_stats *stats) {
    const bench_data_config *c = job->config;
    buf meta = {0};
    int64_t n_chunks = (int64_t)((c->n_users + CHUNK_USERS - 1) / CHUNK_USERS);
    builder_options options = {.actions = c->has_actions ? ACTION_CODE : ACTION_NONE,
                               .time_per_second = 1};
    TRY(builder_create(&job->out, &options, p));
    TRY(pool_run(p, n_chunks, make_chunk, job));
    for (int f = 0; f < c->n_context; f++)
        TRY(add_context(job, f));
    status st = describe(c, &meta);
    if (st == OK) st = builder_write(job->out, folder, buf_str(&meta), stats);
    buf_fini(&meta);
    return st;
}

static status check_rule(const char *what, const draw_rule *r, int64_t low, int64_t high) {
    if (r->low < low || r->high > high || r->high < r->low)
        return fail(ERR_USAGE,
                    "%s from %" PRId64 " to %" PRId64 " cannot be generated; they must be within "
                    "%" PRId64 "..%" PRId64,
                    what, r->low, r->high, low, high);
    bool is_bell = r->kind == DRAW_NORMAL || r->kind == DRAW_LOGNORMAL;
    if (is_bell && (!isfinite(r->mean) || !(r->deviation > 0) || !isfinite(r->deviation)))
        return fail(ERR_USAGE, "%s: a normal distribution needs a mean and a deviation above 0",
                    what);
    if (r->kind == DRAW_LOGNORMAL && !(r->mean > 0))
        return fail(ERR_USAGE, "%s: a lognormal distribution needs a mean above 0", what);
    if (r->kind == DRAW_ZIPF && !(r->alpha > 1))
        return fail(ERR_USAGE, "%s: a zipf distribution needs an alpha above 1", what);
    return OK;
}

static status check_config(const bench_data_config *c) {
    const int64_t most = (int64_t)1 << 53; /* numbers are drawn as doubles */
    if (c->n_users < 1 || c->n_users > (uint64_t)1 << 31)
        return fail(ERR_USAGE, "%" PRIu64 " users: give a number from 1 to 2^31", c->n_users);
    TRY(check_rule("lengths", &c->length, 0, INT32_MAX));
    TRY(check_rule("items", &c->item, 0, most));
    if (c->has_actions) TRY(check_rule("actions", &c->action, 0, ACTION_UNKNOWN - 1));
    for (int f = 0; f < c->n_context; f++)
        TRY(check_rule(c->context[f].name, &c->context[f].value, 0, most));
    return OK;
}

status bench_data_write(const bench_data_config *c, const char *folder, pool *p,
                        builder_stats *stats) {
    bench_job job = {.config = c, .key = rng_make_key(c->seed, RNG_SYNTH)};
    *stats = (builder_stats){0};
    TRY(check_config(c));
    status st = write_all(&job, folder, p, stats);
    builder_destroy(job.out);
    return st;
}
