#include "train/files/checkpoint_parts.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/part_file.h"
#include "nn/params.h"
#include "ops/comm.h"

/* Floats that a rank writes at a time. */
enum { PIECE = 1 << 20 };

typedef struct part_writer {
    const checkpoint *c;
    part_file *file;
    float *piece;          /* (PIECE) or a row, if that is more */
    float *out, *in;       /* rows on their way between ranks */
    int64_t *n_out, *n_in; /* (size of c->ranks) */
    int64_t piece_n;       /* floats of the three */
    status st;             /* the first failure: exchanges go on, since other ranks wait for them */
} part_writer;

static void note(part_writer *w, status st) {
    if (w->st == OK) w->st = st;
}

static status check_finite(const part_tensor *t, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return fail(ERR_NUMERIC,
                        "'%s' holds numbers that are not finite; nothing was saved. Resume from "
                        "the last checkpoint with a smaller learning rate, or with clip_grad set",
                        t->name);
    return OK;
}

/* n floats of the host to element `at` of the whole tensor, which begins at byte `begin`. */
static status write_floats(part_writer *w, const part_tensor *t, uint64_t begin, int64_t at,
                           const float *x, int64_t n) {
    TRY(check_finite(t, x, n));
    return part_file_write(w->file, begin + (uint64_t)at * sizeof *x, x, (size_t)n * sizeof *x);
}

static status copy_out(const part_writer *w, float *to, const float *from, int64_t n) {
    backend *be = w->c->be;
    return n > 0 ? be->ops->copy_out(be, to, from, (size_t)n * sizeof *to) : OK;
}

static int64_t slice_first(int64_t n, int r, int size) {
    return n / size * r + n % size * r / size;
}

/* A tensor that every rank has: the slice of this one. */
static status write_slice(part_writer *w, const part_tensor *t, uint64_t begin) {
    const comm *c = w->c->ranks;
    int rank = c != NULL ? c->rank : 0;
    int64_t end = slice_first(t->shape.n, rank + 1, comm_size(c)), n;
    for (int64_t at = slice_first(t->shape.n, rank, comm_size(c)); at < end; at += n) {
        n = end - at < PIECE ? end - at : PIECE;
        TRY(copy_out(w, w->piece, t->value + at, n));
        TRY(write_floats(w, t, begin, at, w->piece, n));
    }
    return OK;
}

/* A tensor that is cut over ranks: each run of this rank's part. */
static status write_cut(part_writer *w, const part_tensor *t, uint64_t begin) {
    for (int64_t at = 0, n; at < t->shape.n; at += n) {
        int64_t to = param_cut_run(&t->shape, at, &n);
        if (n > PIECE) n = PIECE;
        TRY(copy_out(w, w->piece, t->value + at, n));
        TRY(write_floats(w, t, begin, to, w->piece, n));
    }
    return OK;
}

/* A table whose rows ranks hold together, `width` floats each. */
typedef struct held_rows {
    const part_tensor *t;
    int64_t width, n_whole;
    int64_t first;    /* of this rank's rows that are not written yet */
    int64_t n_stripe; /* rows that a rank writes at a time */
} held_rows;

/* The rows that rank r writes next, from row `at` of the whole table on. */
static int64_t stripe(const held_rows *h, int64_t at, int r, int64_t *n) {
    int64_t first = at + r * h->n_stripe;
    if (first > h->n_whole) first = h->n_whole;
    *n = h->n_whole - first < h->n_stripe ? h->n_whole - first : h->n_stripe;
    return first;
}

/* This rank's rows of the next stripes to their writers.  It knows how many of its own go where;
 * how many come follows from the table's rule. */
static status exchange_stripes(part_writer *w, held_rows *h, int64_t at) {
    comm *c = w->c->ranks;
    const int32_t *rows = h->t->shape.rows;
    int64_t n_rows = h->t->shape.shape[0], from = h->first, n;
    for (int r = 0; r < c->size; r++) {
        int64_t end = stripe(h, at, r, &n) + n;
        w->n_out[r] = 0;
        for (; h->first < n_rows && rows[h->first] < end; h->first++)
            w->n_out[r]++;
        w->n_in[r] = 0;
    }
    int64_t first = stripe(h, at, c->rank, &n);
    for (int64_t i = first; i < first + n; i++)
        w->n_in[dynamic_rank_of_row((uint64_t)i, c->size)]++;
    note(w, copy_out(w, w->out, h->t->value + from * h->width, (h->first - from) * h->width));
    all_to_all_args a = {.row_bytes = h->width * (int64_t)sizeof *w->out,
                         .n_send = w->n_out,
                         .n_receive = w->n_in,
                         .from = w->out,
                         .to = w->in};
    return comm_host_exchange(c, &a);
}

/* The stripe of this rank in the order of the table. */
static void merge_stripe(part_writer *w, const held_rows *h, int64_t first, int64_t n) {
    int size = w->c->ranks->size;
    const float *next[DYNAMIC_MAX_RANKS];
    next[0] = w->in;
    for (int r = 1; r < size; r++)
        next[r] = next[r - 1] + w->n_in[r - 1] * h->width;
    for (int64_t i = 0; i < n; i++) {
        const float **from = &next[dynamic_rank_of_row((uint64_t)(first + i), size)];
        memcpy(w->piece + i * h->width, *from, (size_t)h->width * sizeof *w->piece);
        *from += h->width;
    }
}

static status write_held(part_writer *w, const part_tensor *t, uint64_t begin) {
    comm *c = w->c->ranks;
    held_rows h = {.t = t, .n_whole = t->shape.whole_rows};
    h.width = param_whole_n(&t->shape) / h.n_whole;
    h.n_stripe = w->piece_n / h.width / c->size;
    for (int64_t at = 0, n; at < h.n_whole; at += c->size * h.n_stripe) {
        TRY(exchange_stripes(w, &h, at));
        int64_t first = stripe(&h, at, c->rank, &n);
        merge_stripe(w, &h, first, n);
        if (w->st == OK) note(w, write_floats(w, t, begin, first * h.width, w->piece, n * h.width));
    }
    return OK;
}

static status write_tensor(part_writer *w, const part_tensor *t, uint64_t begin) {
    bool is_first_of_group = comm_is_first(w->c->group);
    if (t->shape.rows != NULL) return is_first_of_group ? write_held(w, t, begin) : OK;
    if (w->st != OK) return OK;
    if (t->shape.cut.n_parts > 1)
        note(w, comm_is_first(w->c->ranks) ? write_cut(w, t, begin) : OK);
    else
        note(w, is_first_of_group ? write_slice(w, t, begin) : OK);
    return OK;
}

static status open_writer(part_writer *w, const char *path, const part_tensor *list, int n) {
    int64_t size = comm_size(w->c->ranks);
    bool is_held = false;
    w->piece_n = PIECE;
    for (int i = 0; i < n; i++) {
        if (list[i].shape.rows == NULL) continue;
        int64_t width = param_whole_n(&list[i].shape) / list[i].shape.whole_rows;
        is_held = true;
        if (w->piece_n < width * size) w->piece_n = width * size;
    }
    /* Rows may all come from one rank, and go to one. */
    size_t room = is_held ? (size_t)w->piece_n : 0;
    TRY(MEM_NEW_RAW(&w->piece, (size_t)w->piece_n));
    TRY(MEM_NEW_RAW(&w->out, room));
    TRY(MEM_NEW_RAW(&w->in, room));
    TRY(MEM_NEW(&w->n_out, (size_t)size));
    TRY(MEM_NEW(&w->n_in, (size_t)size));
    return part_file_open(&w->file, path);
}

/* Every rank takes part in every exchange, whatever has happened to it before. */
static status write_all(part_writer *w, const char *path, const part_tensor *list, int n,
                        uint64_t first) {
    uint64_t begin = first;
    for (int i = 0; i < n; i++) {
        TRY(write_tensor(w, &list[i], begin));
        begin += (uint64_t)param_whole_n(&list[i].shape) * sizeof(float);
    }
    int64_t sum = (int64_t)part_file_sum(w->file);
    w->st = part_file_close(w->file, w->st);
    w->file = NULL;
    TRY(comm_host_agree(w->c->world, w->st));
    if (comm_size(w->c->world) == 1) return OK;
    /* What is sealed is what the first rank reads; it must be what all have written. */
    TRY(comm_host_reduce(w->c->world, COMM_I64, COMM_SUM, 1, &sum));
    bool is_first = comm_is_first(w->c->world);
    status st = is_first ? part_file_check(path, first, (uint64_t)sum) : OK;
    return comm_host_agree(w->c->world, st);
}

static status describe(const part_tensor *list, int n, const st_pair *metadata, size_t n_metadata,
                       buf *header, uint64_t *bytes) {
    st_tensor *tensor;
    *bytes = 0;
    TRY(MEM_NEW(&tensor, (size_t)n));
    for (int i = 0; i < n; i++) {
        int64_t shape[4];
        st_tensor *t = &tensor[i];
        *t = (st_tensor){.name = list[i].name,
                         .dtype = ST_F32,
                         .n_dims = list[i].shape.n_dims,
                         .n = param_whole_n(&list[i].shape)};
        param_whole_shape(&list[i].shape, shape);
        for (int d = 0; d < t->n_dims; d++)
            t->shape[d] = shape[d];
        *bytes += (uint64_t)t->n * sizeof(float);
    }
    status st = st_header(header, tensor, (size_t)n, metadata, n_metadata);
    *bytes += header->n_bytes;
    mem_free(tensor);
    return st;
}

status checkpoint_write_parts(const checkpoint *c, const char *path, const part_tensor *list, int n,
                              const st_pair *metadata, size_t n_metadata) {
    part_writer w = {.c = c};
    buf header;
    uint64_t bytes;
    buf_init(&header);
    status st = describe(list, n, metadata, n_metadata, &header, &bytes);
    if (st == OK && comm_is_first(c->world)) st = part_file_make(path, &header, bytes);
    uint64_t begin = header.n_bytes;
    buf_fini(&header);
    TRY(comm_host_agree(c->world, st));
    if (c->world != NULL) TRY(comm_host_broadcast(c->world, &begin, sizeof begin, 0));
    st = comm_host_agree(c->world, open_writer(&w, path, list, n));
    if (st == OK) st = write_all(&w, path, list, n, begin);
    (void)part_file_close(w.file, ERR_IO);
    mem_free(w.piece);
    mem_free(w.out);
    mem_free(w.in);
    mem_free(w.n_out);
    mem_free(w.n_in);
    return st;
}
