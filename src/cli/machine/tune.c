/* hstu tune: searches for the fastest fusion plan, prints it and keeps it. */
#include "cli/cli.h"
#include "cli/machine/plan.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/work.h"
#include "tune/encoder_plan.h"
#include "tune/plan_file.h"
#include "tune/search.h"

enum { ROUNDS = 3, CHECKS = 150 };

typedef struct tune_args {
    plan_args common;
    const char *out;
    search_options search;
    bool is_json;
} tune_args;

/* What plans run on, and where the found one goes. */
typedef struct tuner {
    plan_rig rig;
    const chain *c;
    plan_file key; /* what plans are kept for */
    out_file *out; /* of --out: opened first, since a search may take long; or NULL */
} tuner;

/* PLAN.json, but for its tiles. */
static void write_plan(json_writer *w, const tuner *s, const search_result *r) {
    const chain_shape *shape = &s->rig.p->shape;
    char bits[PLAN_BITS + 1];
    plan_bits(r->found.value, bits);
    JSON_FIELDS(w, FIELD("kind", "hstu fusion plan"), FIELD("version", 1),
                FIELD("layer", s->c->name), FIELD("value", r->found.value), FIELD("bits", bits),
                FIELD("ms", r->found.ms), FIELD("search", "exact"), FIELD("measured", r->n_timed),
                FIELD("mask", s->key.mask), FIELD("batch", shape->n_sequences),
                FIELD("length", shape->max_len), FIELD("heads", shape->n_heads),
                FIELD("dim", shape->dim_head));
    if (s->key.dim_ffn > 0) json_key_int(w, "ffn", s->key.dim_ffn);
    JSON_FIELDS(w, FIELD("device", s->rig.t->name), FIELD("arch", s->key.arch),
                FIELD("tokens", shape->n_tokens), FIELD("dtype", work_dtypes[s->rig.t->act]),
                FIELD("segments", r->n_segments), FIELD("predicted_ms", r->predicted_ms),
                FIELD("r2", r->r2), FIELD("rank", r->position), FIELD("checked", r->n_checked),
                FIELD("unfused_ms", r->unfused_ms), KNOWN("hand_fused_ms", r->hand_fused_ms),
                FIELD("seconds", r->seconds));
}

static void write_tile(json_writer *w, const tile_params *t) {
    if (t->library != GENERATED) {
        json_key_int(w, "library", t->library);
        json_key_int(w, "rank", t->rank);
        return;
    }
    JSON_FIELDS(w, FIELD("m", t->tile_m), FIELD("n", t->tile_n), FIELD("k", t->tile_k),
                FIELD("warps_m", t->warps_m), FIELD("warps_n", t->warps_n));
}

/* The tile parameters of each kernel of the plan. */
static void write_tiles(json_writer *w, const tuner *s, uint16_t value) {
    plan_program p;
    plan_runner_lower(s->rig.r, value, &p);
    json_key_array(w, "tiles");
    for (int i = 0; i < p.n_kernels; i++) {
        const plan_kernel *k = &p.kernel[i];
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        tile_params t = plan_runner_tile_params(s->rig.r, k->first, k->last);
        json_object_open(w);
        json_key_int(w, "start", k->first + 1);
        json_key_int(w, "end", k->last + 1);
        write_tile(w, &t);
        json_object_close(w);
    }
    json_array_close(w);
}

static status plan_text(const tuner *s, const search_result *r, buf *out) {
    json_writer w;
    json_begin_object(&w, out, 2);
    write_plan(&w, s, r);
    write_tiles(&w, s, r->found.value);
    TRY(json_finish_sealed(&w));
    return buf_text(out, "\n");
}

static status save_plan(tuner *s, const buf *text) {
    out_file *file = s->out;
    if (file == NULL) return OK;
    TRY(out_file_write(file, buf_str(text), text->n_bytes));
    s->out = NULL;
    return out_file_commit(file);
}

/* Plans of other layers than BERT are for people; an encoder must be able to run one of BERT. */
static bool is_worth_keeping(const tuner *s, const tune_args *a, uint16_t value) {
    plan_program p;
    if (s->c != chain_of(CHAIN_BERT)) return true;
    plan_runner_lower(s->rig.r, value, &p);
    if (encoder_plan_check(s->c, s->rig.p->attend, &p) == OK) return true;
    if (!a->is_json) printf("not kept for 'hstu encode --plan auto': %s\n", status_reason());
    return false;
}

/* Where `hstu encode --plan auto` finds it. */
static status store_plan(const tuner *s, const tune_args *a, const plan_time *found,
                         const buf *text) {
    plan_store store;
    plan_file key = s->key;
    char path[4096];
    bool is_kept, is_bert = s->c == chain_of(CHAIN_BERT);
    if (!is_worth_keeping(s, a, found->value)) return OK;
    key.ms = found->ms;
    TRY(plan_store_open(&store, a->common.cache));
    TRY(plan_store_put(&store, &key, text, &is_kept, path));
    if (a->is_json) return OK;
    if (is_kept)
        printf("kept%s: %s\n", is_bert ? " for 'hstu encode --plan auto'" : "", path);
    else
        printf("a faster plan is kept already: %s\n", path);
    return OK;
}

static status keep_plan(tuner *s, const tune_args *a, const search_result *r) {
    buf text = {0};
    status st = plan_text(s, r, &text);
    if (st == OK) st = save_plan(s, &text);
    if (st == OK) st = store_plan(s, a, &r->found, &text);
    buf_fini(&text);
    return st;
}

static void print_text(const search_result *r) {
    char bits[PLAN_BITS + 1];
    plan_bits(r->found.value, bits);
    printf("plan %d = %s, %.4f ms, after %d measurements\n", r->found.value, bits, r->found.ms,
           r->n_timed);
    printf("%d legal segments, %d timings with their tile parameters in %.1f s; sum of the kernels "
           "%.4f ms\n",
           r->n_segments, r->n_timed, r->seconds, r->predicted_ms);
    printf("unfused %.4f ms: %.2f times\n", r->unfused_ms, r->unfused_ms / r->found.ms);
    if (!isnan(r->hand_fused_ms))
        printf("fused by hand %.4f ms: %.3f times\n", r->hand_fused_ms,
               r->hand_fused_ms / r->found.ms);
    if (r->n_checked > 0)
        printf("%d random plans: R^2 of the sums %.4f; the found plan is number %d of %d\n",
               r->n_checked, r->r2, r->position, r->n_checked + 1);
}

static status tune(tuner *s, const tune_args *a) {
    search_result r;
    TRY(chain_find(a->common.layer, &s->c));
    TRY(plan_rig_open(&s->rig, &a->common));
    plan_file_key(&s->key, s->rig.t, s->c, &s->rig.p->shape, s->rig.rule, a->common.mask);
    TRY(search_run(s->rig.r, &a->search, &r));
    if (!a->is_json) print_text(&r);
    TRY(keep_plan(s, a, &r));
    if (a->is_json) {
        write_plan(json_line_open(), s, &r);
        return json_line_print();
    }
    if (a->out != NULL) printf("kept as %s\n", a->out);
    return OK;
}

static status run(const tune_args *a) {
    tuner s = {0};
    TRY(sink_check_file("--out", a->out));
    status st = a->out != NULL ? out_file_create(&s.out, a->out) : OK;
    if (st == OK) st = tune(&s, a);
    out_file_abandon(s.out);
    plan_rig_close(&s.rig);
    return st;
}

status cmd_tune(int argc, char **argv) {
    tune_args a = {
        .common = PLAN_ARGS,
        .search = {
            .rounds = ROUNDS, .n_checks = CHECKS, .seed = 1, .is_stopped = stop_signal_came}};
    const arg_option options[] = {
        OPT_TEXT("--out", &a.out, "FILE", "Write the plan, with its tile parameters, as JSON."),
        OPT_INT("--checks", &a.search.n_checks, "N", 0, PLAN_PROGRAMS,
                "Random whole plans to time, to see how additive times are (default 150)."),
        OPT_INT("--search-seed", &a.search.seed, "N", 0, INT64_MAX,
                "Seed of these random plans (default 1)."),
        PLAN_OPTIONS(&a.common),
        OPT_GROUP("Output"),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu tune [--out FILE] [options]",
        .summary = "Search for the fastest fusion plan for a layer, batch, mask and device.",
        .options = options,
        .notes = "docs/plans.md explains the search."};
    ARGS_PARSE(&spec, NULL, NULL);
    stop_signal_watch();
    return run(&a);
}
