/* What only a GPU can show: precisions, copies that do not wait, recorded steps, memory that runs
 * out, and training beside the CPU.  The ops themselves are tested through the mirror: unit
 * --device cuda. */
#include "base/half.h"
#include "dense_test.h"
#include "toy_model.h"

/* A GPU backend of this test's own; skips the test where there is none. */
static backend *open_cuda(bool is_deterministic) {
    cuda_options options = {.device = test_on.number, .is_deterministic = is_deterministic};
    backend *be;
    if (test_on.p != PRECISION_F32 || !test_on.is_deterministic)
        SKIP_TEST("runs once, without --dtype and --fast");
    status st = backend_create_cuda(&be, &options);
    if (st == ERR_DEVICE || st == ERR_UNSUPPORTED) SKIP_TEST("%s", status_reason());
    CHECK_OK(st);
    return be;
}

static void *device_new(backend *be, size_t bytes) {
    void *memory;
    CHECK_OK(be->ops->alloc(be, &memory, bytes));
    return memory;
}

static void *device_copy(backend *be, const void *from, size_t bytes) {
    void *memory = device_new(be, bytes);
    CHECK_OK(be->ops->copy_in(be, memory, from, bytes));
    return memory;
}

TEST(cuda_device_that_is_not_there) {
    cuda_options options = {.device = 99};
    backend *be = (backend *)&options;
    status st = backend_create_cuda(&be, &options);
    CHECK(be == NULL);
#ifdef HSTU_HAS_CUDA
    CHECK_EQ(st, ERR_DEVICE);
    if (strstr(status_reason(), "there is no GPU to use (") == NULL)
        CHECK_CONTAINS(status_reason(), "there is no cuda:99; this machine has cuda:0");
#else
    CHECK_EQ(st, ERR_UNSUPPORTED);
    CHECK_CONTAINS(status_reason(), "without CUDA");
#endif
}

TEST(cuda_memory_that_runs_out) {
    backend *be = open_cuda(true);
    void *memory = be;
    CHECK_FAILS(be->ops->alloc(be, &memory, (size_t)1 << 50), ERR_NOMEM, "smaller");
    CHECK(memory == NULL);
    memory = device_new(be, 1 << 20); /* the backend goes on */
    CHECK_OK(be->ops->sync(be));
    be->ops->release(be, memory);
    backend_destroy(be);
}

/* y += x in each type of activations; the numbers are exact in all of them. */
TEST(cuda_precisions) {
    enum { N = 1000 };
    static const act_type acts[] = {ACT_BF16, ACT_F32, ACT_F16};
    backend *be = open_cuda(true);
    CHECK_EQ(be->act, ACT_F32);
    for (int k = 0; k < 3; k++) {
        uint16_t half[N];
        float whole[N];
        bool is_whole = acts[k] == ACT_F32;
        CHECK_OK(be->ops->set_precision(be, acts[k], false));
        CHECK_EQ(be->act, acts[k]);
        for (int i = 0; i < N; i++) {
            whole[i] = (float)(i % 100) / 4;
            half[i] = acts[k] == ACT_BF16 ? bf16_from_float(whole[i]) : f16_from_float(whole[i]);
        }
        const void *from = is_whole ? (const void *)whole : half;
        size_t bytes = N * act_bytes(acts[k]);
        void *x = device_copy(be, from, bytes), *y = device_copy(be, from, bytes);
        CHECK_OK(be->ops->add(be, N, x, y));
        CHECK_OK(be->ops->copy_out(be, is_whole ? (void *)whole : half, y, bytes));
        for (int i = 0; i < N; i++) {
            float got = is_whole              ? whole[i]
                        : acts[k] == ACT_BF16 ? half_bf16_to_float(half[i])
                                              : half_f16_to_float(half[i]);
            CHECK(got == (float)(i % 100) / 2);
        }
        be->ops->release(be, x);
        be->ops->release(be, y);
    }
    backend_destroy(be);
}

/* The source of a copy to the device may be overwritten as soon as the call returns: for many small
 * copies, and for one larger than the pinned memory. */
TEST(cuda_copies_in_are_taken_at_once) {
    enum { ROUNDS = 40, BYTES = 100000 };
    const size_t large = (size_t)50 << 20;
    backend *be = open_cuda(true);
    unsigned char *host = malloc(large), *back = malloc(large);
    CHECK(host != NULL && back != NULL);
    char *memory = device_new(be, (size_t)ROUNDS * BYTES), *rest = device_new(be, large);
    for (size_t i = 0; i < large; i++)
        host[i] = (unsigned char)(i * 7 + i / 4096);
    CHECK_OK(be->ops->copy_in(be, rest, host, large));
    for (int r = 0; r < ROUNDS; r++) {
        memset(host, r + 1, BYTES);
        CHECK_OK(be->ops->copy_in(be, memory + r * BYTES, host, BYTES));
    }
    CHECK_OK(be->ops->copy_out(be, back, rest, large));
    for (size_t i = 0; i < large; i++)
        CHECK(back[i] == (unsigned char)(i * 7 + i / 4096));
    CHECK_OK(be->ops->copy_out(be, back, memory, (size_t)ROUNDS * BYTES));
    for (int i = 0; i < ROUNDS * BYTES; i++)
        CHECK(back[i] == i / BYTES + 1);
    CHECK_OK(be->ops->copy_in(be, memory, NULL, 0));
    be->ops->release(be, memory);
    be->ops->release(be, rest);
    free(host);
    free(back);
    backend_destroy(be);
}

/* A copy within the device runs in the order of ops. */
TEST(cuda_copies_within_the_device_are_in_order) {
    backend *be = open_cuda(true);
    double first = 1, second = 2, got[2];
    double *from = device_copy(be, &first, sizeof first), *to = device_new(be, 2 * sizeof *to);
    CHECK_OK(be->ops->copy(be, to, from, sizeof *to));
    CHECK_OK(be->ops->copy_in(be, from, &second, sizeof second));
    CHECK_OK(be->ops->copy(be, to + 1, from, sizeof *to));
    CHECK_OK(be->ops->copy(be, NULL, NULL, 0));
    CHECK_OK(be->ops->copy_out(be, got, to, sizeof got));
    CHECK(got[0] == 1 && got[1] == 2);
    be->ops->release(be, from);
    be->ops->release(be, to);
    backend_destroy(be);
}

/* A backend's own stream, and the caller's where the backend is a guest. */
TEST(cuda_stream_is_that_of_the_ops) {
    backend *be = open_cuda(true), *guest;
    cuda_options options = {.device = test_on.number, .is_guest = true};
    CHECK(be->ops->stream(be) != NULL);
    CHECK_OK(backend_create_cuda(&guest, &options));
    cuda_visit visit = {.stream = be->ops->stream(be), .act = ACT_BF16};
    CHECK_OK(backend_visit_cuda(guest, &visit));
    CHECK(guest->ops->stream(guest) == be->ops->stream(be));
    backend_destroy(guest);
    backend_destroy(be);
}

/* Ops aside come after what was called before them, and what is called after `rejoin` comes after
 * them; `sync` waits for them, too. */
TEST(cuda_ops_aside_have_their_place) {
    enum { N = 1 << 22, ROUNDS = 20 };
    backend *be = open_cuda(true);
    void *own = be->ops->stream(be);
    char *from = device_new(be, N), *to = device_new(be, N), *host = malloc(N), last;
    CHECK(host != NULL);
    for (int i = 0; i < ROUNDS; i++) {
        memset(host, i + 1, N);
        CHECK_OK(be->ops->copy_in(be, from, host, N));
        CHECK_OK(be->ops->aside(be, true));
        CHECK(be->ops->stream(be) != own);
        CHECK_OK(be->ops->copy(be, to, from, N));
        CHECK_FAILS(be->ops->aside(be, true), ERR_USAGE, "aside already");
        CHECK_FAILS(be->ops->rejoin(be), ERR_USAGE, "still run aside");
        CHECK_OK(be->ops->aside(be, false));
        CHECK(be->ops->stream(be) == own);
        CHECK_OK(i % 2 == 0 ? be->ops->rejoin(be) : be->ops->sync(be));
        CHECK_OK(be->ops->zero(be, from, N));
        CHECK_OK(be->ops->copy_out(be, &last, to + N - 1, 1));
        CHECK_EQ(last, i + 1);
        CHECK_OK(be->ops->rejoin(be));
    }
    CHECK_FAILS(be->ops->aside(be, false), ERR_USAGE, "first stream already");
    be->ops->release(be, from);
    be->ops->release(be, to);
    free(host);
    backend_destroy(be);
}

/* A fetch returns the value at its place in the order of ops, whenever it is waited for. */
TEST(cuda_fetches_in_any_order) {
    backend *be = open_cuda(true);
    uint64_t ticket[FETCH_PENDING], other;
    double got[FETCH_PENDING] = {0}, *memory = device_new(be, FETCH_MAX + 8);
    for (int i = 0; i < FETCH_PENDING; i++) {
        double value = i + 1;
        CHECK_OK(be->ops->copy_in(be, memory, &value, sizeof value));
        CHECK_OK(be->ops->fetch(be, &got[i], memory, sizeof got[i], &ticket[i]));
        CHECK_OK(be->ops->zero(be, memory, sizeof value));
    }
    CHECK_FAILS(be->ops->fetch(be, got, memory, sizeof *got, &other), ERR_USAGE, "at most");
    for (int i = FETCH_PENDING; i-- > 0;) {
        CHECK_OK(be->ops->wait(be, ticket[i]));
        CHECK(got[i] == i + 1);
    }
    CHECK_FAILS(be->ops->fetch(be, got, memory, FETCH_MAX + 1, &other), ERR_USAGE, "at most");
    CHECK_FAILS(be->ops->wait(be, ticket[0]), ERR_USAGE, "waited for already");
    be->ops->release(be, memory);
    backend_destroy(be);
}

enum { GATED_USERS = 8, GATED_ROWS = 512, GATED_KEYS = 640, GATED_DIM = 1024 };

/* Attention with the gate of eight users, as many tiles of queries and heads as an H200 has
 * multiprocessors, but for four; and attention of one head and 32 tiles that sees many keys. */
typedef struct gated {
    backend *be;
    attn_args a, slow;
    gate_args gate;
    void *memory[10];
    int n_memory;
} gated;

/* Numbers of bfloat16 between .5 and 1 with any sign. */
static void *gated_halves(gated *g, int64_t n, uint32_t seed) {
    uint16_t *half = malloc((size_t)n * sizeof *half);
    CHECK(half != NULL);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        half[i] = (uint16_t)(0x3f00 | (seed >> 16 & 0x807f));
    }
    void *memory = g->memory[g->n_memory++] = device_copy(g->be, half, (size_t)n * sizeof *half);
    free(half);
    return memory;
}

static gated gated_make(backend *be) {
    enum { N = GATED_USERS * GATED_ROWS, KEYS = GATED_USERS * GATED_KEYS, DIM = 256 };
    enum { SLOW = 4096, SLOW_KEYS = 32768 };
    int32_t offsets[2 * (GATED_USERS + 1) + 4];
    for (int b = 0; b <= GATED_USERS; b++) {
        offsets[b] = b * GATED_ROWS;
        offsets[GATED_USERS + 1 + b] = b * GATED_KEYS;
    }
    int32_t *slow = offsets + 2 * (GATED_USERS + 1);
    slow[0] = slow[2] = 0, slow[1] = SLOW, slow[3] = SLOW_KEYS;
    gated g = {.be = be};
    CHECK_OK(be->ops->set_precision(be, ACT_BF16, false));
    int32_t *at = g.memory[g.n_memory++] = device_copy(be, offsets, sizeof offsets);
    float *statistics = g.memory[g.n_memory++] = device_new(be, 2 * N * sizeof(float));
    g.a = (attn_args){.n_sequences = GATED_USERS,
                      .n_heads = GATED_DIM / DIM,
                      .dim_qk = DIM,
                      .dim_v = DIM,
                      .max_len_q = GATED_ROWS,
                      .max_len_k = GATED_KEYS,
                      .n_rows_q = N,
                      .n_rows_k = KEYS,
                      .offsets_q = at,
                      .offsets_k = at + GATED_USERS + 1,
                      .q = gated_halves(&g, N * GATED_DIM, 41),
                      .k = gated_halves(&g, KEYS * GATED_DIM, 42),
                      .v = gated_halves(&g, KEYS * GATED_DIM, 43),
                      .out = gated_halves(&g, N * GATED_DIM, 44),
                      .stride_q = GATED_DIM,
                      .stride_k = GATED_DIM,
                      .stride_v = GATED_DIM,
                      .stride_out = GATED_DIM,
                      .alpha = 1,
                      .scale = 1.0f / GATED_KEYS,
                      .window_left = -1,
                      .target_group = 1};
    g.gate = (gate_args){.n = N,
                         .dim = GATED_DIM,
                         .eps = 1e-5f,
                         .o = g.a.out,
                         .u = gated_halves(&g, N * GATED_DIM, 45),
                         .stride_u = GATED_DIM,
                         .y = gated_halves(&g, N * GATED_DIM, 46),
                         .mean = statistics,
                         .rstd = statistics + N};
    g.slow = g.a;
    g.slow.n_sequences = g.slow.n_heads = 1;
    g.slow.n_rows_q = g.slow.max_len_q = SLOW;
    g.slow.n_rows_k = g.slow.max_len_k = SLOW_KEYS;
    g.slow.offsets_q = at + 2 * (GATED_USERS + 1);
    g.slow.offsets_k = g.slow.offsets_q + 2;
    g.slow.stride_q = g.slow.stride_k = g.slow.stride_v = DIM;
    g.slow.stride_out = DIM + 2; /* so that its keys are not cut into parts for all blocks */
    g.slow.out = gated_halves(&g, SLOW * (DIM + 2), 47);
    g.slow.q = g.slow.k = g.slow.v = gated_halves(&g, SLOW_KEYS * DIM, 48);
    return g;
}

/* As in two layers of a pass. */
static void gated_run(const gated *g) {
    attn_args a = g->a;
    a.gate = &g->gate;
    CHECK_OK(g->be->ops->zero(g->be, g->gate.y, GATED_USERS * GATED_ROWS * GATED_DIM * 2));
    CHECK_OK(g->be->ops->attn_fwd(g->be, &a));
    a.is_repeated = true;
    CHECK_OK(g->be->ops->attn_fwd(g->be, &a));
}

/* Blocks that exchange what they know of their rows do so with others that cannot start yet, too:
 * another stream's kernel has the multiprocessors.  What they compute has the same bits. */
TEST(cuda_gate_beside_another_stream) {
    enum { ROUNDS = 20, N = GATED_USERS * GATED_ROWS * GATED_DIM };
    const size_t bytes = N * sizeof(uint16_t);
    gated g[] = {gated_make(open_cuda(false)), gated_make(open_cuda(false))};
    uint16_t *want = malloc(bytes), *got = malloc(bytes);
    CHECK(want != NULL && got != NULL);
    gated_run(&g[0]);
    CHECK_OK(g[0].be->ops->copy_out(g[0].be, want, g[0].gate.y, bytes));
    for (int round = 0; round < ROUNDS; round++) {
        const gated *slow = &g[round % 2];
        CHECK_OK(slow->be->ops->attn_fwd(slow->be, &slow->slow));
        gated_run(&g[(round + 1) % 2]); /* beside it */
        gated_run(slow);
        for (int i = 0; i < 2; i++) {
            CHECK_OK(g[i].be->ops->copy_out(g[i].be, got, g[i].gate.y, bytes));
            CHECK(memcmp(got, want, bytes) == 0);
        }
    }
    for (int i = 0; i < 2; i++) {
        while (g[i].n_memory > 0)
            g[i].be->ops->release(g[i].be, g[i].memory[--g[i].n_memory]);
        backend_destroy(g[i].be);
    }
    free(want);
    free(got);
}

enum { ROWS = 300, DIM = 50, NUMBERS = ROWS * DIM };

/* A step of a few ops, one of which draws by a step number on the device. */
typedef struct small_step {
    backend *be;
    uint32_t *step; /* on the device, as all below */
    dropout_args drop;
    norm_args norm;
    double *squares;
} small_step;

static small_step small_step_make(backend *be) {
    float *x = floats(NUMBERS, 1), *dy = floats(NUMBERS, 2), *weight = floats(DIM, 3);
    dropout drop = test_dropout(0.3f, ROWS, 0);
    small_step s = {.be = be, .step = device_new(be, sizeof(uint32_t))};
    size_t bytes = NUMBERS * sizeof(float);
    void *user = (void *)(uintptr_t)drop.user, *position = (void *)(uintptr_t)drop.position;
    drop.step = s.step;
    drop.user = device_copy(be, user, ROWS * sizeof(uint32_t));
    drop.position = device_copy(be, position, ROWS * sizeof(uint32_t));
    s.squares = device_new(be, sizeof(double));
    s.drop = (dropout_args){.n = ROWS,
                            .dim = DIM,
                            .x = device_copy(be, x, bytes),
                            .y = device_new(be, bytes),
                            .drop = drop};
    s.norm = (norm_args){.n = ROWS,
                         .dim = DIM,
                         .eps = 1e-5f,
                         .x = s.drop.y,
                         .weight = device_copy(be, weight, DIM * sizeof(float)),
                         .y = device_new(be, bytes),
                         .mean = device_new(be, ROWS * sizeof(float)),
                         .rstd = device_new(be, ROWS * sizeof(float)),
                         .dy = device_copy(be, dy, bytes),
                         .dx = device_new(be, bytes),
                         .dweight = device_new(be, DIM * sizeof(float))};
    void *host[] = {x, dy, weight, user, position};
    for (int i = 0; i < 5; i++)
        mem_free(host[i]);
    return s;
}

static void small_step_free(small_step *s) {
    const void *all[] = {s->step,        s->squares,        s->drop.x,
                         s->drop.y,      s->drop.drop.user, s->drop.drop.position,
                         s->norm.weight, s->norm.y,         s->norm.mean,
                         s->norm.rstd,   s->norm.dy,        s->norm.dx,
                         s->norm.dweight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        s->be->ops->release(s->be, (void *)(uintptr_t)all[i]);
}

static void small_step_ops(const small_step *s) {
    const ops *f = s->be->ops;
    CHECK_OK(f->zero(s->be, s->squares, sizeof *s->squares));
    CHECK_OK(f->zero(s->be, s->norm.dweight, DIM * sizeof(float)));
    CHECK_OK(f->dropout(s->be, &s->drop));
    CHECK_OK(f->norm_fwd(s->be, &s->norm));
    CHECK_OK(f->norm_bwd(s->be, &s->norm));
    CHECK_OK(f->sum_squares(s->be, NUMBERS, s->norm.dx, s->squares));
}

typedef struct small_result {
    float y[NUMBERS], dweight[DIM];
    double squares;
} small_result;

/* The step number changes, the ops are the same; recorded where key is not 0. */
static record_state small_step_run(const small_step *s, uint32_t step, uint64_t key,
                                   small_result *out) {
    const ops *f = s->be->ops;
    record_state state = RECORD_RUN;
    CHECK_OK(f->copy_in(s->be, s->step, &step, sizeof step));
    if (key != 0) CHECK_OK(f->record(s->be, key, &state));
    if (state != RECORD_REPLAY) small_step_ops(s);
    if (key != 0) CHECK_OK(f->record_end(s->be));
    CHECK_OK(f->copy_out(s->be, out->y, s->norm.y, sizeof out->y));
    CHECK_OK(f->copy_out(s->be, out->dweight, s->norm.dweight, sizeof out->dweight));
    CHECK_OK(f->copy_out(s->be, &out->squares, s->squares, sizeof out->squares));
    return state;
}

/* Scratch memory grows with an op far larger than those recorded. */
static void use_much_scratch(backend *be) {
    enum { MANY = 400000 };
    size_t bytes = (size_t)MANY * DIM * sizeof(float);
    norm_args a = {.n = MANY,
                   .dim = DIM,
                   .eps = 1,
                   .x = device_new(be, bytes),
                   .y = device_new(be, bytes),
                   .mean = device_new(be, MANY * sizeof(float)),
                   .rstd = device_new(be, MANY * sizeof(float)),
                   .dy = device_new(be, bytes),
                   .dx = device_new(be, bytes),
                   .dweight = device_new(be, DIM * sizeof(float)),
                   .dbias = device_new(be, DIM * sizeof(float))};
    double *sum = device_new(be, sizeof *sum);
    CHECK_OK(be->ops->norm_fwd(be, &a));
    CHECK_OK(be->ops->norm_bwd(be, &a));
    CHECK_OK(be->ops->sum_squares(be, (int64_t)MANY * DIM, a.dx, sum));
    const void *all[] = {a.x, a.y, a.mean, a.rstd, a.dy, a.dx, a.dweight, a.dbias, sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->ops->release(be, (void *)(uintptr_t)all[i]);
}

TEST(cuda_recorded_steps_are_the_steps) {
    enum { STEPS = 8 };
    static small_result plain[STEPS], got;
    backend *be = open_cuda(true);
    small_step s = small_step_make(be);
    int n_replayed = 0;
    for (uint32_t i = 0; i < STEPS; i++)
        small_step_run(&s, i, 0, &plain[i]);
    CHECK(memcmp(&plain[0], &plain[1], sizeof got) != 0); /* the step number tells */
    for (uint32_t i = 0; i < STEPS; i++) {
        record_state state = small_step_run(&s, i, 41, &got);
        n_replayed += state == RECORD_REPLAY;
        if (memcmp(&got, &plain[i], sizeof got) != 0) FAIL_TEST("step %u, state %d", i, state);
    }
    CHECK_EQ(n_replayed, STEPS - 2);                       /* run, recorded, replayed */
    CHECK_EQ(small_step_run(&s, 3, 42, &got), RECORD_RUN); /* another key is another step */
    use_much_scratch(be);
    for (uint32_t i = 0; i < STEPS; i++) {
        small_step_run(&s, i, 41, &got);
        if (memcmp(&got, &plain[i], sizeof got) != 0) FAIL_TEST("step %u after growth", i);
    }
    small_step_free(&s);
    backend_destroy(be);
}

/* The next allocation may get the address of released memory, and with it the key of an old
 * recorded step. */
TEST(cuda_recorded_steps_go_with_their_memory) {
    small_result got;
    backend *be = open_cuda(true);
    small_step s = small_step_make(be);
    for (uint32_t i = 0; i < 3; i++)
        small_step_run(&s, i, 41, &got);
    small_step_free(&s);
    s = small_step_make(be);
    CHECK_EQ(small_step_run(&s, 0, 41, &got), RECORD_RUN);
    small_step_free(&s);
    backend_destroy(be);
}

enum { STEPS = 30, MAX_PARAMS = 64 };

static const float LOSS_SCALE = 64; /* float16 loses small gradients without one */

/* One toy model in training; moments beside the parameters, on the backend. */
typedef struct run {
    toy_model t;
    update_args update[MAX_PARAMS];
    float *factor;
    double loss[STEPS];
} run;

static void run_open(run *r, toy_kind kind, backend *be) {
    float factor = 1 / LOSS_SCALE;
    toy_model_open_on(&r->t, kind, 0.2, be);
    CHECK(r->t.m->params.n <= MAX_PARAMS);
    r->factor = device_copy(be, &factor, sizeof factor);
    for (int i = 0; i < r->t.m->params.n; i++) {
        const param *p = &r->t.m->params.item[i];
        /* eps: where a gradient is 0 except for rounding, Adam's quotient must not be pure
         * noise. */
        r->update[i] = (update_args){.kind = OPT_ADAMW,
                                     .n = p->n,
                                     .dim = (int32_t)p->shape[p->n_dims - 1],
                                     .w = p->value,
                                     .grad = p->grad,
                                     .m = device_new(be, (size_t)p->n * sizeof(float)),
                                     .v = device_new(be, (size_t)p->n * sizeof(float)),
                                     .lr = 2e-3f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.98f,
                                     .eps = 1e-4f,
                                     .grad_scale = r->factor};
    }
}

static void run_close(run *r) {
    backend *be = r->t.be;
    for (int i = 0; i < r->t.m->params.n; i++) {
        be->ops->release(be, r->update[i].m);
        be->ops->release(be, r->update[i].v);
    }
    be->ops->release(be, r->factor);
    toy_model_close(&r->t);
}

static void run_train(run *r, toy_kind kind) {
    static toy_batch b;
    backend *be = r->t.be;
    for (uint32_t step = 0; step < STEPS; step++) {
        toy_batch_make(&b, kind, step % 4);
        int64_t n = model_count_loss(r->t.m, &b.b);
        model_step at = {5, step, LOSS_SCALE / (float)n};
        CHECK_OK(pass_train(r->t.p, &b.b, &at, NULL));
        CHECK_OK(pass_take_loss(r->t.p, &r->loss[step]));
        r->loss[step] /= (double)n;
        for (int i = 0; i < r->t.m->params.n; i++)
            r->update[i].step = step + 1;
        CHECK_OK(be->ops->update(be, r->update, r->t.m->params.n));
    }
}

static backend *open_precise(precision p) {
    backend *be = open_cuda(true);
    CHECK_OK(be->ops->set_precision(be, precision_act(p), p == PRECISION_TF32));
    return be;
}

/* Steps amplify rounding: naive code in TF32 on the CPU (mirror_shift_grid, eight draws of each
 * model) drifts by up to 2e-2. */
static void check_curves(toy_kind kind, const run *cpu) {
    static const double limit[] = {1e-4, 5e-2, 5e-2, 5e-2};
    for (int p = PRECISION_F32; p <= PRECISION_F16; p++) {
        static run cuda;
        run_open(&cuda, kind, open_precise((precision)p));
        run_train(&cuda, kind);
        for (int step = 0; step < STEPS; step++)
            if (!(fabs(cuda.loss[step] - cpu->loss[step]) <= limit[p] * fabs(cpu->loss[step])))
                FAIL_TEST("%s, %s: the loss of step %d is %.7g; on the CPU %.7g",
                          toy_kind_name(kind), precision_name((precision)p), step, cuda.loss[step],
                          cpu->loss[step]);
        run_close(&cuda);
    }
}

TEST(cuda_trains_as_the_cpu_does) {
    backend_destroy(open_cuda(true)); /* or skip, before the CPU is asked */
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        static run cpu;
        backend *be;
        CHECK_OK(backend_create_cpu(&be, NULL));
        run_open(&cpu, (toy_kind)kind, be);
        run_train(&cpu, (toy_kind)kind);
        CHECK(cpu.loss[STEPS - 1] < cpu.loss[0]); /* it does train */
        check_curves((toy_kind)kind, &cpu);
        run_close(&cpu);
    }
}

static void check_same_params(toy_kind kind, const run *a, const run *b) {
    for (int i = 0; i < a->t.m->params.n; i++) {
        const param *p = &a->t.m->params.item[i], *q = &b->t.m->params.item[i];
        size_t bytes = (size_t)p->n * sizeof(float);
        float *x = malloc(bytes + 1), *y = malloc(bytes + 1);
        CHECK(x != NULL && y != NULL);
        CHECK_OK(a->t.be->ops->copy_out(a->t.be, x, p->value, bytes));
        CHECK_OK(b->t.be->ops->copy_out(b->t.be, y, q->value, bytes));
        if (memcmp(x, y, bytes) != 0)
            FAIL_TEST("%s: %s differs from run to run", toy_kind_name(kind), p->name);
        free(x);
        free(y);
    }
}

TEST(cuda_trains_to_the_same_bits) {
    static const precision precisions[] = {PRECISION_F32, PRECISION_TF32, PRECISION_BF16};
    for (int kind = 0; kind < TOY_KINDS; kind++)
        for (int p = 0; p < 3; p++) {
            static run r[2];
            for (int i = 0; i < 2; i++) {
                run_open(&r[i], (toy_kind)kind, open_precise(precisions[p]));
                run_train(&r[i], (toy_kind)kind);
            }
            check_same_params((toy_kind)kind, &r[0], &r[1]);
            run_close(&r[0]);
            run_close(&r[1]);
        }
}

/* Without a fixed order of sums the curve is the same up to rounding. */
TEST(cuda_trains_in_any_order) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        static run r[2];
        for (int i = 0; i < 2; i++) {
            run_open(&r[i], (toy_kind)kind, open_cuda(i == 0));
            run_train(&r[i], (toy_kind)kind);
        }
        for (int step = 0; step < STEPS; step++)
            CHECK(fabs(r[1].loss[step] - r[0].loss[step]) <= 1e-4 * fabs(r[0].loss[step]));
        run_close(&r[0]);
        run_close(&r[1]);
    }
}
