/* Masks from files: dense bytes, or the keys of each row (csr).  Every number of a file is checked
 * when it is opened, so that filling a row cannot fail. */
#include "base/mem.h"
#include "format/safetensors.h"
#include "ops/mask_int.h"

struct mask_file {
    st_file *st;
    int64_t n_sequences; /* 0: one mask for all */
    int64_t *n;          /* tokens of each sequence, or of the one mask */
    int64_t *first;      /* (sequences + 1): its first byte (bits) or its first row (csr) */
    const uint8_t *bytes;
    const st_tensor *row_begin, *keys; /* csr */
};

static status get_ints(const st_file *st, const char *name, const st_tensor **out) {
    *out = st_find(st, name);
    if (*out == NULL)
        return fail(ERR_FORMAT, "%s: no tensor '%s', which a csr mask needs", st_path(st), name);
    if ((*out)->dtype != ST_I32 && (*out)->dtype != ST_I64)
        return fail(ERR_FORMAT, "%s: '%s' is %s; it must be I32 or I64", st_path(st), name,
                    st_dtype_name((*out)->dtype));
    return OK;
}

/* The lengths of the sequences, and how many rows, or pairs if is_square, come before each. */
static status read_lengths(mask_file *f, bool is_square) {
    const st_tensor *lengths = st_find(f->st, "lengths");
    if (lengths == NULL) return OK;
    TRY(get_ints(f->st, "lengths", &lengths));
    f->n_sequences = lengths->n;
    TRY(MEM_NEW(&f->n, (size_t)f->n_sequences));
    TRY(MEM_NEW(&f->first, (size_t)f->n_sequences + 1));
    for (int64_t b = 0; b < f->n_sequences; b++) {
        int64_t n = st_int_at(lengths, b), size = 0;
        bool is_length = n >= 0 && n <= INT32_MAX - MASK_TILE;
        if (is_length) size = is_square ? n * n : n;
        if (!is_length || f->first[b] > INT64_MAX - size)
            return fail(ERR_FORMAT, "%s: sequence %lld has length %lld", st_path(f->st),
                        (long long)b, (long long)n);
        f->n[b] = n;
        f->first[b + 1] = f->first[b] + size;
    }
    return OK;
}

static status set_one(mask_file *f, int64_t n) {
    TRY(MEM_NEW(&f->n, 1));
    TRY(MEM_NEW(&f->first, 2));
    f->n[0] = n;
    return OK;
}

static status read_bits(mask_file *f) {
    const char *path = st_path(f->st);
    const st_tensor *t = st_find(f->st, "mask");
    if (t == NULL) return fail(ERR_FORMAT, "%s: no tensor 'mask' (one byte for each pair)", path);
    if (t->dtype != ST_U8 && t->dtype != ST_BOOL && t->dtype != ST_I8)
        return fail(ERR_FORMAT, "%s: 'mask' is %s; it must be U8, I8 or BOOL", path,
                    st_dtype_name(t->dtype));
    f->bytes = t->data;
    TRY(read_lengths(f, true));
    if (f->first != NULL) {
        if (f->first[f->n_sequences] != t->n)
            return fail(ERR_FORMAT, "%s: 'mask' has %lld bytes, but the lengths make %lld pairs",
                        path, (long long)t->n, (long long)f->first[f->n_sequences]);
        return OK;
    }
    if (t->n_dims != 2 || t->shape[0] != t->shape[1] || t->shape[0] > INT32_MAX - MASK_TILE)
        return fail(ERR_FORMAT,
                    "%s: 'mask' must be (n, n), or be beside a tensor 'lengths' that says how many "
                    "tokens each sequence has",
                    path);
    return set_one(f, t->shape[0]);
}

/* Every row begins where the one before ends, and its keys ascend within its sequence. */
static status check_row(const mask_file *f, int64_t row, int64_t n) {
    int64_t begin = st_int_at(f->row_begin, row), end = st_int_at(f->row_begin, row + 1), last = -1;
    if (begin < 0 || end < begin || end > f->keys->n)
        return fail(ERR_FORMAT, "%s: row %lld has keys %lld to %lld of %lld", st_path(f->st),
                    (long long)row, (long long)begin, (long long)end, (long long)f->keys->n);
    for (int64_t at = begin; at < end; at++) {
        int64_t key = st_int_at(f->keys, at);
        if (key < 0 || key >= n)
            return fail(ERR_FORMAT, "%s: row %lld has key %lld; its sequence has keys 0 to %lld",
                        st_path(f->st), (long long)row, (long long)key, (long long)n - 1);
        if (key <= last)
            return fail(ERR_FORMAT, "%s: row %lld has key %lld after %lld; keys ascend",
                        st_path(f->st), (long long)row, (long long)key, (long long)last);
        last = key;
    }
    return OK;
}

static status read_csr(mask_file *f) {
    const char *path = st_path(f->st);
    TRY(get_ints(f->st, "indptr", &f->row_begin));
    TRY(get_ints(f->st, "indices", &f->keys));
    TRY(read_lengths(f, false));
    int64_t n_rows = f->row_begin->n - 1;
    if (n_rows < 0 || (f->first == NULL && n_rows > INT32_MAX - MASK_TILE))
        return fail(ERR_FORMAT, "%s: 'indptr' has %lld numbers", path, (long long)n_rows + 1);
    if (f->first == NULL) TRY(set_one(f, n_rows));
    if (f->n_sequences > 0 && f->first[f->n_sequences] != n_rows)
        return fail(ERR_FORMAT, "%s: 'indptr' has %lld rows, but the lengths make %lld", path,
                    (long long)n_rows, (long long)f->first[f->n_sequences]);
    int64_t n_masks = mask_file_is_by_sequence(f) ? f->n_sequences : 1;
    for (int64_t b = 0; b < n_masks; b++)
        for (int64_t i = 0; i < f->n[b]; i++)
            TRY(check_row(f, f->first[b] + i, f->n[b]));
    return OK;
}

status mask_file_open(mask_file **out, const char *path, bool is_csr) {
    mask_file *f;
    *out = NULL;
    TRY(MEM_NEW(&f, 1));
    status st = st_open(&f->st, path);
    if (st == OK) st = is_csr ? read_csr(f) : read_bits(f);
    if (st != OK) {
        mask_file_close(f);
        return st;
    }
    *out = f;
    return OK;
}

void mask_file_close(mask_file *f) {
    if (f == NULL) return;
    mem_free(f->n);
    mem_free(f->first);
    st_close(f->st);
    mem_free(f);
}

bool mask_file_is_by_sequence(const mask_file *f) {
    return st_find(f->st, "lengths") != NULL;
}

int64_t mask_file_length(const mask_file *f, int64_t sequence) {
    if (!mask_file_is_by_sequence(f)) return f->n[0];
    return sequence >= 0 && sequence < f->n_sequences ? f->n[sequence] : 0;
}

status mask_file_check(const mask_file *f, int64_t sequence, int64_t n) {
    const char *path = st_path(f->st);
    if (!mask_file_is_by_sequence(f)) {
        if (n <= f->n[0]) return OK;
        return fail(ERR_USAGE, "%s: a mask of %lld tokens, but sequence %lld has %lld", path,
                    (long long)f->n[0], (long long)sequence, (long long)n);
    }
    if (sequence < 0 || sequence >= f->n_sequences)
        return fail(ERR_USAGE, "%s: masks of %lld sequences; there is none for sequence %lld", path,
                    (long long)f->n_sequences, (long long)sequence);
    if (n != f->n[sequence])
        return fail(ERR_USAGE, "%s: the mask of sequence %lld is for %lld tokens, but it has %lld",
                    path, (long long)sequence, (long long)f->n[sequence], (long long)n);
    return OK;
}

void mask_file_fill_row(const mask_file *f, int64_t sequence, int32_t n, int32_t row,
                        uint64_t *words) {
    int64_t b = mask_file_is_by_sequence(f) ? sequence : 0;
    if (f->bytes != NULL) {
        const uint8_t *from = f->bytes + f->first[b] + row * f->n[b];
        for (int32_t j = 0; j < n; j++)
            words[j / 64] |= (uint64_t)(from[j] != 0) << (j % 64);
        return;
    }
    int64_t at = st_int_at(f->row_begin, f->first[b] + row);
    int64_t end = st_int_at(f->row_begin, f->first[b] + row + 1);
    /* Checked when the file was opened; a file that somebody writes to since must not lead out of
     * the arrays. */
    for (at = at < 0 ? 0 : at; at < end && at < f->keys->n; at++) {
        int64_t key = st_int_at(f->keys, at);
        if (key >= 0 && key < n) words[key / 64] |= (uint64_t)1 << (key % 64);
    }
}
