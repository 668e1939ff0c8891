/* Dynamic tables on the CPU: their memory, and the table of verbs. */
#include "cpu/table.h"

#include <sys/mman.h>

#include "base/mem.h"

enum { HUGE_PAGE = 2 << 20 };

/* Tables are read at random places: pages of 2 MiB spare most of the walks through page tables.  It
 * is a wish; a kernel that does not grant it only makes us slower. */
static status table_alloc(backend *be, void **out, size_t bytes, table_memory where) {
    (void)be;
    (void)where;
    TRY(mem_alloc_raw(out, bytes, 1));
    uintptr_t first = ((uintptr_t)*out + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)*out + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (first < end) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    return OK;
}

static void table_release(backend *be, void *memory, table_memory where) {
    (void)be;
    (void)where;
    mem_free(memory);
}

const table_ops cpu_table_ops = {
    .alloc = table_alloc,
    .release = table_release,
    .unique = cpu_table_unique,
    .find = cpu_table_find,
    .place = cpu_table_place,
    .erase = cpu_table_erase,
    .scan = cpu_table_scan,
    .stamp = cpu_table_stamp,
    .carry = cpu_table_carry,
    .read = cpu_table_read,
    .write = cpu_table_write,
    .init = cpu_table_init,
    .update = cpu_table_update,
    .pool = cpu_table_pool,
    .pool_grad = cpu_table_pool_grad,
    .lookup = cpu_table_lookup,
};
