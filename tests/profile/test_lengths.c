/* The work of attention on a GPU, whose lengths only the host that copied them knows. */
#include "profile/lengths.h"

#include "profile/links.h"
#include "profile/traced.h"
#include "test.h"

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
        backend cpu = {.is_host = true, .name = "cpu"};
        CHECK_EQ(work_pairs_answer(&ask), work_pairs_attn(&cpu, &a));
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
    CHECK_OK(recorder_init(&r, &all));
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
    CHECK_OK(links_resolve(&r));
    CHECK_EQ(r.spans[9].flop, 21 * of_pair);
    CHECK(r.spans[9].moved > 0);
    CHECK_EQ(r.spans[10].flop, 0);
    CHECK(r.spans[9].has_work && r.spans[10].has_work);
    backend_destroy(be);
    recorder_fini(&r);
}
