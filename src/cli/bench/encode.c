#include "cli/bench/encode.h"

#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/sort.h"
#include "encode/encoder.h"
#include "tune/encoder_plan.h"

enum { N_WORDS = 30522, MIN_POSITIONS = 512, N_TYPES = 2, MAX_PASSES = 1000, N_WARM = 3 };

/* A check runs this many sequences, of this many tokens at most, through two layers. */
enum { CHECK_SEQUENCES = 3, CHECK_LEN = 48, CHECK_LAYERS = 2 };

void encode_bench_lengths(const encode_shape *s, uint64_t seed, int32_t *lengths) {
    rng_key key = rng_make_key(seed, RNG_SYNTH);
    int64_t mean = s->avg_len > 0 ? s->avg_len : s->len;
    int64_t reach = s->len - mean < mean - 1 ? s->len - mean : mean - 1, over = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        uint32_t word = rng_draw64(key, (uint64_t)b, 1).word[0];
        lengths[b] = (int32_t)(mean - reach + (int64_t)rng_below(word, (uint32_t)(2 * reach + 1)));
        over += lengths[b] - mean;
    }
    for (int64_t b = 0; over != 0; b = (b + 1) % s->batch) {
        int32_t by = over > 0 ? -1 : 1;
        if (lengths[b] + by < mean - reach || lengths[b] + by > mean + reach) continue;
        lengths[b] += by;
        over += by;
    }
}

static encoder_config config_of(const encode_shape *s) {
    int32_t dim = (int32_t)(s->n_heads * s->head_dim);
    return (encoder_config){.family = ENCODER_BERT,
                            .n_layers = (int32_t)s->n_layers,
                            .dim = dim,
                            .n_heads = (int32_t)s->n_heads,
                            .dim_ffn = 4 * dim,
                            .n_words = N_WORDS,
                            .n_positions =
                                (int32_t)(s->len > MIN_POSITIONS ? s->len : MIN_POSITIONS),
                            .n_types = N_TYPES,
                            .f = EPILOGUE_GELU,
                            .eps = 1e-12f};
}

/* Adds sequence b of random tokens. */
static status add_random(encoder *e, uint64_t seed, int64_t b, int32_t n, int32_t *ids) {
    rng_key key = rng_make_key(seed, RNG_SYNTH);
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng_draw64(key, (uint64_t)i, 2 + (uint64_t)b).word[0], N_WORDS);
    return encoder_add(e, ids, NULL, n);
}

/* Runs the sequences of a check together or one by one; out: (CHECK_SEQUENCES * CHECK_LEN, E). */
static status run_check(encoder *e, const encode_options *o, bool is_alone, float *out,
                        int64_t *n_tokens) {
    int32_t ids[CHECK_LEN], dim = encoder_config_of(e)->dim;
    int64_t at = 0;
    for (int b = 0; b < CHECK_SEQUENCES; b++) {
        int32_t n = (int32_t)(o->shape.len < CHECK_LEN ? o->shape.len : CHECK_LEN) - 5 * b;
        TRY(add_random(e, o->seed + 1, b, n > 1 ? n : 1, ids));
        if (!is_alone && b + 1 < CHECK_SEQUENCES) continue;
        TRY(encoder_run(e));
        TRY(encoder_read(e, out + at * dim, NULL));
        at += encoder_offsets(e)[encoder_n_sequences(e)];
        encoder_clear(e);
    }
    *n_tokens = at;
    return OK;
}

static double rms_error(const float *a, const float *b, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return size > 0 ? sqrt(difference / size) : 0;
}

/* Two encoders of the same weights: the one under test takes all sequences at once, the other one
 * computes them one by one on the CPU. */
static status compare(encoder *tested, encoder *plain, const encode_options *o, float *got,
                      float *want, bool is_exact, act_type act, encode_row *out) {
    static const double limits[] = {[ACT_F32] = 3e-6, [ACT_BF16] = 1.5e-2, [ACT_F16] = 2e-3};
    int64_t n;
    TRY(run_check(tested, o, false, got, &n));
    TRY(run_check(plain, o, true, want, &n));
    out->error = rms_error(got, want, n * encoder_config_of(plain)->dim);
    if (out->error <= (is_exact ? 0 : limits[act])) return OK;
    return fail(ERR_NUMERIC, "the encoder is off by %.2g of its values: not timed", out->error);
}

/* The plan that was asked for, or NULL. */
static status open_plan(encoder_plan **out, backend *be, const encode_options *o,
                        const encoder_config *c, const mask *m) {
    encoder_plan_options po = {.plan = o->plan,
                               .cache = o->cache,
                               .mask = m,
                               .mask_text = o->mask_text,
                               .workers = o->workers};
    *out = NULL;
    return o->plan != NULL ? encoder_plan_create(out, be, c, &po) : OK;
}

static status check(backend *be, const encode_options *o, encode_row *out) {
    encoder *tested = NULL, *plain = NULL;
    encoder_plan *plan = NULL;
    backend *cpu = NULL;
    float *got = NULL, *want = NULL;
    encode_shape s = o->shape;
    s.n_layers = s.n_layers < CHECK_LAYERS ? s.n_layers : CHECK_LAYERS;
    encoder_config c = config_of(&s);
    encoder_options eo = {.batch_tokens = CHECK_SEQUENCES * CHECK_LEN};
    size_t size = (size_t)(CHECK_SEQUENCES * CHECK_LEN) * (size_t)c.dim;
    status st = backend_create_cpu(&cpu, NULL);
    if (st == OK) st = open_plan(&plan, be, o, &c, NULL);
    if (st == OK && plan != NULL) eo.layers = encoder_plan_layers(plan);
    if (st == OK) st = encoder_create_random(&tested, &c, o->seed, be, &eo);
    eo.layers = NULL;
    if (st == OK) st = encoder_create_random(&plain, &c, o->seed, cpu, &eo);
    if (st == OK) st = MEM_NEW(&got, size);
    if (st == OK) st = MEM_NEW(&want, size);
    if (st == OK) {
        bool is_exact = be->ops->stream(be) == NULL && plan == NULL;
        st = compare(tested, plain, o, got, want, is_exact, be->act, out);
    }
    mem_free(got);
    mem_free(want);
    encoder_destroy(tested);
    encoder_plan_destroy(plan);
    encoder_destroy(plain);
    backend_destroy(cpu);
    return st;
}

static double cpu_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec
               : 0;
}

static status one_pass(encoder *e, backend *be, double *ms) {
    uint64_t start = clock_ns();
    TRY(encoder_run(e));
    TRY(be->ops->sync(be));
    *ms = (double)(clock_ns() - start) * 1e-6;
    return OK;
}

static status time_passes(encoder *e, backend *be, const encode_options *o, encode_row *out) {
    double *ms, total = 0, cpu = 0;
    TRY(MEM_NEW(&ms, MAX_PASSES));
    status st = OK;
    for (int i = 0; st == OK && i < N_WARM; i++)
        st = one_pass(e, be, &ms[0]);
    cpu = cpu_seconds();
    int n = 0;
    for (; st == OK && n < MAX_PASSES && (n < 3 || total < o->seconds * 1e3); n++) {
        st = one_pass(e, be, &ms[n]);
        total += ms[n];
    }
    out->cpu_ms = n > 0 ? (cpu_seconds() - cpu) * 1e3 / n : 0;
    out->n_passes = n;
    if (st == OK) {
        out->ms_fastest = ms[0];
        for (int i = 1; i < n; i++)
            out->ms_fastest = ms[i] < out->ms_fastest ? ms[i] : out->ms_fastest;
        out->ms = median(ms, n);
    }
    mem_free(ms);
    return st;
}

/* Products: 12 E^2 weights a layer, two flops each; attention: 4 E flops a pair. */
static double flops_of(const encode_shape *s, const int32_t *lengths) {
    double dim = (double)(s->n_heads * s->head_dim), tokens = 0, pairs = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        tokens += lengths[b];
        pairs += (double)lengths[b] * lengths[b];
    }
    return (double)s->n_layers * (24 * dim * dim * tokens + 4 * dim * pairs);
}

static status measure(backend *be, const encode_options *o, const int32_t *lengths, int32_t *ids,
                      encode_row *out) {
    encoder_config c = config_of(&o->shape);
    encoder *e = NULL;
    encoder_plan *plan;
    encoder_options eo = {.mask = o->mask};
    for (int64_t b = 0; b < o->shape.batch; b++)
        eo.batch_tokens += lengths[b];
    out->n_tokens = eo.batch_tokens;
    out->n_flops = flops_of(&o->shape, lengths);
    TRY(open_plan(&plan, be, o, &c, o->mask));
    if (plan != NULL) eo.layers = encoder_plan_layers(plan);
    status st = encoder_create_random(&e, &c, o->seed, be, &eo);
    for (int64_t b = 0; st == OK && b < o->shape.batch; b++)
        st = add_random(e, o->seed, b, lengths[b], ids);
    if (st == OK) st = time_passes(e, be, o, out);
    if (st == OK && plan != NULL) {
        encoder_plan_use use = encoder_plan_used(plan);
        out->is_by_plan = use.n_by_plan > 0;
        out->plan = use.value;
    }
    encoder_destroy(e);
    encoder_plan_destroy(plan);
    return st;
}

status encode_bench_run(backend *be, const encode_options *o, encode_row *out) {
    int32_t *lengths = NULL, *ids = NULL;
    *out = (encode_row){0};
    TRY(check(be, o, out));
    status st = MEM_NEW(&lengths, (size_t)o->shape.batch);
    if (st == OK) st = MEM_NEW(&ids, (size_t)o->shape.len);
    if (st == OK) {
        encode_bench_lengths(&o->shape, o->seed, lengths);
        st = measure(be, o, lengths, ids, out);
    }
    mem_free(lengths);
    mem_free(ids);
    return st;
}
