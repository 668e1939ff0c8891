#include <dlfcn.h>
#include <glob.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/utsname.h>

#include "base/base.h"

#include "base/machine.h"

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
    text_add(text, n, "%s%s", text[0] != '\0' ? " " : "", word);
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
#endif
}

enum { PATH_BYTES = 4096, LINE_BYTES = 4096 };

/* The first line of a file of a cgroup; false: there is no such file. */
static bool read_line(const char *folder, const char *name, char *line, int bytes) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    FILE *f = fopen(path, "r");
    if (f == NULL) return false;
    bool is_read = fgets(line, bytes, f) != NULL;
    fclose(f);
    return is_read;
}

/* The cores of a quota in a period; what is no quota, such as "max" or -1, is 0. */
static double cores_of(const char *quota, const char *period) {
    double q = strtod(quota, NULL), p = strtod(period, NULL), most = 1 << 20;
    return q > 0 && p > 0 && q / p < most ? q / p : 0;
}

/* Of one cgroup, 0: none.  Version 2 has both in cpu.max, "200000 100000". */
static double quota_at(const char *folder) {
    char quota[64], period[64];
    if (read_line(folder, "cpu.max", quota, sizeof quota)) {
        const char *blank = strchr(quota, ' ');
        return blank == NULL ? 0 : cores_of(quota, blank);
    }
    if (!read_line(folder, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !read_line(folder, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return cores_of(quota, period);
}

/* The memory of one cgroup in bytes, 0: no limit. */
static double memory_at(const char *folder) {
    char limit[64];
    bool is_read = read_line(folder, "memory.max", limit, sizeof limit) ||
                   read_line(folder, "memory.limit_in_bytes", limit, sizeof limit);
    return is_read ? (double)machine_parse_limit(limit) : 0;
}

/* The limit of one cgroup, 0: none. */
typedef double (*limit_fn)(const char *folder);

/* The least limit of `path` below a folder and of what is above it, the folder included.  In a
 * container the path is often one that only its host has. */
static double least_below(const char *mount, const char *path, limit_fn limit_at, double least) {
    char folder[PATH_BYTES];
    size_t top = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder) return least;
    for (;;) {
        double n = limit_at(folder);
        if (n > 0 && (least == 0 || n < least)) least = n;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= top || slash == NULL) return least;
        *slash = '\0';
    }
}

/* Whether a controller is one of the names, separated by commas. */
static bool has_name(const char *names, const char *wanted) {
    size_t n = strcspn(names, ",");
    while (n != strlen(wanted) || strncmp(names, wanted, n) != 0) {
        if (names[n] == '\0') return false;
        names += n + 1;
        n = strcspn(names, ",");
    }
    return true;
}

/* The least limit of the process's own control groups, listed in the file `own`. */
static double least_limit(const char *own, const char *root, const char *controller,
                          limit_fn limit_at) {
    char line[LINE_BYTES], mount[PATH_BYTES];
    double least = 0;
    FILE *f = fopen(own, "r");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) { /* "0::/path", or "4:cpu,cpuacct:/path" */
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *path = names == NULL ? NULL : strchr(names + 1, ':');
        if (path == NULL || path[1] != '/') continue;
        *path++ = '\0';
        names++;
        if (strcmp(path, "/") == 0) path = "";
        bool is_second = names[0] == '\0';
        if (!is_second && !has_name(names, controller)) continue;
        int n = snprintf(mount, sizeof mount, "%s%s%s", root, is_second ? "" : "/",
                         is_second ? "" : controller);
        if (n > 0 && n < (int)sizeof mount) least = least_below(mount, path, limit_at, least);
    }
    fclose(f);
    return least;
}

double cpu_quota(const char *own, const char *root) {
    return least_limit(own, root, "cpu", quota_at);
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
    out->limit_bytes =
        (uint64_t)least_limit("/proc/self/cgroup", "/sys/fs/cgroup", "memory", memory_at);
    out->quota_cores = cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
}

/* The newest match of FOLDER/MIDDLE/FILE that can be loaded.  Folders that are not whole paths
 * would mean whatever lies below the current one. */
static void *open_matching(const char *folder, const char *middle, const char *file) {
    char pattern[PATH_MAX];
    glob_t found = {0};
    void *library = NULL;
    if (folder == NULL || folder[0] != '/') return NULL;
    if (snprintf(pattern, sizeof pattern, "%s/%s/%s", folder, middle, file) >= (int)sizeof pattern)
        return NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && library == NULL;)
            library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

/* A wheel's library is at PACKAGES/hstu/libhstu.so, and other packages beside its folder. */
static void *open_beside(const char *file) {
    static const char here;
    Dl_info own;
    char folder[PATH_MAX];
    if (dladdr(&here, &own) == 0 || own.dli_fname == NULL) return NULL;
    if (snprintf(folder, sizeof folder, "%s", own.dli_fname) >= (int)sizeof folder) return NULL;
    char *end = strrchr(folder, '/');
    if (end == NULL) return NULL;
    *end = '\0';
    return open_matching(folder, "..", file);
}

void *library_find(const char *name, const char *in_packages) {
    static const char any[] = "lib/python3*/*-packages";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) library = open_beside(in_packages);
    if (library == NULL) library = open_matching(env_python_folder(), any, in_packages);
    if (library == NULL) library = open_matching("/usr/local", any, in_packages);
    if (library == NULL) library = open_matching("/usr", any, in_packages);
    if (library == NULL) library = open_matching("/opt/*", any, in_packages);
    if (library == NULL)
        library = open_matching(env_home(), ".local/lib/python3*/*-packages", in_packages);
    return library;
}
