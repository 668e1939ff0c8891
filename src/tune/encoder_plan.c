#include "tune/encoder_plan.h"

#include "encode/bert_layer.h"
#include "tune/library.h"

enum { MAX_PLANS = 16, MAX_LOOKUPS = 64 };

/* A plan whose kernels are compiled. */
typedef struct ready_plan {
    plan_file file;
    plan_program program;
    bool is_compiled;
    kernel_spec spec[CHAIN_OPS];
    target_kernel *kernel[CHAIN_OPS]; /* NULL: an op of the backend */
} ready_plan;

/* The answer for batches of about these sizes. */
typedef struct lookup {
    int tokens, max_len; /* quarters of factors of two */
    ready_plan *plan;    /* NULL: none is kept */
} lookup;

struct encoder_plan {
    encoder_layers layers;
    target *t;
    pool *workers;
    const chain *c;
    layer_batch model; /* without a mask; tokens and sequences are the batch's */
    plan_store store;
    plan_file wanted; /* the key of kept plans; of "auto" */
    bool is_auto;
    ready_plan *plan[MAX_PLANS];
    int n_plans;
    lookup found[MAX_LOOKUPS];
    int n_lookups;
    kernel_args args; /* tensors between kernels are ours, weights those of a layer */
    int64_t room_tokens, room_sequences;
    uint64_t epoch; /* changes with the addresses of tensors */
    ready_plan *now;
    encoder_plan_use use;
};

static int find_tensor(const chain *c, const char *name) {
    int t = 0;
    while (strcmp(c->tensor[t].name, name) != 0)
        t++;
    return t;
}

/* Weights of a layer by their names in the chain. */
static void set_weights(kernel_args *a, const chain *c, const bert_layer *l) {
    const struct {
        const char *name;
        const void *at;
    } weights[] = {{"Wqkv", l->qkv.plain},
                   {"bqkv", l->qkv.bias},
                   {"Wo", l->out.plain},
                   {"bo", l->out.bias},
                   {"norm1 weight", l->attn_norm.weight},
                   {"norm1 bias", l->attn_norm.bias},
                   {"W1", l->up.plain},
                   {"b1", l->up.bias},
                   {"W2", l->down.plain},
                   {"b2", l->down.bias},
                   {"norm3 weight", l->ffn_norm.weight},
                   {"norm3 bias", l->ffn_norm.bias}};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        a->tensor[find_tensor(c, weights[i].name)] = (void *)weights[i].at;
}

status encoder_plan_check(const chain *c, attend_kind attend, const plan_program *program) {
    for (int i = 0; i < program->n_kernels; i++) {
        const plan_kernel *k = &program->kernel[i];
        bool starts = k->first == c->attention_first;
        bool touches = k->first <= c->attention_last && k->last >= c->attention_first;
        if (touches && (!starts || k->last < c->attention_last - 1) &&
            c->op[k->first].kind != OP_MERGE)
            return fail(ERR_UNSUPPORTED,
                        "plan %d splits the attention into several kernels, which store all "
                        "scores; an encoder needs operators %d-%d in one segment",
                        program->plan.value, c->attention_first + 1, c->attention_last + 1);
        if (starts && attend == ATTEND_BYTES && k->from != TEMPLATE_HAND_WRITTEN)
            return fail(ERR_UNSUPPORTED,
                        "plan %d generates the attention, which in an encoder supports the masks "
                        "none and causal only; set bit 0 for the hand-written one",
                        program->plan.value);
    }
    return OK;
}

/* The tile parameters of a kernel: those of the file where this target has them. */
static status choose_tile(const encoder_plan *p, const plan_file *f, kernel_spec *s) {
    tile_params tiles[EMIT_MAX_TILES];
    int n, chosen = 0;
    TRY(layer_tiles(p->t, s, tiles, &n));
    for (int i = 0; i < f->n_tiles; i++)
        for (int k = 0; k < n; k++)
            if (f->tile[i].first == s->first && f->tile[i].last == s->last &&
                memcmp(&tiles[k], &f->tile[i].params, sizeof tiles[k]) == 0)
                chosen = k;
    s->tile = tiles[chosen];
    return OK;
}

static status lower(const encoder_plan *p, ready_plan *r) {
    plan_lower(p->c, &p->model.shape, r->file.value, &r->program);
    TRY(encoder_plan_check(p->c, p->model.attend, &r->program));
    for (int i = 0; i < r->program.n_kernels; i++) {
        const plan_kernel *k = &r->program.kernel[i];
        r->spec[i] = layer_kernel(p->t, &p->model, k->first, k->last, k->from);
        if (k->from != TEMPLATE_HAND_WRITTEN) TRY(choose_tile(p, &r->file, &r->spec[i]));
    }
    return OK;
}

static bool is_same_plan(const plan_file *a, const plan_file *b) {
    return a->value == b->value && a->n_tiles == b->n_tiles &&
           memcmp(a->tile, b->tile, sizeof a->tile) == 0;
}

/* The plan of a file, made where it is not there yet. */
static status add_plan(encoder_plan *p, const plan_file *f, ready_plan **out) {
    ready_plan *r;
    *out = NULL;
    for (int i = 0; i < p->n_plans; i++)
        if (is_same_plan(&p->plan[i]->file, f)) *out = p->plan[i];
    if (*out != NULL || p->n_plans == MAX_PLANS) return OK;
    TRY(MEM_NEW(&r, 1));
    r->file = *f;
    status st = lower(p, r);
    if (st == OK)
        *out = p->plan[p->n_plans++] = r;
    else
        mem_free(r);
    return st;
}

/* A kept plan that an encoder cannot run is as good as none. */
static status look_up(encoder_plan *p, int64_t tokens, int32_t max_len, ready_plan **out) {
    plan_file f;
    bool is_found;
    *out = NULL;
    p->wanted.n_tokens = tokens;
    p->wanted.max_len = max_len;
    TRY(plan_store_find(&p->store, &p->wanted, &f, &is_found));
    if (!is_found) return OK;
    status st = add_plan(p, &f, out);
    if (st != ERR_UNSUPPORTED) return st;
    log_info("skipping a stored plan: %s", status_reason());
    return OK;
}

static int quarters(int64_t n) {
    return (int)lround(4 * log2((double)n));
}

static status choose_plan(encoder_plan *p, const sequences *s, ready_plan **out) {
    lookup key = {.tokens = quarters(s->n_tokens), .max_len = quarters(s->max_len)};
    if (!p->is_auto) {
        *out = p->plan[0];
        return OK;
    }
    for (int i = 0; i < p->n_lookups; i++)
        if (p->found[i].tokens == key.tokens && p->found[i].max_len == key.max_len) {
            *out = p->found[i].plan;
            return OK;
        }
    TRY(look_up(p, s->n_tokens, s->max_len, &key.plan));
    if (p->n_lookups == MAX_LOOKUPS) p->n_lookups = 0;
    p->found[p->n_lookups++] = key;
    *out = key.plan;
    return OK;
}

typedef struct compile_job {
    encoder_plan *p;
    ready_plan *r;
} compile_job;

static status compile_one(void *ctx, int64_t i, int worker) {
    compile_job *job = ctx;
    const kernel_spec *s = &job->r->spec[i];
    if (s->from == TEMPLATE_HAND_WRITTEN || s->tile.library != GENERATED) return OK;
    if (job->r->kernel[i] != NULL) return OK;
    return job->p->t->compile(job->p->t, s, &job->r->kernel[i]);
}

static status compile_plan(encoder_plan *p, ready_plan *r) {
    compile_job job = {p, r};
    if (r->is_compiled) return OK;
    TRY(pool_run(p->workers, r->program.n_kernels, compile_one, &job));
    r->is_compiled = true;
    return OK;
}

static bool is_ours(const encoder_plan *p, int tensor) {
    return tensor != 0 && tensor != p->c->output && p->c->tensor[tensor].layout < LAYOUT_MATRIX;
}

static void release_room(encoder_plan *p) {
    for (int op = 0; op < CHAIN_OPS; op++) {
        int first = p->c->op[op].out[0];
        if (!is_ours(p, first)) continue;
        p->t->release_memory(p->t, p->args.tensor[first]);
        for (int i = 0; i < p->c->op[op].n_out; i++)
            p->args.tensor[p->c->op[op].out[i]] = NULL;
    }
    p->t->release_memory(p->t, (void *)p->args.score_offsets);
    p->args.score_offsets = NULL;
}

/* Larger than any batch before: recorded steps of the old addresses are not used again, since
 * epoch is part of their key. */
static status grow(encoder_plan *p, const sequences *s) {
    void *zeros;
    size_t bytes;
    if (s->n_tokens <= p->room_tokens && s->n_sequences <= p->room_sequences) return OK;
    TRY(p->t->wait(p->t));
    release_room(p);
    p->epoch++;
    if (s->n_tokens > p->room_tokens) p->room_tokens = s->n_tokens;
    if (s->n_sequences > p->room_sequences) p->room_sequences = s->n_sequences;
    bytes = ((size_t)p->room_sequences + 1) * sizeof *p->args.score_offsets;
    TRY(p->t->alloc(p->t, &zeros, bytes));
    p->args.score_offsets = zeros;
    return p->t->fill(p->t, zeros, 0, bytes);
}

/* Memory for what the kernels of a plan hand on. */
static status make_room(encoder_plan *p, const ready_plan *r) {
    for (int i = 0; i < r->program.n_kernels; i++) {
        const chain_op *op = &p->c->op[r->program.kernel[i].last];
        void **tensor = p->args.tensor;
        size_t row = (size_t)chain_columns(&p->model.shape, p->c->tensor[op->out[0]].width) *
                     act_bytes(p->t->act);
        if (!is_ours(p, op->out[0]) || tensor[op->out[0]] != NULL) continue;
        TRY(p->t->alloc(p->t, &tensor[op->out[0]],
                        (size_t)p->room_tokens * row * (size_t)op->n_out));
        for (int part = 1; part < op->n_out; part++)
            tensor[op->out[part]] = (char *)tensor[op->out[0]] + (size_t)part * row;
    }
    return OK;
}

static status begin(void *ctx, const sequences *s, uint64_t *key) {
    encoder_plan *p = ctx;
    *key = 0;
    TRY(choose_plan(p, s, &p->now));
    if (p->now == NULL) {
        p->use.n_built_in++;
        return OK;
    }
    TRY(compile_plan(p, p->now));
    TRY(grow(p, s));
    TRY(make_room(p, p->now));
    uint64_t parts[] = {(uint64_t)(uintptr_t)p->now, p->epoch};
    *key = hash64(parts, sizeof parts, 1) | 1;
    p->use.n_by_plan++;
    p->use.value = p->now->file.value;
    return OK;
}

/* The output takes the place of the input: the last kernel does not read the layer's input, which
 * only products and residuals before the second half do. */
static status run(void *ctx, const bert_layer *l, const sequences *s, const mask_view *view,
                  void *x) {
    static const hand_written none = {0};
    encoder_plan *p = ctx;
    library lib = {{0}};
    layer_batch b = p->model;
    b.mask = *view;
    b.shape.n_tokens = s->n_tokens;
    b.shape.n_sequences = s->n_sequences;
    b.shape.max_len = s->max_len;
    p->args.n_tokens = s->n_tokens;
    p->args.n_sequences = s->n_sequences;
    p->args.max_len = s->max_len;
    p->args.offsets = s->offsets;
    p->args.tensor[0] = p->args.tensor[p->c->output] = x;
    set_weights(&p->args, p->c, l);
    const void *packed[] = {l->qkv.packed, l->out.packed, l->up.packed, l->down.packed};
    for (int op = 0, n = 0; op < CHAIN_OPS; op++)
        if (p->c->op[op].kind == OP_PRODUCT) lib.packed[op] = (void *)packed[n++];
    const ready_plan *now = p->now;
    for (int i = 0; i < now->program.n_kernels; i++)
        TRY(layer_launch(&now->spec[i], now->kernel[i], p->t, &b, &p->args, &lib, &none));
    return OK;
}

static status check_model(const encoder_config *c) {
    if (c->f == EPILOGUE_GELU) return OK;
    return fail(ERR_UNSUPPORTED, "plans need layers with GELU; this model has another activation");
}

static status read_plan(const char *text, plan_file *out) {
    fusion_plan plan;
    size_t n = strlen(text);
    *out = (plan_file){0};
    if (n > 0 && strspn(text, "0123456789") == n) {
        TRY(plan_parse(text, &plan));
        out->value = plan.value;
        return OK;
    }
    TRY(plan_file_read(out, text));
    if (strcmp(out->layer, "bert") == 0) return OK;
    return fail(ERR_USAGE, "%s: a plan for layer %s; an encoder needs one for layer bert", text,
                out->layer);
}

static status open_plans(encoder_plan *p, const encoder_config *c, const encoder_plan_options *o) {
    plan_file f;
    ready_plan *unused;
    p->is_auto = strcmp(o->plan, "auto") == 0;
    if (p->is_auto) {
        plan_file_key(&p->wanted, p->t, p->c, &p->model.shape, o->mask, o->mask_text);
        return plan_store_open(&p->store, o->cache);
    }
    TRY(check_model(c));
    TRY(read_plan(o->plan, &f));
    return add_plan(p, &f, &unused);
}

status encoder_plan_create(encoder_plan **out, backend *be, const encoder_config *c,
                           const encoder_plan_options *o) {
    encoder_plan *p;
    kernel_cache cache;
    *out = NULL;
    TRY(kernel_cache_open(&cache, o->cache));
    TRY(MEM_NEW(&p, 1));
    p->c = chain_of(CHAIN_BERT);
    p->workers = o->workers;
    p->model = (layer_batch){.c = p->c, .attend = attend_of(o->mask), .eps = c->eps};
    p->model.shape = (chain_shape){.n_sequences = 1,
                                   .max_len = encoder_max_len(c),
                                   .n_heads = c->n_heads,
                                   .dim_head = c->dim / c->n_heads,
                                   .dim_ffn = c->dim_ffn == 4 * c->dim ? 0 : c->dim_ffn,
                                   .n_tokens = 1};
    p->layers = (encoder_layers){.ctx = p, .begin = begin, .run = run};
    status st = target_create_on(&p->t, be, o->workers, &cache);
    if (st == OK) st = open_plans(p, c, o);
    if (st == OK && p->is_auto && check_model(c) != OK) {
        log_info("running without a plan: %s", status_reason());
        p->is_auto = false;
    }
    return CREATED(st, out, p, encoder_plan_destroy);
}

void encoder_plan_destroy(encoder_plan *p) {
    if (p == NULL) return;
    if (p->t != NULL) release_room(p);
    for (int i = 0; i < p->n_plans; i++) {
        for (int k = 0; k < CHAIN_OPS; k++)
            p->t->release(p->t, p->plan[i]->kernel[k]);
        mem_free(p->plan[i]);
    }
    target_destroy(p->t);
    mem_free(p);
}

const encoder_layers *encoder_plan_layers(const encoder_plan *p) {
    return &p->layers;
}

encoder_plan_use encoder_plan_used(const encoder_plan *p) {
    return p->use;
}
