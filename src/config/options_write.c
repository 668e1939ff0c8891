/* Options as text: values as JSON, and the table itself for people. */
#include <stdio.h>
#include <string.h>

#include "config/metric_list.h"
#include "config/options.h"

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

void option_write_json(const option *o, const void *member, json_writer *w) {
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
    if (o->choices != NULL) {
        size_t used = 0;
        for (const char *p = o->choices; *p != '\0' && used + 3 < n; p++)
            used += (size_t)snprintf(text + used, n - used, *p == '|' ? ", " : "%c", *p);
        return;
    }
    if (o->min == 0 && o->max == 0) return;
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
                       e->smaller_is_better ? "lower" : "higher", e->meaning));
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
