/* hstu export: embeddings, weights or tables of a run, or the events of a server, as files for
 * other tools. */
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"
#include "model/export_file.h"
#include "model/histories.h"
#include "model/item_table.h"
#include "model/trained.h"
#include "serve/state/state_tools.h"
#include "train/files/checkpoint.h"
#include "train/files/run_config.h"
#include "train/files/table_files.h"

typedef struct export_args {
    const char *run, *checkpoint, *what, *format, *out, *data, *device;
    int is_meta; /* of layouts */
    bool is_apart;
} export_args;

/* The number of --format among three. */
static status parse_format(const char *name, const char *const names[3], const char *of, int *out) {
    for (*out = 0; *out < 3; ++*out)
        if (strcmp(name, names[*out]) == 0) return OK;
    return fail(ERR_USAGE, "--format %.40s: must be %s, %s or %s%s", name, names[0], names[1],
                names[2], of);
}

/* Ends a file by its status, and says what is in it. */
static status end_file(embedding_file *f, status st, const export_args *a,
                       const embedding_rows *rows) {
    if (st != OK) {
        embedding_file_abandon(f);
        return st;
    }
    TRY(embedding_file_commit(f));
    printf("the %s of %" PRId64 " %s, %d numbers each, in %s\n",
           rows->item != NULL ? "embeddings" : "encoded states", rows->n,
           rows->item != NULL ? "items" : "users", rows->dim, show_path(a->out));
    return OK;
}

/* The items' rows, or through the pass their component vectors, one after the other. */
static status copy_items(embedding_file *f, const item_table *t, pass *p, int32_t dim,
                         int32_t most) {
    float *piece;
    status st = MEM_NEW_RAW(&piece, (size_t)most * (size_t)dim);
    for (int32_t first = 0; st == OK && first < t->items.n; first += most) {
        int32_t n = t->items.n - first < most ? t->items.n - first : most;
        st = p == NULL ? item_table_read(t, first, n, piece)
                       : pass_components(p, n, t->items.rows + (int64_t)first * t->dim, piece);
        if (st == OK) st = embedding_file_add(f, piece, n);
    }
    mem_free(piece);
    return st;
}

static status write_table(const export_args *a, session *s, embedding_format format, pass *p) {
    item_table t = {0};
    embedding_file *f = NULL;
    embedding_rows rows = {.data = s->data};
    int32_t most = 4096;
    status st = p != NULL ? pass_components_sizes(p, &rows.dim, &most) : OK;
    if (st == OK) st = item_table_init(&t, s->model);
    if (p == NULL) rows.dim = t.dim;
    rows.item = t.items.item;
    rows.n = t.items.n;
    if (st == OK) st = embedding_file_create(&f, a->out, format, &rows);
    if (st == OK) st = copy_items(f, &t, p, rows.dim, most);
    st = end_file(f, st, a, &rows);
    item_table_fini(&t);
    return st;
}

static status write_items(const export_args *a, session *s, embedding_format format) {
    pass *p = NULL;
    if (strcmp(a->what, "items") == 0) return write_table(a, s, format, NULL);
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED, "--what components: a ranking model has none");
    TRY(pass_create(&p, s->model, &(pass_config){.max_users = 1}));
    status st = write_table(a, s, format, p);
    pass_destroy(p);
    return st;
}

/* The users of the data, a batch after the other.  A user without a history has a row of zeros. */
static status encode_users(embedding_file *f, session *s, pass *p, histories *h, float *states) {
    uint64_t n_users = s->data->n_users, user = 0;
    int32_t dim = model_dim(s->model);
    progress bar;
    status st = OK;
    progress_begin(&bar, "encoding", "users", n_users);
    while (st == OK && user < n_users) {
        const void *encoded;
        histories_clear(h);
        for (; st == OK && user < n_users && h->view.n_users < h->max_users; user++) {
            user_events u = user_events_of(s->data, user);
            st = histories_add(h, &u, NULL, 0);
        }
        if (st == OK) st = pass_encode(p, &h->view, &encoded);
        if (st == OK)
            st = backend_read_act(s->be, states, encoded, (size_t)h->view.n_users * (size_t)dim);
        if (st == OK) st = embedding_file_add(f, states, h->view.n_users);
        progress_update(&bar, user);
    }
    progress_end(&bar);
    return st;
}

static status write_users(const export_args *a, session *s, embedding_format format) {
    embedding_file *f = NULL;
    pass *p = NULL;
    histories h = {0};
    float *states = NULL;
    embedding_rows rows = {
        .data = s->data, .n = (int64_t)s->data->n_users, .dim = model_dim(s->model)};
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED, "--what users: a ranking model scores candidates; it has no "
                                     "state of a user to export");
    status st = pass_create(&p, s->model, &(pass_config){.max_users = s->eval_batch});
    if (st == OK) st = histories_init(&h, s, s->eval_batch);
    if (st == OK) st = MEM_NEW_RAW(&states, (size_t)s->eval_batch * (size_t)rows.dim);
    if (st == OK) st = embedding_file_create(&f, a->out, format, &rows);
    if (st == OK) st = encode_users(f, s, p, &h, states);
    st = end_file(f, st, a, &rows);
    mem_free(states);
    histories_fini(&h);
    pass_destroy(p);
    return st;
}

static status with_model(const export_args *a, const char *folder,
                         status (*write)(const export_args *, session *, embedding_format)) {
    static const char *const formats[] = {"safetensors", "npz", "csv"};
    int format;
    work w;
    trained t;
    TRY(parse_format(a->format, formats, "", &format));
    TRY(work_open(&w, a->data, a->device));
    status st = trained_open(&t, folder, w.data, w.be, 0);
    if (st == OK) st = write(a, &t.session, (embedding_format)format);
    trained_close(&t);
    work_close(&w);
    return st;
}

/* The run knows its items without any data. */
static status export_items(const export_args *a, const char *folder) {
    return with_model(a, folder, write_items);
}

static status export_users(const export_args *a, const char *folder) {
    char room[RUN_DATA_BYTES];
    export_args own = *a;
    TRY(run_config_find_data(a->run, "hstu export RUN --what users --data DIR --out FILE", room,
                             &own.data));
    return with_model(&own, folder, write_users);
}

/* The encoder and the item table: of a model on the CPU, whose weights are all float32. */
static status export_model(const export_args *a, const char *folder) {
    bool is_apart = a->is_apart;
    work w;
    trained t;
    if (strcmp(a->format, "onnx") != 0)
        return fail(ERR_USAGE, "--format %.40s: a model is written as onnx", a->format);
    TRY(work_open(&w, NULL, "cpu"));
    status st = trained_open(&t, folder, NULL, w.be, 0);
    if (st == OK) st = onnx_model_write(&t.session, a->out, &is_apart);
    if (st == OK)
        printf("the encoder and %" PRIu64 " items in %s%s%s%s\n", t.session.data->n_items,
               show_path(a->out), is_apart ? ", weights in " : "",
               is_apart ? show_path(a->out) : "", is_apart ? ".data" : "");
    trained_close(&t);
    work_close(&w);
    return st;
}

static status export_tables(const export_args *a, const char *folder) {
    int n;
    TRY(table_files_export(folder, a->out, &n));
    printf("%d table%s of %s in %s\n", n, n == 1 ? "" : "s", show_path(folder), show_path(a->out));
    return OK;
}

/* A copy keeps the config in the file's metadata, from which ours open it again. */
static status write_weights(const export_args *a, const char *folder, weight_format format) {
    char path[CHECKPOINT_PATH_BYTES];
    work w;
    if (format == WEIGHTS_SAFETENSORS && !a->is_meta) {
        TRY(path_join(path, sizeof path, folder, "model.safetensors"));
        return file_copy(path, a->out);
    }
    TRY(work_open(&w, NULL, "cpu"));
    status st = weight_file_write(folder, a->out, format, a->is_meta != 0, w.workers);
    work_close(&w);
    return st;
}

static status export_weights(const export_args *a, const char *folder) {
    static const char *const formats[] = {"safetensors", "npz", "pt"};
    int format;
    TRY(parse_format(a->format, formats, " for weights", &format));
    TRY(checkpoint_verify(folder));
    TRY(write_weights(a, folder, (weight_format)format));
    printf("the weights of %s in %s\n", show_path(folder), show_path(a->out));
    return OK;
}

/* Events of a server's state on their way to a file, in the order in which they were added. */
typedef struct event_export {
    sink out;
    bool is_json;
    buf text;    /* lines that are not written yet */
    buf names;   /* of the users, */
    size_t *end; /* (n_users): where each ends in it */
    size_t n_users, end_capacity;
    bool has_strings; /* among the ids */
} event_export;

static status see_user(void *context, int64_t id, const char *name, size_t n) {
    event_export *x = context;
    TRY(MEM_RESERVE(&x->end, &x->end_capacity, x->n_users + 1));
    TRY(buf_append(&x->names, name, n));
    x->end[x->n_users++] = x->names.n_bytes;
    return OK;
}

static status put_id(event_export *x, const char *id, size_t n) {
    int64_t number;
    json_writer w;
    if (seq_id_number(id, n, &number)) return buf_append(&x->text, id, n);
    x->has_strings = true;
    if (!x->is_json) return csv_put_field(&x->text, id, n);
    json_begin(&w, &x->text, 0);
    json_string_n(&w, id, n);
    return json_finish(&w);
}

/* Seconds since 1970, with a fraction where there is one: -1 s and .25 s are -.75 s. */
static status put_time(buf *out, int64_t seconds, uint32_t ns) {
    bool is_before = seconds < 0 && ns > 0;
    TRY(buf_printf(out, "%s%" PRId64, is_before && seconds == -1 ? "-" : "", seconds + is_before));
    return ns == 0 ? OK : buf_printf(out, ".%09" PRIu32, is_before ? 1000000000 - ns : ns);
}

static status flush_lines(event_export *x) {
    status st = sink_write(&x->out, buf_str(&x->text), x->text.n_bytes);
    buf_clear(&x->text);
    return st;
}

static status see_event(void *context, size_t nth_user, const engine_event *e) {
    event_export *x = context;
    enum { FLUSH_BYTES = 1 << 16 };
    size_t at = nth_user > 0 ? x->end[nth_user - 1] : 0;
    TRY(buf_text(&x->text, x->is_json ? "{\"user_id\":" : ""));
    TRY(put_id(x, buf_str(&x->names) + at, x->end[nth_user] - at));
    TRY(buf_text(&x->text, x->is_json ? ",\"item_id\":" : ","));
    TRY(put_id(x, e->item.text, e->item.n));
    TRY(buf_text(&x->text, x->is_json ? ",\"timestamp\":" : ","));
    TRY(put_time(&x->text, e->time, e->time_ns));
    TRY(buf_text(&x->text, x->is_json ? "" : ","));
    if (e->action != ACTION_UNKNOWN)
        TRY(buf_printf(&x->text, x->is_json ? ",\"action\":%u" : "%u", e->action));
    TRY(buf_text(&x->text, x->is_json ? "}\n" : "\n"));
    return x->text.n_bytes >= FLUSH_BYTES ? flush_lines(x) : OK;
}

/* As of one moment, also while a server runs on the state.  The closing line says how prep reads
 * the file as it is meant, whatever its first rows look like. */
static status export_events(const export_args *a) {
    event_export x = {.is_json = a->format != NULL && strcmp(a->format, "jsonl") == 0};
    state_reader reader = {.ctx = &x, .user = see_user, .event = see_event};
    state_counts counts;
    if (a->format != NULL && !x.is_json && strcmp(a->format, "csv") != 0)
        return fail(ERR_USAGE, "--format %.40s: must be csv or jsonl for events", a->format);
    if (a->data != NULL || a->is_meta || a->checkpoint != NULL)
        return fail(ERR_USAGE,
                    "--data, --layout and --checkpoint are not for events; 'hstu prep --from-state "
                    "STATE --with DATA' adds them to data");
    TRY(sink_open(&x.out, a->out));
    status st = x.is_json ? OK : buf_text(&x.text, "user_id,item_id,timestamp,action\n");
    if (st == OK) st = state_read(a->run, &reader, &counts);
    if (st == OK) st = flush_lines(&x);
    st = sink_close(&x.out, st);
    if (st == OK)
        log_info("%" PRIu64 " events of %" PRIu64 " users; to read them: hstu prep %s --input FILE "
                 "--time-unit s%s --out DIR",
                 counts.n_events, counts.n_users, x.is_json ? "jsonl" : "csv",
                 x.has_strings ? " --string-ids" : "");
    buf_fini(&x.text);
    buf_fini(&x.names);
    mem_free(x.end);
    return st;
}

/* What can be exported. */
static const struct {
    const char *name;
    bool is_copy; /* of files, which are safetensors */
    status (*run)(const export_args *a, const char *folder);
} whats[] = {{"items", false, export_items}, {"components", false, export_items},
             {"users", false, export_users}, {"weights", false, export_weights},
             {"model", false, export_model}, {"tables", true, export_tables}};

/* Whether a file is, or would be, in a folder. */
static bool is_in(const char *path, const char *folder) {
    char of_path[PATH_MAX], of_folder[PATH_MAX], parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash != NULL ? (int)(slash - path) + 1 : 1,
             slash != NULL ? path : ".");
    return realpath(parent, of_path) != NULL && realpath(folder, of_folder) != NULL &&
           strcmp(of_path, of_folder) == 0;
}

static status run(const export_args *a) {
    char folder[CHECKPOINT_PATH_BYTES];
    for (size_t i = 0; i < sizeof whats / sizeof *whats; i++) {
        if (strcmp(a->what, whats[i].name) != 0) continue;
        if (whats[i].is_copy && strcmp(a->format, "safetensors") != 0)
            return fail(ERR_UNSUPPORTED,
                        "--format %s: %s are written as safetensors only, which Python opens with "
                        "the package of that name",
                        a->format, a->what);
        if (a->is_apart && whats[i].run != export_model)
            return fail(ERR_USAGE, "--external-data is for --format onnx");
        if (folder_exists(a->out))
            return fail(ERR_USAGE, "%s: already exists; choose another --out", a->out);
        TRY(a->checkpoint != NULL ? checkpoint_choose(a->run, a->checkpoint, folder)
                                  : checkpoint_find(a->run, folder));
        if (is_in(a->out, folder))
            return fail(ERR_USAGE, "%s: is in the checkpoint; choose another --out", a->out);
        return whats[i].run(a, folder);
    }
    return fail(ERR_USAGE,
                "--what %s: must be model, items, components, users, weights, tables or "
                "events",
                a->what);
}

status cmd_export(int argc, char **argv) {
    static const char *const layouts[] = {"own", "meta", NULL};
    export_args a = {.device = "auto"};
    const arg_option options[] = {
        OPT_TEXT("--what", &a.what, "WHAT",
                 "items: item embeddings as they are scored, with ids and titles; components: "
                 "the item vectors of a mixture of logits, one after the other; users: encoded "
                 "states of the users in --data, with ids; weights: dense parameters, with the "
                 "config as metadata; tables: dynamic tables, a snapshot folder each; model: the "
                 "encoder of users and the search in the item table, for ONNX Runtime and others; "
                 "events: what 'hstu serve --state STATE' has acknowledged."),
        OPT_TEXT(
            "--out", &a.out, "PATH",
            "File to write; an existing one is replaced when the new one is complete. For tables "
            "a folder, which must not exist. Events go to stdout without it, or with '-'."),
        OPT_TEXT(
            "--format", &a.format, "FORMAT",
            "safetensors (default); for items, components and users also npz (NumPy) or csv; "
            "for weights "
            "also npz or pt (torch.load); for events csv (default) or jsonl; onnx means --what "
            "model."),
        OPT_FLAG("--external-data", &a.is_apart,
                 "With onnx: weights in PATH.data beside the model, as they always are "
                 "where together they exceed 2 GB."),
        OPT_CHOICE(
            "--layout", &a.is_meta, "LAYOUT", layouts,
            "Layout of weights: own (default), as in the checkpoint, or meta, for Meta's "
            "model classes: an item's row is its id, and the buffer _attn_mask is included."),
        OPT_TEXT("--checkpoint", &a.checkpoint, "WHICH", WORK_CHECKPOINTS),
        OPT_TEXT("--data", &a.data, "DIR", "Data with the users to encode; not needed for items."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu export CHECKPOINT|RUN|STATE --what WHAT --out PATH [options]",
        .summary = "Write the weights, embeddings or tables of a run, or the events of a server's "
                   "state, to files for other tools.",
        .options = options,
        .min_positional = 1,
        .notes = WORK_RUN_NOTE};
    ARGS_PARSE(&spec, &a.run, NULL);
    if (a.what != NULL && strcmp(a.what, "events") == 0) return export_events(&a);
    if (a.what == NULL && a.format != NULL && strcmp(a.format, "onnx") == 0) a.what = "model";
    if (a.what == NULL || a.out == NULL)
        return fail(ERR_USAGE, "%s needed; usage: %s",
                    a.what != NULL ? "--out is" : "--what and --out are", spec.usage);
    if (a.format == NULL) a.format = "safetensors";
    return run(&a);
}
