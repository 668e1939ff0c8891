/* After all bindings are read: the index by name, and the macros. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config/gin.h"

static int compare_names(const gin_binding *a, const char *scope, size_t n_scope,
                         const char *class_name, const char *field) {
    int order = strcmp(a->field, field);
    if (order == 0) order = strcmp(a->class_name, class_name);
    if (order == 0) order = strncmp(a->scope, scope, n_scope);
    if (order == 0) order = a->scope[n_scope] != '\0';
    return order;
}

/* By name; of equal names the one in force comes last. */
static int compare_bindings(const void *a, const void *b) {
    const gin_binding *x = *(gin_binding *const *)a, *y = *(gin_binding *const *)b;
    int order = compare_names(x, y->scope, strlen(y->scope), y->class_name, y->field);
    if (order != 0) return order;
    if (x->is_override != y->is_override) return x->is_override ? 1 : -1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* The last binding of exactly this name, by binary search for the end of its range. */
static gin_binding *find_exact(const gin_config *g, const char *scope, size_t n_scope,
                               const char *class_name, const char *field) {
    size_t low = 0, high = g->n_bindings;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_names(g->index[middle], scope, n_scope, class_name, field) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || compare_names(g->index[low - 1], scope, n_scope, class_name, field) != 0)
        return NULL;
    return g->index[low - 1];
}

const gin_binding *gin_find(const gin_config *g, const char *scope, const char *class_name,
                            const char *field) {
    for (size_t n = strlen(scope);;) {
        const gin_binding *b = find_exact(g, scope, n, class_name, field);
        if (b != NULL || n == 0) return b;
        while (n > 0 && scope[n - 1] != '/')
            n--;
        if (n > 0) n--;
    }
}

static status fail_at(const gin_value *v, const char *what) {
    char place[512];
    return fail(ERR_CONFIG, "%s: %s %%%s%s%s", gin_place(place, sizeof place, v->file, v->line),
                what, v->scope, *v->scope ? "/" : "", v->name);
}

static status resolve(gin_config *g, gin_value *v, int level);

/* Copies the macro's value; its children are shared, since nothing changes them any more. */
static status resolve_macro(gin_config *g, gin_value *v, int level) {
    gin_binding *b = find_exact(g, v->scope, strlen(v->scope), "", v->name);
    if (b == NULL) return fail_at(v, "nothing defines the macro");
    if (b->state == 1) return fail_at(v, "a cycle: this macro leads back to itself:");
    b->is_used = true;
    if (b->state == 0) {
        b->state = 1;
        TRY(resolve(g, b->value, level + 1));
        b->state = 2;
    }
    gin_value copy = *b->value;
    copy.key = v->key;
    copy.next = v->next;
    copy.file = v->file;
    copy.line = v->line;
    *v = copy;
    return OK;
}

/* Resolves the macros in a value and counts its nodes.  The count limits what hostile text can
 * expand to: 40 lines of A = [%B, %B] would be 2^40 values. */
static status resolve(gin_config *g, gin_value *v, int level) {
    uint64_t n_nodes = 1;
    char place[512];
    if (level > GIN_MAX_DEPTH)
        return fail(ERR_CONFIG, "%s: brackets and macros are nested more than %d deep",
                    gin_place(place, sizeof place, v->file, v->line), (int)GIN_MAX_DEPTH);
    if (v->type == GIN_MACRO) return resolve_macro(g, v, level);
    for (gin_value *child = v->first; child != NULL; child = child->next) {
        TRY(resolve(g, child, level + 1));
        n_nodes += child->n_nodes;
        if (child->key != NULL) TRY(resolve(g, child->key, level + 1));
        if (child->key != NULL) n_nodes += child->key->n_nodes;
        if (n_nodes > GIN_MAX_NODES)
            return fail(ERR_CONFIG, "%s: this value has more than %d parts",
                        gin_place(place, sizeof place, v->file, v->line), (int)GIN_MAX_NODES);
    }
    v->n_nodes = (uint32_t)n_nodes;
    return OK;
}

/* `num_layers = 4`, with its class forgotten, is the definition of a macro.  Without this warning
 * such a line would have no effect, and nobody would notice. */
static void warn_unused_macros(const gin_config *g) {
    char place[512];
    for (size_t i = 0; i < g->n_bindings; i++) {
        const gin_binding *b = g->bindings[i];
        if (*b->class_name != '\0' || b->is_used) continue;
        if (find_exact(g, b->scope, strlen(b->scope), "", b->field) != b) continue;
        log_warn("%s: nothing uses the macro '%s'; an option is written Class.field",
                 gin_place(place, sizeof place, b->file, b->line), b->field);
    }
}

status gin_finish(gin_config *g) {
    TRY(MEM_NEW(&g->index, g->n_bindings));
    if (g->n_bindings > 0) memcpy(g->index, g->bindings, g->n_bindings * sizeof *g->index);
    qsort(g->index, g->n_bindings, sizeof *g->index, compare_bindings);
    for (size_t i = 0; i < g->n_bindings; i++) {
        gin_binding *b = g->bindings[i];
        if (b->state == 2) continue;
        b->state = 1;
        TRY(resolve(g, b->value, 0));
        b->state = 2;
    }
    warn_unused_macros(g);
    return OK;
}
