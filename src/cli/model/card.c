/* hstu card: what a reader of a model's figures must know, as Markdown or JSON. */
#include "base/hash.h"
#include "cli/cli.h"
#include "cli/model/run_facts.h"
#include "cli/output.h"
#include "hstu.h"
#include "model/checkpoint_load.h"

/* The file's md5 as a member; left out where the file cannot be read. */
static void hash_file(json_writer *w, const char *key, const char *folder, const char *name) {
    char hex[33], block[1 << 14];
    md5_state md5;
    FILE *f = fopen(show_join(folder, name), "rb");
    if (f == NULL) return;
    md5_begin(&md5);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        md5_add(&md5, block, n);
    md5_end(&md5, hex);
    if (!ferror(f)) json_key_string(w, key, hex);
    fclose(f);
}

/* Members of the log's newest line "start". */
static void copy_members(json_writer *w, const run_facts *f, const char *const *keys) {
    for (const json_value *v; f->history.start != NULL && *keys != NULL; keys++)
        if ((v = json_member(f->history.start, *keys)) != NULL)
            json_key(w, *keys), json_value_write(w, v);
}

static void write_figures(const run_facts *f, json_writer *w) {
    const json_value *done = f->history.done;
    const json_value *of = done != NULL ? json_member(done, "intervals") : NULL, *interval;
    json_key_object(w, "figures");
    for (int i = 0; i < f->history.n_metrics; i++) {
        const char *name = f->history.metric[i];
        double value = run_facts_metric(f, name);
        if (!isfinite(value)) continue;
        json_key_object(w, name);
        json_key_double(w, "value", value);
        if (of != NULL && (interval = json_member(of, name)) != NULL)
            json_key(w, "interval"), json_value_write(w, interval);
        json_object_close(w);
    }
    json_object_close(w);
    json_key_array(w, "limits");
    json_string(w, "The figures are of logged events: lists of the model itself were not shown.");
    json_string(w, "The intervals are of the choice of users, not of seed, data or time.");
    json_string(w, "Items and tastes that are newer than the data are unknown to the model.");
    const json_value *from =
        f->history.start != NULL ? json_member(f->history.start, "init_from") : NULL;
    const json_value *saw = from != NULL ? json_member(from, "saw_held_out") : NULL;
    if (saw != NULL && saw->boolean)
        json_string(w, "The run it started from was trained on held-out events: the figures are "
                       "too good.");
    json_array_close(w);
}

static void write_card(const run_facts *f, const char *licence, json_writer *w) {
    static const char *const of_model[] = {"task", "model",  "config", "parameters",
                                           "seed", "device", NULL};
    static const char *const of_data[] = {"data", "users", "items", "events", NULL};
    const run_history *h = &f->history;
    char folder[CHECKPOINT_PATH_BYTES];
    json_key_string(w, "run", f->run);
    json_key_object(w, "model");
    copy_members(w, f, of_model);
    JSON_FIELDS(w, FIELD("status", f->status), FIELD("training_seconds", f->seconds),
                KNOWN("step", h->n > 0 ? h->step[h->n - 1] : NAN),
                KNOWN("best_step", h->best_step));
    json_object_close(w);
    json_key_object(w, "data");
    copy_members(w, f, of_data);
    json_key_string(w, "licence", licence != NULL ? licence : "not stated; see --licence");
    json_object_close(w);
    /* Of the figures below: a run that validates has another one while it trains. */
    const json_value *of = h->done != NULL ? json_member(h->done, "protocol") : NULL;
    if (of != NULL)
        json_key(w, "protocol"), json_value_write(w, of);
    else
        copy_members(w, f, (const char *const[]){"protocol", NULL});
    write_figures(f, w);
    json_key_object(w, "origin");
    json_key_string(w, "hstu", HSTU_VERSION);
    hash_file(w, "md5 of this program", "/proc/self", "exe");
    hash_file(w, "md5 of config.json", f->run, "config.json");
    /* The manifest has the checksums of the weights' files. */
    if (checkpoint_find(f->run, folder) == OK)
        hash_file(w, "md5 of the weights' manifest", folder, "manifest.json");
    json_object_close(w);
}

/* A key or, without one, a value as a cell of a table: JSON escapes control characters. */
static status print_cell(const char *key, const json_value *v) {
    buf text = {0};
    json_writer w;
    json_begin(&w, &text, 0);
    key != NULL ? json_string(&w, key) : json_value_write(&w, v);
    status st = json_finish(&w);
    size_t skip = key != NULL || v->type == JSON_STRING; /* quotes */
    for (size_t i = skip; st == OK && i + skip < text.n_bytes; i++)
        printf("%s%c", strchr("|<`", text.data[i]) != NULL ? "\\" : "", text.data[i]);
    buf_fini(&text);
    return st;
}

static status print_row(const json_value *v) {
    const json_value *value = v->type == JSON_OBJECT ? json_member(v, "value") : NULL;
    const json_value *of = value != NULL ? json_member(v, "interval") : NULL;
    printf("| ");
    TRY(print_cell(v->key, NULL));
    printf(" | ");
    TRY(value != NULL ? (printf("%.4f", value->number), OK) : print_cell(NULL, v));
    if (of != NULL && of->n_children == 2)
        printf(" (%.4f to %.4f)", of->first->number, of->first->next->number);
    printf(" |\n");
    return OK;
}

/* A section for each member of the card: a table of an object, a list of an array. */
static status print_markdown(const json_value *card) {
    printf("# Model card: ");
    TRY(print_cell(NULL, card->first));
    printf("\n");
    for (const json_value *s = card->first->next; s != NULL; s = s->next) {
        bool is_list = s->type == JSON_ARRAY;
        if (s->first == NULL) continue; /* no figures: nothing was held out */
        printf("\n## %c%s\n\n%s", s->key[0] - 'a' + 'A', s->key + 1,
               is_list ? "" : "| | |\n|---|---|\n");
        for (const json_value *v = s->first; v != NULL; v = v->next)
            TRY(is_list ? (printf("- %s\n", v->string), OK) : print_row(v));
    }
    return OK;
}

static status card(const run_facts *f, const char *licence, bool is_json) {
    const json_value *root;
    json_writer w;
    buf text = {0};
    arena a;
    arena_init(&a, 1 << 14);
    json_begin_object(&w, &text, 0);
    write_card(f, licence, &w);
    status st = json_finish_object(&w);
    if (st == OK && is_json) printf("%s\n", buf_str(&text));
    if (st == OK) st = json_parse(&a, "the card", buf_str(&text), text.n_bytes, &root);
    if (st == OK && !is_json) st = print_markdown(root);
    arena_fini(&a);
    buf_fini(&text);
    return st;
}

status cmd_card(int argc, char **argv) {
    static run_facts f; /* too large for the stack */
    const char *run, *licence = NULL;
    bool is_json = false;
    const arg_option options[] = {
        OPT_TEXT("--licence", &licence, "TEXT", "Licence of the data, which no file tells."),
        OPT_FLAG("--json", &is_json, "Print one JSON object instead of Markdown."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu card RUN [--licence TEXT] [--json]",
        .summary = "Print a run's model card: data and their licence, protocol, figures with 95 % "
                   "intervals, limits, and hashes of config, weights and program.",
        .options = options,
        .min_positional = 1};
    ARGS_PARSE(&spec, &run, NULL);
    status st = run_facts_read(&f, run);
    if (st == OK) st = card(&f, licence, is_json);
    run_facts_fini(&f);
    return st;
}
