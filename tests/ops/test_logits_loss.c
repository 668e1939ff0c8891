#include "dense_test.h"
#include "format/safetensors.h"

enum { MAX_LAYERS = 3, MAX_N = 64 * 64 };

/* got against the golden tensor, by the rule of the golden files: the largest error over the
 * largest number.  Where products round, the errors of three layers add up. */
static void check_golden(const st_file *f, const char *name, const float *got, double limit) {
    const st_tensor *t;
    double worst = 0;
    CHECK_OK(st_get(f, name, ST_F64, &t));
    const double *want = t->data;
    for (int64_t i = 0; i < t->n; i++)
        worst = fabs(got[i] - want[i]) > worst ? fabs(got[i] - want[i]) : worst;
    if (test_on.p != PRECISION_F32) limit = 8 * precision_unit(test_on.p);
    if (!(worst <= limit * max_of(want, t->n)))
        FAIL_TEST("%s is off by %g", name, worst / max_of(want, t->n));
}

/* An MLP as a chain of linear ops; y of a layer is x of the next, and so for the gradients. */
typedef struct mlp {
    int n_layers;
    linear_args layers[MAX_LAYERS];
    float z[MAX_LAYERS][MAX_N], y[MAX_LAYERS][MAX_N], d[MAX_LAYERS + 1][MAX_N];
    float dw[MAX_LAYERS][MAX_N], dbias[MAX_LAYERS][64];
} mlp;

static void load_mlp(const st_file *f, mlp *m) {
    const st_tensor *x, *w, *bias;
    epilogue inner =
        strcmp(st_metadata(f, "activation"), "gelu") == 0 ? EPILOGUE_GELU : EPILOGUE_RELU;
    CHECK_OK(st_get(f, "x", ST_F32, &x));
    for (m->n_layers = 0; m->n_layers < MAX_LAYERS; m->n_layers++) {
        int l = m->n_layers;
        char name[64];
        snprintf(name, sizeof name, "w.mlp.%d.weight", 2 * l);
        if ((w = st_find(f, name)) == NULL) break;
        snprintf(name, sizeof name, "w.mlp.%d.bias", 2 * l);
        bias = st_find(f, name);
        m->layers[l] = (linear_args){.n = x->shape[0],
                                     .n_in = (int32_t)w->shape[1],
                                     .n_out = (int32_t)w->shape[0],
                                     .is_transposed = true,
                                     .f = inner,
                                     .x = l == 0 ? x->data : m->y[l - 1],
                                     .w = w->data,
                                     .bias = bias ? bias->data : NULL,
                                     .z = m->z[l],
                                     .y = m->y[l],
                                     .dy = m->d[l + 1],
                                     .dx = m->d[l],
                                     .dw = m->dw[l],
                                     .dbias = bias ? m->dbias[l] : NULL};
    }
    m->layers[m->n_layers - 1].f = EPILOGUE_NONE;
}

/* In another precision a unit near 0 may switch; the golden program has limits for that. */
static void check_gradients(const st_file *f, const mlp *m) {
    char name[64];
    if (test_on.p != PRECISION_F32) return;
    check_golden(f, "grad.x", m->d[0], 1e-5);
    for (int l = 0; l < m->n_layers; l++) {
        snprintf(name, sizeof name, "grad.mlp.%d.weight", 2 * l);
        check_golden(f, name, m->dw[l], 1e-5);
        snprintf(name, sizeof name, "grad.mlp.%d.bias", 2 * l);
        if (m->layers[l].bias != NULL) check_golden(f, name, m->dbias[l], 1e-5);
    }
}

static void check_file(backend *be, const char *path) {
    static mlp m;
    static int32_t label[64];
    static float losses[MAX_N], dlogits[MAX_N];
    st_file *f;
    const st_tensor *labels;
    double loss = 0;
    memset(&m, 0, sizeof m);
    CHECK_OK(st_open(&f, test_shared(path)));
    CHECK_OK(st_get(f, "labels", ST_I64, &labels));
    for (int64_t i = 0; i < labels->n; i++)
        label[i] = (int32_t)((const int64_t *)labels->data)[i];
    load_mlp(f, &m);
    CHECK(m.n_layers >= 2);
    float grad_scale = 1 / (float)labels->n;
    for (int l = 0; l < m.n_layers; l++)
        CHECK_OK(be->ops->linear_fwd(be, &m.layers[l]));
    check_golden(f, "logits", m.y[m.n_layers - 1], 1e-6);
    logits_loss_args a = {.n = labels->n,
                          .n_columns = m.layers[m.n_layers - 1].n_out,
                          .is_bits = strcmp(st_metadata(f, "kind"), "multitask_bce") == 0,
                          .logits = m.y[m.n_layers - 1],
                          .label = label,
                          .grad_scale = &grad_scale,
                          .losses = losses,
                          .loss = &loss,
                          .dlogits = dlogits};
    CHECK_OK(be->ops->logits_loss(be, &a));
    check_golden(f, "losses", losses, 1e-6);
    float mean = (float)(loss / (double)labels->n);
    check_golden(f, "loss", &mean, 1e-6);
    check_golden(f, "grad.logits", dlogits, 2e-6);
    memcpy(m.d[m.n_layers], dlogits, sizeof dlogits);
    for (int l = m.n_layers; l-- > 0;)
        CHECK_OK(be->ops->linear_bwd(be, &m.layers[l]));
    check_gradients(f, &m);
    st_close(f);
}

TEST(logits_loss_golden) {
    test_backends t;
    open_backends(&t);
    check_file(t.be[1], "golden/nv_rank_loss_bce8.safetensors");
    check_file(t.be[1], "golden/nv_rank_loss_bce3_gelu.safetensors");
    check_file(t.be[1], "golden/nv_rank_loss_ce10.safetensors");
    close_backends(&t);
}

/* Loss of one row in double, stable because double reaches to e^709. */
static double naive_loss(const logits_loss_args *a, const double *z, int32_t label) {
    double sum = 0;
    for (int32_t k = 0; a->is_bits && k < a->n_columns; k++)
        sum += log1p(exp((label >> k & 1) ? -z[k] : z[k]));
    if (a->is_bits) return sum;
    for (int32_t k = 0; k < a->n_columns; k++)
        sum += exp(z[k] - z[label]);
    return log(sum);
}

static void check_row(const logits_loss_args *a, int64_t n) {
    double z[32] = {0}, plus, minus, row = 0;
    for (int32_t k = 0; k < a->n_columns; k++)
        z[k] = ((const float *)a->logits)[n * a->n_columns + k];
    double want = naive_loss(a, z, a->label[n]);
    for (int32_t k = 0; a->is_bits && k < a->n_columns; k++)
        row += a->losses[n * a->n_columns + k];
    if (!a->is_bits) row = a->losses[n];
    CHECK(fabs(row - want) <= 1e-6 * (1 + fabs(want)));
    for (int32_t k = 0; k < a->n_columns; k++) {
        double at = z[k];
        z[k] = at + 1e-4;
        plus = naive_loss(a, z, a->label[n]);
        z[k] = at - 1e-4;
        minus = naive_loss(a, z, a->label[n]);
        z[k] = at;
        double slope = (plus - minus) / 2e-4 * (double)*a->grad_scale;
        CHECK(fabs(((float *)a->dlogits)[n * a->n_columns + k] - slope) <
              with_rounding(2e-7, slope));
    }
}

static void check_shape(test_backends *t, int64_t n, int32_t n_columns, bool is_bits, float range) {
    static const float grad_scale = 0.125f;
    float *logits = floats(n * n_columns, 1);
    int32_t *label;
    double first = 0, sum = 1;
    CHECK_OK(MEM_NEW(&label, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        label[i] = (int32_t)(i * 7 % (is_bits ? (int64_t)1 << n_columns : n_columns));
    for (int64_t i = 0; i < n * n_columns; i++)
        logits[i] = exact(logits[i] * range);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        float *losses = floats(n * n_columns, 9), *dlogits = copy_floats(logits, n * n_columns);
        double loss = 1, before = 1;
        logits_loss_args a = {.n = n,
                              .n_columns = n_columns,
                              .is_bits = is_bits,
                              .logits = logits,
                              .label = label,
                              .grad_scale = &grad_scale,
                              .losses = losses,
                              .loss = &loss,
                              .dlogits = dlogits};
        CHECK_OK(t->be[b]->ops->logits_loss(t->be[b], &a));
        if (b == 0) first = loss;
        CHECK(loss == first || !test_on.is_deterministic);
        for (int64_t i = 0; b == 0 && i < n; i++)
            check_row(&a, i);
        for (int64_t i = 0; b == 0 && i < (is_bits ? n * n_columns : n); i++)
            sum += losses[i];
        CHECK(fabs(loss - sum) <= 1e-9 * sum);
        /* The same sum where only the loss is wanted, and with the logits overwritten. */
        a.losses = NULL;
        if (n > 0) memcpy(dlogits, logits, (size_t)(n * n_columns) * sizeof *logits);
        a.logits = dlogits;
        a.loss = &before;
        CHECK_OK(t->be[b]->ops->logits_loss(t->be[b], &a));
        CHECK(before == first || !test_on.is_deterministic);
        mem_free(losses);
        mem_free(dlogits);
    }
    mem_free(logits);
    mem_free(label);
}

TEST(logits_loss_against_double) {
    test_backends t;
    open_backends(&t);
    check_shape(&t, 0, 8, true, 1);
    check_shape(&t, 1, 1, true, 1);
    check_shape(&t, 50, 8, true, 3);
    check_shape(&t, 5000, 8, true, 3);
    check_shape(&t, 50, 5, true, 80);
    check_shape(&t, 1, 1, false, 1);
    check_shape(&t, 50, 10, false, 3);
    check_shape(&t, 5000, 10, false, 3);
    check_shape(&t, 50, 31, false, 80);
    close_backends(&t);
}

/* Rows with a negative label only fill the batch up. */
TEST(logits_loss_of_padding_rows) {
    static const float grad_scale = 1;
    test_backends t;
    float logits[] = {1, 2, 3, 4, 5, 6}, losses[6], dlogits[6];
    int32_t label[] = {-1, 1, -7};
    open_backends(&t);
    for (int is_bits = 0; is_bits < 2; is_bits++) {
        double loss = 2, sum = 2;
        logits_loss_args a = {.n = 3,
                              .n_columns = 2,
                              .is_bits = is_bits,
                              .logits = logits,
                              .label = label,
                              .grad_scale = &grad_scale,
                              .losses = losses,
                              .loss = &loss,
                              .dlogits = dlogits};
        CHECK_OK(t.be[1]->ops->logits_loss(t.be[1], &a));
        for (int i = 0; i < (is_bits ? 6 : 3); i++) {
            CHECK((losses[i] != 0) == (is_bits ? i / 2 == 1 : i == 1));
            sum += losses[i];
        }
        for (int i = 0; i < 6; i++)
            CHECK((dlogits[i] != 0) == (i / 2 == 1));
        CHECK(fabs(loss - sum) < 1e-9 * sum);
    }
    close_backends(&t);
}

TEST(logits_loss_refuses_bad_labels) {
    static const float grad_scale = 1;
    test_backends t;
    float logits[33] = {0};
    int32_t label[] = {2};
    double loss = 0;
    logits_loss_args a = {.n = 1,
                          .n_columns = 2,
                          .logits = logits,
                          .label = label,
                          .grad_scale = &grad_scale,
                          .loss = &loss};
    open_backends(&t);
    if (test_on.kind != ON_CUDA) /* a GPU does not check its arguments */
        CHECK_FAILS(t.be[0]->ops->logits_loss(t.be[0], &a), ERR_FORMAT,
                    "row 0 is 2, not a class 0..1");
    a.is_bits = true;
    a.n_columns = 33;
    CHECK_FAILS(t.be[0]->ops->logits_loss(t.be[0], &a), ERR_UNSUPPORTED, "a label has 31 bits");
    close_backends(&t);
}
