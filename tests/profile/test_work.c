

/* FLOP and bytes of ops, by counting. */
#include "profile/work.h"

#include "base/rng.h"
#include "base/thread.h"
#include "ops/attn_mask.h"
#include "ops/mask_tiles.h"
#include "test.h"

static backend cpu = {.is_host = true, .name = "cpu", .act = ACT_F32},
               gpu = {.name = "cuda:0", .act = ACT_BF16};

TEST(work_of_products) {
    char shape[WORK_SHAPE_BYTES];
    float dx, dw;
    linear_args a = {.n = 10, .n_in = 3, .n_out = 5};
    op_work w = work_of(WORK_linear_fwd, shape, &cpu, &a);
    CHECK_EQ(w.flop, 2 * 10 * 3 * 5);
    CHECK_EQ(w.bytes, 4 * (10 * 3 + 3 * 5 + 10 * 5));
    CHECK_STR(shape, "[10, 3] x [3, 5]");
    a.dx = &dx, a.dw = &dw;
    CHECK_EQ(work_of(WORK_linear_bwd, NULL, &cpu, &a).flop, 2 * 2 * 10 * 3 * 5);
    a.dx = NULL;
    CHECK_EQ(work_of(WORK_linear_bwd, NULL, &cpu, &a).flop, 2 * 10 * 3 * 5);
    /* Products that are part of other ops. */
    double flop = 2 * 10 * 3 * 5, bytes = 2 * 10 * 3 + 4 * 3 * 5 + 2 * 10 * 5;
    linear_packed_args packed = {.layer = a};
    w = work_of(WORK_linear_packed, shape, &gpu, &packed);
    CHECK(w.flop == flop && w.bytes == bytes);
    CHECK_STR(shape, "[10, 3] x [3, 5]");
    linear_norm_args normed = {.linear = packed, .norm = {.n = 10, .dim = 5}};
    w = work_of(WORK_linear_norm, shape, &gpu, &normed);
    CHECK(w.flop == flop && w.bytes == bytes + 3 * 2 * 10 * 5);
    CHECK_STR(shape, "[10, 3] x [3, 5]");
    head_args head = {.one = packed, .two = {.layer = {.n = 10, .n_in = 5, .n_out = 1}}};
    w = work_of(WORK_head_fwd, shape, &gpu, &head);
    CHECK_EQ(w.flop, flop + 2 * 10 * 5);
    CHECK_STR(shape, "[10, 3] x [3, 5]");
    sampled_softmax_args s = {.n = 10, .n_negatives = 3, .dim = 8, .n_rows = 100};
    w = work_of(WORK_sampled_softmax, shape, &gpu, &s);
    CHECK(w.flop == 2 * 40 * 8 && w.bytes == 4 * 40 * 8);
    CHECK_STR(shape, "[10, 8] of 100, 3 negatives");
    graph_attn_args g = {.g = {.n_edges = 50, .rows.n = 7, .columns.n = 9}, .n_heads = 2};
    g.dim_qk = 3, g.dim_v = 5, g.q = g.v = &s;
    w = work_of(WORK_graph_attn_fwd, shape, &gpu, &g);
    CHECK(w.flop == 2 * 100 * 8 && w.bytes == 100 * 8 * (double)act_bytes(gpu.act));
    CHECK_STR(shape, "[7 x 9, 50 edges, 2, 5]");
    CHECK(work_of(WORK_graph_attn_bwd, NULL, &gpu, &g).flop == 2 * 100 * 19);
    s.dquery = &dx;
    w = work_of(WORK_sampled_softmax, NULL, &gpu, &s);
    CHECK(w.flop == 3 * 2 * 40 * 8 && w.bytes == 2 * 4 * 40 * 8);
}

/* The pairs of a causal mask with a window, one by one. */
static double count_pairs(int len_q, int len_k, int left, int right) {
    double n = 0;
    for (int q = 0; q < len_q; q++)
        for (int k = 0; k < len_k; k++) {
            int i = q + len_k - len_q;
            n += (left < 0 || k >= i - left) && (right < 0 || k <= i + right);
        }
    return n;
}

TEST(work_of_attention_counts_pairs) {
    static const int lens[][3] = {{7, 7, -1}, {7, 7, 2}, {7, 7, 20},
                                  {2, 9, -1}, {3, 9, 4}, {1, 1, 0}};
    int32_t offsets[] = {0, 0}, keys[] = {0, 0};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        offsets[1] = lens[i][0], keys[1] = lens[i][1];
        attn_args a = {.n_sequences = 1,
                       .n_heads = 2,
                       .dim_qk = 4,
                       .dim_v = 8,
                       .max_len_q = 100,
                       .max_len_k = 100,
                       .n_rows_q = lens[i][0],
                       .n_rows_k = lens[i][1],
                       .offsets_q = offsets,
                       .offsets_k = keys,
                       .window_left = lens[i][2]};
        double pairs = count_pairs(lens[i][0], lens[i][1], lens[i][2], 0);
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &cpu, &a).flop, pairs * 2 * 2 * (4 + 8));
        CHECK_EQ(work_of(WORK_attn_bwd, NULL, &cpu, &a).flop, pairs * 2 * 2 * (3 * 4 + 2 * 8));
        /* On a GPU the offsets are not read; lengths are known where all are the longest. */
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, 0);
        a.max_len_q = lens[i][0], a.max_len_k = lens[i][1];
        a.offsets_q = a.offsets_k = NULL;
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, pairs * 2 * 2 * (4 + 8));
    }
}

enum { SEQUENCES = 3, MOST_TOKENS = 40, MOST_FUNC = 7 };

/* M[i, j] as ops.h states it. */
static bool is_seen(const attn_args *a, int b, int row, int j, int len_q, int len_k) {
    int i = row + len_k - len_q, c = a->n_contexts != NULL ? a->n_contexts[b] : 0;
    int t = a->n_targets != NULL ? a->n_targets[b] : 0, h = len_k - t;
    if (a->func != NULL) {
        const int32_t *f = a->func + a->offsets_q[b] + row;
        bool sees = j < f[0];
        for (int m = 1; 2 * m < a->n_func; m++)
            sees |= f[(2 * m - 1) * a->func_stride] <= j && j < f[2 * m * a->func_stride];
        return sees;
    }
    bool sees = (a->window_left < 0 || j >= i - a->window_left) &&
                (a->window_right < 0 || j <= i + a->window_right);
    if (i < c && j < h) sees = true;
    if (i >= h && j >= h && j < h + (i - h) / a->target_group * a->target_group) sees = false;
    return sees;
}

static uint32_t drawn(uint32_t *state, uint32_t below) {
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

/* Every mask of the HSTU attention, with delta queries and pages, on the CPU. */
TEST(work_of_attention_under_any_mask) {
    uint32_t state = 5;
    for (int trial = 0; trial < 300; trial++) {
        int32_t q[SEQUENCES + 1] = {0}, k[SEQUENCES + 1] = {0}, paged[SEQUENCES + 1] = {0};
        int32_t contexts[SEQUENCES], targets[SEQUENCES], page = 0;
        int32_t func[MOST_FUNC * SEQUENCES * MOST_TOKENS];
        int kind = trial % 6;
        for (int b = 0; b < SEQUENCES; b++) {
            int32_t len = (int32_t)drawn(&state, MOST_TOKENS), delta = len;
            if (kind != 2 && kind != 3) delta = (int32_t)drawn(&state, (uint32_t)len + 1);
            targets[b] = (int32_t)drawn(&state, (uint32_t)len + 1);
            contexts[b] = (int32_t)drawn(&state, (uint32_t)(len - targets[b]) + 1);
            q[b + 1] = q[b] + delta;
            paged[b + 1] = paged[b] + len;
            k[b + 1] = k[b] + (kind == 5 ? delta : len);
        }
        attn_args a = {.n_sequences = SEQUENCES,
                       .n_heads = 3,
                       .dim_qk = 2,
                       .dim_v = 5,
                       .max_len_q = MOST_TOKENS,
                       .max_len_k = MOST_TOKENS,
                       .n_rows_q = q[SEQUENCES],
                       .n_rows_k = k[SEQUENCES],
                       .offsets_q = q,
                       .offsets_k = k,
                       .window_left = -1,
                       .target_group = 1 + (int32_t)drawn(&state, 4)};
        if (kind == 0) a.window_right = (int32_t)drawn(&state, 9) - 1;
        if (kind == 1) a.window_left = (int32_t)drawn(&state, 9);
        if (kind == 1) a.window_right = (int32_t)drawn(&state, 3) - 1;
        if (kind == 2 || kind == 3) a.n_targets = targets;
        if (kind == 3) a.n_contexts = contexts;
        if (kind == 4) {
            a.func = func, a.n_func = 1 + 2 * (int32_t)drawn(&state, 4);
            a.func_stride = SEQUENCES * MOST_TOKENS;
            for (size_t i = 0; i < sizeof func / sizeof *func; i++)
                func[i] = (int32_t)drawn(&state, MOST_TOKENS + 6) - 3;
        }
        if (kind == 5) a.pages = (attn_pages){.table = &page, .offsets = paged};
        double pairs = 0;
        for (int b = 0; b < SEQUENCES; b++) {
            int len_q = q[b + 1] - q[b], len_k = paged[b + 1] - paged[b];
            for (int row = 0; row < len_q; row++)
                for (int j = 0; j < len_k; j++)
                    pairs += is_seen(&a, b, row, j, len_q, len_k);
        }
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &cpu, &a).flop, pairs * 3 * 2 * (2 + 5));
        CHECK_EQ(work_of(WORK_attn_bwd, NULL, &cpu, &a).flop, pairs * 3 * 2 * (3 * 2 + 2 * 5));
    }
}

static double count_bits(const mask *m, int64_t sequence, int32_t n) {
    uint64_t words[8];
    double count = 0;
    for (int32_t row = 0; row < n; row++) {
        mask_fill_rows(m, sequence, n, row, 1, words, 8);
        for (int32_t j = 0; j < n; j++)
            count += words[j / 64] >> j % 64 & 1;
    }
    return count;
}

/* Every mask of softmax attention, over a jagged batch. */
TEST(work_of_softmax_attention) {
    static const char *const texts[] = {"none",
                                        "causal",
                                        "sliding,window=5",
                                        "sliding,window=70,causal",
                                        "longformer,window=3,global=2",
                                        "bigbird,window=5,global=2,seed=1",
                                        "dilated,window=4,dilation=3",
                                        "strided",
                                        "fixed,causal",
                                        "bits:tests/golden-encoder/bert-1/cases/bits.safetensors"};
    static const int32_t lens[] = {0, 9, 1, 130, 64, 65};
    int32_t few[6];
    pool *p;
    backend *be;
    CHECK_OK(pool_create(&p, 1));
    CHECK_OK(backend_create_cpu(&be, p));
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        mask *m;
        mask_batch *mb;
        int32_t offsets[7] = {0};
        double pairs = 0;
        CHECK_OK(mask_create(&m, texts[t]));
        bool is_file = mask_rule_of(m)->kind == MASK_BITS;
        const int32_t *length = is_file ? few : lens;
        int32_t n = is_file ? 5 : 6;
        for (int32_t b = 0; is_file && b < n; b++)
            few[b] = (int32_t)mask_length(m, b);
        CHECK_OK(mask_batch_create(&mb, be, m, 6));
        CHECK_OK(mask_batch_set(mb, 0, n, length));
        for (int32_t b = 0; b < n; b++) {
            pairs += count_bits(m, b, length[b]);
            offsets[b + 1] = offsets[b] + length[b];
        }
        softmax_attn_args a = {.n_sequences = n,
                               .n_heads = 3,
                               .dim = 4,
                               .max_len = 200,
                               .n_rows = offsets[n],
                               .offsets = offsets,
                               .mask = *mask_batch_view(mb)};
        CHECK(pairs > 0);
        CHECK_EQ(work_of(WORK_softmax_attn_fwd, NULL, &cpu, &a).flop, pairs * 3 * 2 * 2 * 4);
        CHECK_EQ(work_of(WORK_softmax_attn_bwd, NULL, &cpu, &a).flop, pairs * 3 * 5 * 2 * 4);
        CHECK_EQ(work_of(WORK_softmax_attn_fwd, NULL, &cpu, &a).bytes,
                 4.0 * offsets[n] * 3 * 4 * sizeof(float));
        /* On a GPU the lengths are not read: a jagged batch is not known, an even one is. */
        CHECK_EQ(work_of(WORK_softmax_attn_fwd, NULL, &gpu, &a).flop, 0);
        if (!is_file) {
            static const int32_t even[] = {50, 50, 50};
            CHECK_OK(mask_batch_set(mb, 0, 3, even));
            a.n_sequences = 3, a.max_len = 50, a.n_rows = 150, a.offsets = NULL;
            a.mask = *mask_batch_view(mb);
            CHECK_EQ(work_of(WORK_softmax_attn_fwd, NULL, &gpu, &a).flop,
                     3 * count_bits(m, 0, 50) * 3 * 2 * 2 * 4);
        }
        mask_batch_destroy(mb);
        mask_destroy(m);
    }
    backend_destroy(be);
    pool_destroy(p);
}

/* The arrays of a recorded step have more rows than there are tokens; a jagged batch has fewer. */
TEST(work_of_attention_with_padding) {
    attn_args a = {.n_sequences = 32,
                   .n_heads = 1,
                   .dim_qk = 1,
                   .dim_v = 1,
                   .max_len_q = 4099,
                   .max_len_k = 4099,
                   .n_rows_q = 131584,
                   .n_rows_k = 131584,
                   .window_left = -1};
    CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, 32.0 * (4099.0 * 4100 / 2) * 4);
    a.n_rows_q = a.n_rows_k = 131167;
    op_work w = work_of(WORK_attn_fwd, NULL, &gpu, &a);
    CHECK(w.flop == 0 && w.bytes == 0);
    a.n_rows_q = a.n_rows_k = 131168 + 512;
    CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, 0);
}

TEST(work_of_memory_ops) {
    char shape[WORK_SHAPE_BYTES];
    float x[4];
    norm_args n = {.n = 100, .dim = 8};
    residual_norm_args added = {.n = 100, .dim = 8};
    gate_args gate = {.n = 100, .dim = 8};
    gather_args rows = {.n = 100, .dim = 8};
    CHECK_EQ(work_of(WORK_norm_fwd, NULL, &gpu, &n).bytes, 100 * 8 * 2 * 2);
    CHECK_EQ(work_of(WORK_norm_bwd, NULL, &gpu, &n).bytes, 100 * 8 * 2 * 3);
    CHECK_EQ(work_of(WORK_residual_norm, NULL, &gpu, &added).bytes, 100 * 8 * 2 * 3);
    CHECK_EQ(work_of(WORK_gate_fwd, NULL, &gpu, &gate).bytes, 100 * 8 * 2 * 3);
    CHECK_EQ(work_of(WORK_gate_bwd, NULL, &gpu, &gate).bytes, 100 * 8 * 2 * 5);
    CHECK_EQ(work_of(WORK_gather, NULL, &gpu, &rows).bytes, 100 * 8 * (2 + 4));
    rows.is_act = true;
    CHECK_EQ(work_of(WORK_gather, shape, &gpu, &rows).bytes, 100 * 8 * (2 + 2));
    CHECK_STR(shape, "[100, 8]");
    CHECK_EQ(work_of(WORK_copy_out, NULL, &cpu, x, x, sizeof x).bytes, 16);
    CHECK_EQ(work_of(WORK_zero, NULL, &cpu, x, sizeof x).bytes, 16);
    CHECK_EQ(work_of(WORK_copy_in, shape, &cpu, x, x, sizeof x).bytes, 16);
    CHECK_STR(shape, "[16 bytes]");
    CHECK_EQ(work_of(WORK_copy, NULL, &cpu, x, x, sizeof x).bytes, 32);
    update_args u[2] = {{.n = 10, .m = x, .v = x}, {.n = 5}};
    CHECK_EQ(work_of(WORK_update, NULL, &cpu, u, 2).bytes, 4 * (70 + 15));
    op_work none = work_of(WORK_mark, shape, &cpu, (int64_t)4, NULL, 0, NULL);
    CHECK(none.flop == 0 && none.bytes == 0 && shape[0] == '\0');
}

/* The work of attention on a GPU, whose lengths only the host that copied them knows. */

#include "profile/op_timing.h"
#include "profile/recorder.h"

enum { N = 3 };
/* "Device" memory: the host may not read it, so its bytes are never written. */
static char device[4096];
static const int32_t *device_ints(int at) {
    return (const int32_t *)(void *)(device + 4 * at);
}

static pairs_ask causal(int at) {
    pairs_ask a;
    attn_args args = {.n_sequences = N,
                      .offsets_q = device_ints(at),
                      .offsets_k = device_ints(at),
                      .window_left = -1,
                      .target_group = 1};
    work_pairs_ask_attn(&a, &args);
    return a;
}

TEST(lengths_are_known_from_the_second_batch_on) {
    static const int32_t first[8] = {9, 9, 0, 3, 5, 9}, second[8] = {9, 9, 0, 1, 1, 5};
    lengths l = {0};
    pairs_ask ask = causal(2);
    lengths_note_copy(&l, device, first, sizeof first);
    CHECK_EQ(lengths_pairs(&l, &ask), 0);
    lengths_note_copy(&l, device, first, sizeof first);
    CHECK_EQ(lengths_pairs(&l, &ask), 6 + 3 + 10);
    lengths_note_copy(&l, device, second, sizeof second);
    CHECK_EQ(lengths_pairs(&l, &ask), 1 + 0 + 10);
    lengths_note_copy(&l, device + 100, second, sizeof second); /* elsewhere */
    CHECK_EQ(lengths_pairs(&l, &ask), 11);
    lengths_note_copy(&l, device + 12, second, 4); /* a part of it alone */
    CHECK_EQ(lengths_pairs(&l, &ask), 0);
    lengths_note_copy(&l, device, first, sizeof first);
    CHECK_EQ(lengths_pairs(&l, &ask), 19);
    lengths_forget(&l);
    CHECK_EQ(lengths_pairs(&l, &ask), 0);
    static const int32_t nonsense[8] = {9, 9, 0, 3, 1, 9};
    lengths_note_copy(&l, device, nonsense, sizeof nonsense);
    CHECK_EQ(lengths_pairs(&l, &ask), 0);
    lengths_fini(&l);
}

/* More places than are kept: the oldest is forgotten, and comes back. */
TEST(lengths_of_many_places) {
    static int32_t all[512];
    lengths l = {0};
    for (int i = 0; i < 512; i++)
        all[i] = i;
    for (int i = 0; i < 3 * LENGTHS_MAX_PIECES; i++) {
        pairs_ask ask = causal(8 * i);
        CHECK_EQ(lengths_pairs(&l, &ask), 0);
        lengths_note_copy(&l, device, all, sizeof all);
        CHECK_EQ(lengths_pairs(&l, &ask), N); /* lengths of one each */
    }
    lengths_fini(&l);
}

static uint32_t draw(uint32_t below) {
    static uint64_t state = 5;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* Row by row, without a formula. */
static int64_t count_rows(const attn_args *a) {
    int64_t n = 0;
    for (int32_t b = 0; b < a->n_sequences; b++) {
        attn_sequence s = attn_sequence_of(a, b);
        for (int row = 0; row < s.len_q; row++) {
            attn_row_mask m = attn_row_spans(a, &s, row);
            n += m.end0 > m.first0 ? m.end0 - m.first0 : 0;
            n += m.end1 > m.first1 ? m.end1 - m.first1 : 0;
        }
    }
    return n;
}

/* The count by sequences against the count of every row, for masks with contexts, targets and
 * windows. */
TEST(lengths_pairs_are_those_of_the_mask) {
    for (int i = 0; i < 300; i++) {
        int32_t q[N + 1] = {0}, k[N + 1] = {0}, contexts[N], targets[N];
        for (int b = 0; b < N; b++) {
            int len = (int)draw(12), less = (int)draw(3);
            q[b + 1] = q[b] + (len > less ? len - less : len);
            k[b + 1] = k[b] + len;
            targets[b] = (int)draw((uint32_t)(q[b + 1] - q[b]) + 1);
            contexts[b] = (int)draw(3);
        }
        bool has_window = draw(2) == 0, has_targets = draw(2) == 0;
        attn_args a = {.n_sequences = N,
                       .n_heads = 1,
                       .dim_qk = 1,
                       .dim_v = 1,
                       .offsets_q = q,
                       .offsets_k = draw(2) == 0 ? k : q,
                       .window_left = has_window ? 2 : -1,
                       .window_right = has_window ? 1 : 0,
                       .n_contexts = has_targets && draw(2) == 0 ? contexts : NULL,
                       .n_targets = has_targets ? targets : NULL,
                       .target_group = 1 + (int)draw(3)};
        pairs_ask ask;
        work_pairs_ask_attn(&ask, &a);
        CHECK_EQ(work_pairs_answer(&ask), count_rows(&a));
        CHECK_EQ(work_pairs_attn(&cpu, &a), count_rows(&a));
    }
}

/* A backend that does nothing, with the name of a GPU's. */
static record_state answer;
static status do_record(backend *be, uint64_t key, record_state *out) {
    (void)be, (void)key;
    *out = answer;
    return OK;
}
static status do_nothing(backend *be) {
    (void)be;
    return OK;
}
static status do_copy(backend *be, void *to, const void *from, size_t bytes) {
    (void)be, (void)to, (void)from, (void)bytes;
    return OK;
}
static status do_attn(backend *be, const attn_args *a) {
    (void)be, (void)a;
    return OK;
}
static void do_destroy(backend *be) {
    (void)be;
}

static int n_graphs;
static void count_graph(void) {
    n_graphs++;
}

static op_mark marks[8];
static int n_marks;
static void begin(const op_mark *m) {
    marks[n_marks++ % 8] = *m;
}
static void end(void) {
}

TEST(traced_counts_attention_of_jagged_batches) {
    static const ops table = {
        .record = do_record, .record_end = do_nothing, .copy_in = do_copy, .attn_fwd = do_attn};
    static const launch_mark mark = {begin, end};
    backend below = {.name = "cuda", .ops = &table, .destroy = do_destroy}, *be;
    const recorder_schedule all = {0};
    recorder r;
    recorder_init(&r, &all);
    recorder_start(&r);
    const traced_options o = {.recorder = &r, .mark = &mark, .on_graph = count_graph};
    n_graphs = 0;
    CHECK_OK(traced_create(&be, &below, &o));
    n_marks = 0;
    const int32_t short_ones[N + 1] = {0, 2, 4, 6}, long_ones[N + 1] = {0, 4, 5, 9};
    attn_args a = {.n_sequences = N,
                   .n_heads = 2,
                   .dim_qk = 4,
                   .dim_v = 4,
                   .max_len_q = 10,
                   .max_len_k = 10,
                   .n_rows_q = 9,
                   .n_rows_k = 9,
                   .offsets_q = device_ints(0),
                   .offsets_k = device_ints(0),
                   .window_left = -1,
                   .target_group = 1};
    double of_pair = 2 * 2 * (4 + 4);
    /* Run: unknown first, then by the lengths. */
    CHECK_OK(be->ops->copy_in(be, device, short_ones, sizeof short_ones));
    CHECK_OK(be->ops->attn_fwd(be, &a));
    CHECK_EQ(r.spans[1].flop, 0);
    CHECK(!r.spans[1].has_work);
    CHECK_OK(be->ops->copy_in(be, device, short_ones, sizeof short_ones));
    CHECK_OK(be->ops->attn_fwd(be, &a));
    CHECK_EQ(r.spans[3].flop, 9 * of_pair);
    CHECK(r.spans[3].has_work && r.spans[3].moved > 0);
    /* Taken into a graph, which is then replayed with another batch. */
    record_state state;
    answer = RECORD_TAKE;
    CHECK_OK(be->ops->record(be, 77, &state));
    CHECK_OK(be->ops->attn_fwd(be, &a));
    CHECK_EQ(n_graphs, 1);
    op_mark taken = marks[(n_marks - 1) % 8];
    CHECK_EQ(taken.of_pair, of_pair);
    CHECK(taken.name >= 0);
    CHECK_OK(be->ops->record_end(be));
    CHECK_EQ(r.spans[5].pairs, 9);
    CHECK_OK(be->ops->copy_in(be, device, long_ones, sizeof long_ones));
    answer = RECORD_REPLAY;
    CHECK_OK(be->ops->record(be, 77, &state));
    CHECK_OK(be->ops->record_end(be));
    CHECK_EQ(r.spans[7].pairs, 10 + 1 + 10);
    CHECK_OK(be->ops->record(be, 78, &state)); /* a graph that we know nothing of */
    CHECK_OK(be->ops->record_end(be));
    CHECK_EQ(r.spans[8].pairs, 0);
    /* The kernels of the replay: two of one op. */
    for (uint32_t i = 0; i < 2; i++) {
        span kernel = {.kind = SPAN_KERNEL,
                       .start_ns = 1,
                       .end_ns = 2,
                       .correlation = 5,
                       .graph_op = taken.name + 1,
                       .is_first = i == 0,
                       .of_pair = taken.of_pair,
                       .pair_bytes = taken.pair_bytes};
        recorder_add(&r, &kernel, "attn_kernel", NULL);
    }
    span link = {.kind = N_SPAN_KINDS, .correlation = 5, .op = 7};
    recorder_add(&r, &link, "", NULL);
    CHECK_OK(recorder_link(&r));
    CHECK_EQ(r.spans[9].flop, 21 * of_pair);
    CHECK(r.spans[9].moved > 0);
    CHECK_EQ(r.spans[10].flop, 0);
    CHECK(r.spans[9].has_work && r.spans[10].has_work);
    backend_destroy(be);
    recorder_fini(&r);
}
