#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cli/machine/doctor_find.h"

finding *findings_add(findings *f, found_state state, const char *name, const char *fmt, ...) {
    finding *out = &f->all[f->n < MAX_FINDINGS ? f->n++ : MAX_FINDINGS - 1];
    va_list args;
    *out = (finding){.section = f->section, .state = state};
    snprintf(out->name, sizeof out->name, "%s", name);
    va_start(args, fmt);
    vsnprintf(out->text, sizeof out->text, fmt, args);
    va_end(args);
    return out;
}

void finding_remedy(finding *f, unsigned unfit_for, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->remedy, sizeof f->remedy, fmt, args);
    va_end(args);
    f->unfit_for = unfit_for;
}

/* The first line of a small file; "" where there is none. */
static void first_line(const char *path, char *out, int n) {
    char *text;
    size_t n_bytes;
    out[0] = '\0';
    if (file_read_all(path, 1 << 16, &text, &n_bytes) != OK) return;
    snprintf(out, (size_t)n, "%.*s", (int)strcspn(text, "\n"), text);
    mem_free(text);
}

void doctor_chosen_word(const char *text, char *out, int n) {
    const char *open = strchr(text, '['), *close = open != NULL ? strchr(open, ']') : NULL;
    out[0] = '\0';
    if (close != NULL) snprintf(out, (size_t)n, "%.*s", (int)(close - open - 1), open + 1);
}

static void ask_huge_pages(findings *f) {
    char line[128], mode[32];
    first_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line);
    doctor_chosen_word(line, mode, sizeof mode);
    if (mode[0] == '\0') {
        findings_add(f, FOUND_LACK, "huge pages", "the system does not tell");
    } else if (strcmp(mode, "never") == 0) {
        finding_remedy(findings_add(f, FOUND_LACK, "huge pages",
                                    "never: random reads of large tables are slower"),
                       0, "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
    } else {
        findings_add(f, FOUND_OK, "huge pages", "%s", mode);
    }
}

enum { FEW_FILES = 256, MANY_FILES = 4096 };

/* A server has a descriptor for each connection. */
static void ask_descriptors(findings *f) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    bool is_few = limit.rlim_cur < FEW_FILES;
    finding *found =
        findings_add(f,
                     is_few                        ? FOUND_TROUBLE
                     : limit.rlim_cur < MANY_FILES ? FOUND_LACK
                                                   : FOUND_OK,
                     "open files", "%llu at a time, at most %llu",
                     (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
    if (found->state != FOUND_OK)
        finding_remedy(found, is_few ? FOR_SERVE | FOR_RANKS : 0,
                       "ulimit -n %d (a server with many connections needs one for each)",
                       MANY_FILES);
}

enum { DISK_PIECE = 1 << 20, DISK_PIECES = 32, DISK_MS = 500, MIN_FREE_MIB = 256 };

/* Writes for half a second at most; returns MB a second, or 0. */
static double write_speed(int fd) {
    void *piece;
    uint64_t start = clock_ns(), n = 0;
    if (mem_alloc((void **)&piece, DISK_PIECE, 1) != OK) return 0;
    while (n < DISK_PIECES && clock_ns() - start < DISK_MS * 1000000ull &&
           write(fd, piece, DISK_PIECE) == DISK_PIECE)
        n++;
    mem_free(piece);
    if (n == 0 || file_sync(fd) != 0) return 0;
    return (double)n * DISK_PIECE / 1e6 / ((double)(clock_ns() - start) / 1e9);
}

/* The file has no name: nothing stays behind, whatever happens. */
static void ask_disk(findings *f) {
    struct statvfs disk;
    double free_mib =
        statvfs(".", &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize / (1 << 20) : 0;
    char name[] = "hstu-doctor-XXXXXX";
    int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (fd = mkostemp(name, O_CLOEXEC)) >= 0) unlink(name);
    double speed = fd >= 0 ? write_speed(fd) : 0;
    if (fd >= 0) close(fd);
    if (fd < 0)
        finding_remedy(findings_add(f, FOUND_LACK, "disk", "this folder cannot be written"),
                       FOR_TRAIN,
                       "work in a folder of your own: runs are written where --out says");
    else if (free_mib < MIN_FREE_MIB)
        finding_remedy(
            findings_add(f, FOUND_TROUBLE, "disk", "%.0f MiB free in this folder", free_mib),
            FOR_TRAIN, "checkpoints need more: free some, or work elsewhere");
    else if (speed == 0)
        findings_add(f, FOUND_TROUBLE, "disk", "this folder's disk cannot be written");
    else
        findings_add(f, FOUND_OK, "disk", "writes %.0f MB/s in this folder, %.1f GiB free", speed,
                     free_mib / 1024);
}

enum { MIN_SHARED_MIB = 64 };

/* Ranks of one machine exchange through shared memory; Docker gives 64 MB. */
static void ask_shared_memory(findings *f) {
    struct statvfs disk;
    if (statvfs("/dev/shm", &disk) != 0) {
        finding_remedy(findings_add(f, FOUND_TROUBLE, "/dev/shm", "not there"), FOR_RANKS,
                       "mount -t tmpfs tmpfs /dev/shm");
        return;
    }
    double mib = (double)disk.f_bavail * (double)disk.f_frsize / (1 << 20);
    finding *found = findings_add(f, mib < MIN_SHARED_MIB ? FOUND_TROUBLE : FOUND_OK, "/dev/shm",
                                  "%.0f MiB free", mib);
    if (mib < MIN_SHARED_MIB)
        finding_remedy(found, FOR_RANKS,
                       "give the container more (docker run --shm-size=1g), or remove files there");
}

static void ask_container(findings *f) {
    char pids[64], line[128];
    const char *kind = file_exists("/.dockerenv")                      ? "Docker"
                       : file_exists("/run/.containerenv")             ? "Podman"
                       : file_exists("/var/run/secrets/kubernetes.io") ? "Kubernetes"
                                                                       : NULL;
    first_line("/run/systemd/container", line, sizeof line);
    if (kind == NULL && line[0] != '\0') kind = line;
    first_line("/sys/fs/cgroup/pids.max", pids, sizeof pids);
    if (kind == NULL) return;
    findings_add(f, FOUND_OK, "container", "%s%s%s; limits of cores and memory are above", kind,
                 pids[0] != '\0' ? ", processes and threads: " : "", pids);
}

/* OpenBLAS is only a yardstick (bench/): that it is missing is no loss. */
static void ask_openblas(findings *f) {
    void *library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_LOCAL);
    char *(*core)(void);
    if (library == NULL) return;
    *(void **)&core = dlsym(library, "openblas_get_corename");
    if (core != NULL)
        findings_add(f, FOUND_OK, "OpenBLAS", "for cores of type %s; hstu has products of its own",
                     core());
    dlclose(library);
}

void doctor_ask_host(findings *f) {
    f->section = SECTION_MACHINE;
    ask_huge_pages(f);
    ask_descriptors(f);
    ask_disk(f);
    ask_shared_memory(f);
    ask_container(f);
    f->section = SECTION_LIBRARIES;
    ask_openblas(f);
}
