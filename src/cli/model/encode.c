/* hstu encode: hidden states, labels or embeddings of a Hugging Face encoder for sequences of
 * tokens or texts. */
#include <dirent.h>
#include <fnmatch.h>

#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"
#include "encode/encoder.h"
#include "encode/encoder_head.h"
#include "encode/encoder_io.h"
#include "format/json.h"
#include "ops/mask_rule.h"
#include "tune/encoder_plan.h"

enum { PATH_BYTES = 4096 };

typedef struct encode_args {
    const char *folder, *input, *out, *mask, *device, *scores, *plan, *cache;
    int dtype; /* of dtypes */
    int head;  /* head_kind */
    int64_t batch_tokens;
    bool is_cut, is_tokens_only;
} encode_args;

/* While it encodes. */
typedef struct encode_job {
    const encode_args *a;
    encoder *e;
    encoder_head *head;
    encoder_input *in;
    encoder_scores *scores;  /* of --profile-scores, or NULL */
    encoder_plan *plan;      /* of --plan, or NULL */
    encoder_output *tensors; /* one of these two */
    sink lines;
    sink numbers, picture;  /* of --profile-scores */
    float *hidden, *pooled; /* of a batch */
    size_t hidden_capacity, pooled_capacity;
    buf text, labels;
    uint64_t n_sequences, n_tokens;
    progress bar;
} encode_job;

static bool writes_tensors(const encode_args *a) {
    return a->out != NULL && text_ends_with(a->out, ".safetensors");
}

static status set_precision(backend *be, int dtype, encoder_options *o) {
    TRY(encoder_set_dtype(be, dtype, o));
    if (dtype <= ACT_F16 && dtype != (int)be->act)
        log_info("note: the CPU computes in float32, not in %s", encoder_dtypes[dtype]);
    return OK;
}

static status write_lines(encode_job *j) {
    const int32_t *offsets = encoder_offsets(j->e);
    int32_t dim = encoder_config_of(j->e)->dim;
    bool has_pooled = encoder_has_pooler(j->e);
    for (int32_t b = 0; b < encoder_n_sequences(j->e); b++) {
        buf_clear(&j->text);
        if (j->head->kind != HEAD_HIDDEN)
            TRY(encoder_head_line(j->head, &j->text, b, offsets));
        else
            TRY(encoder_output_line(&j->text, offsets[b + 1] - offsets[b], dim,
                                    j->hidden + (int64_t)offsets[b] * dim,
                                    has_pooled ? j->pooled + (int64_t)b * dim : NULL));
        TRY(sink_write(&j->lines, buf_str(&j->text), j->text.n_bytes));
    }
    return OK;
}

static status encode_batch(encode_job *j) {
    int32_t n = encoder_n_sequences(j->e);
    const int32_t *offsets = encoder_offsets(j->e);
    size_t dim = (size_t)encoder_config_of(j->e)->dim;
    uint64_t done, total;
    if (n == 0) return OK;
    TRY(j->scores != NULL ? encoder_run_scored(j->e, j->scores) : encoder_run(j->e));
    TRY(MEM_RESERVE(&j->hidden, &j->hidden_capacity, (size_t)offsets[n] * dim));
    if (encoder_has_pooler(j->e))
        TRY(MEM_RESERVE(&j->pooled, &j->pooled_capacity, (size_t)n * dim));
    TRY(encoder_read(j->e, j->hidden, j->pooled));
    bool has_head = j->head->kind != HEAD_HIDDEN;
    if (has_head) TRY(encoder_head_run(j->head, n, offsets, j->hidden, j->pooled));
    if (j->tensors != NULL)
        TRY(encoder_output_add(j->tensors, n, offsets, has_head ? j->head->out : j->hidden,
                               has_head ? j->head->probability : j->pooled));
    else
        TRY(write_lines(j));
    j->n_sequences += (uint64_t)n;
    j->n_tokens += (uint64_t)offsets[n];
    encoder_clear(j->e);
    encoder_input_progress(j->in, &done, &total);
    progress_update(&j->bar, done);
    return OK;
}

static status encode_all(encode_job *j) {
    encoder_sequence s;
    bool is_end;
    for (;;) {
        TRY(encoder_input_next(j->in, &s, &is_end));
        if (is_end) break;
        if (!encoder_fits(j->e, s.n)) TRY(encode_batch(j));
        TRY(encoder_input_blame(j->in, encoder_add(j->e, s.ids, s.types, s.n)));
    }
    TRY(encode_batch(j));
    if (j->n_sequences == 0) return fail(ERR_FORMAT, "%s: has no sequence", j->a->input);
    return OK;
}

/* The labels as a list in JSON, for the metadata of a file. */
static status list_labels(encode_job *j) {
    json_writer w;
    json_begin(&w, &j->labels, 0);
    json_array_open(&w);
    for (int32_t i = 0; i < j->head->n_out; i++)
        json_string(&w, j->head->label[i]);
    json_array_close(&w);
    return json_finish(&w);
}

static status open_output(encode_job *j) {
    const encoder_head *h = j->head;
    bool is_hidden = h->kind == HEAD_HIDDEN, has_labels = h->kind == HEAD_LABELS;
    int32_t dim = is_hidden ? encoder_config_of(j->e)->dim : h->n_out;
    encoder_rows rows[2] = {{is_hidden    ? "hidden"
                             : has_labels ? "logits"
                                          : "embedding",
                             dim, is_hidden || h->is_of_tokens},
                            {is_hidden ? "pooled" : "probabilities", dim, h->is_of_tokens}};
    if (is_hidden ? !encoder_has_pooler(j->e) : !has_labels || h->labels == LABELS_VALUES)
        rows[1].name = NULL;
    if (!writes_tensors(j->a)) return sink_open(&j->lines, j->a->out);
    if (has_labels) TRY(list_labels(j));
    return encoder_output_create(&j->tensors, j->a->out, rows,
                                 has_labels ? buf_str(&j->labels) : NULL);
}

static const char *picture_path(const encode_job *j) {
    return show_printf("%s.svg", j->a->scores);
}

/* FILE gets the numbers, FILE.svg the picture.  Both are opened before the work. */
static status open_scores(encode_job *j) {
    if (j->scores == NULL) return OK;
    if (strlen(j->a->scores) + sizeof ".svg" > SHOW_PATH_BYTES)
        return fail(ERR_USAGE, "--profile-scores: the path is too long");
    TRY(sink_open(&j->numbers, j->a->scores));
    return sink_open(&j->picture, picture_path(j));
}

static status write_scores(encode_job *j) {
    buf text = {0};
    status st = encoder_scores_json(j->scores, &text);
    if (st == OK) st = sink_write(&j->numbers, buf_str(&text), text.n_bytes);
    buf_clear(&text);
    if (st == OK) st = encoder_scores_svg(j->scores, &text);
    if (st == OK) st = sink_write(&j->picture, buf_str(&text), text.n_bytes);
    buf_fini(&text);
    return st;
}

static status close_scores(encode_job *j, status st) {
    if (st == OK && j->scores != NULL) st = write_scores(j);
    st = sink_close(&j->numbers, st);
    st = sink_close(&j->picture, st);
    if (st == OK && j->scores != NULL)
        log_info("attention weights of every head: %s, and a picture: %s", j->a->scores,
                 picture_path(j));
    return st;
}

static void tell(const encode_job *j, uint64_t start_ns) {
    double seconds = (double)(clock_ns() - start_ns) * 1e-9;
    log_info("%" PRIu64 " sequence%s, %" PRIu64 " token%s in %.1f s (%s tokens/s)", j->n_sequences,
             j->n_sequences == 1 ? "" : "s", j->n_tokens, j->n_tokens == 1 ? "" : "s", seconds,
             show_rounded((double)j->n_tokens / (seconds > 0 ? seconds : 1)));
}

static status run_job(encode_job *j) {
    uint64_t done, total, start = clock_ns();
    TRY(open_output(j));
    encoder_input_progress(j->in, &done, &total);
    status st = open_scores(j);
    if (st == OK && !sink_is_terminal(&j->lines))
        progress_begin(&j->bar, "encoding", encoder_input_unit(j->in), total);
    if (st == OK) st = encode_all(j);
    progress_end(&j->bar);
    if (j->tensors != NULL)
        st = encoder_output_close(j->tensors, st);
    else
        st = sink_close(&j->lines, st);
    if (st == OK) tell(j, start);
    return close_scores(j, st);
}

static void tell_model(const encoder *e, const char *folder, act_type act) {
    const encoder_config *c = encoder_config_of(e);
    log_info("%s: %s, %d layers, width %d, %d heads, %s parameters, up to %d tokens%s",
             show_path(folder), encoder_family_name(c->family), c->n_layers, c->dim, c->n_heads,
             show_rounded((double)encoder_n_parameters(e)), encoder_max_len(c),
             encoder_has_pooler(e) ? "" : ", no pooler");
    if (encoder_int8_error(e) > 0)
        log_info("weights in int8 with a scale for each output channel: off by %.2g of their size; "
                 "products are computed in %s",
                 encoder_int8_error(e), act == ACT_F32 ? "float32" : "float16");
}

static void tell_head(const encoder_head *h) {
    static const char *const kinds[] = {"softmax probabilities", "sigmoid probabilities", "values"};
    bool has_labels = h->kind == HEAD_LABELS;
    if (h->kind != HEAD_HIDDEN)
        log_info("%s of %d %s%s for each %s; --head hidden writes hidden states",
                 has_labels ? kinds[h->labels] : "an embedding", h->n_out,
                 has_labels ? "label" : "number", h->n_out == 1 ? "" : "s",
                 h->is_of_tokens ? "token" : "sequence");
    if (h->is_cut)
        log_info("texts are cut to %" PRId64 " tokens, the limit in %s", h->max_len, h->limit_file);
}

/* The tokenizer and the input, as the folder wants its texts. */
static status open_input(const encode_args *a, const encoder_head *h, tokenizer **words,
                         encoder_input **in) {
    TRY(tokenizer_open(words, h->model));
    if (*words != NULL && h->is_lower) TRY(tokenizer_lower(*words));
    return encoder_input_open(in, a->input, *words, h->max_len, a->is_cut || h->is_cut);
}

static void put_ids(json_writer *w, const char *key, const int32_t *ids, int64_t n) {
    json_key_array(w, key);
    for (int64_t i = 0; i < n; i++)
        json_int(w, ids[i]);
    json_array_close(w);
}

static status write_tokens(encoder_input *in, sink *to, buf *line) {
    encoder_sequence s;
    bool is_end;
    for (;;) {
        json_writer w;
        TRY(encoder_input_next(in, &s, &is_end));
        if (is_end) return OK;
        buf_clear(line);
        json_begin_object(&w, line, 0);
        put_ids(&w, "ids", s.ids, s.n);
        if (s.types != NULL) put_ids(&w, "types", s.types, s.n);
        TRY(json_finish_object(&w));
        TRY(buf_char(line, '\n'));
        TRY(sink_write(to, buf_str(line), line->n_bytes));
    }
}

/* --tokens-only: what the input stands for, as input again. */
static status run_tokens(const encode_args *a) {
    encoder_head *head;
    tokenizer *words = NULL;
    encoder_input *in = NULL;
    sink to = {0};
    buf line = {0};
    TRY(encoder_head_open(&head, a->folder, HEAD_HIDDEN));
    status st = open_input(a, head, &words, &in);
    if (st == OK) st = sink_open(&to, a->out);
    if (st == OK) st = sink_close(&to, write_tokens(in, &to, &line));
    encoder_input_close(in);
    tokenizer_destroy(words);
    encoder_head_close(head);
    buf_fini(&line);
    return st;
}

/* --plan: the layers run by a fusion plan. */
static status open_plan(encode_job *j, const work *w, const mask *m) {
    const encode_args *a = j->a;
    encoder_plan_options o = {
        .plan = a->plan, .cache = a->cache, .mask = m, .mask_text = a->mask, .workers = w->workers};
    return a->plan != NULL ? encoder_plan_create(&j->plan, w->be, &j->head->config, &o) : OK;
}

static void tell_plan(const encode_job *j) {
    if (j->plan == NULL) return;
    encoder_plan_use use = encoder_plan_used(j->plan);
    if (use.n_by_plan > 0)
        log_info("%" PRIu64 " batch%s by plan %d, %" PRIu64 " by the built-in one", use.n_by_plan,
                 use.n_by_plan == 1 ? "" : "es", use.value, use.n_built_in);
    else
        log_info("no plan is kept for these batches (hstu tune finds one): the built-in one ran");
}

static status encode(const encode_args *a, const work *w, const mask *m) {
    encode_job j = {.a = a};
    tokenizer *words = NULL;
    backend *be = w->be;
    encoder_options o = {.batch_tokens = a->batch_tokens, .mask = m};
    status st = set_precision(be, a->dtype, &o);
    if (st == OK) st = encoder_head_open(&j.head, a->folder, (head_kind)a->head);
    if (st == OK) st = open_plan(&j, w, m);
    if (st == OK && j.plan != NULL) o.layers = encoder_plan_layers(j.plan);
    if (st == OK) o.has_head = j.head->kind == HEAD_LABELS;
    if (st == OK) st = encoder_create(&j.e, j.head->model, be, &o);
    if (st == OK) st = encoder_head_load(j.head, w->workers);
    if (st == OK) tell_model(j.e, a->folder, be->act);
    if (st == OK) tell_head(j.head);
    if (st == OK && a->scores != NULL) st = encoder_scores_create(&j.scores, j.e, m);
    if (st == OK) st = open_input(a, j.head, &words, &j.in);
    if (st == OK) st = run_job(&j);
    if (st == OK) tell_plan(&j);
    encoder_input_close(j.in);
    tokenizer_destroy(words);
    encoder_scores_destroy(j.scores);
    encoder_destroy(j.e);
    encoder_head_close(j.head);
    encoder_plan_destroy(j.plan);
    MEM_FREE(j.hidden, j.pooled);
    buf_fini(&j.text);
    buf_fini(&j.labels);
    return st;
}

static status run(const encode_args *a) {
    work w;
    mask *m = NULL;
    if (a->is_tokens_only) return run_tokens(a);
    if (a->mask != NULL) TRY(mask_create(&m, a->mask));
    status st = work_open(&w, NULL, a->device);
    if (st == OK) {
        st = encode(a, &w, m);
        work_close(&w);
    }
    mask_destroy(m);
    return st;
}

/* Looks for a file among those of the model in its folder and the folders of its modules. */
static status check_folder(const char *folder, int depth, const char *option, const char *out) {
    static const char *const names[] = {"config*.json", "model.safetensors*", "model-*.safetensors",
                                        "modules.json", "sentence_*.json",    "tokenizer*.json",
                                        "vocab.txt"};
    char path[PATH_BYTES];
    DIR *dir = opendir(folder);
    status st = OK;
    for (struct dirent *d; st == OK && dir != NULL && (d = readdir(dir)) != NULL;) {
        if (d->d_name[0] == '.') continue;
        st = path_join(path, sizeof path, folder, d->d_name);
        if (st == OK && depth > 0) st = check_folder(path, depth - 1, option, out);
        for (size_t i = 0; st == OK && i < sizeof names / sizeof *names; i++)
            if (fnmatch(names[i], d->d_name, 0) == 0 && file_is_same(out, path))
                st = fail(ERR_USAGE, "%s %s is a file of the model; give another one", option, out);
    }
    if (dir != NULL) closedir(dir);
    return st;
}

/* What is read must not be replaced by the result. */
static status check_out(const encode_args *a, const char *option, const char *out) {
    if (out == NULL || strcmp(out, "-") == 0) return OK;
    if (file_is_same(out, a->input))
        return fail(ERR_USAGE, "%s %s is the input; give another file", option, out);
    return check_folder(a->folder, 1, option, out);
}

static status check(const encode_args *a, const arg_spec *spec) {
    if (a->input == NULL) return fail(ERR_USAGE, "--input FILE is missing; usage: %s", spec->usage);
    TRY(check_out(a, "--out", a->out));
    return check_out(a, "--profile-scores", a->scores);
}

status cmd_encode(int argc, char **argv) {
    encode_args a = {.device = "auto", .batch_tokens = 8192};
    const arg_option options[] = {
        OPT_TEXT("--input", &a.input, "FILE",
                 "Sequences: JSON lines {\"ids\": [...], \"types\": [...]} or {\"text\": ..., "
                 "\"pair\": ...} (- is stdin), or safetensors with lengths, ids and types."),
        OPT_TEXT("--out", &a.out, "FILE",
                 "FILE.safetensors: offsets, hidden (T, E), pooled (B, E), or what --head makes of "
                 "them; any other name: JSON lines; - is stdout (default). The file appears only "
                 "when it is complete."),
        OPT_CHOICE("--head", &a.head, "HEAD", encoder_head_names,
                   "auto (default): what the folder says, labels for a classifier, embeddings for "
                   "sentence-transformers (modules.json), else hidden states. hidden, labels, or "
                   "embeddings pooled by cls, max, mean, mean_sqrt_len_tokens or pooler."),
        OPT_TEXT("--mask", &a.mask, "MASK",
                 "Attention mask (default none): " MASK_NAMES
                 "; followed by ,window=W ,global=G ... "
                 ",causal."),
        OPT_CHOICE("--dtype", &a.dtype, "TYPE", encoder_dtypes,
                   "float32 (default), bfloat16 or float16 on a GPU; the CPU computes in float32. "
                   "int8: weights rounded to 8 bits, products in float16: not faster."),
        OPT_INT("--batch-tokens", &a.batch_tokens, "N", 1, 1 << 24,
                "Tokens per batch (default 8192)."),
        OPT_TEXT("--plan", &a.plan, "PLAN",
                 "Run the layers by a fusion plan: a file of 'hstu tune --out', a value, 16 bits, "
                 "or auto for the tuned plan that fits a batch best (default: the built-in plan)."),
        OPT_TEXT("--cache", &a.cache, "DIR",
                 "Cache of compiled kernels and tuned plans (default ~/.cache/hstu)."),
        OPT_FLAG("--truncate", &a.is_cut,
                 "Truncate texts to the longest sequence that the model accepts."),
        OPT_TEXT("--profile-scores", &a.scores, "FILE",
                 "Also write statistics of the attention weights of every layer and head: JSON to "
                 "FILE, a picture to FILE.svg. Slow; use a sample of sequences."),
        OPT_FLAG("--tokens-only", &a.is_tokens_only,
                 "Write the token ids and types of the input as JSON lines, without encoding."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu encode MODEL_DIR --input FILE [--out FILE] [options]",
        .summary = "Run a BERT-family encoder (bert, roberta, distilbert) on sequences of any "
                   "length, without padding. MODEL_DIR is a Hugging Face folder (save_pretrained): "
                   "config.json, model.safetensors or its shards, and for texts vocab.txt or "
                   "tokenizer.json.",
        .options = options,
        .min_positional = 1,
        .notes = "hidden is the last hidden state; pooled is the pooler's output for the first "
                 "token. Both equal those of transformers; labels equal its classifiers', and "
                 "embeddings those of sentence-transformers.\n"};
    ARGS_PARSE(&spec, &a.folder, NULL);
    TRY(check(&a, &spec));
    return run(&a);
}
