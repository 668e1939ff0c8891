/* The attention, forward and backward, against the golden vectors. */
#include <dirent.h>

#include "base/mem.h"
#include "base/thread.h"
#include "device.h"
#include "format/safetensors.h"
#include "ops/ops.h"
#include "test.h"

static const st_tensor *tensor(const st_file *f, const char *name, st_dtype dtype) {
    const st_tensor *t;
    CHECK_OK(st_get(f, name, dtype, &t));
    return t;
}

static const void *optional(const st_file *f, const char *name) {
    const st_tensor *t = st_find(f, name);
    return t != NULL ? t->data : NULL;
}

static int32_t number(const st_file *f, const char *key) {
    const char *text = st_metadata(f, key);
    if (text == NULL) FAIL_TEST("%s has no %s", f->path, key);
    return (int32_t)strtol(text, NULL, 10);
}

/* err = max |got - want| / max |want|, at most 1e-5 in float32, as the README of the vectors says.
 * In other precisions the given numbers are rounded too, four factors of each result. */
static void compare(const st_file *f, const char *name, const float *got) {
    const st_tensor *want = st_find(f, name);
    double error = 0.0, largest = 1e-30;
    if (want == NULL) FAIL_TEST("%s has no %s", f->path, name);
    for (int64_t i = 0; i < want->n; i++) {
        double w = want->dtype == ST_F64 ? ((const double *)want->data)[i]
                                         : (double)((const float *)want->data)[i];
        double d = fabs((double)got[i] - w);
        largest = fabs(w) > largest ? fabs(w) : largest;
        error = worse_error(error, d);
    }
    double limit = test_on.p == PRECISION_F32 ? 1e-5 : 4 * precision_unit(test_on.p);
    if (!(error <= limit * largest))
        FAIL_TEST("%s: %s: error %g of %g", f->path, name, error, largest);
}

static float *result(int64_t n) {
    float *memory;
    CHECK_OK(MEM_NEW(&memory, (size_t)n));
    return memory;
}

static attn_args read_args(const st_file *f) {
    const st_tensor *q = tensor(f, "q", ST_F32), *k = tensor(f, "k", ST_F32);
    const st_tensor *rab = st_find(f, "rab");
    attn_args a = {0};
    a.q = q->data;
    a.k = k->data;
    a.v = tensor(f, "v", ST_F32)->data;
    a.dout = tensor(f, "G", ST_F32)->data;
    a.n_heads = (int32_t)q->shape[1];
    a.dim_qk = a.dim_v = (int32_t)q->shape[2];
    a.stride_q = a.stride_k = a.stride_v = a.stride_out = q->shape[1] * q->shape[2];
    a.offsets_q = tensor(f, "cu_seqlens_q", ST_I32)->data;
    a.offsets_k = tensor(f, "cu_seqlens_k", ST_I32)->data;
    a.n_sequences = (int32_t)tensor(f, "cu_seqlens_q", ST_I32)->n - 1;
    a.max_len_q = number(f, "max_seqlen_q");
    a.max_len_k = number(f, "max_seqlen_k");
    a.alpha = (float)atof(st_metadata(f, "alpha"));
    a.scale = 1.0f / (float)number(f, "scaling_seqlen");
    a.window_left = number(f, "window_left");
    a.window_right = number(f, "window_right");
    a.n_contexts = optional(f, "num_contexts");
    a.n_targets = optional(f, "num_targets");
    a.target_group = number(f, "target_group_size");
    a.func = optional(f, "func");
    a.n_func = number(f, "n_func");
    a.func_stride = q->shape[0];
    if (rab != NULL) {
        a.bias = BIAS_TABLE;
        a.table = rab->data;
        a.table_heads = (int32_t)rab->shape[1];
        a.table_len = (int32_t)rab->shape[3];
        a.dtable = result(rab->n);
    }
    a.out = result(q->n);
    a.dq = result(q->n);
    a.dk = result(k->n);
    a.dv = result(k->n);
    return a;
}

static void check_file(backend *be, const char *path) {
    st_file *f;
    CHECK_OK(st_open(&f, path));
    attn_args a = read_args(f);
    CHECK_OK(be->ops->attn_fwd(be, &a));
    CHECK_OK(be->ops->attn_bwd(be, &a));
    compare(f, "out", a.out);
    compare(f, "grad.q", a.dq);
    compare(f, "grad.k", a.dk);
    compare(f, "grad.v", a.dv);
    if (a.dtable != NULL) compare(f, "grad.rab", a.dtable);
    void *owned[] = {a.out, a.dq, a.dk, a.dv, a.dtable};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
    st_close(f);
}

TEST(attn_golden) {
    char folder[2048], path[4096];
    int n_files = 0;
    pool *workers;
    backend *be;
    snprintf(folder, sizeof folder, "%s", test_shared("golden"));
    DIR *dir = opendir(folder);
    CHECK(dir != NULL);
    CHECK_OK(pool_create(&workers, 2));
    CHECK_OK(test_backend(&be, workers));
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (strncmp(entry->d_name, "nv_attn_", 8) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        check_file(be, path);
        n_files++;
    }
    CHECK_EQ(n_files, 29);
    closedir(dir);
    backend_destroy(be);
    pool_destroy(workers);
}
