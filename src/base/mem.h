/* Memory: checked allocation through a replaceable allocator, and arenas.
 *
 * All host memory of the library comes from here, so that a test can make the k-th allocation fail
 * and so that nothing multiplies sizes unchecked.  mem_* may be called from any thread; an arena
 * belongs to one thread at a time. */
#pragma once

#include "base/status.h"

typedef struct mem_allocator {
    void *(*alloc)(void *ctx, size_t bytes);               /* 64-byte aligned; NULL when out */
    void *(*resize)(void *ctx, void *block, size_t bytes); /* keeps the content, as realloc does */
    void (*release)(void *ctx, void *block);               /* NULL is fine */
    void *ctx;
} mem_allocator;

/* Replaces the allocator of the process; NULL restores the default.  Only while nothing is
 * allocated on other threads. */
void mem_set_allocator(const mem_allocator *allocator);

/* *out = n zeroed elements of `size` bytes (never NULL on success, even for n = 0); on failure *out
 * is NULL and the reason says how much was requested. */
status mem_alloc(void **out, size_t n, size_t size);

/* Like mem_alloc, but without zeroing, for large buffers that are overwritten completely. */
status mem_alloc_raw(void **out, size_t n, size_t size);

/* Like mem_alloc_raw, for blocks of some MB of which every byte is used soon: asks the system for
 * huge pages, which cost fewer page faults.  Not for room that may stay empty. */
status mem_alloc_dense(void **out, size_t n, size_t size);

/* Asks for huge pages in a large block of this file's that is used here and there, such as a table:
 * with small pages each row read would miss the TLB. */
void mem_use_huge_pages(void *block, size_t bytes);

/* Grows or shrinks *block to n elements; new bytes are not zeroed.  On failure *block is as it was.
 */
status mem_resize(void **block, size_t n, size_t size);

void mem_free(void *block);

/* Blocks of the process that were allocated and not freed, those of arenas included: zero once
 * everything is destroyed, which is how the tests find leaks. */
int64_t mem_n_live(void);

/* For servers: freed memory stays with the process for the next request.  Else each request with a
 * long history gets its pages from the kernel, one fault and one clearing after the other. */
void mem_keep_freed(void);

/* Typed forms: NEW(&p, n) allocates n zeroed *p. */
#define MEM_NEW(pointer, n)     mem_alloc((void **)(pointer), (n), sizeof **(pointer))
#define MEM_NEW_RAW(pointer, n) mem_alloc_raw((void **)(pointer), (n), sizeof **(pointer))
#define MEM_RESIZE(pointer, n)  mem_resize((void **)(pointer), (n), sizeof **(pointer))

/* MEM_FREE(a, b, ...) frees each of them. */
void mem_free_all(void *const *blocks, size_t n);
#define MEM_FREE(...)                                                                              \
    mem_free_all((void *const[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))

/* Makes room for at least n elements, doubling *capacity; existing elements stay. */
status mem_reserve(void **block, size_t *capacity, size_t n, size_t size);
#define MEM_RESERVE(pointer, capacity, n)                                                          \
    mem_reserve((void **)(pointer), (capacity), (n), sizeof **(pointer))

/* An arena allocates memory that is freed all at once; it allocates further blocks as it needs
 * them.  A zeroed one has a block for each request. */
typedef struct arena {
    struct arena_block *head;
    size_t block_bytes; /* size of the next block */
    size_t used_bytes;  /* handed out in all, alignment included */
} arena;

/* Nothing is allocated until first use. */
void arena_init(arena *a, size_t block_bytes);

/* Frees everything; the arena is then as after arena_init. */
void arena_fini(arena *a);

/* *out = n * size bytes, zeroed, 64-byte aligned for size >= 64, else aligned to 16. */
status arena_alloc(arena *a, void **out, size_t n, size_t size);
status arena_alloc_raw(arena *a, void **out, size_t n, size_t size); /* not zeroed */
#define ARENA_NEW(a, pointer, n) arena_alloc((a), (void **)(pointer), (n), sizeof **(pointer))
#define ARENA_NEW_RAW(a, pointer, n)                                                               \
    arena_alloc_raw((a), (void **)(pointer), (n), sizeof **(pointer))

/* Everything that was handed out is free for what comes next.  The memory is kept where it is one
 * block; else the next block is as large as all of them were, so that it soon is one. */
void arena_clear(arena *a);

/* A NUL-terminated copy of n bytes of text. */
status arena_copy_text(arena *a, const char *text, size_t n, const char **out);
