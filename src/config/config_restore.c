/* The way back from the JSON echo: every value becomes a gin binding, and the gin text is loaded
 * and checked like any other.  So a checkpoint can be opened without its gin file and includes, and
 * a config that we cannot have written is refused by the same rules. */
#include <string.h>

#include "config/config.h"
#include "format/json.h"

static status write_value(const json_value *v, buf *out);

/* Writes a gin string, with gin's escapes. */
static status write_text(const char *text, buf *out) {
    TRY(buf_char(out, '\''));
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            TRY(buf_text(out, "\\n"));
            continue;
        }
        if (*text == '\'' || *text == '\\') TRY(buf_char(out, '\\'));
        TRY(buf_char(out, *text));
    }
    return buf_char(out, '\'');
}

static status write_children(const json_value *v, const char *open, const char *close, buf *out) {
    TRY(buf_text(out, open));
    for (const json_value *e = v->first; e != NULL; e = e->next) {
        if (v->type == JSON_OBJECT) {
            TRY(write_text(e->key, out));
            TRY(buf_text(out, ": "));
        }
        TRY(write_value(e, out));
        if (e->next != NULL) TRY(buf_text(out, ", "));
    }
    return buf_text(out, close);
}

static status write_value(const json_value *v, buf *out) {
    switch (v->type) {
    case JSON_NULL:
        return buf_text(out, "None");
    case JSON_BOOL:
        return buf_text(out, v->boolean ? "True" : "False");
    case JSON_NUMBER:
        if (v->is_integer) return buf_printf(out, "%lld", (long long)v->integer);
        return buf_printf(out, "%.17g", v->number);
    case JSON_STRING:
        return write_text(v->string, out);
    case JSON_ARRAY:
        return write_children(v, "[", "]", out);
    case JSON_OBJECT:
        return write_children(v, "{", "}", out);
    }
    return OK;
}

/* A name that goes into gin text without quotes must be an identifier (a scope may have slashes).
 */
static status check_name(const char *name) {
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./");
    if (n > 0 && name[n] == '\0') return OK;
    return fail(ERR_FORMAT, "'%.60s' is not the name of an option or a table", name);
}

static status write_class(const char *prefix, const json_value *object, buf *out) {
    TRY(check_name(object->key));
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        TRY(check_name(v->key));
        TRY(buf_printf(out, "%s%s.%s = ", prefix, object->key, v->key));
        TRY(write_value(v, out));
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

/* One table: its scope and class are members beside the values. */
static status write_table(const json_value *table, buf *names, buf *out) {
    const char *scope, *class_;
    TRY(json_member_string(table, "scope", &scope));
    TRY(json_member_string(table, "class", &class_));
    TRY(check_name(scope));
    TRY(check_name(class_));
    TRY(buf_printf(names, "%s@%s/%s()", names->n_bytes > 0 ? ", " : "", scope, class_));
    for (const json_value *v = table->first; v != NULL; v = v->next) {
        if (strcmp(v->key, "scope") == 0 || strcmp(v->key, "class") == 0) continue;
        TRY(check_name(v->key));
        TRY(buf_printf(out, "%s/%s.%s = ", scope, class_, v->key));
        TRY(write_value(v, out));
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

static status write_tables(const json_value *tables, buf *out) {
    buf names;
    status st = OK;
    if (tables->type != JSON_ARRAY) return fail(ERR_FORMAT, "'embeddings' is not a list");
    buf_init(&names);
    for (const json_value *t = tables->first; t != NULL && st == OK; t = t->next)
        st = write_table(t, &names, out);
    if (st == OK && names.n_bytes > 0)
        st = buf_printf(out, "BenchmarkDatasetArgs.embedding_args = [%s]\n", buf_str(&names));
    buf_fini(&names);
    return st;
}

static status write_gin(const json_value *root, config_source *to, buf *out) {
    const json_value *source = json_member(root, "source");
    if (source == NULL || source->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "the config has no 'source'");
    TRY(json_member_string(source, "task", &to->task));
    TRY(json_member_string(source, "file", &to->text_name));
    const json_value *data = json_member(source, "data");
    if (data != NULL && data->type == JSON_STRING && strcmp(data->string, "generated") == 0)
        return fail(ERR_CONFIG,
                    "the run was on generated data, which only its gin file describes (%s)",
                    to->text_name);
    for (const json_value *v = root->first; v != NULL; v = v->next) {
        if (v == source || strcmp(v->key, "run") == 0) continue; /* not options */
        if (strcmp(v->key, "embeddings") == 0) {
            TRY(write_tables(v, out));
        } else if (v->type == JSON_OBJECT) {
            TRY(write_class("", v, out));
        }
    }
    return OK;
}

/* Overrides given with --set are in the values already; they are kept as a record. */
static status copy_overrides(config *c, const json_value *root) {
    const json_value *list = json_member(json_member(root, "source"), "overrides");
    if (list == NULL || list->type != JSON_ARRAY) return OK;
    TRY(ARENA_NEW(&c->memory, &c->overrides.item, list->n_children));
    for (const json_value *v = list->first; v != NULL; v = v->next)
        if (v->type == JSON_STRING)
            TRY(arena_copy_text(&c->memory, v->string, v->string_bytes,
                                &c->overrides.item[c->overrides.n++]));
    return OK;
}

static status read_count(const json_value *source, const char *key, int64_t most, int64_t *out) {
    int64_t n;
    if (json_member(source, key) == NULL) return OK; /* not given, or by an older version */
    TRY(json_member_int(source, key, &n));
    if (n < 1 || n > most) return fail(ERR_FORMAT, "the config's '%s' is %lld", key, (long long)n);
    *out = n;
    return OK;
}

/* The length of the run from the command line, for which the family may have no option. */
static status read_length(config *c, const json_value *root) {
    const json_value *source = json_member(root, "source");
    TRY(read_count(source, "epochs", 1 << 20, &c->trainer.n_epochs));
    return read_count(source, "max_iters", (int64_t)1 << 53, &c->trainer.max_train_iters);
}

/* Where the run's weights came from. */
static status read_start(config *c, const json_value *root) {
    const json_value *source = json_member(root, "source");
    const char *from, *new_items;
    if (json_member(source, "init_from") == NULL) return OK;
    TRY(json_member_string(source, "init_from", &from));
    TRY(json_member_string(source, "new_items", &new_items));
    c->trainer.has_mean_items = strcmp(new_items, "mean") == 0;
    return arena_copy_text(&c->memory, from, strlen(from), &c->trainer.resume_folder);
}

status config_load_json(config **out, const char *name, const char *json, size_t n) {
    arena a;
    buf text;
    const json_value *root;
    config_source source = {0};
    *out = NULL;
    arena_init(&a, 16 << 10);
    buf_init(&text);
    status st = json_parse(&a, name, json, n, &root);
    if (st == OK && root->type != JSON_OBJECT)
        st = fail(ERR_FORMAT, "%s: the config is not an object", name);
    if (st == OK) {
        st = write_gin(root, &source, &text);
        if (st != OK) st = fail_prefix(st, "%s", name);
    }
    source.text = buf_str(&text);
    source.text_bytes = text.n_bytes;
    if (st == OK) st = config_load(out, &source);
    if (st == OK) st = copy_overrides(*out, root);
    if (st == OK) {
        st = read_length(*out, root);
        if (st == OK) st = read_start(*out, root);
        if (st != OK) st = fail_prefix(st, "%s", name);
    }
    if (st != OK) {
        config_destroy(*out);
        *out = NULL;
    }
    buf_fini(&text);
    arena_fini(&a);
    return st;
}
