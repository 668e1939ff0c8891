/* Training on several ranks: the same bits on any number of them, whatever happens on the way. */
#include "dist/leaf_step.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dist/ranks.h"
#include "dist/shm.h"
#include "table_run.h"

/* NVIDIA's retrieval, with negatives from the batch. */
static const char in_batch_gin[] = "TrainerArgs.train_batch_size = 8\n"
                                   "TrainerArgs.eval_interval = 1000\n"
                                   "DatasetArgs.dataset_name = 'synth'\n"
                                   "DatasetArgs.max_history_seqlen = 12\n"
                                   "DatasetArgs.shuffle = True\n"
                                   "NetworkArgs.dtype_str = 'float32'\n"
                                   "NetworkArgs.num_layers = 1\n"
                                   "NetworkArgs.num_attention_heads = 1\n"
                                   "NetworkArgs.hidden_size = 8\n"
                                   "NetworkArgs.num_position_buckets = 64\n"
                                   "RetrievalArgs.num_negatives = -1\n";
typedef struct job {
    const char *gin;
    const char *const *set;
    size_t n_set;
    const char *folder; /* of the data */
    int n_threads;
    train_options options;
    bool is_as_gpu;      /* sums are made as on a GPU in deterministic mode, and all ranks have
                            all rows of dynamic tables */
    int64_t early_bytes; /* of the session */
    bool has_bf16_wire;
    int kill_rank, kill_ms; /* which rank dies after so many milliseconds; -1: none */
} job;

static job job_make(const char *gin, const char *run, int64_t max_steps) {
    job j = {.gin = gin, .n_threads = 1, .options = train_options_default(), .kill_rank = -1};
    j.folder = synth_folder(); /* made before ranks would make it together */
    j.options.run = run;
    j.options.max_steps = max_steps;
    return j;
}

static status train_rank(const job *j, transport *t) {
    bench_top top;
    comm *c = NULL;
    status st = top_open_on(&top, j->folder, j->gin, j->set, j->n_set, j->n_threads);
    if (st == OK && t != NULL) st = comm_create_host(&c, top.be, t);
    if (st == OK && c != NULL && !j->is_as_gpu) {
        session_close(&top.session);
        session_ranks ranks = {.data = c, .has_bf16_wire = j->has_bf16_wire};
        st = session_open_ranks(&top.session, top.config, top.data, top.be, &ranks);
    }
    top.session.comm = c;
    top.session.has_fixed_leaves = j->is_as_gpu;
    top.session.early_bytes = j->early_bytes;
    if (st == OK) st = trainer_run(&top.session, &j->options);
    comm_destroy(c);
    top_close(&top);
    return st;
}

/* Kills this process from a thread of its own, so that it can happen anywhere in a step. */
static void *kill_later(void *ctx) {
    const struct timespec time = {.tv_nsec = *(int *)ctx * 1000000L};
    nanosleep(&time, NULL);
    raise(SIGKILL);
    return NULL;
}

static void watch_for_kill(const job *j, const transport *t) {
    static int ms;
    pthread_t thread;
    if (t->rank != j->kill_rank) return;
    ms = j->kill_ms;
    CHECK(pthread_create(&thread, NULL, kill_later, &ms) == 0);
    pthread_detach(thread);
}

/* Trains on n ranks, 0: in this process; returns how it ended. */
static status train_on(const job *j, int n) {
    transport *t;
    if (n == 0) return train_rank(j, NULL);
    status st = ranks_fork(&t, n, 500);
    if (t == NULL) return st;
    watch_for_kill(j, t);
    st = ranks_leave(t, st == OK ? train_rank(j, t) : st);
    if (st != OK && status_reason()[0] != '\0') fprintf(stderr, "said: %s\n", status_reason());
    _exit(status_exit_code(st));
}

static bool same_run(const char *a, const char *b) {
    return same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors");
}

static void open_step(bench_top *t, batcher **batches, const char *gin) {
    CHECK_OK(top_open(t, gin, NULL, 0, 2));
    CHECK_OK(model_init(t->session.model, 5));
    CHECK_OK(model_alloc_grads(t->session.model));
    batcher_config b =
        session_train_batches(&t->session, session_split(t->session.config, false), 1);
    CHECK_OK(batcher_create(batches, t->session.data, &b));
}

static void compare_grads(const bench_top *a, const bench_top *b) {
    for (int i = 0; i < a->session.n_params; i++) {
        const param *x = &a->session.params[i], *y = &b->session.params[i];
        double most = 0;
        for (int64_t k = 0; k < x->n; k++)
            most = fabs(x->grad[k]) > most ? fabs(x->grad[k]) : most;
        CHECK(most > 0);
        for (int64_t k = 0; k < x->n; k++)
            CHECK(fabs((double)x->grad[k] - y->grad[k]) <= 1e-5 * most);
        for (int64_t r = 0; x->marks != NULL && r < x->shape[0]; r++)
            CHECK_EQ(x->marks[r], y->marks[r]);
    }
}

/* Leaves change the order of sums and nothing else: gradients, marks and losses are those of a pass
 * over the whole batch, but for rounding; of two batches, too. */
TEST(leaf_step_sums_to_the_gradient_of_the_batch) {
    static const char *const gins[] = {retrieval_gin, ranking_gin, in_batch_gin, retrieval_gin,
                                       ranking_gin};
    for (int g = 0; g < 5; g++) {
        bench_top a, b;
        batcher *batches, *same;
        leaf_step *l;
        const batch *one, *other;
        double x, y;
        int64_t n;
        model_step at = {.seed = 5, .step = 2, .grad_scale = 0.25f};
        open_step(&a, &batches, gins[g]);
        open_step(&b, &same, gins[g]);
        b.session.has_fixed_leaves = g > 2;
        CHECK_OK(leaf_step_create(&l, &b.session));
        CHECK(l != NULL);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(batcher_next(batches, &one));
            CHECK_OK(batcher_next(same, &other));
            CHECK_OK(pass_train(a.session.train, one, &at, NULL));
            CHECK_OK(leaf_step_train(l, other, &at, i == 2, &n));
            CHECK_EQ(n, 0);
            compare_grads(&a, &b);
        }
        CHECK_OK(leaf_step_end(l, &n));
        CHECK_OK(pass_take_loss(a.session.train, &x));
        CHECK_OK(pass_take_loss(b.session.train, &y));
        CHECK(x > 0 && fabs(x - y) < 1e-6 * x);
        leaf_balance balance;
        CHECK_OK(leaf_step_balance(l, &balance));
        CHECK(balance.predicted == 1 && balance.measured == 1); /* one rank */
        leaf_step_destroy(l);
        leaf_step_destroy(NULL);
        batcher_destroy(batches);
        batcher_destroy(same);
        top_close(&a);
        top_close(&b);
    }
}

/* A run in this process, then on several ranks with one and with several threads.  Where sums are
 * made as on a GPU, the number of ranks is a power of two. */
static void check_same_as(const char *gin, const char *const *set, size_t n_set, int64_t max_steps,
                          const char *table, bool is_as_gpu) {
    static const int any[] = {2, 3, 4, 8}, powers[] = {2, 4, 8};
    const int *sizes = is_as_gpu ? powers : any;
    char one[512], many[512];
    snprintf(one, sizeof one, "%s/one%d", test_folder(), is_as_gpu);
    job j = job_make(gin, one, max_steps);
    j.is_as_gpu = is_as_gpu;
    j.early_bytes = is_as_gpu ? 600 : 0;
    j.set = set;
    j.n_set = n_set;
    if (table != NULL) j.folder = data_folder();
    CHECK_OK(train_on(&j, 0));
    for (int i = 0; i < (is_as_gpu ? 3 : 4); i++) {
        snprintf(many, sizeof many, "%s/many%d%d", test_folder(), sizes[i], is_as_gpu);
        j.options.run = many;
        j.n_threads = 1 + sizes[i] % 2;
        if (sizes[i] == 8) j.early_bytes = 0;
        CHECK_OK(train_on(&j, sizes[i]));
        CHECK(same_run(one, many));
        if (table != NULL) CHECK(same_file(one, many, table));
    }
}

static void check_same(const char *gin, const char *const *set, size_t n_set, int64_t max_steps,
                       const char *table) {
    check_same_as(gin, set, n_set, max_steps, table, false);
    check_same_as(gin, set, n_set, max_steps, table, true);
}

TEST(leaf_step_same_bits_retrieval) {
    check_same(retrieval_gin, NULL, 0, 7, NULL);
}

/* Tables are lazy here: marked rows alone are exchanged.  Clipping needs the norm of the whole. */
TEST(leaf_step_same_bits_ranking) {
    static const char *const set[] = {"TrainerArgs.clip_grad=0.01"};
    check_same(ranking_gin, set, 1, 6, NULL);
}

TEST(leaf_step_same_bits_accumulated) {
    static const char *const set[] = {"TrainerArgs.train_batch_size=4",
                                      "TrainingArgs.gradient_accumulation_steps=2"};
    check_same(ranking_gin, set, 2, 4, NULL);
}

TEST(leaf_step_same_bits_negatives_from_the_batch) {
    check_same(in_batch_gin, NULL, 0, 4, NULL);
}

/* With fewer users in a batch than ranks some ranks have nothing to do. */
TEST(leaf_step_same_bits_tiny_batches) {
    static const char *const set[] = {"TrainerArgs.train_batch_size=2"};
    check_same(ranking_gin, set, 1, 5, NULL);
}

TEST(leaf_step_same_bits_dynamic_table) {
    static const char *const set[] = {quarter, "movies/DynamicEmbeddingArgs.table_name='movies'"};
    check_same(ranking_tables, set, 2, 12, "table-0-movies/rank-0-of-1/rows-00000.safetensors");
}

/* Saved on 4 ranks, resumed on 2, 3 and 1. */
TEST(leaf_step_resumes_on_another_number_of_ranks) {
    static const char *const gins[] = {retrieval_gin, ranking_gin};
    static const int sizes[] = {4, 2, 3, 0};
    for (int g = 0; g < 2; g++) {
        char whole[512], parts[512];
        snprintf(whole, sizeof whole, "%s/whole%d", test_folder(), g);
        snprintf(parts, sizeof parts, "%s/parts%d", test_folder(), g);
        job a = job_make(gins[g], whole, 8), b = job_make(gins[g], parts, 0);
        CHECK_OK(train_on(&a, 0));
        for (int i = 0; i < 4; i++) {
            b.options.max_steps = 2 * (i + 1);
            b.options.is_resume = i > 0;
            CHECK_OK(train_on(&b, sizes[i]));
        }
        CHECK(same_run(whole, parts));
    }
}

/* Killed at some moment, on each rank, and resumed. */
TEST(leaf_step_survives_killed_ranks) {
    char whole[512], parts[512];
    snprintf(whole, sizeof whole, "%s/whole", test_folder());
    snprintf(parts, sizeof parts, "%s/parts", test_folder());
    job a = job_make(retrieval_gin, whole, 0), b = job_make(retrieval_gin, parts, 0);
    a.options.n_epochs = b.options.n_epochs = 6;
    CHECK_OK(train_on(&a, 0));
    int n_killed = 0;
    status st = ERR_IO;
    for (int i = 0; i < 8 && st != OK; i++) {
        b.kill_rank = i < 7 ? i % 3 : -1;
        b.kill_ms = 5 + i * 17;
        b.options.is_resume = folder_exists(run_path("parts/checkpoints")) ||
                              file_exists(run_path("parts/config.json"));
        st = train_on(&b, 3);
        if (st == OK) continue;
        char want[64];
        snprintf(want, sizeof want, "rank %d was killed by signal 9 (Killed)", b.kill_rank);
        CHECK_FAILS(st, ERR_IO, want);
        n_killed++;
    }
    CHECK_OK(st);
    CHECK(n_killed > 0);
    CHECK(same_run(whole, parts));
}

/* What one rank refuses, all refuse, and one says why. */
TEST(leaf_step_refuses_too_many_ranks) {
    job j = job_make(retrieval_gin, run_path("run"), 2);
    CHECK_FAILS(train_on(&j, 9), ERR_CONFIG, "");
    CHECK(!folder_exists(run_path("run")));
}
