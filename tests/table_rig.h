/* A level of a dynamic table on the device under test, for tests of ops/table.h.  Arguments are
 * copied to the device and results back, so that the same test runs on the CPU and on a GPU.  All
 * that `rig_up` made for a call is freed by rig_drop. */
#ifndef HSTU_TESTS_TABLE_RIG_H
#define HSTU_TESTS_TABLE_RIG_H

#include "device.h"
#include "ops/table.h"
#include "test.h"

enum { RIG_MAX = 32 };

typedef struct rig {
    backend *be;
    const table_ops *t;
    table_level l;
    void *held[RIG_MAX];
    int n_held;
} rig;

/* Skips the test where the device has no tables. */
void rig_init(rig *r, pool *workers, int64_t n_buckets, int32_t n_floats);
void rig_fini(rig *r);

/* Memory of the device with a copy of `bytes` of host memory (NULL: zeros). */
void *rig_up(rig *r, const void *host, size_t bytes);
void rig_down(rig *r, void *host, const void *device, size_t bytes);
void rig_drop(rig *r);

/* The index as it is, in host memory (free it). */
unsigned char *rig_index(rig *r);

/* A number below n, from a state. */
uint64_t rig_random(uint64_t *state, uint64_t n);

/* One of n_universe keys, of which six are at the ends of the range. */
uint64_t rig_key(uint64_t *state, uint64_t n_universe);

#endif
