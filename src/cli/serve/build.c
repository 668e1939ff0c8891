/* hstu build: an engine folder of a run. */
#include "serve/engine/build.h"

#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

/* In the order of config_dtype, then FP8. */
static const char *const dtypes[] = {"bfloat16", "float16", "float32", "fp8", NULL};
enum { FP8 = 3 };
static const char *const item_forms[] = {"float32", "int8", NULL};

static status print_json(const build_config *a, const build_report *r) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("engine", a->out), FIELD("step", r->step),
                FIELD("dtype", dtypes[a->is_fp8 ? FP8 : (int)a->dtype]), FIELD("items", r->n_items),
                FIELD("parameters", r->n_numbers), FIELD("weight_bytes", r->weight_bytes),
                FIELD("tables", r->n_tables), FIELD("weight_error", r->weight_error),
                FIELD("histories_compared", r->n_asked), FIELD("score_error", r->score_error));
    if (!r->is_ranking) json_key_double(w, "top_10_kept", r->top_kept);
    json_key_double(w, "run_open_s", r->run_open_s);
    json_key_double(w, "engine_open_s", r->engine_open_s);
    return json_line_print();
}

static void print_text(const build_config *a, const build_report *r) {
    printf("%s: step %llu, %llu items, %llu parameters, matrices in %s (%.1f MB)\n",
           show_path(a->out), (unsigned long long)r->step, (unsigned long long)r->n_items,
           (unsigned long long)r->n_numbers, dtypes[a->dtype], (double)r->weight_bytes / 1e6);
    if (r->weight_error == 0 && r->score_error == 0)
        printf("answers: identical to the run's, bit for bit (%d random histories)\n", r->n_asked);
    else {
        if (a->is_fp8)
            printf("products of layers: fp8; errors as of the CPU, which rounds alike\n");
        printf("weights: largest error %.2g of the largest number of their matrix\n",
               r->weight_error);
        printf("scores: largest error %.2g of their range (%d random histories", r->score_error,
               r->n_asked);
        if (r->is_ranking)
            printf(")\n");
        else
            printf("; %.1f %% of the top ten are the same)\n", 100 * r->top_kept);
    }
    printf("opens in %.1f ms; the run: %.1f ms\n", 1e3 * r->engine_open_s, 1e3 * r->run_open_s);
}

static status run(const build_config *a, bool is_json) {
    build_report r;
    if (a->out == NULL) return fail(ERR_USAGE, "--out ENGINE is missing");
    TRY(build_engine(a, &r));
    if (is_json) return print_json(a, &r);
    print_text(a, &r);
    return OK;
}

status cmd_build(int argc, char **argv) {
    build_config a = {.limits = {.kv_pages = -1}};
    int dtype = DTYPE_FLOAT32;
    bool is_json = false;
    const arg_option options[] = {
        OPT_TEXT("--out", &a.out, "ENGINE",
                 "Folder to write; an existing engine folder is replaced atomically."),
        OPT_CHOICE("--dtype", &dtype, "TYPE", dtypes,
                   "Precision of the matrices: float32 (default; the same answers as the run), "
                   "bfloat16 or float16, in which a GPU then computes; or fp8: bfloat16, and large "
                   "products of layers in 8-bit floats (GPUs of SM 9.0)."),
        OPT_TEXT("--checkpoint", &a.checkpoint, "WHICH", WORK_CHECKPOINTS),
        OPT_INT("--max-batch", &a.limits.max_batch, "B", 1, 4096,
                "Requests per batch, unless the server overrides it (default 64)."),
        OPT_INT("--max-tokens", &a.limits.max_tokens, "T", 1, 1 << 24,
                "Computed tokens per batch (default 8192)."),
        OPT_INT("--kv-pages", &a.limits.kv_pages, "P", 0, INT32_MAX,
                "Pages of 64 tokens in the KV cache; 0: no cache (default: depends on memory)."),
        OPT_CHOICE(
            "--items", &a.limits.has_int8_items, "FORM", item_forms,
            "How the CPU searches the catalogue of a retrieval model: float32 (default), or int8, "
            "which first rules out most items by 8-bit numbers; the answers are the same."),
        OPT_FLAG("--json", &is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu build RUN --out ENGINE [--dtype fp8|bfloat16|float16|float32]",
        .summary = "Package a run for serving: weights in the serving precision, item ids and "
                   "titles, dynamic tables and limits, with checksums. The result is opened and "
                   "compared with the run before it appears under its name.",
        .options = options,
        .min_positional = 1,
        .notes = "'hstu serve', 'recommend', 'score', 'eval' and 'bench latency|throughput' accept "
                 "it in place of a run.\n"};
    ARGS_PARSE(&spec, &a.run, NULL);
    a.is_fp8 = dtype == FP8;
    a.dtype = a.is_fp8 ? DTYPE_BFLOAT16 : (config_dtype)dtype;
    return run(&a, is_json);
}
