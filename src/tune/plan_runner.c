#include "tune/plan_runner.h"

#include "base/half.h"
#include "tune/library.h"

/* Checked rows: all of a small problem, else some of a few sequences. */
enum { CHECK_ALL_TOKENS = 512, CHECK_SEQUENCES = 3, CHECK_ROWS = 6 };

/* Rows of one sequence with the reference's values. */
typedef struct checked_rows {
    int32_t sequence, n_rows;
    int32_t *rows;
    double *want; /* (n_rows, E) */
} checked_rows;

struct plan_runner {
    const chain_problem *p;
    target *t;
    pool *workers;
    kernel_args args;
    hand_written hand;
    library lib;
    layer_batch batch;
    runner_kernel kernel[CHAIN_OPS][CHAIN_OPS];
    checked_rows *checked;
    int n_checked;
    double allowed;
    void *output; /* (T, E) on the host */
};

static size_t element_bytes(const plan_runner *r, int tensor) {
    tensor_layout layout = r->p->c->tensor[tensor].layout;
    return layout == LAYOUT_VECTOR || layout == LAYOUT_TABLE ? 4 : act_bytes(r->t->act);
}

static size_t tensor_bytes(const plan_runner *r, int tensor) {
    return (size_t)chain_tensor_size(r->p, tensor) * element_bytes(r, tensor);
}

/* Tensors that share the buffer which begins at this one: the outputs of a split.  0: not the first
 * of them, so that the buffer is another tensor's. */
static size_t n_parts(const chain *c, int tensor) {
    for (int op = 0; op < CHAIN_OPS; op++)
        for (int i = 0; i < c->op[op].n_out; i++)
            if (c->op[op].out[i] == tensor) return i == 0 ? (size_t)c->op[op].n_out : 0;
    return 1;
}

/* float32 as elements of the target's type, rounded already. */
static void to_elements(act_type act, const float *from, void *to, size_t n) {
    uint16_t *half = to;
    if (act == ACT_F32) memcpy(to, from, n * sizeof *from);
    for (size_t i = 0; act != ACT_F32 && i < n; i++)
        half[i] = act == ACT_BF16 ? half_bf16_from_float(from[i]) : half_f16_from_float(from[i]);
}

static status upload(plan_runner *r, int tensor) {
    size_t bytes = tensor_bytes(r, tensor), n = (size_t)chain_tensor_size(r->p, tensor);
    void *elements;
    TRY(r->t->alloc(r->t, &r->args.tensor[tensor], bytes));
    if (element_bytes(r, tensor) == 4)
        return r->t->write(r->t, r->args.tensor[tensor], r->p->value[tensor], bytes);
    TRY(mem_alloc_raw(&elements, bytes, 1));
    to_elements(r->t->act, r->p->value[tensor], elements, n);
    status st = r->t->write(r->t, r->args.tensor[tensor], elements, bytes);
    mem_free(elements);
    return st;
}

/* A copy of n bytes in the target's memory. */
static status copy_in(plan_runner *r, const void **out, const void *from, size_t bytes) {
    void *to;
    TRY(r->t->alloc(r->t, &to, bytes));
    *out = to;
    return r->t->write(r->t, to, from, bytes);
}

static status upload_all(plan_runner *r) {
    const chain_problem *p = r->p;
    size_t n = (size_t)p->shape.n_sequences + 1;
    r->args.n_tokens = p->shape.n_tokens;
    r->args.n_sequences = p->shape.n_sequences;
    r->args.max_len = p->shape.max_len;
    TRY(copy_in(r, (const void **)&r->args.offsets, p->offsets, n * sizeof *p->offsets));
    TRY(copy_in(r, (const void **)&r->args.score_offsets, p->score_offsets,
                n * sizeof *p->score_offsets));
    if (p->mask != NULL)
        TRY(copy_in(r, (const void **)&r->args.mask, p->mask,
                    (size_t)p->score_offsets[p->shape.n_sequences]));
    for (int t = 0; t < p->c->n_tensors; t++)
        if (p->value[t] != NULL) TRY(upload(r, t));
    return OK;
}

/* Sequence `sequence` with every row, or every step-th of long ones and the last. */
static status choose_rows(checked_rows *c, const chain_problem *p, int32_t sequence,
                          int32_t max_rows) {
    int32_t len = p->offsets[sequence + 1] - p->offsets[sequence],
            n = len < max_rows ? len : max_rows;
    *c = (checked_rows){.sequence = sequence, .n_rows = n};
    TRY(MEM_NEW(&c->rows, (size_t)n));
    TRY(MEM_NEW(&c->want, (size_t)n * (size_t)chain_dim(&p->shape)));
    for (int32_t i = 0; i < n; i++)
        c->rows[i] = n == 1 ? len - 1 : (int32_t)((int64_t)i * (len - 1) / (n - 1));
    return OK;
}

/* The values to expect, and how far plain loops are from them. */
static status expect(plan_runner *r, checked_rows *c) {
    size_t n = (size_t)c->n_rows * (size_t)chain_dim(&r->p->shape);
    float *naive;
    double most = 0, off = 0;
    TRY(chain_reference64(r->p, c->sequence, c->rows, c->n_rows, r->workers, c->want));
    TRY(MEM_NEW_RAW(&naive, n));
    status st = chain_reference32(r->p, c->sequence, c->rows, c->n_rows, r->workers, naive);
    for (size_t i = 0; st == OK && i < n; i++) {
        double difference = fabs(naive[i] - c->want[i]);
        if (fabs(c->want[i]) > most) most = fabs(c->want[i]);
        if (difference > off) off = difference;
    }
    mem_free(naive);
    r->allowed = fmax(r->allowed, fmax(2 * off, 1e-6 * most));
    return st;
}

static status make_reference(plan_runner *r) {
    const chain_problem *p = r->p;
    int32_t n = p->shape.n_sequences;
    bool is_small = p->shape.n_tokens <= CHECK_ALL_TOKENS;
    int32_t count = is_small || n < CHECK_SEQUENCES ? n : CHECK_SEQUENCES;
    TRY(MEM_NEW(&r->checked, (size_t)count));
    for (int32_t i = 0; i < count; i++) {
        int32_t sequence = count == 1 ? 0 : (int32_t)((int64_t)i * (n - 1) / (count - 1));
        r->n_checked++;
        TRY(choose_rows(&r->checked[i], p, sequence, is_small ? INT32_MAX : CHECK_ROWS));
        TRY(expect(r, &r->checked[i]));
    }
    return mem_alloc_raw(&r->output, tensor_bytes(r, p->c->output), 1);
}

status plan_runner_create(plan_runner **out, const chain_problem *p, target *t, pool *workers) {
    plan_runner *r;
    *out = NULL;
    TRY(MEM_NEW(&r, 1));
    r->p = p;
    r->t = t;
    r->workers = workers;
    status st = upload_all(r);
    if (st == OK) st = hand_written_create(&r->hand, t, p);
    r->batch = hand_written_batch(&r->hand, p);
    if (st == OK) st = make_reference(r);
    return CREATED(st, out, r, plan_runner_destroy);
}

void plan_runner_destroy(plan_runner *r) {
    if (r == NULL) return;
    for (int i = 0; i < CHAIN_OPS * CHAIN_OPS; i++)
        for (int tile = 0; tile < EMIT_MAX_TILES; tile++)
            r->t->release(r->t, r->kernel[i / CHAIN_OPS][i % CHAIN_OPS].compiled[tile]);
    for (int i = 0; i < r->p->c->n_tensors; i++)
        if (n_parts(r->p->c, i) > 0) r->t->release_memory(r->t, r->args.tensor[i]);
    library_fini(&r->lib, r->t);
    r->t->release_memory(r->t, (void *)r->args.offsets);
    r->t->release_memory(r->t, (void *)r->args.score_offsets);
    r->t->release_memory(r->t, (void *)r->args.mask);
    hand_written_destroy(&r->hand, r->t);
    for (int i = 0; i < r->n_checked; i++) {
        MEM_FREE(r->checked[i].rows, r->checked[i].want);
    }
    MEM_FREE(r->checked, r->output, r);
}

const chain_problem *plan_runner_problem(const plan_runner *r) {
    return r->p;
}

static kernel_template template_of(const plan_runner *r, int first, int last) {
    return plan_template(r->p->c, &r->p->shape, first, last, NULL);
}

bool plan_runner_has_hand_written(const plan_runner *r) {
    return hand_written_fits(r->t, r->p);
}

void plan_runner_rest(const plan_runner *r) {
    static const struct timespec pause = {.tv_nsec = 50000000};
    if (r->t->is_cuda) nanosleep(&pause, NULL);
}

void plan_runner_lower(const plan_runner *r, uint16_t value, plan_program *out) {
    plan_lower(r->p->c, &r->p->shape, value, out);
}

static kernel_spec spec_of(const plan_runner *r, int first, int last, const tile_params *tile) {
    kernel_spec s = layer_kernel(r->t, &r->batch, first, last, template_of(r, first, last));
    if (tile != NULL) s.tile = *tile;
    return s;
}

status plan_runner_kernel(plan_runner *r, int first, int last, runner_kernel **out) {
    runner_kernel *k = &r->kernel[first][last];
    *out = k;
    if (k->n_tiles > 0) return OK;
    kernel_spec s = spec_of(r, first, last, NULL);
    return layer_tiles(r->t, &s, k->params, &k->n_tiles);
}

/* The kernel with one of its tile parameters; NULL: the library's. */
static status find_compiled(plan_runner *r, int first, int last, int tile, target_kernel **out) {
    runner_kernel *k;
    TRY(plan_runner_kernel(r, first, last, &k));
    if (k->compiled[tile] == NULL && k->params[tile].library == GENERATED) {
        kernel_spec s = spec_of(r, first, last, &k->params[tile]);
        TRY(r->t->compile(r->t, &s, &k->compiled[tile]));
    }
    *out = k->compiled[tile];
    return OK;
}

static status find_kernel(plan_runner *r, int first, int last, target_kernel **out) {
    return find_compiled(r, first, last, r->kernel[first][last].tile, out);
}

/* Kernels to compile, as (first * CHAIN_OPS + last) * EMIT_MAX_TILES + tile. */
typedef struct compile_job {
    plan_runner *r;
    int32_t kernel[CHAIN_OPS * CHAIN_OPS * EMIT_MAX_TILES];
    int64_t n;
} compile_job;

static status compile_one(void *ctx, int64_t chunk, int worker) {
    compile_job *job = ctx;
    int32_t which = job->kernel[chunk], pair = which / EMIT_MAX_TILES;
    target_kernel *unused;
    return find_compiled(job->r, pair / CHAIN_OPS, pair % CHAIN_OPS, which % EMIT_MAX_TILES,
                         &unused);
}

status plan_runner_prepare(plan_runner *r, const uint16_t *values, size_t n) {
    bool is_needed[CHAIN_OPS * CHAIN_OPS] = {false};
    compile_job job = {.r = r};
    for (size_t i = 0; i < n; i++) {
        plan_program p;
        plan_runner_lower(r, values[i], &p);
        for (int k = 0; k < p.n_kernels; k++)
            if (p.kernel[k].from != TEMPLATE_HAND_WRITTEN)
                is_needed[p.kernel[k].first * CHAIN_OPS + p.kernel[k].last] = true;
    }
    for (int i = 0; i < CHAIN_OPS * CHAIN_OPS; i++)
        if (is_needed[i])
            job.kernel[job.n++] = i * EMIT_MAX_TILES + r->kernel[i / CHAIN_OPS][i % CHAIN_OPS].tile;
    return pool_run(r->workers, job.n, compile_one, &job);
}

status plan_runner_prepare_all(plan_runner *r, int max_tiles) {
    compile_job job = {.r = r};
    for (int i = 0; i < CHAIN_OPS * CHAIN_OPS; i++) {
        int first = i / CHAIN_OPS, last = i % CHAIN_OPS;
        runner_kernel *k;
        if (last < first || template_of(r, first, last) == TEMPLATE_NONE) continue;
        TRY(plan_runner_kernel(r, first, last, &k));
        for (int tile = 0; tile < k->n_tiles && (max_tiles == 0 || tile < max_tiles); tile++)
            if (k->params[tile].library == GENERATED)
                job.kernel[job.n++] = i * EMIT_MAX_TILES + tile;
    }
    return pool_run(r->workers, job.n, compile_one, &job);
}

/* Memory for the outputs of a kernel. */
static status make_room(plan_runner *r, const plan_kernel *k) {
    const chain_op *op = &r->p->c->op[k->last];
    size_t part = (size_t)chain_dim(&r->p->shape) * act_bytes(r->t->act);
    void **tensor = r->args.tensor;
    if (tensor[op->out[0]] != NULL) return OK;
    TRY(r->t->alloc(r->t, &tensor[op->out[0]],
                    tensor_bytes(r, op->out[0]) * n_parts(r->p->c, op->out[0])));
    for (int i = 1; i < op->n_out; i++)
        tensor[op->out[i]] = (char *)tensor[op->out[0]] + (size_t)i * part;
    return OK;
}

/* The weights of a product as the backend wants them: from float32 copies, which are gone after. */
static status pack(plan_runner *r, int op) {
    const chain *c = r->p->c;
    int tensors[2] = {c->op[op].in[1], library_bias(c, op)};
    void *copy[2] = {NULL, NULL};
    status st = OK;
    for (int i = 0; i < 2 && st == OK; i++) {
        if (tensors[i] < 0) continue;
        size_t bytes = (size_t)chain_tensor_size(r->p, tensors[i]) * sizeof(float);
        st = r->t->alloc(r->t, &copy[i], bytes);
        if (st == OK) st = r->t->write(r->t, copy[i], r->p->value[tensors[i]], bytes);
    }
    if (st == OK) st = library_pack(&r->lib, r->t, c, &r->p->shape, op, copy[0], copy[1]);
    if (st == OK) st = r->t->wait(r->t);
    for (int i = 0; i < 2; i++)
        r->t->release_memory(r->t, copy[i]);
    return st;
}

static status launch_kernel(plan_runner *r, const plan_kernel *k) {
    target_kernel *compiled = NULL;
    const runner_kernel *own = &r->kernel[k->first][k->last];
    bool is_hand_written = k->from == TEMPLATE_HAND_WRITTEN;
    TRY(make_room(r, k));
    if (!is_hand_written) TRY(find_kernel(r, k->first, k->last, &compiled));
    kernel_spec s = spec_of(r, k->first, k->last, &own->params[own->tile]);
    if (is_hand_written) s.from = k->from;
    bool is_packed = is_hand_written || s.tile.library == GENERATED ||
                     r->p->c->op[k->first].kind != OP_PRODUCT || r->lib.packed[k->first] != NULL;
    if (!is_packed) TRY(pack(r, k->first));
    return layer_launch(&s, compiled, r->t, &r->batch, &r->args, &r->lib, &r->hand);
}

/* All tensors that kernels write, so that what one leaves out is not that of an earlier plan. */
static status poison(plan_runner *r) {
    for (int t = 0; t < r->p->c->n_tensors; t++)
        if (r->args.tensor[t] != NULL && r->p->value[t] == NULL)
            TRY(r->t->fill(r->t, r->args.tensor[t], 0xff,
                           tensor_bytes(r, t) * n_parts(r->p->c, t)));
    return OK;
}

static double output_at(const plan_runner *r, int64_t at) {
    if (r->t->act == ACT_F32) return ((const float *)r->output)[at];
    uint16_t half = ((const uint16_t *)r->output)[at];
    return r->t->act == ACT_BF16 ? half_bf16_to_float(half) : half_f16_to_float(half);
}

/* The largest difference; NAN where there is one in the output. */
static double compare(const plan_runner *r) {
    int32_t e = chain_dim(&r->p->shape);
    double off = 0;
    for (int i = 0; i < r->n_checked; i++) {
        const checked_rows *c = &r->checked[i];
        for (int64_t at = 0; at < (int64_t)c->n_rows * e; at++) {
            int64_t row = r->p->offsets[c->sequence] + c->rows[at / e];
            double difference = fabs(output_at(r, row * e + at % e) - c->want[at]);
            if (isnan(difference)) return difference;
            off = fmax(off, difference);
        }
    }
    return off;
}

status plan_runner_check(plan_runner *r, uint16_t value, plan_error *out) {
    plan_program p;
    int output = r->p->c->output;
    *out = (plan_error){.found = NAN, .allowed = r->allowed};
    plan_runner_lower(r, value, &p);
    TRY(poison(r));
    for (int i = 0; i < p.n_kernels; i++)
        TRY(launch_kernel(r, &p.kernel[i]));
    TRY(r->t->wait(r->t));
    TRY(r->t->read(r->t, r->output, r->args.tensor[output], tensor_bytes(r, output)));
    out->found = compare(r);
    if (out->found <= out->allowed) return OK;
    return fail(ERR_NUMERIC, "plan %d of layer %s is off by %.3g; at most %.3g is allowed", value,
                r->p->c->name, out->found, out->allowed);
}

/* Some kernels of a plan. */
typedef struct timed {
    plan_runner *r;
    const plan_kernel *kernel; /* (n) */
    int n;
} timed;

static status run_timed(void *ctx) {
    timed *w = ctx;
    for (int i = 0; i < w->n; i++)
        TRY(launch_kernel(w->r, &w->kernel[i]));
    return OK;
}

enum { MAX_ROUNDS = 64 };

static status take_time(timed *w, int rounds, double *ms) {
    target *t = w->r->t;
    double seconds[MAX_ROUNDS];
    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    TRY(t->time(t, run_timed, w, rounds, seconds));
    *ms = 1e3 * median(seconds, rounds);
    return OK;
}

status plan_runner_time(plan_runner *r, uint16_t value, int rounds, double *ms) {
    plan_program p;
    plan_runner_lower(r, value, &p);
    return take_time(&(timed){r, p.kernel, p.n_kernels}, rounds, ms);
}

status plan_runner_time_kernel(plan_runner *r, const plan_kernel *k, int rounds, double *ms) {
    return take_time(&(timed){r, k, 1}, rounds, ms);
}

/* Whether an operator of the kernel before `op` writes the tensor: then it stays inside. */
static bool is_inner(const chain *c, const plan_kernel *k, int op, int tensor) {
    for (int i = k->first; i < op; i++)
        for (int o = 0; o < c->op[i].n_out; o++)
            if (c->op[i].out[o] == tensor) return true;
    return false;
}

static double product_flops(const chain_problem *p, const chain_op *op) {
    double e = chain_dim(&p->shape), t = (double)p->shape.n_tokens;
    double pairs = (double)p->score_offsets[p->shape.n_sequences];
    if (op->kind == OP_SCORES || op->kind == OP_WEIGHTED) return 2 * pairs * e;
    return op_is_product(op->kind)
               ? 2 * t * chain_columns(&p->shape, p->c->tensor[op->in[0]].width) *
                     chain_columns(&p->shape, p->c->tensor[op->out[0]].width)
               : 0;
}

void plan_runner_cost(const plan_runner *r, const plan_kernel *k, double *bytes, double *flops) {
    const chain *c = r->p->c;
    *bytes = *flops = 0;
    for (int op = k->first; op <= k->last; op++) {
        for (int i = 0; i < c->op[op].n_in; i++)
            if (!is_inner(c, k, op, c->op[op].in[i]))
                *bytes += (double)tensor_bytes(r, c->op[op].in[i]);
        *flops += product_flops(r->p, &c->op[op]);
    }
    for (int o = 0; o < c->op[k->last].n_out; o++)
        *bytes += (double)tensor_bytes(r, c->op[k->last].out[o]);
}

status plan_runner_facts(plan_runner *r, const plan_kernel *k, kernel_facts *out, int64_t *blocks) {
    target_kernel *compiled = NULL;
    *out = (kernel_facts){0};
    *blocks = 0;
    if (k->from == TEMPLATE_HAND_WRITTEN) return OK;
    TRY(find_kernel(r, k->first, k->last, &compiled));
    const runner_kernel *own = &r->kernel[k->first][k->last];
    kernel_spec s = spec_of(r, k->first, k->last, &own->params[own->tile]);
    if (s.tile.library != GENERATED) return OK;
    *blocks = emit_blocks(&s, &r->p->shape);
    out->threads = emit_threads(&s);
    return r->t->facts(r->t, compiled, out);
}
