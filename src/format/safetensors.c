#include "format/safetensors.h"

#include "base/half.h"
#include "format/json.h"

enum { MAX_HEADER_BYTES = 100 << 20 };

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
              {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

size_t st_dtype_bytes(st_dtype dtype) {
    return dtypes[dtype].bytes;
}

const char *st_dtype_name(st_dtype dtype) {
    return dtypes[dtype].name;
}

static status parse_dtype(const st_file *f, const char *tensor, const char *name, st_dtype *out) {
    for (int i = ST_F64; i <= ST_BOOL; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (st_dtype)i;
            return OK;
        }
    }
    return fail(ERR_FORMAT, "%s: tensor '%s' has type '%.20s', which is not known", f->path, tensor,
                name);
}

/* Shape and number of elements, whose product must fit into a file. */
static status parse_shape(const st_file *f, const json_value *shape, st_tensor *t) {
    if (shape == NULL || shape->type != JSON_ARRAY || shape->n_children > ST_MAX_DIMS)
        return fail(ERR_FORMAT, "%s: tensor '%s' has no shape of at most %d numbers", f->path,
                    t->name, ST_MAX_DIMS);
    t->n = 1;
    for (const json_value *d = shape->first; d != NULL; d = d->next) {
        if (d->type != JSON_NUMBER || !d->is_integer || d->integer < 0 ||
            __builtin_mul_overflow(t->n, d->integer, &t->n) || t->n > INT64_MAX / 8)
            return fail(ERR_FORMAT, "%s: tensor '%s' has an impossible shape", f->path, t->name);
        t->shape[t->n_dims++] = d->integer;
    }
    return OK;
}

static status parse_tensor(st_file *f, const json_value *entry, size_t data_at, st_tensor *t) {
    const char *dtype;
    *t = (st_tensor){.name = entry->key};
    if (entry->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "%s: the entry of tensor '%s' is not an object", f->path,
                    entry->key);
    TRY(json_member_string(entry, "dtype", &dtype));
    TRY(parse_dtype(f, t->name, dtype, &t->dtype));
    TRY(parse_shape(f, json_member(entry, "shape"), t));
    const json_value *range = json_member(entry, "data_offsets");
    if (range == NULL || range->type != JSON_ARRAY || range->n_children != 2 ||
        !range->first->is_integer || !range->first->next->is_integer)
        return fail(ERR_FORMAT, "%s: tensor '%s' has no data_offsets", f->path, t->name);
    int64_t begin = range->first->integer, end = range->first->next->integer;
    int64_t n_data = (int64_t)(f->map.n_bytes - data_at);
    if (begin < 0 || begin > end || end > n_data ||
        end - begin != t->n * (int64_t)dtypes[t->dtype].bytes)
        return fail(ERR_FORMAT,
                    "%s: tensor '%s' is at %" PRId64 "..%" PRId64 " of %" PRId64
                    " bytes of data, which does not fit its shape",
                    f->path, t->name, begin, end, n_data);
    t->data = f->map.bytes + data_at + begin;
    return OK;
}

static int compare_places(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n > y->n) - (x->n < y->n); /* an empty tensor comes before the one it touches */
}

/* Every byte of the data belongs to exactly one tensor. */
static status check_cover(const st_file *f, size_t data_at) {
    const unsigned char *end = f->map.bytes + data_at;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        if ((const unsigned char *)t->data != end)
            return fail(ERR_FORMAT, "%s: tensor '%s' leaves a gap or overlaps another one", f->path,
                        t->name);
        end += (size_t)t->n * dtypes[t->dtype].bytes;
    }
    if (end != f->map.bytes + f->map.n_bytes)
        return fail(ERR_FORMAT, "%s: %zu bytes after the last tensor", f->path,
                    (size_t)(f->map.bytes + f->map.n_bytes - end));
    return OK;
}

static status parse_header(st_file *f, const json_value *root, size_t data_at) {
    if (root->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "%s: the header is not a JSON object", f->path);
    TRY(MEM_NEW(&f->tensors, root->n_children));
    for (const json_value *entry = root->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, "__metadata__") == 0)
            f->metadata = entry;
        else
            TRY(parse_tensor(f, entry, data_at, &f->tensors[f->n_tensors++]));
    }
    if (f->n_tensors > 0) qsort(f->tensors, f->n_tensors, sizeof *f->tensors, compare_places);
    return check_cover(f, data_at);
}

static status read_file(st_file *f) {
    uint64_t n;
    const json_value *root;
    if (f->map.n_bytes < 8)
        return fail(ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file", f->path,
                    f->map.n_bytes);
    memcpy(&n, f->map.bytes, 8);
    if (n > MAX_HEADER_BYTES || n > f->map.n_bytes - 8)
        return fail(ERR_FORMAT,
                    "%s: not a safetensors file, or cut short: the header should have %" PRIu64
                    " bytes",
                    f->path, n);
    /* Writers pad the header with blanks, which JSON allows after a value. */
    TRY(json_parse(&f->memory, f->path, (const char *)f->map.bytes + 8, (size_t)n, &root));
    return parse_header(f, root, 8 + (size_t)n);
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const st_tensor *const *)a)->name, (*(const st_tensor *const *)b)->name);
}

static status sort_names(st_file *f) {
    size_t n = f->n_tensors;
    TRY(MEM_NEW(&f->by_name, n));
    for (size_t i = 0; i < n; i++)
        f->by_name[i] = &f->tensors[i];
    if (n > 0) qsort(f->by_name, n, sizeof *f->by_name, compare_names);
    for (size_t i = 1; i < n; i++)
        if (compare_names(&f->by_name[i - 1], &f->by_name[i]) == 0)
            return fail(ERR_FORMAT, "%s: two tensors have the name '%s'", f->path,
                        f->by_name[i]->name);
    return OK;
}

status st_open_as(st_file **out, const char *path, status (*read)(st_file *f)) {
    st_file *f;
    *out = NULL;
    TRY(MEM_NEW(&f, 1));
    arena_init(&f->memory, 64 << 10);
    snprintf(f->path, sizeof f->path, "%s", path);
    status st = file_map_open(&f->map, path);
    if (st == OK) st = read(f);
    if (st == OK) st = sort_names(f);
    return CREATED(st, out, f, st_close);
}

status st_open(st_file **out, const char *path) {
    return st_open_as(out, path, read_file);
}

void st_close(st_file *f) {
    if (f == NULL) return;
    arena_fini(&f->memory);
    file_map_close(&f->map);
    MEM_FREE(f->tensors, f->by_name, f);
}

const st_tensor *st_find(const st_file *f, const char *name) {
    const st_tensor key = {.name = name}, *p = &key;
    const st_tensor **found =
        f->n_tensors > 0 ? bsearch(&p, f->by_name, f->n_tensors, sizeof *f->by_name, compare_names)
                         : NULL;
    return found != NULL ? *found : NULL;
}

status st_get(const st_file *f, const char *name, st_dtype dtype, const st_tensor **out) {
    *out = st_find(f, name);
    if (*out == NULL) return fail(ERR_FORMAT, "%s: has no tensor '%s'", f->path, name);
    if ((*out)->dtype != dtype)
        return fail(ERR_FORMAT, "%s: tensor '%s' is %s, not %s", f->path, name,
                    st_dtype_name((*out)->dtype), st_dtype_name(dtype));
    return OK;
}

int64_t st_first_not_finite(const st_tensor *t) {
    enum { BLOCK = 4096 }; /* counted only, which compilers vectorise */
    size_t bytes = t->dtype == ST_F32 ? 4 : 2;
    uint32_t exponent = t->dtype == ST_F32 ? 0x7f800000u : t->dtype == ST_F16 ? 0x7c00u : 0x7f80u;
    uint32_t wide[BLOCK];
    uint16_t half[BLOCK];
    for (int64_t at = 0; at < t->n; at += BLOCK) {
        int64_t n = t->n - at < BLOCK ? t->n - at : BLOCK, n_bad = 0;
        const char *from = (const char *)t->data + (size_t)at * bytes;
        memcpy(bytes == 4 ? (void *)wide : (void *)half, from, (size_t)n * bytes);
        for (int64_t i = 0; bytes == 2 && i < n; i++)
            wide[i] = half[i];
        for (int64_t i = 0; i < n; i++)
            n_bad += (wide[i] & exponent) == exponent;
        for (int64_t i = 0; n_bad > 0; i++)
            if ((wide[i] & exponent) == exponent) return at + i;
    }
    return -1;
}

float st_float_at(const st_tensor *t, int64_t index) {
    size_t bytes = st_dtype_bytes(t->dtype);
    const unsigned char *p = (const unsigned char *)t->data + (size_t)index * bytes;
    float x;
    double d;
    uint16_t h;
    switch (t->dtype) {
    case ST_F32:
        memcpy(&x, p, sizeof x);
        return x;
    case ST_F64:
        memcpy(&d, p, sizeof d);
        return (float)d;
    case ST_F16:
        memcpy(&h, p, sizeof h);
        return half_f16_to_float(h);
    default:
        memcpy(&h, p, sizeof h);
        return half_bf16_to_float(h);
    }
}

void st_floats(const st_tensor *t, int64_t first, int64_t n, float *to) {
    if (t->dtype == ST_F32) memcpy(to, (const char *)t->data + first * 4, (size_t)n * sizeof *to);
    for (int64_t i = 0; t->dtype != ST_F32 && i < n; i++)
        to[i] = st_float_at(t, first + i);
}

int64_t st_int_at(const st_tensor *t, int64_t i) {
    const char *data = t->data;
    int64_t wide;
    int32_t narrow;
    if (t->dtype == ST_I64) {
        memcpy(&wide, data + i * 8, 8);
        return wide;
    }
    memcpy(&narrow, data + i * 4, 4);
    return narrow;
}

const char *st_metadata(const st_file *f, const char *key) {
    const json_value *v = f->metadata != NULL ? json_member(f->metadata, key) : NULL;
    return v != NULL && v->type == JSON_STRING ? v->string : NULL;
}

static status write_header(buf *out, const st_tensor *tensors, size_t n_tensors,
                           const st_pair *metadata, size_t n_metadata) {
    json_writer w;
    uint64_t at = 0;
    json_begin_object(&w, out, 0);
    if (n_metadata > 0) {
        json_key_object(&w, "__metadata__");
        for (size_t i = 0; i < n_metadata; i++)
            json_key_string(&w, metadata[i].key, metadata[i].value);
        json_object_close(&w);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        const st_tensor *t = &tensors[i];
        json_key_object(&w, t->name);
        json_key_string(&w, "dtype", dtypes[t->dtype].name);
        json_key_array(&w, "shape");
        for (int d = 0; d < t->n_dims; d++)
            json_int(&w, t->shape[d]);
        json_array_close(&w);
        json_key_array(&w, "data_offsets");
        json_uint(&w, at);
        at += (uint64_t)t->n * dtypes[t->dtype].bytes;
        json_uint(&w, at);
        json_array_close(&w);
        json_object_close(&w);
    }
    TRY(json_finish_object(&w));
    while (out->n_bytes % 8 != 0)
        TRY(buf_char(out, ' '));
    return OK;
}

status st_header(buf *out, const st_tensor *tensors, size_t n_tensors, const st_pair *metadata,
                 size_t n_metadata) {
    uint64_t n = 0;
    TRY(buf_append(out, &n, sizeof n));
    TRY(write_header(out, tensors, n_tensors, metadata, n_metadata));
    n = out->n_bytes - sizeof n;
    memcpy(out->data, &n, sizeof n);
    return OK;
}

status st_begin(out_file **out, const char *path, const st_tensor *tensors, size_t n_tensors,
                const st_pair *metadata, size_t n_metadata) {
    buf header = {0};
    out_file *f = NULL;
    *out = NULL;
    status st = st_header(&header, tensors, n_tensors, metadata, n_metadata);
    if (st == OK) st = out_file_create(&f, path);
    if (st == OK) st = out_file_write(f, header.data, header.n_bytes);
    buf_fini(&header);
    return CREATED(st, out, f, out_file_abandon);
}

status st_begin_late(out_file **out, const char *path) {
    char header[8 + ST_LATE_BYTES];
    memset(header, ' ', sizeof header);
    TRY(out_file_create(out, path));
    status st = out_file_write(*out, header, sizeof header);
    if (st == OK) return OK;
    out_file_abandon(*out);
    *out = NULL;
    return st;
}

status st_end_late(out_file *f, const st_tensor *tensors, size_t n_tensors, const st_pair *metadata,
                   size_t n_metadata) {
    char room[8 + ST_LATE_BYTES];
    uint64_t n = ST_LATE_BYTES;
    buf header = {0};
    status st = write_header(&header, tensors, n_tensors, metadata, n_metadata);
    if (st == OK && header.n_bytes > ST_LATE_BYTES)
        st = fail(ERR_USAGE, "a header of %zu bytes does not fit the room for it", header.n_bytes);
    /* Reading back empties the buffer, which may still hold the header's room. */
    if (st == OK) st = out_file_read_at(f, 0, room, sizeof room);
    if (st == OK) {
        memcpy(room, &n, sizeof n);
        memcpy(room + sizeof n, header.data, header.n_bytes);
        st = out_file_write_at(f, 0, room, sizeof room);
    }
    buf_fini(&header);
    return st;
}

status st_write(const char *path, const st_tensor *tensors, size_t n_tensors,
                const st_pair *metadata, size_t n_metadata) {
    out_file *f;
    status st = st_begin(&f, path, tensors, n_tensors, metadata, n_metadata);
    for (size_t i = 0; st == OK && i < n_tensors; i++)
        st = out_file_write(f, tensors[i].data,
                            (size_t)tensors[i].n * dtypes[tensors[i].dtype].bytes);
    return out_file_end(f, st);
}
