/* Pass: runs a batch through a model, forward and, if made for training, backward.
 *
 * A pass owns every activation for the largest batch it was made for, and the batch's layout
 * (nn/batch_layout.h): its functions allocate nothing.  A pass without training keeps only what the
 * next layer needs: two hidden states, the activations of one layer, no gradients.  Several passes
 * on one model each have their own sizes; those that train add to the same gradients, the model's.
 * One thread at a time; the model must outlive it. */
#pragma once

#include "model/model.h"
#include "nn/batch_layout.h"
#include "nn/mol_search.h"

struct kv_store;

typedef struct pass pass;

typedef struct pass_config {
    int32_t max_users; /* B: most users of a batch; at most the model's limit */
    bool is_training;
    /* Without training: most tokens of a batch, and most candidates of a user; 0: what the model
     * was made for, max_users users with their longest histories and all candidates. */
    int32_t max_tokens, max_targets;
    /* Training: most events of a batch, contextual values included; 0: as many as the model's. */
    int64_t max_events;
    bool has_cache; /* for pass_encode_cached and pass_score_cached */
    /* Without training, where the backend records steps: small batches are rounded up to a few
     * shapes, each of which is recorded when it comes the second time, and replayed from then on;
     * larger ones, up to 8,192 tokens, when their exact shape comes the third time.  A batch must
     * have been waited for (sync, copy_out) before the next one. */
    bool is_recorded;
    /* A pass whose activations this one may overwrite, so that it needs little memory of its own;
     * or NULL. That pass must outlive this one, and its results are lost whenever this one runs. */
    pass *lender;
} pass_config;

/* Creates a pass; a training pass allocates the gradients of its model, unless another pass already
 * did. */
status pass_create(pass **out, model *m, const pass_config *c);
void pass_destroy(pass *p); /* NULL is fine */

/* The position of a batch in a run, on which dropout and negatives depend besides user and
 * position. */
typedef struct model_step {
    uint64_t seed;
    uint32_t step;    /* of the run, from 0 */
    float grad_scale; /* scale of the gradients: 1 / loss positions of the step, say */
} model_step;

/* Forward and backward of one batch: adds gradients of grad_scale * (sum of the losses) to every
 * param's grad, and the losses to a sum the pass keeps.  negatives (host, (loss positions, R) item
 * numbers) replaces the draw where it is not NULL: for tests.  Kernels may still run when this
 * returns. */
status pass_train(pass *p, const batch *b, const model_step *at, const int32_t *negatives);

/* The same for a batch that is trained in parts, on several ranks, say.  pass_take_rows begins it,
 * once: it fetches the rows of dynamic tables for the whole batch, and *out is the batch to make
 * parts of.  pass_train_part then is pass_train for some of its users; in-batch negatives come from
 * the whole batch.  Both do nothing for a batch without loss positions. */
status pass_take_rows(pass *p, const batch *b, const batch **out);
status pass_train_part(pass *p, const batch *part, const batch *whole, const model_step *at);

/* Calls fn(ctx, part) in training passes from now on, as soon as all ops that add to the gradients
 * of a part of the model (model_part_grads) have been called: the head, then the layers from the
 * last to the first.  The gradients of the input are the pass's last.  Such passes are not recorded
 * (ops.h).  fn NULL: no longer. */
typedef status (*pass_grads_fn)(void *ctx, int part);
void pass_watch_grads(pass *p, pass_grads_fn fn, void *ctx);

/* The sum of the losses since the last request: (1), memory of the backend. */
double *pass_loss(pass *p);

/* The number of loss positions of the last training batch that had no loss, because a dynamic table
 * had no row for the label. */
int64_t pass_n_unlabelled(const pass *p);

/* Announces the batch after the next call of pass_train, during which its rows on disk are
 * prefetched, where tables can (nn/dynamic.h).  The batch must stay valid until that call. */
void pass_expect(pass *p, const batch *next);

/* Requests the sum of the losses since the last request: *to holds it after `wait` for the ticket
 * (ops.h) has returned. pass_take_loss also waits. */
status pass_fetch_loss(pass *p, double *to, uint64_t *ticket);
status pass_take_loss(pass *p, double *sum);

/* From now on keys and values of HSTU layers are rounded to 8 bits (op kv_fp8), in every batch,
 * with a cache or without: so answers do not depend on what is cached.  A store in 8 bits needs it.
 */
void pass_set_fp8_kv(pass *p, bool has_fp8_kv);

/* Retrieval: the encoded state after the last history event of every user (its targets are labels,
 * not input): *out = (B, E) act, normalised as for the loss; memory of the pass, valid until its
 * next batch. */
status pass_encode(pass *p, const batch *b, const void **out);

/* Ranking: logits of every target event of the batch, in order: *out = (sum of n_targets, columns)
 * act; where there are no candidates (max_candidates 0), of every event. */
status pass_score(pass *p, const batch *b, const void **out, int64_t *n_rows);

/* The same with the keys and values of some first tokens of each sequence from pages of the store
 * (kv_store.h), which are not computed again; those of others are put there.  The results are those
 * of the whole sequences; on the CPU bit for bit.  At least the last token of a sequence is
 * computed.  ERR_UNSUPPORTED where the model cannot do it (kv_store_check). */
status pass_encode_cached(pass *p, const batch *b, struct kv_store *store,
                          const layout_cache *cache, const void **out);
status pass_score_cached(pass *p, const batch *b, struct kv_store *store, const layout_cache *cache,
                         const void **out, int64_t *n_rows);

/* Inference on ranks that share the layers (model_limits.tensor): rank 0's lead tells the others
 * what its pass runs, and each of them calls pass_follow with that.  A view. */
typedef struct pass_call {
    layout_purpose purpose;
    bool has_fp8_kv, has_cache;
    batch batch;
    layout_cache cache;
    kv_move_args moves; /* of the store: its lists alone */
} pass_call;
typedef struct pass_lead {
    void *ctx;
    /* The batch is checked and laid out, and nothing is computed yet.  If it returns OK, `end`
     * follows with the result, and returns that of the pass. */
    status (*begin)(void *ctx, const pass_call *call);
    status (*end)(void *ctx, status st);
} pass_lead;
void pass_set_lead(pass *p, const pass_lead *lead);
status pass_follow(pass *p, struct kv_store *store, const pass_call *call); /* waits for the end */

/* How many of a sequence's first events these two do not read where n_reused of its tokens are in
 * pages: the batch need not have them. */
int32_t pass_n_skipped(const pass *p, int32_t n_reused);

/* Evaluation of retrieval: the catalogue ranked for every user of a batch by its encoded state,
 * without the items of its history in the batch (infer.h leaves out whole histories). */
typedef struct rank_query {
    const model_items *corpus;
    const int32_t *target; /* host (B): rows of the corpus whose ranks are wanted; or NULL */
    int32_t *rank;         /* host (B): from 1 */
    int32_t k;             /* or 0 */
    int32_t *best;   /* host (B, k): the items with the highest scores; -1: fewer than k exist */
    float *score;    /* host (B, k) */
    bool keeps_seen; /* the items of the history stay in the ranking */
} rank_query;
status pass_rank(pass *p, const batch *b, const rank_query *q);

/* Op `rank` by the similarity of the model: of encoded users `a->query` and rows of items as they
 * are stored, a->corpus: at most 1024, or as many as the model's corpus has.  users: host
 * (n_queries), their numbers in the data, on which the components of some mixtures depend. */
status pass_search(pass *p, const rank_args *a, const uint64_t *users);

/* Searches of these rows for the k best have two stages from now on (nn/mol_search.h), and wait for
 * the device.  The first n_measured queries are searched exactly, too; pass_recall is the share of
 * these exact lists that was found, or false before the first query. */
status pass_index(pass *p, const mol_stages *stages, const model_items *corpus, int32_t n_measured);
bool pass_recall(const pass *p, double *recall, int32_t *n_queries);

/* The component vectors of a mixture of logits, of rows of items as they are stored: to_host
 * (n, components, d), for n up to *most; *dim = components times d.  ERR_CONFIG: the
 * similarity is a dot product. */
status pass_components_sizes(const pass *p, int32_t *dim, int32_t *most);
status pass_components(pass *p, int32_t n, const float *items, float *to_host);

/* The users of whom nothing is known. */
#define PASS_NOBODY UINT64_MAX

/* The rows of the corpus in the users' histories: offsets (B + 1) and rows, ascending and distinct;
 * `rows` has room for the tokens of the batch. */
void pass_seen_rows(const batch *b, const model_items *corpus, int32_t *offsets, int32_t *rows);

uint64_t pass_memory_bytes(const pass *p); /* of the backend, without what is borrowed */
