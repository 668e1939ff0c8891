/* Attention masks on the host: from a text or a file to rows of bits.
 *
 * The text of a mask is KIND[,window=W][,global=G][,dilation=D][,blocks=R][,seed=S][,causal], with
 * the kinds of mask_rule.h, or bits:FILE[,causal] or csr:FILE[,causal].  Both files are safetensors
 * and hold either one mask or one for each sequence of the input:
 * - bits: tensor `mask` of bytes (U8 or BOOL), not zero where the query sees the key.  Of shape (n,
 *   n), it is the mask of every sequence, of which one of m < n tokens uses the first m rows and
 *   columns.  With a tensor `lengths` (B, I32 or I64) it holds the (n, n) masks of B sequences one
 *   after the other.
 * - csr: tensors `indptr` (rows + 1) and `indices`, I32 or I64: row i sees the keys
 *   indices[indptr[i]] .. indices[indptr[i + 1] - 1], ascending.  Without `lengths` its rows are
 *   the n of one mask, with it those of all sequences, one after the other; a key is counted from
 *   the start of its own sequence.
 *
 * The random pairs of bigbird: rows and keys are cut into blocks of 32.  Row block b has n_blocks
 * random blocks; number w is at the block column b + (r mod 3) - 1, clamped to the blocks that
 * exist, with r the first word of rng_draw(key of (seed, RNG_MASK), n, b, w, 0).  Of its 1024 pairs
 * 102 are set, the first of a shuffle: for k = 0 .. 101, the pair at place k changes place with the
 * one at place k + below(word, 1024 - k), where the word is number k mod 4 of rng_draw(key, n, b,
 * w, 1 + k / 4); pair p is row p / 32 and key p mod 32 of the block.  Pairs after the sequence's
 * end do not count.
 *
 * A mask is immutable; any thread may read it. */
#pragma once

#include "ops/mask_rule.h"

typedef struct mask mask;

/* Parses the text and reads the file, if it names one.  ERR_USAGE: the text; the file's own errors
 * otherwise. */
status mask_create(mask **out, const char *text);
void mask_destroy(mask *m); /* NULL is fine */

/* The text alone.  *path: where the path of a file begins in the text (it ends before the last
 * ",causal" if the text ends with that), or NULL.  A value that the text does not give has its
 * default: window 32, global 32, dilation 1, blocks 1, seed 0. */
status mask_rule_parse(mask_rule *out, const char *text, const char **path);

/* The rule as a text that parses to it again; `bits` has no path. */
enum { MASK_TEXT_MAX = 160 };
void mask_rule_text(const mask_rule *r, char *out, size_t out_bytes);

const mask_rule *mask_rule_of(const mask *m);

/* Whether sequences of one length may have different masks: a file with `lengths`. */
bool mask_is_by_sequence(const mask *m);

/* Checks that sequence number `sequence` of the input may have n tokens.  ERR_USAGE names both. */
status mask_check(const mask *m, int64_t sequence, int64_t n);

/* The tokens that a file's mask is for; 0 for a rule, and for a sequence that the file does not
 * have.
 */
int64_t mask_length(const mask *m, int64_t sequence);

/* Fills the bits of query rows row .. row + n_rows - 1 of a sequence: bit j % 64 of words[r *
 * stride + j / 64] is key j of row `row` + r; stride >= ceil(n / 64).  Bits from n on are zero. The
 * sequence must have passed mask_check. */
void mask_fill_rows(const mask *m, int64_t sequence, int32_t n, int32_t row, int32_t n_rows,
                    uint64_t *words, int64_t stride);
