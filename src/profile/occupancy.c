#include "profile/occupancy.h"

/* Registers are given to warps in units of 256, shared memory to blocks in units of 128 bytes with
 * 1 KiB that the system keeps for itself; since SM 8.0. */
enum { WARP = 32, REGISTER_UNIT = 256, SHARED_UNIT = 128, SHARED_RESERVED = 1024 };

/* A warp's registers come from one of four parts of the multiprocessor. */
enum { PARTS = 4 };

static uint64_t round_up(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

static uint32_t blocks_by_registers(const gpu_facts *g, const span_launch *l, uint32_t warps) {
    if (l->registers == 0) return UINT32_MAX;
    uint64_t of_warp = round_up((uint64_t)l->registers * WARP, REGISTER_UNIT);
    uint64_t fit = g->max_registers / PARTS / of_warp * PARTS;
    return (uint32_t)(fit / warps);
}

static uint32_t blocks_by_shared(const gpu_facts *g, const span_launch *l) {
    uint64_t reserved = g->sm >= 80 ? SHARED_RESERVED : 0;
    uint64_t bytes =
        round_up((uint64_t)l->static_shared + l->dynamic_shared + reserved, SHARED_UNIT);
    return bytes == 0 ? UINT32_MAX : (uint32_t)(g->max_shared / bytes);
}

static uint64_t product(const int32_t v[3]) {
    uint64_t n = 1;
    for (int i = 0; i < 3; i++)
        n *= v[i] > 0 ? (uint64_t)v[i] : 1;
    return n;
}

occupancy occupancy_find(const gpu_facts *g, const span_launch *l) {
    occupancy o = {.limit = LIMIT_TOO_LARGE};
    uint64_t warps = round_up(product(l->block), WARP) / WARP;
    if (g->max_warps == 0 || warps > g->max_warps) return o;
    const uint32_t by[] = {g->max_warps / (uint32_t)warps, g->max_blocks,
                           blocks_by_registers(g, l, (uint32_t)warps), blocks_by_shared(g, l)};
    static const occupancy_limit why[] = {LIMIT_BLOCK, LIMIT_BLOCKS, LIMIT_REGISTERS, LIMIT_SHARED};
    int least = 0;
    for (int i = 1; i < 4; i++)
        if (by[i] < by[least]) least = i;
    if (by[least] == 0) return o;
    o.blocks = by[least];
    o.warps = o.blocks * (uint32_t)warps;
    o.share = (double)o.warps / g->max_warps;
    o.limit = o.warps == g->max_warps ? LIMIT_NONE : why[least];
    if (g->n_multiprocessors > 0)
        o.waves = (double)product(l->grid) / ((double)o.blocks * g->n_multiprocessors);
    return o;
}

const char *occupancy_limit_name(occupancy_limit l) {
    static const char *const names[] = {"none",   "registers",  "shared memory",
                                        "blocks", "block size", "unknown"};
    return names[l];
}
