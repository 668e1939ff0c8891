#include "data/set/column_file.h"

/* The file is used in place, so the machine must be of its byte order. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "column files are little-endian");

enum { COLUMN_ALIGN = 64, VERSION = 1, BLOCK_BYTES = 4 << 20 };
static const char MAGIC[8] = "HSTUSEQ";

/* A fuzzer would never get past the checksums, so fuzz builds (and no others) skip them. */
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
enum { CHECKS_SUMS = 0 };
#else
enum { CHECKS_SUMS = 1 };
#endif

typedef struct file_header {
    char magic[8];
    uint32_t version;
    uint32_t n_columns;
    uint64_t file_bytes;
    uint64_t checksum; /* of header and table, with this field 0 */
    uint64_t zero[4];
} file_header;
_Static_assert(sizeof(file_header) == 64 && sizeof(column) == 64, "the layout on disk");

static size_t column_type_bytes(uint32_t type) {
    static const size_t bytes[] = {0, 1, 2, 4, 8, 8, 4, 8};
    return type < sizeof bytes / sizeof bytes[0] ? bytes[type] : 0;
}

static uint64_t align_up(uint64_t offset) {
    return (offset + COLUMN_ALIGN - 1) / COLUMN_ALIGN * COLUMN_ALIGN;
}

static uint64_t column_bytes(const column *c) {
    return c->n * column_type_bytes(c->type);
}

static uint64_t n_blocks_of(const column *c) {
    return (column_bytes(c) + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

/* A column's checksum is the hash of the hashes of its 4 MiB blocks, each seeded with its number:
 * so blocks can be hashed in any order, on any number of threads. */
static uint64_t combine_blocks(const uint64_t *block_hash, uint64_t n_blocks, const column *c) {
    return hash64(block_hash, n_blocks * sizeof *block_hash, c->n ^ (uint64_t)c->type << 56);
}

static uint64_t header_checksum(const file_header *header, const column *columns) {
    file_header copy = *header;
    copy.checksum = 0;
    uint64_t h = hash64(&copy, sizeof copy, 0);
    return hash64(columns, sizeof *columns * header->n_columns, h);
}

/* Hashing all blocks of all columns, spread over a pool; the bytes come from the mapped file when
 * reading, or are read from the file just written (not mapped, so that it does not count as our
 * memory). */
typedef struct hash_job {
    const column *columns;
    uint32_t n_columns;
    const unsigned char *bytes; /* the map, or NULL: read from `file` */
    out_file *file;
    uint64_t *block_hash;    /* all blocks of column 0, then of column 1, ... */
    uint64_t *first_block;   /* (n_columns + 1) */
    unsigned char **scratch; /* per worker, when reading from `file` */
} hash_job;

static status hash_block(void *ctx, int64_t chunk, int worker) {
    hash_job *job = ctx;
    uint32_t c = 0;
    while (job->first_block[c + 1] <= (uint64_t)chunk)
        c++;
    const column *col = &job->columns[c];
    uint64_t block = (uint64_t)chunk - job->first_block[c], start = block * BLOCK_BYTES;
    uint64_t left = column_bytes(col) - start;
    size_t n = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
    const unsigned char *p;
    if (job->bytes != NULL) {
        p = job->bytes + col->offset + start;
    } else {
        if (job->scratch[worker] == NULL) TRY(MEM_NEW_RAW(&job->scratch[worker], BLOCK_BYTES));
        TRY(out_file_read_at(job->file, col->offset + start, job->scratch[worker], n));
        p = job->scratch[worker];
    }
    job->block_hash[chunk] = hash64(p, n, block);
    return OK;
}

/* checksums (n_columns) of all columns. */
static status hash_columns(hash_job *job, pool *p, uint64_t *checksums) {
    int n_workers = p != NULL ? pool_n_threads(p) : 1;
    status st = MEM_NEW(&job->first_block, job->n_columns + 1);
    if (st == OK) {
        for (uint32_t c = 0; c < job->n_columns; c++)
            job->first_block[c + 1] = job->first_block[c] + n_blocks_of(&job->columns[c]);
        st = MEM_NEW(&job->block_hash, job->first_block[job->n_columns]);
    }
    if (st == OK) st = MEM_NEW(&job->scratch, (size_t)n_workers);
    if (st == OK) st = pool_run(p, (int64_t)job->first_block[job->n_columns], hash_block, job);
    for (uint32_t c = 0; st == OK && c < job->n_columns; c++)
        checksums[c] = combine_blocks(job->block_hash + job->first_block[c],
                                      n_blocks_of(&job->columns[c]), &job->columns[c]);
    for (int w = 0; job->scratch != NULL && w < n_workers; w++)
        mem_free(job->scratch[w]);
    MEM_FREE(job->scratch, job->block_hash, job->first_block);
    return st;
}

/* Reading. */

static status check_header(const char *path, const file_map *map) {
    const file_header *h = (const file_header *)map->bytes;
    if (map->n_bytes < sizeof *h || memcmp(h->magic, MAGIC, sizeof MAGIC) != 0)
        return fail(ERR_FORMAT, "%s: not a sequence file (at offset 0); make one with 'hstu prep'",
                    path);
    if (h->version != VERSION)
        return fail(ERR_FORMAT,
                    "%s: version %" PRIu32 " at offset 8; this program reads version %d: run "
                    "'hstu prep' again",
                    path, h->version, VERSION);
    if (h->file_bytes != map->n_bytes)
        return fail(ERR_FORMAT,
                    "%s: %zu bytes long, but the header (offset 16) says %" PRIu64
                    ": cut short or damaged; run 'hstu prep' again",
                    path, map->n_bytes, h->file_bytes);
    if (h->n_columns > COLUMN_MAX || sizeof *h + h->n_columns * sizeof(column) > map->n_bytes)
        return fail(ERR_FORMAT,
                    "%s: damaged at offset 12: %" PRIu32 " columns; run 'hstu prep' again", path,
                    h->n_columns);
    const column *columns = (const column *)(h + 1);
    if (CHECKS_SUMS && header_checksum(h, columns) != h->checksum)
        return fail(ERR_FORMAT,
                    "%s: damaged at offset 0..%zu: the header's checksum does not match; run 'hstu "
                    "prep' again",
                    path, sizeof *h + h->n_columns * sizeof(column) - 1);
    return OK;
}

static status check_zero(const char *path, const file_map *map, uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; i++)
        if (map->bytes[i] != 0)
            return fail(ERR_FORMAT,
                        "%s: damaged at offset %" PRIu64
                        ": padding is not zero; run 'hstu prep' again",
                        path, i);
    return OK;
}

/* Columns follow each other in the order of the table, with zeroed gaps of less than 64 bytes. */
static status check_table(const char *path, const column_file *f) {
    uint64_t end = sizeof(file_header) + f->n_columns * sizeof(column);
    for (uint32_t i = 0; i < f->n_columns; i++) {
        const column *c = &f->columns[i];
        size_t size = column_type_bytes(c->type);
        uint64_t entry = sizeof(file_header) + i * sizeof(column);
        if (size == 0 || memchr(c->name, '\0', sizeof c->name) == NULL)
            return fail(ERR_FORMAT, "%s: damaged at offset %" PRIu64 ": column %" PRIu32, path,
                        entry, i);
        if (c->offset != align_up(end) || c->offset > f->map.n_bytes ||
            c->n > (f->map.n_bytes - c->offset) / size)
            return fail(ERR_FORMAT,
                        "%s: damaged at offset %" PRIu64 ": column '%s' is outside the file", path,
                        entry, c->name);
        TRY(check_zero(path, &f->map, end, c->offset));
        end = c->offset + column_bytes(c);
    }
    if (end != f->map.n_bytes)
        return fail(ERR_FORMAT, "%s: damaged at offset %" PRIu64 ": bytes after the last column",
                    path, end);
    return OK;
}

static status check_content(const char *path, const column_file *f, pool *p) {
    uint64_t checksums[COLUMN_MAX];
    hash_job job = {.columns = f->columns, .n_columns = f->n_columns, .bytes = f->map.bytes};
    TRY(hash_columns(&job, p, checksums));
    for (uint32_t i = 0; i < f->n_columns; i++) {
        const column *c = &f->columns[i];
        if (CHECKS_SUMS && checksums[i] != c->checksum)
            return fail(ERR_FORMAT,
                        "%s: damaged between offsets %" PRIu64 " and %" PRIu64
                        ": column '%s' does not match its checksum; run 'hstu prep' again",
                        path, c->offset, c->offset + column_bytes(c), c->name);
    }
    return OK;
}

status column_file_open(column_file *out, const char *path, pool *p) {
    *out = (column_file){0};
    TRY(file_map_open(&out->map, path));
    status st = check_header(path, &out->map);
    if (st == OK) {
        const file_header *h = (const file_header *)out->map.bytes;
        out->columns = (const column *)(h + 1);
        out->n_columns = h->n_columns;
        out->checksum = h->checksum;
        st = check_table(path, out);
    }
    if (st == OK) st = check_content(path, out, p);
    if (st != OK) column_file_close(out);
    return st;
}

void column_file_close(column_file *f) {
    file_map_close(&f->map);
    *f = (column_file){.map = f->map};
}

/* The content is read again only where the file was written or touched. */
status column_file_check_unchanged(const column_file *f, const char *path, pool *p) {
    const file_header *h = (const file_header *)f->map.bytes;
    if (f->map.n_bytes == 0) return OK; /* in memory alone */
    file_change change = file_map_changed(&f->map, path);
    bool is_same =
        change != FILE_RESIZED && h->checksum == f->checksum && h->n_columns == f->n_columns &&
        header_checksum(h, f->columns) == h->checksum &&
        (change != FILE_WRITTEN || (check_table(path, f) == OK && check_content(path, f, p) == OK));
    if (is_same) return OK;
    return fail(ERR_IO,
                "%s: somebody wrote into this file while it was in use, so what was read since is "
                "a mixture of two files; put the old data back and go on from the last checkpoint",
                path);
}

const column *column_file_find(const column_file *f, const char *name) {
    for (uint32_t i = 0; i < f->n_columns; i++)
        if (strcmp(f->columns[i].name, name) == 0) return &f->columns[i];
    return NULL;
}

status column_file_get(const column_file *f, const char *path, const char *name, column_type type,
                       const void **out, uint64_t *n) {
    const column *c = column_file_find(f, name);
    *out = NULL;
    if (n != NULL) *n = 0;
    if (c == NULL)
        return fail(ERR_FORMAT, "%s: has no column '%s'; run 'hstu prep' again", path, name);
    if (c->type != (uint32_t)type)
        return fail(ERR_FORMAT, "%s: column '%s' has type %" PRIu32 ", not %d", path, name, c->type,
                    (int)type);
    *out = f->map.bytes + c->offset;
    if (n != NULL) *n = c->n;
    return OK;
}

/* Writing. */

struct column_writer {
    out_file *file;
    uint32_t n_columns;
    uint64_t end;
    column columns[COLUMN_MAX];
    const void *content[COLUMN_MAX]; /* NULL: by column_writer_put */
};

status column_writer_create(column_writer **out, const char *path) {
    column_writer *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    status st = out_file_create(&w->file, path);
    return CREATED(st, out, w, mem_free);
}

status column_writer_declare(column_writer *w, const char *name, column_type type, uint64_t n,
                             int *out_index) {
    if (w->n_columns == COLUMN_MAX || strlen(name) >= COLUMN_NAME_BYTES)
        return fail(ERR_FORMAT,
                    "column '%s' does not fit: at most %d columns, names up to %d bytes", name,
                    COLUMN_MAX, COLUMN_NAME_BYTES - 1);
    if (n > UINT64_MAX / 16) return fail(ERR_FORMAT, "column '%s' is too long", name);
    column *c = &w->columns[w->n_columns];
    memcpy(c->name, name, strlen(name));
    c->type = (uint32_t)type;
    c->n = n;
    *out_index = (int)w->n_columns++;
    return OK;
}

status column_writer_add(column_writer *w, const char *name, column_type type, uint64_t n,
                         const void *elements) {
    int index = 0;
    TRY(column_writer_declare(w, name, type, n, &index));
    w->content[index] = elements;
    return OK;
}

status column_writer_add_texts(column_writer *w, const char *name, const uint64_t *offsets,
                               uint64_t n, const char *bytes) {
    char part[2 * COLUMN_NAME_BYTES];
    snprintf(part, sizeof part, "%s.o", name);
    TRY(column_writer_add(w, part, COLUMN_U64, n + 1, offsets));
    snprintf(part, sizeof part, "%s.t", name);
    return column_writer_add(w, part, COLUMN_U8, offsets[n], bytes);
}

/* Once every column is declared, the offsets are known: nothing moves afterwards. */
status column_writer_begin(column_writer *w) {
    w->end = sizeof(file_header) + w->n_columns * sizeof(column);
    for (uint32_t i = 0; i < w->n_columns; i++) {
        w->columns[i].offset = align_up(w->end);
        w->end = w->columns[i].offset + column_bytes(&w->columns[i]);
        if (w->content[i] != NULL)
            TRY(column_writer_put(w, (int)i, 0, w->content[i], w->columns[i].n));
    }
    return OK;
}

status column_writer_put(column_writer *w, int index, uint64_t first, const void *elements,
                         uint64_t n) {
    const column *c = &w->columns[index];
    size_t size = column_type_bytes(c->type);
    if (first > c->n || n > c->n - first)
        return fail(ERR_FORMAT,
                    "column '%s' has %" PRIu64 " elements; %" PRIu64 "+%" PRIu64
                    " were to be written",
                    c->name, c->n, first, n);
    return out_file_write_at(w->file, c->offset + first * size, elements, n * size);
}

status column_writer_commit(column_writer *w, pool *p) {
    uint64_t checksums[COLUMN_MAX];
    /* Sets the file size: no write reaches the end where the last column is empty.
     */
    file_header header = {.version = VERSION, .n_columns = w->n_columns, .file_bytes = w->end};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    hash_job job = {.columns = w->columns, .n_columns = w->n_columns, .file = w->file};
    status st = out_file_set_size(w->file, w->end);
    if (st == OK) st = hash_columns(&job, p, checksums);
    if (st == OK) {
        for (uint32_t i = 0; i < w->n_columns; i++)
            w->columns[i].checksum = checksums[i];
        header.checksum = header_checksum(&header, w->columns);
        st = out_file_write_at(w->file, 0, &header, sizeof header);
    }
    if (st == OK)
        st = out_file_write_at(w->file, sizeof header, w->columns,
                               w->n_columns * sizeof *w->columns);
    out_file *file = w->file;
    w->file = NULL;
    return out_file_end(file, st);
}

void column_writer_abandon(column_writer *w) {
    if (w == NULL) return;
    out_file_abandon(w->file);
    mem_free(w);
}
