#include "base/machine.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cpu_quota.h"
#include "base/file.h"
#include "base/mem.h"

enum { MAX_FACT_BYTES = 1 << 22 }; /* /proc/cpuinfo of 1024 cores has about 1.5 MB. */

/* A kernel file as text, or NULL if there is none: a missing file is not a failure. */
static char *read_fact(const char *path) {
    char *text;
    size_t n;
    return file_read_all(path, MAX_FACT_BYTES, &text, &n) == OK ? text : NULL;
}

/* The value after "key : " at the start of a line, *out_bytes long; NULL if there is none. */
static const char *field(const char *text, const char *key, int *out_bytes) {
    size_t n_key = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        const char *next = strchr(line, '\n');
        if (strncmp(line, key, n_key) == 0) {
            const char *value = line + n_key + strspn(line + n_key, " \t");
            if (*value == ':') {
                value += 1 + strspn(value + 1, " \t");
                *out_bytes = (int)strcspn(value, "\n");
                return value;
            }
        }
        line = next != NULL ? next + 1 : NULL;
    }
    return NULL;
}

uint64_t machine_parse_meminfo(const char *meminfo, const char *key) {
    int n;
    const char *value = field(meminfo, key, &n);
    return value != NULL ? strtoull(value, NULL, 10) * 1024 : 0;
}

/* Arm cores report numbers, not names; these are the cores of servers and small boards. */
static const struct {
    long implementer, part;
    const char *name;
} arm_cores[] = {
    {0x41, 0xd03, "Cortex-A53"},  {0x41, 0xd07, "Cortex-A57"},  {0x41, 0xd08, "Cortex-A72"},
    {0x41, 0xd0b, "Cortex-A76"},  {0x41, 0xd0c, "Neoverse N1"}, {0x41, 0xd40, "Neoverse V1"},
    {0x41, 0xd49, "Neoverse N2"}, {0x41, 0xd4f, "Neoverse V2"}, {0x41, 0xd84, "Neoverse V3"},
    {0x41, 0xd8e, "Neoverse N3"}, {0x4e, 0x004, "Carmel"},      {0xc0, 0xac3, "Ampere-1"},
};

void machine_parse_cpu(const char *cpuinfo, char *name, int n) {
    int n_value;
    const char *value = field(cpuinfo, "model name", &n_value);
    if (value != NULL) {
        snprintf(name, (size_t)n, "%.*s", n_value, value);
        return;
    }
    const char *maker = field(cpuinfo, "CPU implementer", &n_value);
    const char *part = field(cpuinfo, "CPU part", &n_value);
    name[0] = '\0';
    if (maker == NULL || part == NULL) return;
    long maker_id = strtol(maker, NULL, 16), part_id = strtol(part, NULL, 16);
    snprintf(name, (size_t)n, "Arm core %#lx/%#lx", maker_id, part_id);
    for (size_t i = 0; i < sizeof arm_cores / sizeof arm_cores[0]; i++)
        if (arm_cores[i].implementer == maker_id && arm_cores[i].part == part_id)
            snprintf(name, (size_t)n, "%s", arm_cores[i].name);
}

/* Version 1 of the control groups writes "no limit" as a number near 2^63. */
uint64_t machine_parse_limit(const char *max) {
    uint64_t bytes = isdigit((unsigned char)max[0]) ? strtoull(max, NULL, 10) : 0;
    return bytes < (uint64_t)1 << 60 ? bytes : 0;
}

static void add_word(char *text, size_t n, const char *word) {
    size_t used = strlen(text);
    snprintf(text + used, n - used, "%s%s", used > 0 ? " " : "", word);
}

static void ask_simd(char *text, size_t n) {
    text[0] = '\0';
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) add_word(text, n, "AVX2");
    if (__builtin_cpu_supports("fma")) add_word(text, n, "FMA");
    if (__builtin_cpu_supports("avx512f")) add_word(text, n, "AVX-512");
    if (__builtin_cpu_supports("avx512vnni")) add_word(text, n, "AVX-512-VNNI");
#elif defined(__aarch64__)
    /* The bits of the kernel's HWCAP, which older headers do not name. */
    unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    if (caps & 1ul << 1) add_word(text, n, "NEON");
    if (caps & 1ul << 20) add_word(text, n, "DOTPROD");
    if (caps & 1ul << 22) add_word(text, n, "SVE");
    if (caps2 & 1ul << 1) add_word(text, n, "SVE2");
    if (caps2 & 1ul << 14) add_word(text, n, "BF16");
#else
    (void)n;
    (void)add_word;
#endif
}

static void tighten(machine *m, uint64_t limit) {
    if (limit > 0 && (m->limit_bytes == 0 || limit < m->limit_bytes)) m->limit_bytes = limit;
}

static void ask_group(machine *m, const char *folder) {
    char path[4352];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    char *limit = read_fact(path);
    if (limit != NULL) tighten(m, machine_parse_limit(limit));
    mem_free(limit);
}

/* A process is bound by its own control group and by every one above it.  In a container the path
 * is often the host's and does not exist; then only the root of the mounted hierarchy counts. */
static void ask_memory_limit(machine *m) {
    char folder[4224] = "/sys/fs/cgroup";
    size_t n_root = strlen(folder);
    char *groups = read_fact("/proc/self/cgroup");
    const char *own = groups != NULL ? strstr(groups, "0::/") : NULL;
    if (own != NULL)
        snprintf(folder + n_root, sizeof folder - n_root, "%.*s", (int)strcspn(own + 3, "\n"),
                 own + 3);
    mem_free(groups);
    for (char *slash; strlen(folder) > n_root; *slash = '\0') {
        ask_group(m, folder);
        slash = strrchr(folder, '/');
    }
    ask_group(m, folder);
    char *old = read_fact("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    if (old != NULL) tighten(m, machine_parse_limit(old));
    mem_free(old);
}

void machine_ask(machine *out) {
    cpu_set_t set;
    struct utsname name;
    *out = (machine){.n_cores = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    out->n_usable_cores =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : out->n_cores;
    if (uname(&name) == 0)
        snprintf(out->system, sizeof out->system, "%.40s %.40s %.40s", name.sysname, name.release,
                 name.machine);
    char *text = read_fact("/proc/cpuinfo");
    if (text != NULL) machine_parse_cpu(text, out->cpu, sizeof out->cpu);
    mem_free(text);
    text = read_fact("/proc/meminfo");
    if (text != NULL) {
        out->total_bytes = machine_parse_meminfo(text, "MemTotal");
        out->available_bytes = machine_parse_meminfo(text, "MemAvailable");
    }
    mem_free(text);
    ask_simd(out->simd, sizeof out->simd);
    ask_memory_limit(out);
    out->quota_cores = cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
}
