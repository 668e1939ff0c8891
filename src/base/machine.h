/* The machine this process runs on: how many cores and how much memory it may use, and what the CPU
 * supports.  Read from the kernel at each call; what is unknown is 0 or "". */
#ifndef HSTU_BASE_MACHINE_H
#define HSTU_BASE_MACHINE_H

#include <stdint.h>

#include "base/status.h"

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

#endif
