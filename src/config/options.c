/* Looking options up, checking values and storing them. */
#include "config/options.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

enum { MAX_LIST = 1024, MAX_TEXT_BYTES = 4096 }; /* more is a mistake, or an attack */

const option_class *option_class_find(const char *name, size_t n) {
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
    char name[256], place[512];
    snprintf(name, sizeof name, "%.120s.%.120s", b->class_name, b->field);
    gin_place(place, sizeof place, b->file, b->line);
    const char *nearest = nearest_option(b, name);
    if (nearest != NULL)
        return fail(ERR_CONFIG, "%s: unknown option '%s'; did you mean '%s'?", place, name,
                    nearest);
    return fail(ERR_CONFIG, "%s: unknown option '%s'; 'hstu train --help-config' lists them all",
                place, name);
}

static status fail_type(const option *o, const gin_value *v, const char *wanted) {
    char place[512], text[256];
    return fail(ERR_CONFIG, "%s: %s wants %s%s, not %s",
                gin_place(place, sizeof place, v->file, v->line), o->name, wanted,
                o->flags & OPT_NULLABLE ? " or None" : "", gin_describe(v, text, sizeof text));
}

static status check_range(const option *o, const gin_value *v) {
    char place[512], text[256], upper[64] = "";
    if (o->min == 0 && o->max == 0) return OK;
    bool is_low = o->flags & OPT_ABOVE_MIN ? v->number <= o->min : v->number < o->min;
    bool is_high = o->flags & OPT_BELOW_MAX ? v->number >= o->max : v->number > o->max;
    if (!is_low && !is_high) return OK;
    if (is_high || o->max < 1e15) /* a huge bound is shown only if the value is above it */
        snprintf(upper, sizeof upper, " and %s %.10g",
                 o->flags & OPT_BELOW_MAX ? "below" : "at most", o->max);
    return fail(ERR_CONFIG, "%s: %s = %s is out of range; it must be %s %.10g%s",
                gin_place(place, sizeof place, v->file, v->line), o->name,
                gin_describe(v, text, sizeof text), o->flags & OPT_ABOVE_MIN ? "above" : "at least",
                o->min, upper);
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

const char *option_choice(const option *o, int index, size_t *n) {
    const char *word = o->choices;
    for (; index > 0; index--)
        word += strcspn(word, "|") + 1;
    *n = strcspn(word, "|");
    return word;
}

static status check_choice(const option *o, const gin_value *v, int *out) {
    char place[512];
    if (v->type != GIN_STRING) return fail_type(o, v, "a string");
    *out = choice_index(o->choices, v->string);
    if (*out >= 0) return OK;
    return fail(ERR_CONFIG, "%s: %s = '%.100s' is not one of its choices: %s",
                gin_place(place, sizeof place, v->file, v->line), o->name, v->string, o->choices);
}

static status check_list(const option *o, const gin_value *v, const char *wanted) {
    char place[512];
    if (v->type != GIN_LIST && v->type != GIN_TUPLE) return fail_type(o, v, wanted);
    if (v->n_children > MAX_LIST)
        return fail(ERR_CONFIG, "%s: %s has %u elements; %d are possible",
                    gin_place(place, sizeof place, v->file, v->line), o->name,
                    (unsigned)v->n_children, (int)MAX_LIST);
    return OK;
}

static status check_text(const option *o, const gin_value *v) {
    char place[512];
    if (v->type != GIN_STRING) return fail_type(o, v, "a string");
    if (strlen(v->string) <= MAX_TEXT_BYTES) return OK;
    return fail(ERR_CONFIG, "%s: %s is a string of more than %d bytes",
                gin_place(place, sizeof place, v->file, v->line), o->name, (int)MAX_TEXT_BYTES);
}

/* Python would keep the last of two equal keys; here they are an error, because one is a mistake.
 */
static status check_key(const option *o, const gin_value *dict, const gin_value *entry) {
    char place[512];
    TRY(check_text(o, entry->key));
    for (const gin_value *e = dict->first; e != entry; e = e->next)
        if (strcmp(e->key->string, entry->key->string) == 0)
            return fail(ERR_CONFIG, "%s: %s has the key '%.100s' twice",
                        gin_place(place, sizeof place, entry->file, entry->line), o->name,
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
