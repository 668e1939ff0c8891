/* Collects the records for busy.h from CUPTI; the only file that includes its headers.
 *
 * The library is opened by name at the first busy_begin instead of being linked, so that the
 * program runs where it is missing.  CUPTI requests buffers and returns them full, on its own
 * thread: a lock guards the log that they are read into. */
#include "profile/busy.h"

#include <stdio.h>

#ifdef HSTU_HAS_CUPTI

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>

#include "base/mem.h"
#include "profile/busy_log.h"

/* CUPTI numbers the versions of each record struct; a newer version only appends members, so the
 * members read here are at the same offsets in every libcupti. */
#if CUPTI_API_VERSION >= 130200
typedef CUpti_ActivityKernel11 kernel_record;
#elif CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
#else
typedef CUpti_ActivityKernel9 kernel_record; /* 12.0 to 12.9 */
#endif
#if CUPTI_API_VERSION >= 26
typedef CUpti_ActivityMemcpy6 copy_record; /* since 12.8 */
#else
typedef CUpti_ActivityMemcpy5 copy_record;
#endif
typedef CUpti_ActivityMemset4 memset_record;

/* From 13.0 on the version has the form xxyyzz. */
#if CUPTI_API_VERSION >= 130000
enum { CUPTI_MAJOR = CUPTI_API_VERSION / 10000 };
#else
enum { CUPTI_MAJOR = 12 };
#endif

#ifndef HSTU_CUPTI_DIR
#define HSTU_CUPTI_DIR ""
#endif

/* Room for some 30 000 kernels; CUPTI advises 1 to 10 MB. */
enum { BUFFER_BYTES = 8 << 20 };

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* The functions of the library that are used here, each with the type its header gives it. */
#define FUNCTIONS(X)                                                                               \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityGetNextRecord)                                                                  \
    X(cuptiActivityGetNumDroppedRecords)                                                           \
    X(cuptiGetResultString)

#define AS_MEMBER(name) __typeof__(name) *name;
static struct {
    FUNCTIONS(AS_MEMBER)
    void *library;                  /* NULL until all of the above are found */
    bool is_registered;             /* CUPTI has our callbacks, once a process */
    bool is_on;                     /* the kinds are enabled */
    char reason[BUSY_REASON_BYTES]; /* why the last busy_begin failed */

    pthread_mutex_t lock; /* guards the rest */
    bool is_taking;       /* between busy_begin and busy_end; outside, records are dropped */
    status failed;        /* of reading records: out of memory */
    busy_log log;
} cupti = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Notes why it does not work.  Returns false. */
static bool refuse(const char *what, CUptiResult result) {
    const char *text = NULL;
    cupti.cuptiGetResultString(result, &text);
    snprintf(cupti.reason, sizeof cupti.reason, "CUPTI refuses %s: %s", what,
             text != NULL ? text : "no reason given");
    return false;
}

/* Tries the version this was built with first, where the loader looks, then in the toolkit. */
static void *open_library(void) {
    char name[4][512];
    snprintf(name[0], sizeof name[0], "libcupti.so.%d", CUPTI_MAJOR);
    snprintf(name[1], sizeof name[1], "%s/libcupti.so.%d", HSTU_CUPTI_DIR, CUPTI_MAJOR);
    snprintf(name[2], sizeof name[2], "%s/libcupti.so", HSTU_CUPTI_DIR);
    snprintf(name[3], sizeof name[3], "libcupti.so");
    for (int i = 0; i < 4; i++) {
        void *library = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    snprintf(cupti.reason, sizeof cupti.reason,
             "libcupti.so.%d was not found; add its folder to LD_LIBRARY_PATH", CUPTI_MAJOR);
    return NULL;
}

/* POSIX returns functions as void pointers; this stores through one. */
#define AS_LOOKUP(name)                                                                            \
    *(void **)&cupti.name = dlsym(library, #name);                                                 \
    if (cupti.name == NULL) missing = #name;

static bool load(void) {
    if (cupti.library != NULL) return true;
    const char *missing = NULL;
    void *library = open_library();
    if (library == NULL) return false;
    FUNCTIONS(AS_LOOKUP)
    if (missing == NULL) {
        cupti.library = library; /* never closed: CUPTI has threads and callbacks of its own */
        return true;
    }
    snprintf(cupti.reason, sizeof cupti.reason, "libcupti has no %s", missing);
    dlclose(library);
    return false;
}

/* Without a buffer CUPTI drops records, and counts them. */
static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records) {
    *max_records = 0; /* as many as fit */
    *bytes = 0;
    if (mem_alloc_raw((void **)buffer, BUFFER_BYTES, 1) == OK) *bytes = BUFFER_BYTES;
}

static busy_kind copy_kind(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
        return BUSY_COPY_IN;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
        return BUSY_COPY_OUT;
    default:
        return BUSY_COPY_ON_DEVICE;
    }
}

static status add_record(const CUpti_Activity *record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const kernel_record *k = (const kernel_record *)record;
        return busy_log_add(&cupti.log, BUSY_KERNEL, k->name, k->start, k->end);
    }
    if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const copy_record *c = (const copy_record *)record;
        if (c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH) return OK; /* no GPU has part in it */
        return busy_log_add(&cupti.log, copy_kind(c->copyKind), NULL, c->start, c->end);
    }
    if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const memset_record *m = (const memset_record *)record;
        return busy_log_add(&cupti.log, BUSY_MEMSET, NULL, m->start, m->end);
    }
    return OK;
}

/* Reading ends with the buffer, or at a record that is not complete. */
static void add_records(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes) {
    CUpti_Activity *record = NULL;
    size_t n_dropped = 0;
    while (cupti.failed == OK &&
           cupti.cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS)
        cupti.failed = add_record(record);
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &n_dropped) == CUPTI_SUCCESS)
        cupti.log.n_lost += n_dropped;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t bytes) {
    (void)size;
    pthread_mutex_lock(&cupti.lock);
    if (cupti.is_taking && bytes > 0) add_records(context, stream, buffer, bytes);
    pthread_mutex_unlock(&cupti.lock);
    mem_free(buffer);
}

static void disable(int n) {
    for (int i = 0; i < n; i++)
        cupti.cuptiActivityDisable(kinds[i]);
    cupti.is_on = false;
}

static bool enable(void) {
    CUptiResult result;
    if (cupti.is_on) return true;
    if (!cupti.is_registered) {
        result = cupti.cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
        if (result != CUPTI_SUCCESS) return refuse("callbacks", result);
        cupti.is_registered = true;
    }
    for (int i = 0; i < N_KINDS; i++) {
        result = cupti.cuptiActivityEnable(kinds[i]);
        if (result == CUPTI_SUCCESS) continue;
        disable(i);
        return refuse("activity records", result);
    }
    cupti.is_on = true;
    return true;
}

/* Starts to keep records, or to drop them, and returns those kept so far. */
static status set_taking(bool is_taking, busy_log *taken) {
    pthread_mutex_lock(&cupti.lock);
    status failed = cupti.failed;
    *taken = cupti.log;
    cupti.log = (busy_log){0};
    cupti.failed = OK;
    cupti.is_taking = is_taking;
    pthread_mutex_unlock(&cupti.lock);
    return failed;
}

status busy_begin(void) {
    busy_log old;
    cupti.reason[0] = '\0';
    set_taking(false, &old);
    busy_log_fini(&old);
    if (!load() || !enable()) return OK;
    /* Records of the time before are dropped first. */
    CUptiResult result = cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    if (result != CUPTI_SUCCESS) {
        disable(N_KINDS);
        refuse("to hand out records", result);
        return OK;
    }
    set_taking(true, &old);
    return OK;
}

status busy_end(busy_report *out) {
    busy_log log;
    *out = (busy_report){0};
    CUptiResult result = CUPTI_SUCCESS;
    bool was_on = cupti.is_on;
    if (was_on) {
        result = cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
        disable(N_KINDS);
    }
    status st = set_taking(false, &log);
    if (result != CUPTI_SUCCESS) refuse("to hand out records", result);
    if (st != OK)
        st = fail(st, "no memory for the records of what the GPU did; measure fewer steps");
    else if (was_on && result == CUPTI_SUCCESS)
        st = busy_log_report(&log, out);
    else
        snprintf(out->reason, sizeof out->reason, "%s",
                 cupti.reason[0] != '\0' ? cupti.reason : "busy_begin was not called");
    busy_log_fini(&log);
    return st;
}

#else

status busy_begin(void) {
    return OK;
}

status busy_end(busy_report *out) {
    *out = (busy_report){0};
#ifdef HSTU_HAS_CUDA
    snprintf(out->reason, sizeof out->reason,
             "this build is without CUPTI (cupti.h was not found beside nvcc)");
#else
    snprintf(out->reason, sizeof out->reason, "this build is without CUDA");
#endif
    return OK;
}

#endif
