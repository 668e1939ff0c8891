#include "train/files/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "embed/snapshot.h"
#include "format/json.h"
#include "model/vocabulary.h"
#include "ops/comm.h"
#include "train/files/checkpoint_parts.h"

enum { STATE_MAX_BYTES = 1 << 16 };
/* A list of the tensors of one file; room for `per_param` of every parameter. */
typedef struct tensor_list {
    part_tensor *item; /* (n) */
    int n;
} tensor_list;

static status list_init(tensor_list *l, const checkpoint *c, int per_param) {
    l->n = 0;
    return MEM_NEW(&l->item, (size_t)c->n_params * (size_t)per_param);
}

static void list_add(tensor_list *l, const param *p, const char *suffix, const float *value) {
    part_tensor *t = &l->item[l->n++];
    snprintf(t->name, sizeof t->name, "%s%s", p->name, suffix);
    t->shape = *p;
    t->value = value;
}

static status write_model(const checkpoint *c, const char *path, const char *config_json,
                          const char *dtype) {
    tensor_list l;
    const st_pair metadata[] = {
        {"format", "hstu model 1"}, {"dtype_str", dtype}, {"config", config_json}};
    TRY(list_init(&l, c, 1));
    for (int i = 0; i < c->n_params; i++)
        list_add(&l, &c->params[i], "", c->params[i].value);
    status st = checkpoint_write_parts(c, path, l.item, l.n, metadata, 3);
    mem_free(l.item);
    return st;
}

static status write_optimizer(const checkpoint *c, const char *path) {
    tensor_list l;
    const st_pair metadata[] = {{"format", "hstu optimizer 1"},
                                {"rows", row_mode_name(c->optimizer->rows)}};
    TRY(list_init(&l, c, 2));
    for (int i = 0; i < c->n_params; i++) {
        const param p = optimizer_state_shape(c->optimizer, &c->params[i]);
        const moments *state = &c->optimizer->state[i];
        if (state->m != NULL) list_add(&l, &p, ".m", state->m);
        if (state->v != NULL) list_add(&l, &p, ".v", state->v);
    }
    status st = checkpoint_write_parts(c, path, l.item, l.n, metadata, 2);
    mem_free(l.item);
    return st;
}

static status write_text_file(const char *path, const buf *text) {
    out_file *f;
    TRY(out_file_create(&f, path));
    return out_file_end(f, out_file_write(f, buf_str(text), text->n_bytes));
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

/* Ranks that hold tables together write them together; of those that each have all rows the first
 * one does. */
static status write_tables(const checkpoint *c, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    if (c->tables == NULL || (c->tables->comm == NULL && !comm_is_first(c->world))) return OK;
    for (int i = 0; i < c->tables->n; i++) {
        if (!dynamic_is_owner(&c->tables->item[i])) continue;
        TRY(checkpoint_table_path(path, c->tables, i, folder));
        TRY(embed_snapshot_write(c->tables->item[i].table, path, (snapshot_ranks){0, 1}, 0));
    }
    return OK;
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

/* What the first rank writes alone. */
static status write_small_files(const checkpoint *c, const char *run, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_STATE]));
    TRY(write_state(&c->state, path));
    return write_vocabulary(c, run, folder);
}

static status write_files(const checkpoint *c, const char *run, const char *folder,
                          const char *config_json, const char *dtype) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(write_model(c, path, config_json, dtype));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    TRY(write_optimizer(c, path));
    status st = comm_is_first(c->world) ? write_small_files(c, run, folder) : OK;
    TRY(comm_host_agree(c->world, st));
    /* Where ranks form groups, the first ones of all groups hold the tables together, and so do the
     * second ones. */
    return comm_is_first(c->group) ? write_tables(c, folder) : OK;
}

/* Names the folders on the first rank, and tells the others. */
static status begin(const checkpoint *c, const char *run, char *temporary, char *folder) {
    status st = OK;
    if (comm_is_first(c->world)) st = checkpoint_begin(run, c->state.step, temporary, folder);
    TRY(comm_host_agree(c->world, st));
    if (c->world == NULL) return OK;
    TRY(comm_host_broadcast(c->world, temporary, CHECKPOINT_PATH_BYTES, 0));
    return comm_host_broadcast(c->world, folder, CHECKPOINT_PATH_BYTES, 0);
}

status checkpoint_save(const checkpoint *c, const char *run, const char *config_json,
                       const char *dtype, int keep, bool is_best) {
    char temporary[CHECKPOINT_PATH_BYTES], folder[CHECKPOINT_PATH_BYTES];
    bool is_first = comm_is_first(c->world);
    TRY(begin(c, run, temporary, folder));
    status st = comm_host_agree(c->world, write_files(c, run, temporary, config_json, dtype));
    if (st == OK && is_first) st = checkpoint_seal(temporary, c->state.step, c->tables);
    if (st == OK && is_first) st = checkpoint_publish(run, temporary, folder, is_best);
    if (st != OK && is_first) {
        failure f;
        failure_save(&f, st);
        checkpoint_remove(temporary);
        st = failure_restore(&f);
    }
    TRY(comm_host_agree(c->world, st));
    if (is_first) checkpoint_prune(run, keep);
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
