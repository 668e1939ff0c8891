/* hstu plan show VALUE|BITS: what a fusion plan means for a layer. */
#include <stdio.h>
#include <string.h>

#include "cli/json_line.h"
#include "cli/machine/plan.h"
#include "cli/show.h"
#include "cli/sink.h"
#include "tune/emit.h"

typedef struct show_args {
    plan_layer_args layer;
    const char *svg;
    bool is_json, has_source, is_cuda;
} show_args;

/* "gemm0 + bias0" */
static status write_names(const chain *c, const plan_kernel *k, buf *out) {
    for (int op = k->first; op <= k->last; op++)
        TRY(buf_printf(out, "%s%s", op > k->first ? " + " : "", c->op[op].name));
    return OK;
}

static void print_operators(const plan_kernel *k) {
    if (k->first == k->last)
        printf("  %-11d", k->first + 1);
    else
        printf("  %2d-%-8d", k->first + 1, k->last + 1);
}

static status print_kernels(const chain *c, const plan_program *p) {
    show_style style = show_stdout_style();
    buf names;
    buf_init(&names);
    printf("\n%s%6s  %-9s  %-24s%s%s\n", style.bold, "kernel", "operators", "template", "computes",
           style.plain);
    status st = OK;
    for (int i = 0; i < p->n_kernels && st == OK; i++) {
        const plan_kernel *k = &p->kernel[i];
        buf_clear(&names);
        st = write_names(c, k, &names);
        printf("%6d", i + 1);
        print_operators(k);
        printf("%-24s%s\n", template_name(k->from), buf_str(&names));
    }
    buf_fini(&names);
    return st;
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
    char bits[PLAN_BITS + 1], canonical_bits[PLAN_BITS + 1];
    plan_bits(value, bits);
    plan_bits(canonical, canonical_bits);
    printf("\nBits %s, canonical %d = %s.\n", bits, canonical, canonical_bits);
    if (p->plan.wants_hand_written && !plan_uses_hand_written(c, value))
        printf("Bit 0 has no effect: no segment is exactly the attention, operators %d-%d.\n",
               c->attention_first + 1, c->attention_last + 1);
}

static status print_text(const chain *c, const plan_program *p) {
    buf line;
    buf_init(&line);
    status st = plan_line(&p->plan, &line);
    if (st == OK) printf("%s\n", buf_str(&line));
    buf_fini(&line);
    if (st == OK) st = print_kernels(c, p);
    if (st != OK) return st;
    print_segments(p);
    print_codes(c, p);
    return OK;
}

static void write_kernel(json_writer *w, const chain *c, const plan_kernel *k) {
    json_object_open(w);
    json_key_int(w, "start", k->first + 1);
    json_key_int(w, "end", k->last + 1);
    json_key_string(w, "template", template_name(k->from));
    json_key(w, "operators");
    json_array_open(w);
    for (int op = k->first; op <= k->last; op++)
        json_string(w, c->op[op].name);
    json_array_close(w);
    if (k->why[0] != '\0') json_key_string(w, "split_after", k->why);
    json_object_close(w);
}

static status print_json(const chain *c, const plan_program *p) {
    json_line line;
    char bits[PLAN_BITS + 1];
    json_writer *w = json_line_open(&line);
    plan_bits(p->plan.value, bits);
    json_key_int(w, "value", p->plan.value);
    json_key_string(w, "bits", bits);
    json_key_int(w, "canonical", plan_canonical(c, p->plan.value));
    json_key_string(w, "layer", c->name);
    json_key_bool(w, "bit0", p->plan.wants_hand_written);
    json_key_bool(w, "hand_written", plan_uses_hand_written(c, p->plan.value));
    json_key(w, "segments");
    json_array_open(w);
    for (int i = 0; i < p->plan.n_segments; i++) {
        json_array_open(w);
        json_int(w, p->plan.segment[i].first + 1);
        json_int(w, p->plan.segment[i].last + 1);
        json_array_close(w);
    }
    json_array_close(w);
    json_key(w, "kernels");
    json_array_open(w);
    for (int i = 0; i < p->n_kernels; i++)
        write_kernel(w, c, &p->kernel[i]);
    json_array_close(w);
    return json_line_print(&line);
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
        buf source;
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        buf_init(&source);
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
    buf svg;
    sink s;
    buf_init(&svg);
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
    chain_shape shape = {.n_sequences = 1,
                         .max_len = (int32_t)a->layer.length,
                         .n_tokens = a->layer.length,
                         .n_heads = (int32_t)a->layer.heads,
                         .dim_head = (int32_t)a->layer.dim,
                         .dim_ffn = (int32_t)a->layer.ffn};
    TRY(chain_find(a->layer.layer, &c));
    TRY(plan_parse(text, &plan));
    plan_lower(c, &shape, plan.value, &p);
    if (a->svg != NULL) TRY(save_svg(c, &p, a->svg));
    if (a->svg != NULL && strcmp(a->svg, "-") == 0) return OK;
    if (a->has_source) return print_source(a, c, &shape, &p);
    return a->is_json ? print_json(c, &p) : print_text(c, &p);
}

status plan_show(int argc, char **argv) {
    show_args a = {.layer = PLAN_LAYER_ARGS};
    const char *text;
    int n;
    bool is_help;
    const arg_option options[] = {
        PLAN_LAYER_OPTIONS(&a.layer),
        {"--svg", ARG_TEXT, &a.svg, "FILE", "Draw it; - is stdout, with nothing else there.", 0, 0},
        {"--source", ARG_FLAG, &a.has_source, NULL,
         "Print the generated code of its kernels instead, for a causal mask: C, or with --cuda "
         "CUDA.",
         0, 0},
        {"--cuda", ARG_FLAG, &a.is_cuda, NULL, "--source in CUDA, for float16.", 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "One JSON object.", 0, 0},
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu plan show VALUE|BITS [options]",
        .summary = "Shows the kernels of a fusion plan: a value from 0 to 65535, or its 16 bits.",
        .options = options,
        .min_positional = 1,
        .max_positional = 1,
        .notes = "The first line is VALUE BIT0 SEGMENTS START END ..., with operators counted from "
                 "1.  docs/plans.md "
                 "explains plans."};
    TRY(args_parse(&spec, argc, argv, &text, &n, &is_help));
    return is_help ? OK : show(&a, text);
}
