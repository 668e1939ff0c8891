/* The machine this process runs on: how many cores and how much memory it may use, and what the CPU
 * supports; and shared libraries that are looked for when they are first needed, so that a program
 * starts without them.  Read from the kernel at each call; what is unknown is 0 or "". */
#pragma once

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct machine {
    int n_cores;              /* online */
    int n_usable_cores;       /* this process may run on (affinity) */
    double quota_cores;       /* CPU time its control groups grant, in cores; 0: no limit */
    char cpu[128];            /* "Neoverse N1" */
    char simd[128];           /* "NEON SVE", "AVX2 FMA", separated by spaces */
    uint64_t total_bytes;     /* memory of the machine */
    uint64_t available_bytes; /* to be had without swapping */
    uint64_t limit_bytes;     /* the tightest limit of its control groups; 0: none */
    char system[128];         /* "Linux 6.1.0 aarch64" */
} machine;

void machine_ask(machine *out);

/* The parsers of the kernel's text files; pure, so that tests can call them. */
uint64_t machine_parse_meminfo(const char *meminfo, const char *key); /* bytes */
void machine_parse_cpu(const char *cpuinfo, char *name, int n);
uint64_t machine_parse_limit(const char *max); /* of "max": 0 */

/* The cores, such as 1.5, that the quota of a container lets a process use: `docker run --cpus 2`,
 * a limit of Kubernetes or of systemd.  The process may run on every core then, but only for so
 * much of each 100 ms; with a thread for every core it would stand still for the rest.
 *
 * The least quota of the process's cgroup (version 1 or 2) and of those above it; 0: there is none.
 * `own` names the cgroups of the process, as
 * /proc/self/cgroup does, `root` is where they are mounted: /sys/fs/cgroup. */
double cpu_quota(const char *own, const char *root);

/* Opens the first shared library that can be loaded: `name` where the loader looks
 * (LD_LIBRARY_PATH, the folder it was linked with, the system's), then `in_packages`, a pattern
 * such as "nvidia/x/lib/libx.so.1", in the folders of Python's packages: the one that this library
 * is installed in, the active environment's, the system's and the user's.  NULL: there is none. */
void *library_find(const char *name, const char *in_packages);

#ifdef __cplusplus
}
#endif
