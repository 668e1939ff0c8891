/* hstu plan: show, run or traverse fusion plans, one part each below. */
#include "cli/machine/plan.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "tune/emit.h"
#include "tune/plan_file.h"
#include "tune/plan_times.h"
#include "tune/target.h"

/* -1: the CPU; else the number of the GPU. */
static status read_device(const char *text, int *out) {
    char end;
    *out = strcmp(text, "cpu") == 0 ? -1 : 0;
    if (*out == -1 || strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0) return OK;
    if (sscanf(text, "cuda:%4d%c", out, &end) == 1 && isdigit((unsigned char)text[5])) return OK;
    return fail(ERR_USAGE, "--device %.60s: must be auto, cpu, cuda or cuda:N", text);
}

/* auto: a GPU if one can be used, else the CPU. */
static status open_target(plan_rig *g, const plan_args *a, const kernel_cache *cache) {
    act_type act = a->dtype >= 0 ? (act_type)a->dtype : ACT_F16;
    int device;
    bool is_auto = strcmp(a->device, "auto") == 0;
    TRY(read_device(a->device, &device));
    if (device >= 0) {
        status st = target_create_cuda(&g->t, device, act, cache);
        if (st == OK || !is_auto || st == ERR_NOMEM) return st;
    }
    if (a->dtype > ACT_F32) log_info("the CPU computes in float32, whatever --dtype says");
    return target_create_cpu(&g->t, g->workers, cache);
}

status plan_rig_open(plan_rig *g, const plan_args *a) {
    kernel_cache cache;
    const chain *c;
    const chain_shape *s = &a->shape;
    problem_options o = {.n_sequences = s->n_sequences,
                         .max_len = s->max_len,
                         .n_heads = s->n_heads,
                         .dim_head = s->dim_head,
                         .dim_ffn = s->dim_ffn == 4 * chain_dim(s) ? 0 : s->dim_ffn,
                         .avg_len = a->avg_len,
                         .seed = (uint64_t)a->seed};
    *g = (plan_rig){0};
    TRY(chain_find(a->layer, &c));
    TRY(mask_create(&g->rule, a->mask));
    o.rule = g->rule;
    TRY(chain_problem_check(c, &o)); /* first: wrong usage is told whatever the device does */
    TRY(pool_create_default(&g->workers));
    TRY(kernel_cache_open(&cache, a->cache));
    TRY(open_target(g, a, &cache));
    o.act = g->t->act;
    TRY(chain_problem_create(&g->p, c, &o));
    return plan_runner_create(&g->r, g->p, g->t, g->workers);
}

void plan_rig_close(plan_rig *g) {
    plan_runner_destroy(g->r);
    chain_problem_destroy(g->p);
    target_destroy(g->t);
    mask_destroy(g->rule);
    pool_destroy(g->workers);
    *g = (plan_rig){0};
}

const char *show_plan(uint16_t value) {
    char bits[PLAN_BITS + 1];
    plan_bits(value, bits);
    return show_printf("%s", bits);
}

/* "bert on cpu in float32: batch 8, length 128, 1024 tokens, 12 x 64, mask none" */
static const char *show_rig(const plan_rig *g, const plan_args *a) {
    const chain_shape *s = &g->p->shape;
    return show_printf("%s on %s in %s: batch %d, length %d, %lld tokens, %d x %d%s, mask %s",
                       g->p->c->name, g->t->name, work_dtypes[g->t->act], s->n_sequences,
                       s->max_len, (long long)s->n_tokens, s->n_heads, s->dim_head,
                       s->dim_ffn > 0 ? show_printf(", FFN %d", s->dim_ffn) : "", a->mask);
}

/* hstu plan show VALUE|BITS: what a fusion plan means for a layer. */

typedef struct show_args {
    plan_args layer;
    const char *svg;
    bool is_json, has_source, is_cuda;
} show_args;

/* "gemm0 + bias0" */
static const char *show_operators(const chain *c, const plan_kernel *k) {
    const char *text = c->op[k->first].name;
    for (int op = k->first + 1; op <= k->last; op++)
        text = show_printf("%s + %s", text, c->op[op].name);
    return text;
}

static void print_kernels(const chain *c, const plan_program *p) {
    show_style style = show_stdout_style();
    printf("\n%s%6s  %-9s  %-24s%s%s\n", style.bold, "kernel", "operators", "template", "computes",
           style.plain);
    for (int i = 0; i < p->n_kernels; i++) {
        const plan_kernel *k = &p->kernel[i];
        const char *range = k->first == k->last
                                ? show_printf("%-11d", k->first + 1)
                                : show_printf("%2d-%-8d", k->first + 1, k->last + 1);
        printf("%6d  %s%-24s%s\n", i + 1, range, template_name(k->from), show_operators(c, k));
    }
}

/* Which segments are kernels as they are, and which are cut, where and why. */
static void print_segments(const plan_program *p) {
    for (int s = 0; s < p->plan.n_segments; s++) {
        const plan_segment *segment = &p->plan.segment[s];
        int n = 0;
        for (int i = 0; i < p->n_kernels; i++)
            n += p->kernel[i].segment == s;
        printf("%sSegment %d-%d is ", s == 0 ? "\n" : "", segment->first + 1, segment->last + 1);
        printf(n == 1 ? "legal: one kernel.\n" : "illegal: split into %d kernels.\n", n);
        for (int i = 0; i < p->n_kernels; i++)
            if (p->kernel[i].segment == s && p->kernel[i].why[0] != '\0')
                printf("  after operator %d: %s\n", p->kernel[i].last + 1, p->kernel[i].why);
    }
}

static void print_codes(const chain *c, const plan_program *p) {
    uint16_t value = p->plan.value, canonical = plan_canonical(c, value);
    printf("\nBits %s, canonical %d = %s.\n", show_plan(value), canonical, show_plan(canonical));
    if (p->plan.wants_hand_written && !plan_uses_hand_written(c, value))
        printf("Bit 0 has no effect: no segment is exactly the attention, operators %d-%d.\n",
               c->attention_first + 1, c->attention_last + 1);
}

static status print_line(const fusion_plan *p) {
    buf line = {0};
    status st = plan_line(p, &line);
    if (st == OK) printf("%s\n", buf_str(&line));
    buf_fini(&line);
    return st;
}

static status print_text(const chain *c, const plan_program *p) {
    TRY(print_line(&p->plan));
    print_kernels(c, p);
    print_segments(p);
    print_codes(c, p);
    return OK;
}

static void write_kernel(json_writer *w, const chain *c, const plan_kernel *k) {
    json_object_open(w);
    JSON_FIELDS(w, FIELD("start", k->first + 1), FIELD("end", k->last + 1),
                FIELD("template", template_name(k->from)));
    json_key_array(w, "operators");
    for (int op = k->first; op <= k->last; op++)
        json_string(w, c->op[op].name);
    json_array_close(w);
    if (k->why[0] != '\0') json_key_string(w, "split_after", k->why);
    json_object_close(w);
}

static status print_json(const chain *c, const plan_program *p) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("value", p->plan.value), FIELD("bits", show_plan(p->plan.value)),
                FIELD("canonical", plan_canonical(c, p->plan.value)), FIELD("layer", c->name),
                FIELD("bit0", p->plan.wants_hand_written),
                FIELD("hand_written", plan_uses_hand_written(c, p->plan.value)));
    json_key_array(w, "segments");
    for (int i = 0; i < p->plan.n_segments; i++) {
        json_array_open(w);
        json_int(w, p->plan.segment[i].first + 1);
        json_int(w, p->plan.segment[i].last + 1);
        json_array_close(w);
    }
    json_array_close(w);
    json_key_array(w, "kernels");
    for (int i = 0; i < p->n_kernels; i++)
        write_kernel(w, c, &p->kernel[i]);
    json_array_close(w);
    return json_line_print();
}

/* The generated code of every kernel, with the default tile parameters. */
static status print_source(const show_args *a, const chain *c, const chain_shape *shape,
                           const plan_program *p) {
    for (int i = 0; i < p->n_kernels; i++) {
        const plan_kernel *k = &p->kernel[i];
        kernel_spec s = {.c = c,
                         .shape = *shape,
                         .first = k->first,
                         .last = k->last,
                         .from = k->from,
                         .attend = ATTEND_CAUSAL,
                         .act = a->is_cuda ? ACT_F16 : ACT_F32,
                         .is_cuda = a->is_cuda};
        tile_params tiles[EMIT_MAX_TILES];
        int n;
        buf source = {0};
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        status st = emit_tiles(&s, tiles, &n);
        s.tile = tiles[0];
        if (st == OK) st = emit_kernel(&s, &source, NULL);
        if (st == OK) printf("%s%s", i > 0 ? "\n" : "", buf_str(&source));
        buf_fini(&source);
        if (st != OK) return st;
    }
    return OK;
}

static status save_svg(const chain *c, const plan_program *p, const char *path) {
    buf svg = {0};
    sink s;
    status st = plan_draw(c, p, &svg);
    if (st == OK) st = sink_open(&s, path);
    if (st == OK) st = sink_close(&s, sink_write(&s, buf_str(&svg), svg.n_bytes));
    buf_fini(&svg);
    return st;
}

static status show(const show_args *a, const char *text) {
    const chain *c;
    fusion_plan plan;
    plan_program p;
    chain_shape shape = a->layer.shape;
    shape.n_tokens = shape.max_len;
    TRY(chain_find(a->layer.layer, &c));
    TRY(plan_parse(text, &plan));
    plan_lower(c, &shape, plan.value, &p);
    if (a->svg != NULL) TRY(save_svg(c, &p, a->svg));
    if (a->svg != NULL && strcmp(a->svg, "-") == 0) return OK;
    if (a->has_source) return print_source(a, c, &shape, &p);
    return a->is_json ? print_json(c, &p) : print_text(c, &p);
}

static status plan_show(int argc, char **argv) {
    show_args a = {.layer = PLAN_ARGS};
    const char *text;
    const arg_option options[] = {
        PLAN_LAYER_OPTIONS(&a.layer),
        OPT_TEXT("--svg", &a.svg, "FILE",
                 "Write an SVG picture; - is stdout, without other output."),
        OPT_FLAG("--source", &a.has_source,
                 "Print the generated code of its kernels instead, for a causal mask: C, or CUDA "
                 "with --cuda."),
        OPT_FLAG("--cuda", &a.is_cuda, "Print CUDA code for float16 (with --source)."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu plan show VALUE|BITS [options]",
        .summary =
            "Show the kernels of a fusion plan, given as a value from 0 to 65535 or as 16 bits.",
        .options = options,
        .min_positional = 1,
        .notes = "The first line is VALUE BIT0 SEGMENTS START END ..., with operators counted from "
                 "1. docs/plans.md explains plans."};
    ARGS_PARSE(&spec, &text, NULL);
    return show(&a, text);
}

/* hstu plan run: generates, compiles, runs, checks and times one plan. */

enum { ROUNDS = 9 };

typedef struct run_args {
    plan_args common;
    const char *segments;
    int64_t layers;
    bool wants_hand_written, has_report, is_json;
} run_args;

typedef struct kernel_row {
    const plan_kernel *k;
    double ms, bytes, flops;
    int64_t blocks;
    kernel_facts facts;
    tile_params tile;
} kernel_row;

typedef struct run_result {
    plan_program program;
    plan_error error;
    double ms, bytes;
    kernel_row row[CHAIN_OPS];
    target_peak peak; /* of --report */
} run_result;

/* A code, segments, or the file of a tuned plan. */
static status read_plan(const run_args *a, const char *text, plan_file *out) {
    fusion_plan plan;
    *out = (plan_file){0};
    if (text == NULL && a->segments == NULL)
        return fail(ERR_USAGE,
                    "give a plan: a value, 16 bits, a file of 'hstu tune --out', or --segments");
    if (text != NULL && a->segments != NULL)
        return fail(ERR_USAGE, "'%.40s' and --segments are two plans; give one", text);
    if (text == NULL) return plan_from_segments(a->segments, a->wants_hand_written, &out->value);
    if (text_ends_with(text, ".json")) return plan_file_read(out, text);
    TRY(plan_parse(text, &plan));
    out->value = (uint16_t)(a->wants_hand_written ? plan.value | 1u << 15 : plan.value);
    return OK;
}

static status measure_kernel(plan_runner *r, const plan_kernel *k, kernel_row *row) {
    runner_kernel *own;
    row->k = k;
    plan_runner_cost(r, k, &row->bytes, &row->flops);
    TRY(plan_runner_facts(r, k, &row->facts, &row->blocks));
    if (k->from != TEMPLATE_HAND_WRITTEN) {
        TRY(plan_runner_kernel(r, k->first, k->last, &own));
        row->tile = own->params[own->tile];
    }
    return plan_runner_time_kernel(r, k, ROUNDS, &row->ms);
}

static status measure(plan_runner *r, const run_args *a, uint16_t value, run_result *out) {
    *out = (run_result){0};
    plan_runner_lower(r, value, &out->program);
    TRY(plan_runner_prepare(r, &value, 1));
    TRY(plan_runner_check(r, value, &out->error));
    TRY(plan_runner_time(r, value, ROUNDS, &out->ms));
    out->ms *= (double)a->layers;
    for (int i = 0; i < out->program.n_kernels; i++) {
        TRY(measure_kernel(r, &out->program.kernel[i], &out->row[i]));
        out->bytes += out->row[i].bytes * (double)a->layers;
    }
    return OK;
}

static const char *row_name(const kernel_row *row) {
    return row->tile.library != GENERATED ? "op of the backend" : template_name(row->k->from);
}

/* "  71 % of 4.1 TB/s of copies, 12 % of 700000 GFLOP/s of products" */
static void print_shares(const kernel_row *row, const target_peak *peak) {
    double bytes = row->bytes / row->ms * 1e3, flops = row->flops / row->ms * 1e3;
    if (peak->bytes_per_s <= 0) return;
    printf("        %.0f %% of %s/s of copies", 100 * bytes / peak->bytes_per_s,
           show_bytes(peak->bytes_per_s));
    if (flops > 0)
        printf(", %.0f %% of %.0f GFLOP/s of products", 100 * flops / peak->flop_per_s,
               peak->flop_per_s * 1e-9);
    printf("\n");
}

static void print_row(const chain *c, const kernel_row *row, int number) {
    const plan_kernel *k = row->k;
    printf("%6d  %2d-%-2d  %-23s", number, k->first + 1, k->last + 1, row_name(row));
    printf("%10.4f  %9s  %8.2f  %8.1f   %s\n", row->ms, show_bytes(row->bytes),
           row->bytes / row->ms / 1e6, row->flops / row->ms / 1e6, show_operators(c, k));
}

/* What a profiler says of a launch, as far as the compiler and the driver know it. */
static void print_report(const kernel_row *row, int number) {
    const kernel_facts *f = &row->facts;
    if (row->k->from == TEMPLATE_HAND_WRITTEN) {
        printf("%6d  hand-written\n", number);
        return;
    }
    if (row->tile.library != GENERATED) {
        printf("%6d  an op of the backend, rank %d%s\n", number, row->tile.rank,
               row->tile.library == LIBRARY_FAST_GELU ? ", gelu by tanh in its epilogue" : "");
        return;
    }
    printf("%6d  tile %d x %d x %d, %lld blocks", number, row->tile.tile_m, row->tile.tile_n,
           row->tile.tile_k, (long long)row->blocks);
    if (f->max_warps_per_sm == 0) {
        printf(" of C code\n");
        return;
    }
    int warps = f->blocks_per_sm * f->threads / 32;
    printf(" of %d threads, %d registers, shared memory %lld + %lld B, local %lld B\n", f->threads,
           f->registers, (long long)f->static_shared_bytes, (long long)f->shared_bytes,
           (long long)f->local_bytes);
    printf("        occupancy %d of %d warps (%.0f %%), limited by %s\n", warps,
           f->max_warps_per_sm, 100.0 * warps / f->max_warps_per_sm, f->limited_by);
}

static void print_run_text(const plan_rig *g, const run_args *a, const run_result *r) {
    show_style style = show_stdout_style();
    printf("\n%s%6s  %-5s  %-23s%10s  %9s  %8s  %8s   %s%s\n", style.bold, "kernel", "ops",
           "template", "ms", "bytes", "GB/s", "GFLOP/s", "computes", style.plain);
    for (int i = 0; i < r->program.n_kernels; i++)
        print_row(g->p->c, &r->row[i], i + 1);
    if (a->has_report) printf("\n");
    for (int i = 0; i < r->program.n_kernels && a->has_report; i++) {
        print_report(&r->row[i], i + 1);
        print_shares(&r->row[i], &r->peak);
    }
    printf("\ntime %.4f ms, %lld launches, %s, error %.2e (allowed %.2e)\n", r->ms,
           (long long)(r->program.n_kernels * a->layers), show_bytes(r->bytes), r->error.found,
           r->error.allowed);
}

static void write_row(json_writer *w, const run_args *a, const kernel_row *row,
                      const target_peak *peak) {
    const kernel_facts *f = &row->facts;
    json_object_open(w);
    JSON_FIELDS(w, FIELD("start", row->k->first + 1), FIELD("end", row->k->last + 1),
                FIELD("template", row_name(row)), FIELD("ms", row->ms), FIELD("bytes", row->bytes),
                FIELD("flop", row->flops));
    if (a->has_report && peak->bytes_per_s > 0)
        JSON_FIELDS(w, FIELD("share_of_copies", row->bytes / row->ms * 1e3 / peak->bytes_per_s),
                    FIELD("share_of_products", row->flops / row->ms * 1e3 / peak->flop_per_s));
    if (row->tile.library != GENERATED) json_key_int(w, "library", row->tile.library);
    if (a->has_report && row->k->from != TEMPLATE_HAND_WRITTEN && row->tile.library == GENERATED) {
        JSON_FIELDS(w, FIELD("tile_m", row->tile.tile_m), FIELD("tile_n", row->tile.tile_n),
                    FIELD("tile_k", row->tile.tile_k), FIELD("grid", row->blocks),
                    FIELD("block", f->threads), FIELD("registers", f->registers),
                    FIELD("shared_bytes", f->shared_bytes), FIELD("local_bytes", f->local_bytes),
                    FIELD("blocks_per_sm", f->blocks_per_sm));
    }
    json_object_close(w);
}

static status print_run_json(const plan_rig *g, const run_args *a, const run_result *r) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("value", r->program.plan.value), FIELD("layer", g->p->c->name),
                FIELD("device", g->t->name), FIELD("tokens", g->p->shape.n_tokens),
                FIELD("ms", r->ms), FIELD("launches", r->program.n_kernels * a->layers),
                FIELD("bytes", r->bytes), FIELD("error", r->error.found),
                FIELD("allowed", r->error.allowed));
    json_key_array(w, "kernels");
    for (int i = 0; i < r->program.n_kernels; i++)
        write_row(w, a, &r->row[i], &r->peak);
    json_array_close(w);
    return json_line_print();
}

/* The layer, batch and mask that the plan of a file was found for. */
static void take_shape(plan_args *a, const plan_file *f) {
    a->layer = f->layer;
    if (f->mask[0] != '\0') a->mask = f->mask;
    if (f->n_sequences > 0) a->shape.n_sequences = f->n_sequences;
    if (f->max_len > 0) a->shape.max_len = f->max_len;
    if (f->n_heads > 0) a->shape.n_heads = f->n_heads;
    if (f->dim_head > 0) a->shape.dim_head = f->dim_head;
    if (f->dim_ffn > 0) a->shape.dim_ffn = f->dim_ffn;
}

static status run(const run_args *a, const plan_file *file) {
    plan_rig g;
    run_result result;
    status st = plan_rig_open(&g, &a->common);
    if (st == OK && file->layer[0] != '\0') st = plan_file_apply(file, g.r);
    if (st == OK) st = measure(g.r, a, file->value, &result);
    if (st == OK && a->has_report) st = target_peak_measure(g.t, &result.peak);
    if (st == OK && a->is_json) st = print_run_json(&g, a, &result);
    if (st == OK && !a->is_json) {
        st = print_line(&result.program.plan);
        printf("%s\n", show_rig(&g, &a->common));
        print_run_text(&g, a, &result);
    }
    plan_rig_close(&g);
    return st;
}

static status plan_run(int argc, char **argv) {
    run_args a = {.common = PLAN_ARGS, .layers = 1};
    plan_file file;
    const char *text = NULL;
    const arg_option options[] = {
        OPT_TEXT("--segments", &a.segments, "LIST",
                 "Fused segments, as in 1-2,3-4, instead of a plan's code."),
        OPT_FLAG("--hand-written", &a.wants_hand_written, "Set bit 0 of the plan."),
        OPT_INT("--layers", &a.layers, "L", 1, 1000,
                "Run L layers in sequence (default 1); the time is that of all of them."),
        PLAN_OPTIONS(&a.common),
        OPT_GROUP("Output"),
        OPT_FLAG("--report", &a.has_report,
                 "Print tiles, grid, block, registers, shared memory and occupancy of each kernel, "
                 "and its shares of the measured peak bandwidth and FLOP/s."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu plan run VALUE|BITS|PLAN.json|--segments LIST [options]",
        .summary = "Generate, compile and run the kernels of a fusion plan on random data, check "
                   "the result against float64, and print the time.",
        .options = options,
        .max_positional = 1,
        .notes =
            "PLAN.json also sets the layer, batch, mask and tile parameters; options override it. "
            "On the CPU, kernels are compiled by the system's C compiler (CC, cc, gcc or clang)."};
    ARGS_PARSE(&spec, &text, NULL);
    TRY(read_plan(&a, text, &file));
    if (file.layer[0] != '\0') { /* again, since options override what the file says */
        take_shape(&a.common, &file);
        ARGS_PARSE(&spec, &text, NULL);
    }
    return run(&a, &file);
}

/* hstu plan traverse: every plan of a range, checked and timed. */

typedef struct traverse_args {
    plan_args common;
    traverse_options o;
    bool is_json;
} traverse_args;

static void print_traverse_text(const traverse_args *a, const traverse_summary *s) {
    printf("%lld plans, %lld distinct programs, %lld wrong; largest error %.2e (allowed %.2e)\n",
           (long long)s->n_values, (long long)s->n_programs, (long long)s->n_failed,
           s->largest_error, s->allowed);
    if (a->o.rounds == 0 || s->n_failed == s->n_programs) return;
    printf("fastest %d = %s  %.4f ms\nslowest %d = %s  %.4f ms\n", s->fastest.value,
           show_plan(s->fastest.value), s->fastest.ms, s->slowest.value,
           show_plan(s->slowest.value), s->slowest.ms);
    printf("median %.4f ms, slowest / fastest %.2f\n", s->median_ms, s->slowest.ms / s->fastest.ms);
}

static status print_traverse_json(const traverse_summary *s) {
    return JSON_LINE(FIELD("plans", s->n_values), FIELD("programs", s->n_programs),
                     FIELD("wrong", s->n_failed), FIELD("largest_error", s->largest_error),
                     FIELD("allowed", s->allowed), FIELD("fastest", s->fastest.value),
                     FIELD("fastest_ms", s->fastest.ms), FIELD("slowest", s->slowest.value),
                     FIELD("slowest_ms", s->slowest.ms), FIELD("median_ms", s->median_ms));
}

static status traverse_on(const plan_rig *g, traverse_args *a) {
    traverse_summary s;
    a->o.header = show_printf("%s, plans %d to %d, seed %lld", show_rig(g, &a->common), a->o.from,
                              a->o.to, (long long)a->common.seed);
    TRY(traverse_run(g->r, &a->o, &s));
    if (a->is_json)
        TRY(print_traverse_json(&s));
    else
        print_traverse_text(a, &s);
    return s.n_failed == 0 ? OK : fail(ERR_NUMERIC, "%.500s", s.failure);
}

static status plan_traverse(int argc, char **argv) {
    traverse_args a = {.common = PLAN_ARGS,
                       .o = {.to = PLAN_CODES, .rounds = 3, .is_stopped = stop_signal_came}};
    const arg_option options[] = {
        OPT_INT("--from", &a.o.from, "N", 0, PLAN_CODES - 1, "First plan (default 0)."),
        OPT_INT("--to", &a.o.to, "N", 1, PLAN_CODES, "One past the last plan (default 65536)."),
        OPT_TEXT("--out", &a.o.path, "FILE",
                 "Write lines BITS MS to FILE; FILE.partial holds them until all plans are done, "
                 "and an interrupted traversal resumes from it."),
        OPT_INT(
            "--rounds", &a.o.rounds, "N", 0, 64,
            "Repetitions of each timing, of which the median counts (default 3); 0 only checks."),
        PLAN_OPTIONS(&a.common),
        OPT_GROUP("Output"),
        OPT_FLAG("--json", &a.is_json, "Print the summary as one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu plan traverse [--from N] [--to N] [--out FILE] [options]",
        .summary = "Run every plan of a range, each distinct program once: check it against "
                   "float64, then time it.",
        .options = options,
        .notes = "32768 to 49152 are all segmentations with the hand-written attention where it "
                 "applies; 16384 to 24576 are plans without it, with operators 1 and 2 apart."};
    ARGS_PARSE(&spec, NULL, NULL);
    TRY(sink_check_file("--out", a.o.path));
    if (a.o.from >= a.o.to)
        return fail(ERR_USAGE, "--from %d is not before --to %d", a.o.from, a.o.to);
    plan_rig g;
    stop_signal_watch();
    status st = plan_rig_open(&g, &a.common);
    if (st == OK) st = traverse_on(&g, &a);
    plan_rig_close(&g);
    return st;
}

const command plan_commands[] = {
    {"show", plan_show, "show the kernels of a fusion plan"},
    {"run", plan_run, "compile, run, check and time a plan"},
    {"traverse", plan_traverse, "run every plan of a range"},
    {0},
};

status cmd_plan(int argc, char **argv) {
    return run_subcommand(
        "plan", "A fusion plan says which neighbouring operators of a layer run as one kernel.",
        plan_commands, argc, argv);
}
