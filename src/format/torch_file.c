#include "format/torch_file.h"
#include "format/pickle.h"
#include "format/zip.h"

/* A checkpoint of 10,000 tensors has a pickle of 2 MB.  Dicts may be shared and contain themselves,
 * so what is visited is limited, too. */
enum { ROOT_BYTES = 256 };
enum { MAX_PICKLE_BYTES = 16 << 20, MAX_DEPTH = 32, MAX_VISITS = 1 << 20, MAX_TENSORS = 1 << 18 };

typedef struct reader {
    st_file *file;
    zip_list members;
    char root[ROOT_BYTES]; /* the folder of the members, with its slash */
    int64_t n_visits;
} reader;

/* How torch names the types: its own name, the class of storages, and the name in _v3 tensors. */
static const struct {
    const char *name, *storage, *dtype;
} types[] = {[ST_F64] = {"float64", "torch.DoubleStorage", "torch.float64"},
             [ST_F32] = {"float32", "torch.FloatStorage", "torch.float32"},
             [ST_F16] = {"float16", "torch.HalfStorage", "torch.float16"},
             [ST_BF16] = {"bfloat16", "torch.BFloat16Storage", "torch.bfloat16"},
             [ST_I64] = {"int64", "torch.LongStorage", "torch.int64"},
             [ST_I32] = {"int32", "torch.IntStorage", "torch.int32"},
             [ST_I16] = {"int16", "torch.ShortStorage", "torch.int16"},
             [ST_I8] = {"int8", "torch.CharStorage", "torch.int8"},
             [ST_U8] = {"uint8", "torch.ByteStorage", "torch.uint8"},
             [ST_BOOL] = {"bool", "torch.BoolStorage", "torch.bool"}};

#define REBUILD_V2        "torch._utils._rebuild_tensor_v2"
#define REBUILD_V3        "torch._utils._rebuild_tensor_v3"
#define REBUILD_PARAMETER "torch._utils._rebuild_parameter"
#define REBUILD_FROM_TYPE "torch._tensor._rebuild_from_type_v2"
#define UNTYPED           "torch.storage.UntypedStorage"

/* The globals that files of weights name, besides the storages and types above; none is called. */
static const char *const globals[] = {"collections.OrderedDict",
                                      REBUILD_V2,
                                      REBUILD_V3,
                                      REBUILD_PARAMETER,
                                      REBUILD_PARAMETER "_with_state",
                                      REBUILD_FROM_TYPE,
                                      "torch.nn.parameter.Parameter",
                                      "torch.nn.parameter.Buffer",
                                      "torch.Tensor",
                                      "torch.Size",
                                      "torch.device",
                                      UNTYPED};
enum { N_GLOBALS = sizeof globals / sizeof *globals, N_TYPES = ST_BOOL + 1 };

const char *torch_dtype_name(st_dtype dtype) {
    return types[dtype].name;
}

static status refuse(const reader *r, const pickle_value *v, const char *name, const char *what) {
    char shown[TORCH_NAME_BYTES];
    escape_text(shown, sizeof shown, name);
    return fail(ERR_FORMAT, "%s: the tensor '%s' (byte %zu of data.pkl) is refused: %s",
                r->file->path, shown, v->at, what);
}

static const pickle_value *item_at(const pickle_value *v, size_t i) {
    const pickle_item *item = v->first;
    while (i-- > 0)
        item = item->next;
    return item->value;
}

static bool is_call_of(const pickle_value *v, const char *name) {
    return v->type == PICKLE_CALL && strcmp(v->function->text, name) == 0;
}

/* The storage of a tensor: ('storage', class, key, device, elements). */
typedef struct storage {
    const unsigned char *bytes;
    size_t n_bytes;
    bool is_typed;
    st_dtype dtype;
} storage;

static status storage_type(const reader *r, const pickle_value *v, const char *name, storage *s) {
    if (v->type != PICKLE_GLOBAL) return refuse(r, v, name, "its storage has no class");
    for (int i = ST_F64; i <= ST_BOOL; i++) {
        if (strcmp(v->text, types[i].storage) != 0) continue;
        s->is_typed = true;
        s->dtype = (st_dtype)i;
        return OK;
    }
    return strcmp(v->text, UNTYPED) == 0 ? OK : refuse(r, v, name, "its storage is none");
}

static status find_storage(reader *r, const pickle_value *v, const char *name, storage *s) {
    char member[ROOT_BYTES + 64];
    *s = (storage){0};
    const pickle_value *id = v->type == PICKLE_OUTSIDE ? v->args : NULL;
    if (id == NULL || id->type != PICKLE_TUPLE || id->n != 5)
        return refuse(r, v, name, "its storage is not in the file");
    const pickle_value *word = item_at(id, 0), *key = item_at(id, 2), *n = item_at(id, 4);
    if (word->type != PICKLE_TEXT || strcmp(word->text, "storage") != 0 ||
        key->type != PICKLE_TEXT || key->n > 40 || n->type != PICKLE_INT)
        return refuse(r, v, name, "the id of its storage is not one of torch.save");
    TRY(storage_type(r, item_at(id, 1), name, s));
    snprintf(member, sizeof member, "%sdata/%s", r->root, key->text);
    const zip_member *m = zip_find(&r->members, member);
    if (m == NULL) return refuse(r, v, name, "its storage is missing in the archive");
    size_t element = s->is_typed ? st_dtype_bytes(s->dtype) : 1;
    if (n->integer < 0 || (uint64_t)n->integer != m->n_bytes / element || m->n_bytes % element != 0)
        return refuse(r, v, name, "the size of its storage differs from the archive's");
    s->bytes = m->bytes;
    s->n_bytes = m->n_bytes;
    return OK;
}

/* Sizes or strides: a tuple of integers, or a torch.Size of one. */
static status read_dims(const reader *r, const pickle_value *v, const char *name,
                        int64_t dims[ST_MAX_DIMS], int *n) {
    if (is_call_of(v, "torch.Size") && v->args->n == 1) v = v->args->first->value;
    if (v->type != PICKLE_TUPLE || v->n > ST_MAX_DIMS)
        return refuse(r, v, name, "it has no shape of at most 8 dimensions");
    *n = 0;
    for (const pickle_item *i = v->first; i != NULL; i = i->next) {
        if (i->value->type != PICKLE_INT || i->value->integer < 0)
            return refuse(r, v, name, "a dimension or stride is not a natural number");
        dims[(*n)++] = i->value->integer;
    }
    return OK;
}

/* The elements, and that the last of them is in the storage. */
static status check_bounds(const reader *r, const pickle_value *v, st_tensor *t, const storage *s,
                           int64_t offset) {
    int64_t n_stored = (int64_t)(s->n_bytes / st_dtype_bytes(t->dtype)), last = offset, step;
    t->n = 1;
    for (int d = 0; d < t->n_dims; d++)
        if (__builtin_mul_overflow(t->n, t->shape[d], &t->n) || t->n > INT64_MAX / 8)
            return refuse(r, v, t->name, "its shape is impossible");
    for (int d = 0; d < t->n_dims && t->n > 0; d++)
        if (__builtin_mul_overflow(t->shape[d] - 1, t->stride[d], &step) ||
            __builtin_add_overflow(last, step, &last))
            return refuse(r, v, t->name, "its strides are impossible");
    if (offset < 0 || offset > n_stored || (t->n > 0 && last >= n_stored))
        return refuse(r, v, t->name, "it reaches beyond its storage");
    t->data = s->bytes + (size_t)offset * st_dtype_bytes(t->dtype);
    return OK;
}

static status find_dtype(const reader *r, const pickle_value *v, st_tensor *t) {
    for (int i = ST_F64; i <= ST_BOOL && v->type == PICKLE_GLOBAL; i++) {
        if (strcmp(v->text, types[i].dtype) != 0) continue;
        t->dtype = (st_dtype)i;
        return OK;
    }
    return refuse(r, v, t->name, "its type is not known");
}

/* A call becomes a tensor; parameters and subclasses wrap one. */
static const pickle_value *unwrap(const pickle_value *v) {
    for (int i = 0; i < 4 && v->type == PICKLE_CALL; i++) {
        const pickle_value *args = v->args;
        if (strncmp(v->function->text, REBUILD_PARAMETER, strlen(REBUILD_PARAMETER)) == 0 &&
            args->n >= 1)
            v = args->first->value;
        else
            break;
    }
    return v;
}

static status add_tensor(reader *r, const char *name, const pickle_value *function,
                         const pickle_value *args) {
    st_tensor t = {0};
    storage s;
    int n_strides = 0;
    bool is_v3 = strcmp(function->text, REBUILD_V3) == 0;
    if (args->type != PICKLE_TUPLE || args->n < (is_v3 ? 7u : 4u))
        return refuse(r, args, name, "its call lacks arguments");
    if (r->file->n_tensors == MAX_TENSORS)
        return refuse(r, args, name, "more tensors than any model has");
    TRY(arena_copy_text(&r->file->memory, name, strlen(name), &t.name));
    TRY(find_storage(r, item_at(args, 0), name, &s));
    const pickle_value *offset = item_at(args, 1);
    if (offset->type != PICKLE_INT) return refuse(r, args, name, "its offset is not an integer");
    TRY(read_dims(r, item_at(args, 2), name, t.shape, &t.n_dims));
    TRY(read_dims(r, item_at(args, 3), name, t.stride, &n_strides));
    if (n_strides != t.n_dims) return refuse(r, args, name, "it has not one stride a dimension");
    if (is_v3)
        TRY(find_dtype(r, item_at(args, 6), &t));
    else if (s.is_typed)
        t.dtype = s.dtype;
    else
        return refuse(r, args, name, "its type is not known");
    TRY(check_bounds(r, args, &t, &s, offset->integer));
    TRY(MEM_RESERVE(&r->file->tensors, &r->file->capacity, r->file->n_tensors + 1));
    r->file->tensors[r->file->n_tensors++] = t;
    return OK;
}

static status walk(reader *r, const pickle_value *v, buf *name, int depth);

/* Appends a key to a name: ".key", or "[3]" for integers. */
static status add_key(reader *r, const pickle_value *key, int64_t index, buf *name) {
    if (key != NULL && key->type == PICKLE_TEXT) {
        if (memchr(key->text, '\0', key->n) != NULL ||
            name->n_bytes + key->n >= TORCH_NAME_BYTES - 2)
            return refuse(r, key, buf_str(name), "a key has more than 500 bytes, or a NUL");
        if (name->n_bytes > 0) TRY(buf_char(name, '.'));
        return buf_text(name, key->text);
    }
    if (key != NULL && key->type != PICKLE_INT)
        return refuse(r, key, buf_str(name), "a key of a dict is neither a text nor an integer");
    if (name->n_bytes > TORCH_NAME_BYTES - 32)
        return refuse(r, key != NULL ? key : r->file->object, buf_str(name),
                      "its name is too long");
    return buf_printf(name, "[%" PRId64 "]", key != NULL ? key->integer : index);
}

static bool may_hold_tensors(const pickle_value *v) {
    return v->type == PICKLE_DICT || v->type == PICKLE_LIST || v->type == PICKLE_TUPLE ||
           v->type == PICKLE_CALL;
}

static status walk_items(reader *r, const pickle_value *v, buf *name, int depth) {
    int64_t index = 0;
    for (const pickle_item *i = v->first; i != NULL; i = i->next, index++) {
        size_t n = name->n_bytes;
        if (++r->n_visits > MAX_VISITS)
            return refuse(r, v, buf_str(name), "the file refers to its parts too often");
        if (!may_hold_tensors(i->value)) continue;
        TRY(add_key(r, i->key, index, name));
        TRY(walk(r, i->value, name, depth + 1));
        name->n_bytes = n;
        name->data[n] = '\0';
    }
    return OK;
}

static status walk(reader *r, const pickle_value *v, buf *name, int depth) {
    if (depth > MAX_DEPTH) return refuse(r, v, buf_str(name), "dicts in dicts too deep");
    v = unwrap(v);
    if (v->type == PICKLE_CALL) {
        const pickle_value *function = v->function, *args = v->args;
        if (strcmp(function->text, REBUILD_FROM_TYPE) == 0 && args->n >= 3 &&
            item_at(args, 0)->type == PICKLE_GLOBAL) {
            function = item_at(args, 0);
            args = item_at(args, 2);
        }
        if (strcmp(function->text, REBUILD_V2) == 0 || strcmp(function->text, REBUILD_V3) == 0)
            return add_tensor(r, buf_str(name), function, args);
        return OK; /* a torch.Size or torch.device */
    }
    return may_hold_tensors(v) ? walk_items(r, v, name, depth) : OK;
}

/* Old files begin with a pickled number; TorchScript has code beside its weights. */
static status check_kind(const reader *r) {
    static const unsigned char legacy[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9};
    if (r->file->map.n_bytes >= sizeof legacy &&
        memcmp(r->file->map.bytes, legacy, sizeof legacy) == 0)
        return fail(ERR_UNSUPPORTED,
                    "%s: in the format of torch before 1.6; load and save it once in Python: "
                    "torch.save(torch.load(FILE, weights_only=True), NEW)",
                    r->file->path);
    if (r->file->map.n_bytes < 4 || memcmp(r->file->map.bytes, "PK\003\004", 4) != 0)
        return fail(ERR_FORMAT, "%s: not a file of torch.save, which is a zip archive",
                    r->file->path);
    return OK;
}

/* The pickle is ROOT/data.pkl, and there is one of it. */
static status find_pickle(reader *r, const zip_member **out) {
    *out = NULL;
    for (size_t i = 0; i < r->members.n; i++) {
        const char *slash = strchr(r->members.member[i].name, '/');
        if (slash == NULL) continue;
        if (strcmp(slash, "/constants.pkl") == 0)
            return fail(ERR_UNSUPPORTED,
                        "%s: a TorchScript program; save its weights in Python: "
                        "torch.save(torch.jit.load(FILE).state_dict(), NEW)",
                        r->file->path);
        if (strcmp(slash, "/data.pkl") != 0) continue;
        size_t n = (size_t)(slash - r->members.member[i].name) + 1;
        if (*out != NULL || n >= sizeof r->root)
            return fail(ERR_FORMAT, "%s: it has no single ROOT/data.pkl", r->file->path);
        memcpy(r->root, r->members.member[i].name, n);
        r->root[n] = '\0';
        *out = &r->members.member[i];
    }
    if (*out == NULL)
        return fail(ERR_FORMAT, "%s: a zip archive without ROOT/data.pkl, so not of torch.save",
                    r->file->path);
    return OK;
}

static status check_order(const reader *r) {
    char name[ROOT_BYTES + 16];
    snprintf(name, sizeof name, "%sbyteorder", r->root);
    const zip_member *m = zip_find(&r->members, name);
    if (m == NULL || (m->n_bytes == 6 && memcmp(m->bytes, "little", 6) == 0)) return OK;
    return fail(ERR_UNSUPPORTED, "%s: its bytes are in the order of a big-endian machine",
                r->file->path);
}

/* torch.serialization.set_crc32_options(False) leaves zeros in place of the checksums. */
static status verify_members(const reader *r) {
    for (size_t i = 0; i < r->members.n; i++) {
        const zip_member *m = &r->members.member[i];
        if (!m->is_stored || m->crc != 0) TRY(zip_verify(m, r->file->path));
    }
    return OK;
}

static status read_file(st_file *f) {
    const zip_member *pickle;
    const char *allowed[N_GLOBALS + 2 * N_TYPES + 1] = {NULL};
    reader *r = &(reader){.file = f};
    buf name = {0};
    memcpy(allowed, globals, sizeof globals);
    for (int i = 0; i < N_TYPES; i++) {
        allowed[N_GLOBALS + 2 * i] = types[i].storage;
        allowed[N_GLOBALS + 2 * i + 1] = types[i].dtype;
    }
    TRY(check_kind(r));
    TRY(zip_read(&r->members, &f->memory, f->path, f->map.bytes, f->map.n_bytes));
    TRY(find_pickle(r, &pickle));
    TRY(check_order(r));
    if (pickle->n_bytes > MAX_PICKLE_BYTES)
        return fail(ERR_UNSUPPORTED, "%s: a pickle of %zu bytes; %d are the most", f->path,
                    pickle->n_bytes, MAX_PICKLE_BYTES);
    TRY(verify_members(r));
    TRY(pickle_read(&f->object, &f->memory, f->path, pickle->bytes, pickle->n_bytes, allowed));
    status st = buf_reserve(&name, TORCH_NAME_BYTES);
    if (st == OK) name.data[0] = '\0';
    if (st == OK) st = walk(r, f->object, &name, 0);
    buf_fini(&name);
    return st;
}

bool torch_is_file(const char *path) {
    file_map m;
    if (!file_exists(path) || file_map_open(&m, path) != OK) return false;
    bool is_torch = m.n_bytes >= 4 && (memcmp(m.bytes, "PK\003\004", 4) == 0 ||
                                       memcmp(m.bytes, "\x80\x02\x8a\x0a", 4) == 0);
    file_map_close(&m);
    return is_torch;
}

status torch_open(st_file **out, const char *path) {
    return st_open_as(out, path, read_file);
}

bool torch_find_int(const st_file *f, const char *key, int64_t *out) {
    if (f->object->type != PICKLE_DICT) return false;
    for (const pickle_item *i = f->object->first; i != NULL; i = i->next) {
        if (i->key->type != PICKLE_TEXT || strcmp(i->key->text, key) != 0) continue;
        if (i->value->type != PICKLE_INT) return false;
        *out = i->value->integer;
        return true;
    }
    return false;
}

/* One row after the other, by an index a dimension that counts like an odometer. */
status torch_read_floats(const st_file *f, const st_tensor *t, int64_t first, int64_t n,
                         float *to) {
    int64_t index[ST_MAX_DIMS] = {0}, rows = t->n_dims > 0 ? t->shape[0] : 1;
    if (t->dtype > ST_BF16)
        return fail(ERR_FORMAT, "%s: '%s' is %s, not of floating-point numbers", f->path, t->name,
                    torch_dtype_name(t->dtype));
    if (first < 0 || n < 0 || first > rows || n > rows - first)
        return fail(ERR_CONFIG, "%s: '%s' has no rows %" PRId64 " to %" PRId64, f->path, t->name,
                    first, first + n);
    if (t->n == 0 || n == 0) return OK;
    int64_t total = t->n / rows * n, at = t->n_dims > 0 ? first * t->stride[0] : 0;
    for (int64_t i = 0; i < total; i++) {
        to[i] = st_float_at(t, at);
        for (int d = t->n_dims - 1; d >= 0; d--) {
            at += t->stride[d];
            if (++index[d] < t->shape[d] || d == 0) break;
            at -= t->shape[d] * t->stride[d];
            index[d] = 0;
        }
    }
    return OK;
}

/* Writing of .pt files: a pickle of protocol 2, as torch.save makes it, and a member a tensor. */

enum { ALIGN = 64 }; /* of storages: torch maps them */

static status put_int(buf *b, int64_t value) {
    if (value > INT32_MAX) {
        TRY(buf_append(b, "\x8a\x08", 2));
        return buf_little(b, (uint64_t)value, 8);
    }
    int n = value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : 4;
    TRY(buf_char(b, n == 1 ? 'K' : n == 2 ? 'M' : 'J'));
    return buf_little(b, (uint64_t)value, n);
}

static status put_text(buf *b, const char *text) {
    TRY(buf_char(b, 'X'));
    TRY(buf_little(b, strlen(text), 4));
    return buf_text(b, text);
}

static status put_tuple(buf *b, int n, const int64_t *value) {
    TRY(buf_char(b, '('));
    for (int i = 0; i < n; i++)
        TRY(put_int(b, value[i]));
    return buf_char(b, 't');
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks) */
static status put_tensor(buf *b, const st_tensor *t, size_t number) {
    char key[24];
    int64_t stride[ST_MAX_DIMS], step = 1;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        stride[d] = step;
        step *= t->shape[d] > 0 ? t->shape[d] : 1;
    }
    snprintf(key, sizeof key, "%zu", number);
    TRY(buf_text(b, "ctorch._utils\n_rebuild_tensor_v2\n(("));
    TRY(put_text(b, "storage"));
    TRY(buf_printf(b, "ctorch\n%s\n", strchr(types[t->dtype].storage, '.') + 1));
    TRY(put_text(b, key));
    TRY(put_text(b, "cpu"));
    TRY(put_int(b, t->n));
    TRY(buf_text(b, "tQ"));
    TRY(put_int(b, 0));
    TRY(put_tuple(b, t->n_dims, t->shape));
    TRY(put_tuple(b, t->n_dims, stride));
    return buf_text(b, "\x89"
                       "ccollections\nOrderedDict\n)RtR");
}

static status put_pickle(buf *b, const st_tensor *tensors, size_t n) {
    TRY(buf_append(b, "\x80\x02", 2));
    TRY(buf_text(b, "ccollections\nOrderedDict\n)R("));
    for (size_t i = 0; i < n; i++) {
        TRY(put_text(b, tensors[i].name));
        TRY(put_tensor(b, &tensors[i], i));
    }
    return buf_text(b, "u.");
}

static status put_member(zip_writer *w, const char *name, const void *bytes, size_t n) {
    TRY(zip_begin(w, name, n, ALIGN));
    TRY(zip_write(w, bytes, n));
    return zip_end(w);
}

static status put_members(zip_writer *w, const st_tensor *tensors, size_t n_tensors) {
    buf pickle = {0};
    char name[64];
    status st = put_pickle(&pickle, tensors, n_tensors);
    if (st == OK) st = put_member(w, "archive/data.pkl", pickle.data, pickle.n_bytes);
    buf_fini(&pickle);
    TRY(st);
    TRY(put_member(w, "archive/byteorder", "little", 6));
    for (size_t i = 0; i < n_tensors; i++) {
        snprintf(name, sizeof name, "archive/data/%zu", i);
        TRY(put_member(w, name, tensors[i].data,
                       (size_t)tensors[i].n * st_dtype_bytes(tensors[i].dtype)));
    }
    return put_member(w, "archive/version", "3\n", 2);
}

status torch_write(const char *path, const st_tensor *tensors, size_t n_tensors) {
    zip_writer *w;
    TRY(zip_create(&w, path));
    status st = put_members(w, tensors, n_tensors);
    if (st == OK) return zip_commit(w);
    zip_abandon(w);
    return st;
}
