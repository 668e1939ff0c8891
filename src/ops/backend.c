/* What backends share: opening one by name, reading activations, checks of arguments. */
#include "base/half.h"
#include "ops/device.h"
#include "ops/ops.h"
#include "ops/table.h"

void backend_destroy(backend *be) {
    if (be != NULL) be->destroy(be);
}

/* Two-byte elements are widened in place, from the last to the first. */
status backend_read_act(backend *be, float *to_host, const void *from, size_t n) {
    TRY(be->ops->copy_out(be, to_host, from, n * act_bytes(be->act)));
    for (size_t i = n; be->act != ACT_F32 && i-- > 0;) {
        uint16_t x;
        memcpy(&x, (const char *)to_host + i * sizeof x, sizeof x);
        to_host[i] = be->act == ACT_BF16 ? half_bf16_to_float(x) : half_f16_to_float(x);
    }
    return OK;
}

status attn_args_check(const attn_args *a) {
    if (a->n_heads < 1 || a->dim_qk < 1 || a->dim_v < 1)
        return fail(ERR_USAGE,
                    "attention: %d heads of dimension %d and %d; each must be at least 1",
                    a->n_heads, a->dim_qk, a->dim_v);
    if (a->pages.table != NULL && (a->pages.page_len < 1 || a->func != NULL || a->dq != NULL))
        return fail(ERR_USAGE, "attention: keys in pages are for the forward pass, without func");
    if (a->func != NULL && (a->n_func < 1 || a->n_func % 2 == 0))
        return fail(ERR_USAGE, "attention: n_func is %d; it must be odd", a->n_func);
    if (a->n_targets != NULL && a->target_group < 1)
        return fail(ERR_USAGE, "attention: target_group is %d; it must be at least 1",
                    a->target_group);
    if (a->bias == BIAS_TIME && a->bias_len < a->max_len_k)
        return fail(ERR_USAGE,
                    "attention: the position bias is made for sequences of %d, but they may have "
                    "%d; raise bias_len",
                    a->bias_len, a->max_len_k);
    if (a->bias == BIAS_TABLE &&
        (a->table_len < a->max_len_k || (a->table_heads != 1 && a->table_heads != a->n_heads)))
        return fail(ERR_USAGE,
                    "attention: a bias table of %d heads and length %d does not fit %d heads and "
                    "length %d",
                    a->table_heads, a->table_len, a->n_heads, a->max_len_k);
    return OK;
}

status attn_channels_args_check(const attn_channels_args *a) {
    const attn_args *of = &a->of;
    if (of->bias != BIAS_TIME || of->func != NULL || of->gate != NULL)
        return fail(ERR_USAGE, "attention: channels need a time bias, no func and no gate");
    return attn_args_check(of);
}

status softmax_attn_args_check(const softmax_attn_args *a) {
    if (a->n_heads < 1 || a->dim < 1 || a->dim > SOFTMAX_ATTN_MAX_DIM)
        return fail(ERR_USAGE,
                    "softmax attention: %d heads of dimension %d; at least 1 of dimension 1 to %d",
                    a->n_heads, a->dim, SOFTMAX_ATTN_MAX_DIM);
    if (!(a->silu_scale >= 0 && isfinite(a->silu_scale)))
        return fail(ERR_USAGE, "softmax attention: silu_scale is %g; 0 for a softmax, or positive",
                    (double)a->silu_scale);
    if (!mask_rule_is_span(&a->mask.rule) && a->mask.first == NULL && a->n_sequences > 0)
        return fail(ERR_USAGE,
                    "softmax attention: this kind of mask needs lists of tiles (mask_batch)");
    return OK;
}

status head_by_steps(backend *be, const head_args *a) {
    gather_args choice = {.n = a->n,
                          .dim = a->dim,
                          .is_act = true,
                          .table = (const float *)a->x,
                          .index = a->index,
                          .scale = 1,
                          .y = a->chosen};
    l2_args l2 = {.n = a->n,
                  .dim = a->dim,
                  .eps = a->eps,
                  .x = a->index != NULL ? a->chosen : a->x,
                  .y = a->normed,
                  .scale = a->scale};
    if (a->index != NULL) TRY(be->ops->gather(be, &choice));
    TRY(be->ops->l2_fwd(be, &l2));
    TRY(be->ops->linear_packed(be, &a->one));
    return be->ops->linear_packed(be, &a->two);
}

/* The sum of eight uniform integers below 2^16, doubled, has the variance 4 * 8 (2^32 - 1) / 12. */
double table_first_unit(first_kind kind, double scale) {
    if (kind == FIRST_UNIFORM) return scale / 16777216.0;
    if (kind == FIRST_NORMAL) return scale / sqrt(8 * 4294967295.0 / 3);
    return scale;
}

table_init_args table_place_init(const table_place_args *a) {
    table_init_args init = *a->init;
    init.n = a->n;
    init.n_real = a->n_real;
    init.slot = a->slot;
    init.only = a->is_new;
    init.keys = a->keys;
    return init;
}

table_rows_args table_place_write(const table_place_args *a) {
    table_rows_args write = *a->write;
    write.n = a->n;
    write.n_real = a->n_real;
    write.slot = a->slot;
    write.only = NULL;
    return write;
}

/* A build without CUDA has no devices; with CUDA these functions are in src/cuda/core. */
#ifndef HSTU_HAS_CUDA
status backend_create_cuda(backend **out, const cuda_options *options) {
    *out = NULL;
    return fail(ERR_UNSUPPORTED, "this build is without CUDA; put nvcc on PATH and run make");
}

status backend_visit_cuda(backend *be, const cuda_visit *visit) {
    return fail(ERR_UNSUPPORTED, "%s is not a GPU", be->name);
}

status device_list(device_info *out, int max, int *n) {
    *n = 0;
    return OK;
}

void device_driver_ask(device_driver *out) {
    *out = (device_driver){0};
    snprintf(out->reason, sizeof out->reason, "this build is without CUDA");
}
#endif

enum { MAX_DEVICES = 64 };

/* "NVIDIA H200" is an H200 to its users. */
static const char *short_name(const device_info *d) {
    return strncmp(d->name, "NVIDIA ", 7) == 0 ? d->name + 7 : d->name;
}

static status open_gpu(backend **out, const device_info *d, int index, bool is_deterministic) {
    cuda_options o = {.device = index, .is_deterministic = is_deterministic};
    if (d->sm < DEVICE_MIN_SM)
        return fail(
            ERR_DEVICE,
            "[GPU Check] Detected %s GPU (SM %d.%d): SM 8.0 or newer is needed (A100, H100, "
            "...); use --device cpu",
            short_name(d), d->sm / 10, d->sm % 10);
    return backend_create_cuda(out, &o);
}

/* cuda or cuda:N. */
static status open_named_gpu(backend **out, const char *name, bool is_deterministic) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n, index = 0;
    char end;
    if (strcmp(name, "cuda") != 0 &&
        (sscanf(name, "cuda:%d%c", &index, &end) != 1 || index < 0 || name[5] == '+'))
        return fail(ERR_USAGE, "the devices are auto, cpu, cuda and cuda:N");
    TRY(device_list(device, MAX_DEVICES, &n));
    device_driver_ask(&driver);
    if (n == 0)
        return fail(ERR_DEVICE, "there is no GPU to use (%s); use --device cpu", driver.reason);
    if (index >= n)
        return fail(ERR_DEVICE,
                    "this machine has %d GPU%s, cuda:0%s; use one that is there, or "
                    "use --device cpu",
                    n, n == 1 ? "" : "s", n == 1 ? " alone" : " and on");
    return open_gpu(out, &device[index], index, is_deterministic);
}

/* The first usable GPU; else the CPU, and why. */
static status open_any(backend **out, pool *workers, bool is_deterministic) {
    device_info device[MAX_DEVICES];
    device_driver driver;
    int n;
    TRY(device_list(device, MAX_DEVICES, &n));
    for (int i = 0; i < n; i++)
        if (device[i].sm >= DEVICE_MIN_SM) return open_gpu(out, &device[i], i, is_deterministic);
    device_driver_ask(&driver);
    if (driver.runtime_version != 0) /* else the build is without CUDA: nothing was looked for */
        log_info("[GPU Check] no GPU to use (%s); computing on the CPU",
                 n > 0 ? "those there are older than SM 8.0" : driver.reason);
    return backend_create_cpu(out, workers);
}

status backend_open(backend **out, pool *workers, const char *device, bool is_deterministic) {
    *out = NULL;
    if (strcmp(device, "cpu") == 0) return backend_create_cpu(out, workers);
    if (strcmp(device, "auto") == 0) return open_any(out, workers, is_deterministic);
    return open_named_gpu(out, device, is_deterministic);
}
