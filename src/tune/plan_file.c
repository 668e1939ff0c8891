#include "tune/plan_file.h"

#include <dirent.h>

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
    return out->first <= out->last ? OK : fail(ERR_FORMAT, "a kernel ends before it starts");
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
    const struct {
        const char *key;
        int64_t lo, hi;
        int32_t *out;
    } numbers[] = {{"batch", 1, 1 << 20, &f->n_sequences},
                   {"heads", 1, 1 << 16, &f->n_heads},
                   {"dim", 1, 1 << 16, &f->dim_head},
                   {"ffn", 0, 1 << 18, &f->dim_ffn},
                   {"length", 1, 1 << 20, &f->max_len}};
    TRY(read_text(root, "arch", f->arch, sizeof f->arch));
    TRY(read_text(root, "dtype", f->dtype, sizeof f->dtype));
    TRY(read_text(root, "mask", f->mask, sizeof f->mask));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t n = 0;
        if (json_member(root, numbers[i].key) != NULL)
            TRY(read_int(root, numbers[i].key, numbers[i].lo, numbers[i].hi, &n));
        *numbers[i].out = (int32_t)n;
    }
    if (json_member(root, "tokens") != NULL)
        TRY(read_int(root, "tokens", 1, 1 << 24, &f->n_tokens));
    if (json_member(root, "ms") != NULL) TRY(json_member_double(root, "ms", &f->ms));
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
        st = fail(ERR_FORMAT, "not a plan written by 'hstu tune --out', or modified since");
    if (st == OK) st = json_parse(&memory, "plan", text, n, &root);
    if (st == OK) st = read_root(out, root);
    arena_fini(&memory);
    mem_free(text);
    return st == OK ? OK : fail_prefix(st, "%s", path);
}

status plan_file_apply(const plan_file *f, plan_runner *r) {
    const chain_problem *p = plan_runner_problem(r);
    if (strcmp(f->layer, p->c->name) != 0)
        return fail(ERR_USAGE, "the plan is for layer %s; pass --layer %s", f->layer, f->layer);
    for (int i = 0; i < f->n_tiles; i++) {
        const plan_file_tile *t = &f->tile[i];
        runner_kernel *k;
        if (plan_template(p->c, &p->shape, t->first, t->last, NULL) == TEMPLATE_NONE) continue;
        TRY(plan_runner_kernel(r, t->first, t->last, &k));
        for (int tile = 0; tile < k->n_tiles; tile++)
            if (memcmp(&k->params[tile], &t->params, sizeof t->params) == 0) k->tile = tile;
    }
    return OK;
}

/* Factors of two, of tokens and of lengths together. */
static const double farthest = 2;

status plan_store_open(plan_store *s, const char *cache) {
    if (cache == NULL) return env_cache_folder(s->folder, sizeof s->folder, "plans");
    return path_join(s->folder, sizeof s->folder, cache, "plans");
}

/* The name of the entry; the mask may be the path of a file, so its hash stands for it. */
static status path_of(const plan_store *s, const plan_file *f, char path[4096]) {
    char name[256], ffn[16] = "";
    if (f->dim_ffn > 0) snprintf(ffn, sizeof ffn, "-ffn%d", f->dim_ffn);
    snprintf(name, sizeof name, "%s-%s-%dx%d%s-%lld-%d-%s-%08x.json", f->layer, f->arch, f->n_heads,
             f->dim_head, ffn, (long long)f->n_tokens, f->max_len, f->dtype,
             (unsigned)hash64(f->mask, strlen(f->mask), 0));
    return path_join(path, 4096, s->folder, name);
}

status plan_store_put(const plan_store *s, const plan_file *f, const buf *text, bool *is_kept,
                      char path[4096]) {
    plan_file old;
    bool is_new;
    *is_kept = false;
    TRY(path_of(s, f, path));
    if (file_exists(path) && plan_file_read(&old, path) == OK && old.ms > 0 && old.ms < f->ms)
        return OK;
    TRY(folder_create(s->folder, &is_new));
    status st = file_write(path, buf_str(text), text->n_bytes);
    *is_kept = st == OK;
    return st;
}

static bool is_same_layer(const plan_file *a, const plan_file *b) {
    return strcmp(a->layer, b->layer) == 0 && strcmp(a->arch, b->arch) == 0 &&
           strcmp(a->mask, b->mask) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           a->n_heads == b->n_heads && a->dim_head == b->dim_head && a->dim_ffn == b->dim_ffn;
}

static double distance(const plan_file *a, const plan_file *b) {
    return fabs(log2((double)a->n_tokens / (double)b->n_tokens)) +
           fabs(log2((double)a->max_len / (double)b->max_len));
}

/* A faster plan wins where two are as near. */
static void consider(const char *path, const plan_file *want, plan_file *best, double *nearest) {
    plan_file f;
    if (plan_file_read(&f, path) != OK) return;
    if (!is_same_layer(&f, want) || f.n_tokens < 1 || f.max_len < 1) return;
    double d = distance(&f, want);
    if (d > farthest || d > *nearest || (d == *nearest && f.ms >= best->ms)) return;
    *best = f;
    *nearest = d;
}

status plan_store_find(const plan_store *s, const plan_file *want, plan_file *out, bool *is_found) {
    double nearest = INFINITY;
    const struct dirent *entry;
    char path[4096];
    *out = (plan_file){0};
    *is_found = false;
    DIR *folder = opendir(s->folder);
    if (folder == NULL && errno == ENOENT) return OK;
    if (folder == NULL) return fail_errno("%s", s->folder);
    while ((entry = readdir(folder)) != NULL) {
        if (!text_ends_with(entry->d_name, ".json")) continue;
        if (path_join(path, sizeof path, s->folder, entry->d_name) != OK) continue;
        consider(path, want, out, &nearest);
    }
    closedir(folder);
    *is_found = isfinite(nearest);
    return OK;
}
