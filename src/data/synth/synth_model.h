/* The model behind `hstu synth`: a small world of topics and items, and users who wander in it.
 *
 * World.   Items belong to topics.  Topics and the items within a topic have Zipf popularity.  The
 *          items of a topic also stand in a ring: a user who just had one item often takes one of
 * the next three of the ring, so consecutive events say more than counts. User.    Likes four
 * topics, more or less.  Age group and country decide in part which.  Between sessions the taste
 * may drift: a new topic becomes the favourite, and the least liked one is dropped. Session. Starts
 * with a topic drawn from the taste.  The first event is an item of the topic by popularity.  Each
 * later event follows the ring from the previous one, or is an item of the topic by popularity; and
 * sometimes a user takes any item by overall popularity. An item a user has had is never drawn
 * again: such a draw is repeated from the start.
 *
 * Every number is drawn by Philox from (seed, user, position), so a user can be made again at any
 * time and on any thread.  The world is read-only once created. */
#pragma once

#include "data/synth/synth.h"

enum {
    SYNTH_TASTES = 4,     /* topics a user likes */
    SYNTH_RING_STEPS = 3, /* how far ahead on the ring one jumps */
    SYNTH_TOP = 10,       /* as in HR@10 */
    SYNTH_AGES = 7,
    SYNTH_COUNTRIES = 8
};

typedef struct synth_world {
    arena memory; /* of the arrays */
    synth_config config;
    rng_key key;
    uint32_t n_topics;
    uint32_t max_len;
    double *topic_sum;   /* (n_topics + 1): running sums of the weights of topics */
    double *rank_sum;    /* (items of the largest topic + 1): running sums of the weights within a
                            topic, by rank */
    uint32_t *topic_of;  /* (n_items): topic of a slot; a topic's slots are in order of rank */
    uint32_t *item_at;   /* (n_items): item of a slot */
    uint32_t *slot_of;   /* (n_items + 1): slot of an item */
    uint32_t *ring_at;   /* (n_items): slot at a place of the ring of its topic */
    uint32_t *place_of;  /* (n_items): place of a slot */
    uint32_t *by_weight; /* (n_items): slots, most popular first */
} synth_world;

typedef struct synth_profile {
    int age, country; /* 0..SYNTH_AGES-1, 0..SYNTH_COUNTRIES-1 */
} synth_profile;

/* A user's events, and how well the last one can be predicted. */
typedef struct synth_user {
    arena memory; /* of the arrays */
    uint32_t n_events;
    synth_profile profile;
    uint32_t *item;   /* (max_len), 1..n_items */
    uint16_t *action; /* (max_len): stars - 1 */
    int64_t *time;    /* (max_len): seconds, increasing */
    uint64_t *seen;   /* (n_items / 64 + 1): bits of slots, all zero between calls */
    /* For the last event (the test event of leave-one-out), as an oracle that knows all but the
     * draw sees it: */
    double best_hr, best_ndcg; /* expected, of the ten likeliest items */
    bool is_foretold;          /* it was one of the ten */
} synth_user;

status synth_world_create(synth_world **out, const synth_config *config);
void synth_world_destroy(synth_world *w); /* NULL is fine */

/* Scratch for one thread; lengths never exceed world->max_len. */
status synth_user_init(synth_user *u, const synth_world *w);
void synth_user_fini(synth_user *u);

/* For user 0..n_users-1: its attributes, the number of its events, and all its events. */
synth_profile synth_user_profile(const synth_world *w, uint64_t user);
uint32_t synth_user_length(const synth_world *w, uint64_t user);
void synth_user_make(const synth_world *w, uint64_t user, synth_user *out);

/* Readable names; text gets at most n bytes. */
void synth_item_title(const synth_world *w, uint32_t item, char *text, int n);
const char *synth_age_name(int age);
const char *synth_country_name(int country);
