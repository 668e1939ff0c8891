/* hstu bench attention: HSTU attention at the shapes of the field's table, forward and backward.
 *
 * Each row is checked first, on numbers and lengths drawn anew, against float64; then timed twice:
 * as plain calls, and as the replay of a recording of REPLAYED calls, which leaves the host's time
 * out.  FLOPs are counted as the field counts them: forward 4 H D sum(L^2) / 2 for a causal mask
 * (of other masks the pairs seen), backward 2.5 times that. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"
#include "profile/attn_problem.h"
#include "profile/peak.h"

enum { N_HEADS = 4, REPLAYED = 20, MAX_CALLS = 30, RECORD_KEY = 77 };

/* A row is not measured where one forward pass has more FLOPs than that: on a CPU. */
static const double CPU_MAX_FLOPS = 2e10;
static const double ENOUGH_SECONDS = 0.3;

static const attn_shape shapes[] = {
#define SIZES(D)                                                                                   \
    {N_HEADS, D, 32, 1024, false, ATTN_CAUSAL}, {N_HEADS, D, 32, 4096, false, ATTN_CAUSAL},        \
        {N_HEADS, D, 32, 4096, true, ATTN_CAUSAL}, {N_HEADS, D, 128, 512, true, ATTN_CAUSAL},      \
        {N_HEADS, D, 128, 200, true, ATTN_CAUSAL}, {                                               \
        N_HEADS, D, 512, 50, true, ATTN_CAUSAL                                                     \
    }
    SIZES(64),
    SIZES(128),
    SIZES(256),
    {N_HEADS, 32, 128, 200, true, ATTN_CAUSAL},
    {N_HEADS, 128, 32, 4096, true, ATTN_WINDOW},
    {N_HEADS, 128, 32, 4096, true, ATTN_TARGETS},
    {N_HEADS, 128, 32, 4096, true, ATTN_ARBITRARY},
    {N_HEADS, 128, 4, 16384, false, ATTN_CAUSAL},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct bench_args {
    const char *device, *dtype;
    bool is_any_card, is_json;
} bench_args;

/* Seconds of one call. */
typedef struct timing {
    double plain, replay;
} timing;

/* ---- timing ---------------------------------------------------------------------------------- */

static status call(const attn_problem *p, bool is_backward) {
    const ops *f = p->be->ops;
    return is_backward ? f->attn_bwd(p->be, &p->a) : f->attn_fwd(p->be, &p->a);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[n / 2];
}

/* The median of up to MAX_CALLS plain calls, each waited for; the first warms up. */
static status time_plain(const attn_problem *p, bool is_backward, double *out) {
    double took[MAX_CALLS], sum = 0;
    int n = 0;
    TRY(call(p, is_backward));
    TRY(p->be->ops->sync(p->be));
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        uint64_t start = clock_ns();
        TRY(call(p, is_backward));
        TRY(p->be->ops->sync(p->be));
        took[n] = (double)(clock_ns() - start) / 1e9;
        sum += took[n];
    }
    *out = median(took, n);
    return OK;
}

static status record_once(const attn_problem *p, bool is_backward, record_state *state) {
    status st = OK;
    TRY(p->be->ops->record(p->be, RECORD_KEY + (uint64_t)is_backward, state));
    for (int i = 0; i < REPLAYED && *state != RECORD_REPLAY && st == OK; i++)
        st = call(p, is_backward);
    status end = p->be->ops->record_end(p->be);
    return st != OK ? st : end;
}

/* Run, recorded, then replayed: the last are timed.  A backend that does not record has no replay.
 */
static status time_replay(const attn_problem *p, bool is_backward, double *out) {
    double took[MAX_CALLS], sum = 0;
    record_state state;
    int n = 0;
    *out = NAN;
    if (p->be->token_bucket == 0) return OK;
    for (int i = 0; i < 3; i++)
        TRY(record_once(p, is_backward, &state));
    TRY(p->be->ops->sync(p->be));
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        uint64_t start = clock_ns();
        TRY(record_once(p, is_backward, &state));
        TRY(p->be->ops->sync(p->be));
        took[n] = (double)(clock_ns() - start) / 1e9 / REPLAYED;
        sum += took[n] * REPLAYED;
    }
    *out = median(took, n);
    return OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

typedef struct row {
    const attn_problem *p;
    double error, peak;
    timing pass[2]; /* forward, backward */
} row;

static double tflops(const row *r, int pass, double seconds) {
    return (pass == 0 ? 1 : 2.5) * r->p->flops / seconds / 1e12;
}

static status print_json(const row *r, const bench_args *a) {
    static const char *const keys[2][4] = {
        {"fwd_ms", "fwd_tflops", "fwd_replay_us", "fwd_replay_tflops"},
        {"bwd_ms", "bwd_tflops", "bwd_replay_us", "bwd_replay_tflops"}};
    const attn_shape *s = &r->p->shape;
    json_writer j;
    buf text;
    buf_init(&text);
    json_begin(&j, &text, 0);
    json_object_open(&j);
    json_key_string(&j, "bench", "attention");
    json_key_string(&j, "device", r->p->be->name);
    if (r->p->be->card != NULL) json_key_string(&j, "gpu", r->p->be->card);
    json_key_string(&j, "dtype", a->dtype);
    json_key_bool(&j, "any_card", a->is_any_card);
    json_key_string(&j, "mask", attn_mask_kind_name(s->mask));
    json_key_int(&j, "heads", s->n_heads);
    json_key_int(&j, "dim", s->dim);
    json_key_int(&j, "sequences", s->n_sequences);
    json_key_int(&j, "length", s->max_len);
    json_key_bool(&j, "jagged", s->is_jagged);
    json_key_int(&j, "tokens", r->p->n_tokens);
    json_key_double(&j, "error", r->error);
    json_key_double(&j, "peak_tflops", r->peak / 1e12);
    for (int i = 0; i < 2; i++) {
        json_key_double(&j, keys[i][0], r->pass[i].plain * 1e3);
        json_key_double(&j, keys[i][1], tflops(r, i, r->pass[i].plain));
        if (isnan(r->pass[i].replay)) continue;
        json_key_double(&j, keys[i][2], r->pass[i].replay * 1e6);
        json_key_double(&j, keys[i][3], tflops(r, i, r->pass[i].replay));
    }
    json_object_close(&j);
    status st = json_finish(&j);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

static void print_heading(const work *w, const bench_args *a, double peak) {
    show_style style = show_stdout_style();
    printf("HSTU attention on %s in %s, %d heads%s; a large product here: %.3g TFLOP/s\n\n",
           w->be->card != NULL ? w->be->card : w->be->name, a->dtype, (int)N_HEADS,
           a->is_any_card ? ", kernels for any card" : "", peak / 1e12);
    printf("%s%4s %4s %6s %-22s %7s  %25s  %25s  %8s%s\n", style.bold, "D", "B", "S", "mask",
           "tokens", "forward ms, TFLOP/s, %", "backward", "error", style.plain);
}

static void print_pass(const row *r, int pass) {
    double plain = tflops(r, pass, r->pass[pass].plain), replay = r->pass[pass].replay;
    printf("  %8.3f %6.3g %4.1f", r->pass[pass].plain * 1e3, plain, 1e14 * plain / r->peak);
    if (isnan(replay))
        printf("     ");
    else
        printf(" %5.0f", tflops(r, pass, replay));
}

static void print_text(const row *r) {
    const attn_shape *s = &r->p->shape;
    char mask[40];
    snprintf(mask, sizeof mask, "%s%s", attn_mask_kind_name(s->mask),
             s->is_jagged ? ", jagged" : "");
    printf("%4d %4d %6d %-22.22s %7lld", s->dim, s->n_sequences, s->max_len, mask,
           (long long)r->p->n_tokens);
    print_pass(r, 0);
    print_pass(r, 1);
    printf("  %8.1e\n", r->error);
    (void)fflush(stdout);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Well above what naive code of the type is off by, well below what a wrong index makes. */
static double allowed_error(act_type act) {
    return act == ACT_F32 ? 1e-3 : act == ACT_F16 ? 5e-3 : 3e-2;
}

static status measure(attn_problem *p, const bench_args *a, double peak) {
    row r = {.p = p, .peak = peak};
    if (a->is_any_card) p->a.n_rows_q = p->a.n_rows_k = 0;
    TRY(attn_problem_check(p, &r.error));
    if (!(r.error <= allowed_error(p->be->act)))
        return fail(ERR_NUMERIC,
                    "heads of %d numbers, sequences of %d, %s: the result is off by %.2g of its "
                    "largest number; nothing was timed",
                    p->shape.dim, p->shape.max_len, attn_mask_kind_name(p->shape.mask), r.error);
    for (int i = 0; i < 2; i++) {
        TRY(time_plain(p, i == 1, &r.pass[i].plain));
        TRY(time_replay(p, i == 1, &r.pass[i].replay));
    }
    if (a->is_json) return print_json(&r, a);
    print_text(&r);
    return OK;
}

/* What a forward pass costs at most, before anything is drawn. */
static double bound_flops(const attn_shape *s) {
    return 4.0 * s->n_heads * s->dim * s->n_sequences * (double)s->max_len * s->max_len / 2;
}

static status run_shapes(const bench_args *a, work *w) {
    double peak;
    int n_left_out = 0;
    bool is_gpu = w->be->n_ahead > 0;
    TRY(peak_measure(w->be, &peak));
    if (!a->is_json) print_heading(w, a, peak);
    for (int i = 0; i < N_SHAPES; i++) {
        attn_problem p;
        if (!is_gpu && bound_flops(&shapes[i]) > CPU_MAX_FLOPS) {
            n_left_out++;
            continue;
        }
        /* A recording knows nothing of other problems' memory. */
        TRY(w->be->ops->set_precision(w->be, w->be->act, false));
        status st = attn_problem_open(&p, w->be, &shapes[i], clock_ns());
        if (st == OK) st = measure(&p, a, peak);
        attn_problem_close(&p);
        TRY(st);
    }
    if (!a->is_json)
        printf("\nThe last number of a pass is TFLOP/s replayed from a recording of %d calls%s.\n",
               (int)REPLAYED, is_gpu ? "" : ", which only a GPU has");
    if (n_left_out > 0 && !a->is_json)
        printf("%d rows are for a GPU: they would take minutes here.\n", n_left_out);
    return OK;
}

static status find_dtype(const char *name, act_type *out) {
    static const char *const names[] = {
        [ACT_F32] = "float32", [ACT_BF16] = "bfloat16", [ACT_F16] = "float16"};
    for (int i = ACT_F32; i <= ACT_F16; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (act_type)i;
        return OK;
    }
    return fail(ERR_USAGE, "--dtype %.40s: the types are float32, bfloat16 and float16", name);
}

static status run(bench_args *a) {
    work w;
    act_type act = ACT_F32;
    TRY(find_dtype(a->dtype, &act));
    TRY(work_open(&w, NULL, a->device));
    status st = w.be->ops->set_precision(w.be, act, false);
    if (w.be->act == ACT_F32) a->dtype = "float32";
    if (st == OK) st = run_shapes(a, &w);
    work_close(&w);
    return st;
}

status bench_attention(int argc, char **argv) {
    bench_args a = {.device = "auto", .dtype = "bfloat16"};
    bool is_help;
    const arg_option options[] = {
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--dtype", ARG_TEXT, &a.dtype, "TYPE",
         "bfloat16 (default), float16 or float32; a CPU computes in float32.", 0, 0},
        {"--any-card", ARG_FLAG, &a.is_any_card, NULL,
         "On a GPU: the kernels for any card, not those for the one there is.", 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "Print one JSON object a row.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu bench attention [options]",
                           "Measures HSTU attention, forward and backward, at the shapes of the "
                           "field's table, after checking each against float64.",
                           options,
                           0,
                           0,
                           NULL};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    return st;
}
