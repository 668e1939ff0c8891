/* A pseudo-random permutation of 0..n-1 that stores nothing.
 *
 * Any position can be asked for at any time, in either direction, so a shuffle of a billion users
 * costs no memory and a run resumes in the middle of an epoch.  It is a Feistel network, its round
 * keys drawn by Philox, on the smallest power of two >= n; a value outside 0..n-1 is mapped again
 * until it is inside (cycle walking), which keeps the mapping one to one.  A permutation is a
 * value: copy it, share it between threads. */
#ifndef HSTU_DATA_SET_PERMUTE_H
#define HSTU_DATA_SET_PERMUTE_H

#include <stdint.h>

#include "base/rng.h"

/* Four rounds make a Feistel network as good as random when its halves are wide; ours are a few
 * bits for small n, where more rounds are needed for a good shuffle. */
enum { PERMUTATION_ROUNDS = 8 };

typedef struct permutation {
    uint64_t n; /* 0..2^63 */
    uint64_t round_key[PERMUTATION_ROUNDS];
    int left_bits, right_bits; /* 2^(left_bits + right_bits) >= n, each at most 32 */
} permutation;

/* The permutation of 0..n-1 that belongs to (seed, stream, epoch). */
permutation permutation_make(uint64_t n, uint64_t seed, rng_stream stream, uint64_t epoch);

/* The value at a position (both 0..n-1), and the position of a value. */
uint64_t permutation_at(const permutation *p, uint64_t position);
uint64_t permutation_find(const permutation *p, uint64_t value);

#endif
