/* Runs on ranks that form groups, which share layers (tensor parallel) or sequences (sequence
 * parallel), and what they left behind. */
#ifndef HSTU_TESTS_GROUP_RUN_H
#define HSTU_TESTS_GROUP_RUN_H

#include <math.h>
#include <unistd.h>

#include "dist/ranks.h"
#include "dist/shm.h"
#include "dist/transport.h"
#include "table_run.h"

#define NETWORK                                                                                    \
    "TrainerArgs.train_batch_size = 8\n"                                                           \
    "TrainerArgs.eval_interval = 1000\n"                                                           \
    "TrainerArgs.clip_grad = 0.5\n"                                                                \
    "DatasetArgs.dataset_name = 'synth'\n"                                                         \
    "DatasetArgs.max_history_seqlen = 12\n"                                                        \
    "DatasetArgs.shuffle = True\n"                                                                 \
    "NetworkArgs.dtype_str = 'float32'\n"                                                          \
    "NetworkArgs.num_layers = 2\n"                                                                 \
    "NetworkArgs.num_attention_heads = 4\n"                                                        \
    "NetworkArgs.hidden_size = 8\n"                                                                \
    "NetworkArgs.kv_channels = 6\n"                                                                \
    "NetworkArgs.hidden_dropout = 0.2\n"                                                           \
    "NetworkArgs.num_position_buckets = 64\n"

/* A session on groups of `size` ranks of the job, of which t is one; NULL: alone. */
typedef struct place {
    bench_top top;
    comm *world;
    rank_grid grid;
} place;

static inline status place_open(place *p, const char *gin, const char *set, transport *t, int size,
                                bool is_sequence) {
    bench_top *top = &p->top;
    config_source source = {.text = gin,
                            .text_name = "test.gin",
                            .text_bytes = strlen(gin),
                            .overrides = &set,
                            .n_overrides = set != NULL};
    *p = (place){0};
    log_set_level(LOG_WARN);
    status st = config_load(&top->config, &source);
    if (st == OK) st = pool_create(&top->workers, 1);
    if (st == OK) st = backend_create_cpu(&top->be, top->workers);
    if (st == OK) st = seq_file_open(&top->data, synth_folder(), top->workers);
    if (st == OK && t != NULL) st = comm_create_host(&p->world, top->be, t);
    session_ranks ranks = {.data = p->world};
    if (st == OK && size > 1) {
        st = rank_grid_create(&p->grid, t, top->be, NULL, size);
        ranks = (session_ranks){.data = p->grid.data,
                                .tensor = is_sequence ? NULL : p->grid.group,
                                .sequence = is_sequence ? p->grid.group : NULL,
                                .world = p->world};
    }
    if (st == OK) st = session_open_ranks(&top->session, top->config, top->data, top->be, &ranks);
    return st;
}

static inline void place_close(place *p) {
    session_close(&p->top.session);
    rank_grid_destroy(&p->grid);
    comm_destroy(p->world);
    seq_file_close(p->top.data);
    backend_destroy(p->top.be);
    pool_destroy(p->top.workers);
    config_destroy(p->top.config);
}

/* A run to train. */
typedef struct job {
    const char *gin, *set, *run;
    int64_t n_steps;
    bool is_resume;
    int stop_rank; /* asked to stop from the start; 0: none */
    bool is_sequence;
    bool shares_grads; /* of the session */
} job;

static inline status train_rank(const job *j, transport *t, int size) {
    place p;
    train_options o = train_options_default();
    o.run = run_path(j->run);
    o.max_steps = j->n_steps;
    o.is_resume = j->is_resume;
    sig_atomic_t stop = t != NULL && j->stop_rank > 0 && t->rank == j->stop_rank;
    o.stop = &stop;
    status st = place_open(&p, j->gin, j->set, t, size, j->is_sequence);
    p.top.session.shares_grads = j->shares_grads;
    if (st == OK) st = trainer_run(&p.top.session, &o);
    place_close(&p);
    return st;
}

static inline status train_on(const job *j, int n, int size) {
    transport *t;
    (void)synth_folder(); /* made before ranks would make it together */
    if (n == 1) return train_rank(j, NULL, 1);
    status st = ranks_fork(&t, n, 500);
    if (t == NULL) return st;
    st = ranks_leave(t, st == OK ? train_rank(j, t, size) : st);
    if (st != OK && status_reason()[0] != '\0') fprintf(stderr, "said: %s\n", status_reason());
    _exit(status_exit_code(st));
}

static inline st_file *open_last(const char *run, const char *name) {
    char path[1024];
    st_file *f;
    snprintf(path, sizeof path, "%s/last/%s", run_path(run), name);
    CHECK_OK(st_open(&f, path));
    return f;
}

/* The largest difference of a tensor's elements, in parts of its largest element. */
static inline double difference(const st_tensor *a, const st_tensor *b) {
    const float *x = a->data, *y = b->data;
    double most = 1e-30, apart = 0;
    CHECK(a->n == b->n && a->n_dims == b->n_dims);
    for (int d = 0; d < a->n_dims; d++)
        CHECK_EQ(a->shape[d], b->shape[d]);
    for (int64_t i = 0; i < a->n; i++) {
        most = fmax(most, fabs((double)x[i]));
        apart = fmax(apart, fabs((double)x[i] - (double)y[i]));
    }
    return apart / most;
}

static inline double differ(const char *run_a, const char *run_b, const char *name) {
    st_file *a = open_last(run_a, name), *b = open_last(run_b, name);
    double most = 0;
    CHECK_EQ(a->n_tensors, b->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const st_tensor *t = &a->tensors[i], *other = st_find(b, t->name);
        CHECK(other != NULL);
        most = fmax(most, difference(t, other));
    }
    st_close(a);
    st_close(b);
    return most;
}

/* The loss of the last epoch in the log. */
static inline double loss_of(const char *run) {
    char path[1024], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/log.jsonl", run_path(run));
    CHECK_OK(file_read_all(path, 1 << 20, &text, &n));
    const char *at = NULL;
    for (const char *s = text; (s = strstr(s, "\"loss\":")) != NULL; s++)
        at = s;
    CHECK(at != NULL);
    double loss = strtod(at + 7, NULL);
    mem_free(text);
    return loss;
}

static inline bool same_run(const char *a, const char *b) {
    return same_file(run_path(a), run_path(b), "model.safetensors") &&
           same_file(run_path(a), run_path(b), "optimizer.safetensors");
}

static inline void write_text(const char *name, const char *text) {
    FILE *f = fopen(run_path(name), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Runs the program; said is what it says, until the next call. */
static char *said;
static inline void forget_said(void) {
    free(said);
    said = NULL;
}

static inline const char *command(int wanted, const char *before, const char *args) {
    forget_said();
    int code =
        test_command(&said, "cd '%s' && ASAN_OPTIONS=detect_leaks=0 HSTU_THREADS=1 %s '%s' %s",
                     test_folder(), before, test_program(), args);
    if (code != wanted) FAIL_TEST("hstu %s: exit code %d: %s", args, code, said);
    return said;
}

static const char mpirun[] = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                             "--oversubscribe --bind-to none";

#endif
