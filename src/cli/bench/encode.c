/* hstu bench encode: one pass of a BERT encoder with random weights over a batch, in the five
 * numbers of the field's scripts: batch, layers, length, heads, head size.
 *
 * The FFN is four times as wide as the model, the activation gelu (erf), the vocabulary 30,522
 * words.  Before anything is timed, the results are checked on other random tokens: on the CPU each
 * sequence must have the bits in the batch that it has alone; a GPU must agree with the CPU.
 * Weights in int8 are compared with float32: their error is what they cost. */
#include "encode/encoder.h"

#include "cli/bench/bench.h"
#include "ops/mask.h"
#include "tune/encoder_plan.h"

enum { N_WORDS = 30522, MIN_POSITIONS = 512, N_TYPES = 2 };

/* A check runs this many sequences, of this many tokens at most, through two layers. */
enum { CHECK_SEQUENCES = 3, CHECK_LEN = 48, CHECK_LAYERS = 2 };

/* The numbers of the command line. */
enum { N_NUMBERS = 5, SEED = 1 };

typedef struct encode_shape {
    int64_t batch, n_layers, len, n_heads, head_dim;
    int64_t avg_len; /* mean of the sequences' lengths; 0: all are len long */
} encode_shape;

typedef struct bench_args {
    bench io;
    const char *numbers[N_NUMBERS], *mask_text;
    encode_shape shape;
    int dtype;
    const char *plan, *cache; /* of encoder_plan_options; plan NULL: the built-in layers */
    double seconds;           /* of the timed passes, at least */
    mask *mask;               /* or NULL */
} bench_args;

typedef struct encode_row {
    int64_t n_tokens; /* real ones */
    double n_flops;   /* of the products, and of the attention without a mask */
    timing pass;      /* tokens sent and states ready */
    bool is_by_plan;  /* the timed passes */
    uint16_t plan;    /* its value */
    double error;     /* of the check: root mean square over that of the values */
} encode_row;

void encode_bench_lengths(int64_t batch, int64_t len, int64_t avg_len, uint64_t seed,
                          int32_t *lengths) {
    rng_key key = rng_make_key(seed, RNG_SYNTH);
    int64_t mean = avg_len > 0 ? avg_len : len;
    int64_t reach = len - mean < mean - 1 ? len - mean : mean - 1, over = 0;
    for (int64_t b = 0; b < batch; b++) {
        uint32_t word = rng_draw64(key, (uint64_t)b, 1).word[0];
        lengths[b] = (int32_t)(mean - reach + (int64_t)rng_below(word, (uint32_t)(2 * reach + 1)));
        over += lengths[b] - mean;
    }
    for (int64_t b = 0; over != 0; b = (b + 1) % batch) {
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
static status run_check(encoder *e, const bench_args *o, bool is_alone, float *out,
                        int64_t *n_tokens) {
    int32_t ids[CHECK_LEN], dim = encoder_config_of(e)->dim;
    int64_t at = 0;
    for (int b = 0; b < CHECK_SEQUENCES; b++) {
        int32_t n = (int32_t)(o->shape.len < CHECK_LEN ? o->shape.len : CHECK_LEN) - 5 * b;
        TRY(add_random(e, SEED + 1, b, n > 1 ? n : 1, ids));
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
    return size > 0 ? sqrt(difference / size) : INFINITY;
}

/* Two encoders of the same weights: the one under test takes all sequences at once, the other one
 * computes them one by one on the CPU. */
static status compare(encoder *tested, encoder *plain, const bench_args *o, float *got, float *want,
                      bool is_exact, int dtype, encode_row *out) {
    static const double limits[] = {
        [ACT_F32] = 3e-6, [ACT_BF16] = 1.5e-2, [ACT_F16] = 2e-3, [ENCODER_INT8] = 5e-2};
    int64_t n;
    TRY(run_check(tested, o, false, got, &n));
    TRY(run_check(plain, o, true, want, &n));
    out->error = rms_error(got, want, n * encoder_config_of(plain)->dim);
    if (out->error <= (is_exact ? 0 : limits[dtype])) return OK;
    return fail(ERR_NUMERIC, "the encoder is off by %.2g of its values: not timed", out->error);
}

/* The plan that was asked for, or NULL. */
static status open_plan(encoder_plan **out, backend *be, const bench_args *o,
                        const encoder_config *c, const mask *m) {
    encoder_plan_options po = {.plan = o->plan,
                               .cache = o->cache,
                               .mask = m,
                               .mask_text = o->mask_text,
                               .workers = o->io.workers};
    *out = NULL;
    return o->plan != NULL ? encoder_plan_create(out, be, c, &po) : OK;
}

static status check(backend *be, const bench_args *o, encode_row *out) {
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
    if (st == OK) st = encoder_create_random(&plain, &c, SEED, cpu, &eo);
    if (st == OK) st = encoder_set_dtype(be, o->dtype, &eo);
    if (st == OK) st = open_plan(&plan, be, o, &c, NULL);
    if (st == OK && plan != NULL) eo.layers = encoder_plan_layers(plan);
    if (st == OK) st = encoder_create_random(&tested, &c, SEED, be, &eo);
    if (st == OK) st = MEM_NEW(&got, size);
    if (st == OK) st = MEM_NEW(&want, size);
    if (st == OK) {
        bool is_exact = be->is_host && plan == NULL && o->dtype <= ACT_F16;
        int dtype = o->dtype > ACT_F16 ? o->dtype : (int)be->act;
        st = compare(tested, plain, o, got, want, is_exact, dtype, out);
    }
    MEM_FREE(got, want);
    encoder_destroy(tested);
    encoder_plan_destroy(plan);
    encoder_destroy(plain);
    backend_destroy(cpu);
    return st;
}

static status one_pass(void *ctx, int i) {
    return encoder_run(ctx);
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

static status measure(backend *be, const bench_args *o, const int32_t *lengths, int32_t *ids,
                      encode_row *out) {
    encoder_config c = config_of(&o->shape);
    encoder *e = NULL;
    encoder_plan *plan;
    encoder_options eo = {.mask = o->mask};
    for (int64_t b = 0; b < o->shape.batch; b++)
        eo.batch_tokens += lengths[b];
    out->n_tokens = eo.batch_tokens;
    out->n_flops = flops_of(&o->shape, lengths);
    TRY(encoder_set_dtype(be, o->dtype, &eo));
    TRY(open_plan(&plan, be, o, &c, o->mask));
    if (plan != NULL) eo.layers = encoder_plan_layers(plan);
    status st = encoder_create_random(&e, &c, SEED, be, &eo);
    for (int64_t b = 0; st == OK && b < o->shape.batch; b++)
        st = add_random(e, SEED, b, lengths[b], ids);
    if (st == OK) st = timing_calls(be, o->seconds, one_pass, e, &out->pass);
    if (st == OK && plan != NULL) {
        encoder_plan_use use = encoder_plan_used(plan);
        out->is_by_plan = use.n_by_plan > 0;
        out->plan = use.value;
    }
    encoder_destroy(e);
    encoder_plan_destroy(plan);
    return st;
}

static status measure_all(backend *be, const bench_args *a, encode_row *out) {
    const encode_shape *s = &a->shape;
    int32_t *lengths = NULL, *ids = NULL;
    *out = (encode_row){0};
    TRY(check(be, a, out));
    status st = MEM_NEW(&lengths, (size_t)s->batch);
    if (st == OK) st = MEM_NEW(&ids, (size_t)s->len);
    if (st == OK) {
        encode_bench_lengths(s->batch, s->len, s->avg_len, SEED, lengths);
        st = measure(be, a, lengths, ids, out);
    }
    MEM_FREE(lengths, ids);
    return st;
}

static void set_title(bench_args *a, const encode_row *row) {
    const encode_shape *s = &a->shape;
    const char *plan = "\nNo plan is kept for this batch: the built-in layers.";
    if (row->is_by_plan) plan = show_printf("\nLayers by plan %d.", row->plan);
    bench_title(&a->io,
                "BERT encoder: %" PRId64 " x %" PRId64 " tokens (%.0f %% real), %" PRId64
                " layers, width %" PRId64
                ", mask %.60s, %s, %s\nChecked: off by %.1e of the values.%s",
                s->batch, s->len, 100.0 * (double)row->n_tokens / (double)(s->batch * s->len),
                s->n_layers, s->n_heads * s->head_dim, a->mask_text != NULL ? a->mask_text : "none",
                a->io.be->name, a->io.dtype, row->error, a->plan != NULL ? plan : "");
}

static status print_row(bench_args *a, const encode_row *row) {
    const encode_shape *s = &a->shape;
    double tokens_per_s = (double)row->n_tokens / row->pass.median;
    return BENCH_ROW(
        &a->io, MEMBER("batch", s->batch), MEMBER("layers", s->n_layers), MEMBER("length", s->len),
        MEMBER("heads", s->n_heads), MEMBER("head_dim", s->head_dim),
        MEMBER("mask", a->mask_text != NULL ? a->mask_text : "none"),
        MEMBER(row->is_by_plan ? "plan" : NULL, row->plan), MEMBER("tokens", row->n_tokens),
        MEMBER("real_tokens", (double)row->n_tokens / (double)(s->batch * s->len)),
        COLUMN("ms", "  10.3f", "ms", row->pass.median * 1e3),
        COLUMN("fastest", " 10.3f", "ms_fastest", row->pass.fastest * 1e3),
        COLUMN("CPU ms", " 10.3f", "cpu_ms", row->pass.cpu * 1e3), MEMBER("passes", row->pass.n),
        COLUMN("tokens/s", " 12", NULL, show_count((uint64_t)tokens_per_s)),
        MEMBER("tokens_per_s", tokens_per_s), MEMBER("gflop", row->n_flops * 1e-9),
        COLUMN("GFLOP/s", " 10.1f", NULL, row->n_flops / row->pass.median * 1e-9),
        MEMBER("check_error", row->error));
}

static status read_shape(bench_args *a) {
    encode_shape *s = &a->shape;
    const struct {
        const char *what;
        int64_t most, *to;
    } numbers[N_NUMBERS] = {{"the batch", 1 << 16, &s->batch},
                            {"the number of layers", 1024, &s->n_layers},
                            {"the length", 1 << 16, &s->len},
                            {"the number of heads", 256, &s->n_heads},
                            {"the head size", 256, &s->head_dim}};
    for (int i = 0; i < N_NUMBERS; i++) {
        char *end;
        *numbers[i].to = strtoll(a->numbers[i], &end, 10);
        if (*end != '\0' || *numbers[i].to < 1 || *numbers[i].to > numbers[i].most)
            return fail(ERR_USAGE, "%s '%.40s' is not a number from 1 to %" PRId64, numbers[i].what,
                        a->numbers[i], numbers[i].most);
    }
    if (s->avg_len > s->len)
        return fail(ERR_USAGE, "--avg-len %" PRId64 " is longer than the length %" PRId64,
                    s->avg_len, s->len);
    return OK;
}

static status run(void *ctx) {
    bench_args *a = ctx;
    encode_row row;
    TRY(measure_all(a->io.be, a, &row));
    /* The CPU computes in float32 whatever is asked for, but for weights in int8. */
    a->io.dtype = encoder_dtypes[a->dtype > ACT_F16 ? a->dtype : (int)a->io.be->act];
    set_title(a, &row);
    return print_row(a, &row);
}

status bench_encode(int argc, char **argv) {
    bench_args a = {.io = {.name = "encode", .device = "auto"}, .seconds = 2};
    const arg_option options[] = {
        OPT_INT("--avg-len", &a.shape.avg_len, "A", 0, 1 << 16,
                "Mean sequence length; lengths are uniform around it (default: every sequence has "
                "S tokens)."),
        OPT_TEXT("--mask", &a.mask_text, "MASK",
                 "Attention mask, as for 'hstu encode' (default none)."),
        OPT_CHOICE("--dtype", &a.dtype, "TYPE", encoder_dtypes,
                   "As for 'hstu encode': float32 (default), bfloat16, float16 or int8."),
        OPT_TEXT("--plan", &a.plan, "PLAN",
                 "Run the layers by a fusion plan, as for 'hstu encode': a file, a value, 16 bits "
                 "or auto."),
        OPT_TEXT("--cache", &a.cache, "DIR",
                 "Cache of compiled kernels and tuned plans (default ~/.cache/hstu)."),
        OPT_TEXT("--device", &a.io.device, "DEVICE", WORK_DEVICES),
        OPT_DOUBLE("--seconds", &a.seconds, "S", "Seconds to measure, up to 600 (default 2)."),
        BENCH_JSON(&a.io),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench encode B L S H W [options]",
        .summary = "Measure one pass of a BERT encoder with random weights: B sequences of up to S "
                   "tokens, L layers, H heads of dimension W; the FFN is four times as wide as the "
                   "model. BERT base is 'B 12 S 12 64', BERT large 'B 24 S 16 64'.",
        .options = options,
        .min_positional = N_NUMBERS,
        .notes = "CPU ms is the processor time of all threads per pass; compare it when other "
                 "programs share the machine.\n"};
    ARGS_PARSE(&spec, a.numbers, NULL);
    if (!(a.seconds > 0 && a.seconds <= 600))
        return fail(ERR_USAGE, "--seconds: %g is out of range; give up to 600", a.seconds);
    TRY(read_shape(&a));
    if (a.mask_text != NULL) TRY(mask_create(&a.mask, a.mask_text));
    status st = bench_run(&a.io, run, &a);
    mask_destroy(a.mask);
    return st;
}
