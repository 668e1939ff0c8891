/* Collectives (ops/comm.h) of one rank, on memory of the device under test. */
#include "ops/comm.h"

#include "device.h"
#include "oom.h"
#include "test.h"

enum { N = 37 };

typedef struct rank {
    backend *be;
    comm *c;
    void *from, *to; /* (N) of 8 bytes each */
} rank;

static void rank_open(rank *r) {
    int64_t host[N];
    for (int i = 0; i < N; i++)
        host[i] = (int64_t)i * 0x123456789abcdef;
    CHECK_OK(test_real_backend(&r->be, NULL));
    CHECK_OK(comm_create_self(&r->c, r->be));
    CHECK(r->c->rank == 0 && r->c->size == 1 && r->c->be == r->be);
    CHECK_OK(r->be->ops->alloc(r->be, &r->from, sizeof host));
    CHECK_OK(r->be->ops->alloc(r->be, &r->to, sizeof host));
    CHECK_OK(r->be->ops->copy_in(r->be, r->from, host, sizeof host));
}

static void rank_close(rank *r) {
    r->be->ops->release(r->be, r->from);
    r->be->ops->release(r->be, r->to);
    comm_destroy(r->c);
    test_real_backend_end(r->be);
}

/* The first n_bytes of memory are the values of rank_open, the rest is zero (or these values too,
 * if is_whole). */
static void check_memory(rank *r, const void *memory, size_t n_bytes, bool is_whole) {
    int64_t want[N], got[N];
    for (int i = 0; i < N; i++)
        want[i] = (int64_t)i * 0x123456789abcdef;
    if (!is_whole) memset((char *)want + n_bytes, 0, sizeof want - n_bytes);
    CHECK_OK(r->be->ops->copy_out(r->be, got, memory, sizeof got));
    CHECK(memcmp(got, want, sizeof got) == 0);
}

/* The sum and the maximum over one rank are its own numbers, bit for bit. */
TEST(comm_self_all_reduce) {
    static const size_t bytes[] = {[COMM_F32] = 4, [COMM_F64] = 8, [COMM_I64] = 8, [COMM_U8] = 1};
    for (int type = COMM_F32; type <= COMM_U8; type++)
        for (int rule = COMM_SUM; rule <= COMM_MAX; rule++)
            for (int n = 0; n <= N; n += N - 1) {
                rank r;
                rank_open(&r);
                all_reduce_args a = {(comm_type)type, (comm_rule)rule, n, r.from, r.to};
                CHECK_EQ(comm_type_bytes(a.type), bytes[type]);
                CHECK_OK(r.c->ops->all_reduce(r.c, &a));
                check_memory(&r, r.to, (size_t)n * bytes[type], false);
                a.to = r.from; /* in place */
                CHECK_OK(r.c->ops->all_reduce(r.c, &a));
                check_memory(&r, r.from, 0, true);
                rank_close(&r);
            }
}

TEST(comm_self_all_to_all) {
    for (int64_t n = 0; n <= 12; n += 6) {
        rank r;
        int64_t other = n + 1;
        rank_open(&r);
        all_to_all_args a = {
            .row_bytes = 20, .n_send = &n, .n_receive = &n, .from = r.from, .to = r.to};
        CHECK_OK(r.c->ops->all_to_all(r.c, &a));
        check_memory(&r, r.to, (size_t)n * 20, false);
        a.n_receive = &other;
        CHECK_FAILS(r.c->ops->all_to_all(r.c, &a), ERR_USAGE, "sends");
        check_memory(&r, r.to, (size_t)n * 20, false);
        check_memory(&r, r.from, 0, true);
        rank_close(&r);
    }
    rank r;
    int64_t none = 0;
    rank_open(&r);
    all_to_all_args a = {.row_bytes = 8, .n_send = &none, .n_receive = &none};
    CHECK_OK(r.c->ops->all_to_all(r.c, &a));
    rank_close(&r);
}

TEST(comm_self_all_gather) {
    for (int64_t n = 0; n <= 12; n += 6) {
        rank r;
        rank_open(&r);
        all_gather_args a = {.row_bytes = 24, .n_rows = &n, .from = r.from, .to = r.to};
        CHECK_OK(r.c->ops->all_gather(r.c, &a));
        check_memory(&r, r.to, (size_t)n * 24, false);
        a.to = r.from; /* in place */
        CHECK_OK(r.c->ops->all_gather(r.c, &a));
        check_memory(&r, r.from, 0, true);
        rank_close(&r);
    }
}

TEST(comm_self_broadcast_and_barrier) {
    rank r;
    rank_open(&r);
    CHECK_OK(r.c->ops->broadcast(r.c, r.from, 8 * N, 0));
    CHECK_OK(r.c->ops->broadcast(r.c, NULL, 0, 0));
    CHECK_FAILS(r.c->ops->broadcast(r.c, r.from, 8 * N, 1), ERR_USAGE, "no rank 1");
    CHECK_FAILS(r.c->ops->broadcast(r.c, r.from, 8 * N, -1), ERR_USAGE, "no rank -1");
    CHECK_OK(r.c->ops->barrier(r.c));
    check_memory(&r, r.from, 0, true);
    rank_close(&r);
    comm_destroy(NULL);
}

static status create(void *ctx) {
    comm *c;
    status st = comm_create_self(&c, ctx);
    CHECK((st == OK) == (c != NULL));
    comm_destroy(c);
    return st;
}

TEST(comm_self_out_of_memory) {
    rank r;
    rank_open(&r);
    CHECK_EQ(oom_at_each_allocation(create, r.be), 1);
    rank_close(&r);
}
