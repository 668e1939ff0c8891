#include "tune/plan_file.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "tune/library.h"

enum { MAX_FILE = 1 << 20 };

/* A member from lo to hi. */
static status read_int(const json_value *object, const char *key, int64_t lo, int64_t hi,
                       int64_t *out) {
    TRY(json_member_int(object, key, out));
    return *out >= lo && *out <= hi ? OK : fail(ERR_FORMAT, "\"%s\" is %lld", key, (long long)*out);
}

static status read_tile(const json_value *v, plan_file_tile *out) {
    static const char *const keys[] = {"start", "end", "m", "n", "k", "warps_m", "warps_n"};
    int64_t x[7] = {0}, choice = GENERATED, rank = 0;
    bool is_library = v->type == JSON_OBJECT && json_member(v, "library") != NULL;
    for (int i = 0; i < (is_library ? 2 : 7); i++)
        TRY(read_int(v, keys[i], 1, i < 2 ? CHAIN_OPS : 4096, &x[i]));
    if (is_library) TRY(read_int(v, "library", LIBRARY, LIBRARY_FAST_GELU, &choice));
    if (is_library && json_member(v, "rank") != NULL)
        TRY(read_int(v, "rank", 0, LIBRARY_RANKS - 1, &rank));
    *out = (plan_file_tile){.first = (int)x[0] - 1,
                            .last = (int)x[1] - 1,
                            .params = {.tile_m = (int16_t)x[2],
                                       .tile_n = (int16_t)x[3],
                                       .tile_k = (int16_t)x[4],
                                       .warps_m = (int16_t)x[5],
                                       .warps_n = (int16_t)x[6],
                                       .library = (int16_t)choice,
                                       .rank = (int16_t)rank}};
    return out->first <= out->last ? OK : fail(ERR_FORMAT, "a kernel that ends before it starts");
}

void plan_file_key(plan_file *out, const target *t, const chain *c, const chain_shape *shape,
                   const mask *rule, const char *mask_text) {
    static const char *const types[] = {
        [ACT_F32] = "float32", [ACT_BF16] = "bfloat16", [ACT_F16] = "float16"};
    snprintf(out->layer, sizeof out->layer, "%s", c->name);
    snprintf(out->arch, sizeof out->arch, "%s", t->arch);
    snprintf(out->dtype, sizeof out->dtype, "%s", types[t->act]);
    bool is_file = rule != NULL && mask_rule_of(rule)->kind == MASK_BITS;
    if (rule == NULL || is_file)
        snprintf(out->mask, sizeof out->mask, "%s", is_file ? mask_text : "none");
    else
        mask_rule_text(mask_rule_of(rule), out->mask, sizeof out->mask);
    out->n_sequences = shape->n_sequences;
    out->n_heads = shape->n_heads;
    out->dim_head = shape->dim_head;
    out->dim_ffn = shape->dim_ffn;
    out->max_len = shape->max_len;
    out->n_tokens = shape->n_tokens;
}

/* A text that may be missing. */
static status read_text(const json_value *object, const char *key, char *out, size_t n) {
    const char *text;
    if (json_member(object, key) == NULL) return OK;
    TRY(json_member_string(object, key, &text));
    if ((size_t)snprintf(out, n, "%s", text) < n) return OK;
    return fail(ERR_FORMAT, "\"%s\" is too long", key);
}

/* What the plan was found for; a file without a device (of a replay) says less. */
static status read_key(plan_file *f, const json_value *root) {
    int64_t batch = 0, heads = 0, dim = 0, ffn = 0, length = 0;
    TRY(read_text(root, "arch", f->arch, sizeof f->arch));
    TRY(read_text(root, "dtype", f->dtype, sizeof f->dtype));
    TRY(read_text(root, "mask", f->mask, sizeof f->mask));
    if (json_member(root, "batch") != NULL) TRY(read_int(root, "batch", 1, 1 << 20, &batch));
    if (json_member(root, "heads") != NULL) TRY(read_int(root, "heads", 1, 1 << 16, &heads));
    if (json_member(root, "dim") != NULL) TRY(read_int(root, "dim", 1, 1 << 16, &dim));
    if (json_member(root, "ffn") != NULL) TRY(read_int(root, "ffn", 0, 1 << 18, &ffn));
    if (json_member(root, "length") != NULL) TRY(read_int(root, "length", 1, 1 << 20, &length));
    if (json_member(root, "tokens") != NULL)
        TRY(read_int(root, "tokens", 1, 1 << 24, &f->n_tokens));
    if (json_member(root, "ms") != NULL) TRY(json_member_double(root, "ms", &f->ms));
    f->n_sequences = (int32_t)batch;
    f->n_heads = (int32_t)heads;
    f->dim_head = (int32_t)dim;
    f->dim_ffn = (int32_t)ffn;
    f->max_len = (int32_t)length;
    return OK;
}

static status read_root(plan_file *f, const json_value *root) {
    const char *kind, *layer;
    int64_t value, version;
    TRY(json_member_string(root, "kind", &kind));
    if (strcmp(kind, "hstu fusion plan") != 0)
        return fail(ERR_FORMAT, "\"kind\" is not that of a fusion plan");
    TRY(read_int(root, "version", 1, 1, &version));
    TRY(json_member_string(root, "layer", &layer));
    TRY(read_int(root, "value", 0, PLAN_CODES - 1, &value));
    if ((size_t)snprintf(f->layer, sizeof f->layer, "%s", layer) >= sizeof f->layer)
        return fail(ERR_FORMAT, "\"layer\" is too long");
    f->value = (uint16_t)value;
    TRY(read_key(f, root));
    const json_value *tiles = json_member(root, "tiles");
    if (tiles == NULL) return OK; /* of a replay */
    if (tiles->type != JSON_ARRAY || tiles->n_children > CHAIN_OPS)
        return fail(ERR_FORMAT, "\"tiles\" is not a list of kernels");
    for (const json_value *v = tiles->first; v != NULL; v = v->next)
        TRY(read_tile(v, &f->tile[f->n_tiles++]));
    return OK;
}

status plan_file_read(plan_file *out, const char *path) {
    char *text;
    size_t n;
    arena memory;
    const json_value *root;
    *out = (plan_file){0};
    TRY(file_read_all(path, MAX_FILE, &text, &n));
    arena_init(&memory, 1 << 12);
    status st = OK;
    if (!json_is_sealed(text, n))
        st = fail(ERR_FORMAT, "not a plan of 'hstu tune --out', or one that was changed");
    if (st == OK) st = json_parse(&memory, "plan", text, n, &root);
    if (st == OK) st = read_root(out, root);
    arena_fini(&memory);
    mem_free(text);
    return st == OK ? OK : fail_prefix(st, "%s", path);
}

status plan_file_apply(const plan_file *f, plan_runner *r) {
    if (strcmp(f->layer, plan_runner_chain(r)->name) != 0)
        return fail(ERR_USAGE, "the plan is one of layer %s; say --layer %s", f->layer, f->layer);
    for (int i = 0; i < f->n_tiles; i++) {
        const plan_file_tile *t = &f->tile[i];
        if (plan_runner_template(r, t->first, t->last) == TEMPLATE_NONE) continue;
        TRY(plan_runner_choose_tile(r, t->first, t->last, &t->params));
    }
    return OK;
}
