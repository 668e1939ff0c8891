/* CUPTI's activity records, one at a time, in our own words: what the GPU ran, and which call of
 * CUDA asked for it.
 *
 * The library is opened at the first start and never before; where it is missing or refuses, that
 * is no failure: cupti_start returns false and cupti_reason says why.  Records come in any order,
 * on a thread of CUPTI's own, under a lock; times are those of clock_ns.  One user at a time in a
 * process. */
#pragma once

#include "base/map.h"
#include "profile/recorder.h"

/* An op that launches kernels. */
typedef struct op_mark {
    int64_t index;              /* of the span of the op, or RECORDER_NO_OP */
    int32_t name;               /* of the op, where it becomes part of a graph; else -1 */
    double flop, moved;         /* its work */
    double of_pair, pair_bytes; /* ... where the pairs of attention become known (work.h) */
} op_mark;

enum { CUPTI_REASON_BYTES = 256 };

typedef enum {
    GPU_KERNEL,
    GPU_MEMSET,
    GPU_COPY_ON_DEVICE,
    GPU_COPY_IN,
    GPU_COPY_OUT,
    GPU_UNIFIED_IN,  /* pages of unified memory that moved to the GPU */
    GPU_UNIFIED_OUT, /* ... and back */
    GPU_FAULT,       /* of the GPU, of pages that were elsewhere; bytes: how many faults */
    HOST_FAULT,      /* of the CPU */
    GPU_CALL,        /* of CUDA's runtime or driver, on the host */
    GPU_LINK,        /* what was launched under `correlation` belongs to the mark `mark` */
    HOST_RANGE,      /* of the program itself (nvtx.h); stream 1: it may overlap others */
    HOST_STEP,       /* such a range that is a step; mark: its number, stream 1: it is kept */
    GPU_COUNTERS,    /* of a kernel that took end - start; bytes: of DRAM, mark: of L2 */
    GPU_DEVICE       /* what a GPU is: no time */
} gpu_record_kind;

typedef struct gpu_record {
    gpu_record_kind kind;
    uint64_t start_ns, end_ns;
    const char *name; /* of a kernel, mangled; of a call or a range; else NULL */
    uint64_t bytes;   /* of a copy or a memset */
    uint32_t correlation, device, stream, thread;
    uint64_t mark;
    span_launch launch; /* of a kernel */
    double flop, moved; /* of a kernel in a graph: those of its op, with the first one of it */
    double of_pair, pair_bytes; /* of every kernel of such an op */
    int32_t graph_op;           /* as in a span */
    bool is_first, has_work;
    float occupancy, tensor; /* of GPU_COUNTERS: in percent, both over its time */
    const gpu_facts *gpu;    /* of GPU_DEVICE; else NULL */
} gpu_record;

typedef struct cupti_sink {
    void *ctx;
    status (*add)(void *ctx, const gpu_record *r);
} cupti_sink;

/* What is recorded beside kernels, copies and memsets; each costs time. */
enum {
    CUPTI_CALLS = 1,   /* calls of CUDA, and links */
    CUPTI_UNIFIED = 2, /* pages of unified memory and their faults, as soon as the driver runs */
    CUPTI_GRAPHS = 4   /* which op each node of a graph belongs to, from here on */
};

/* Starts to hand records to the sink; `what` is a sum of the above.  Records of the time before are
 * dropped. */
bool cupti_start(const cupti_sink *sink, unsigned what);

/* Hands over what CUPTI has so far; the device must be idle.  Returns whether it could. */
bool cupti_flush(void);

/* Hands over what is complete, whatever the device does. */
void cupti_flush_complete(void);

/* Between start and stop: CUPTI stops to record, and with it to cost time; or goes on. */
bool cupti_set_on(bool is_on);

/* Hands over what CUPTI has so far, and ends.  *n_lost: records that CUPTI dropped.  A status that
 * the sink returned is returned here. */
status cupti_stop(uint64_t *n_lost);

/* Reads hardware counters of every launch instead, between set_on(true) and set_on(false): records
 * of kind GPU_COUNTERS, on the thread that launches.  Kernels then run one at a time.  Not together
 * with the above.  What goes wrong at a launch is known at the end: stop returns false. */
bool cupti_counters_start(const cupti_sink *sink);
void cupti_counters_set_on(bool is_on);
bool cupti_counters_stop(void);

/* For cupti_counters.c: the library, or NULL; and what to say of a failure: `what` CUPTI refuses
 * with this result, or, where that is below 0, as it stands.  Returns false. */
void *cupti_library(void);
bool cupti_refuse(const char *what, int result);

/* Why the last of these failed; "" where nothing did. */
const char *cupti_reason(void);

/* From here to the next start memsets are not recorded: in a graph that is replayed the record of
 * each makes the GPU wait for about a microsecond. */
void cupti_skip_memsets(void);

/* What the calling thread launches, or takes into a graph, from here to cupti_mark_end belongs to
 * this op.  The kernels of a graph are known by its nodes, also in replays that come later. */
void cupti_mark_begin(const op_mark *m);
void cupti_mark_end(void);

/* The nodes of CUDA graphs by the numbers that CUPTI gives them, and the op that each was recorded
 * for.  An empty set is all zero; the caller has the lock. */
typedef struct graph_node {
    int32_t op;    /* 1 + its name in the recorder */
    uint32_t call; /* of the op, counted from 1 */
    bool has_work;
    double flop, moved; /* of the whole call */
    double of_pair, pair_bytes;
} graph_node;

typedef struct graph_nodes {
    map numbers;
    graph_node *node; /* (numbers.n) */
    size_t capacity;
    uint64_t *launch_of_call; /* the last launch of a graph with a kernel of the call; 0: none */
    size_t n_calls;
} graph_nodes;

/* Replaces what was there.  Without memory the node is not known. */
void graph_nodes_add(graph_nodes *g, uint64_t number, const graph_node *n);

/* False, and *out as it was, where the node is not known. */
bool graph_nodes_find(const graph_nodes *g, uint64_t number, graph_node *out);

/* Whether a kernel of this node is the first one of its call in this launch of the graph.  The
 * number of a launch is not 0.  (What CUPTI says of a node when it is made does not tell: it calls
 * memsets kernels.) */
bool graph_nodes_is_first(graph_nodes *g, const graph_node *n, uint64_t launch);

void graph_nodes_fini(graph_nodes *g);
