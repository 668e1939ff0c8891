#include "data/set/balance.h"

#include <assert.h>

/* Greedy first: the longest user not yet placed goes to the group with the least work that still
 * has room.  Then swaps: a user of the heaviest group is exchanged with one of the lightest,
 * choosing the pair that brings the two groups closest together, as long as that helps. */
typedef struct group_state {
    uint64_t work; /* sum of squared lengths */
    int64_t n;     /* members so far */
} group_state;

struct balancer {
    arena memory;                /* of the arrays */
    int64_t max_users, capacity; /* capacity: the most users a group can have */
    int32_t n_groups, max_length;
    int64_t *first;     /* (max_length + 2): counting sort, where each length starts */
    int64_t *order;     /* (max_users): users, longest first */
    group_state *state; /* (n_groups) */
    int64_t *member;    /* (n_groups, capacity): users of a group, longest first */
};

status balancer_create(balancer **out, int64_t max_users, int32_t n_groups, int32_t max_length) {
    balancer *b;
    *out = NULL;
    TRY(MEM_NEW(&b, 1));
    int64_t capacity = (max_users + n_groups - 1) / n_groups;
    *b = (balancer){.max_users = max_users,
                    .capacity = capacity,
                    .n_groups = n_groups,
                    .max_length = max_length};
    status st = ARENA_NEW(&b->memory, &b->first, (size_t)max_length + 2);
    if (st == OK) st = ARENA_NEW(&b->memory, &b->order, (size_t)max_users);
    if (st == OK) st = ARENA_NEW(&b->memory, &b->state, (size_t)n_groups);
    if (st == OK) st = ARENA_NEW(&b->memory, &b->member, (size_t)n_groups * (size_t)capacity);
    return CREATED(st, out, b, balancer_destroy);
}

void balancer_destroy(balancer *b) {
    if (b == NULL) return;
    arena_fini(&b->memory);
    mem_free(b);
}

static uint64_t work_of(int32_t length) {
    return (uint64_t)length * (uint64_t)length;
}

/* A counting sort: lengths are bounded, and unlike qsort it is stable and never allocates. */
static void sort_longest_first(balancer *b, const int32_t *length, int64_t n) {
    for (int32_t l = 0; l < b->max_length + 2; l++)
        b->first[l] = 0;
    for (int64_t i = 0; i < n; i++)
        b->first[b->max_length - length[i] + 1]++;
    for (int32_t l = 0; l < b->max_length + 1; l++)
        b->first[l + 1] += b->first[l];
    for (int64_t i = 0; i < n; i++)
        b->order[b->first[b->max_length - length[i]]++] = i;
}

/* Every group takes n_even users; n_extra of them, whichever come first, take one more. */
static void place_greedily(balancer *b, const int32_t *length, int64_t n) {
    int64_t n_even = n / b->n_groups, n_extra = n % b->n_groups;
    for (int32_t g = 0; g < b->n_groups; g++)
        b->state[g] = (group_state){0};
    for (int64_t i = 0; i < n; i++) {
        int64_t user = b->order[i], most = n_even + (n_extra > 0);
        group_state *least = NULL; /* with room; of those with equal work the first */
        for (group_state *s = b->state; s < b->state + b->n_groups; s++)
            if (s->n < most && (least == NULL || s->work < least->work)) least = s;
        n_extra -= least->n == n_even;
        b->member[(least - b->state) * b->capacity + least->n++] = user;
        least->work += work_of(length[user]);
    }
}

/* Puts `user` at place `at` of a group and moves it until the group is sorted again, longest
 * first. */
static void replace_member(int64_t *member, int64_t n, int64_t at, int64_t user,
                           const int32_t *length) {
    for (; at > 0 && length[member[at - 1]] < length[user]; at--)
        member[at] = member[at - 1];
    for (; at + 1 < n && length[member[at + 1]] > length[user]; at++)
        member[at] = member[at + 1];
    member[at] = user;
}

/* Exchanges one user between the heavier group x and the lighter y: the pair whose difference of
 * work comes nearest to half the gap.  Both are sorted, so one pass over the two finds it.  False
 * if no pair makes the gap smaller. */
static bool swap_best_pair(balancer *b, const int32_t *length, int32_t x, int32_t y) {
    group_state *sx = &b->state[x], *sy = &b->state[y];
    int64_t *mx = b->member + x * b->capacity, *my = b->member + y * b->capacity;
    uint64_t gap = sx->work - sy->work, best_gap = gap;
    int64_t best_i = 0, best_j = 0;
    for (int64_t i = 0, j = 0; i < sx->n && j < sy->n;) {
        uint64_t wi = work_of(length[mx[i]]), wj = work_of(length[my[j]]);
        if (wi <= wj) {
            j++;
            continue;
        }
        uint64_t moved = 2 * (wi - wj), new_gap = moved > gap ? moved - gap : gap - moved;
        if (new_gap < best_gap) best_gap = new_gap, best_i = i, best_j = j;
        /* Too much work was moved: try a shorter user of x.  Too little: try a shorter user of
         * y. */
        if (moved > gap)
            i++;
        else
            j++;
    }
    if (best_gap == gap) return false;
    int64_t user_x = mx[best_i], user_y = my[best_j];
    uint64_t difference = work_of(length[user_x]) - work_of(length[user_y]);
    replace_member(mx, sx->n, best_i, user_y, length);
    replace_member(my, sy->n, best_j, user_x, length);
    sx->work -= difference;
    sy->work += difference;
    return true;
}

static void swap_while_it_helps(balancer *b, const int32_t *length) {
    for (int32_t pass = 0; pass < 4 * b->n_groups; pass++) {
        int32_t heaviest = 0, lightest = 0;
        for (int32_t g = 1; g < b->n_groups; g++) {
            if (b->state[g].work > b->state[heaviest].work) heaviest = g;
            if (b->state[g].work < b->state[lightest].work) lightest = g;
        }
        if (heaviest == lightest || !swap_best_pair(b, length, heaviest, lightest)) return;
    }
}

void balancer_run(balancer *b, const int32_t *length, int64_t n, int32_t *group) {
    assert(n <= b->max_users);
    sort_longest_first(b, length, n);
    place_greedily(b, length, n);
    swap_while_it_helps(b, length);
    for (int32_t g = 0; g < b->n_groups; g++)
        for (int64_t i = 0; i < b->state[g].n; i++)
            group[b->member[g * b->capacity + i]] = g;
}
