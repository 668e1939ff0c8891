/* The golden checker: runs files of reference values through our ops and models.
 *
 * A file's family (its metadata) says what it is; its function reads the given tensors, computes,
 * and compares every expected one.  A tensor that nobody looked at fails the file, so that nothing
 * is left out unnoticed. */
#ifndef HSTU_TESTS_GOLDEN_H
#define HSTU_TESTS_GOLDEN_H

#include "../device.h"
#include "format/safetensors.h"
#include "model/model_int.h"
#include "nn/memory.h"
#include "ops/ops.h"

/* Limits of the README: err = max |got - want| / max |want|.
 *
 * They hold for float32.  In another precision a file is run twice: first by naive code of that
 * precision (the CPU's ops, with activations and operands of products rounded), whose error in each
 * tensor is noted; then on the device, where the error may be twice as large, plus GOLDEN_SLACK
 * units, because in a tensor of few elements the naive error can be small by luck.  For the same
 * reason the naive code runs GOLDEN_DRAWS times, each time with another grid of rounding
 * (mirror_shift_grid), and the largest error counts: for one time bias in float16 eight runs gave
 * 6e-4 to 4e-3.  A tensor that the naive code computes well within the float32 limit is not rounded
 * at all, and keeps that limit. */
#define TOL_OUT  1e-5
#define TOL_GRAD 1e-4

enum { GOLDEN_SLACK = 2, GOLDEN_DRAWS = 4, GOLDEN_CHECKS = 4096 };

/* The naive errors of one file, the largest of all draws, in the order of its checks. */
typedef struct golden_naive {
    bool is_measuring;
    int at; /* the next check */
    double error[GOLDEN_CHECKS];
} golden_naive;

typedef struct golden {
    backend *be;
    nn_memory memory; /* freed after the file */
    st_file *part[2]; /* the file, and that of its gradients or NULL */
    bool *is_used[2]; /* (tensors) */
    char worst[128];  /* the tensor nearest to its limit, or beyond */
    double worst_error, worst_limit;
    golden_naive *naive; /* NULL in float32 */
    double loss_scale;   /* what golden_check_grads divides by; 0: nothing */
} golden;

typedef status (*golden_fn)(golden *g);

status golden_fuxi_layer(golden *g);
status golden_meta_hstu_layer(golden *g);
status golden_meta_model(golden *g); /* HSTU, SASRec and FuXi */
status golden_meta_train_curve(golden *g);
status golden_meta_buckets(golden *g);
status golden_meta_adamw(golden *g);
status golden_meta_eval(golden *g);
status golden_nv_attn(golden *g);
status golden_nv_layer(golden *g);
status golden_nv_preproc(golden *g);
status golden_nv_rank_loss(golden *g);
status golden_nv_retr_loss(golden *g);
status golden_metrics_auc(golden *g);
status golden_loss_full_ce(golden *g);
status golden_loss_logq_inbatch(golden *g);
status golden_loss_logq_global(golden *g);
status golden_loss_gbce(golden *g);
status golden_loss_bce(golden *g);
status golden_mol_sim(golden *g);
status golden_mol_loss(golden *g);

struct mol_config;
status golden_mol_config(golden *g, struct mol_config *c); /* of a file's metadata */

/* A tensor by name, of either part; golden_get fails where there is none. */
const st_tensor *golden_find(golden *g, const char *name);
status golden_get(golden *g, const char *name, const st_tensor **out);

/* A number of the metadata; ERR_FORMAT where it is missing. */
status golden_number(const golden *g, const char *key, double *out);
status golden_int(const golden *g, const char *key, int32_t *out);

/* The element i of a tensor of any type. */
double golden_at(const st_tensor *t, int64_t i);

/* Float32 data on the backend; *out = NULL and OK if `name` is missing and may be. */
status golden_send(golden *g, const char *name, float **out);
/* Whole numbers as int32 or int64 on the backend. */
status golden_send_i32(golden *g, const char *name, int32_t **out);
/* Whole numbers on the host. */
status golden_ints(golden *g, const char *name, int64_t **out, int64_t *n);

status golden_new(golden *g, float **out, int64_t n); /* zeroed, on the backend */
status golden_number_new(golden *g, float x, const float **out);

/* The file's name of a parameter, or the name itself. */
typedef const char *(*golden_namer)(const char *name);
const char *golden_same_name(const char *name);

/* w.NAME into every parameter; grad.NAME, after.NAME against its gradient or value. */
status golden_load_params(golden *g, param_list *l, golden_namer namer);
status golden_check_grads(golden *g, param_list *l, golden_namer namer, double limit);

/* n float32 numbers on the backend against a tensor, relative to its largest number. */
status golden_check(golden *g, const char *name, const void *got, double limit);
/* Like the check above for weights, with absolute errors. bound, if not 0: the limit applies to the
 * mean (square) error, and each weight alone may be off by the bound. */
status golden_check_weights(golden *g, const char *name, const void *got, double limit,
                            double bound);
/* One number of the host against element i; and one that must be equal. */
void golden_check_value(golden *g, const char *name, double got, double want, double limit);
void golden_check_equal(golden *g, const char *name, int64_t got, int64_t want);

#endif
