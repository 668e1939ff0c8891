/* The public API: thin, so that hstu.h can stay as it is while the inside moves.  Types cross by
 * name only: an hstu_data is a seq_file, an hstu_batcher a batcher. */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "api/api_int.h"
#include "base/env.h"
#include "base/log.h"
#include "data/set/batcher.h"
#include "data/set/seq_file.h"
#include "hstu.h"

_Static_assert((int)HSTU_ERR_NUMERIC == (int)ERR_NUMERIC, "the codes must agree");
_Static_assert((int)HSTU_BY_USER == (int)SPLIT_BY_USER && (int)HSTU_TEST == (int)PART_TEST,
               "splits and parts must agree");

/* A library says nothing unless it is asked to, by HSTU_LOG. */
static void set_log_level(void) {
    log_set_level(LOG_WARN);
}

status api_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_log_level);
    return env_apply_log_level();
}

const char *hstu_version(void) {
    return HSTU_VERSION;
}

const char *hstu_error(void) {
    return status_reason();
}

static const seq_file *file_of(const hstu_data *data) {
    return (const seq_file *)data;
}

hstu_status hstu_data_open(hstu_data **out, const char *path) {
    seq_file *file = NULL;
    pool *p = NULL;
    int n_threads;
    status st = env_threads(&n_threads);
    if (st == OK) st = pool_create(&p, n_threads);
    if (st == OK) st = seq_file_open(&file, path, p);
    pool_destroy(p);
    *out = (hstu_data *)file;
    return (hstu_status)st;
}

void hstu_data_close(hstu_data *data) {
    seq_file_close((seq_file *)data);
}

void hstu_data_get_info(const hstu_data *data, hstu_data_info *out) {
    const seq_file *s = file_of(data);
    *out = (hstu_data_info){.users = s->n_users,
                            .catalogue = s->n_items,
                            .events = s->n_events,
                            .time_per_second = s->time_per_second,
                            .contextual_features = s->n_context,
                            .has_text_users = s->has_text_users,
                            .has_text_items = s->has_text_items};
}

hstu_status hstu_data_history(const hstu_data *data, uint64_t user, hstu_history *out) {
    const seq_file *s = file_of(data);
    *out = (hstu_history){0};
    if (user >= s->n_users)
        return (hstu_status)fail(ERR_USAGE, "user %" PRIu64 " is out of range: there are %" PRIu64,
                                 user, s->n_users);
    uint64_t at = s->offsets[user];
    *out = (hstu_history){seq_length(s, user), s->item + at, s->action + at, s->time + at};
    return HSTU_OK;
}

hstu_status hstu_data_find_user(const hstu_data *data, const char *id, uint64_t *out) {
    *out = seq_find_user(file_of(data), id);
    if (*out != UINT64_MAX) return HSTU_OK;
    return (hstu_status)fail(ERR_USAGE, "user '%.200s' is not in the data", id);
}

hstu_status hstu_data_find_item(const hstu_data *data, const char *id, uint32_t *out) {
    *out = seq_find_item(file_of(data), id);
    if (*out != 0) return HSTU_OK;
    return (hstu_status)fail(ERR_USAGE, "item '%.200s' is not in the catalogue", id);
}

/* Copies the text in `name`, cut to n bytes with the NUL, and releases `name`. */
static hstu_status hand_out(status st, buf *name, char *text, uint64_t n) {
    if (st == OK && n > 0) {
        size_t length = name->n_bytes < n ? name->n_bytes : n - 1;
        memcpy(text, buf_str(name), length);
        text[length] = '\0';
    }
    buf_fini(name);
    return (hstu_status)st;
}

hstu_status hstu_data_item_id(const hstu_data *data, uint32_t item, char *text, uint64_t n) {
    buf name;
    buf_init(&name);
    return hand_out(seq_item_name(file_of(data), item, &name), &name, text, n);
}

hstu_status hstu_data_item_title(const hstu_data *data, uint32_t item, char *text, uint64_t n) {
    buf name;
    buf_init(&name);
    return hand_out(seq_item_title(file_of(data), item, &name), &name, text, n);
}

hstu_status hstu_data_user_id(const hstu_data *data, uint64_t user, char *text, uint64_t n) {
    buf name;
    buf_init(&name);
    return hand_out(seq_user_name(file_of(data), user, &name), &name, text, n);
}

void hstu_batcher_defaults(hstu_batcher_config *out) {
    batcher_config c = batcher_config_default();
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

hstu_status hstu_batcher_create(hstu_batcher **out, const hstu_data *data,
                                const hstu_batcher_config *config) {
    batcher_config c = batcher_config_default();
    if ((unsigned)config->split > HSTU_BY_USER || (unsigned)config->part > HSTU_TEST)
        return (hstu_status)fail(ERR_CONFIG, "the split or the part of a batcher is unknown");
    c.split = split_rule_of((split_kind)config->split);
    c.part = (split_part)config->part;
    c.seed = config->seed;
    c.batch_size = config->batch_size;
    c.max_history = config->max_history;
    c.max_targets = config->max_targets;
    c.n_ranks = config->n_ranks;
    c.rank = config->rank;
    c.n_micro = config->n_micro;
    c.is_shuffled = config->is_shuffled != 0;
    c.is_balanced = config->is_balanced != 0;
    c.drops_last = config->drops_last != 0;
    c.n_threads = config->n_threads;
    return (hstu_status)batcher_create((batcher **)out, file_of(data), &c);
}

void hstu_batcher_destroy(hstu_batcher *b) {
    batcher_destroy((batcher *)b);
}

hstu_status hstu_batcher_next(hstu_batcher *b, hstu_batch *out) {
    const batch *next;
    *out = (hstu_batch){0};
    status st = batcher_next((batcher *)b, &next);
    if (st != OK) return (hstu_status)st;
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
    return HSTU_OK;
}

uint64_t hstu_batcher_n_batches(const hstu_batcher *b) {
    return batcher_n_batches((const batcher *)b);
}

int32_t hstu_batcher_max_tokens(const hstu_batcher *b) {
    return batcher_max_tokens((const batcher *)b);
}
