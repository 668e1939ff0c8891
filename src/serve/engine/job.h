/* Job: a request on its way through the engine, in the numbers of its model.
 *
 * Made on the caller's thread from a request: the ids are looked up and the events that the model
 * reads are copied, so that whoever computes needs neither the users nor the request.  A job lives
 * in the memory of its answer and ends with it. */
#pragma once

#include "serve/engine/served.h"

/* Of an answer; engine_answer_release frees it. */
struct engine_answer_memory {
    arena arena;
    served *model; /* a reference, or NULL */
    /* Whose items engine_make_items makes, or NULL: all callers of a batch do it at the same time,
     * the thread that computes would do it for one after the other. */
    struct job *job;
};

typedef struct job {
    infer_query q; /* in the numbers of its model; job_of */
    engine_answer *out;
    engine_done done;
    bool (*is_gone)(void *ctx); /* or NULL */
    void *ctx;
    served *m; /* the answer's reference */
    arena *arena;
    engine_task task;
    int32_t top_k;
    engine_id *candidate_id; /* (n_candidates): of the unknown ones; NULL: there are none */
    /* Of job_name_candidates; before, NULL. */
    float *wide; /* (n_candidates, columns.width): the logits as floats, where they are not */
    engine_item *named;     /* (n_candidates): as they were given */
    struct sort_pair *keys; /* (2 n_candidates): for their order */
    int32_t n_tokens;       /* of its history, candidates not included */
    void *tokens;           /* (n_tokens), as the cache has them; NULL: there is none */
    kv_path path;           /* of its pages, as far as they were found */
    double flops;           /* predicted without a cache */
    size_t bytes;           /* of the answer's memory, when it was queued */
    uint64_t submit_ns;     /* by clock_ns */
    /* Its own; or, without one, the time until which it is predicted to be answered at the latest,
     * by which it is ordered. */
    uint64_t deadline_ns;
    bool has_deadline;
    bool was_admitted; /* slot_admits said yes: it is not refused any more */
    int priority;
    uint64_t order;
    uint64_t key; /* of its user, for the choice of a replica, */
    int home;     /* which is this one where nothing is full or lost */
} job;

static inline job *job_of(const infer_query *q) {
    return (job *)(uintptr_t)q;
}

/* The users, and their lock, which a job is made without. */
typedef struct job_users {
    const users *users;
    pthread_mutex_t *lock;
} job_users;

/* Makes a job for an answer that has its model.  ERR_USAGE: what is wrong with the request;
 * ERR_UNSUPPORTED: the model cannot do it. */
status job_make(job **out, engine_answer *answer, const engine_request *r, const job_users *from);

/* Makes a job one of another replica of its model, with the reference to it; that to the old one is
 * the caller's.  Whatever a failed run has left is forgotten. */
void job_move(job *j, served *to);

/* Tokens that a job adds to a batch, at most. */
static inline int32_t job_tokens(const job *j) {
    if (!j->m->is_ranking) return j->n_tokens;
    int32_t n = j->q.n_candidates, most = j->m->infer.max_part;
    return j->n_tokens + (n < most ? n : most) + 1;
}

/* Answers, for an answer that has its model, with the top_k items most similar to the candidates of
 * a request, under its rules; not waiting for anything.  ERR_USAGE: what is wrong with them. */
status job_similar(engine_answer *answer, const engine_request *r);

/* Writes the answer's items from the job's results: best first for recommend and for rank with
 * top_k, else in the order of the candidates. */
status job_answer(job *j);

/* Makes what the results of candidates go to and what job_answer needs besides them: before the
 * first result, best while it is computed. */
status job_name_candidates(job *j);
