/* NVTX: the ranges that other programs mark themselves with.
 *
 * A program that calls NVTX (torch.cuda.nvtx, emit_nvtx, nvtx3/nvToolsExt.h) looks for a library in
 * NVTX_INJECTION64_PATH at its first range and hands it the places of its functions; ours put
 * themselves there, and each range that ends becomes a record of kind HOST_RANGE.  Ranges that are
 * pushed and popped nest within their thread; those with a start and an end may overlap, and are
 * marked by stream 1.  Marks, categories and colours are not kept.  Any thread may call. */
#pragma once

#include "profile/cupti.h"

typedef struct nvtx_sink {
    bool (*is_on)(void); /* asked when a range begins: else it is not kept */
    void (*add)(const gpu_record *r);
    /* Before that: whether a range of this name is a step, which begins now.  NULL: none is. */
    bool (*begin_step)(const char *name);
    void (*end_step)(uint64_t start_ns, uint64_t end_ns); /* after its record */
} nvtx_sink;

/* What NVTX hands over: the table with this number, or NULL. */
typedef const void *(*nvtx_tables)(uint32_t number);

/* Each copy of NVTX in a process (every library may have its own) is attached by itself; the sink
 * is one.  False where the tables are none that we know. */
bool nvtx_attach(nvtx_tables tables, const nvtx_sink *sink);

/* Frees what the calling thread has open, ranges that have not ended, and names that programs hold:
 * for tests, where the program is at its end. */
void nvtx_forget(void);

/* The name of a range as it is counted: of PyTorch's "aten::mul, seq = 3, op_id = 7" the op alone,
 * or no two calls of one op were alike. */
void nvtx_range_name(const char *text, char *out, size_t size);
