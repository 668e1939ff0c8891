#include "train/files/run_config.h"

enum { CONFIG_MAX_BYTES = 1 << 24, KEY_BYTES = 512, ARENA_BYTES = 16 << 10 };

static status add_option(run_config *c, const char *key, const json_value *v) {
    buf text = {0};
    json_writer w;
    run_option option;
    status st = OK;
    if (v->type == JSON_STRING) {
        st = buf_append(&text, v->string, v->string_bytes);
    } else {
        json_begin(&w, &text, 0);
        json_value_write(&w, v);
        st = json_finish(&w);
    }
    if (st == OK) st = arena_copy_text(&c->memory, key, strlen(key), &option.key);
    if (st == OK) st = arena_copy_text(&c->memory, buf_str(&text), text.n_bytes, &option.value);
    if (st == OK) st = MEM_RESERVE(&c->option, &c->capacity, c->n + 1);
    if (st == OK) c->option[c->n++] = option;
    buf_fini(&text);
    return st;
}

/* Objects become prefixes; everything else, lists included, is a value. */
static status flatten(run_config *c, const char *prefix, const json_value *object) {
    char key[KEY_BYTES];
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        int n = snprintf(key, sizeof key, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", v->key);
        if (n >= (int)sizeof key) return fail(ERR_FORMAT, "a key is too long: %.60s...", key);
        TRY(v->type == JSON_OBJECT ? flatten(c, key, v) : add_option(c, key, v));
    }
    return OK;
}

status run_config_parse(run_config *c, const char *name, const char *text, size_t n) {
    *c = (run_config){0};
    arena_init(&c->memory, ARENA_BYTES);
    TRY(json_parse(&c->memory, name, text, n, &c->root));
    if (c->root->type != JSON_OBJECT) return fail(ERR_FORMAT, "%s: no object", name);
    status st = flatten(c, "", c->root);
    return st == OK ? OK : fail_prefix(st, "%s", name);
}

status run_config_read(run_config *c, const char *run) {
    char path[4096], *text;
    size_t n;
    *c = (run_config){0};
    TRY(path_join(path, sizeof path, run, "config.json"));
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    status st = run_config_parse(c, path, text, n);
    mem_free(text);
    return st;
}

void run_config_fini(run_config *c) {
    arena_fini(&c->memory);
    mem_free(c->option);
    *c = (run_config){0};
}

const char *run_config_value(const run_config *c, const char *key) {
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->option[i].key, key) == 0) return c->option[i].value;
    return NULL;
}

/* RUN/config.json: of the folder itself, or of one of the two above a checkpoint. */
static void find_data(const char *path, char room[RUN_DATA_BYTES]) {
    static const char *const above[] = {"", "/..", "/../.."};
    for (int i = 0; i < 3 && room[0] == '\0'; i++) {
        char run[RUN_DATA_BYTES];
        run_config c = {0};
        if (snprintf(run, sizeof run, "%s%s", path, above[i]) >= (int)sizeof run) return;
        const char *data = run_config_read(&c, run) == OK ? run_config_value(&c, "run.data") : NULL;
        if (data != NULL) snprintf(room, RUN_DATA_BYTES, "%s", data);
        run_config_fini(&c);
    }
}

status run_config_find_data(const char *path, const char *usage, char room[RUN_DATA_BYTES],
                            const char **data) {
    if (*data != NULL) return OK;
    room[0] = '\0';
    find_data(path, room);
    if (!folder_exists(path)) return fail(ERR_IO, "%s: no such folder", path);
    if (room[0] == '\0')
        return fail(ERR_USAGE,
                    "--data DIR is missing, and %s does not say what it was trained on; "
                    "usage: %s",
                    path, usage);
    if (!file_exists(room))
        return fail(ERR_USAGE,
                    "--data DIR is missing: the run was trained on %s, which is not there", room);
    log_info("data: %s, those of the run", room);
    *data = room;
    return OK;
}

bool run_config_is_option(const char *key) {
    return strcmp(key, "source.overrides") != 0 && strcmp(key, "run.changes") != 0 &&
           strcmp(key, "crc32") != 0;
}

void run_config_keep_batch(config *c, const char *run) {
    run_config before;
    bool is_meta = c->family == FAMILY_META;
    if (run_config_read(&before, run) == OK) {
        const char *value = run_config_value(
            &before, is_meta ? "train_fn.batch_ranks" : "TensorModelParallelArgs.batch_ranks");
        long n =
            value != NULL ? strtol(value, NULL, 10) : 1; /* runs of before have no such option */
        if (n >= 1 && n <= 65536) c->trainer.batch_ranks = n;
    }
    run_config_fini(&before);
}
