/* Training with tables so large that their gradients are listed by row: the same bits on any number
 * of ranks and however often a run stops, and the values of whole gradients. */
#include <unistd.h>

#include "dist/leaf_step.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "table_run.h"

enum { LARGE_ITEMS = 5000 };

static const char *large_folder(void) {
    static char folder[256];
    snprintf(folder, sizeof folder, "%s/large", test_folder());
    if (!folder_exists(folder)) {
        synth_config c = {.n_users = 40, .n_items = LARGE_ITEMS, .mean_len = 9, .seed = 3};
        synth_report report;
        CHECK_OK(synth_write(&c, folder, NULL, &report));
    }
    return folder;
}

typedef struct job {
    const char *gin;
    const char *const *set;
    size_t n_set;
    bool is_whole;
    train_options options;
} job;

static job job_make(const char *gin, const char *const *set, size_t n_set, int64_t max_steps) {
    job j = {.gin = gin, .set = set, .n_set = n_set, .options = train_options_default()};
    j.options.max_steps = max_steps;
    (void)large_folder(); /* made before ranks would make it together */
    return j;
}

static status train_rank(const job *j, transport *t) {
    bench_top top;
    comm *c = NULL;
    bank *listed[2];
    status st = top_open_on(&top, large_folder(), j->gin, j->set, j->n_set, t == NULL ? 2 : 1);
    if (st == OK && t != NULL) st = comm_create_host(&c, top.be, t);
    if (st == OK) {
        session_close(&top.session);
        session_ranks ranks = {.data = c, .sums_whole = j->is_whole};
        st = session_open_ranks(&top.session, top.config, top.data, top.be, &ranks);
    }
    if (st == OK && (model_listed_banks(top.session.model, listed) > 0) == j->is_whole)
        st = fail(ERR_USAGE, "the table is listed, or not, as it should not");
    if (st == OK) st = trainer_run(&top.session, &j->options);
    comm_destroy(c);
    top_close(&top);
    return st;
}

static status train_on(job *j, int n, const char *run) {
    transport *t;
    j->options.run = run;
    if (n == 0) return train_rank(j, NULL);
    status st = ranks_fork(&t, n, 500);
    if (t == NULL) return st;
    st = ranks_leave(t, st == OK ? train_rank(j, t) : st);
    if (st != OK && status_reason()[0] != '\0') fprintf(stderr, "said: %s\n", status_reason());
    _exit(status_exit_code(st));
}

static bool same_run(const char *a, const char *b) {
    return same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors");
}

static const char *const sparse[] = {"train_fn.sparse_adam=True"};
static const char *const in_batch[] = {"train_fn.sampling_strategy='in-batch'",
                                       "train_fn.weight_decay=0.1"};
static const char *const clipped[] = {"train_fn.clip_grad=0.01",
                                      "train_fn.gradient_accumulation_steps=2"};
static const char *const unnormed[] = {"train_fn.item_l2_norm=False"};

static const struct {
    const char *gin;
    const char *const *set;
    size_t n_set;
} kinds[] = {{retrieval_gin, NULL, 0},     {retrieval_gin, sparse, 1},
             {retrieval_gin, in_batch, 2}, {retrieval_gin, clipped, 2},
             {retrieval_gin, unnormed, 1}, {ranking_gin, NULL, 0}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

TEST(grad_list_same_bits_on_ranks) {
    static const int sizes[] = {3, 8};
    for (int k = 0; k < N_KINDS; k++) {
        char one[512], many[512];
        snprintf(one, sizeof one, "%s/one%d", test_folder(), k);
        job j = job_make(kinds[k].gin, kinds[k].set, kinds[k].n_set, 5);
        CHECK_OK(train_on(&j, 0, one));
        for (int i = 0; i < 2; i++) {
            snprintf(many, sizeof many, "%s/many%d-%d", test_folder(), k, sizes[i]);
            CHECK_OK(train_on(&j, sizes[i], many));
            CHECK(same_run(one, many));
        }
    }
}

/* Evaluations and checkpoints in between change nothing; rows catch up for them, and then go on
 * from where they were. */
TEST(grad_list_same_bits_resumed) {
    for (int k = 0; k < N_KINDS; k++) {
        char whole[512], parts[512];
        snprintf(whole, sizeof whole, "%s/whole%d", test_folder(), k);
        snprintf(parts, sizeof parts, "%s/parts%d", test_folder(), k);
        job j = job_make(kinds[k].gin, kinds[k].set, kinds[k].n_set, 9);
        CHECK_OK(train_on(&j, 0, whole));
        for (int i = 0; i < 3; i++) {
            j.options.max_steps = 3 * (i + 1);
            j.options.is_resume = i > 0;
            CHECK_OK(train_on(&j, i == 1 ? 2 : 0, parts));
        }
        CHECK(same_run(whole, parts));
    }
}

static void read_weights(const char *run, st_file **f) {
    char path[600];
    snprintf(path, sizeof path, "%s/last/model.safetensors", run);
    CHECK_OK(st_open(f, path));
}

/* By how much the weights of two runs differ. */
static double compare_runs(const char *a, const char *b) {
    st_file *x, *y;
    double most = 0;
    read_weights(a, &x);
    read_weights(b, &y);
    CHECK_EQ(x->n_tensors, y->n_tensors);
    for (size_t i = 0; i < x->n_tensors; i++) {
        const float *p = x->tensors[i].data, *q = y->tensors[i].data;
        for (size_t k = 0; k < (size_t)x->tensors[i].n; k++)
            most = fmax(most, fabs((double)p[k] - (double)q[k]));
    }
    st_close(x);
    st_close(y);
    return most;
}

/* Whole gradients and a dense AdamW, or marks: what lists and late rows replace. */
TEST(grad_list_equals_whole_gradients) {
    for (int k = 0; k < N_KINDS; k++) {
        char listed[512], whole[512];
        snprintf(listed, sizeof listed, "%s/listed%d", test_folder(), k);
        snprintf(whole, sizeof whole, "%s/dense%d", test_folder(), k);
        job j = job_make(kinds[k].gin, kinds[k].set, kinds[k].n_set, 8);
        CHECK_OK(train_on(&j, 0, listed));
        j.is_whole = true;
        CHECK_OK(train_on(&j, 0, whole));
        bool is_late = kinds[k].gin == retrieval_gin && kinds[k].set != sparse;
        double most = compare_runs(listed, whole);
        if (!(is_late ? most < 1e-5 : most == 0)) printf("kind %d: %g\n", k, most);
        CHECK(is_late ? most < 1e-5 : most == 0);
    }
}

/* A file whose rows had missed steps opens where rows miss none, and the other way. */
TEST(grad_list_resumes_without_lists) {
    job j = job_make(retrieval_gin, NULL, 0, 4);
    CHECK_OK(train_on(&j, 0, run_path("there")));
    j.options.is_resume = true;
    j.options.max_steps = 6;
    j.is_whole = true;
    CHECK_OK(train_on(&j, 0, run_path("there")));
    j.options.max_steps = 8;
    j.is_whole = false;
    CHECK_OK(train_on(&j, 0, run_path("there")));
    j = job_make(retrieval_gin, NULL, 0, 8);
    CHECK_OK(train_on(&j, 0, run_path("here")));
    CHECK(compare_runs(run_path("there"), run_path("here")) < 1e-5);
}
