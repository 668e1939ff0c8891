#include "model/trained.h"

#include <unistd.h>

#include "oom.h"
#include "train/loop/baselines.h"
#include "world_run.h"

/* A run of a few steps, once for all tests of this process. */
static const char *small_run(const char *gin) {
    static char run[512];
    bench_top top;
    train_options o = train_options_default();
    snprintf(run, sizeof run, "%s", run_path("run"));
    o.run = run;
    o.max_steps = 3;
    CHECK_OK(top_open(&top, gin, NULL, 0, 2));
    CHECK_OK(trainer_run(&top.session, &o));
    top_close(&top);
    return run;
}

/* What a run was trained from, to open it with. */
typedef struct opened {
    const char *run;
    backend *be;
    seq_file *data;
} opened;

static void opened_start(opened *o, const char *gin) {
    o->run = small_run(gin);
    CHECK_OK(backend_create_cpu(&o->be, NULL));
    CHECK_OK(seq_file_open(&o->data, synth_folder(), NULL));
}

static void opened_end(opened *o) {
    seq_file_close(o->data);
    backend_destroy(o->be);
}

/* The values of the file, no gradients, and the place in the run. */
TEST(trained_model_has_its_weights_and_no_gradients) {
    opened o;
    trained t;
    st_file *f;
    char path[1024];
    opened_start(&o, retrieval_gin);
    CHECK_OK(trained_open(&t, o.run, o.data, o.be, 1));
    snprintf(path, sizeof path, "%s/last/model.safetensors", o.run);
    CHECK_OK(st_open(&f, path));
    for (int i = 0; i < t.session.n_params; i++) {
        const param *p = &t.session.params[i];
        const st_tensor *want = st_find(f, p->name);
        CHECK(want != NULL && p->grad == NULL);
        CHECK(memcmp(want->data, p->value, (size_t)p->n * sizeof *p->value) == 0);
    }
    st_close(f);
    CHECK(t.origin.step == 3 && t.origin.split.rule.kind == SPLIT_LEAVE_ONE_OUT);
    CHECK(t.session.train == NULL && t.session.limits.max_users == 1);
    CHECK_EQ(session_memory_bytes(&t.session), model_memory_bytes(t.session.model));
    trained_close(&t);
    CHECK_OK(trained_open(&t, o.run, o.data, o.be, 0));
    CHECK_EQ(t.session.limits.max_users, 16); /* eval_batch_size */
    trained_close(&t);
    opened_end(&o);
}

/* A session for training allocates in addition its gradients and activations. */
TEST(trained_model_takes_less_memory_than_one_in_training) {
    opened o;
    trained t;
    bench_top top;
    opened_start(&o, ranking_gin);
    CHECK_OK(trained_open(&t, o.run, o.data, o.be, 0));
    CHECK_OK(top_open(&top, ranking_gin, NULL, 0, 1));
    uint64_t values = 4 * (uint64_t)model_n_numbers(top.session.model);
    CHECK(session_memory_bytes(&top.session) >=
          model_memory_bytes(t.session.model) + values + pass_memory_bytes(top.session.train));
    top_close(&top);
    trained_close(&t);
    opened_end(&o);
}

TEST(trained_refuses_what_is_no_run) {
    opened o;
    trained t;
    opened_start(&o, retrieval_gin);
    CHECK_FAILS(trained_open(&t, synth_folder(), o.data, o.be, 1), ERR_FORMAT,
                "neither a checkpoint");
    CHECK(t.config == NULL && t.session.model == NULL);
    char path[1024];
    snprintf(path, sizeof path, "%s/last/state.json", o.run);
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL && fputc('[', file) == '[' && fclose(file) == 0);
    CHECK_FAILS(trained_open(&t, o.run, o.data, o.be, 1), ERR_FORMAT, "state.json");
    opened_end(&o);
}

static status open_again(void *ctx) {
    const opened *o = ctx;
    trained t;
    status st = trained_open(&t, o->run, o->data, o->be, 2);
    trained_close(&t);
    return st;
}

TEST(trained_out_of_memory) {
    opened o;
    opened_start(&o, ranking_gin);
    CHECK(oom_at_each_allocation(open_again, &o) > 40);
    opened_end(&o);
}

/* A model of one world, used with the data of another. */
typedef struct use {
    backend *be;
    seq_file *data;
    trained t;
} use;

/* Static items; dynamic items, keyed by number; contextual features. */
static const char nvidia_gin[] = "TrainerArgs.train_batch_size = 8\n"
                                 "TrainerArgs.eval_batch_size = 4\n"
                                 "TrainerArgs.eval_interval = 1000\n"
                                 "DatasetArgs.dataset_name = 'synth'\n"
                                 "DatasetArgs.max_history_seqlen = 8\n"
                                 "NetworkArgs.dtype_str = 'float32'\n"
                                 "NetworkArgs.num_layers = 1\n"
                                 "NetworkArgs.num_attention_heads = 1\n"
                                 "NetworkArgs.hidden_size = 8\n"
                                 "NetworkArgs.num_position_buckets = 64\n"
                                 "RetrievalArgs.num_negatives = 16\n";
#define DYNAMIC                                                                                    \
    "t/DynamicEmbeddingArgs.feature_names = ['item']\n"                                            \
    "t/DynamicEmbeddingArgs.table_name = 'items'\n"                                                \
    "t/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 512\n"                                   \
    "a/DynamicEmbeddingArgs.feature_names = ['age']\n"                                             \
    "a/DynamicEmbeddingArgs.table_name = 'ages'\n"                                                 \
    "a/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 64\n"                                    \
    "BenchmarkDatasetArgs.embedding_args = [@t/DynamicEmbeddingArgs(), "                           \
    "@a/DynamicEmbeddingArgs()]\n"

static void use_open(use *u, const char *run, const world *w) {
    *u = (use){.data = world_open(w)};
    log_set_level(LOG_WARN);
    CHECK_OK(backend_create_cpu(&u->be, NULL));
    CHECK_OK(trained_open(&u->t, run, u->data, u->be, 0));
}

static void use_close(use *u) {
    trained_close(&u->t);
    seq_file_close(u->data);
    backend_destroy(u->be);
}

enum { N_BEST = 25 };

/* The best items of a user, by name, and their scores. */
static void ask(use *u, const char *user, char best[N_BEST][32], float *score) {
    const seq_file *s = u->t.session.data;
    uint64_t number = seq_find_user(s, user), n = seq_length(s, number), from;
    int32_t offsets[2], n_targets[1] = {0}, item[N_BEST];
    uint32_t context[CONTEXT_MAX];
    uint64_t most = (uint64_t)u->t.session.max_history;
    if (n > most) n = most;
    from = s->offsets[number + 1] - n;
    offsets[0] = 0, offsets[1] = (int32_t)n;
    for (int f = 0; f < s->n_context; f++)
        context[f] = s->context[f].value[number];
    batch b = {.n_users = 1,
               .n_tokens = (int32_t)n,
               .n_context = s->n_context,
               .offsets = offsets,
               .users = &number,
               .n_targets = n_targets,
               .item = (uint32_t *)s->item + from,
               .action = (uint16_t *)s->action + from,
               .time = (int64_t *)s->time + from,
               .context = context};
    model_items corpus;
    rank_query q = {.corpus = &corpus, .k = N_BEST, .best = item, .score = score};
    pass *p;
    buf name = {0};
    CHECK_OK(pass_create(&p, u->t.session.model, &(pass_config){.max_users = 1}));
    CHECK_OK(model_corpus(u->t.session.model, &corpus));
    CHECK_OK(pass_rank(p, &b, &q));
    for (int i = 0; i < N_BEST; i++) {
        if (item[i] < 0) FAIL_TEST("user %s: %d items", user, i);
        CHECK_OK(seq_item_name(s, (uint32_t)item[i], &name));
        snprintf(best[i], 32, "%s", buf_str(&name));
    }
    pass_destroy(p);
    buf_fini(&name);
}

/* The same items with the same scores, to the bit, for every user whose known history is the same.
 */
static void check_same_answers(const char *run, const world *a, const world *b) {
    use x, y;
    char user[16], best_a[N_BEST][32], best_b[N_BEST][32];
    float score_a[N_BEST], score_b[N_BEST];
    use_open(&x, run, a);
    use_open(&y, run, b);
    for (int u = 1; u <= WORLD_USERS; u++) {
        snprintf(user, sizeof user, "%d", u);
        if (b->has_new_values && u == 9) continue; /* its age is unknown now */
        ask(&x, user, best_a, score_a);
        ask(&y, user, best_b, score_b);
        CHECK(memcmp(score_a, score_b, sizeof score_a) == 0);
        for (int i = 0; i < N_BEST; i++)
            CHECK_STR(best_b[i], best_a[i]);
    }
    use_close(&x);
    use_close(&y);
}

static const world old_world = {.folder = "old", .has_context = true};
static const world new_world = {.folder = "new",
                                .has_new_item = true,
                                .has_new_user = true,
                                .has_context = true,
                                .has_new_values = true,
                                .ticks = 1000};

/* An item whose id sorts first gives every other item another number; the answers stay. */
TEST(trained_static_items_are_known_by_id) {
    check_same_answers(train_world(&old_world, retrieval_gin, ""), &old_world, &new_world);
}

TEST(trained_context_is_known_by_name) {
    check_same_answers(train_world(&old_world, nvidia_gin, ""), &old_world, &new_world);
}

TEST(trained_dynamic_rows_are_known_by_id) {
    check_same_answers(train_world(&old_world, nvidia_gin, DYNAMIC), &old_world, &new_world);
}

TEST(trained_string_ids_are_known) {
    static const world texts = {.folder = "texts", .has_text = true, .prefix = "sku-"};
    static const world more = {
        .folder = "more", .has_text = true, .prefix = "sku-", .has_new_item = true};
    check_same_answers(train_world(&texts, retrieval_gin, ""), &texts, &more);
}

/* Items that the new data do not have are still recommended. */
TEST(trained_items_that_are_gone_are_known) {
    static const world few = {.folder = "few", .n_gone = 12};
    const char *run = train_world(&old_world, retrieval_gin, "");
    use u;
    char best[N_BEST][32];
    float score[N_BEST];
    bool is_there = false;
    use_open(&u, run, &few);
    CHECK_EQ(u.t.session.data->n_items, WORLD_ITEMS);
    ask(&u, "1", best, score);
    for (int i = 0; i < N_BEST; i++)
        is_there |= atoi(best[i]) <= 1000 + 10 * 12;
    CHECK(is_there);
    use_close(&u);
}

/* Without data: the ids of the model and no users. */
TEST(trained_without_data_knows_its_items) {
    const char *run = train_world(&old_world, nvidia_gin, DYNAMIC);
    backend *be;
    trained t;
    model_items corpus;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(trained_open(&t, run, NULL, be, 1));
    CHECK(t.session.data->n_users == 0 && seq_find_item(t.session.data, "1400") == WORLD_ITEMS);
    CHECK_OK(model_corpus(t.session.model, &corpus));
    CHECK(corpus.n > 30 && corpus.n <= WORLD_ITEMS);
    trained_close(&t);
    backend_destroy(be);
}

static eval_result measure(use *u, split_kind kind) {
    eval_result r;
    evaluator *e;
    CHECK_OK(evaluator_create(&e, &u->t.session, split_rule_of(kind), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &r));
    evaluator_destroy(e);
    return r;
}

/* User 3's last item is unknown: a miss, not the item before it.  The new user's is known. */
TEST(trained_unknown_targets_are_misses) {
    static const world lost = {.folder = "lost", .has_new_item = true};
    const char *run = train_world(&old_world, retrieval_gin, "");
    use u;
    use_open(&u, run, &old_world);
    eval_result before = measure(&u, SPLIT_LEAVE_ONE_OUT);
    use_close(&u);
    use_open(&u, run, &lost);
    eval_result after = measure(&u, SPLIT_LEAVE_ONE_OUT);
    char text[EVAL_MISSES_BYTES];
    CHECK(eval_describe_misses(&after, text));
    CHECK_STR(text, "evaluation: held-out events of items that the model does not know: 1 "
                    "(counted as not found)");
    /* The same for the baselines: one user's target is out of their reach. */
    position_counts counts;
    uint64_t n = 0;
    split s = split_make(u.t.session.data, split_rule_of(SPLIT_LEAVE_ONE_OUT), SESSION_SPLIT_SEED);
    baseline_config popular = baseline_config_default(u.t.session.data->n_items);
    CHECK_OK(baseline_measure(BASELINE_POPULARITY, &s, PART_TEST, &popular, NULL, &counts));
    for (int i = 1; i <= POSITION_MISS; i++)
        n += counts.count[i];
    CHECK(n == WORLD_USERS && counts.count[POSITION_MISS] >= 1);
    use_close(&u);
    CHECK(before.n_users == WORLD_USERS && before.n_unknown == 0 && after.n_unknown == 1);
    CHECK_EQ(after.n_users, WORLD_USERS);
    /* All other users have the same history and target; whether user 3 was a hit decides. */
    double lost_hits = WORLD_USERS * (eval_value(&before, "hr@500") - eval_value(&after, "hr@500"));
    CHECK(fabs(lost_hits) < 1e-9 || fabs(lost_hits - 1) < 1e-9);
    CHECK(eval_value(&after, "hr@500") <= (double)(WORLD_USERS - 1) / WORLD_USERS);
}

/* A ranking model scores the same, and leaves unknown candidates out. */
TEST(trained_ranking_is_by_id) {
    static const world shifted = {
        .folder = "shifted", .has_idle_item = true, .has_context = true, .has_new_values = true};
    static const world ages = {.folder = "ages", .has_context = true, .has_new_values = true};
    const char *run = train_world(&old_world, ranking_gin, "");
    use u;
    use_open(&u, run, &ages);
    eval_result a = measure(&u, SPLIT_LEAVE_ONE_OUT);
    use_close(&u);
    use_open(&u, run, &shifted);
    eval_result b = measure(&u, SPLIT_LEAVE_ONE_OUT);
    use_close(&u);
    CHECK(isfinite(eval_value(&a, "auc")) && eval_value(&a, "auc") == eval_value(&b, "auc"));
    use_open(&u, run, &new_world);
    eval_result c = measure(&u, SPLIT_LEAVE_ONE_OUT);
    use_close(&u);
    CHECK(c.n_unknown == 1 && c.n_users == WORLD_USERS);
}

typedef struct attempt {
    use u;
    const char *run;
} attempt;

static status open_other(void *ctx) {
    attempt *a = ctx;
    trained t;
    status st = trained_open(&t, a->run, a->u.data, a->u.be, 2);
    trained_close(&t);
    return st;
}

TEST(trained_on_other_data_out_of_memory) {
    attempt a = {.run = train_world(&old_world, nvidia_gin, DYNAMIC)};
    use_open(&a.u, a.run, &new_world);
    CHECK(oom_at_each_allocation(open_other, &a) > 60);
    use_close(&a.u);
}
