/* How a batch is cut, and the subtrees of ranks. */
#include "dist/leaves.h"

#include "oom.h"
#include "test.h"

/* The subtrees of all ranks tile the leaves, are aligned, and as large as they can be. */
TEST(leaves_nodes_tile_the_tree) {
    for (int n_leaves = 1; n_leaves <= MAX_LEAVES; n_leaves *= 2)
        for (int size = 1; size <= 70; size++) {
            int at = 0;
            for (int r = 0; r < size; r++) {
                leaf_node node[MAX_NODES];
                int end, first = leaves_of_rank(n_leaves, r, size, &end);
                int n = leaf_nodes_of_rank(n_leaves, r, size, node);
                CHECK_EQ(first, at);
                for (int i = 0; i < n; i++) {
                    CHECK_EQ(node[i].first, at);
                    CHECK((node[i].n & (node[i].n - 1)) == 0 && at % node[i].n == 0);
                    if (i > 0) CHECK(!leaf_nodes_join(&node[i - 1], &node[i]));
                    at += node[i].n;
                }
                CHECK_EQ(at, end);
            }
            CHECK_EQ(at, n_leaves);
        }
}

TEST(leaves_join_the_halves_of_a_subtree_only) {
    CHECK(leaf_nodes_join(&(leaf_node){0, 1}, &(leaf_node){1, 1}));
    CHECK(leaf_nodes_join(&(leaf_node){4, 2}, &(leaf_node){6, 2}));
    CHECK(!leaf_nodes_join(&(leaf_node){1, 1}, &(leaf_node){2, 1}));
    CHECK(!leaf_nodes_join(&(leaf_node){2, 2}, &(leaf_node){4, 2}));
    CHECK(!leaf_nodes_join(&(leaf_node){0, 2}, &(leaf_node){2, 1}));
    CHECK(!leaf_nodes_join(&(leaf_node){0, 1}, &(leaf_node){2, 1}));
}

enum { USERS = 30, EVENTS = 40, FEATURES = 2 };

typedef struct sample {
    batch b;
    int32_t offsets[USERS + 1], n_targets[USERS];
    uint64_t users[USERS];
    uint32_t item[USERS * EVENTS], context[USERS * FEATURES];
    uint16_t action[USERS * EVENTS];
    int64_t time[USERS * EVENTS];
} sample;

static void sample_make(sample *s, const int32_t *length, int32_t n) {
    s->b = (batch){.n_users = n,
                   .n_context = FEATURES,
                   .offsets = s->offsets,
                   .users = s->users,
                   .n_targets = s->n_targets,
                   .item = s->item,
                   .action = s->action,
                   .time = s->time,
                   .context = s->context,
                   .epoch = 3,
                   .index = 5,
                   .is_last = true};
    s->offsets[0] = 0;
    for (int32_t u = 0; u < n; u++) {
        s->offsets[u + 1] = s->offsets[u] + length[u];
        s->users[u] = 1000 + (uint64_t)u;
        s->n_targets[u] = u % 3;
        for (int f = 0; f < FEATURES; f++)
            s->context[u * FEATURES + f] = (uint32_t)(u * 10 + f);
    }
    s->b.n_tokens = s->offsets[n];
    for (int32_t i = 0; i < s->b.n_tokens; i++) {
        s->item[i] = (uint32_t)i + 1;
        s->action[i] = (uint16_t)(i % 7);
        s->time[i] = i * 1000;
    }
}

/* Every user is in one leaf, with all that is its own, and users keep their order. */
static void check_leaves(leaf_cut *c, const sample *s, int n_leaves) {
    int32_t n_seen = 0;
    leaf_cut_run(c, &s->b);
    for (int leaf = 0; leaf < n_leaves; leaf++) {
        const batch *v = leaf_cut_take(c, &s->b, leaf);
        uint64_t cost = 0;
        CHECK_EQ(v->n_users, leaf_cut_n_users(c, leaf));
        CHECK(v->epoch == 3 && v->index == 5 && v->is_last && v->n_context == FEATURES);
        for (int32_t i = 0; i < v->n_users; i++) {
            int32_t u = (int32_t)v->users[i] - 1000, n = v->offsets[i + 1] - v->offsets[i];
            CHECK(i == 0 || v->users[i] > v->users[i - 1]);
            CHECK_EQ(n, s->offsets[u + 1] - s->offsets[u]);
            CHECK_EQ(v->n_targets[i], s->n_targets[u]);
            CHECK(memcmp(v->context + i * FEATURES, s->context + u * FEATURES,
                         FEATURES * sizeof *v->context) == 0);
            for (int32_t k = 0; k < n; k++) {
                int32_t at = v->offsets[i] + k, from = s->offsets[u] + k;
                CHECK(v->item[at] == s->item[from] && v->action[at] == s->action[from] &&
                      v->time[at] == s->time[from]);
            }
            cost += (uint64_t)n * (uint64_t)(n + 5);
            n_seen++;
        }
        CHECK_EQ(v->n_tokens, v->offsets[v->n_users]);
        CHECK_EQ(leaf_cut_cost(c, leaf), cost);
    }
    CHECK_EQ(n_seen, s->b.n_users);
}

TEST(leaves_cut_a_batch) {
    static sample s;
    leaf_cut *c;
    int32_t length[USERS];
    CHECK_OK(leaf_cut_create(&c, 8, USERS, USERS * EVENTS, 5));
    for (int32_t n = 0; n <= USERS; n += n < 10 ? 1 : 10)
        for (int kind = 0; kind < 4; kind++) {
            for (int32_t u = 0; u < n; u++)
                length[u] = kind == 0 ? 0 : kind == 1 ? 7 : kind == 2 ? u * 11 % 40 : (u == 3) * 40;
            sample_make(&s, length, n);
            check_leaves(c, &s, 8);
        }
    leaf_cut_destroy(c);
    leaf_cut_destroy(NULL);
}

/* The longest first, each to the lightest leaf: worked out by hand for K = 0. */
TEST(leaves_are_balanced) {
    static sample s;
    static const int32_t length[] = {1, 9, 4, 8, 5, 6};
    leaf_cut *c;
    CHECK_OK(leaf_cut_create(&c, 2, USERS, USERS * EVENTS, 0));
    sample_make(&s, length, 6);
    leaf_cut_run(c, &s.b); /* 81 | 64; 36 to the second: 100; 25 to the first: 106; 16: 116; 1 */
    CHECK_EQ(leaf_cut_cost(c, 0), 107);
    CHECK_EQ(leaf_cut_cost(c, 1), 116);
    const batch *v = leaf_cut_take(c, &s.b, 0);
    CHECK(v->n_users == 3 && v->users[0] == 1000 && v->users[1] == 1001 && v->users[2] == 1004);
    leaf_cut_destroy(c);
}

/* 30 | 10 + 10 + 10 + 10, by squares; with room for 43, where each user counts one more, the last
 * one goes to the other leaf. */
TEST(leaves_keep_to_their_room) {
    static sample s;
    static const int32_t length[] = {10, 30, 10, 10, 10};
    static const int64_t room[] = {0, 40, 43}, per_user[] = {0, 0, 1};
    leaf_cut *c;
    CHECK_OK(leaf_cut_create(&c, 2, USERS, USERS * EVENTS, 0));
    sample_make(&s, length, 5);
    for (int i = 0; i < 3; i++) {
        leaf_cut_set_room(c, room[i], per_user[i]);
        leaf_cut_run(c, &s.b);
        CHECK_EQ(leaf_cut_n_users(c, 0), i == 2 ? 2 : 1);
    }
    leaf_cut_destroy(c);
}

/* A share of the largest batch and one user more has always room. */
TEST(leaves_have_room_for_the_largest_batch) {
    static sample s;
    leaf_cut *c;
    int32_t length[USERS];
    for (int n_leaves = 1; n_leaves <= 8; n_leaves++) {
        int64_t room = USERS * EVENTS / n_leaves + EVENTS;
        CHECK_OK(leaf_cut_create(&c, n_leaves, USERS, USERS * EVENTS, 0));
        leaf_cut_set_room(c, room, 0);
        for (int kind = 1; kind <= EVENTS; kind += 3) {
            for (int32_t u = 0; u < USERS; u++)
                length[u] = u % 9 == 0 ? kind : EVENTS;
            sample_make(&s, length, USERS);
            leaf_cut_run(c, &s.b);
            for (int leaf = 0; leaf < n_leaves; leaf++)
                CHECK(leaf_cut_take(c, &s.b, leaf)->n_tokens <= room);
        }
        leaf_cut_destroy(c);
    }
}

/* Users without events are spread, too: no leaf gets them all. */
TEST(leaves_spread_empty_users) {
    static sample s;
    static const int32_t length[8] = {0};
    leaf_cut *c;
    CHECK_OK(leaf_cut_create(&c, 4, USERS, USERS * EVENTS, 1));
    sample_make(&s, length, 8);
    leaf_cut_run(c, &s.b);
    for (int leaf = 0; leaf < 4; leaf++)
        CHECK_EQ(leaf_cut_n_users(c, leaf), 2);
    leaf_cut_destroy(c);
}

static status create(void *ctx) {
    leaf_cut *c;
    (void)ctx;
    status st = leaf_cut_create(&c, 8, USERS, USERS * EVENTS, 5);
    CHECK((st == OK) == (c != NULL));
    leaf_cut_destroy(c);
    return st;
}

TEST(leaves_out_of_memory) {
    CHECK_EQ(oom_at_each_allocation(create, NULL), 10);
}
