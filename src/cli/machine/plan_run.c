/* hstu plan run: generates, compiles, runs, checks and times one plan. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/json_line.h"
#include "cli/machine/plan.h"
#include "cli/machine/plan_args.h"
#include "cli/show.h"
#include "tune/plan_file.h"
#include "tune/target.h"

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
    size_t n = strlen(text);
    if (n > 5 && strcmp(text + n - 5, ".json") == 0) return plan_file_read(out, text);
    TRY(plan_parse(text, &plan));
    out->value = (uint16_t)(a->wants_hand_written ? plan.value | 1u << 15 : plan.value);
    return OK;
}

static status measure_kernel(plan_runner *r, const plan_kernel *k, kernel_row *row) {
    row->k = k;
    plan_runner_cost(r, k, &row->bytes, &row->flops);
    TRY(plan_runner_facts(r, k, &row->facts, &row->blocks));
    if (k->from != TEMPLATE_HAND_WRITTEN) row->tile = plan_runner_tile_params(r, k->first, k->last);
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
    char text[32];
    human_bytes(text, sizeof text, peak->bytes_per_s);
    printf("        %.0f %% of %s/s of copies", 100 * bytes / peak->bytes_per_s, text);
    if (flops > 0 && peak->flop_per_s > 0)
        printf(", %.0f %% of %.0f GFLOP/s of products", 100 * flops / peak->flop_per_s,
               peak->flop_per_s * 1e-9);
    printf("\n");
}

static void print_row(const chain *c, const kernel_row *row, int number) {
    const plan_kernel *k = row->k;
    char bytes[32];
    human_bytes(bytes, sizeof bytes, row->bytes);
    printf("%6d  %2d-%-2d  %-23s", number, k->first + 1, k->last + 1, row_name(row));
    printf("%10.4f  %9s  %8.2f  %8.1f   ", row->ms, bytes, row->bytes / row->ms / 1e6,
           row->flops / row->ms / 1e6);
    for (int op = k->first; op <= k->last; op++)
        printf("%s%s", op > k->first ? " + " : "", c->op[op].name);
    printf("\n");
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

static void print_text(const plan_rig *g, const run_args *a, const run_result *r) {
    show_style style = show_stdout_style();
    char bytes[32];
    printf("\n%s%6s  %-5s  %-23s%10s  %9s  %8s  %8s   %s%s\n", style.bold, "kernel", "ops",
           "template", "ms", "bytes", "GB/s", "GFLOP/s", "computes", style.plain);
    for (int i = 0; i < r->program.n_kernels; i++)
        print_row(g->p->c, &r->row[i], i + 1);
    if (a->has_report) printf("\n");
    for (int i = 0; i < r->program.n_kernels && a->has_report; i++) {
        print_report(&r->row[i], i + 1);
        print_shares(&r->row[i], &r->peak);
    }
    human_bytes(bytes, sizeof bytes, r->bytes);
    printf("\ntime %.4f ms, %lld launches, %s, error %.2e (allowed %.2e)\n", r->ms,
           (long long)(r->program.n_kernels * a->layers), bytes, r->error.found, r->error.allowed);
}

static status print_line(const fusion_plan *p) {
    buf line;
    buf_init(&line);
    status st = plan_line(p, &line);
    if (st == OK) printf("%s\n", buf_str(&line));
    buf_fini(&line);
    return st;
}

static void write_row(json_writer *w, const run_args *a, const kernel_row *row,
                      const target_peak *peak) {
    const kernel_facts *f = &row->facts;
    json_object_open(w);
    json_key_int(w, "start", row->k->first + 1);
    json_key_int(w, "end", row->k->last + 1);
    json_key_string(w, "template", row_name(row));
    json_key_double(w, "ms", row->ms);
    json_key_double(w, "bytes", row->bytes);
    json_key_double(w, "flop", row->flops);
    if (a->has_report) {
        json_key_double(w, "share_of_copies", row->bytes / row->ms * 1e3 / peak->bytes_per_s);
        if (peak->flop_per_s > 0)
            json_key_double(w, "share_of_products", row->flops / row->ms * 1e3 / peak->flop_per_s);
    }
    if (row->tile.library != GENERATED) json_key_int(w, "library", row->tile.library);
    if (a->has_report && row->k->from != TEMPLATE_HAND_WRITTEN && row->tile.library == GENERATED) {
        json_key_int(w, "tile_m", row->tile.tile_m);
        json_key_int(w, "tile_n", row->tile.tile_n);
        json_key_int(w, "tile_k", row->tile.tile_k);
        json_key_int(w, "grid", row->blocks);
        json_key_int(w, "block", f->threads);
        json_key_int(w, "registers", f->registers);
        json_key_int(w, "shared_bytes", f->shared_bytes);
        json_key_int(w, "local_bytes", f->local_bytes);
        json_key_int(w, "blocks_per_sm", f->blocks_per_sm);
    }
    json_object_close(w);
}

static status print_json(const plan_rig *g, const run_args *a, const run_result *r) {
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_int(w, "value", r->program.plan.value);
    json_key_string(w, "layer", g->p->c->name);
    json_key_string(w, "device", g->t->name);
    json_key_int(w, "tokens", g->p->shape.n_tokens);
    json_key_double(w, "ms", r->ms);
    json_key_int(w, "launches", r->program.n_kernels * a->layers);
    json_key_double(w, "bytes", r->bytes);
    json_key_double(w, "error", r->error.found);
    json_key_double(w, "allowed", r->error.allowed);
    json_key(w, "kernels");
    json_array_open(w);
    for (int i = 0; i < r->program.n_kernels; i++)
        write_row(w, a, &r->row[i], &r->peak);
    json_array_close(w);
    return json_line_print(&line);
}

/* The layer, batch and mask that the plan of a file was found for. */
static void take_shape(plan_args *a, const plan_file *f) {
    a->layer = f->layer;
    if (f->mask[0] != '\0') a->mask = f->mask;
    if (f->n_sequences > 0) a->batch = f->n_sequences;
    if (f->max_len > 0) a->length = f->max_len;
    if (f->n_heads > 0) a->heads = f->n_heads;
    if (f->dim_head > 0) a->dim = f->dim_head;
    if (f->dim_ffn > 0) a->ffn = f->dim_ffn;
}

static status run(const run_args *a, const plan_file *file) {
    plan_rig g;
    run_result result;
    buf what;
    buf_init(&what);
    status st = plan_rig_open(&g, &a->common);
    if (st == OK && file->layer[0] != '\0') st = plan_file_apply(file, g.r);
    if (st == OK) st = measure(g.r, a, file->value, &result);
    if (st == OK && a->has_report) st = target_peak_measure(g.t, &result.peak);
    if (st == OK) st = plan_rig_text(&g, &a->common, &what);
    if (st == OK && a->is_json) st = print_json(&g, a, &result);
    if (st == OK && !a->is_json) {
        st = print_line(&result.program.plan);
        printf("%s\n", buf_str(&what));
        print_text(&g, a, &result);
    }
    plan_rig_close(&g);
    buf_fini(&what);
    return st;
}

status plan_run(int argc, char **argv) {
    run_args a = {.common = PLAN_ARGS, .layers = 1};
    plan_file file;
    const char *text = NULL;
    int n;
    bool is_help;
    const arg_option options[] = {
        {"--segments", ARG_TEXT, &a.segments, "LIST",
         "The fused segments instead of a plan's code: 1-2,3-4.", 0, 0},
        {"--hand-written", ARG_FLAG, &a.wants_hand_written, NULL, "Sets bit 0 of the plan.", 0, 0},
        {"--layers", ARG_INT, &a.layers, "L",
         "Layers one after the other (default 1): the time is that of L runs.", 1, 1000},
        PLAN_OPTIONS(&a.common),
        {"Output", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--report", ARG_FLAG, &a.has_report, NULL,
         "Tiles, grid, block, registers, shared memory and occupancy of each kernel, and its "
         "shares of "
         "the measured peaks of copies and products.",
         0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "One JSON object.", 0, 0},
        {0},
    };
    const arg_spec spec = {.usage = "hstu plan run VALUE|BITS|PLAN.json|--segments LIST [options]",
                           .summary = "Generates the kernels of a fusion plan, compiles them, runs "
                                      "them on random data, checks the result "
                                      "against float64 and prints the time.",
                           .options = options,
                           .max_positional = 1,
                           .notes = "PLAN.json also says the layer, batch, mask and tile "
                                    "parameters; options override it. On the CPU kernels are "
                                    "compiled by the system's C compiler "
                                    "(CC, cc, gcc or clang)."};
    TRY(args_parse(&spec, argc, argv, &text, &n, &is_help));
    if (is_help) return OK;
    TRY(read_plan(&a, n > 0 ? text : NULL, &file));
    if (file.layer[0] != '\0') { /* again, since options override what the file says */
        take_shape(&a.common, &file);
        TRY(args_parse(&spec, argc, argv, &text, &n, &is_help));
    }
    return run(&a, &file);
}
