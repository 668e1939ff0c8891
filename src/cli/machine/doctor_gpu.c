/* The GPUs, by the driver's own libraries: libcuda (devices, copies that are timed) and NVML
 * (clocks, temperature, errors).  Both are opened here, so that a build without CUDA sees a GPU
 * too.  The declarations are those of cuda.h and nvml.h, whose binary interface is stable. */
#include <dlfcn.h>

#include "base/machine.h"
#include "cli/machine/doctor.h"
#include "cli/output.h"
#include "profile/cupti.h"

typedef unsigned long long address;

/* Of libcuda; all return 0 where they succeed. */
#define DRIVER(X)                                                                                  \
    X(init, "cuInit", (unsigned))                                                                  \
    X(version, "cuDriverGetVersion", (int *))                                                      \
    X(count, "cuDeviceGetCount", (int *))                                                          \
    X(pci, "cuDeviceGetPCIBusId", (char *, int, int))                                              \
    X(can_access, "cuDeviceCanAccessPeer", (int *, int, int))                                      \
    X(retain, "cuDevicePrimaryCtxRetain", (void **, int))                                          \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int))                                              \
    X(set_current, "cuCtxSetCurrent", (void *))                                                    \
    X(synchronize, "cuCtxSynchronize", (void))                                                     \
    X(alloc, "cuMemAlloc_v2", (address *, size_t))                                                 \
    X(free, "cuMemFree_v2", (address))                                                             \
    X(alloc_host, "cuMemAllocHost_v2", (void **, size_t))                                          \
    X(free_host, "cuMemFreeHost", (void *))                                                        \
    X(copy_in, "cuMemcpyHtoD_v2", (address, const void *, size_t))                                 \
    X(copy_out, "cuMemcpyDtoH_v2", (void *, address, size_t))                                      \
    X(copy_on, "cuMemcpyDtoD_v2", (address, address, size_t))                                      \
    X(copy_peer, "cuMemcpyPeer", (address, void *, address, void *, size_t))

/* Of NVML. */
#define NVML(X)                                                                                    \
    X(start, "nvmlInit_v2", (void))                                                                \
    X(stop, "nvmlShutdown", (void))                                                                \
    X(driver, "nvmlSystemGetDriverVersion", (char *, unsigned))                                    \
    X(by_pci, "nvmlDeviceGetHandleByPciBusId_v2", (const char *, void **))                         \
    X(clock, "nvmlDeviceGetClockInfo", (void *, int, unsigned *))                                  \
    X(max_clock, "nvmlDeviceGetMaxClockInfo", (void *, int, unsigned *))                           \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (void *, unsigned long long *))       \
    X(temperature, "nvmlDeviceGetTemperature", (void *, int, unsigned *))                          \
    X(power, "nvmlDeviceGetPowerUsage", (void *, unsigned *))                                      \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (void *, unsigned *))                        \
    X(ecc, "nvmlDeviceGetEccMode", (void *, int *, int *))                                         \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors", (void *, int, int, unsigned long long *))         \
    X(pcie_gen, "nvmlDeviceGetCurrPcieLinkGeneration", (void *, unsigned *))                       \
    X(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth", (void *, unsigned *))                          \
    X(mig, "nvmlDeviceGetMigMode", (void *, unsigned *, unsigned *))                               \
    X(compute_mode, "nvmlDeviceGetComputeMode", (void *, int *))                                   \
    X(nvlink, "nvmlDeviceGetNvLinkState", (void *, unsigned, int *))

#define MEMBER(name, symbol, parameters) int(*name) parameters;
#define LOOK_UP(name, symbol, parameters)                                                          \
    *(void **)&l->name = dlsym(library, symbol);                                                   \
    if (l->name == NULL) missing = symbol;

typedef struct cuda_driver {
    DRIVER(MEMBER)
} cuda_driver;

typedef struct nvml {
    NVML(MEMBER)
} nvml;

static bool load_driver(cuda_driver *l, const char **why) {
    const char *missing = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *why = "libcuda.so.1 was not found";
    if (library == NULL) return false;
    DRIVER(LOOK_UP)
    *why = missing;
    return missing == NULL;
}

static bool load_nvml(nvml *l) {
    const char *missing = NULL;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return false;
    NVML(LOOK_UP)
    return missing == NULL && l->start() == 0;
}

const char *doctor_throttle_words(unsigned long long bits) {
    static const struct {
        unsigned long long bit;
        const char *word;
    } reasons[] = {{0x2, "application clocks are set"},
                   {0x4, "power limit"},
                   {0x8, "hardware slowdown"},
                   {0x10, "clocks synchronised with others"},
                   {0x20, "hot (software slowdown)"},
                   {0x40, "hot (hardware slowdown)"},
                   {0x80, "power brake"},
                   {0x100, "display clocks are set"}};
    const char *text = "";
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if ((bits & reasons[i].bit) != 0)
            text = show_printf("%s%s%s", text, text[0] != '\0' ? ", " : "", reasons[i].word);
    return text;
}

/* Slowdowns that somebody should know of; power limits are met under any load. */
enum { BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80 };

static void ask_clocks(findings *f, const nvml *m, void *device, const char *name) {
    unsigned sm = 0, max = 0, memory = 0, celsius = 0, milliwatt = 0, limit = 0;
    unsigned long long bits = 0;
    if (m->clock(device, 1, &sm) != 0 || m->max_clock(device, 1, &max) != 0) return;
    m->clock(device, 2, &memory);
    m->temperature(device, 0, &celsius);
    m->power(device, &milliwatt);
    m->power_limit(device, &limit);
    m->throttle(device, &bits);
    const char *words = doctor_throttle_words(bits);
    bool is_bad = (bits & BAD_THROTTLE) != 0;
    finding_add(
        f, is_bad ? FOUND_TROUBLE : FOUND_OK, name, 0,
        is_bad ? "look at cooling and power: nvidia-smi -q -d PERFORMANCE,TEMPERATURE" : NULL,
        "SM clock %u of %u MHz, memory %u MHz, %u C, %u of %u W%s%s", sm, max, memory, celsius,
        milliwatt / 1000, limit / 1000, words[0] != '\0' ? "; slowed by: " : "", words);
}

static void ask_errors(findings *f, const nvml *m, void *device, const char *name) {
    int is_on = 0, pending = 0, mode = 0;
    unsigned mig = 0, mig_pending = 0;
    unsigned long long n_errors = 0;
    bool has_ecc = m->ecc(device, &is_on, &pending) == 0;
    if (has_ecc && is_on != 0 && m->ecc_errors(device, 1, 0, &n_errors) != 0) n_errors = 0;
    const char *mode_of_ecc = !has_ecc ? "not supported" : is_on != 0 ? "on" : "off";
    if (n_errors > 0)
        finding_add(f, FOUND_TROUBLE, name, FOR_ALL,
                    "reset the GPU (nvidia-smi --gpu-reset) or replace it",
                    "ECC %s, with errors that could not be corrected", mode_of_ecc);
    else
        FINDING(f, FOUND_OK, name, "ECC %s", mode_of_ecc);
    if (m->mig(device, &mig, &mig_pending) == 0 && mig != 0)
        FINDING(f, FOUND_OK, name, "divided into MIG slices; hstu uses the one it is given");
    if (m->compute_mode(device, &mode) == 0 && mode == 2)
        finding_add(f, FOUND_TROUBLE, name, FOR_ALL, "sudo nvidia-smi -c DEFAULT",
                    "closed to computing (compute mode)");
    if (mode == 3) FINDING(f, FOUND_LACK, name, "one process at a time (compute mode)");
}

enum { COPY_BYTES = 64 << 20, COPY_MS = 200 };

typedef struct copy_rig {
    const cuda_driver *cu;
    address device, other;
    void *host;
} copy_rig;

typedef int (*copy_call)(const copy_rig *r);

static int copy_in(const copy_rig *r) {
    return r->cu->copy_in(r->device, r->host, COPY_BYTES);
}
static int copy_out(const copy_rig *r) {
    return r->cu->copy_out(r->host, r->device, COPY_BYTES);
}
static int copy_on(const copy_rig *r) {
    return r->cu->copy_on(r->other, r->device, COPY_BYTES);
}

/* GB a second of copies that repeat for a fifth of a second; 0 where one fails. */
static double speed(const copy_rig *r, copy_call copy) {
    uint64_t n = 0;
    if (copy(r) != 0 || r->cu->synchronize() != 0) return 0; /* the first one warms up */
    uint64_t start = clock_ns();
    do {
        if (copy(r) != 0) return 0;
        n++;
    } while (n < 256 && clock_ns() - start < COPY_MS * 1000000ull);
    if (r->cu->synchronize() != 0) return 0;
    return (double)n * COPY_BYTES / (double)(clock_ns() - start);
}

/* A PCIe lane of generation 1 carries a quarter of a GB a second; each generation doubles it. */
static double link_speed(unsigned gen, unsigned width) {
    return gen > 0 && gen < 8 ? .25 * (double)(1u << (gen - 1)) * width : 0;
}

static void ask_bandwidth(findings *f, const cuda_driver *cu, int device, const char *name,
                          unsigned gen, unsigned width) {
    void *context = NULL;
    copy_rig r = {.cu = cu};
    if (cu->retain(&context, device) != 0) {
        finding_add(f, FOUND_TROUBLE, name, FOR_ALL,
                    "see whether others use it (nvidia-smi); restart the driver",
                    "cannot be used: no context");
        return;
    }
    cu->set_current(context);
    bool is_ready = cu->alloc(&r.device, COPY_BYTES) == 0 && cu->alloc(&r.other, COPY_BYTES) == 0 &&
                    cu->alloc_host(&r.host, COPY_BYTES) == 0;
    if (!is_ready) {
        FINDING(f, FOUND_LACK, name, "too little memory is free to measure copies");
    } else {
        double in = speed(&r, copy_in), out = speed(&r, copy_out), on = speed(&r, copy_on);
        double full = link_speed(gen, width);
        bool is_slow = full > 0 && in < full / 3;
        const char *remedy = show_printf("the link allows %.0f GB/s: see whether others use it, "
                                         "and the slot and NUMA node of the card",
                                         full);
        finding_add(f, is_slow ? FOUND_TROUBLE : FOUND_OK, name, 0, is_slow ? remedy : NULL,
                    "PCIe gen %u x%u: %.1f GB/s to the GPU, %.1f GB/s back; its memory: %.0f GB/s",
                    gen, width, in, out, 2 * on);
    }
    cu->free(r.device);
    cu->free(r.other);
    if (r.host != NULL) cu->free_host(r.host);
    cu->set_current(NULL);
    cu->release(device);
}

static void ask_device(findings *f, const cuda_driver *cu, const nvml *m, int i) {
    const char *name = show_printf("cuda:%d", i);
    char pci[32] = "";
    void *device = NULL;
    unsigned gen = 0, width = 0;
    int is_active = 0, n_links = 0;
    bool has_nvml = m != NULL && cu->pci(pci, sizeof pci, i) == 0 && m->by_pci(pci, &device) == 0;
    if (has_nvml) {
        ask_clocks(f, m, device, name);
        ask_errors(f, m, device, name);
        m->pcie_gen(device, &gen);
        m->pcie_width(device, &width);
        for (unsigned link = 0; link < 18; link++)
            n_links += m->nvlink(device, link, &is_active) == 0 && is_active != 0;
        if (n_links > 0) FINDING(f, FOUND_OK, name, "%d NVLinks are up", n_links);
    }
    ask_bandwidth(f, cu, i, name, gen, width);
}

/* Between the first two GPUs: that says how the machine is wired. */
static void ask_peers(findings *f, const cuda_driver *cu, int n) {
    void *context[2] = {NULL, NULL};
    address memory[2] = {0, 0};
    int can = 0;
    if (n < 2) return;
    cu->can_access(&can, 0, 1);
    bool is_ready = true;
    for (int i = 0; i < 2 && is_ready; i++)
        is_ready = cu->retain(&context[i], i) == 0 && cu->set_current(context[i]) == 0 &&
                   cu->alloc(&memory[i], COPY_BYTES) == 0;
    uint64_t start = clock_ns();
    int n_copies = 0;
    while (is_ready && n_copies < 64 && clock_ns() - start < COPY_MS * 1000000ull &&
           cu->copy_peer(memory[1], context[1], memory[0], context[0], COPY_BYTES) == 0 &&
           cu->synchronize() == 0)
        n_copies++;
    double rate = (double)n_copies * COPY_BYTES / (double)(clock_ns() - start);
    finding_add(f, can != 0 ? FOUND_OK : FOUND_LACK, "peers", 0,
                can != 0 ? NULL
                         : "direct access needs NVLink, or PCIe without IOMMU and ACS between them",
                "cuda:0 to cuda:1: %.1f GB/s, %s", rate,
                can != 0 ? "directly" : "through memory of the host");
    for (int i = 0; i < 2; i++) {
        if (context[i] == NULL) continue;
        cu->set_current(context[i]);
        cu->free(memory[i]);
        cu->release(i);
    }
    cu->set_current(NULL);
}

static status drop(void *ctx, const gpu_record *r) {
    return OK;
}

/* CUPTI is started and stopped; what it says is what `hstu profile` would say. */
static void ask_cupti(findings *f) {
    const cupti_sink to = {NULL, drop};
    uint64_t n_lost;
    if (cupti_start(&to, true)) {
        (void)cupti_stop(&n_lost);
        FINDING(f, FOUND_OK, "CUPTI", "records kernels: 'hstu profile' on a GPU");
    } else {
        FINDING(f, FOUND_LACK, "CUPTI", "'hstu profile' sees no kernels: %s", cupti_reason());
    }
}

/* The library of matrix products, also where Python's packages have it. */
static void ask_cublas(findings *f) {
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    static const char name[] = "cuBLASLt", adds[] = "matrix products on a GPU";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        void *library = library_find(files[i], show_printf("nvidia/*/lib/%s", files[i]));
        if (library == NULL) continue;
        size_t (*version)(void);
        *(void **)&version = dlsym(library, "cublasLtGetVersion");
        size_t v = version != NULL ? version() : 0;
        if (version != NULL)
            FINDING(f, FOUND_OK, name, "%zu.%zu.%zu: %s", v / 10000, v / 100 % 100, v % 100, adds);
        dlclose(library);
        return;
    }
    finding_add(f, FOUND_LACK, name, 0,
                "install NVIDIA's CUDA toolkit or 'pip install nvidia-cublas', or add its folder "
                "to LD_LIBRARY_PATH",
                "not found; it adds %s", adds);
}

/* Drivers run programs of their own CUDA version and older ones. */
static void ask_versions(findings *f, const cuda_driver *cu, const nvml *m) {
    int version = 0;
    char text[96] = "unknown";
    cu->version(&version);
    if (m != NULL) m->driver(text, sizeof text);
#ifdef HSTU_HAS_CUDA
    const char *remedy = NULL;
#else
    const char *remedy = "this build is without CUDA: " DOCTOR_MAKE "put nvcc on PATH, then make";
#endif
    finding_add(f, remedy == NULL ? FOUND_OK : FOUND_LACK, "driver", 0, remedy,
                "%s, for programs of up to CUDA %d.%d", text, version / 1000, version % 1000 / 10);
    if (file_exists("/tmp/nvidia-mps/control"))
        FINDING(f, FOUND_OK, "MPS", "runs: processes share the GPU");
}

void doctor_ask_gpus(findings *f) {
    cuda_driver cu;
    nvml m;
    const char *why;
    int n = 0;
    f->section = SECTION_GPU;
    bool has_device = file_exists("/dev/nvidia0");
    if (!load_driver(&cu, &why)) {
        if (has_device)
            finding_add(f, FOUND_TROUBLE, "driver", 0,
                        "install the driver's libraries of the same version; in a container use "
                        "--gpus all (NVIDIA container toolkit)",
                        "/dev/nvidia0 is there, but %s", why);
        return;
    }
    bool has_nvml = load_nvml(&m);
    int error = cu.init(0);
    if (error == 0) cu.count(&n);
    ask_versions(f, &cu, has_nvml ? &m : NULL);
    if (error != 0 || n == 0)
        finding_add(f, FOUND_TROUBLE, "driver", 0,
                    "nvidia-smi says more; after an update of the driver, restart the machine",
                    "it gives no GPU (cuInit: error %d)", error);
    for (int i = 0; i < n && i < 16; i++)
        ask_device(f, &cu, has_nvml ? &m : NULL, i);
    ask_peers(f, &cu, n);
    f->section = SECTION_LIBRARIES;
    ask_cublas(f);
    ask_cupti(f);
    if (has_nvml) m.stop();
}
