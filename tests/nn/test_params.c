#include "dist/mpi.h"
#include "group_run.h"
#include "nn/params.h"
#include "shipped.h"
#include "test.h"
#include "toy_model.h"

/* Every dense gradient is in the one range, in order and without overlap; tables are outside. */
static void check_range(const model *m) {
    const param_range *all = &m->params.dense_grads;
    const float *next = all->first;
    for (int i = 0; i < m->params.n; i++) {
        const param *p = &m->params.item[i];
        bool is_inside = p->grad >= all->first && p->grad < all->first + all->n;
        CHECK_EQ(is_inside, !p->is_table);
        if (p->is_table) continue;
        CHECK(p->grad >= next && p->grad - next < 64);
        CHECK_EQ((p->grad - all->first) % 64, 0);
        next = p->grad + p->n;
    }
    CHECK(next <= all->first + all->n && all->first + all->n - next < 64);
}

/* A sum over the range equals the sum over the parameters: nothing is written into the gaps. */
static void check_sum(toy_model *t) {
    const param_range *all = &t->m->params.dense_grads;
    double whole = 0, parts = 0;
    for (int64_t i = 0; i < all->n; i++)
        whole += (double)all->first[i] * (double)all->first[i];
    for (int i = 0; i < t->m->params.n; i++) {
        const param *p = &t->m->params.item[i];
        for (int64_t k = 0; k < p->n && !p->is_table; k++)
            parts += (double)p->grad[k] * (double)p->grad[k];
    }
    CHECK(whole > 0 && whole == parts);
}

TEST(dense_gradients_are_one_range) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b;
        toy_model_open(&t, (toy_kind)kind, 0.1, 1);
        toy_batch_make(&b, (toy_kind)kind, 4);
        check_range(t.m);
        toy_model_train(&t, &b.b, 0);
        check_sum(&t);
        CHECK_OK(param_list_clear_grads(&t.m->params));
        for (int i = 0; i < t.m->params.n; i++) {
            const param *p = &t.m->params.item[i];
            for (int64_t k = 0; k < p->n; k++)
                CHECK(p->grad[k] == 0);
            for (int64_t row = 0; p->marks != NULL && row < p->shape[0]; row++)
                CHECK_EQ(p->marks[row], 0);
        }
        toy_model_close(&t);
    }
}

/* Asking twice allocates once. */
TEST(gradients_are_made_once) {
    toy_model t;
    toy_model_open(&t, TOY_RANK_MLP, 0, 1);
    uint64_t bytes = t.m->memory.device_bytes;
    const float *first = t.m->params.dense_grads.first;
    CHECK_OK(param_list_alloc_grads(&t.m->params));
    CHECK_OK(input_alloc_grads(&t.m->input, &t.m->memory));
    CHECK(t.m->params.dense_grads.first == first && t.m->memory.device_bytes == bytes);
    toy_model_close(&t);
}

/* A list with room for three parameters that has two touches only these. */
TEST(gradients_of_the_parameters_there_are) {
    backend *be;
    nn_memory memory;
    param_list l;
    param *p;
    float row[2] = {3, 3};
    CHECK_OK(backend_create_cpu(&be, NULL));
    nn_memory_init(&memory, be);
    CHECK_OK(param_list_init(&l, &memory, 3));
    for (int i = 0; i < 2; i++)
        CHECK_OK(param_add(&l, &(param_spec){"a.", "b", 1, {100}, {INIT_ZERO, 0, 0}, false}, &p));
    CHECK_OK(param_list_alloc_grads(&l));
    CHECK_EQ(l.dense_grads.n, 256);
    CHECK(l.item[1].grad == l.dense_grads.first + 128 && l.item[2].grad == NULL);
    l.item[2] = (param){.n = 2, .grad = row, .is_table = true};
    l.item[1].grad[99] = 1;
    CHECK_OK(param_list_clear_grads(&l));
    CHECK(l.item[1].grad[99] == 0 && row[0] == 3 && row[1] == 3);
    nn_memory_fini(&memory);
    backend_destroy(be);
}

/* Box and Muller's formula for words 0 and 1 of each element's draw. */
TEST(first_values_are_normal) {
    enum { N = 50 };
    backend *be;
    nn_memory memory;
    param_list l;
    param *p;
    CHECK_OK(backend_create_cpu(&be, NULL));
    nn_memory_init(&memory, be);
    CHECK_OK(param_list_init(&l, &memory, 1));
    CHECK_OK(param_add(&l, &(param_spec){"", "w", 1, {N}, {INIT_NORMAL, 2, 0}, false}, &p));
    CHECK_OK(param_list_start(&l, 9));
    for (uint32_t i = 0; i < N; i++) {
        rng_block w = rng_draw(rng_make_key(9, RNG_INIT), i, 0, 0, 0);
        double u = (double)rng_uniform(w.word[0]), v = (double)rng_uniform(w.word[1]);
        double want = 2 * sqrt(-2 * log(1 - u)) * cos(2 * acos(-1) * v);
        CHECK(fabs((double)p->value[i] - want) < 1e-5);
    }
    nn_memory_fini(&memory);
    backend_destroy(be);
}

TEST(blocks_too_large_for_memory_are_refused) {
    backend *be;
    nn_memory memory;
    float *block;
    CHECK_OK(backend_create_cpu(&be, NULL));
    nn_memory_init(&memory, be);
    CHECK_FAILS(NN_NEW(&memory, &block, INT64_MAX), ERR_NOMEM, "too many for one block");
    CHECK_FAILS(NN_NEW(&memory, &block, -1), ERR_NOMEM, "-1 elements of 4 bytes are too many");
    CHECK(block == NULL && memory.n_device == 0);
    nn_memory_fini(&memory);
    backend_destroy(be);
}

/* Layers cut over ranks (tensor parallel): a run equals one rank's but for rounding, on any number
 * of groups to the bit; its checkpoints know nothing of the cut; a rank needs less memory. */

static const char ranking[] = NETWORK "DatasetArgs.max_num_candidates = 3\n"
                                      "RankingArgs.prediction_head_arch = [8, 5]\n"
                                      "RankingArgs.num_tasks = 1\n";
static const char retrieval[] = NETWORK "RetrievalArgs.num_negatives = -1\n";
static const char with_table[] =
    NETWORK "DatasetArgs.max_num_candidates = 3\n"
            "RankingArgs.prediction_head_arch = [8, 5]\n"
            "RankingArgs.num_tasks = 1\n"
            "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
            "movies/DynamicEmbeddingArgs.table_name = 'movies'\n"
            "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 1000\n"
            "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n";

/* Sums in another order, and Adam divides small gradients by their size: up to 3.5e-5 of the
 * largest weight of a tensor, 1.2e-5 of the largest moment and 9e-9 of the loss were measured. */
enum { N_STEPS = 8 };
static const double WEIGHTS = 2e-4, MOMENTS = 1e-4, LOSS = 1e-7;

static void check_same_training(const char *a, const char *b) {
    double w = differ(a, b, "model.safetensors"), m = differ(a, b, "optimizer.safetensors");
    double x = loss_of(a), y = loss_of(b);
    if (!(w <= WEIGHTS && m <= MOMENTS && fabs(x - y) <= LOSS * x))
        FAIL_TEST("%s and %s: weights %g, moments %g, loss %g and %g", a, b, w, m, x, y);
}

/* One group of two, two groups of two, and, where is_all, four ranks with a head each. */
static void check_cuts(const char *gin, bool is_all) {
    static const struct {
        const char *run;
        int n, tensor;
    } cuts[] = {{"1", 1, 1}, {"2", 2, 2}, {"4x2", 4, 2}, {"4", 4, 4}};
    for (int i = 0; i < 3 + is_all; i++) {
        job j = {.gin = gin, .run = cuts[i].run, .n_steps = N_STEPS};
        CHECK_OK(train_on(&j, cuts[i].n, cuts[i].tensor));
        if (i > 0) check_same_training(cuts[0].run, cuts[i].run);
    }
    CHECK(same_run("2", "4x2"));
    CHECK(!same_run("1", "2"));
}

TEST(tensor_equals_one_rank_ranking) {
    check_cuts(ranking, true);
}

TEST(tensor_equals_one_rank_retrieval) {
    check_cuts(retrieval, false);
}

TEST(tensor_equals_one_rank_dynamic_table) {
    check_cuts(with_table, false);
}

/* Without updates a checkpoint holds the first values: those of one rank, to the bit. */
TEST(tensor_begins_as_one_rank) {
    const char *still = "OptimizerArgs.learning_rate=1e-300"; /* 0 as a float */
    job one = {.gin = ranking, .set = still, .run = "one", .n_steps = 1},
        cut = {.gin = ranking, .set = still, .run = "cut", .n_steps = 1};
    CHECK_OK(train_on(&one, 1, 1));
    CHECK_OK(train_on(&cut, 4, 4));
    CHECK(same_file(run_path("one"), run_path("cut"), "model.safetensors"));
}

/* Saved on 2 ranks, it goes on with whole layers on 1, on 2 groups of 2, and on 4. */
TEST(tensor_resumes_with_another_cut) {
    static const struct { int n, tensor; } parts[] = {{2, 2}, {1, 1}, {4, 2}, {4, 4}};
    job whole = {.gin = ranking, .run = "whole", .n_steps = N_STEPS};
    CHECK_OK(train_on(&whole, 1, 1));
    for (int i = 0; i < 4; i++) {
        job j = {.gin = ranking, .run = "parts", .n_steps = 2 * (i + 1), .is_resume = i > 0};
        CHECK_OK(train_on(&j, parts[i].n, parts[i].tensor));
    }
    check_same_training("whole", "parts");
    /* What is saved is what is loaded: a run that goes on for no steps saves the same again. */
    job again = {.gin = ranking, .run = "parts", .n_steps = N_STEPS, .is_resume = true};
    CHECK_OK(train_on(&again, 2, 2));
    check_same_training("whole", "parts");
}

/* A rank of one group is asked to stop: all ranks leave after the same step. */
TEST(tensor_stops_all_groups) {
    job stopped = {.gin = ranking, .run = "stopped", .n_steps = N_STEPS, .stop_rank = 3};
    job whole = {.gin = ranking, .run = "whole", .n_steps = 3};
    CHECK(train_on(&stopped, 4, 2) != OK);
    CHECK(folder_exists(run_path("stopped/checkpoints/step-00000001")));
    stopped.n_steps = 3;
    stopped.is_resume = true;
    stopped.stop_rank = 0;
    CHECK_OK(train_on(&stopped, 2, 2));
    CHECK_OK(train_on(&whole, 2, 2));
    CHECK(same_run("stopped", "whole"));
}

typedef struct bytes {
    uint64_t model, pass;
    int64_t cut, whole, max_tokens; /* floats of the parameters that are cut, and of the others */
    int64_t n_numbers;
} bytes;

static bytes measure(int tensor) {
    place p;
    shm_job *board;
    transport *t;
    CHECK_OK(shm_job_create(&board, 4, 0));
    CHECK_OK(shm_create(&t, board, 1));
    CHECK_OK(place_open(&p, ranking, NULL, tensor > 1 ? t : NULL, tensor, false));
    const session *s = &p.top.session;
    bytes b = {.model = model_memory_bytes(s->model),
               .pass = pass_memory_bytes(s->train),
               .n_numbers = model_n_numbers(s->model)};
    for (int i = 0; i < s->n_params; i++)
        *(strstr(s->params[i].name, "linear") != NULL ||
                  strstr(s->params[i].name, "output_layernorm") != NULL
              ? &b.cut
              : &b.whole) += s->params[i].n;
    b.max_tokens = s->train_batch * (int64_t)(2 * (s->max_history + s->max_targets));
    place_close(&p);
    transport_destroy(t);
    shm_job_destroy(board);
    return b;
}

/* E = 8, H D = 24, W = 96, 2 layers. */
TEST(tensor_takes_less_memory) {
    bytes one = measure(1);
    CHECK_EQ(one.cut, 2 * (8 * 96 + 96 + 24 + 24 + 24 * 8));
    for (int tensor = 2; tensor <= 4; tensor += 2) {
        bytes part = measure(tensor);
        CHECK_EQ(part.cut * tensor, one.cut);
        CHECK_EQ(part.whole, one.whole);
        CHECK_EQ(part.n_numbers, one.n_numbers);
        /* Values and gradients; gradients are aligned to 64 floats. */
        int64_t left = (one.cut - part.cut) * 4;
        CHECK(one.model - part.model >= (uint64_t)(2 * left - 10 * 64 * 4));
        /* Of each layer z, y, attention and gated rows, and the same once for gradients. */
        int64_t row = 2 * (96 + 96 + 24 + 24) + 96 + 24 + 24, rest = row - row / tensor;
        int64_t exchanged = 2 * 2 * tensor + 2;
        int64_t want = (rest - exchanged) * 4 * one.max_tokens;
        CHECK(one.pass - part.pass >= (uint64_t)want * 99 / 100);
    }
}

static void cut_refused(const char *gin, const char *set, status wanted, const char *text) {
    place p;
    shm_job *board;
    transport *t;
    CHECK_OK(shm_job_create(&board, 2, 0));
    CHECK_OK(shm_create(&t, board, 0));
    CHECK_FAILS(place_open(&p, gin, set, t, 2, false), wanted, text);
    place_close(&p);
    transport_destroy(t);
    shm_job_destroy(board);
}

TEST(tensor_refuses_heads_that_do_not_divide) {
    cut_refused(ranking, "NetworkArgs.num_attention_heads=3", ERR_CONFIG,
                "test.gin: NetworkArgs.num_attention_heads = 3 does not divide among "
                "TensorModelParallelArgs.tensor_model_parallel_size = 2 ranks");
    cut_refused(retrieval_gin, NULL, ERR_UNSUPPORTED, "layers cannot be cut over ranks");
}

TEST(tensor_cuts_parameters) {
    param p = {.n_dims = 2, .shape = {2, 6}, .n = 12};
    p.cut = (param_cut){.part = 1, .n_parts = 3, .dim = 1, .n_blocks = 3, .block = {1, 3, 2}};
    float whole[36], back[36] = {0}, own[12];
    backend *be;
    int64_t shape[4], n;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 36; i++)
        whole[i] = (float)i;
    param_whole_shape(&p, shape);
    CHECK(shape[0] == 2 && shape[1] == 18 && param_whole_n(&p) == 36);
    CHECK(param_cut_run(&p, 2, &n) == 7 && n == 2);
    for (p.cut.part = 0; p.cut.part < 3; p.cut.part++) {
        CHECK_OK(param_cut_take(&p, be, whole, own));
        if (p.cut.part == 1) {
            static const float want[] = {1, 6, 7, 8, 14, 15, 19, 24, 25, 26, 32, 33};
            CHECK(memcmp(own, want, sizeof want) == 0);
        }
        for (int64_t at = 0; at < p.n; at += n) {
            int64_t to = param_cut_run(&p, at, &n);
            memcpy(back + to, own + at, (size_t)n * sizeof *own);
        }
    }
    CHECK(memcmp(back, whole, sizeof whole) == 0);
    p.cut = (param_cut){.part = 1, .n_parts = 2, .dim = 0, .n_blocks = 1, .block = {2}};
    CHECK(param_cut_run(&p, 0, &n) == 12 && n == 12);
    p.cut = (param_cut){0};
    param_whole_shape(&p, shape);
    CHECK(param_cut_run(&p, 5, &n) == 5 && n == 7 && shape[1] == 6 && param_whole_n(&p) == 12);
    backend_destroy(be);
}

/* A table of which this rank holds some rows; one with so many that elements are beyond 2^31, and
 * one of which it holds none. */
TEST(tensor_parts_of_tables_are_rows) {
    static const int32_t rows[] = {1, 4, 5}, far[] = {INT32_MAX - 2};
    param p = {.n_dims = 2, .shape = {3, 2}, .n = 6, .rows = rows, .whole_rows = 7};
    float whole[14], own[6];
    backend *be;
    int64_t shape[4], n;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 14; i++)
        whole[i] = (float)i;
    param_whole_shape(&p, shape);
    CHECK(shape[0] == 7 && shape[1] == 2 && param_whole_n(&p) == 14);
    CHECK_OK(param_cut_take(&p, be, whole, own));
    CHECK(own[0] == 2 && own[1] == 3 && own[2] == 8 && own[5] == 11);
    param large = {
        .n_dims = 2, .shape = {1, 1024}, .n = 1024, .rows = far, .whole_rows = INT32_MAX};
    CHECK(param_whole_n(&large) == 1024 * (int64_t)INT32_MAX);
    CHECK(param_cut_run(&large, 1000, &n) == 1024 * ((int64_t)INT32_MAX - 2) + 1000 && n == 24);
    p.shape[0] = p.n = 0;
    CHECK(param_whole_n(&p) == 14);
    CHECK_OK(param_cut_take(&p, be, whole, own));
    backend_destroy(be);
}

/* A gate over rows of `whole` columns, as a whole and in parts. */
enum { ROWS = 5, COLUMNS = 24 };
typedef struct gate_rows {
    float o[ROWS * COLUMNS], u[ROWS * COLUMNS], dy[ROWS * COLUMNS];
    float y[ROWS * COLUMNS], d_o[ROWS * COLUMNS], du[ROWS * COLUMNS];
    float weight[COLUMNS], bias[COLUMNS], dweight[COLUMNS], dbias[COLUMNS];
    float mean[ROWS], rstd[ROWS];
} gate_rows;

static gate_args gate_of(gate_rows *r, int32_t dim) {
    static const uint32_t step = 3, user[ROWS] = {4, 4, 7, 9, 9}, position[ROWS] = {0, 1, 0, 2, 3};
    return (gate_args){.n = ROWS,
                       .dim = dim,
                       .eps = 1e-5f,
                       .o = r->o,
                       .u = r->u,
                       .stride_u = dim,
                       .weight = r->weight,
                       .bias = r->bias,
                       .drop = {.rate = 0.3f,
                                .key = rng_make_key(1, RNG_DROPOUT),
                                .step = &step,
                                .user = user,
                                .position = position},
                       .y = r->y,
                       .mean = r->mean,
                       .rstd = r->rstd,
                       .dy = r->dy,
                       .d_o = r->d_o,
                       .du = r->du,
                       .dweight = r->dweight,
                       .dbias = r->dbias};
}

/* Columns of part p of `from` to an array of the part, or back. */
static void move_columns(float *part, float *whole, int p, int dim, int n_rows, bool is_back) {
    for (int i = 0; i < n_rows; i++)
        for (int c = 0; c < dim; c++) {
            float *a = &part[i * dim + c], *b = &whole[i * COLUMNS + p * dim + c];
            *(is_back ? b : a) = *(is_back ? a : b);
        }
}

static void check_close(const float *a, const float *b, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i]));
    CHECK(most > 0);
    for (int i = 0; i < n; i++)
        CHECK(fabs((double)a[i] - (double)b[i]) <= 2e-5 * most);
}

/* The mean of a row far from zero, and parts with means of their own: the moments must not
 * cancel. */
TEST(tensor_gate_in_parts) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int n_parts = 2; n_parts <= 4; n_parts++) {
        static gate_rows whole, got, part[4];
        float part_moments[4 * ROWS * 2], sums[ROWS * 2], all[ROWS * 2] = {0};
        int dim = COLUMNS / n_parts;
        memset(&whole, 0, sizeof whole);
        memset(part, 0, sizeof part);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            float offset = i < COLUMNS ? 30.0f : (float)(i % COLUMNS / dim);
            whole.o[i] = offset + sinf((float)i * 1.7f);
            whole.u[i] = cosf((float)i * 0.9f);
            whole.dy[i] = sinf((float)i * 0.3f + 1);
        }
        for (int c = 0; c < COLUMNS; c++) {
            whole.weight[c] = 1 + 0.1f * (float)(c % 7);
            whole.bias[c] = 0.05f * (float)(c % 5);
        }
        got = whole;
        gate_args a = gate_of(&whole, COLUMNS);
        CHECK_OK(be->ops->gate_fwd(be, &a));
        CHECK_OK(be->ops->gate_bwd(be, &a));
        for (int half = 0; half < 4; half++)
            for (int p = 0; p < n_parts; p++) {
                gate_cut cut = {p, n_parts, half % 2, part_moments, sums};
                gate_rows *r = &part[p];
                a = gate_of(r, dim);
                a.cut = &cut;
                if (half == 0) {
                    move_columns(r->o, got.o, p, dim, ROWS, false);
                    move_columns(r->u, got.u, p, dim, ROWS, false);
                    move_columns(r->dy, got.dy, p, dim, ROWS, false);
                    move_columns(r->weight, got.weight, p, dim, 1, false);
                    move_columns(r->bias, got.bias, p, dim, 1, false);
                }
                if (half == 3) memcpy(sums, all, sizeof sums);
                CHECK_OK(half < 2 ? be->ops->gate_fwd(be, &a) : be->ops->gate_bwd(be, &a));
                for (int i = 0; i < ROWS * 2 && half == 2; i++)
                    all[i] += sums[i];
                move_columns(r->y, got.y, p, dim, ROWS, true);
                move_columns(r->d_o, got.d_o, p, dim, ROWS, true);
                move_columns(r->du, got.du, p, dim, ROWS, true);
                move_columns(r->dweight, got.dweight, p, dim, 1, true);
                move_columns(r->dbias, got.dbias, p, dim, 1, true);
            }
        for (int p = 0; p < n_parts; p++) {
            check_close(whole.mean, part[p].mean, ROWS);
            check_close(whole.rstd, part[p].rstd, ROWS);
        }
        check_close(whole.y, got.y, ROWS * COLUMNS);
        check_close(whole.d_o, got.d_o, ROWS * COLUMNS);
        check_close(whole.du, got.du, ROWS * COLUMNS);
        check_close(whole.dweight, got.dweight, COLUMNS);
        check_close(whole.dbias, got.dbias, COLUMNS);
    }
    backend_destroy(be);
}

#define TRAIN                                                                                      \
    "train --gin-config-file c.gin --data data --device cpu --max-iters 2 --batch-per step "

TEST(tensor_tells_the_cut) {
    (void)synth_folder();
    write_text("c.gin", ranking);
    const char *two = TRAIN "--set TensorModelParallelArgs.tensor_model_parallel_size=2 ";
    char args[512];
    snprintf(args, sizeof args, "%s --out r4 --ranks 4", two);
    CHECK_CONTAINS(command(0, "", args), "4 ranks = 2 data x 2 tensor: the groups divide the users "
                                         "of a step, and each rank has 2 of the 4 heads");
    snprintf(args, sizeof args, "%s --out r2 --ranks 2", two);
    CHECK_CONTAINS(command(0, "", args), "2 ranks = 1 data x 2 tensor: they train on all users");
    snprintf(args, sizeof args, "%s --out r1", two);
    CHECK_CONTAINS(command(0, "", args), "one rank trains whole layers; --ranks cuts them");
    snprintf(args, sizeof args, "%s --out r3 --ranks 3", two);
    const char *text = command(2, "", args);
    CHECK_CONTAINS(text, "3 ranks cannot form groups of so many; start a multiple of 2 ranks");
    CHECK(!folder_exists(run_path("r3")));
    /* A run of cut layers is a run like any other. */
    CHECK_CONTAINS(command(0, "", "eval r2 --data data --device cpu"), "auc");
    CHECK_CONTAINS(command(0, "", "eval r4 --data data --device cpu --ranks 2"), "auc");
    CHECK(same_run("r2", "r4"));
    forget_said();
}

TEST(tensor_same_bits_by_mpirun) {
    char why[512], before[256];
    if (mpi_library(why, sizeof why) == NULL) exit(TEST_SKIPPED);
    snprintf(before, sizeof before, "%s -n 2", mpirun);
    if (test_command(&said, "%s true", before) != 0) exit(TEST_SKIPPED);
    (void)synth_folder();
    write_text("c.gin", ranking);
    const char *two = TRAIN "--set TensorModelParallelArgs.tensor_model_parallel_size=2 ";
    char args[512];
    snprintf(args, sizeof args, "%s --out forked --ranks 4", two);
    command(0, "", args);
    snprintf(args, sizeof args, "%s --out mpi", two);
    snprintf(before, sizeof before, "%s -n 4", mpirun);
    command(0, before, args);
    CHECK(same_run("forked", "mpi"));
    forget_said();
}

/* NVIDIA's file as it is, on a few users of the shape of KuaiRand-1K. */
TEST(tensor_trains_nvidias_file) {
    FILE *f = fopen(run_path("log_standard_4_08_to_4_21_1k.csv"), "w");
    const char *header = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,"
                         "is_comment,is_forward,is_hate,long_view,play_time_ms,duration_ms,"
                         "profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab\n";
    CHECK(f != NULL && fputs(header, f) >= 0);
    for (int i = 0; i < 80; i++)
        fprintf(f, "%d,%d,20220408,400,%d,%d,%d,0,0,0,0,1,5,9,0,0,0,0,1\n", i % 10, i * 7 % 30,
                1649400 + i, i % 3 == 0, i % 2);
    CHECK(fclose(f) == 0);
    write_text("log_standard_4_22_to_5_08_1k.csv", header);
    command(0, "", "prep kuairand-1k --input . --out kuairand");
    char args[6000];
    snprintf(args, sizeof args,
             "train --gin-config-file '%s' --data kuairand --out run --device cpu --max-iters 1 "
             "--ranks 2",
             shipped_path("kuairand_1k_ranking_tp2.gin"));
    CHECK_CONTAINS(command(0, "", args), "2 ranks = 1 data x 2 tensor");
    forget_said();
}
