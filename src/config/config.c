/* Loading: gin bindings, checked against the option table, into one config. */
#include "config/config.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/loader.h"

/* Room for the member of any option, used when a value is only compared or checked. */
typedef union scratch {
    int64_t integer;
    config_dtype dtype;
    config_weights weights;
    config_distributions distributions;
    config_features features;
    config_embeddings embeddings;
} scratch;

bool config_class_is_active(const config *c, const option_class *class_) {
    const char *name = class_->name;
    if (class_->is_instance || class_->family != c->family) return false;
    if (strcmp(name, "DatasetArgs") == 0) return !c->is_benchmark;
    if (strcmp(name, "BenchmarkDatasetArgs") == 0) return c->is_benchmark;
    if (strcmp(name, "RankingArgs") == 0) return c->task == TASK_RANKING;
    if (strcmp(name, "RetrievalArgs") == 0) return c->task == TASK_RETRIEVAL;
    if (strcmp(name, "hstu_encoder") == 0) return c->model == MODEL_HSTU_RESEARCH;
    if (strcmp(name, "sasrec_encoder") == 0) return c->model == MODEL_SASREC;
    return true;
}

static const gin_binding *find_bound(const loader *l, const option *o) {
    return gin_find(&l->gin, "", option_class_of(o)->name, option_field(o));
}

static const option *alias_target(const option *o) {
    for (size_t i = 0; i < n_options; i++)
        if (strcmp(option_table[i].name, o->choices) == 0) return &option_table[i];
    return NULL;
}

status loader_store(loader *l, const option *target, const option *spelling, const gin_value *v,
                    void *member) {
    option named = *target;
    named.name = spelling->name;
    if (!(spelling->flags & OPT_BF16)) return option_store(&named, v, &l->builder, member);
    bool is_bf16 = false;
    named = (option){.name = spelling->name, .type = OPT_BOOL};
    TRY(option_store(&named, v, &l->builder, &is_bf16));
    *(config_dtype *)member = is_bf16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    return OK;
}

/* Two spellings of one option from the same origin (files, or the command line) must have the same
 * value. */
static status check_agreement(loader *l, const option *o, const gin_binding *a,
                              const option *spelling, const gin_binding *b) {
    scratch x = {0}, y = {0};
    char place_a[512], place_b[512];
    TRY(loader_store(l, o, o, a->value, &x));
    TRY(loader_store(l, o, spelling, b->value, &y));
    /* bf16 = False says only what the dtype is not. */
    bool is_other_half =
        spelling->flags & OPT_BF16 && !b->value->boolean && x.dtype != DTYPE_BFLOAT16;
    if (memcmp(&x, &y, sizeof x) == 0 || is_other_half) return OK;
    return fail(ERR_CONFIG, "%s: %s contradicts %s at %s; they are two spellings of one option",
                gin_place(place_b, sizeof place_b, b->file, b->line), spelling->name, o->name,
                gin_place(place_a, sizeof place_a, a->file, a->line));
}

status loader_find(loader *l, const option *o, const gin_binding **out, const option **spelling) {
    const gin_binding *best = find_bound(l, o);
    *spelling = o;
    for (size_t i = 0; i < n_options; i++) {
        const option *alias = &option_table[i];
        if (alias->type != OPT_ALIAS || strcmp(alias->choices, o->name) != 0) continue;
        const gin_binding *b = find_bound(l, alias);
        if (b == NULL || (best != NULL && best->is_override && !b->is_override)) continue;
        if (best != NULL && b->is_override == best->is_override) {
            TRY(check_agreement(l, o, best, alias, b));
            continue;
        }
        best = b;
        *spelling = alias;
    }
    *out = best;
    return OK;
}

status loader_store_default(loader *l, const option *o, void *member) {
    gin_value *value;
    TRY(gin_read_value(&l->gin, o->name, o->value, &value));
    return option_store(o, value, &l->builder, member);
}

const char *loader_place(loader *l, const char *class_name, const char *field, char *text,
                         size_t n) {
    const option *o = option_find(class_name, field), *spelling;
    const gin_binding *b = NULL;
    if (o != NULL && loader_find(l, o, &b, &spelling) == OK && b != NULL)
        return gin_place(text, n, b->file, b->line);
    snprintf(text, n, "%s", l->c->file);
    return text;
}

/* Checks one binding: whether there is such an option, and whether the value fits it. */
static status check_binding(loader *l, const gin_binding *b) {
    scratch room = {0};
    char place[512];
    option_builder only_check = {.memory = &l->c->memory};
    const option *o = option_find(b->class_name, b->field);
    if (o == NULL) return option_fail_unknown(b);
    gin_place(place, sizeof place, b->file, b->line);
    if (o->type == OPT_RETIRED)
        log_info("note: %s: %s has no effect here. %s", place, o->name, o->help);
    if (*b->scope != '\0' && !option_class_of(o)->is_instance)
        log_warn("%s: %s/%s is never used: nothing runs inside the scope '%s'", place, b->scope,
                 o->name, b->scope);
    if (o->type == OPT_ALIAS) return loader_store(l, alias_target(o), o, b->value, &room);
    return option_store(o, b->value, &only_check, &room);
}

/* Says once what a file binds in vain. */
static void note_no_effect(const loader *l) {
    char names[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < l->gin.n_bindings; i++) {
        const gin_binding *b = l->gin.bindings[i];
        const option *o = option_find(b->class_name, b->field);
        if (o == NULL || !(o->flags & OPT_NO_EFFECT) || used >= sizeof names) continue;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                                 o->name);
    }
    if (used > 0) log_info("note: %s: read, but of no effect here: %s", l->c->file, names);
}

/* Checks every binding and finds the file's family from the classes it binds. */
static status check_bindings(loader *l) {
    const gin_binding *first[FAMILY_NVIDIA + 1] = {0};
    char meta[512], nvidia[512];
    for (size_t i = 0; i < l->gin.n_bindings; i++) {
        const gin_binding *b = l->gin.bindings[i];
        if (*b->class_name == '\0') continue;
        TRY(check_binding(l, b));
        config_family family = option_class_of(option_find(b->class_name, b->field))->family;
        if (first[family] == NULL) first[family] = b;
    }
    const gin_binding *m = first[FAMILY_META], *n = first[FAMILY_NVIDIA];
    if (m != NULL && n != NULL)
        return fail(ERR_CONFIG,
                    "%s binds %s.%s, which is Meta's, but %s binds %s.%s, which is "
                    "NVIDIA's; a config follows one of the two",
                    gin_place(meta, sizeof meta, m->file, m->line), m->class_name, m->field,
                    gin_place(nvidia, sizeof nvidia, n->file, n->line), n->class_name, n->field);
    if (m == NULL && n == NULL)
        return fail(ERR_CONFIG,
                    "%s binds no option; a config binds train_fn.* (Meta's names) or "
                    "NetworkArgs.* and others (NVIDIA's names)",
                    l->c->file);
    l->c->family = m != NULL ? FAMILY_META : FAMILY_NVIDIA;
    return OK;
}

/* The first binding of a class outside any scope. */
static const gin_binding *first_of_class(const loader *l, const char *class_name) {
    for (size_t i = 0; i < l->gin.n_bindings; i++)
        if (*l->gin.bindings[i]->scope == '\0' &&
            strcmp(l->gin.bindings[i]->class_name, class_name) == 0)
            return l->gin.bindings[i];
    return NULL;
}

static status choose_nvidia_task(loader *l, const char *wanted) {
    char first[512], second[512];
    const gin_binding *ranking = first_of_class(l, "RankingArgs");
    const gin_binding *retrieval = first_of_class(l, "RetrievalArgs");
    if (wanted != NULL) {
        l->c->task = strcmp(wanted, "ranking") == 0 ? TASK_RANKING : TASK_RETRIEVAL;
        return OK;
    }
    if (ranking != NULL && retrieval != NULL)
        return fail(ERR_CONFIG,
                    "RankingArgs is bound at %s and RetrievalArgs at %s; say which "
                    "with --task ranking or --task retrieval",
                    gin_place(first, sizeof first, ranking->file, ranking->line),
                    gin_place(second, sizeof second, retrieval->file, retrieval->line));
    if (ranking == NULL && retrieval == NULL)
        log_info("note: %s binds neither RankingArgs nor RetrievalArgs; the task is ranking "
                 "(--task retrieval for the other)",
                 l->c->file);
    l->c->task = retrieval != NULL ? TASK_RETRIEVAL : TASK_RANKING;
    return OK;
}

/* Task, model and kind of data, which decide which classes are active. */
static status choose(loader *l, const char *task) {
    config *c = l->c;
    if (task != NULL && strcmp(task, "ranking") != 0 && strcmp(task, "retrieval") != 0)
        return fail(ERR_USAGE, "--task %s: the tasks are ranking and retrieval", task);
    if (c->family == FAMILY_META) {
        c->task = TASK_RETRIEVAL;
        if (task != NULL && strcmp(task, "ranking") == 0)
            return fail(ERR_CONFIG,
                        "%s: Meta's research configs train retrieval; --task ranking "
                        "needs a config with NVIDIA's names",
                        c->file);
        return OK;
    }
    c->model = MODEL_HSTU;
    /* As in the reference: generated data where no data set is named. */
    c->is_benchmark = find_bound(l, option_find("DatasetArgs", "dataset_name")) == NULL &&
                      first_of_class(l, "BenchmarkDatasetArgs") != NULL;
    return choose_nvidia_task(l, task);
}

/* Stores every root option of an active class; the error names every required option that is
 * missing. */
static status store_values(loader *l) {
    buf missing;
    status st = OK;
    buf_init(&missing);
    for (size_t i = 0; i < n_options && st == OK; i++) {
        const option *o = &option_table[i], *spelling;
        const gin_binding *b;
        void *member = (char *)l->c + o->offset;
        if (o->type == OPT_ALIAS || o->type == OPT_RETIRED) continue;
        if (!config_class_is_active(l->c, option_class_of(o))) continue;
        st = loader_find(l, o, &b, &spelling);
        if (st != OK) break;
        if (b != NULL)
            st = loader_store(l, o, spelling, b->value, member);
        else if (o->flags & OPT_REQUIRED)
            st = buf_printf(&missing, "%s%s", missing.n_bytes > 0 ? ", " : "", o->name);
        else
            st = loader_store_default(l, o, member);
    }
    if (st == OK && missing.n_bytes > 0)
        st = fail(ERR_CONFIG, "%s: required options are not bound: %s", l->c->file,
                  buf_str(&missing));
    buf_fini(&missing);
    return st;
}

static status copy_overrides(config *c, const config_source *source) {
    TRY(ARENA_NEW(&c->memory, &c->overrides.item, source->n_overrides));
    for (; c->overrides.n < source->n_overrides; c->overrides.n++)
        TRY(arena_copy_text(&c->memory, source->overrides[c->overrides.n],
                            strlen(source->overrides[c->overrides.n]),
                            &c->overrides.item[c->overrides.n]));
    return OK;
}

static status load(loader *l, const config_source *source) {
    const char *name = source->path != NULL ? source->path : source->text_name;
    TRY(arena_copy_text(&l->c->memory, name, strlen(name), &l->c->file));
    TRY(copy_overrides(l->c, source));
    if (source->path != NULL)
        TRY(gin_read_file(&l->gin, source->path));
    else
        TRY(gin_read_text(&l->gin, name, source->text, source->text_bytes));
    for (size_t i = 0; i < source->n_overrides; i++)
        TRY(gin_override(&l->gin, source->overrides[i]));
    TRY(gin_finish(&l->gin));
    TRY(check_bindings(l));
    if (source->path != NULL) note_no_effect(l); /* not again when a run brings its config back */
    TRY(choose(l, source->task));
    TRY(store_values(l));
    return loader_complete(l);
}

status config_load(config **out, const config_source *source) {
    loader l = {0};
    *out = NULL;
    TRY(MEM_NEW(&l.c, 1));
    arena_init(&l.c->memory, 1 << 13);
    gin_init(&l.gin);
    l.builder = (option_builder){.memory = &l.c->memory, .build = loader_build, .ctx = &l};
    status st = load(&l, source);
    l.c->gin_text = l.gin.memory;
    l.gin.memory = (arena){0};
    gin_fini(&l.gin);
    if (st != OK) {
        config_destroy(l.c);
        return st;
    }
    *out = l.c;
    return OK;
}

void config_destroy(config *c) {
    if (c == NULL) return;
    arena_fini(&c->memory);
    arena_fini(&c->gin_text);
    mem_free(c);
}
