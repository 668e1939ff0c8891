/* Links and the cost of messages: an alpha-beta model with the constants of NCCL's own tuning. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "cli/bench/cluster.h"

static const cluster_links profiles[] = {
    {"nvlink-ndr", "DGX H100 or H200: NVLink 4, a 400 Gb/s NIC a GPU", 8, 371e9, 275e9, 47e9,
     false},
    {"nvlink-hdr", "H100 or H200 with NVLink 4, a 200 Gb/s NIC a GPU", 8, 371e9, 275e9, 23.5e9,
     false},
    {"nvlink5-ndr", "B200: NVLink 5, a 400 Gb/s NIC a GPU", 8, 722e9, 534e9, 47e9, false},
    {"a100-hdr", "A100 with NVLink 3, a 200 Gb/s NIC a GPU", 8, 240e9, 0, 23.5e9, false},
    {"nvlink-roce", "H100 with NVLink 4, four 200 Gb/s NICs for 8 GPUs", 8, 371e9, 275e9, 11.75e9,
     false},
    {"pcie-ethernet", "PCIe 4, one 25 Gb/s NIC for 4 GPUs", 4, 22e9, 0, .73e9, false},
    /* NCCL alone on an H200 with the MPS daemon: 96 GB/s a rank with 4 ranks, 47.5 with 8. */
    {"one-gpu", "ranks that share an H200, inside it (NCCL 2.30.3 or newer, MPS)", 64, 384e9, 0,
     384e9, true},
    /* An all-reduce of 180 MB on 2 ranks took 82 ms. */
    {"one-gpu-sockets", "ranks that share an H200, over sockets (MPS)", 1, 384e9, 0, 2.19e9, true},
};
enum { N_PROFILES = sizeof profiles / sizeof *profiles };

const cluster_links *cluster_profile(int i) {
    return i >= 0 && i < N_PROFILES ? &profiles[i] : NULL;
}

status cluster_find_profile(const char *name, const cluster_links **out) {
    const char *names[N_PROFILES];
    for (int i = 0; i < N_PROFILES; i++) {
        names[i] = profiles[i].name;
        if (strcmp(name, names[i]) != 0) continue;
        *out = &profiles[i];
        return OK;
    }
    const char *near = nearest_name(name, names, N_PROFILES);
    return fail(ERR_USAGE, "--profile %.40s is not known%s%s%s", name,
                near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?" : ": 'hstu bench cluster --help' lists them");
}

/* Microseconds of an algorithm: base, a hop inside a node, a hop between nodes; and the share of
 * the bandwidth that the protocol carries. */
typedef struct constants {
    double base, intra, inter, share;
} constants;

/* LL carries 4 of 8 bytes, LL128 120 of 128 and pauses a little. */
static const constants ring[] = {{6.6, 0.6, 2.7, .5}, {14, 1.9, 4, .86}, {8.4, 3.4, 14, 1}};
static const constants tree[] = {{6.8, 0.6, 5, .5}, {14, 1.25, 8.5, .86}, {8.4, 4, 14, .92}};
static const double NVLS_US = 25;

typedef struct shape {
    double n, nodes, intra; /* GPUs, nodes, GPUs of a node */
} shape;

static shape shape_of(const cluster_links *l, int n) {
    double intra = n < l->n_node ? n : l->n_node;
    return (shape){n, ceil(n / intra), intra};
}

static double slower(double a, double b) {
    return a < b ? a : b;
}

/* Every link of the ring carries 2 (n - 1) / n of the bytes; all NICs of a node share the step
 * between nodes. */
static double ring_seconds(const cluster_links *l, shape s, double bytes, const constants *k) {
    double link = s.nodes > 1 ? slower(l->gpu_link, s.intra * l->nic) : l->gpu_link;
    double steps = 2 * (s.n - 1), between = s.nodes > 1 ? 2 * s.nodes : 0;
    double us = k->base + (steps - between) * k->intra + between * k->inter;
    return us * 1e-6 + bytes * 2 * (s.n - 1) / s.n / (link * k->share);
}

/* Up and down: chains in the nodes, a tree of the nodes. */
static double tree_seconds(const cluster_links *l, shape s, double bytes, const constants *k) {
    double link = s.nodes > 1 ? slower(l->gpu_link, s.intra * l->nic) : l->gpu_link;
    double us = k->base + 2 * ((s.intra - 1) * k->intra + ceil(log2(s.nodes)) * k->inter);
    return us * 1e-6 + 2 * bytes / (link * k->share);
}

/* The switch adds inside a node; between nodes a tree, of which an inner node sends twice. */
static double nvls_seconds(const cluster_links *l, shape s, double bytes) {
    double between = s.intra * l->nic / (s.nodes > 2 ? 2 : 1);
    double rate = s.nodes > 1 ? slower(l->nvls, between) : l->nvls;
    double us = NVLS_US + 2 * ceil(log2(s.nodes)) * tree[2].inter;
    return us * 1e-6 + bytes / rate;
}

static void take_faster(double seconds, const char *name, double *best, const char **how) {
    if (!(seconds < *best)) return;
    *best = seconds;
    *how = name;
}

double cluster_all_reduce(const cluster_links *l, int n, double bytes, const char **how) {
    static const char *const names[2][3] = {{"ring, LL", "ring, LL128", "ring, Simple"},
                                            {"tree, LL", "tree, LL128", "tree, Simple"}};
    const char *name = "none";
    double best = INFINITY;
    shape s = shape_of(l, n);
    for (int i = 0; n > 1 && i < 3; i++) {
        take_faster(ring_seconds(l, s, bytes, &ring[i]), names[0][i], &best, &name);
        take_faster(tree_seconds(l, s, bytes, &tree[i]), names[1][i], &best, &name);
    }
    if (n > 1 && l->nvls > 0 && s.intra > 2)
        take_faster(nvls_seconds(l, s, bytes), s.nodes > 1 ? "NVLS tree" : "NVLS", &best, &name);
    if (how != NULL) *how = name;
    return n > 1 ? best : 0;
}

/* Pairs of GPUs, 32 at a time; the parts inside and outside a node travel at the same time. */
double cluster_all_to_all(const cluster_links *l, int n, double bytes) {
    enum { AT_A_TIME = 32 };
    shape s = shape_of(l, n);
    const constants *k = &ring[2];
    if (n <= 1) return 0;
    double inside = bytes * (s.intra - 1) / s.n / l->gpu_link;
    double outside = bytes * (s.n - s.intra) / s.n / l->nic;
    double us = k->base + ceil((s.n - 1) / AT_A_TIME) * (s.nodes > 1 ? k->inter : k->intra);
    return us * 1e-6 + (inside > outside ? inside : outside);
}
