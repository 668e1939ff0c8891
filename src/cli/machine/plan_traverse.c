/* hstu plan traverse: every plan of a range, checked and timed. */
#include <stdio.h>

#include "cli/json_line.h"
#include "cli/machine/plan.h"
#include "cli/machine/plan_args.h"
#include "cli/sink.h"
#include "cli/stop_signal.h"
#include "tune/plan_times.h"

typedef struct traverse_args {
    plan_args common;
    int64_t from, to, rounds;
    const char *out;
    bool is_json;
} traverse_args;

static void print_text(const traverse_args *a, const traverse_summary *s) {
    printf("%lld plans, %lld distinct programs, %lld wrong; largest error %.2e (allowed %.2e)\n",
           (long long)s->n_values, (long long)s->n_programs, (long long)s->n_failed,
           s->largest_error, s->allowed);
    if (a->rounds == 0 || s->n_failed == s->n_programs) return;
    char fastest[PLAN_BITS + 1], slowest[PLAN_BITS + 1];
    plan_bits(s->fastest.value, fastest);
    plan_bits(s->slowest.value, slowest);
    printf("fastest %d = %s  %.4f ms\nslowest %d = %s  %.4f ms\n", s->fastest.value, fastest,
           s->fastest.ms, s->slowest.value, slowest, s->slowest.ms);
    printf("median %.4f ms, slowest / fastest %.2f\n", s->median_ms, s->slowest.ms / s->fastest.ms);
}

static status print_json(const traverse_summary *s) {
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_int(w, "plans", s->n_values);
    json_key_int(w, "programs", s->n_programs);
    json_key_int(w, "wrong", s->n_failed);
    json_key_double(w, "largest_error", s->largest_error);
    json_key_double(w, "allowed", s->allowed);
    json_key_int(w, "fastest", s->fastest.value);
    json_key_double(w, "fastest_ms", s->fastest.ms);
    json_key_int(w, "slowest", s->slowest.value);
    json_key_double(w, "slowest_ms", s->slowest.ms);
    json_key_double(w, "median_ms", s->median_ms);
    return json_line_print(&line);
}

static status traverse_on(const plan_rig *g, const traverse_args *a) {
    traverse_summary s;
    buf what;
    buf_init(&what);
    status st = plan_rig_text(g, &a->common, &what);
    if (st == OK)
        st = buf_printf(&what, ", plans %lld to %lld, seed %lld", (long long)a->from,
                        (long long)a->to, (long long)a->common.seed);
    traverse_options o = {.from = (int32_t)a->from,
                          .to = (int32_t)a->to,
                          .rounds = (int)a->rounds,
                          .path = a->out,
                          .header = buf_str(&what),
                          .is_stopped = stop_signal_came};
    if (st == OK) st = traverse_run(g->r, &o, &s);
    buf_fini(&what);
    if (st != OK) return st;
    if (a->is_json)
        TRY(print_json(&s));
    else
        print_text(a, &s);
    return s.n_failed == 0 ? OK : fail(ERR_NUMERIC, "%.500s", s.failure);
}

status plan_traverse(int argc, char **argv) {
    traverse_args a = {.common = PLAN_ARGS, .to = PLAN_CODES, .rounds = 3};
    bool is_help;
    const arg_option options[] = {
        {"--from", ARG_INT, &a.from, "N", "First plan (default 0).", 0, PLAN_CODES - 1},
        {"--to", ARG_INT, &a.to, "N", "One after the last plan (default 65536).", 1, PLAN_CODES},
        {"--out", ARG_TEXT, &a.out, "FILE",
         "Where the lines BITS MS go; FILE.partial until all plans are done, from which an "
         "interrupted traversal "
         "continues.",
         0, 0},
        {"--rounds", ARG_INT, &a.rounds, "N",
         "Repetitions of a timing, whose median counts (default 3); 0 only checks.", 0, 64},
        PLAN_OPTIONS(&a.common),
        {"Output", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "The summary as one JSON object.", 0, 0},
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu plan traverse [--from N] [--to N] [--out FILE] [options]",
        .summary =
            "Runs every plan of a range, each distinct program once: checked against float64, "
            "then timed.",
        .options = options,
        .notes =
            "32768 to 49152 are all segmentations with the hand-written attention where it can "
            "act; 16384 to 24576 are plans without it, operators 1 and 2 apart."};
    TRY(args_parse(&spec, argc, argv, NULL, NULL, &is_help));
    if (is_help) return OK;
    TRY(sink_check_file("--out", a.out));
    if (a.from >= a.to)
        return fail(ERR_USAGE, "--from %lld is not before --to %lld", (long long)a.from,
                    (long long)a.to);
    plan_rig g;
    stop_signal_watch();
    status st = plan_rig_open(&g, &a.common);
    if (st == OK) st = traverse_on(&g, &a);
    plan_rig_close(&g);
    return st;
}
