/* The block of eSASRec against its formulas in double (nn/layer.h); its gradients are checked by
 * differences with those of whole models (gradients_esasrec of model/test_model.c). */
#include "../dense_test.h"
#include "nn/layer.h"

enum { E = 6, H = 2, F = 9, T = 7 };
static const int32_t ends[] = {0, 3, 7};

/* y = x W^T (+ b) of T rows. */
static void times(const double *x, const param *w, const param *b, double *y) {
    int64_t n_out = w->shape[0], n_in = w->shape[1];
    for (int64_t i = 0; i < T * n_out; i++) {
        y[i] = b != NULL ? (double)b->value[i % n_out] : 0;
        for (int64_t k = 0; k < n_in; k++)
            y[i] += x[i / n_out * n_in + k] * (double)w->value[i % n_out * n_in + k];
    }
}

static void norm(const double *x, const param *w, const param *b, double *y) {
    for (int i = 0; i < T; i++) {
        double mean = 0, variance = 0;
        for (int c = 0; c < E; c++)
            mean += x[i * E + c] / E;
        for (int c = 0; c < E; c++)
            variance += (x[i * E + c] - mean) * (x[i * E + c] - mean) / E;
        for (int c = 0; c < E; c++)
            y[i * E + c] =
                (x[i * E + c] - mean) / sqrt(variance + 1e-5) * w->value[c] + b->value[c];
    }
}

/* One row of one head under the causal mask. */
static void attend(const double *qkv, int first, int i, int head, double *out) {
    enum { D = E / H };
    double sum = 0, p[T], row[D] = {0};
    for (int j = first; j <= i; j++) {
        double score = 0;
        for (int d = 0; d < D; d++)
            score += qkv[i * 3 * E + head * D + d] * qkv[j * 3 * E + E + head * D + d];
        sum += p[j] = exp(score / sqrt(D));
    }
    for (int j = first; j <= i; j++)
        for (int d = 0; d < D; d++)
            row[d] += p[j] / sum * qkv[j * 3 * E + 2 * E + head * D + d];
    memcpy(out + i * E + head * D, row, sizeof row);
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* y = x + sigmoid(x G + g) * branch */
static void add(const double *x, const param *w, const param *b, const double *branch, double *y) {
    double gate[T * E];
    times(x, w, b, gate);
    for (int i = 0; i < T * E; i++)
        y[i] = x[i] + sigmoid(gate[i]) * branch[i];
}

static void naive(const ligr_layer *l, const double *x, double *y) {
    double h[T * E], qkv[T * 3 * E], attn[T * E], branch[T * E], z[T * E], a[T * F], b[T * F];
    norm(x, l->norm[0], l->norm_bias[0], h);
    times(h, l->in_proj, l->in_proj_bias, qkv);
    for (int s = 0; s < 2; s++)
        for (int i = ends[s]; i < ends[s + 1]; i++)
            for (int head = 0; head < H; head++)
                attend(qkv, ends[s], i, head, attn);
    times(attn, l->out_proj, l->out_proj_bias, branch);
    add(x, l->gate[0], l->gate_bias[0], branch, z);
    norm(z, l->norm[1], l->norm_bias[1], h);
    times(h, l->ffn.w1, NULL, a);
    times(h, l->ffn.w3, NULL, b);
    for (int i = 0; i < T * F; i++)
        a[i] *= sigmoid(a[i]) * b[i];
    times(a, l->ffn.w2, NULL, branch);
    add(z, l->gate[1], l->gate_bias[1], branch, y);
}

TEST(ligr_block_against_double) {
    layer_config c = {.type = LAYER_LIGR,
                      .ligr = {.dim = E, .n_heads = H, .dim_ffn = F, .eps = 1e-5f}};
    layer l;
    layer_acts acts;
    layer_scratch scratch;
    param_list params;
    nn_memory memory;
    backend *be;
    float *x = floats(T * E, 1), *out = floats(T * E, 2);
    double in[T * E], want[T * E];
    CHECK_OK(test_backend(&be, NULL));
    nn_memory_init(&memory, be);
    nn_room room = {.memory = &memory, .max_tokens = T, .is_training = true};
    sequences s = {.n_sequences = 2, .n_tokens = T, .max_len = 4, .len_bound = 4, .offsets = ends};
    CHECK_OK(param_list_init(&params, &memory, 32));
    CHECK_OK(layer_add_params(&l, &c, &params, &(layer_place){.index = 3}));
    CHECK_STR(params.item[0].name,
              "transformer_layers.transformer_blocks.3.multi_head_attn.in_proj_weight");
    CHECK_EQ(params.n, 15);
    for (int i = 0; i < params.n; i++) {
        float *value = floats(params.item[i].n, 10 + (uint64_t)i);
        memcpy(params.item[i].value, value, sizeof *value * (size_t)params.item[i].n);
        mem_free(value);
    }
    CHECK_OK(l.kind->alloc_scratch(&scratch, &l, &room));
    CHECK_OK(l.kind->alloc(&acts, &l, &scratch, &room));
    CHECK_OK(l.kind->forward(&l, &acts, be, &s, x, out));
    for (int i = 0; i < T * E; i++)
        in[i] = x[i];
    naive(&l.ligr, in, want);
    for (int i = 0; i < T * E; i++)
        CHECK(fabs(out[i] - want[i]) <
              (precision_is_half(test_on.p) ? 0.1 : 1e-2 * (test_on.p == PRECISION_TF32) + 1e-5));
    nn_memory_fini(&memory);
    backend_destroy(be);
    mem_free(x);
    mem_free(out);
}
