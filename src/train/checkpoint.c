#include "train/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/safetensors.h"
#include "embed/snapshot.h"
#include "model/vocabulary.h"
#include "nn/param_cut.h"
#include "ops/comm_host.h"

enum { STATE_MAX_BYTES = 1 << 16 };
enum { TENSOR_NAME_BYTES = PARAM_NAME_BYTES + 8 };

/* Host copies of what goes into one safetensors file. */
typedef struct tensor_set {
    st_tensor *tensor;               /* (n) */
    char (*name)[TENSOR_NAME_BYTES]; /* (n) */
    float *values;
    size_t n;
} tensor_set;

static void tensor_set_fini(tensor_set *s) {
    mem_free(s->tensor);
    mem_free(s->name);
    mem_free(s->values);
}

/* Room for `per_param` tensors of every parameter's shape. */
static status tensor_set_init(tensor_set *s, const checkpoint *c, int per_param) {
    size_t n_values = 0, n = (size_t)c->n_params * (size_t)per_param;
    *s = (tensor_set){0};
    for (int i = 0; i < c->n_params; i++)
        n_values += (size_t)param_whole_n(&c->params[i]) * (size_t)per_param;
    status st = MEM_NEW(&s->tensor, n);
    if (st == OK) st = mem_alloc((void **)&s->name, n, sizeof *s->name);
    if (st == OK) st = MEM_NEW_RAW(&s->values, n_values);
    return st;
}

static bool is_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* The parts of all ranks that share the parameter, put together; on the others whole is NULL. */
static status gather_parts(const checkpoint *c, const param *p, const float *own, float *whole) {
    int n_parts = p->cut.n_parts;
    float *parts;
    int64_t *n_rows = NULL;
    TRY(MEM_NEW_RAW(&parts, (size_t)param_whole_n(p)));
    status st = MEM_NEW(&n_rows, (size_t)n_parts);
    for (int r = 0; r < n_parts && st == OK; r++)
        n_rows[r] = p->n;
    float *mine = parts + p->cut.part * p->n;
    if (st == OK) st = c->be->ops->copy_out(c->be, mine, own, (size_t)p->n * sizeof *own);
    all_gather_args a = {.row_bytes = sizeof *parts, .n_rows = n_rows, .from = mine, .to = parts};
    if (st == OK) st = comm_host_gather(c->tensor, &a);
    for (int r = 0; r < n_parts && st == OK && whole != NULL; r++)
        param_cut_put(p, r, parts + r * p->n, whole);
    mem_free(n_rows);
    mem_free(parts);
    return st;
}

/* Adds a copy of one parameter's values or moments. */
static status add_tensor(tensor_set *s, const checkpoint *c, const param *p, const char *suffix,
                         const float *device, float *host) {
    st_tensor *t = &s->tensor[s->n];
    int64_t n = param_whole_n(p);
    snprintf(s->name[s->n], TENSOR_NAME_BYTES, "%s%s", p->name, suffix);
    if (p->cut.n_parts > 1)
        TRY(gather_parts(c, p, device, host));
    else
        TRY(c->be->ops->copy_out(c->be, host, device, (size_t)n * sizeof *host));
    if (!is_finite(host, n))
        return fail(ERR_NUMERIC,
                    "'%s' holds numbers that are not finite; nothing was saved. Resume from the "
                    "last checkpoint with a smaller learning rate, or with clip_grad set",
                    s->name[s->n]);
    *t = (st_tensor){
        .name = s->name[s->n], .dtype = ST_F32, .n_dims = p->n_dims, .n = n, .data = host};
    int64_t shape[4];
    param_whole_shape(p, shape);
    for (int d = 0; d < p->n_dims; d++)
        t->shape[d] = shape[d];
    s->n++;
    return OK;
}

static status write_model(const checkpoint *c, const char *path, const char *config_json,
                          const char *dtype) {
    tensor_set s;
    const st_pair metadata[] = {
        {"format", "hstu model 1"}, {"dtype_str", dtype}, {"config", config_json}};
    status st = tensor_set_init(&s, c, 1);
    float *host = s.values;
    for (int i = 0; i < c->n_params && st == OK; i++) {
        st = add_tensor(&s, c, &c->params[i], "", c->params[i].value, host);
        host += param_whole_n(&c->params[i]);
    }
    if (st == OK) st = st_write(path, s.tensor, s.n, metadata, 3);
    tensor_set_fini(&s);
    return st;
}

static status write_optimizer(const checkpoint *c, const char *path) {
    tensor_set s;
    const st_pair metadata[] = {{"format", "hstu optimizer 1"},
                                {"rows", row_mode_name(c->optimizer->rows)}};
    status st = tensor_set_init(&s, c, 2);
    float *host = s.values;
    for (int i = 0; i < c->n_params && st == OK; i++) {
        const param p = optimizer_state_shape(c->optimizer, &c->params[i]);
        const moments *state = &c->optimizer->state[i];
        if (state->m != NULL) st = add_tensor(&s, c, &p, ".m", state->m, host);
        int64_t n = param_whole_n(&p);
        if (state->v != NULL && st == OK) st = add_tensor(&s, c, &p, ".v", state->v, host + n);
        host += 2 * n;
    }
    if (st == OK) st = st_write(path, s.tensor, s.n, metadata, 2);
    tensor_set_fini(&s);
    return st;
}

/* In the order of write_model and write_optimizer. */
status checkpoint_send_parts(const checkpoint *c) {
    for (int i = 0; i < c->n_params; i++)
        if (c->params[i].cut.n_parts > 1)
            TRY(gather_parts(c, &c->params[i], c->params[i].value, NULL));
    for (int i = 0; i < c->n_params; i++) {
        const moments *state = &c->optimizer->state[i];
        if (c->params[i].cut.n_parts <= 1) continue;
        if (state->m != NULL) TRY(gather_parts(c, &c->params[i], state->m, NULL));
        if (state->v != NULL) TRY(gather_parts(c, &c->params[i], state->v, NULL));
    }
    return OK;
}

static status write_text_file(const char *path, const buf *text) {
    out_file *f;
    TRY(out_file_create(&f, path));
    status st = out_file_write(f, buf_str(text), text->n_bytes);
    if (st == OK) return out_file_commit(f);
    out_file_abandon(f);
    return st;
}

static void write_sums(json_writer *w, const char *key, const train_sums *s) {
    json_key(w, key);
    json_object_open(w);
    json_key_double(w, "loss", s->loss);
    json_key_int(w, "loss_positions", s->n_loss);
    json_key_int(w, "tokens", s->n_tokens);
    json_key_double(w, "seconds", s->seconds);
    json_object_close(w);
}

/* 64-bit seeds are kept as text: JSON's numbers end at 2^53. */
static status write_state(const train_state *s, const char *path) {
    json_writer w;
    buf text;
    char seed[32];
    snprintf(seed, sizeof seed, "%" PRIu64, s->seed);
    buf_init(&text);
    json_begin(&w, &text, 2);
    json_object_open(&w);
    json_key_string(&w, "seed", seed);
    json_key_int(&w, "step", (int64_t)s->step);
    if (s->n_earlier > 0) json_key_int(&w, "earlier_steps", (int64_t)s->n_earlier);
    json_key_int(&w, "epoch", (int64_t)s->epoch);
    split_record_write(&s->split, &w);
    write_sums(&w, "in_epoch", &s->in_epoch);
    write_sums(&w, "in_round", &s->in_round);
    json_key_double(&w, "first_loss", s->first_loss);
    if (s->loss_scale > 0) {
        json_key_double(&w, "loss_scale", s->loss_scale);
        json_key_int(&w, "good_steps", (int64_t)s->n_good_steps);
    }
    json_key_double(&w, "best_metric", s->best_metric);
    json_key_int(&w, "best_step", (int64_t)s->best_step);
    json_key_string(&w, "best_by", s->best_by);
    json_key_int(&w, "evals_since_best", (int64_t)s->n_since_best);
    json_key_int(&w, "patience", s->patience);
    json_key(&w, "batches");
    batcher_state_write(&s->batches, &w);
    json_object_close(&w);
    status st = json_finish(&w);
    if (st == OK) st = write_text_file(path, &text);
    buf_fini(&text);
    return st;
}

/* What a training adds to a count on top of this does not overflow. */
#define COUNT_MAX ((int64_t)1 << 53)

static status member_count(const json_value *object, const char *key, uint64_t *out) {
    int64_t value;
    TRY(json_member_int(object, key, &value));
    if (value < 0 || value > COUNT_MAX)
        return fail(ERR_FORMAT, "'%s' is %" PRId64 ", which no run reaches", key, value);
    *out = (uint64_t)value;
    return OK;
}

static status member_seed(const json_value *object, uint64_t *out) {
    const char *text;
    char end;
    TRY(json_member_string(object, "seed", &text));
    if (sscanf(text, "%" SCNu64 "%c", out, &end) != 1)
        return fail(ERR_FORMAT, "'seed' is no whole number");
    return OK;
}

static status parse_sums(train_sums *s, const json_value *root, const char *key) {
    const json_value *object = json_member(root, key);
    uint64_t n_loss = 0, n_tokens = 0;
    if (object == NULL || object->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "'%s' is missing", key);
    TRY(json_member_double(object, "loss", &s->loss));
    TRY(member_count(object, "loss_positions", &n_loss));
    TRY(member_count(object, "tokens", &n_tokens));
    s->n_loss = (int64_t)n_loss;
    s->n_tokens = (int64_t)n_tokens;
    return json_member_double(object, "seconds", &s->seconds);
}

/* Not in checkpoints of older versions. */
static status parse_patience(train_state *s, const json_value *root) {
    const char *name;
    uint64_t patience = 0;
    s->best_by[0] = '\0';
    s->n_since_best = 0;
    s->patience = 0;
    if (json_member(root, "best_by") == NULL) return OK;
    TRY(json_member_string(root, "best_by", &name));
    if (strlen(name) >= sizeof s->best_by) return fail(ERR_FORMAT, "'best_by' is too long");
    memcpy(s->best_by, name, strlen(name) + 1);
    TRY(member_count(root, "evals_since_best", &s->n_since_best));
    TRY(member_count(root, "patience", &patience));
    s->patience = (int64_t)patience;
    return OK;
}

static status parse_state(train_state *s, const json_value *root) {
    const json_value *batches = json_member(root, "batches");
    if (batches == NULL || batches->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "'batches' is missing");
    TRY(member_seed(root, &s->seed));
    TRY(member_count(root, "step", &s->step));
    s->n_earlier = 0;
    if (json_member(root, "earlier_steps") != NULL)
        TRY(member_count(root, "earlier_steps", &s->n_earlier));
    TRY(member_count(root, "epoch", &s->epoch));
    TRY(split_record_read(&s->split, root));
    TRY(parse_sums(&s->in_epoch, root, "in_epoch"));
    TRY(parse_sums(&s->in_round, root, "in_round"));
    TRY(json_member_double(root, "first_loss", &s->first_loss));
    s->loss_scale = 0;
    s->n_good_steps = 0;
    if (json_member(root, "loss_scale") != NULL) { /* of float16 runs only */
        TRY(json_member_double(root, "loss_scale", &s->loss_scale));
        TRY(member_count(root, "good_steps", &s->n_good_steps));
    }
    TRY(json_member_double(root, "best_metric", &s->best_metric));
    TRY(member_count(root, "best_step", &s->best_step));
    TRY(parse_patience(s, root));
    return batcher_state_read(&s->batches, batches);
}

static status read_state(train_state *s, const char *path) {
    char *text;
    size_t n;
    arena a;
    const json_value *root;
    TRY(file_read_all(path, STATE_MAX_BYTES, &text, &n));
    arena_init(&a, 4096);
    status st = json_parse(&a, path, text, n, &root);
    if (st == OK && root->type != JSON_OBJECT) st = fail(ERR_FORMAT, "%s: no object", path);
    if (st == OK) {
        st = parse_state(s, root);
        if (st != OK) st = fail_prefix(st, "%s", path);
    }
    arena_fini(&a);
    mem_free(text);
    return st;
}

static status write_tables(const checkpoint *c, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    for (int i = 0; c->tables != NULL && i < c->tables->n; i++) {
        if (!dynamic_is_owner(&c->tables->item[i])) continue;
        TRY(checkpoint_table_path(path, c->tables, i, folder));
        TRY(embed_snapshot_write(c->tables->item[i].table, path, (snapshot_ranks){0, 1}, 0));
    }
    return OK;
}

status checkpoint_send_tables(const checkpoint *c) {
    return c->tables != NULL && c->tables->comm != NULL ? write_tables(c, "") : OK;
}

/* The vocabulary of a run does not change, so all its checkpoints share one file. */
static status write_vocabulary(const checkpoint *c, const char *run, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES], last[CHECKPOINT_PATH_BYTES], previous[CHECKPOINT_PATH_BYTES];
    const char *name = checkpoint_file_names[CHECKPOINT_VOCABULARY];
    TRY(path_join(path, sizeof path, folder, name));
    TRY(path_join(last, sizeof last, run, "last"));
    TRY(path_join(previous, sizeof previous, last, name));
    return vocabulary_save(path, previous, c->data, c->n_actions, c->be->workers);
}

static status write_files(const checkpoint *c, const char *run, const char *folder,
                          const char *config_json, const char *dtype) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(write_model(c, path, config_json, dtype));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    TRY(write_optimizer(c, path));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_STATE]));
    TRY(write_state(&c->state, path));
    TRY(write_vocabulary(c, run, folder));
    TRY(write_tables(c, folder));
    return checkpoint_seal(folder, c->state.step, c->tables);
}

status checkpoint_save(const checkpoint *c, const char *run, const char *config_json,
                       const char *dtype, int keep, bool is_best) {
    char temporary[CHECKPOINT_PATH_BYTES], folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_begin(run, c->state.step, temporary, folder));
    status st = write_files(c, run, temporary, config_json, dtype);
    if (st == OK) st = checkpoint_publish(run, temporary, folder, is_best);
    if (st != OK) {
        failure f;
        failure_save(&f, st);
        checkpoint_remove(temporary);
        return failure_restore(&f);
    }
    checkpoint_prune(run, keep);
    return OK;
}

static status load_moments(checkpoint *c, const char *path) {
    st_file *f;
    size_t n = 0;
    const char *rows = row_mode_name(c->optimizer->rows);
    TRY(st_open(&f, path));
    status st = OK;
    const char *saved = st_metadata(f, "rows");
    if (saved == NULL || strcmp(saved, rows) != 0)
        st = fail(ERR_FORMAT, "%s: its rows are %.20s, those of this run %s; the modes do not mix",
                  path, saved != NULL ? saved : "unknown", rows);
    for (int i = 0; i < c->n_params && st == OK; i++) {
        const param p = optimizer_state_shape(c->optimizer, &c->params[i]);
        moments *state = &c->optimizer->state[i];
        if (state->m != NULL) st = checkpoint_load_tensor(f, c->be, &p, ".m", state->m);
        if (state->v != NULL && st == OK) st = checkpoint_load_tensor(f, c->be, &p, ".v", state->v);
        n += (state->m != NULL) + (size_t)(state->v != NULL);
    }
    if (st == OK) st = checkpoint_check_count(f, n);
    st_close(f);
    return st;
}

status checkpoint_load(checkpoint *c, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_verify(folder));
    TRY(checkpoint_load_weights(folder, c->be, c->params, c->n_params, c->tables));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_STATE]));
    TRY(read_state(&c->state, path));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    return load_moments(c, path);
}
