/* The public API: thin, so that hstu.h can stay as it is while the inside moves.  What callers hold
 * are handles (api_int.h): of a seq_file for an hstu_data, of a batcher for an hstu_batcher. */
#include "api/api_int.h"
#include "data/set/batcher.h"
#include "hstu.h"
#include "ops/device.h"

_Static_assert((int)HSTU_ERR_NUMERIC == (int)ERR_NUMERIC, "the codes must agree");
_Static_assert((int)HSTU_BY_USER == (int)SPLIT_BY_USER && (int)HSTU_TEST == (int)PART_TEST,
               "splits and parts must agree");

/* A library logs warnings only, unless HSTU_LOG says otherwise. */
static void set_log_level(void) {
    log_set_level(LOG_WARN);
}

status api_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_log_level);
    return env_apply_log_level();
}

status api_need(const void *argument, const char *name) {
    return argument != NULL ? OK : fail(ERR_USAGE, "the argument '%s' is NULL", name);
}

status api_check_finite(const float *numbers, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(numbers[i]))
            return fail(ERR_NUMERIC, "number %zu of the %s is %g; all must be finite", i, name,
                        (double)numbers[i]);
    return OK;
}

status api_backend(backend **out, pool *workers, const char *device) {
    static const char option[] = "--device cpu", argument[] = "device=\"cpu\"";
    _Static_assert(sizeof option == sizeof argument, "one is written over the other");
    failure f;
    status st = backend_open(out, workers, device != NULL ? device : "auto", false);
    if (st == OK) return OK;
    failure_save(&f, st);
    char *at = strstr(f.reason, option);
    if (at != NULL) memcpy(at, argument, sizeof argument - 1);
    return failure_restore(&f);
}

const char *hstu_version(void) {
    return HSTU_VERSION;
}

const char *hstu_error(void) {
    return status_reason();
}

static void close_file(void *file) {
    seq_file_close(file);
}

/* A mapped file has no threads: a child of fork() may keep using it. */
static const handle_type data_type = {"data set", close_file, .survives_fork = true};

hstu_status hstu_data_open(hstu_data **out, const char *path) {
    seq_file *file = NULL;
    pool *p = NULL;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(api_need(path, "path"));
    status st = pool_create_default(&p);
    if (st == OK) st = seq_file_open(&file, path, p);
    pool_destroy(p);
    return (hstu_status)handle_open(out, &data_type, file, st);
}

void hstu_data_close(hstu_data *data) {
    handle_close(data, &data_type);
}

/* The data of their own handle, or those of a model; handle_release ends it. */
static status hold_data(handle **h, const hstu_data *data, const seq_file **file) {
    bool is_of_model = handle_type_of(data) == &api_model_type;
    TRY(handle_hold(h, data, is_of_model ? &api_model_type : &data_type));
    *file = is_of_model ? api_model_file(handle_object(*h)) : handle_object(*h);
    return OK;
}

hstu_status hstu_data_get_info(const hstu_data *data, hstu_data_info *out) {
    const seq_file *s;
    handle *h;
    API_TRY(api_need(out, "out"));
    *out = (hstu_data_info){0};
    status st = hold_data(&h, data, &s);
    if (st == OK)
        *out = (hstu_data_info){.users = s->n_users,
                                .catalogue = s->n_items,
                                .events = s->n_events,
                                .time_per_second = s->time_per_second,
                                .contextual_features = s->n_context,
                                .has_text_users = s->has_text_users,
                                .has_text_items = s->has_text_items};
    return handle_release(h, st);
}

static status check_user(const seq_file *s, uint64_t user) {
    if (user < s->n_users) return OK;
    return fail(ERR_USAGE, "user %" PRIu64 " is out of range: there are %" PRIu64, user,
                s->n_users);
}

static status view_history(const seq_file *s, uint64_t user, hstu_history *out) {
    TRY(check_user(s, user));
    uint64_t at = s->offsets[user];
    *out = (hstu_history){seq_length(s, user), s->item + at, s->action + at, s->time + at};
    return OK;
}

hstu_status hstu_data_history(const hstu_data *data, uint64_t user, hstu_history *out) {
    const seq_file *s;
    handle *h;
    API_TRY(api_need(out, "out"));
    *out = (hstu_history){0};
    status st = hold_data(&h, data, &s);
    if (st == OK) st = view_history(s, user, out);
    return handle_release(h, st);
}

hstu_status hstu_data_copy_history(const hstu_data *data, uint64_t user, uint64_t n, uint32_t *item,
                                   uint16_t *action, int64_t *time) {
    const seq_file *s;
    handle *h = NULL;
    hstu_history view = {0};
    status st = hold_data(&h, data, &s);
    if (st == OK) st = view_history(s, user, &view);
    if (st == OK && n > view.length)
        st = fail(ERR_USAGE, "user %" PRIu64 " has %" PRIu64 " events, not %" PRIu64, user,
                  view.length, n);
    if (st == OK && n > 0) {
        if (item != NULL) memcpy(item, view.item, n * sizeof *item);
        if (action != NULL) memcpy(action, view.action, n * sizeof *action);
        if (time != NULL) memcpy(time, view.time, n * sizeof *time);
    }
    return handle_release(h, st);
}

hstu_status hstu_data_find_user(const hstu_data *data, const char *id, uint64_t *out) {
    const seq_file *s;
    handle *h;
    API_TRY(api_need(id, "id"));
    API_TRY(api_need(out, "out"));
    status st = hold_data(&h, data, &s);
    if (st == OK) *out = seq_find_user(s, id);
    if (st == OK && *out == UINT64_MAX)
        st = fail(ERR_USAGE, "user '%.200s' is not in the data", id);
    return handle_release(h, st);
}

hstu_status hstu_data_find_item(const hstu_data *data, const char *id, uint32_t *out) {
    const seq_file *s;
    handle *h;
    API_TRY(api_need(id, "id"));
    API_TRY(api_need(out, "out"));
    status st = hold_data(&h, data, &s);
    if (st == OK) *out = seq_find_item(s, id);
    if (st == OK && *out == 0) st = fail(ERR_USAGE, "item '%.200s' is not in the catalogue", id);
    return handle_release(h, st);
}

hstu_status hstu_data_find_action(const hstu_data *data, const char *name, uint16_t *out) {
    const seq_file *s;
    handle *h;
    API_TRY(api_need(name, "name"));
    API_TRY(api_need(out, "out"));
    status st = hold_data(&h, data, &s);
    if (st == OK && !seq_find_action(s, name, strlen(name), out))
        st = fail(ERR_USAGE, "there is no action '%.200s'; the data have %.200s", name,
                  s->action_map != NULL ? s->action_map : "no names of actions");
    return handle_release(h, st);
}

typedef status (*name_fn)(const seq_file *s, uint64_t number, buf *out);

static status item_id(const seq_file *s, uint64_t item, buf *out) {
    return seq_item_name(s, (uint32_t)item, out);
}

static status item_title(const seq_file *s, uint64_t item, buf *out) {
    return seq_item_title(s, (uint32_t)item, out);
}

/* The text of `number`, cut to n bytes with its NUL. */
static hstu_status copy_name(const hstu_data *data, name_fn name_of, uint64_t number, char *text,
                             uint64_t n) {
    const seq_file *s;
    handle *h = NULL;
    buf name = {0};
    status st = n > 0 ? api_need(text, "text") : OK;
    if (st == OK) st = hold_data(&h, data, &s);
    if (st == OK && name_of != seq_user_name && (number < 1 || number > s->n_items))
        st = fail(ERR_USAGE, "item %" PRIu64 " is out of range: there are %" PRIu64, number,
                  s->n_items);
    if (st == OK && name_of == seq_user_name) st = check_user(s, number);
    if (st == OK) st = name_of(s, number, &name);
    if (st == OK && n > 0) {
        size_t length = name.n_bytes < n ? name.n_bytes : n - 1;
        memcpy(text, buf_str(&name), length);
        text[length] = '\0';
    }
    buf_fini(&name);
    return handle_release(h, st);
}

hstu_status hstu_data_item_id(const hstu_data *data, uint32_t item, char *text, uint64_t n) {
    return copy_name(data, item_id, item, text, n);
}

hstu_status hstu_data_item_title(const hstu_data *data, uint32_t item, char *text, uint64_t n) {
    return copy_name(data, item_title, item, text, n);
}

hstu_status hstu_data_user_id(const hstu_data *data, uint64_t user, char *text, uint64_t n) {
    return copy_name(data, seq_user_name, user, text, n);
}

void hstu_batcher_defaults(hstu_batcher_config *out) {
    batcher_config c = batcher_config_default();
    if (out == NULL) return;
    *out = (hstu_batcher_config){.split = (hstu_split)c.split.kind,
                                 .part = (hstu_part)c.part,
                                 .seed = c.seed,
                                 .batch_size = c.batch_size,
                                 .max_history = c.max_history,
                                 .max_targets = c.max_targets,
                                 .n_ranks = c.n_ranks,
                                 .rank = c.rank,
                                 .n_micro = c.n_micro,
                                 .is_shuffled = c.is_shuffled,
                                 .is_balanced = c.is_balanced,
                                 .drops_last = c.drops_last,
                                 .n_threads = c.n_threads};
}

/* A batcher holds its data, so that they may be closed first. */
typedef struct data_batcher {
    batcher *b;
    handle *data;
} data_batcher;

static void destroy_batcher(void *object) {
    data_batcher *d = object;
    batcher_destroy(d->b);
    handle_release(d->data, OK);
    mem_free(d);
}

static const handle_type batcher_type = {"batcher", destroy_batcher, .survives_fork = false};

static status lower(const hstu_batcher_config *config, batcher_config *c) {
    TRY(api_need(config, "config"));
    if ((unsigned)config->split > HSTU_BY_USER || (unsigned)config->part > HSTU_TEST)
        return fail(ERR_CONFIG, "the split or the part of a batcher is unknown");
    *c = batcher_config_default();
    c->split = split_rule_of((split_kind)config->split);
    c->part = (split_part)config->part;
    c->seed = config->seed;
    c->batch_size = config->batch_size;
    c->max_history = config->max_history;
    c->max_targets = config->max_targets;
    c->n_ranks = config->n_ranks;
    c->rank = config->rank;
    c->n_micro = config->n_micro;
    c->is_shuffled = config->is_shuffled != 0;
    c->is_balanced = config->is_balanced != 0;
    c->drops_last = config->drops_last != 0;
    c->n_threads = config->n_threads;
    return OK;
}

static status create_batcher(data_batcher *d, const hstu_data *data,
                             const hstu_batcher_config *config) {
    batcher_config c;
    const seq_file *file;
    TRY(lower(config, &c));
    TRY(hold_data(&d->data, data, &file));
    return batcher_create(&d->b, file, &c);
}

hstu_status hstu_batcher_create(hstu_batcher **out, const hstu_data *data,
                                const hstu_batcher_config *config) {
    data_batcher *d;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(MEM_NEW(&d, 1));
    return (hstu_status)handle_open(out, &batcher_type, d, create_batcher(d, data, config));
}

void hstu_batcher_destroy(hstu_batcher *b) {
    handle_close(b, &batcher_type);
}

static status next_batch(data_batcher *d, hstu_batch *out) {
    const batch *next;
    TRY(batcher_next(d->b, &next));
    *out = (hstu_batch){.n_users = next->n_users,
                        .n_tokens = next->n_tokens,
                        .n_context = next->n_context,
                        .offsets = next->offsets,
                        .users = next->users,
                        .n_targets = next->n_targets,
                        .item = next->item,
                        .action = next->action,
                        .time = next->time,
                        .context = next->context,
                        .epoch = next->epoch,
                        .index = next->index,
                        .is_last = next->is_last};
    return OK;
}

static batcher *batcher_of(const handle *h) {
    return ((const data_batcher *)handle_object(h))->b;
}

hstu_status hstu_batcher_next(hstu_batcher *b, hstu_batch *out) {
    API_TRY(api_need(out, "out"));
    *out = (hstu_batch){0};
    RETURN_WITHIN(b, &batcher_type, next_batch(object, out));
}

uint64_t hstu_batcher_n_batches(const hstu_batcher *b) {
    handle *h;
    status st = handle_hold(&h, b, &batcher_type);
    uint64_t n = st == OK ? batcher_n_batches(batcher_of(h)) : 0;
    handle_release(h, st);
    return n;
}

int32_t hstu_batcher_max_tokens(const hstu_batcher *b) {
    handle *h;
    status st = handle_hold(&h, b, &batcher_type);
    int32_t n = st == OK ? batcher_max_tokens(batcher_of(h)) : 0;
    handle_release(h, st);
    return n;
}
