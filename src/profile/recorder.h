/* Recorder: what a program did and when, span by span: ranges and ops of the host, and, where CUPTI
 * tells (cupti.h), calls of CUDA, kernels and copies of the GPU.
 *
 * Spans of the host nest within their thread; a span of the GPU knows the op that launched it.
 * Recording is switched on and off by a schedule of steps, as torch.profiler's: after `wait` steps
 * `warmup` steps are recorded and forgotten, then `active` ones kept, `repeat` times.  Any thread
 * may add; tables (tables.h) and traces (trace.h) read a recorder that is stopped. */
#pragma once

#include "base/base.h"
#include "base/map.h"

typedef enum {
    SPAN_RANGE, /* base/range.h */
    SPAN_OP,    /* an op of the backend: on the CPU its work, on a GPU its launch */
    SPAN_CALL,  /* of CUDA's runtime or driver */
    SPAN_KERNEL,
    SPAN_COPY,
    SPAN_SET,
    N_SPAN_KINDS
} span_kind;

enum { RECORDER_MAX_DEPTH = 64, RECORDER_MAX_THREADS = 64, RECORDER_NO_OP = -1 };
enum { RECORDER_MAX_GPUS = 16, RECORDER_NAME_BYTES = 512 };

/* What a kernel was launched with. */
typedef struct span_launch {
    int32_t grid[3], block[3];
    uint32_t registers, static_shared, dynamic_shared; /* shared: bytes of a block */
    uint32_t local;                                    /* bytes of a thread */
} span_launch;

/* What a GPU is, as far as occupancy and peaks need it. */
typedef struct gpu_facts {
    char name[64];
    uint32_t device; /* its number */
    uint32_t sm;     /* compute capability times ten */
    uint32_t n_multiprocessors;
    uint32_t max_warps, max_blocks, max_registers, max_shared; /* of a multiprocessor */
    uint64_t memory_bytes;
} gpu_facts;

typedef struct span {
    uint64_t start_ns, end_ns; /* of clock_ns */
    uint64_t child_ns;         /* of the host: time in the spans right inside it */
    uint64_t bytes;            /* of a copy or a memset */
    int64_t memory;     /* of the device: allocated right inside it, less what was released */
    int64_t op;         /* the span around it, on the GPU the one that launched it; or
                           RECORDER_NO_OP */
    int64_t number;     /* of a range */
    double flop, moved; /* the work of an op (work.h), of a kernel in a graph; 0: unknown */
    double of_pair, pair_bytes; /* of a kernel of attention in a graph: FLOP of a pair, and bytes */
    double pairs;         /* of an op that launches a graph: those of its attention; 0: unknown */
    int32_t name;         /* in names */
    int32_t launch;       /* in launches, or -1 */
    int32_t graph_op;     /* of a kernel in a graph that is replayed: 1 + the name of the op
                             that was recorded; 0: none */
    bool has_work;        /* of an op, or of a kernel of one in a graph: its work is known */
    bool is_first;        /* ... and the first one of its op */
    uint16_t cycle;       /* of the schedule, by recorder_cut; cycles after the last share it */
    uint32_t correlation; /* of a call and what it launched; 0: none */
    uint16_t lane;        /* thread of the host, stream of the GPU */
    uint8_t kind, device;
} span;

typedef struct recorder_schedule {
    int64_t wait, warmup, active, repeat; /* active 0: everything; repeat 0: until the end */
} recorder_schedule;

typedef enum { STEP_OFF, STEP_WARMUP, STEP_ACTIVE } step_state;

/* What the schedule says of the step with this number. */
static inline step_state schedule_at(const recorder_schedule *s, int64_t step) {
    if (s->active == 0) return STEP_ACTIVE;
    int64_t cycle = s->wait + s->warmup + s->active;
    if (s->repeat > 0 && step / cycle >= s->repeat) return STEP_OFF;
    step %= cycle;
    return step < s->wait ? STEP_OFF : step < s->wait + s->warmup ? STEP_WARMUP : STEP_ACTIVE;
}

/* A step that was kept; they are listed as they end. */
typedef struct kept_step {
    int64_t number;
    uint64_t start_ns, end_ns;
    uint16_t cycle;
} kept_step;

typedef struct open_span {
    uint64_t start_ns, child_ns;
    int64_t index; /* of its span, which is there since it began; or RECORDER_NO_OP */
} open_span;

typedef struct recorder_thread {
    pthread_t id;
    int depth; /* may be beyond what is kept */
    open_span open[RECORDER_MAX_DEPTH];
} recorder_thread;

/* Hardware counters of all launches of a kernel; COUNTED_OCCUPANCY, _TENSOR: percent times ns. */
enum { COUNTED_N, COUNTED_NS, COUNTED_OCCUPANCY, COUNTED_TENSOR, COUNTED_DRAM, COUNTED_L2 };
enum { N_COUNTED = COUNTED_L2 + 1 };
typedef struct counted_kernel {
    int32_t name;
    double sum[N_COUNTED];
} counted_kernel;

typedef struct recorder {
    recorder_schedule schedule;
    int64_t step; /* seen so far */
    bool is_on;   /* spans are taken */
    bool is_paused;
    bool has_memory; /* memory is noted, though perhaps none was allocated */

    span *spans;
    size_t n_spans, capacity;
    text_map names; /* each with its NUL */
    span_launch *launches;
    size_t n_launches, launches_capacity;
    counted_kernel *counted;
    size_t n_counted, counted_capacity;

    gpu_facts gpus[RECORDER_MAX_GPUS];
    int n_gpus;
    double peak_flop, peak_bytes; /* a second, measured; 0: not */

    recorder_thread threads[RECORDER_MAX_THREADS];
    int n_threads;
    uint64_t n_dropped;             /* no memory, or too many */
    uint64_t started_ns, active_ns; /* of the recorded stretches, in all */
    kept_step *steps;
    size_t n_steps, steps_capacity;
    int64_t n_active; /* steps that were kept */
    pthread_mutex_t lock;
} recorder;

/* max_spans of a recording: what comes after is counted as dropped. */
enum { RECORDER_MAX_SPANS = 1 << 24 };

void recorder_init(recorder *r, const recorder_schedule *s);
void recorder_fini(recorder *r);

/* Starts at once where the schedule says so. */
void recorder_start(recorder *r);
void recorder_stop(recorder *r);

/* A span of the calling thread.  recorder_begin returns the number of the span, which a GPU's span
 * may name as its op; RECORDER_NO_OP while nothing is taken. */
int64_t recorder_begin(recorder *r, span_kind kind, const char *name, int64_t number);
void recorder_end(recorder *r, uint64_t bytes);

/* The innermost span of the calling thread allocated memory of the device; below 0: released it. */
void recorder_note_memory(recorder *r, int64_t bytes);

/* The work of a span that recorder_begin returned. */
void recorder_set_work(recorder *r, int64_t index, double flop, double moved);

/* The same for an op that launches a graph: the pairs of its attention this time. */
void recorder_set_pairs(recorder *r, int64_t index, double pairs);

/* The number of a name, whether recording is on or not; -1: no memory. */
int32_t recorder_name_id(recorder *r, const char *name);

/* A span that is complete: of the GPU, or of CUDA.  launch may be NULL. */
void recorder_add(recorder *r, const span *s, const char *name, const span_launch *launch);

/* Adds to the sums of the kernel of this name. */
void recorder_add_counters(recorder *r, const char *name, const double add[N_COUNTED]);

/* Keeps what a GPU is; a second time it replaces the first. */
void recorder_add_gpu(recorder *r, const gpu_facts *g);

/* NULL where nothing is known of the device. */
const gpu_facts *recorder_gpu(const recorder *r, uint32_t device);

/* A step has ended: the schedule goes on.  Where recorder_will_switch says that this forgets a
 * warm-up or ends a recording, the records of the GPU must be there before. */
bool recorder_will_switch(recorder *r);
void recorder_step(recorder *r, uint64_t end_ns); /* it ended then, a little before now */

/* Another program's step has ended (nvtx.h); is_kept: it was recorded and no warm-up. */
void recorder_add_step(recorder *r, int64_t number, bool is_kept, uint64_t start_ns,
                       uint64_t end_ns);

/* The cycle of a time, by the steps from `first_step` on: those of one process. */
uint16_t recorder_cycle(const recorder *r, size_t first_step, uint64_t ns);

/* Gives the spans from `first_span` on the cycle that they began in. */
void recorder_cut(recorder *r, size_t first_span, size_t first_step);

/* Nothing is taken while it is paused, whatever the schedule says; steps are counted. */
void recorder_pause(recorder *r, bool is_paused);

/* The text of a name; valid until the next one is added. */
const char *recorder_text(const recorder *r, size_t name);
const char *recorder_name(const recorder *r, const span *s);
const char *span_kind_name(span_kind kind);

/* Whether a span is complete, and what a GPU ran. */
static inline bool span_is_on_gpu(const span *s) {
    return s->end_ns != 0 &&
           (s->kind == SPAN_KERNEL || s->kind == SPAN_COPY || s->kind == SPAN_SET);
}

/* One more than the largest correlation of a span. */
size_t recorder_n_correlations(const recorder *r);

/* When all spans are there: gives what the GPU ran the op that launched it, and removes the links
 * (spans of kind N_SPAN_KINDS). */
status recorder_link(recorder *r);

/* For ranges of other programs (nvtx.h), which come one by one, when they end: gives each range the
 * one around it on its lane, and the time of those inside; what the GPU ran belongs to the
 * innermost range around the call that asked for it. */
status recorder_nest(recorder *r);

/* Keeps the ranges of a name ("layer forward 0") with all that is inside them, ops, calls and what
 * the GPU ran for them, whenever that was; the recorded time is then the time of these ranges. */
status recorder_keep_range(recorder *r, const char *name);
