/* Dynamic tables on the CPU: memory, and the table of functions. */
#include "cpu/table.h"

#include <sys/mman.h>

#include "base/mem.h"

enum { HUGE_PAGE = 2 << 20 };

/* Tables are read at random places: pages of 2 MiB avoid most TLB misses.  Only a hint: without
 * such pages tables are slower. */
status cpu_table_alloc(backend *be, void **out, size_t bytes, table_memory where) {
    (void)be;
    (void)where;
    TRY(mem_alloc_raw(out, bytes, 1));
    uintptr_t first = ((uintptr_t)*out + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)*out + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (first < end) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    return OK;
}

void cpu_table_release(backend *be, void *memory, table_memory where) {
    (void)be;
    (void)where;
    mem_free(memory);
}

const table_ops cpu_table_ops = {
#define TABLE_OP(result, name, parameters, test) .name = cpu_table_##name,
#include "ops/table_ops.def"
};
