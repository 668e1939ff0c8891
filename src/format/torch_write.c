/* Writing of .pt files: a pickle of protocol 2, as torch.save makes it, and a member a tensor. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "format/torch_file.h"
#include "format/zip_write.h"

enum { ALIGN = 64 }; /* of storages: torch maps them */
enum { INT1_MAX = 0xff, INT2_MAX = 0xffff };

static status put_bytes(buf *b, uint64_t value, int n) {
    for (int i = 0; i < n; i++)
        TRY(buf_char(b, (char)(value >> 8 * i)));
    return OK;
}

static status put_int(buf *b, int64_t value) {
    if (value <= INT1_MAX) {
        TRY(buf_char(b, 'K'));
        return put_bytes(b, (uint64_t)value, 1);
    }
    if (value <= INT2_MAX) {
        TRY(buf_char(b, 'M'));
        return put_bytes(b, (uint64_t)value, 2);
    }
    if (value <= INT32_MAX) {
        TRY(buf_char(b, 'J'));
        return put_bytes(b, (uint64_t)value, 4);
    }
    TRY(buf_append(b, "\x8a\x08", 2));
    return put_bytes(b, (uint64_t)value, 8);
}

static status put_text(buf *b, const char *text) {
    TRY(buf_char(b, 'X'));
    TRY(put_bytes(b, strlen(text), 4));
    return buf_text(b, text);
}

static status put_tuple(buf *b, int n, const int64_t *value) {
    TRY(buf_char(b, '('));
    for (int i = 0; i < n; i++)
        TRY(put_int(b, value[i]));
    return buf_char(b, 't');
}

static const char *storage_class(st_dtype dtype) {
    static const char *const names[] = {
        [ST_F64] = "DoubleStorage",    [ST_F32] = "FloatStorage", [ST_F16] = "HalfStorage",
        [ST_BF16] = "BFloat16Storage", [ST_I64] = "LongStorage",  [ST_I32] = "IntStorage",
        [ST_I16] = "ShortStorage",     [ST_I8] = "CharStorage",   [ST_U8] = "ByteStorage",
        [ST_BOOL] = "BoolStorage"};
    return names[dtype];
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
    TRY(buf_printf(b, "ctorch\n%s\n", storage_class(t->dtype)));
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
    buf pickle;
    char name[64];
    buf_init(&pickle);
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
