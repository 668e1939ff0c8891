/* A store that is one file of rows (store.h): a map in memory has the slot of each key's row.  A
 * row is replaced in its slot, and slots of erased rows are used again.  Nobody reads the file
 * after the process that wrote it, so it has neither keys nor checksums.  A row costs about 40
 * bytes of memory. */
#include "base/map.h"
#include "embed/store.h"

enum { PATH_BYTES = 4096, EACH_ROWS = 1024 };

typedef struct file_row {
    uint64_t score;
    uint32_t stamp, slot;
} file_row;

typedef struct file_store {
    embed_store base; /* first: a store is a file_store */
    char path[PATH_BYTES];
    int file;
    map keys;
    file_row *row; /* (keys.n) */
    size_t row_capacity;
    uint32_t n_slots; /* in the file */
    uint32_t *unused; /* (n_unused): slots of erased rows */
    size_t n_unused, unused_capacity;
} file_store;

/* Reads or writes n rows from a slot on. */
static status move_rows(const file_store *s, bool writes, float *rows, size_t n, uint32_t slot) {
    size_t row_bytes = (size_t)s->base.n_floats * sizeof *rows, bytes = n * row_bytes;
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)rows + done;
        off_t place = (off_t)(slot * row_bytes + done);
        errno = EIO; /* where nothing is moved: the file was cut */
        ssize_t moved = writes ? pwrite(s->file, at, bytes - done, place)
                               : pread(s->file, at, bytes - done, place);
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0)
            return fail_errno(writes ? "%s: cannot write; is the disk full?" : "%s: cannot read",
                              s->path);
        done += (size_t)moved;
    }
    return OK;
}

static status file_get(embed_store *base, int64_t n, const uint64_t *keys, uint8_t *is_found,
                       uint64_t *scores, uint32_t *stamps, float *rows) {
    file_store *s = (file_store *)base;
    for (int64_t i = 0; i < n; i++) {
        uint32_t number = map_find(&s->keys, keys[i]);
        is_found[i] = number != MAP_NONE;
        if (!is_found[i]) continue;
        scores[i] = s->row[number].score;
        stamps[i] = s->row[number].stamp;
        TRY(move_rows(s, false, rows + i * base->n_floats, 1, s->row[number].slot));
    }
    return OK;
}

/* The slot of row i, one of its own where its key is new; there is room for the key. */
static status take_slot(file_store *s, const embed_rows *rows, int64_t i, uint32_t *slot) {
    uint32_t number, n_before = s->keys.n;
    TRY(map_put(&s->keys, rows->keys[i], &number));
    file_row *r = &s->row[number];
    if (s->keys.n > n_before) r->slot = s->n_unused > 0 ? s->unused[--s->n_unused] : s->n_slots++;
    r->score = rows->scores[i];
    r->stamp = rows->stamps[i];
    *slot = r->slot;
    return OK;
}

/* Rows whose slots follow each other, as those of new keys do, are written together. */
static status file_put(embed_store *base, const embed_rows *rows) {
    file_store *s = (file_store *)base;
    uint32_t first = 0, slot = 0;
    int64_t begin = 0;
    TRY(map_reserve(&s->keys, rows->keys, (size_t)rows->n));
    TRY(MEM_RESERVE(&s->row, &s->row_capacity, s->keys.n + (size_t)rows->n));
    for (int64_t i = 0; i <= rows->n; i++) {
        if (i < rows->n) TRY(take_slot(s, rows, i, &slot));
        if (i > begin && (i == rows->n || slot != first + (i - begin))) {
            float *from = (float *)rows->rows + begin * base->n_floats;
            TRY(move_rows(s, true, from, (size_t)(i - begin), first));
            begin = i;
        }
        if (i == begin) first = slot;
    }
    return OK;
}

static status file_erase(embed_store *base, int64_t n, const uint64_t *keys) {
    file_store *s = (file_store *)base;
    TRY(MEM_RESERVE(&s->unused, &s->unused_capacity, s->n_unused + (size_t)n));
    for (int64_t i = 0; i < n; i++) {
        uint32_t number = map_remove(&s->keys, keys[i]);
        if (number == MAP_NONE) continue;
        s->unused[s->n_unused++] = s->row[number].slot;
        s->row[number] = s->row[s->keys.n];
    }
    return OK;
}

static status file_each(embed_store *base, embed_visit visit, void *ctx) {
    file_store *s = (file_store *)base;
    uint64_t scores[EACH_ROWS];
    uint32_t stamps[EACH_ROWS];
    uint8_t is_found[EACH_ROWS];
    float *rows;
    TRY(mem_alloc_raw((void **)&rows, EACH_ROWS * (size_t)base->n_floats, sizeof *rows));
    status st = OK;
    for (uint32_t first = 0, n; st == OK && first < s->keys.n; first += n) {
        n = s->keys.n - first < EACH_ROWS ? s->keys.n - first : EACH_ROWS;
        const uint64_t *keys = s->keys.key + first;
        st = file_get(base, n, keys, is_found, scores, stamps, rows);
        embed_rows piece = {n, keys, scores, stamps, rows, base->n_floats};
        if (st == OK) st = visit(ctx, &piece);
    }
    mem_free(rows);
    return st;
}

static status file_clear(embed_store *base) {
    file_store *s = (file_store *)base;
    if (ftruncate(s->file, 0) != 0) return fail_errno("%s: cannot be cut", s->path);
    s->n_slots = 0;
    s->n_unused = 0;
    map_fini(&s->keys);
    return OK;
}

/* Only a hint: a file system may ignore it, and then the rows are read when they are wanted. */
static status file_ask(embed_store *base, int64_t n, const uint64_t *keys) {
    const file_store *s = (file_store *)base;
    off_t bytes = (off_t)base->n_floats * (off_t)sizeof(float);
    for (int64_t i = 0; i < n; i++) {
        uint32_t number = map_find(&s->keys, keys[i]);
        if (number != MAP_NONE)
            (void)posix_fadvise(s->file, s->row[number].slot * bytes, bytes, POSIX_FADV_WILLNEED);
    }
    return OK;
}

static void file_destroy(embed_store *base) {
    file_store *s = (file_store *)base;
    if (s->file >= 0) close(s->file);
    map_fini(&s->keys);
    MEM_FREE(s->row, s->unused, s);
}

status embed_store_open_file(embed_store **out, const char *folder, int32_t n_floats) {
    file_store *s;
    *out = NULL;
    TRY(folder_create(folder, NULL));
    TRY(MEM_NEW(&s, 1));
    s->base = (embed_store){.n_floats = n_floats,
                            .get = file_get,
                            .put = file_put,
                            .erase = file_erase,
                            .each = file_each,
                            .clear = file_clear,
                            .ask = file_ask,
                            .destroy = file_destroy};
    s->file = -1;
    status st = path_join(s->path, sizeof s->path, folder, "rows");
    if (st == OK) s->file = open(s->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (st == OK && s->file < 0) st = fail_errno("%s: cannot be opened", s->path);
    if (st == OK)
        *out = &s->base;
    else
        file_destroy(&s->base);
    return st;
}

void embed_store_destroy(embed_store *s) {
    if (s != NULL) s->destroy(s);
}
