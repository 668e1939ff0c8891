/* The softmax attention of hstu.h: what it computes on the CPU, against the naive version, and what
 * it refuses. */
#include "base/rng.h"
#include "cpu/attn_naive.h"
#include "hstu.h"
#include "ops/mask_tiles.h"
#include "test.h"

enum { H = 2, D = 6, B = 3, T = 90, WIDTH = H * D };

static const int32_t lengths[B] = {70, 0, 20}, offsets[B + 1] = {0, 70, 70, 90};

typedef struct arrays {
    float in[4][T * WIDTH], result[4][T * WIDTH], log_sum[T * H];
    double want[4][T * WIDTH];
} arrays;

static hstu_softmax_attn_varlen_args args_of(arrays *x) {
    hstu_softmax_attn_varlen_args a;
    hstu_softmax_attn_varlen_defaults(&a);
    a.dtype = HSTU_FLOAT32;
    a.batch_size = B;
    a.num_heads = H;
    a.dim = D;
    a.total = T;
    a.max_seqlen = 70;
    a.cu_seqlens = offsets;
    a.q = x->in[0];
    a.k = x->in[1];
    a.v = x->in[2];
    a.dout = x->in[3];
    a.out = x->result[0];
    a.dq = x->result[1];
    a.dk = x->result[2];
    a.dv = x->result[3];
    a.log_sum = x->log_sum;
    return a;
}

static void check_mask(const char *text, float silu_scale, int32_t max_seqlen) {
    static arrays x;
    hstu_softmax_attn *attn;
    hstu_softmax_attn_varlen_args a = args_of(&x);
    memset(&x, 0, sizeof x);
    a.silu_scale = silu_scale;
    a.max_seqlen = max_seqlen;
    if (silu_scale != 0) a.log_sum = NULL;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < T * WIDTH; j++)
            x.in[i][j] =
                2 * rng_uniform(
                        rng_draw64(rng_make_key(1, RNG_TEST), (uint64_t)j, (uint64_t)i).word[0]) -
                1;
    CHECK_EQ(hstu_softmax_attn_create(&attn, -1, text), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_set_lengths(attn, 0, lengths, B, NULL), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_varlen_bwd(attn, &a, NULL), HSTU_OK);
    hstu_softmax_attn_destroy(attn);

    backend *be;
    mask *m;
    mask_batch *masks;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(mask_create(&m, text));
    CHECK_OK(mask_batch_create(&masks, be, m, B));
    CHECK_OK(mask_batch_set(masks, 0, B, lengths));
    softmax_attn_args naive = {.n_sequences = B, .n_heads = H, .dim = D, .max_len = 70};
    naive.offsets = offsets;
    naive.mask = *mask_batch_view(masks);
    naive.q = a.q;
    naive.k = a.k;
    naive.v = a.v;
    naive.dout = a.dout;
    naive.stride_q = naive.stride_k = naive.stride_v = naive.stride_out = WIDTH;
    naive.alpha = 1 / sqrtf(D);
    naive.silu_scale = silu_scale;
    attn_naive_results to = {x.want[0], x.want[1], x.want[2], x.want[3], NULL, NULL, NULL, NULL};
    for (int32_t b = 0; b < B; b++)
        softmax_attn_naive_sequence(&naive, b, NULL, &to);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < T * WIDTH; j++)
            CHECK(fabs((double)x.result[i][j] - x.want[i][j]) < 3e-6);
    mask_batch_destroy(masks);
    mask_destroy(m);
    backend_destroy(be);
}

TEST(api_softmax_computes) {
    check_mask("none", 0, 70);
    check_mask("none", 0, INT32_MAX); /* a bound, not a length */
    check_mask("sliding,window=5,causal", 0, 70);
    check_mask("longformer,window=3,global=1", 0, 70);
    check_mask("strided", 0, 70);
    check_mask("strided", 0, INT32_MAX);
}

TEST(api_softmax_silu) {
    check_mask("causal", .1f, 70);
    check_mask("longformer,window=3,global=1", .1f, 70);
}

static void check_refused(hstu_softmax_attn *attn, const hstu_softmax_attn_varlen_args *a,
                          const char *reason) {
    for (int pass = 0; pass < 2; pass++) {
        hstu_status st = pass == 0 ? hstu_softmax_attn_varlen_fwd(attn, a, NULL)
                                   : hstu_softmax_attn_varlen_bwd(attn, a, NULL);
        CHECK(st != HSTU_OK);
        CHECK_CONTAINS(hstu_error(), reason);
    }
}

#define REFUSED(change, reason)                                                                    \
    do {                                                                                           \
        hstu_softmax_attn_varlen_args a = args_of(&x);                                             \
        change;                                                                                    \
        check_refused(attn, &a, reason);                                                           \
    } while (0)

TEST(api_softmax_refuses) {
    static arrays x;
    hstu_softmax_attn *attn, *listed;
    CHECK_EQ(hstu_softmax_attn_create(&attn, -1, "slding"), HSTU_ERR_USAGE);
    CHECK(attn == NULL);
    CHECK_CONTAINS(hstu_error(), "did you mean 'sliding'?");
    CHECK_EQ(hstu_softmax_attn_create(&attn, -1, NULL), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_create(&listed, -1, "fixed"), HSTU_OK);
    REFUSED(a.dtype = HSTU_BFLOAT16, "the CPU computes in HSTU_FLOAT32");
    REFUSED(a.dtype = (hstu_dtype)7, "dtype is 7");
    REFUSED(a.batch_size = -1, "must not be negative");
    REFUSED(a.dim = 257, "dimension 257");
    REFUSED(a.num_heads = 0, "0 heads");
    REFUSED(a.q = NULL, "q is NULL");
    REFUSED(a.out = NULL, "out is NULL");
    REFUSED(a.cu_seqlens = NULL, "cu_seqlens is NULL");
    REFUSED(a.k = (const char *)a.k + 1, "k is not aligned");
    REFUSED(a.stride_v = 3, "rows are 3 elements apart, but have 12");
    REFUSED(a.max_seqlen = 69, "cu_seqlens is not at 0 .. 70 of 90 rows, with at most 69");
    static const int32_t early[B + 1] = {0, 70, 70, 89}, late[B + 1] = {1, 70, 70, 90};
    REFUSED(a.cu_seqlens = early, "cu_seqlens are rows 0 .. 89; they must cover all 90 rows");
    REFUSED(a.cu_seqlens = late, "cu_seqlens are rows 1 .. 90; they must cover all 90 rows");
    REFUSED(a.alpha = NAN, "alpha is nan");
    hstu_softmax_attn_varlen_args good = args_of(&x);
    check_refused(listed, &good, "hstu_softmax_attn_set_lengths");
    check_refused(NULL, &good, "the hstu_softmax_attn is NULL");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, NULL, 3, NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_softmax_attn_set_lengths(NULL, 0, lengths, 3, NULL), HSTU_ERR_USAGE);
    static const int32_t others[B] = {69, 0, 20}, negative[B] = {70, -1, 20};
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, others, B, NULL), HSTU_OK);
    check_refused(listed, &good, "sequence 0 has 70 rows, but its length was set to 69");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, lengths, B - 1, NULL), HSTU_OK);
    check_refused(listed, &good, "hstu_softmax_attn_set_lengths");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, negative, B, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "length 1 is -1");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, -1, lengths, B, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "the first sequence is -1");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, INT64_MAX - 1, lengths, B, NULL),
             HSTU_ERR_USAGE);
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, INT64_MAX - B, lengths, B, NULL), HSTU_OK);
    good.dv = NULL;
    CHECK_EQ(hstu_softmax_attn_varlen_bwd(attn, &good, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "dv is NULL");
    hstu_softmax_attn_destroy(attn);
    hstu_softmax_attn_destroy(listed);
    hstu_softmax_attn_destroy(NULL);
}
