/* Tables of a profile, in the columns, order and units that people know: `nsys stats` for what the
 * GPU did and for CUDA's calls, torch.profiler's key_averages for ranges and ops. */
#pragma once

#include "profile/recorder.h"

typedef enum {
    COLUMN_PERCENT, /* "12.3", in torch's tables "12.34%" */
    COLUMN_NS,
    COLUMN_MB,
    COLUMN_COUNT,
    COLUMN_TIME,   /* "1.234ms": us, ms or s */
    COLUMN_MEMORY, /* "1.23 MB": B, KB, MB or GB, of 1024 each, as torch has them */
    COLUMN_NUMBER, /* with two decimals */
    COLUMN_TEXT,   /* its number in a row's texts */
    COLUMN_NAME
} column_kind;

typedef struct profile_column {
    const char *title;
    column_kind kind;
    int value; /* its number in a row's values */
} profile_column;

enum { PROFILE_MAX_COLUMNS = 16 };

typedef struct profile_row {
    double value[PROFILE_MAX_COLUMNS];
    char text[3][36];
    const char *name; /* of the recorder */
} profile_row;

typedef enum { LOOKS_NSYS, LOOKS_TORCH } table_looks;

typedef struct profile_table {
    const char *id;    /* "cuda_gpu_kern_sum" */
    const char *title; /* "CUDA GPU Kernel Summary" */
    table_looks looks;
    const profile_column *columns;
    int n_columns;
    profile_column own[PROFILE_MAX_COLUMNS]; /* key_averages: those that are shown */
    profile_row *rows;
    size_t n_rows;
    double host_ns, gpu_ns; /* key_averages: the sums of self times */
} profile_table;

/* The reports in order; those without rows have n_rows 0. */
typedef enum {
    REPORT_KERNELS,  /* cuda_gpu_kern_sum */
    REPORT_CALLS,    /* cuda_api_sum */
    REPORT_COPIES,   /* cuda_gpu_mem_time_sum */
    REPORT_BYTES,    /* cuda_gpu_mem_size_sum */
    REPORT_GPU,      /* cuda_gpu_sum: kernels and copies */
    REPORT_LAUNCHES, /* cuda_kern_launch: how kernels were launched; occupancy */
    REPORT_COUNTERS, /* cuda_kern_counters: hardware counters of kernels */
    REPORT_WORK,     /* op_work: FLOP and bytes a second of ops */
    REPORT_OPS,      /* key_averages */
    N_REPORTS
} report_kind;

/* Makes a table of what the recorder has.  The recorder must outlive it. */
status profile_table_make(profile_table *out, const recorder *r, report_kind kind);
void profile_table_fini(profile_table *t);

/* Sorts by a key of torch.profiler, largest first: self_cpu_time_total, cpu_time_total,
 * self_cuda_time_total, cuda_time_total, count, the four of memory (self_cpu_memory_usage, ...); or
 * total_time, for the others.  ERR_USAGE names the keys of the table. */
status profile_table_sort(profile_table *t, const char *key);

/* Of a row of key_averages: its part of all self times, those of the GPU where there was one. */
double profile_table_share(const profile_table *t, const profile_row *row);

/* At most row_limit rows; below 0: all. */
status profile_table_text(const profile_table *t, int64_t row_limit, buf *out);
status profile_table_csv(const profile_table *t, int64_t row_limit, buf *out);
status profile_table_json(const profile_table *t, int64_t row_limit, buf *out);
