#include "train/report/tracker.h"

#include "format/json.h"
#include "train/files/run_config.h"
#include "train/report/run_log.h"

enum { MLFLOW_PATH_BYTES = 4096 };

typedef enum {
    MLFLOW_RUNNING = 1,
    MLFLOW_FINISHED = 3,
    MLFLOW_FAILED = 4,
    MLFLOW_KILLED = 5
} mlflow_state;

/* A name of 18 digits, as MLflow makes them. */
#define EXPERIMENT "604739815026113948"

/* Seconds since 1970. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t now_ms(void) {
    return (int64_t)(now() * 1000);
}

/* "KEY: text" of a line of YAML, which takes the strings of JSON. */
static status yaml_text(buf *out, const char *key, const char *text) {
    TRY(buf_printf(out, "%s: \"", key));
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            TRY(buf_printf(out, "\\%c", *c));
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            TRY(buf_printf(out, "\\x%02x", (unsigned char)*c));
        else
            TRY(buf_char(out, *c));
    }
    return buf_text(out, "\"\n");
}

/* file://PATH, with everything but plain characters escaped. */
static status yaml_uri(buf *out, const char *key, const char *path, const char *last) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~";
    TRY(buf_printf(out, "%s: \"file://", key));
    for (const char *c = path; *c != '\0'; c++)
        TRY(strchr(plain, *c) != NULL ? buf_char(out, *c)
                                      : buf_printf(out, "%%%02X", (unsigned char)*c));
    return buf_printf(out, "%s\"\n", last);
}

static status write_experiment(const char *folder) {
    char path[MLFLOW_PATH_BYTES];
    buf b = {0};
    TRY(path_join(path, sizeof path, folder, "meta.yaml"));
    if (file_exists(path)) return OK;
    status st = yaml_uri(&b, "artifact_location", folder, "");
    int64_t now = now_ms();
    if (st == OK)
        st = buf_printf(&b,
                        "creation_time: %" PRId64 "\nexperiment_id: '" EXPERIMENT
                        "'\nlast_update_time: %" PRId64 "\nlifecycle_stage: active\nname: hstu\n",
                        now, now);
    if (st == OK) st = file_write(path, buf_str(&b), b.n_bytes);
    buf_fini(&b);
    return st;
}

static status mlflow_set_state(mlflow_run *m, mlflow_state state) {
    char path[MLFLOW_PATH_BYTES], end[32] = "null";
    buf b = {0};
    TRY(path_join(path, sizeof path, m->folder, "meta.yaml"));
    if (state != MLFLOW_RUNNING) snprintf(end, sizeof end, "%" PRId64, now_ms());
    status st = yaml_uri(&b, "artifact_uri", m->folder, "/artifacts");
    if (st == OK)
        st = buf_printf(&b,
                        "end_time: %s\nentry_point_name: ''\nexperiment_id: '" EXPERIMENT
                        "'\nlifecycle_stage: active\nrun_id: %s\n",
                        end, m->id);
    if (st == OK) st = yaml_text(&b, "run_name", m->name);
    if (st == OK)
        st = buf_printf(&b,
                        "run_uuid: %s\nsource_name: ''\nsource_type: 4\nsource_version: ''\n"
                        "start_time: %" PRId64 "\nstatus: %d\ntags: []\nuser_id: ''\n",
                        m->id, m->start_ms, (int)state);
    if (st == OK) st = file_write(path, buf_str(&b), b.n_bytes);
    buf_fini(&b);
    return st;
}

/* Characters that MLflow allows in names; others become _, and @ becomes _at_. */
static void plain_name(char out[256], const char *name) {
    size_t n = 0;
    for (const char *c = name; *c != '\0' && n + 5 < 256; c++) {
        bool is_plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                        (*c >= '0' && *c <= '9') || *c == '-' || *c == '_' || (*c == '.' && n > 0);
        if (*c == '@') {
            memcpy(out + n, "_at_", 4);
            n += 4;
        } else {
            out[n++] = is_plain ? *c : '_';
        }
    }
    out[n] = '\0';
}

static status write_item(const mlflow_run *m, const char *kind, const char *name,
                         const char *text) {
    char folder[MLFLOW_PATH_BYTES], path[MLFLOW_PATH_BYTES], plain[256];
    plain_name(plain, name);
    TRY(path_join(folder, sizeof folder, m->folder, kind));
    TRY(path_join(path, sizeof path, folder, plain));
    return file_write(path, text, strlen(text));
}

/* MLflow keeps up to 6000 characters of a parameter. */
static status write_params(const mlflow_run *m, const char *run) {
    run_config c;
    status st = run_config_read(&c, run);
    for (size_t i = 0; i < c.n && st == OK; i++) {
        char value[6001];
        if (!run_config_is_option(c.option[i].key) || c.option[i].key[0] == '\0') continue;
        snprintf(value, sizeof value, "%s", c.option[i].value);
        st = write_item(m, "params", c.option[i].key, value);
    }
    run_config_fini(&c);
    return st;
}

/* The first id of the path that is free, or with is_resumed the last one that is not. */
static status choose_id(mlflow_run *m, const char *experiment, const char *path, bool is_resumed) {
    char last[33] = "", folder[MLFLOW_PATH_BYTES];
    for (uint64_t k = 0; k < 1 << 20; k++) {
        snprintf(m->id, sizeof m->id, "%016" PRIx64 "%016" PRIx64,
                 hash64(path, strlen(path), 2 * k), hash64(path, strlen(path), 2 * k + 1));
        TRY(path_join(folder, sizeof folder, experiment, m->id));
        if (!folder_exists(folder)) break;
        memcpy(last, m->id, sizeof last);
    }
    if (is_resumed && last[0] != '\0') memcpy(m->id, last, sizeof last);
    return path_join(m->folder, sizeof m->folder, experiment, m->id);
}

static status read_start(mlflow_run *m) {
    char path[MLFLOW_PATH_BYTES];
    file_map map;
    m->start_ms = now_ms();
    TRY(path_join(path, sizeof path, m->folder, "meta.yaml"));
    if (!file_exists(path)) return OK;
    TRY(file_map_open(&map, path));
    for (size_t i = 0; i + 12 < map.n_bytes; i++)
        if (memcmp(map.bytes + i, "start_time: ", 12) == 0) {
            int64_t value = 0;
            for (i += 12; i < map.n_bytes && map.bytes[i] >= '0' && map.bytes[i] <= '9'; i++)
                if (value < INT64_MAX / 100) value = 10 * value + (map.bytes[i] - '0');
            if (value > 0) m->start_ms = value;
        }
    file_map_close(&map);
    return OK;
}

static status make_folders(const mlflow_run *m) {
    static const char *const kinds[] = {"metrics", "params", "tags", "artifacts"};
    char path[MLFLOW_PATH_BYTES];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        TRY(path_join(path, sizeof path, m->folder, kinds[i]));
        TRY(folder_create(path, NULL));
    }
    return OK;
}

/* run: the folder of the run here, whose config.json gives the parameters.  is_resumed: it goes on.
 */
static status mlflow_open(mlflow_run *m, const char *dir, const char *run, bool is_resumed) {
    char experiment[MLFLOW_PATH_BYTES], root[MLFLOW_PATH_BYTES], path[MLFLOW_PATH_BYTES];
    memset(m, 0, sizeof *m);
    TRY(path_join(experiment, sizeof experiment, dir, EXPERIMENT));
    TRY(folder_create(experiment, NULL));
    if (realpath(dir, root) == NULL || realpath(run, path) == NULL)
        return fail(ERR_IO, "%s or %s: %s", dir, run, strerror(errno));
    TRY(path_join(experiment, sizeof experiment, root, EXPERIMENT));
    TRY(write_experiment(experiment));
    TRY(choose_id(m, experiment, path, is_resumed));
    const char *slash = strrchr(path, '/');
    snprintf(m->name, sizeof m->name, "%.255s",
             slash != NULL && slash[1] != '\0' ? slash + 1 : path);
    TRY(make_folders(m));
    TRY(read_start(m));
    TRY(write_item(m, "tags", "mlflow.runName", m->name));
    TRY(write_item(m, "tags", "mlflow.source.name", "hstu train"));
    TRY(write_params(m, run));
    return mlflow_set_state(m, MLFLOW_RUNNING);
}

static status mlflow_add(mlflow_run *m, const char *metric, double value, int64_t step) {
    char folder[MLFLOW_PATH_BYTES], path[MLFLOW_PATH_BYTES], plain[256], line[96];
    if (!isfinite(value)) return OK;
    plain_name(plain, metric);
    TRY(path_join(folder, sizeof folder, m->folder, "metrics"));
    TRY(path_join(path, sizeof path, folder, plain));
    int n = snprintf(line, sizeof line, "%" PRId64 " %.17g %" PRId64 "\n", now_ms(), value, step);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return fail(ERR_IO, "%s: %s", path, strerror(errno));
    bool is_written = write(fd, line, (size_t)n) == (ssize_t)n;
    int error = errno;
    close(fd);
    return is_written ? OK : fail(ERR_IO, "%s: %s", path, strerror(error));
}

enum { MAX_SCALARS = HISTORY_METRICS + 4, TAG_BYTES = HISTORY_NAME_BYTES + 16 };

/* The scalars of one line, under the names of one tool. */
typedef struct scalar_set {
    event_scalar item[MAX_SCALARS];
    char tag[MAX_SCALARS][TAG_BYTES];
    size_t n;
} scalar_set;

static void add(scalar_set *s, const char *prefix, const char *name, double value) {
    if (!isfinite(value) || s->n == MAX_SCALARS) return;
    snprintf(s->tag[s->n], TAG_BYTES, "%s%.*s", prefix, HISTORY_NAME_BYTES - 1, name);
    s->item[s->n] = (event_scalar){s->tag[s->n], value};
    s->n++;
}

static void add_metrics(scalar_set *s, const char *prefix, const json_value *line) {
    for (const json_value *v = line->first; v != NULL; v = v->next)
        if (history_is_metric(v)) add(s, prefix, v->key, v->number);
}

/* What is counted in steps: Meta's names, and the speed. */
static void add_losses(scalar_set *s, const json_value *line) {
    double loss = history_number(line, "loss");
    add(s, "losses/", "ar_loss", loss);
    add(s, "loss/", "train", loss);
    add(s, "", "lr", history_number(line, "lr"));
    add(s, "speed/", "tokens_per_s", history_number(line, "tokens_per_s"));
}

/* Meta counts an epoch's metrics by epoch and everything else by step. */
static status add_events(tracker *t, const json_value *line, const char *event) {
    scalar_set by_step = {0}, by_epoch = {0};
    int64_t step = (int64_t)history_number(line, "step");
    bool is_done = strcmp(event, "done") == 0;
    if (!is_done) add_losses(&by_step, line);
    if (strcmp(event, "epoch") == 0)
        add_metrics(&by_epoch, "eval_epoch/", line);
    else
        add_metrics(&by_step, is_done ? "test/" : "eval/", line);
    double wall = now();
    if (by_step.n > 0) TRY(event_file_add(&t->events, wall, step, by_step.item, by_step.n));
    if (by_epoch.n == 0) return OK;
    return event_file_add(&t->events, wall, (int64_t)history_number(line, "epoch"), by_epoch.item,
                          by_epoch.n);
}

/* MLflow has one axis: steps.  The run's folder has its config by its first line. */
static status add_mlflow(tracker *t, const json_value *line, const char *event) {
    static const char *const numbers[] = {"loss", "lr", "tokens_per_s"};
    int64_t step = (int64_t)history_number(line, "step");
    bool is_done = strcmp(event, "done") == 0;
    if (t->mlflow.folder[0] == '\0')
        TRY(mlflow_open(&t->mlflow, t->to.mlflow, t->run, t->is_resumed));
    if (strcmp(event, "start") == 0) return OK;
    if (strcmp(event, "interrupted") == 0) return mlflow_set_state(&t->mlflow, MLFLOW_KILLED);
    if (strcmp(event, "failed") == 0) return mlflow_set_state(&t->mlflow, MLFLOW_FAILED);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !is_done; i++)
        TRY(mlflow_add(&t->mlflow, numbers[i], history_number(line, numbers[i]), step));
    for (const json_value *v = line->first; v != NULL; v = v->next) {
        char name[TAG_BYTES];
        if (!history_is_metric(v)) continue;
        snprintf(name, sizeof name, "%s%.*s", is_done ? "test_" : "", HISTORY_NAME_BYTES - 1,
                 v->key);
        TRY(mlflow_add(&t->mlflow, name, v->number, step));
    }
    return is_done ? mlflow_set_state(&t->mlflow, MLFLOW_FINISHED) : OK;
}

static status put_number(buf *out, double value) {
    char text[40];
    TRY(buf_char(out, ','));
    if (!isfinite(value)) return OK;
    for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back */
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return buf_text(out, text);
}

static status describe_csv(const run_history *h, buf *out) {
    TRY(buf_text(out, "epoch,step,loss,lr,tokens_per_s,seconds"));
    for (int m = 0; m < h->n_metrics; m++) {
        TRY(buf_char(out, ','));
        TRY(csv_put_field(out, h->metric[m], strlen(h->metric[m])));
    }
    TRY(buf_char(out, '\n'));
    for (size_t i = 0; i < h->n; i++) {
        TRY(buf_printf(out, "%.0f", h->epoch[i]));
        TRY(put_number(out, h->step[i]));
        TRY(put_number(out, h->loss[i]));
        TRY(put_number(out, h->rate[i]));
        TRY(put_number(out, h->tokens_per_s[i]));
        TRY(put_number(out, h->seconds[i]));
        for (int m = 0; m < h->n_metrics; m++)
            TRY(put_number(out, h->value[m][i]));
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

/* The log is the truth: the table is made from it again. */
static status write_csv(const tracker *t) {
    run_history h;
    buf text = {0};
    status st = run_history_read(&h, t->run);
    if (st == OK) st = describe_csv(&h, &text);
    if (st == OK) st = file_write(t->to.csv, buf_str(&text), text.n_bytes);
    run_history_fini(&h);
    buf_fini(&text);
    return st;
}

status tracker_open(tracker *t, const tracker_options *to, const char *run, uint64_t step) {
    *t = (tracker){.to = *to, .run = run, .events = {.fd = -1}, .is_resumed = step > 0};
    /* What this step has logged stays; later ones come again. */
    if (to->tensorboard != NULL)
        TRY(event_file_open(&t->events, to->tensorboard, step > 0 ? (int64_t)step + 1 : 0));
    return OK;
}

void tracker_close(tracker *t) {
    event_file_close(&t->events);
}

static status add_line(tracker *t, const json_value *line) {
    const char *event = history_text(line, "event");
    if (t->to.mlflow != NULL) TRY(add_mlflow(t, line, event));
    if (strcmp(event, "epoch") != 0 && strcmp(event, "eval") != 0 && strcmp(event, "done") != 0)
        return OK;
    if (t->events.fd >= 0) TRY(add_events(t, line, event));
    return t->to.csv != NULL ? write_csv(t) : OK;
}

status tracker_add(tracker *t, const char *line) {
    arena a;
    const json_value *object;
    if (t->to.tensorboard == NULL && t->to.csv == NULL && t->to.mlflow == NULL) return OK;
    arena_init(&a, 16 << 10);
    status st = json_parse(&a, "log.jsonl", line, strlen(line), &object);
    if (st == OK) st = add_line(t, object);
    arena_fini(&a);
    return st;
}
