#include "format/npz.h"

enum { NPY_ALIGN = 64 };

/* The header of a .npy file: a dictionary in Python's notation, padded so that the data is
 * aligned. */
static status npy_header(buf *b, const npz_array *a) {
    TRY(buf_append(b, "\x93NUMPY\x01\x00\x00\x00", 10));
    TRY(buf_printf(b, "{'descr': '%s', 'fortran_order': False, 'shape': (", a->type));
    for (int d = 0; d < a->n_dims; d++)
        TRY(buf_printf(b, "%" PRId64 ", ", a->shape[d]));
    TRY(buf_text(b, "), }"));
    while (b->n_bytes % NPY_ALIGN != NPY_ALIGN - 1)
        TRY(buf_char(b, ' '));
    TRY(buf_char(b, '\n'));
    b->data[8] = (char)((b->n_bytes - 10) & 0xff);
    b->data[9] = (char)((b->n_bytes - 10) >> 8);
    return OK;
}

static status count_bytes(const npz_array *a, uint64_t *out) {
    uint64_t n = a->element_bytes;
    for (int d = 0; d < a->n_dims; d++)
        if (__builtin_mul_overflow(n, (uint64_t)a->shape[d], &n) || n > INT64_MAX)
            return fail(ERR_UNSUPPORTED, "the array '%s' is larger than a file can be", a->name);
    *out = n;
    return OK;
}

static status begin(zip_writer *w, const npz_array *a, buf *header) {
    char name[ZIP_NAME_BYTES];
    uint64_t n_bytes = 0;
    if (snprintf(name, sizeof name, "%s.npy", a->name) >= (int)sizeof name)
        return fail(ERR_UNSUPPORTED, "the array's name '%.60s...' is too long", a->name);
    TRY(count_bytes(a, &n_bytes));
    TRY(npy_header(header, a));
    TRY(zip_begin(w, name, n_bytes + header->n_bytes, 1));
    return zip_write(w, header->data, header->n_bytes);
}

status npz_begin(zip_writer *w, const npz_array *a) {
    buf header = {0};
    if (a->n_dims > NPZ_MAX_DIMS)
        return fail(ERR_CONFIG, "the array '%s' has more than %d dimensions", a->name,
                    NPZ_MAX_DIMS);
    status st = begin(w, a, &header);
    buf_fini(&header);
    return st;
}

/* The header is as numpy.save writes it; other forms of the dictionary are refused. */
static status read_npy(st_file *f) {
    static const char form[] =
        "{'descr': '<f%1[248]', 'fortran_order': False, 'shape': (%18" SCNd64 ", %18" SCNd64 ")%n";
    const unsigned char *b = f->map.bytes;
    size_t n = f->map.n_bytes, begin = n > 6 && b[6] > 1 ? 12 : 10;
    uint64_t header = n < 12 ? UINT64_MAX : read_little(b + 8, (int)begin - 8);
    char text[1024] = "", type[2] = "";
    TRY(MEM_NEW(&f->tensors, 1));
    st_tensor *t = f->tensors;
    if (header < sizeof text && header <= n - begin && memcmp(b, "\x93NUMPY", 6) == 0)
        memcpy(text, b + begin, header);
    int end = 0, n_read = sscanf(text, form, type, &t->shape[0], &t->shape[1], &end);
    end += (int)strspn(text + end, ", ");
    if (n_read != 3 || text[end] != '}' || t->shape[0] < 0 || t->shape[1] < 0 ||
        __builtin_mul_overflow(t->shape[0], t->shape[1], &t->n) ||
        (uint64_t)t->n != (n - begin - header) / (size_t)(type[0] - '0'))
        return fail(ERR_FORMAT,
                    "%s: no matrix of floating point, or cut short; save one with "
                    "numpy.save(FILE, numpy.ascontiguousarray(x, \"float32\"))",
                    f->path);
    t->name = "vectors";
    t->dtype = type[0] == '8' ? ST_F64 : type[0] == '4' ? ST_F32 : ST_F16;
    t->n_dims = 2;
    t->data = b + begin + header;
    f->n_tensors = f->capacity = 1;
    return OK;
}

status npy_open(st_file **out, const char *path) {
    return st_open_as(out, path, read_npy);
}
