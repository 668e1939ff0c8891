#include "data/set/permute.h"

#include <assert.h>

#include "base/hash.h"

permutation permutation_make(uint64_t n, uint64_t seed, rng_stream stream, uint64_t epoch) {
    assert(n <= (uint64_t)1 << 63);
    int bits = 0;
    while (bits < 63 && ((uint64_t)1 << bits) < n)
        bits++;
    permutation p = {.n = n, .left_bits = bits / 2, .right_bits = bits - bits / 2};
    rng_key key = rng_make_key(seed, stream);
    for (uint64_t i = 0; i < PERMUTATION_ROUNDS; i++) {
        rng_block b = rng_draw64(key, epoch, i);
        p.round_key[i] = (uint64_t)b.word[0] << 32 | b.word[1];
    }
    return p;
}

static uint64_t low_mask(int bits) {
    return ((uint64_t)1 << bits) - 1;
}

/* The key makes the rounds differ, the mix makes every bit of the half count; a Philox draw per
 * round would be ten times slower and no better shuffled. */
static uint64_t round_word(const permutation *p, uint64_t half, int round) {
    return hash64_mix(half + p->round_key[round]);
}

/* The halves may differ by a bit, so they are not exchanged: even rounds change the left half by a
 * function of the right one, odd rounds the other way round.  A round is its own inverse, and the
 * inverse permutation runs the same rounds from the last to the first. */
static uint64_t encrypt(const permutation *p, uint64_t value, int first_round, int step) {
    uint64_t right = value & low_mask(p->right_bits), left = value >> p->right_bits;
    for (int i = 0, round = first_round; i < PERMUTATION_ROUNDS; i++, round += step) {
        if (round % 2 == 0)
            left ^= round_word(p, right, round) & low_mask(p->left_bits);
        else
            right ^= round_word(p, left, round) & low_mask(p->right_bits);
    }
    return left << p->right_bits | right;
}

uint64_t permutation_at(const permutation *p, uint64_t position) {
    uint64_t value = position;
    do
        value = encrypt(p, value, 0, 1);
    while (value >= p->n);
    return value;
}

uint64_t permutation_find(const permutation *p, uint64_t value) {
    uint64_t position = value;
    do
        position = encrypt(p, position, PERMUTATION_ROUNDS - 1, -1);
    while (position >= p->n);
    return position;
}
