/* hstu bench encode: options and the table; bench/encode.h measures. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/bench/encode.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

enum { N_NUMBERS = 5 };

typedef struct bench_args {
    const char *numbers[N_NUMBERS], *mask, *dtype, *device;
    encode_options o;
    bool is_json;
} bench_args;

static status print_json(const bench_args *a, const backend *be, const encode_row *row) {
    const encode_shape *s = &a->o.shape;
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "encode");
    json_key_int(w, "batch", s->batch);
    json_key_int(w, "layers", s->n_layers);
    json_key_int(w, "length", s->len);
    json_key_int(w, "heads", s->n_heads);
    json_key_int(w, "head_dim", s->head_dim);
    json_key_string(w, "mask", a->mask != NULL ? a->mask : "none");
    json_key_string(w, "device", be->name);
    json_key_string(w, "dtype", bench_act_name(be->act));
    if (row->is_by_plan) json_key_int(w, "plan", row->plan);
    json_key_int(w, "tokens", row->n_tokens);
    json_key_double(w, "real_tokens", (double)row->n_tokens / (double)(s->batch * s->len));
    json_key_double(w, "ms", row->ms);
    json_key_double(w, "ms_fastest", row->ms_fastest);
    json_key_double(w, "cpu_ms", row->cpu_ms);
    json_key_int(w, "passes", row->n_passes);
    json_key_double(w, "tokens_per_s", (double)row->n_tokens / row->ms * 1e3);
    json_key_double(w, "gflop", row->n_flops * 1e-9);
    json_key_double(w, "check_error", row->error);
    return json_line_print(&line);
}

static status print_text(const bench_args *a, const backend *be, const encode_row *row) {
    const encode_shape *s = &a->o.shape;
    char tokens[SHOW_BYTES];
    show_style style = show_stdout_style();
    printf("%sBERT encoder%s: %" PRId64 " x %" PRId64 " tokens (%.0f %% real), %" PRId64
           " layers, width %" PRId64 ", mask %s, %s, %s\n",
           style.bold, style.plain, s->batch, s->len,
           100.0 * (double)row->n_tokens / (double)(s->batch * s->len), s->n_layers,
           s->n_heads * s->head_dim, a->mask != NULL ? a->mask : "none", be->name,
           bench_act_name(be->act));
    printf("Checked: off by %.1e of the values.\n", row->error);
    if (a->o.plan != NULL && row->is_by_plan)
        printf("Layers by plan %d.\n", row->plan);
    else if (a->o.plan != NULL)
        printf("No plan is kept for this batch: the built-in layers.\n");
    printf("\n");
    printf("%s  %10s %10s %10s %12s %10s%s\n", style.bold, "ms", "fastest", "CPU ms", "tokens/s",
           "GFLOP/s", style.plain);
    printf("  %10.3f %10.3f %10.3f %12s %10.1f\n", row->ms, row->ms_fastest, row->cpu_ms,
           show_count(tokens, (uint64_t)((double)row->n_tokens / row->ms * 1e3)),
           row->n_flops / row->ms * 1e-6);
    return OK;
}

static status read_number(const char *text, const char *what, int64_t most, int64_t *out) {
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 1 || value > most)
        return fail(ERR_USAGE, "%s '%.40s' is not a number from 1 to %" PRId64, what, text, most);
    *out = value;
    return OK;
}

static status read_shape(bench_args *a) {
    encode_shape *s = &a->o.shape;
    TRY(read_number(a->numbers[0], "the batch", 1 << 16, &s->batch));
    TRY(read_number(a->numbers[1], "the number of layers", 1024, &s->n_layers));
    TRY(read_number(a->numbers[2], "the length", 1 << 16, &s->len));
    TRY(read_number(a->numbers[3], "the number of heads", 256, &s->n_heads));
    TRY(read_number(a->numbers[4], "the head size", 256, &s->head_dim));
    if (s->avg_len > s->len)
        return fail(ERR_USAGE, "--avg-len %" PRId64 " is longer than the length %" PRId64,
                    s->avg_len, s->len);
    return OK;
}

static status set_dtype(backend *be, const char *name) {
    for (act_type act = ACT_F32; act <= ACT_F16; act++)
        if (strcmp(bench_act_name(act), name) == 0) return be->ops->set_precision(be, act, false);
    return fail(ERR_USAGE, "--dtype %.40s: it is one of float32, bfloat16, float16", name);
}

static status run(bench_args *a) {
    work w;
    mask *m = NULL;
    encode_row row;
    if (a->mask != NULL) TRY(mask_create(&m, a->mask));
    a->o.mask = m;
    a->o.mask_text = a->mask;
    status st = work_open(&w, NULL, a->device);
    if (st == OK) {
        a->o.workers = w.workers;
        st = set_dtype(w.be, a->dtype);
        if (st == OK) st = encode_bench_run(w.be, &a->o, &row);
        if (st == OK) st = a->is_json ? print_json(a, w.be, &row) : print_text(a, w.be, &row);
        work_close(&w);
    }
    mask_destroy(m);
    return st;
}

status bench_encode(int argc, char **argv) {
    bench_args a = {.device = "auto", .dtype = "float32", .o = {.seconds = 2, .seed = 1}};
    bool is_help;
    int n;
    const arg_option options[] = {
        OPT_INT("--avg-len", &a.o.shape.avg_len, "A", 0, 1 << 16,
                "Mean length; sequences are then uniformly long around it (default: all are S)."),
        OPT_TEXT("--mask", &a.mask, "MASK", "As in 'hstu encode' (default none)."),
        OPT_TEXT("--dtype", &a.dtype, "TYPE", "float32, bfloat16 or float16 (default float32)."),
        OPT_TEXT("--plan", &a.o.plan, "PLAN",
                 "Run the layers by a fusion plan, as in 'hstu encode': a file, a value, 16 bits "
                 "or auto."),
        OPT_TEXT("--cache", &a.o.cache, "DIR",
                 "Where compiled kernels and kept plans are (default ~/.cache/hstu)."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_DOUBLE("--seconds", &a.o.seconds, "S", "Seconds of timed passes (default 2)."),
        OPT_FLAG("--json", &a.is_json, "Print a JSON object."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu bench encode B L S H W [options]",
                           .summary =
                               "Times one pass of a BERT encoder with random weights: B sequences "
                               "of up to S tokens, L layers, H heads of size W; the FFN is four "
                               "times as wide. BERT base is 'B 12 S 12 64', large 'B 24 S 16 64'.",
                           .options = options,
                           .min_positional = N_NUMBERS,
                           .max_positional = N_NUMBERS,
                           .notes = "CPU ms is the processor time of all threads for a pass: "
                                    "compare it where other programs run on the machine.\n"};
    TRY(args_parse(&spec, argc, argv, a.numbers, &n, &is_help));
    if (is_help) return OK;
    if (!(a.o.seconds > 0 && a.o.seconds <= 600))
        return fail(ERR_USAGE, "--seconds: %g is out of range; give up to 600", a.o.seconds);
    TRY(read_shape(&a));
    return run(&a);
}
