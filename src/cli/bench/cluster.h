/* What `hstu bench cluster` computes: the time of a training step on G GPUs, predicted from what
 * one GPU was measured to do, the sizes of the messages and an alpha-beta model of NCCL.
 *
 *     t(G) = the slowest rank's computing + fixed + communication that is not hidden
 *
 * Ranks are drawn: each gets a batch of lengths as the config draws them, divided by a balancer,
 * its FLOPs at the measured speed, and a speed of its own (`spread`).  A message of S bytes costs
 * a + S / b, with NCCL's own constants (src/graph/tuning.cc) for every algorithm and protocol, of
 * which the fastest is taken, as NCCL does.  Nothing here measures; one thread. */
#pragma once

#include "config/config.h"

enum { CLUSTER_MAX_GPUS = 1 << 14 };

/* The links of a cluster; bandwidths in bytes a second and direction, as programs get them. */
typedef struct cluster_links {
    const char *name, *what;
    int n_node;      /* GPUs of a node */
    double gpu_link; /* of a GPU to the others of its node */
    double nvls;     /* of an all-reduce in the switch, bytes reduced a second; 0: none */
    double nic;      /* of a GPU to other nodes */
    bool is_one_gpu; /* all ranks share one GPU, its speed and gpu_link: for tests */
} cluster_links;

/* The profiles: NULL beyond the last. */
const cluster_links *cluster_profile(int i);

/* Seconds of an all-reduce of `bytes` on n GPUs; *how, where it is not NULL, names the algorithm.
 */
double cluster_all_reduce(const cluster_links *l, int n, double bytes, const char **how);
/* Seconds of an all-to-all in which each GPU has `bytes` for all GPUs together, itself included. */
double cluster_all_to_all(const cluster_links *l, int n, double bytes);

typedef enum { LENGTHS_FIXED, LENGTHS_UNIFORM, LENGTHS_ZIPF } cluster_lengths;
typedef enum { BALANCE_NONE, BALANCE_EQUAL, BALANCE_LPT } cluster_balance;

/* The work of a rank and its messages.  n_context contextual tokens a user. */
typedef struct cluster_work {
    const config *c;
    int64_t batch, max_length; /* users a rank, events of the longest user */
    int32_t n_context;
    cluster_lengths lengths;
    double length_alpha; /* zipf, longer ones become max_length */
    double id_alpha;     /* zipf; at most 1: uniform */
    int64_t n_ids;       /* that can be drawn */
    double dense_bytes, row_bytes;
} cluster_work;

/* From a config, for training. */
status cluster_work_of(const config *c, cluster_work *out);
/* Ids of n draws that differ, on average. */
double cluster_unique(double n, double alpha, double n_ids);

typedef struct cluster_rank {
    double flops;   /* a second, of a GPU that computes; layers only, as bench train counts */
    double fixed_s; /* of a step, whatever the batch: launches, waits for the host */
    double spread;  /* standard deviation of the ranks' speed, relative */
    bool overlaps;  /* gradients are reduced layer by layer during the backward pass */
    cluster_balance balance;
} cluster_rank;

typedef struct cluster_row {
    int n_gpus;
    double step_s;
    double work;       /* mean FLOPs of a rank and step */
    double tokens;     /* mean tokens of a rank and step */
    double compute_s;  /* mean of the ranks */
    double wait_s;     /* of a mean rank for the slowest */
    double balance;    /* mean work / largest, without the spread */
    double dense_s;    /* the all-reduce, and */
    double exposed_s;  /* what of it is not hidden */
    double rows_s;     /* rows and their gradients, exposed */
    double small_s;    /* token counts, exposed */
    double unique_ids; /* of a rank */
    double efficiency; /* FLOP/s a GPU, relative to one GPU */
    const char *how;   /* of the all-reduce */
    const char *limit; /* the largest loss */
} cluster_row;

/* The mean of some steps on n_gpus GPUs. */
status cluster_predict(const cluster_work *w, const cluster_rank *r, const cluster_links *l,
                       int n_gpus, cluster_row *out);

/* A published figure and the model's. */
typedef struct cluster_check {
    const char *what, *unit;
    double published, model;
} cluster_check;
enum { CLUSTER_CHECKS = 3 };

/* NVIDIA's figures on 16 H100 from the other figures of the same publication; NAN where the file of
 * figures is missing. */
status cluster_published(double spread, cluster_check out[CLUSTER_CHECKS]);
