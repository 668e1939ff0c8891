#include "base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "base/base.h"

enum { MEM_ALIGN = 64, MEM_LARGE = 1 << 20 };

static void *default_alloc(void *ctx, size_t bytes) {
    void *block = NULL;
    return posix_memalign(&block, MEM_ALIGN, bytes) == 0 ? block : NULL;
}

/* realloc may move to an address that is only 16-byte aligned; then the content moves once more. */
static void *default_resize(void *ctx, void *block, size_t bytes) {
    void *moved = block != NULL ? realloc(block, bytes) : default_alloc(ctx, bytes);
    if (moved == NULL || (uintptr_t)moved % MEM_ALIGN == 0) return moved;
    void *aligned = default_alloc(ctx, bytes);
    if (aligned == NULL)
        return moved; /* Less aligned, but complete: the content must not be lost. */
    memcpy(aligned, moved, bytes);
    free(moved);
    return aligned;
}

static void default_release(void *ctx, void *block) {
    free(block);
}

static const mem_allocator default_allocator = {default_alloc, default_resize, default_release,
                                                NULL};
static mem_allocator current = {default_alloc, default_resize, default_release, NULL};

static _Atomic int64_t n_live;

int64_t mem_n_live(void) {
    return n_live;
}

void mem_set_allocator(const mem_allocator *allocator) {
    current = allocator != NULL ? *allocator : default_allocator;
}

static status byte_count(size_t n, size_t size, size_t *out) {
    if (__builtin_mul_overflow(n, size, out) || *out > SIZE_MAX / 2)
        return fail(ERR_NOMEM, "an array of %zu x %zu bytes is larger than the address space", n,
                    size);
    if (*out == 0) *out = 1;
    return OK;
}

static status out_of_memory(size_t bytes) {
    return fail(ERR_NOMEM, "out of memory: %zu bytes (%.1f MiB) could not be allocated", bytes,
                (double)bytes / (1 << 20));
}

status mem_alloc_raw(void **out, size_t n, size_t size) {
    size_t bytes;
    *out = NULL;
    TRY(byte_count(n, size, &bytes));
    *out = current.alloc(current.ctx, bytes);
    if (*out == NULL) return out_of_memory(bytes);
    n_live++;
    return OK;
}

void mem_use_huge_pages(void *block, size_t bytes) {
#ifdef MADV_HUGEPAGE
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t head = (page - (uintptr_t)block % page) % page;
    if (current.alloc == default_alloc && bytes >= MEM_LARGE && bytes > head + page)
        (void)madvise((char *)block + head, (bytes - head) / page * page, MADV_HUGEPAGE);
#endif
}

status mem_alloc_dense(void **out, size_t n, size_t size) {
    TRY(mem_alloc_raw(out, n, size));
    mem_use_huge_pages(*out, n * size);
    return OK;
}

/* Zeroes a block.  The whole pages of a large block are returned to the system, which provides
 * zeroed pages on first touch: room for the largest batch costs nothing until a batch
 * is that large.  Only for the default allocator, whose blocks are known to be anonymous memory. */
static void zero(unsigned char *block, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t head = (page - (uintptr_t)block % page) % page;
    bool is_large = current.alloc == default_alloc && bytes >= MEM_LARGE && bytes > head + page;
    size_t pages = is_large ? (bytes - head) / page * page : 0;
    if (pages == 0 || madvise(block + head, pages, MADV_DONTNEED) != 0) {
        memset(block, 0, bytes);
        return;
    }
    memset(block, 0, head);
    memset(block + head + pages, 0, bytes - head - pages);
}

status mem_alloc(void **out, size_t n, size_t size) {
    TRY(mem_alloc_raw(out, n, size));
    zero(*out, n * size);
    return OK;
}

status mem_resize(void **block, size_t n, size_t size) {
    size_t bytes;
    TRY(byte_count(n, size, &bytes));
    void *moved = current.resize(current.ctx, *block, bytes);
    if (moved == NULL) return out_of_memory(bytes);
    n_live += *block == NULL;
    *block = moved;
    return OK;
}

status mem_reserve(void **block, size_t *capacity, size_t n, size_t size) {
    if (n <= *capacity) return OK;
    size_t wanted = *capacity < 8 ? 16 : *capacity * 2;
    if (wanted < n) wanted = n;
    TRY(mem_resize(block, wanted, size));
    *capacity = wanted;
    return OK;
}

void mem_free(void *block) {
    if (block == NULL) return;
    n_live--;
    current.release(current.ctx, block);
}

void mem_free_all(void *const *blocks, size_t n) {
    for (size_t i = 0; i < n; i++)
        mem_free(blocks[i]);
}

void mem_keep_freed(void) {
#ifdef __GLIBC__
    enum { KEPT_BYTES = 1 << 28, MAPPED_BYTES = 1 << 22, AHEAD_BYTES = 1 << 20 };
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
    mallopt(M_TOP_PAD, AHEAD_BYTES);
#endif
}

struct arena_block {
    struct arena_block *next;
    size_t bytes; /* of data[] */
    size_t used;
    size_t pad[5]; /* keeps data[] 64-byte aligned */
    unsigned char data[];
};
_Static_assert(sizeof(struct arena_block) == MEM_ALIGN, "arena data must start aligned");

void arena_init(arena *a, size_t block_bytes) {
    *a = (arena){.block_bytes = block_bytes};
}

static status add_block(arena *a, size_t bytes) {
    struct arena_block *block;
    if (bytes > SIZE_MAX / 2) return out_of_memory(bytes);
    TRY(mem_alloc_raw((void **)&block, 1, sizeof *block + bytes));
    *block = (struct arena_block){.next = a->head, .bytes = bytes};
    a->head = block;
    return OK;
}

void arena_fini(arena *a) {
    while (a->head != NULL) {
        struct arena_block *next = a->head->next;
        mem_free(a->head);
        a->head = next;
    }
    a->used_bytes = 0;
}

status arena_alloc_raw(arena *a, void **out, size_t n, size_t size) {
    size_t bytes, align = size >= 64 || n * size >= 256 ? MEM_ALIGN : 16;
    *out = NULL;
    TRY(byte_count(n, size, &bytes));
    struct arena_block *block = a->head;
    size_t start = block != NULL ? (block->used + align - 1) / align * align : 0;
    if (block == NULL || start > block->bytes || block->bytes - start < bytes) {
        TRY(add_block(a, bytes > a->block_bytes ? bytes : a->block_bytes));
        block = a->head;
        start = 0;
    }
    *out = block->data + start;
    a->used_bytes += start + bytes - block->used;
    block->used = start + bytes;
    return OK;
}

status arena_alloc(arena *a, void **out, size_t n, size_t size) {
    TRY(arena_alloc_raw(a, out, n, size));
    memset(*out, 0, n * size);
    return OK;
}

void arena_clear(arena *a) {
    size_t bytes = 0;
    for (const struct arena_block *b = a->head; b != NULL; b = b->next)
        bytes += b->bytes;
    a->used_bytes = 0;
    if (a->head != NULL && a->head->next == NULL) {
        a->head->used = 0;
        return;
    }
    arena_fini(a);
    if (bytes > a->block_bytes) a->block_bytes = bytes;
}

status arena_copy_text(arena *a, const char *text, size_t n, const char **out) {
    char *copy;
    *out = NULL;
    TRY(arena_alloc(a, (void **)&copy, n + 1, 1));
    memcpy(copy, text, n);
    *out = copy;
    return OK;
}
