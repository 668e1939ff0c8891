#include "tune/chain_problem.h"

#include "base/half.h"

/* Nothing larger is checked or timed: 2^40 elements would only be a typing error. */
enum { MAX_TOKENS = 1 << 24 };
static const int64_t max_elements = (int64_t)1 << 34;

int64_t chain_tensor_size(const chain_problem *p, int tensor) {
    const chain_tensor *t = &p->c->tensor[tensor];
    int64_t columns = chain_columns(&p->shape, t->width);
    switch (t->layout) {
    case LAYOUT_TOKENS:
    case LAYOUT_HEADS:
        return p->shape.n_tokens * columns;
    case LAYOUT_SCORES:
        return p->score_offsets[p->shape.n_sequences] * p->shape.n_heads;
    case LAYOUT_MATRIX:
        return chain_columns(&p->shape, t->rows) * columns;
    case LAYOUT_VECTOR:
        return columns;
    default:
        return 2 * (int64_t)p->shape.max_len - 1;
    }
}

bool chain_attends(const chain_problem *p, int32_t b, int32_t i, int32_t j) {
    if (p->attend == ATTEND_ALL) return true;
    if (p->attend == ATTEND_CAUSAL) return j <= i;
    int64_t len = p->offsets[b + 1] - p->offsets[b];
    return p->mask[p->score_offsets[b] + i * len + j] != 0;
}

float round_to(act_type act, float x) {
    if (act == ACT_F32 || !isfinite(x)) return x;
    return act == ACT_BF16 ? half_bf16_to_float(half_bf16_from_float(x))
                           : half_f16_to_float(half_f16_from_float(x));
}

/* Uniform in [-1, 1) by (tensor, index). */
static float draw(rng_key key, int tensor, int64_t at) {
    rng_block b = rng_draw64(key, (uint64_t)at, (uint64_t)tensor + 1);
    return 2 * rng_uniform(b.word[0]) - 1;
}

/* Weights have variance 1 / depth, so that activations keep theirs; norm weights are near 1. */
static status fill(chain_problem *p, int tensor, rng_key key) {
    const chain_tensor *t = &p->c->tensor[tensor];
    int64_t n = chain_tensor_size(p, tensor);
    bool is_matrix = t->layout == LAYOUT_MATRIX;
    bool is_input = tensor == 0, is_weight = strstr(t->name, "weight") != NULL;
    float scale = is_matrix  ? sqrtf(3.0f / (float)chain_columns(&p->shape, t->width))
                  : is_input ? 1
                             : 0.25f;
    TRY(MEM_NEW_RAW(&p->value[tensor], (size_t)n));
    for (int64_t i = 0; i < n; i++) {
        float x = scale * draw(key, tensor, i) + (is_weight ? 1 : 0);
        p->value[tensor][i] = is_matrix || is_input ? round_to(p->act, x) : x;
    }
    return OK;
}

/* Lengths 1 .. 2 avg - 1, at most max_len; the first sequence is as long as any may be. */
static int64_t length_of(const problem_options *o, rng_key key, int64_t b) {
    if (o->avg_len == 0 || b == 0) return o->max_len;
    uint32_t span = (uint32_t)(2 * o->avg_len - 1);
    int64_t n = 1 + rng_below(rng_draw64(key, (uint64_t)b, 0).word[0], span);
    return n < o->max_len ? n : o->max_len;
}

static status lay_out(chain_problem *p, const problem_options *o, rng_key key) {
    size_t n = (size_t)p->shape.n_sequences + 1;
    TRY(MEM_NEW(&p->offsets, n));
    TRY(MEM_NEW(&p->score_offsets, n));
    for (int64_t b = 0; b < o->n_sequences; b++) {
        int64_t len = length_of(o, key, b);
        if (p->offsets[b] + len > MAX_TOKENS)
            return fail(ERR_USAGE, "more than %d tokens; choose fewer or shorter sequences",
                        (int)MAX_TOKENS);
        p->offsets[b + 1] = (int32_t)(p->offsets[b] + len);
        p->score_offsets[b + 1] = p->score_offsets[b] + len * len;
    }
    p->shape.n_tokens = p->offsets[o->n_sequences];
    return OK;
}

status chain_problem_check(const chain *c, const problem_options *o) {
    bool fits = o->n_sequences >= 1 && o->n_sequences <= MAX_TOKENS && o->max_len >= 1 &&
                o->max_len <= 1 << 20 && o->n_heads >= 1 && o->dim_head >= 1 &&
                o->n_heads * o->dim_head <= 1 << 16 && o->dim_ffn >= 0 && o->dim_ffn <= 1 << 18;
    if (!fits)
        return fail(ERR_USAGE, "a layer needs at least 1 sequence, token, head and column, at most "
                               "2^20 tokens a sequence "
                               "and a model dimension of at most 65536");
    if (o->dim_ffn > 0 && c != chain_of(CHAIN_BERT))
        return fail(ERR_USAGE,
                    "--ffn is for layer bert: the FFN of %s has the model's width, or it has none",
                    c->name);
    if (o->avg_len < 0 || o->avg_len > o->max_len)
        return fail(ERR_USAGE, "--avg-len %lld is larger than --length %lld", (long long)o->avg_len,
                    (long long)o->max_len);
    return OK;
}

/* A byte a pair, sequence by sequence. */
static status fill_mask(chain_problem *p) {
    int32_t n_words = (p->shape.max_len + 63) / 64;
    uint64_t *words;
    status st = OK;
    TRY(MEM_NEW(&words, (size_t)n_words));
    st = mem_alloc_raw((void **)&p->mask, (size_t)p->score_offsets[p->shape.n_sequences], 1);
    for (int32_t b = 0; b < p->shape.n_sequences && st == OK; b++) {
        int32_t len = p->offsets[b + 1] - p->offsets[b];
        st = mask_check(p->rule, b, len);
        for (int32_t i = 0; i < len && st == OK; i++) {
            uint8_t *row = p->mask + p->score_offsets[b] + (int64_t)i * len;
            mask_fill_rows(p->rule, b, len, i, 1, words, n_words);
            for (int32_t j = 0; j < len; j++)
                row[j] = words[j / 64] >> j % 64 & 1;
        }
    }
    mem_free(words);
    return st;
}

attend_kind attend_of(const mask *m) {
    if (m == NULL) return ATTEND_ALL;
    const mask_rule *rule = mask_rule_of(m);
    if (rule->kind == MASK_CAUSAL || (rule->kind == MASK_NONE && rule->is_causal))
        return ATTEND_CAUSAL;
    return rule->kind == MASK_NONE ? ATTEND_ALL : ATTEND_BYTES;
}

static status make(chain_problem *p, const problem_options *o) {
    rng_key key = rng_make_key(o->seed, RNG_TEST);
    TRY(lay_out(p, o, key));
    for (int t = 0; t < p->c->n_tensors; t++)
        if (chain_tensor_size(p, t) > max_elements)
            return fail(ERR_USAGE,
                        "tensor '%s' would have %lld elements; choose a smaller batch or length",
                        p->c->tensor[t].name, (long long)chain_tensor_size(p, t));
    for (int t = 0; t < p->c->n_tensors; t++)
        if (t == 0 || p->c->tensor[t].layout >= LAYOUT_MATRIX) TRY(fill(p, t, key));
    return p->attend == ATTEND_BYTES ? fill_mask(p) : OK;
}

status chain_problem_create(chain_problem **out, const chain *c, const problem_options *o) {
    *out = NULL;
    chain_problem *p;
    TRY(chain_problem_check(c, o));
    TRY(MEM_NEW(&p, 1));
    p->c = c;
    p->attend = o->rule == NULL ? o->attend : attend_of(o->rule);
    p->rule = o->rule;
    p->act = o->act;
    p->shape = (chain_shape){.n_sequences = (int32_t)o->n_sequences,
                             .max_len = (int32_t)o->max_len,
                             .n_heads = (int32_t)o->n_heads,
                             .dim_head = (int32_t)o->dim_head,
                             .dim_ffn = (int32_t)o->dim_ffn};
    status st = make(p, o);
    return CREATED(st, out, p, chain_problem_destroy);
}

void chain_problem_destroy(chain_problem *p) {
    if (p == NULL) return;
    for (int t = 0; t < CHAIN_MAX_TENSORS; t++)
        mem_free(p->value[t]);
    MEM_FREE(p->offsets, p->score_offsets, p->mask, p);
}

#define REAL        double
#define NAME(x)     x##64
#define ROUND(p, x) (x)
#define EXP         exp
#define SQRT        sqrt
#define ERF         erf
#include "tune/chain_reference.def"
#undef REAL
#undef NAME
#undef ROUND
#undef EXP
#undef SQRT
#undef ERF

#define REAL        float
#define NAME(x)     x##32
#define ROUND(p, x) round_to((p)->act, (x))
#define EXP         expf
#define SQRT        sqrtf
#define ERF         erff
#include "tune/chain_reference.def"
