#include "model/trained.h"

#include "oom.h"
#include "train_test.h"

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
    CHECK(t.origin.step == 3 && t.origin.split == SPLIT_LEAVE_ONE_OUT);
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
