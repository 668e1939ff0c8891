/* Models that ranks share.  Here the ranks are threads of one process, each with a transport of its
 * own on one board (shm.h); tests/cli/serve has them as processes. */
#include "serve/engine/tensor_group.h"

#include "device.h"
#include "dist/shm.h"
#include "serve/engine/build.h"
#include "serve_test.h"

#define NETWORK                                                                                    \
    "TrainerArgs.train_batch_size = 8\n"                                                           \
    "TrainerArgs.eval_interval = 1000\n"                                                           \
    "DatasetArgs.dataset_name = 'synth'\n"                                                         \
    "DatasetArgs.max_history_seqlen = 160\n"                                                       \
    "NetworkArgs.dtype_str = 'float32'\n"                                                          \
    "NetworkArgs.num_layers = 2\n"                                                                 \
    "NetworkArgs.num_attention_heads = 4\n"                                                        \
    "NetworkArgs.hidden_size = 8\n"                                                                \
    "NetworkArgs.kv_channels = 8\n"                                                                \
    "NetworkArgs.num_position_buckets = 512\n"
#define RANKING                                                                                    \
    NETWORK "DatasetArgs.max_num_candidates = 3\n"                                                 \
            "NetworkArgs.disable_contextual_mask = True\n"                                         \
            "RankingArgs.prediction_head_arch = [8, 5]\n"                                          \
            "RankingArgs.num_tasks = 1\n"
static const char retrieval[] = NETWORK "RetrievalArgs.num_negatives = -1\n";
static const char ranking[] = RANKING;
static const char with_table[] =
    RANKING "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
            "movies/DynamicEmbeddingArgs.table_name = 'movies'\n"
            "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 1000\n"
            "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n";

enum { MAX_RANKS = 4, CLIENTS = 3, ROUNDS = 12, GROWTH = 11, K = 5, MOST = ROUNDS * GROWTH };

/* The ranks of a server; its own, rank 0, is the thread that opens it. */
typedef struct ranks {
    engine_config config;
    shm_job *job;
    int n;
    transport *t[MAX_RANKS];
    tensor_group *g[MAX_RANKS];
    pthread_t thread[MAX_RANKS];
    failure end[MAX_RANKS];
} ranks;

typedef struct rank_place {
    ranks *r;
    int rank;
} rank_place;

static void *follow(void *argument) {
    const rank_place *p = argument;
    ranks *r = p->r;
    engine_config own = r->config;
    own.group = r->g[p->rank];
    failure_save(&r->end[p->rank], tensor_group_follow(own.group, &own));
    tensor_group_destroy(own.group);
    return NULL;
}

/* n = 1: a server alone.  The others open a model as r->config says. */
static engine *ranks_open(ranks *r, int n, const engine_config *c, const char *run) {
    static rank_place place[MAX_RANKS];
    engine_config own = *c;
    engine *e;
    *r = (ranks){.config = r->config, .n = n};
    if (n > 1) CHECK_OK(shm_job_create(&r->job, n, 0));
    for (int i = 0; i < n && n > 1; i++) {
        CHECK_OK(shm_create(&r->t[i], r->job, i));
        CHECK_OK(tensor_group_create(&r->g[i], r->t[i]));
        place[i] = (rank_place){r, i};
        if (i > 0) CHECK(pthread_create(&r->thread[i], NULL, follow, &place[i]) == 0);
    }
    own.group = r->g[0];
    CHECK_OK(engine_create(&e, &own));
    if (run != NULL) CHECK_OK(engine_load(e, "model", run));
    return e;
}

/* How the followers ended is in r->end. */
static void ranks_close(ranks *r, engine *e) {
    engine_destroy(e);
    tensor_group_destroy(r->g[0]);
    for (int i = 1; i < r->n; i++)
        pthread_join(r->thread[i], NULL);
    for (int i = 0; i < r->n; i++)
        transport_destroy(r->t[i]);
    shm_job_destroy(r->job);
}

static engine_config some_pages(void) {
    static char device[16] = "cpu";
    if (test_on.kind == ON_CUDA) snprintf(device, sizeof device, "cuda:%d", test_on.number);
    return (engine_config){
        .data = synth_folder(), .device = device, .n_threads = 1, .kv_pages = 40};
}

/* Clients whose histories grow over several pages, and all their answers. */
typedef struct crowd {
    engine *e;
    bool is_ranking;
    float value[CLIENTS][ROUNDS][K];
    uint32_t item[CLIENTS][ROUNDS][K];
    atomic_int n_reused, n_loaded, n_wrong;
    char error[ENGINE_ERROR_BYTES];
} crowd;

typedef struct member {
    crowd *c;
    int place;
} member;

static engine_answer ask_about(engine *e, bool is_ranking, int place, int n_events) {
    engine_event history[MOST];
    engine_id candidates[K];
    engine_answer a;
    for (int i = 0; i < n_events; i++)
        history[i] = serve_event(1 + (place * 17 + i * 7) % 60, 1900000000 + i);
    for (int i = 0; i < K; i++)
        candidates[i] = serve_id(1 + 7 * i);
    engine_request q = {.has_history = true,
                        .history = history,
                        .n_history = (size_t)n_events,
                        .keeps_seen = true,
                        .deadline_ns = 100000000000u};
    q.task = is_ranking ? ENGINE_RANK : ENGINE_RECOMMEND;
    if (!is_ranking) q.top_k = K;
    if (is_ranking) q.candidates = candidates;
    if (is_ranking) q.n_candidates = K;
    engine_ask(e, &q, &a);
    return a;
}

static void ask_round(crowd *c, int place, int round) {
    engine_answer a = ask_about(c->e, c->is_ranking, place, (round + 1) * GROWTH);
    if (a.outcome != ENGINE_OK || a.n_items != K) {
        memcpy(c->error, a.error, sizeof a.error);
        atomic_fetch_add(&c->n_wrong, 1);
    }
    for (size_t i = 0; i < a.n_items && i < K; i++) {
        c->value[place][round][i] = a.items[i].values[0];
        c->item[place][round][i] = a.items[i].number;
    }
    atomic_fetch_add(&c->n_reused, a.tokens_reused);
    atomic_fetch_add(&c->n_loaded, a.tokens_loaded);
    engine_answer_release(&a);
}

static void *join_crowd(void *argument) {
    const member *m = argument;
    for (int round = 0; round < ROUNDS; round++)
        ask_round(m->c, m->place, round);
    return NULL;
}

/* All ask at the same time; then in turns, when few pages are certain to be the others'. */
static void run_crowd(crowd *c, engine *e, bool is_ranking) {
    pthread_t thread[CLIENTS];
    member m[CLIENTS];
    *c = (crowd){.e = e, .is_ranking = is_ranking};
    for (int i = 0; i < CLIENTS; i++) {
        m[i] = (member){c, i};
        CHECK(pthread_create(&thread[i], NULL, join_crowd, &m[i]) == 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 2 * CLIENTS; i++)
        ask_round(c, i % CLIENTS, ROUNDS - 1);
    if (c->n_wrong > 0) FAIL_TEST("%d failed: %s", c->n_wrong, c->error);
}

/* The same items in the same order, with values apart by the order of sums alone.  A GPU's numbers
 * depend on the batch as well, and so the order of equals. */
static void check_same(const crowd *a, const crowd *b, double most) {
    const float *x = a->value[0][0], *y = b->value[0][0];
    bool is_cuda = test_on.kind == ON_CUDA;
    CHECK(is_cuda || memcmp(a->item, b->item, sizeof a->item) == 0);
    for (size_t i = 0; i < sizeof a->value / sizeof *x; i++)
        if (!(fabsf(x[i] - y[i]) <=
              (is_cuda ? fmax(2e-3, most) * (1 + fabsf(x[i])) : most * fabsf(x[i]))))
            FAIL_TEST("number %zu is %.9g, not %.9g", i, (double)y[i], (double)x[i]);
}

/* What a server of n ranks says, and what it says of its model. */
static void ask_ranks(const char *run, bool is_ranking, const engine_config *c, int n, ranks *r,
                      crowd *out, engine_model_info *info) {
    *r = (ranks){.config = *c};
    engine *e = ranks_open(r, n, c, run);
    CHECK_OK(engine_model(e, 0, info));
    run_crowd(out, e, is_ranking);
    ranks_close(r, e);
}

/* n ranks answer as one does, and find as many tokens in pages. */
static void check_ranks(const char *run, bool is_ranking, const engine_config *c, int n,
                        double most) {
    static crowd one, shared;
    ranks r;
    engine_model_info info[2];
    ask_ranks(run, is_ranking, c, 1, &r, &one, &info[0]);
    ask_ranks(run, is_ranking, c, n, &r, &shared, &info[1]);
    CHECK(fabs(info[0].fp8_error - info[1].fp8_error) <= 0.05 * info[0].fp8_error);
    for (int i = 1; i < n; i++)
        CHECK_EQ(r.end[i].code, OK);
    check_same(&one, &shared, most);
    CHECK(one.n_reused > 0 && shared.n_reused > 0);
    CHECK((shared.n_loaded > 0) == (c->kv_host_pages > 0));
}

TEST(tensor_group_recommends_as_one_process) {
    engine_config c = some_pages();
    const char *run = serve_run("run", retrieval, NULL, 0);
    check_ranks(run, false, &c, 2, 1e-5);
    check_ranks(run, false, &c, 4, 1e-5);
}

TEST(tensor_group_scores_as_one_process) {
    engine_config c = some_pages();
    check_ranks(serve_run("run", ranking, NULL, 0), true, &c, 2, 1e-5);
}

/* Every rank has all rows of a dynamic table. */
TEST(tensor_group_scores_with_a_dynamic_table) {
    engine_config c = some_pages();
    check_ranks(serve_run("run", with_table, NULL, 0), true, &c, 2, 1e-5);
}

/* Pages of all ranks move to host memory and back together. */
TEST(tensor_group_moves_pages) {
    engine_config c = some_pages();
    c.kv_pages = 4;
    c.kv_host_pages = 40;
    c.loads_always = true;
    check_ranks(serve_run("run", retrieval, NULL, 0), false, &c, 2, 1e-5);
}

/* A sum that differs in its last bit may be rounded to the next number of 8 bits. */
TEST(tensor_group_keeps_8_bits) {
    engine_config c = some_pages();
    c.has_fp8_kv = true;
    check_ranks(serve_run("run", ranking, NULL, 0), true, &c, 2, 2e-3);
}

/* The largest difference of two servers' values, as check_same measures it on a GPU. */
static double apart(const crowd *a, const crowd *b) {
    const float *x = a->value[0][0], *y = b->value[0][0];
    double most = 0;
    for (size_t i = 0; i < sizeof a->value / sizeof *x; i++)
        most = fmax(most, fabsf(x[i] - y[i]) / (1 + fabsf(x[i])));
    return most;
}

/* Each rank reads its part of the 16-bit matrices of an engine folder.  A GPU rounds parts of sums
 * to 16 bits, others with two ranks than with one: they may differ by three times what 16 bits
 * change in the answers of one. */
TEST(tensor_group_serves_a_16_bit_engine) {
    static crowd exact, rounded;
    engine_config c = some_pages();
    engine_model_info info;
    build_report report;
    ranks r;
    const char *run = serve_run("run", retrieval, NULL, 0);
    build_config b = {
        .run = run, .out = run_path("engine"), .dtype = DTYPE_BFLOAT16, .limits = {.kv_pages = -1}};
    CHECK_OK(build_engine(&b, &report));
    double most = 1e-5;
    if (test_on.kind == ON_CUDA) {
        ask_ranks(run, false, &c, 1, &r, &exact, &info);
        ask_ranks(b.out, false, &c, 1, &r, &rounded, &info);
        most = fmin(3 * apart(&exact, &rounded), 0.05);
    }
    check_ranks(b.out, false, &c, 2, most);
}

/* Numbers of the layers' matrices on this rank, and in the whole model. */
static status count_layers(served *m, void *ctx) {
    int64_t *n = ctx;
    for (int i = 0; i < m->s->n_params; i++) {
        const param *p = &m->s->params[i];
        if (strstr(p->name, "linear") == NULL) continue;
        n[0] += p->n;
        n[1] += param_whole_n(p);
    }
    return OK;
}

/* A rank has its share of the layers.  A reload replaces the model on all ranks; a load that fails
 * on one of them, or on all, changes nothing. */
TEST(tensor_group_shares_weights_and_reloads) {
    static const char *const meta[] = {"hstu_encoder.num_heads=4"};
    static const char *const three[] = {"NetworkArgs.num_attention_heads=3"};
    static crowd before, after;
    engine_config c = some_pages();
    engine_model_info info;
    int64_t n[2] = {0};
    ranks r = {.config = c};
    const char *run = serve_run("run", retrieval, NULL, 0);
    engine *e = ranks_open(&r, 2, &c, run);
    CHECK_OK(slot_call(engine_slot(e, 0, 0), count_layers, n));
    CHECK(n[0] > 0 && n[1] == 2 * n[0]);
    run_crowd(&before, e, false);
    CHECK_OK(engine_load(e, "model", run));
    CHECK_FAILS(engine_load(e, "model", run_path("none")), ERR_IO, "no such folder");
    CHECK_FAILS(engine_load(e, "model", serve_run("meta", retrieval_gin, meta, 1)), ERR_UNSUPPORTED,
                "its layers cannot be cut over ranks");
    CHECK_FAILS(engine_load(e, "model", serve_run("three", retrieval, three, 1)), ERR_CONFIG,
                "num_attention_heads = 3 does not divide among");
    CHECK_OK(engine_load(e, "second", run));
    for (int i = 0; i < (test_is_brief() ? 3 : 80); i++) /* 64 can be loaded at a time */
        CHECK_OK(engine_load(e, "second", run));
    CHECK_OK(engine_model(e, 0, &info));
    CHECK_STR(info.version, "2");
    CHECK_CONTAINS(info.device, ", rank 0 of 2");
    run_crowd(&after, e, false);
    check_same(&before, &after, 0);
    ranks_close(&r, e);
    CHECK_EQ(r.end[1].code, OK);
}

/* Ranks that found something else at the path load nothing. */
TEST(tensor_group_needs_the_same_model) {
    engine_config c = some_pages();
    const char *run = serve_run("run", retrieval, NULL, 0);
    ranks r = {.config = c};
    r.config.max_tokens = 12345;
    engine *e = ranks_open(&r, 2, &c, NULL);
    CHECK_FAILS(engine_load(e, "model", run), ERR_IO, "was replaced while it was opened");
    CHECK_EQ(engine_n_models(e), 0);
    ranks_close(&r, e);
    CHECK_EQ(r.end[1].code, OK);
}

/* A rank dies: requests fail at once, as those of a server that ends, with the reason; so does a
 * load. */
TEST(tensor_group_ends_with_a_rank) {
    engine_config c = some_pages();
    ranks r = {.config = c};
    const char *run = serve_run("run", retrieval, NULL, 0);
    engine *e = ranks_open(&r, 2, &c, run);
    engine_answer a = ask_about(e, false, 0, 20);
    CHECK_EQ(a.outcome, ENGINE_OK);
    engine_answer_release(&a);
    CHECK_OK(tensor_group_check(r.g[0]));
    CHECK(shm_job_fail(r.job, 1)); /* as its supervising process does */
    for (int i = 0; i < 2; i++) {
        a = ask_about(e, false, 0, 30);
        CHECK_EQ(a.outcome, ENGINE_CLOSING);
        CHECK_CONTAINS(a.error, "a rank that shares the models is lost; the server stops");
        engine_answer_release(&a);
    }
    CHECK_FAILS(engine_load(e, "model", run), ERR_IO, "a rank that shares the models is lost");
    CHECK_FAILS(tensor_group_check(r.g[0]), ERR_IO, "is lost");
    ranks_close(&r, e);
    CHECK_EQ(r.end[1].code, ERR_IO);
    CHECK_CONTAINS(r.end[1].reason, "rank 1 failed, so the job ends");
}

static status fail_product(backend *be, const linear_args *a) {
    (void)be, (void)a;
    return fail(ERR_DEVICE, "the device is gone");
}

static status break_products(served *m, void *ctx) {
    static ops broken;
    (void)ctx;
    broken = *m->compute.be->ops;
    broken.linear_fwd = fail_product;
    m->compute.be->ops = &broken;
    return OK;
}

/* A batch fails on rank 0 while the other rank waits for its part: no later batch is tried, and the
 * other rank ends with the job. */
TEST(tensor_group_ends_with_a_failed_batch) {
    engine_config c = some_pages();
    ranks r = {.config = c};
    engine *e = ranks_open(&r, 2, &c, serve_run("run", retrieval, NULL, 0));
    CHECK_OK(slot_call(engine_slot(e, 0, 0), break_products, NULL));
    for (int i = 0; i < 2; i++) {
        engine_answer a = ask_about(e, false, 0, 20);
        CHECK_EQ(a.outcome, ENGINE_CLOSING);
        CHECK_CONTAINS(a.error, "a rank that shares the models is lost; the server stops");
        CHECK((strstr(a.error, "the device is gone") != NULL) == (i == 0));
        engine_answer_release(&a);
    }
    CHECK(shm_job_fail(r.job, 0)); /* as rank 0 does when it leaves */
    ranks_close(&r, e);
    CHECK_CONTAINS(r.end[1].reason, "rank 0 failed, so the job ends");
}
