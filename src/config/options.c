/* Looking options up, checking and storing values; values as JSON, and the table itself for people.
 */
#include "config/options.h"
#include "config/metric_list.h"

enum { MAX_LIST = 1024, MAX_TEXT_BYTES = 4096 }; /* more is a mistake, or an attack */

static const option_class *option_class_find(const char *name, size_t n) {
    for (size_t i = 0; i < n_option_classes; i++)
        if (strlen(option_classes[i].name) == n && memcmp(option_classes[i].name, name, n) == 0)
            return &option_classes[i];
    return NULL;
}

const char *option_field(const option *o) {
    return strchr(o->name, '.') + 1;
}

const option_class *option_class_of(const option *o) {
    return option_class_find(o->name, (size_t)(strchr(o->name, '.') - o->name));
}

const option *option_find(const char *class_name, const char *field) {
    size_t n = strlen(class_name);
    for (size_t i = 0; i < n_options; i++) {
        const char *name = option_table[i].name;
        if (strncmp(name, class_name, n) == 0 && name[n] == '.' && strcmp(name + n + 1, field) == 0)
            return &option_table[i];
    }
    return NULL;
}

/* The nearest field of the same class first: a typo is usually in the field. */
static const char *nearest_option(const gin_binding *b, const char *name) {
    const char *names[512];
    const char *nearest = NULL;
    size_t n = 0, n_class = strlen(b->class_name);
    for (size_t i = 0; i < n_options; i++)
        if (strncmp(option_table[i].name, b->class_name, n_class) == 0 &&
            option_table[i].name[n_class] == '.')
            names[n++] = option_table[i].name;
    if (n > 0) nearest = nearest_name(name, names, n);
    if (nearest != NULL) return nearest;
    for (size_t i = n = 0; i < n_options; i++)
        names[n++] = option_table[i].name;
    return nearest_name(name, names, n);
}

status option_fail_unknown(const gin_binding *b) {
    char name[256];
    snprintf(name, sizeof name, "%.120s.%.120s", b->class_name, b->field);
    const char *nearest = nearest_option(b, name);
    if (nearest != NULL)
        return gin_fail(b->file, b->line, "unknown option '%s'; did you mean '%s'?", name, nearest);
    return gin_fail(b->file, b->line,
                    "unknown option '%s'; 'hstu train --help-config' lists them all", name);
}

static status fail_type(const option *o, const gin_value *v, const char *wanted) {
    char text[256];
    return gin_fail(v->file, v->line, "%s wants %s%s, not %s", o->name, wanted,
                    o->flags & OPT_NULLABLE ? " or None" : "", gin_describe(v, text, sizeof text));
}

static status check_range(const option *o, const gin_value *v) {
    char text[256], upper[64] = "";
    if (o->min == 0 && o->max == 0) return OK;
    bool is_low = o->flags & OPT_ABOVE_MIN ? v->number <= o->min : v->number < o->min;
    bool is_high = o->flags & OPT_BELOW_MAX ? v->number >= o->max : v->number > o->max;
    if (!is_low && !is_high) return OK;
    if (is_high || o->max < 1e15) /* a huge bound is shown only if the value is above it */
        snprintf(upper, sizeof upper, " and %s %.10g",
                 o->flags & OPT_BELOW_MAX ? "below" : "at most", o->max);
    return gin_fail(v->file, v->line, "%s = %s is out of range; it must be %s %.10g%s", o->name,
                    gin_describe(v, text, sizeof text),
                    o->flags & OPT_ABOVE_MIN ? "above" : "at least", o->min, upper);
}

/* The index of a word among "a|b|c", whatever its case (the reference lowers it, too); -1. */
static int choice_index(const char *choices, const char *word) {
    size_t n_word = strlen(word);
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == n_word && strncasecmp(choices, word, n) == 0) return i;
        if (choices[n] == '\0') return -1;
        choices += n + 1;
    }
}

/* The word of a choice, as the table spells it; not NUL-terminated. */
static const char *option_choice(const option *o, int index, size_t *n) {
    const char *word = o->choices;
    for (; index > 0; index--)
        word += strcspn(word, "|") + 1;
    *n = strcspn(word, "|");
    return word;
}

static status check_choice(const option *o, const gin_value *v, int *out) {
    if (v->type != GIN_STRING) return fail_type(o, v, "a string");
    *out = choice_index(o->choices, v->string);
    if (*out >= 0) return OK;
    return gin_fail(v->file, v->line, "%s = '%.100s' is not one of its choices: %s", o->name,
                    v->string, o->choices);
}

static status check_list(const option *o, const gin_value *v, const char *wanted) {
    if (v->type != GIN_LIST && v->type != GIN_TUPLE) return fail_type(o, v, wanted);
    if (v->n_children > MAX_LIST)
        return gin_fail(v->file, v->line, "%s has %u elements; %d are possible", o->name,
                        (unsigned)v->n_children, (int)MAX_LIST);
    return OK;
}

static status check_text(const option *o, const gin_value *v) {
    if (v->type != GIN_STRING) return fail_type(o, v, "a string");
    if (strlen(v->string) <= MAX_TEXT_BYTES) return OK;
    return gin_fail(v->file, v->line, "%s is a string of more than %d bytes", o->name,
                    (int)MAX_TEXT_BYTES);
}

/* Python would keep the last of two equal keys; here they are an error, because one is a mistake.
 */
static status check_key(const option *o, const gin_value *dict, const gin_value *entry) {
    TRY(check_text(o, entry->key));
    for (const gin_value *e = dict->first; e != entry; e = e->next)
        if (strcmp(e->key->string, entry->key->string) == 0)
            return gin_fail(entry->file, entry->line, "%s has the key '%.100s' twice", o->name,
                            entry->key->string);
    return OK;
}

static status check_dict(const option *o, const gin_value *v) {
    if (v->type != GIN_DICT || v->n_children > MAX_LIST) return fail_type(o, v, "a dict of names");
    for (const gin_value *e = v->first; e != NULL; e = e->next)
        TRY(check_key(o, v, e));
    return OK;
}

static status store_ints(const option *o, const gin_value *v, arena *a, config_ints *out) {
    bool is_wrapped = o->flags & OPT_UNWRAP && v->first != NULL && v->n_children == 1 &&
                      (v->first->type == GIN_LIST || v->first->type == GIN_TUPLE);
    if (is_wrapped) v = v->first;
    TRY(check_list(o, v, "a list of whole numbers"));
    TRY(ARENA_NEW(a, &out->item, v->n_children));
    out->n = 0;
    for (const gin_value *e = v->first; e != NULL; e = e->next) {
        if (e->type != GIN_INT) return fail_type(o, e, "whole numbers");
        TRY(check_range(o, e));
        out->item[out->n++] = e->integer;
    }
    return OK;
}

/* A choice as the table spells it. */
static status copy_choice(const option *o, const gin_value *v, arena *a, const char **out) {
    int index = 0;
    size_t n;
    TRY(check_choice(o, v, &index));
    const char *word = option_choice(o, index, &n);
    return arena_copy_text(a, word, n, out);
}

static status store_texts(const option *o, const gin_value *v, arena *a, config_texts *out) {
    TRY(check_list(o, v, "a list of strings"));
    TRY(ARENA_NEW(a, &out->item, v->n_children));
    out->n = 0;
    for (const gin_value *e = v->first; e != NULL; e = e->next) {
        TRY(check_text(o, e));
        out->item[out->n] = e->string;
        if (o->choices != NULL) TRY(copy_choice(o, e, a, &out->item[out->n]));
        out->n++;
    }
    return OK;
}

static status store_weights(const option *o, const gin_value *v, arena *a, config_weights *out) {
    TRY(check_dict(o, v));
    TRY(ARENA_NEW(a, &out->name, v->n_children));
    TRY(ARENA_NEW(a, &out->weight, v->n_children));
    out->n = 0;
    for (const gin_value *e = v->first; e != NULL; e = e->next) {
        if (e->type != GIN_INT && e->type != GIN_FLOAT) return fail_type(o, e, "numbers");
        out->name[out->n] = e->key->string;
        out->weight[out->n++] = e->number;
    }
    return OK;
}

/* Checks that a value is a reference to one of "ClassA|ClassB", and builds the instance. */
static status store_reference(const option *o, const gin_value *v, const char *classes,
                              const option_builder *builder, void *instance) {
    char wanted[128];
    snprintf(wanted, sizeof wanted, "@scope/%s()", classes);
    if (v->type != GIN_REFERENCE || choice_index(classes, v->name) < 0)
        return fail_type(o, v, wanted);
    const option_class *class_ = option_class_find(v->name, strlen(v->name));
    if (class_ == NULL) return fail_type(o, v, wanted);
    return builder->build != NULL ? builder->build(builder->ctx, class_, v, instance) : OK;
}

static status store_distribution(const option *o, const gin_value *v, const option_builder *builder,
                                 config_distribution **out) {
    TRY(ARENA_NEW(builder->memory, out, 1));
    return store_reference(o, v, "RandomDistribution", builder, *out);
}

static status store_distributions(const option *o, const gin_value *v,
                                  const option_builder *builder, config_distributions *out) {
    TRY(check_dict(o, v));
    TRY(ARENA_NEW(builder->memory, &out->name, v->n_children));
    TRY(ARENA_NEW(builder->memory, &out->item, v->n_children));
    out->n = 0;
    for (const gin_value *e = v->first; e != NULL; e = e->next) {
        out->name[out->n] = e->key->string;
        TRY(store_reference(o, e, "RandomDistribution", builder, &out->item[out->n++]));
    }
    return OK;
}

static status store_features(const option *o, const gin_value *v, const option_builder *builder,
                             config_features *out) {
    TRY(check_list(o, v, "a list of @scope/FeatureArgs()"));
    TRY(ARENA_NEW(builder->memory, &out->item, v->n_children));
    out->n = 0;
    for (const gin_value *e = v->first; e != NULL; e = e->next)
        TRY(store_reference(o, e, "FeatureArgs", builder, &out->item[out->n++]));
    return OK;
}

static status store_embeddings(const option *o, const gin_value *v, const option_builder *builder,
                               config_embeddings *out) {
    TRY(check_list(o, v, "a list of @scope/EmbeddingArgs()"));
    TRY(ARENA_NEW(builder->memory, &out->item, v->n_children));
    out->n = 0;
    for (const gin_value *e = v->first; e != NULL; e = e->next)
        TRY(store_reference(o, e, "EmbeddingArgs|DynamicEmbeddingArgs", builder,
                            &out->item[out->n++]));
    return OK;
}

static void store_none(const option *o, void *member) {
    if (o->type == OPT_INT) *(int64_t *)member = CONFIG_NONE;
    if (o->type == OPT_FLOAT) *(double *)member = NAN;
    if (o->type == OPT_TEXT) *(const char **)member = NULL;
    if (o->type == OPT_INTS) *(config_ints *)member = (config_ints){0};
    if (o->type == OPT_WEIGHTS) *(config_weights *)member = (config_weights){0};
    if (o->type == OPT_DISTRIBUTION) *(config_distribution **)member = NULL;
    if (o->type == OPT_DISTRIBUTIONS) *(config_distributions *)member = (config_distributions){0};
}

status option_store(const option *o, const gin_value *v, const option_builder *builder,
                    void *member) {
    int index = 0;
    if (v->type == GIN_NONE && o->flags & OPT_NULLABLE) {
        store_none(o, member);
        return OK;
    }
    switch (o->type) {
    case OPT_BOOL:
        if (v->type != GIN_BOOL) return fail_type(o, v, "True or False");
        *(bool *)member = v->boolean;
        return OK;
    case OPT_INT:
        if (v->type != GIN_INT) return fail_type(o, v, "a whole number");
        TRY(check_range(o, v));
        *(int64_t *)member = v->integer;
        return OK;
    case OPT_FLOAT:
        if (v->type != GIN_INT && v->type != GIN_FLOAT) return fail_type(o, v, "a number");
        TRY(check_range(o, v));
        *(double *)member = v->number;
        return OK;
    case OPT_TEXT:
        TRY(check_text(o, v));
        *(const char **)member = v->string;
        return OK;
    case OPT_CHOICE:
        TRY(check_choice(o, v, &index));
        *(int *)member = index;
        return OK;
    case OPT_INTS:
        return store_ints(o, v, builder->memory, member);
    case OPT_TEXTS:
        return store_texts(o, v, builder->memory, member);
    case OPT_WEIGHTS:
        return store_weights(o, v, builder->memory, member);
    case OPT_DISTRIBUTION:
        return store_distribution(o, v, builder, member);
    case OPT_DISTRIBUTIONS:
        return store_distributions(o, v, builder, member);
    case OPT_FEATURES:
        return store_features(o, v, builder, member);
    case OPT_EMBEDDINGS:
        return store_embeddings(o, v, builder, member);
    case OPT_ALIAS:
    case OPT_RETIRED:
        return o->type == OPT_RETIRED && o->choices != NULL ? check_choice(o, v, &index) : OK;
    }
    return OK;
}

static const void *member_of(const option *o, const void *base) {
    return (const char *)base + o->offset;
}

static void write_texts(const config_texts *texts, json_writer *w) {
    json_array_open(w);
    for (size_t i = 0; i < texts->n; i++)
        json_string(w, texts->item[i]);
    json_array_close(w);
}

/* A list that is None has NULL items and is shown as null. */
static void write_ints(const config_ints *ints, json_writer *w) {
    if (ints->item == NULL) {
        json_null(w);
        return;
    }
    json_array_open(w);
    for (size_t i = 0; i < ints->n; i++)
        json_int(w, ints->item[i]);
    json_array_close(w);
}

static void write_weights(const config_weights *weights, json_writer *w) {
    json_object_open(w);
    for (size_t i = 0; i < weights->n; i++)
        json_key_double(w, weights->name[i], weights->weight[i]);
    json_object_close(w);
}

/* An instance: which class and scope it is, then its fields. */
static void write_instance(const char *class_name, const char *scope, const void *instance,
                           json_writer *w) {
    json_object_open(w);
    json_key_string(w, "class", class_name);
    json_key_string(w, "scope", scope);
    option_write_class(option_class_find(class_name, strlen(class_name)), instance, w);
    json_object_close(w);
}

static void write_distribution(const config_distribution *d, json_writer *w) {
    if (d != NULL)
        write_instance("RandomDistribution", d->scope, d, w);
    else
        json_null(w);
}

static void write_distributions(const config_distributions *d, json_writer *w) {
    json_object_open(w);
    for (size_t i = 0; i < d->n; i++) {
        json_key(w, d->name[i]);
        write_distribution(&d->item[i], w);
    }
    json_object_close(w);
}

static void write_features(const config_features *features, json_writer *w) {
    json_array_open(w);
    for (size_t i = 0; i < features->n; i++)
        write_instance("FeatureArgs", features->item[i].scope, &features->item[i], w);
    json_array_close(w);
}

static const char *table_class(const config_embedding *table) {
    return table->is_dynamic ? "DynamicEmbeddingArgs" : "EmbeddingArgs";
}

/* Inside its class a table is shown as in the file, by reference. */
static void write_references(const config_embeddings *tables, json_writer *w) {
    char text[512];
    json_array_open(w);
    for (size_t i = 0; i < tables->n; i++) {
        snprintf(text, sizeof text, "@%.400s%s%s()", tables->item[i].scope,
                 *tables->item[i].scope ? "/" : "", table_class(&tables->item[i]));
        json_string(w, text);
    }
    json_array_close(w);
}

void option_write_tables(const config_embeddings *tables, json_writer *w) {
    json_array_open(w);
    for (size_t i = 0; i < tables->n; i++)
        write_instance(table_class(&tables->item[i]), tables->item[i].scope, &tables->item[i], w);
    json_array_close(w);
}

/* Writes the member as JSON. */
static void option_write_json(const option *o, const void *member, json_writer *w) {
    size_t n;
    const char *text;
    switch (o->type) {
    case OPT_BOOL:
        json_bool(w, *(const bool *)member);
        break;
    case OPT_INT:
        if (*(const int64_t *)member == CONFIG_NONE)
            json_null(w);
        else
            json_int(w, *(const int64_t *)member);
        break;
    case OPT_FLOAT:
        json_double(w, *(const double *)member);
        break;
    case OPT_TEXT:
        text = *(const char *const *)member;
        if (text == NULL)
            json_null(w);
        else
            json_string(w, text);
        break;
    case OPT_CHOICE:
        text = option_choice(o, *(const int *)member, &n);
        json_string_n(w, text, n);
        break;
    case OPT_INTS:
        write_ints(member, w);
        break;
    case OPT_TEXTS:
        write_texts(member, w);
        break;
    case OPT_WEIGHTS:
        write_weights(member, w);
        break;
    case OPT_DISTRIBUTION:
        write_distribution(*(config_distribution *const *)member, w);
        break;
    case OPT_DISTRIBUTIONS:
        write_distributions(member, w);
        break;
    case OPT_FEATURES:
        write_features(member, w);
        break;
    case OPT_EMBEDDINGS:
        write_references(member, w);
        break;
    case OPT_ALIAS:
    case OPT_RETIRED:
        break;
    }
}

void option_write_class(const option_class *class_, const void *base, json_writer *w) {
    for (size_t i = 0; i < n_options; i++) {
        const option *o = &option_table[i];
        if (option_class_of(o) != class_ || o->type == OPT_ALIAS || o->type == OPT_RETIRED)
            continue;
        json_key(w, option_field(o));
        option_write_json(o, member_of(o, base), w);
    }
}

static const char *type_words(const option *o) {
    static const char *const words[] = {"bool",
                                        "int",
                                        "float",
                                        "string",
                                        "string",
                                        "list of int",
                                        "list of string",
                                        "dict of float",
                                        "reference",
                                        "dict of references",
                                        "list of references",
                                        "list of references",
                                        "",
                                        ""};
    return words[o->type];
}

/* "0 <= x < 1", or "a, b, c", or nothing. */
static void range_words(const option *o, char *text, size_t n) {
    text[0] = '\0';
    for (const char *p = o->choices; p != NULL && *p != '\0'; p++)
        text_add(text, n, *p == '|' ? ", " : "%c", *p);
    if (o->choices != NULL || (o->min == 0 && o->max == 0)) return;
    const char *left = o->flags & OPT_ABOVE_MIN ? "> " : ">= ";
    if (o->max >= 1e15)
        snprintf(text, n, "%s%.10g", left, o->min);
    else
        snprintf(text, n, "%s%.10g, %s%.10g", left, o->min,
                 o->flags & OPT_BELOW_MAX ? "< " : "<= ", o->max);
}

static const char *default_words(const option *o) {
    if (o->flags & OPT_REQUIRED) return "required";
    return o->default_words != NULL ? o->default_words : o->value;
}

static status write_row(buf *out, const option *o, bool is_markdown) {
    char range[256];
    range_words(o, range, sizeof range);
    const char *ours = o->flags & OPT_OURS ? " *Ours.*" : "";
    const char *effect = o->flags & OPT_NO_EFFECT ? " Read, no effect." : "";
    if (o->type == OPT_ALIAS && is_markdown)
        return buf_printf(out, "| `%s` | | | | %s See `%s`. |\n", option_field(o), o->help,
                          o->choices);
    if (o->type == OPT_RETIRED && is_markdown)
        return buf_printf(out, "| `%s` | | | %s | %s Accepted with a note; no effect. |\n",
                          option_field(o), range, o->help);
    if (is_markdown)
        return buf_printf(out, "| `%s` | %s%s | %s%s%s | %s | %s%s%s |\n", option_field(o),
                          type_words(o), o->flags & OPT_NULLABLE ? " or None" : "",
                          o->flags & OPT_REQUIRED || o->default_words ? "" : "`", default_words(o),
                          o->flags & OPT_REQUIRED || o->default_words ? "" : "`", range, o->help,
                          effect, ours);
    if (o->type == OPT_ALIAS)
        return buf_printf(out, "  %s\n      %s See %s.\n", o->name, o->help, o->choices);
    if (o->type == OPT_RETIRED)
        return buf_printf(out, "  %s\n      %s Accepted with a note; no effect.\n", o->name,
                          o->help);
    return buf_printf(out, "  %s  (%s%s%s%s; default: %s)\n      %s%s\n", o->name, type_words(o),
                      o->flags & OPT_NULLABLE ? " or None" : "", *range ? "; " : "", range,
                      default_words(o), o->help, effect);
}

static status write_class_help(buf *out, const option_class *class_, bool is_markdown) {
    if (is_markdown) {
        TRY(buf_printf(out, "\n### %s%s\n\n%s\n\n", class_->is_instance ? "scope/" : "",
                       class_->name, class_->help));
        TRY(buf_text(out, "| option | type | default | range or choices | meaning |\n"
                          "|---|---|---|---|---|\n"));
    } else {
        TRY(buf_printf(out, "\n%s%s: %s\n", class_->is_instance ? "scope/" : "", class_->name,
                       class_->help));
    }
    for (size_t i = 0; i < n_options; i++)
        if (option_class_of(&option_table[i]) == class_)
            TRY(write_row(out, &option_table[i], is_markdown));
    return OK;
}

static status write_metrics(buf *out) {
    TRY(buf_text(out,
                 "\n## Metrics\n\n"
                 "For `eval_metrics` and `hstu eval --metrics`. r is the position of the target "
                 "in the list of a user.\n\n"
                 "| metric | task | better | meaning |\n|---|---|---|---|\n"));
    for (int i = 0; i < METRIC_KINDS; i++) {
        const metric_entry *e = &metric_table[i];
        TRY(buf_printf(out, "| %s | %s | %s | %s |\n", e->shown,
                       e->task == TASK_RETRIEVAL ? "retrieval" : "ranking",
                       e->sense == METRIC_MORE   ? "higher"
                       : e->sense == METRIC_LESS ? "lower"
                                                 : "-",
                       e->meaning));
    }
    return OK;
}

static const char markdown_head[] =
    "# Options\n\n"
    "<!-- Generated by `make docs` from src/config/options_table.c and metric_list.h; edit these, "
    "not this. "
    "-->\n\n"
    "`hstu train --gin-config-file FILE` reads the gin files of two projects. A file that binds\n"
    "`train_fn` is one of Meta's research files; a file that binds `*Args` classes is one of "
    "NVIDIA's.\n"
    "`--set Class.field=value` overrides a binding (a bare word is a string), `--print-config` "
    "shows\n"
    "the effective values as JSON. An unknown name, a wrong type or a value out of range is an "
    "error\n"
    "with the file and the line. Options marked *Ours* are not in the reference projects.\n\n"
    "In NVIDIA's files the task is the one whose class is bound: `RankingArgs` or "
    "`RetrievalArgs`.\n"
    "Where neither is, it is ranking; where both are, `--task` decides.\n";

status options_write_help(buf *out, bool is_markdown) {
    static const config_family families[] = {FAMILY_NVIDIA, FAMILY_META};
    static const char *const titles[] = {"NVIDIA recsys-examples",
                                         "Meta generative-recommenders (research)"};
    if (is_markdown) TRY(buf_text(out, markdown_head));
    for (int f = 0; f < 2; f++) {
        TRY(buf_printf(out, is_markdown ? "\n## %s\n" : "%s\n", titles[f]));
        for (size_t i = 0; i < n_option_classes; i++)
            if (option_classes[i].family == families[f])
                TRY(write_class_help(out, &option_classes[i], is_markdown));
        if (!is_markdown && f == 0) TRY(buf_char(out, '\n'));
    }
    return is_markdown ? write_metrics(out) : OK;
}
