/* Checkpoints that ranks write together: the bytes of one rank, on any number of them, and whole or
 * not there when one of them cannot write. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/part_file.h"
#include "dist/ranks.h"
#include "dist/start.h"
#include "nn/params.h"
#include "train_test.h"

/* A table that ranks hold together, which travels in two pieces, a matrix that all have, and a
 * vector shorter than the ranks are many. */
enum { ROWS = 230000, DIM = 5, WIDTH = 130000 };

typedef struct toy {
    backend *be;
    param params[3];
    moments state[3];
    optimizer optimizer;
    int32_t rows[ROWS];
    float table[ROWS * DIM], sums[ROWS], matrix[2 * WIDTH], vector[3];
    checkpoint c;
} toy;

static const int64_t toy_ids[5] = {0, 3, 5, 8, 13};
static const seq_file toy_names = {.n_items = 4, .time_per_second = 1, .item_id = toy_ids};

static param make_param(const char *name, int n_dims, int64_t n0, int64_t n1, float *value) {
    param p = {
        .n_dims = n_dims, .shape = {n0, n1}, .n = n0 * (n_dims > 1 ? n1 : 1), .value = value};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

/* Row-wise AdaGrad has one number of state for each row. */
static void toy_make(toy *t, comm *c) {
    int64_t n = 0;
    for (int32_t row = 0; row < ROWS; row++) {
        if (c != NULL && dynamic_rank_of_row((uint64_t)row, c->size) != c->rank) continue;
        for (int k = 0; k < DIM; k++)
            t->table[n * DIM + k] = (float)(row * DIM + k) / 3;
        t->sums[n] = (float)row / 7;
        t->rows[n++] = row;
    }
    for (int i = 0; i < 2 * WIDTH; i++)
        t->matrix[i] = (float)i / 9;
    for (int i = 0; i < 3; i++)
        t->vector[i] = (float)i;
    t->params[0] = make_param("table", 2, n, DIM, t->table);
    t->params[1] = make_param("matrix", 2, 2, WIDTH, t->matrix);
    t->params[2] = make_param("vector", 1, 3, 0, t->vector);
    t->params[0].is_table = true;
    if (c != NULL) t->params[0].rows = t->rows, t->params[0].whole_rows = ROWS;
    t->state[0].m = t->sums;
    t->state[2] = (moments){t->vector, t->vector};
    t->optimizer = (optimizer){
        .rows = ROWS_LAZY, .kind = OPT_ADAMW, .table_kind = OPT_ROWWISE_ADAGRAD, .state = t->state};
    t->c = (checkpoint){.be = t->be,
                        .data = &toy_names,
                        .params = t->params,
                        .n_params = 3,
                        .world = c,
                        .ranks = c,
                        .optimizer = &t->optimizer};
    t->c.state = (train_state){.split.rule = split_rule_of(SPLIT_LEAVE_TWO_OUT), .best_metric = -1};
}

/* What a rank does. */
typedef struct toy_job {
    const char *run;
    int n_saves;
    int victim;   /* rank that has no room for a file from the second save on; -1: none */
    int nan_rank; /* rank with a number that is not finite from then on; -1: none */

} toy_job;

static status save_on(const toy_job *j, transport *tr) {
    toy *t;
    comm *c = NULL;
    CHECK_OK(MEM_NEW(&t, 1));
    CHECK_OK(backend_create_cpu(&t->be, NULL));
    if (tr != NULL) CHECK_OK(comm_create_host(&c, t->be, tr));
    toy_make(t, c);
    status st = OK;
    for (int i = 0; i < j->n_saves && st == OK; i++) {
        struct rlimit small = {100000, 100000};
        if (i > 0 && tr != NULL && tr->rank == j->victim)
            CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
        if (i > 0 && tr != NULL && tr->rank == j->nan_rank) t->table[7] = NAN;
        t->c.state.step = (uint64_t)(i + 1);
        st = checkpoint_save(&t->c, j->run, "{}", "float32", 5, false);
    }
    comm_destroy(c);
    backend_destroy(t->be);
    mem_free(t);
    return st;
}

/* On n ranks, 0: in this process; what the first rank says goes to the file. */
static status run_on(const toy_job *j, int n) {
    transport *t;
    if (n == 0) return save_on(j, NULL);
    status st = ranks_fork(&t, n, 500);
    if (t == NULL) return st;
    signal(SIGXFSZ, SIG_IGN);
    int rank = t->rank;
    st = save_on(j, t);
    if (st != OK && rank == 0) {
        char path[512];
        snprintf(path, sizeof path, "%s/said", j->run);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL);
        fputs(status_reason(), f);
        fclose(f);
    }
    st = ranks_leave(t, st);
    fflush(NULL);
    _exit(status_exit_code(st));
}

TEST(checkpoint_parts_have_the_bytes_of_one_rank) {
    static const int sizes[] = {2, 3, 4, 8};
    toy_job j = {.n_saves = 1, .victim = -1, .nan_rank = -1};
    char one[512], many[512];
    snprintf(one, sizeof one, "%s/one", test_folder());
    j.run = one;
    CHECK_OK(run_on(&j, 0));
    for (int i = 0; i < 4; i++) {
        snprintf(many, sizeof many, "%s/many%d", test_folder(), sizes[i]);
        j.run = many;
        CHECK_OK(run_on(&j, sizes[i]));
        CHECK(same_file(one, many, "model.safetensors"));
        CHECK(same_file(one, many, "optimizer.safetensors"));
        CHECK(same_file(one, many, "manifest.json"));
    }
}

TEST(checkpoint_parts_need_the_same_folder) {
    part_file *f;
    CHECK_FAILS(part_file_open(&f, run_path("elsewhere/model.safetensors")), ERR_IO,
                "all ranks must see the folder of the run");
    CHECK(f == NULL);
}

static void overwrite(const char *path, long at, const void *bytes, size_t n) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, at, SEEK_SET) == 0 && fwrite(bytes, 1, n, f) == n);
    CHECK_EQ(fclose(f), 0);
}

/* The sums of two writers, in any pieces and any order, are that of the file; another byte, words
 * that have changed places and a file that is shorter are noticed. */
TEST(checkpoint_parts_are_what_was_written) {
    enum { N = 300000, CUT = 123457 };
    const char *const wrong = "is not what the ranks wrote";
    char path[512];
    part_file *f[2];
    uint64_t sum = 0;
    buf header;
    snprintf(path, sizeof path, "%s/parts", test_folder());
    float *x;
    CHECK_OK(MEM_NEW(&x, N));
    for (int i = 0; i < N; i++)
        x[i] = (float)i * 0.25f;
    buf_init(&header);
    CHECK_OK(buf_append(&header, "headers!", 8));
    CHECK_OK(part_file_make(path, &header, 8 + N * sizeof *x));
    buf_fini(&header);
    for (int i = 0; i < 2; i++)
        CHECK_OK(part_file_open(&f[i], path));
    CHECK_OK(part_file_write(f[1], 8 + CUT * sizeof *x, x + CUT, (N - CUT) * sizeof *x));
    for (int at = CUT - 7; at >= 0; at -= 7)
        CHECK_OK(part_file_write(f[0], 8 + (size_t)at * sizeof *x, x + at, 7 * sizeof *x));
    CHECK_OK(part_file_write(f[0], 8, x, CUT % 7 * sizeof *x));
    for (int i = 0; i < 2; i++) {
        sum += part_file_sum(f[i]);
        CHECK_OK(part_file_close(f[i], OK));
    }
    CHECK_OK(part_file_check(path, 8, sum));
    CHECK_FAILS(part_file_check(path, 8, sum + 1), ERR_IO, wrong);
    CHECK_FAILS(part_file_check(path, 12, sum), ERR_IO, wrong);
    float swapped[2] = {x[70001], x[70000]};
    overwrite(path, 8 + 70000 * 4, swapped, sizeof swapped);
    CHECK_FAILS(part_file_check(path, 8, sum), ERR_IO, wrong);
    overwrite(path, 8 + 70000 * 4, x + 70000, 8);
    CHECK_OK(part_file_check(path, 8, sum));
    overwrite(path, 8 + N * 4 - 1, "?", 1);
    CHECK_FAILS(part_file_check(path, 8, sum), ERR_IO, wrong);
    CHECK_EQ(truncate(path, 8 + N * 4 - 4), 0);
    CHECK_FAILS(part_file_check(path, 8, sum), ERR_IO, wrong);
    CHECK_FAILS(part_file_check("/nowhere/parts", 8, sum), ERR_IO, "/nowhere/parts");
    mem_free(x);
}

/* Ranks take their rows from a file of any number of ranks. */
TEST(checkpoint_parts_are_read_by_rows) {
    toy_job j = {.n_saves = 1, .victim = -1, .nan_rank = -1, .run = run_path("run")};
    char folder[CHECKPOINT_PATH_BYTES];
    comm fake = {.rank = 1, .size = 3};
    toy *a, *b;
    CHECK_OK(run_on(&j, 2));
    CHECK_OK(checkpoint_find(j.run, folder));
    CHECK_OK(MEM_NEW(&a, 1));
    CHECK_OK(MEM_NEW(&b, 1));
    CHECK_OK(backend_create_cpu(&a->be, NULL));
    toy_make(a, &fake);
    b->be = a->be;
    toy_make(b, &fake);
    CHECK(a->params[0].shape[0] > ROWS / 4 && a->params[0].shape[0] < ROWS / 2);
    memset(b->table, 0, sizeof b->table);
    memset(b->sums, 0, sizeof b->sums);
    b->c.world = b->c.ranks = NULL;
    CHECK_OK(checkpoint_load(&b->c, folder));
    CHECK(memcmp(a->table, b->table, (size_t)a->params[0].n * sizeof(float)) == 0);
    CHECK(memcmp(a->sums, b->sums, (size_t)a->params[0].shape[0] * sizeof(float)) == 0);
    backend_destroy(a->be);
    mem_free(a);
    mem_free(b);
}

static void check_failed(toy_job *j, const char *const *words, int n_words) {
    char path[512], folder[CHECKPOINT_PATH_BYTES], *said;
    size_t n;
    checkpoint_origin origin;
    CHECK(run_on(j, 3) != OK);
    snprintf(path, sizeof path, "%s/said", j->run);
    CHECK_OK(file_read_all(path, 4096, &said, &n));
    for (int i = 0; i < n_words; i++)
        CHECK_CONTAINS(said, words[i]);
    mem_free(said);
    CHECK_OK(checkpoint_find(j->run, folder));
    CHECK_OK(checkpoint_verify(folder));
    CHECK_OK(checkpoint_read_origin(&origin, folder));
    CHECK_EQ(origin.step, 1);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002", j->run);
    CHECK(!folder_exists(path));
}

/* One rank cannot write: the job says which and what, and the checkpoint of before is whole. */
TEST(checkpoint_parts_without_room_name_the_rank) {
    for (int rank = 0; rank < 3; rank++) {
        char name[32], want[32];
        snprintf(name, sizeof name, "run%d", rank);
        snprintf(want, sizeof want, "rank %d: ", rank);
        toy_job j = {.n_saves = 3, .victim = rank, .nan_rank = -1, .run = run_path(name)};
        const char *words[] = {want, "model.safetensors: cannot be written"};
        check_failed(&j, words, 2);
    }
}

TEST(checkpoint_parts_refuse_what_is_not_finite) {
    toy_job j = {.n_saves = 3, .victim = -1, .nan_rank = 2, .run = run_path("run")};
    const char *words[] = {"'table' holds numbers that are not finite"};
    check_failed(&j, words, 1);
}
