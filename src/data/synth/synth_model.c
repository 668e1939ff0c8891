#include "data/synth/synth_model.h"
#include "data/set/split.h"

/* Parameters of the world, found by trial so that, with the default sizes, the best reachable HR@10
 * is near one half and popularity stays below a tenth. */
static const double taste_weight[SYNTH_TASTES] = {.45, .27, .18, .10};
static const double ring_weight[SYNTH_RING_STEPS] = {.50, .30, .20};
static const double stay = .75;        /* the next event belongs to the same session */
static const double drift = .15;       /* a new topic comes in before a session */
static const double follow_ring = .38; /* a session takes one of the next three of the ring */
static const double noise = .20;       /* anything, by overall popularity */
static const double topic_zipf = 1.1, rank_zipf = 1.0;
static const double length_sigma = .70; /* of the logarithm of the length */
enum { ITEMS_PER_TOPIC = 50, MIN_EVENTS = 3 };

/* The purpose of a random word; with user and position it makes the counter of the draw.  The
 * values are above those of the rounds of permutations, which use the same word of the counter. */
enum { FOR_PROFILE = 1 << 30, FOR_LENGTH, FOR_TASTE, FOR_SESSION, FOR_ITEM, FOR_STARS };

static rng_block draw(const synth_world *w, uint64_t user, uint32_t position, uint32_t what,
                      uint32_t attempt) {
    /* Users are fewer than 2^31, so their number is one word of the four. */
    return rng_draw(w->key, (uint32_t)user, position, what, attempt);
}

/* The i with sum[i] <= x < sum[i + 1]. */
static uint32_t find_interval(const double *sum, uint32_t n, double x) {
    uint32_t low = 0, high = n - 1;
    BISECT(low, high, sum[middle + 1] <= x);
    return low;
}

static uint32_t topic_first(const synth_world *w, uint32_t topic) {
    return (uint32_t)((uint64_t)topic * w->config.n_items / w->n_topics);
}

static uint32_t topic_size(const synth_world *w, uint32_t topic) {
    return topic_first(w, topic + 1) - topic_first(w, topic);
}

/* Probability of a slot given its topic, and of a topic overall. */
static double weight_in_topic(const synth_world *w, uint32_t slot) {
    uint32_t topic = w->topic_of[slot], rank = slot - topic_first(w, topic);
    return (w->rank_sum[rank + 1] - w->rank_sum[rank]) / w->rank_sum[topic_size(w, topic)];
}

static double weight_of_topic(const synth_world *w, uint32_t topic) {
    return (w->topic_sum[topic + 1] - w->topic_sum[topic]) / w->topic_sum[w->n_topics];
}

static void sum_zipf(double *sum, uint32_t n, double exponent) {
    sum[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        sum[i + 1] = sum[i] + pow(i + 1, -exponent);
}

/* Numbers, ranks and rings are separate shuffles: an item's number says nothing about its
 * popularity. */
static void place_items(synth_world *w) {
    uint32_t n = w->config.n_items;
    permutation items = permutation_make(n, w->config.seed, RNG_SYNTH, 0);
    for (uint32_t slot = 0; slot < n; slot++) {
        w->item_at[slot] = (uint32_t)permutation_at(&items, slot) + 1;
        w->slot_of[w->item_at[slot]] = slot;
    }
    for (uint32_t topic = 0; topic < w->n_topics; topic++) {
        uint32_t first = topic_first(w, topic), size = topic_size(w, topic);
        permutation ring = permutation_make(size, w->config.seed, RNG_SYNTH, 1 + topic);
        for (uint32_t place = 0; place < size; place++) {
            uint32_t slot = first + (uint32_t)permutation_at(&ring, place);
            w->topic_of[first + place] = topic;
            w->ring_at[first + place] = slot;
            w->place_of[slot] = place;
        }
    }
}

typedef struct weighted_slot {
    double weight;
    uint32_t slot;
} weighted_slot;

static int compare_weight(const void *a, const void *b) {
    const weighted_slot *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static status sort_by_weight(synth_world *w) {
    weighted_slot *all;
    TRY(MEM_NEW_RAW(&all, w->config.n_items));
    for (uint32_t slot = 0; slot < w->config.n_items; slot++)
        all[slot] =
            (weighted_slot){weight_of_topic(w, w->topic_of[slot]) * weight_in_topic(w, slot), slot};
    qsort(all, w->config.n_items, sizeof *all, compare_weight);
    for (uint32_t i = 0; i < w->config.n_items; i++)
        w->by_weight[i] = all[i].slot;
    mem_free(all);
    return OK;
}

static status build(synth_world *w) {
    uint32_t n = w->config.n_items;
    TRY(ARENA_NEW(&w->memory, &w->topic_sum, (size_t)w->n_topics + 1));
    TRY(ARENA_NEW(&w->memory, &w->rank_sum, n / w->n_topics + 2));
    TRY(ARENA_NEW(&w->memory, &w->topic_of, n));
    TRY(ARENA_NEW(&w->memory, &w->item_at, n));
    TRY(ARENA_NEW(&w->memory, &w->slot_of, (size_t)n + 1));
    TRY(ARENA_NEW(&w->memory, &w->ring_at, n));
    TRY(ARENA_NEW(&w->memory, &w->place_of, n));
    TRY(ARENA_NEW(&w->memory, &w->by_weight, n));
    sum_zipf(w->topic_sum, w->n_topics, topic_zipf);
    sum_zipf(w->rank_sum, n / w->n_topics + 1, rank_zipf);
    place_items(w);
    return sort_by_weight(w);
}

status synth_world_create(synth_world **out, const synth_config *config) {
    synth_world *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    w->config = *config;
    w->key = rng_make_key(config->seed, RNG_SYNTH);
    w->n_topics = (config->n_items + ITEMS_PER_TOPIC - 1) / ITEMS_PER_TOPIC;
    /* A user can see at most half of the catalogue, so that there is always a next item to draw. */
    double longest = fmin(16 * config->mean_len, config->n_items / 2);
    w->max_len = (uint32_t)fmax(longest, MIN_EVENTS);
    status st = build(w);
    return CREATED(st, out, w, synth_world_destroy);
}

void synth_world_destroy(synth_world *w) {
    if (w == NULL) return;
    arena_fini(&w->memory);
    mem_free(w);
}

status synth_user_init(synth_user *u, const synth_world *w) {
    *u = (synth_user){0};
    status st = ARENA_NEW(&u->memory, &u->item, w->max_len);
    if (st == OK) st = ARENA_NEW(&u->memory, &u->action, w->max_len);
    if (st == OK) st = ARENA_NEW(&u->memory, &u->time, w->max_len);
    if (st == OK) st = ARENA_NEW(&u->memory, &u->seen, w->config.n_items / 64 + 1);
    if (st != OK) synth_user_fini(u);
    return st;
}

void synth_user_fini(synth_user *u) {
    arena_fini(&u->memory);
    *u = (synth_user){0};
}

synth_profile synth_user_profile(const synth_world *w, uint64_t user) {
    rng_block b = draw(w, user, 0, FOR_PROFILE, 0);
    return (synth_profile){(int)rng_below(b.word[0], SYNTH_AGES),
                           (int)rng_below(b.word[1], SYNTH_COUNTRIES)};
}

uint32_t synth_user_length(const synth_world *w, uint64_t user) {
    rng_block b = draw(w, user, 0, FOR_LENGTH, 0);
    double radius = sqrt(-2 * log(1 - rng_uniform_pair(&b, 0)));
    double normal = radius * cos(6.283185307179586 * rng_uniform_pair(&b, 1));
    double x = w->config.mean_len * exp(length_sigma * normal - length_sigma * length_sigma / 2);
    x = fmin(fmax(x + .5, MIN_EVENTS), w->max_len);
    return (uint32_t)x;
}

/* The state of a user just before an event: everything the next draw depends on. */
typedef struct latent {
    uint32_t taste[SYNTH_TASTES]; /* topics, the favourite first */
    uint32_t topic;               /* of the session */
    uint32_t previous;            /* slot of the event before */
    bool is_new_session;
} latent;

static bool has_seen(const synth_user *u, uint32_t slot) {
    return u->seen[slot / 64] >> slot % 64 & 1;
}

/* Which topics a user comes to like: a third of the choices follow everybody's order of topics, a
 * third the order of the age group, a third the order of the country. */
static uint32_t draw_topic(const synth_world *w, const synth_user *u, const rng_block *b) {
    double x = rng_uniform_pair(b, 0) * w->topic_sum[w->n_topics];
    uint32_t topic = find_interval(w->topic_sum, w->n_topics, x), kind = rng_below(b->word[2], 3);
    if (kind == 0) return topic;
    uint64_t group =
        kind == 1 ? (uint64_t)u->profile.age : SYNTH_AGES + (uint64_t)u->profile.country;
    permutation order = permutation_make(w->n_topics, w->config.seed, RNG_SYNTH, ~group);
    return (uint32_t)permutation_at(&order, topic);
}

static bool is_liked(const latent *s, int n, uint32_t topic) {
    for (int i = 0; i < n; i++)
        if (s->taste[i] == topic) return true;
    return false;
}

/* A topic not among the first n of the taste, if a few tries find one. */
static uint32_t draw_new_topic(const synth_world *w, const synth_user *u, const latent *s, int n,
                               uint64_t user, uint32_t position) {
    uint32_t topic = 0;
    for (uint32_t attempt = 0; attempt < 16; attempt++) {
        rng_block b = draw(w, user, position, FOR_TASTE, attempt + 16 * (uint32_t)n);
        topic = draw_topic(w, u, &b);
        if (!is_liked(s, n, topic)) break;
    }
    return topic;
}

/* Stays in the session or opens a new one, before which the taste may have drifted. */
static void begin_event(const synth_world *w, const synth_user *u, latent *s, uint64_t user,
                        uint32_t position) {
    rng_block b = draw(w, user, position, FOR_SESSION, 0);
    s->is_new_session = position == 0 || rng_uniform_pair(&b, 0) >= stay;
    if (!s->is_new_session || position == 0 || rng_uniform_pair(&b, 1) >= drift) return;
    uint32_t topic = draw_new_topic(w, u, s, SYNTH_TASTES, user, position);
    memmove(s->taste + 1, s->taste, (SYNTH_TASTES - 1) * sizeof *s->taste);
    s->taste[0] = topic;
}

static int pick(const double *weight, int n, double x) {
    int i = 0;
    while (i < n - 1 && x >= weight[i])
        x -= weight[i++];
    return i;
}

static uint32_t draw_in_topic(const synth_world *w, uint32_t topic, double x) {
    uint32_t size = topic_size(w, topic);
    return topic_first(w, topic) + find_interval(w->rank_sum, size, x * w->rank_sum[size]);
}

static uint32_t ring_next(const synth_world *w, uint32_t slot, uint32_t steps) {
    uint32_t topic = w->topic_of[slot], size = topic_size(w, topic);
    return w->ring_at[topic_first(w, topic) + (w->place_of[slot] + steps) % size];
}

/* One draw of the model, seen or not.  slot_probability below is its distribution. */
static uint32_t draw_slot(const synth_world *w, latent *s, uint64_t user, uint32_t position,
                          uint32_t attempt) {
    rng_block how = draw(w, user, position, FOR_ITEM, 2 * attempt);
    rng_block which = draw(w, user, position, FOR_ITEM, 2 * attempt + 1);
    double kind = rng_uniform_pair(&how, 0), x = rng_uniform_pair(&how, 1),
           y = rng_uniform_pair(&which, 0);
    if (s->is_new_session) s->topic = s->taste[pick(taste_weight, SYNTH_TASTES, x)];
    if (kind < noise) {
        double z = rng_uniform_pair(&which, 1) * w->topic_sum[w->n_topics];
        return draw_in_topic(w, find_interval(w->topic_sum, w->n_topics, z), y);
    }
    if (!s->is_new_session && kind < noise + follow_ring)
        return ring_next(w, s->previous, 1 + (uint32_t)pick(ring_weight, SYNTH_RING_STEPS, y));
    return draw_in_topic(w, s->topic, y);
}

/* Probability that one draw gives this slot. */
static double slot_probability(const synth_world *w, const latent *s, uint32_t slot) {
    uint32_t topic = w->topic_of[slot];
    double in_topic = weight_in_topic(w, slot), p = noise * weight_of_topic(w, topic) * in_topic;
    if (s->is_new_session) {
        for (int i = 0; i < SYNTH_TASTES; i++)
            if (s->taste[i] == topic) p += (1 - noise) * taste_weight[i] * in_topic;
        return p;
    }
    if (topic == s->topic) p += (1 - noise - follow_ring) * in_topic;
    for (uint32_t i = 0; i < SYNTH_RING_STEPS; i++)
        if (ring_next(w, s->previous, i + 1) == slot) p += follow_ring * ring_weight[i];
    return p;
}

/* The ten likeliest slots, likeliest first. */
typedef struct top_list {
    double p[SYNTH_TOP];
    uint32_t slot[SYNTH_TOP];
    int n;
} top_list;

static void offer(const synth_world *w, const synth_user *u, const latent *s, top_list *top,
                  uint32_t slot) {
    if (has_seen(u, slot)) return;
    for (int i = 0; i < top->n; i++)
        if (top->slot[i] == slot) return;
    double p = slot_probability(w, s, slot);
    if (top->n == SYNTH_TOP && p <= top->p[SYNTH_TOP - 1]) return;
    int i = top->n < SYNTH_TOP ? top->n++ : SYNTH_TOP - 1;
    for (; i > 0 && top->p[i - 1] < p; i--)
        top->p[i] = top->p[i - 1], top->slot[i] = top->slot[i - 1];
    top->p[i] = p, top->slot[i] = slot;
}

static void offer_topic(const synth_world *w, const synth_user *u, const latent *s, top_list *top,
                        uint32_t topic) {
    uint32_t first = topic_first(w, topic), size = topic_size(w, topic);
    for (uint32_t rank = 0, n_offered = 0; rank < size && n_offered < SYNTH_TOP; rank++) {
        if (has_seen(u, first + rank)) continue;
        offer(w, u, s, top, first + rank);
        n_offered++;
    }
}

/* The expected hit rate of the oracle of synth.h.  Apart from the ring, items of one topic are
 * likelier the higher their rank, and items of topics not in play the higher their overall
 * popularity: so the ring, the first ten unseen of each topic in play and the first ten unseen of
 * all hold the best ten.  Draws are repeated until an item is unseen, so probabilities are divided
 * by the unseen mass. */
static void foretell(const synth_world *w, synth_user *u, const latent *s, uint32_t n_before,
                     top_list *top) {
    *top = (top_list){0};
    for (uint32_t i = 1; i <= SYNTH_RING_STEPS && !s->is_new_session; i++)
        offer(w, u, s, top, ring_next(w, s->previous, i));
    if (!s->is_new_session) offer_topic(w, u, s, top, s->topic);
    for (int i = 0; i < SYNTH_TASTES && s->is_new_session; i++)
        offer_topic(w, u, s, top, s->taste[i]);
    uint32_t n_offered = 0;
    for (uint32_t i = 0; i < w->config.n_items && n_offered < SYNTH_TOP; i++) {
        if (has_seen(u, w->by_weight[i])) continue;
        offer(w, u, s, top, w->by_weight[i]);
        n_offered++;
    }
    double left = 1;
    for (uint32_t i = 0; i < n_before; i++)
        left -= slot_probability(w, s, w->slot_of[u->item[i]]);
    u->best_hr = u->best_ndcg = 0;
    for (int i = 0; i < top->n; i++) {
        u->best_hr += top->p[i] / left;
        u->best_ndcg += top->p[i] / left / log2(i + 2);
    }
}

/* Ratings follow the liking for the topic, the item's own quality and the mood of the day. */
static uint16_t rate(const synth_world *w, const latent *s, uint64_t user, uint32_t position,
                     uint32_t slot) {
    static const double liking[SYNTH_TASTES] = {1.5, 1.2, .9, .6};
    rng_block mood = draw(w, user, position, FOR_STARS, 0);
    rng_block item = rng_draw(w->key, slot, 0, FOR_STARS, 1u << 31);
    double score =
        2.2 + 1.6 * (rng_uniform_pair(&item, 0) - .5) + 2 * (rng_uniform_pair(&mood, 0) - .5);
    for (int i = 0; i < SYNTH_TASTES; i++) {
        if (s->taste[i] != w->topic_of[slot]) continue;
        score += liking[i];
        break;
    }
    int stars = (int)(score + .5);
    return (uint16_t)((stars < 1 ? 1 : stars > 5 ? 5 : stars) - 1);
}

static int64_t next_time(const synth_world *w, const latent *s, uint64_t user, uint32_t position,
                         int64_t before) {
    rng_block b = draw(w, user, position, FOR_SESSION, 1);
    /* The first events fall in 2020; sessions are 4 hours to 5 days apart, events minutes. */
    if (position == 0) return 1577836800 + rng_below(b.word[0], 360 * 86400);
    if (s->is_new_session) return before + 4 * 3600 + rng_below(b.word[0], 116 * 3600);
    return before + 60 + rng_below(b.word[0], 14 * 60);
}

/* Draws until the item is new.  Should a thousand draws not find one (a user who has had nearly all
 * that is likely), the first unseen by overall popularity is taken. */
static uint32_t draw_unseen(const synth_world *w, const synth_user *u, latent *s, uint64_t user,
                            uint32_t position) {
    for (uint32_t attempt = 0; attempt < 1000; attempt++) {
        uint32_t slot = draw_slot(w, s, user, position, attempt);
        if (!has_seen(u, slot)) return slot;
    }
    uint32_t i = 0;
    while (has_seen(u, w->by_weight[i]))
        i++;
    return w->by_weight[i];
}

void synth_user_make(const synth_world *w, uint64_t user, synth_user *out) {
    latent s = {0};
    top_list top = {0};
    out->profile = synth_user_profile(w, user);
    out->n_events = synth_user_length(w, user);
    for (int i = 0; i < SYNTH_TASTES; i++)
        s.taste[i] = draw_new_topic(w, out, &s, i, user, 0);
    for (uint32_t i = 0; i < out->n_events; i++) {
        begin_event(w, out, &s, user, i);
        if (i + 1 == out->n_events) foretell(w, out, &s, i, &top);
        uint32_t slot = draw_unseen(w, out, &s, user, i);
        out->item[i] = w->item_at[slot];
        out->action[i] = rate(w, &s, user, i, slot);
        out->time[i] = next_time(w, &s, user, i, i > 0 ? out->time[i - 1] : 0);
        out->seen[slot / 64] |= (uint64_t)1 << slot % 64;
        s.previous = slot;
    }
    out->is_foretold = false;
    for (int i = 0; i < top.n; i++)
        out->is_foretold |= top.slot[i] == s.previous;
    for (uint32_t i = 0; i < out->n_events; i++) {
        uint32_t slot = w->slot_of[out->item[i]];
        out->seen[slot / 64] = 0;
    }
}

/* Invented titles: a topic, an adjective and a noun, all different within a world. */
static const char *const topics[] = {
    "Space Opera",    "Cosy Mystery",   "Slow Cinema",   "Heist",       "Sea Stories",
    "Courtroom",      "Mountain Tales", "Robot Comedy",  "Ghost Story", "Road Trip",
    "Kitchen Drama",  "Spy Thriller",   "Fairy Tale",    "Western",     "Concert Film",
    "Nature",         "Time Travel",    "Small Town",    "Chess Club",  "Silent Era",
    "Detective Noir", "Love Letters",   "Polar Voyage",  "Desert Epic", "School Days",
    "Train Journey",  "Island Life",    "Circus",        "Jazz Age",    "Moon Landing",
    "Dog Stories",    "Cat Stories",    "Football",      "Ballet",      "Antarctic",
    "Submarine",      "Lighthouse",     "Garden",        "Inventors",   "Dragons",
    "Pirates",        "Vampires",       "Clockwork",     "Deep Forest", "Night Market",
    "Opera House",    "Bicycle",        "Winter Sports", "Old Maps",    "Radio Days"};
static const char *const adjectives[] = {
    "Silent",  "Golden",    "Hidden",  "Crooked", "Velvet",   "Distant",   "Broken",   "Gentle",
    "Scarlet", "Wandering", "Hollow",  "Paper",   "Electric", "Forgotten", "Marble",   "Restless",
    "Amber",   "Borrowed",  "Secret",  "Frozen",  "Lucky",    "Midnight",  "Patient",  "Copper",
    "Flying",  "Quiet",     "Emerald", "Lonely",  "Burning",  "Glass",     "Northern", "Last",
    "Blue",    "Invisible", "Stolen",  "Tender",  "Sleeping", "Iron",      "Salt",     "Seventh",
    "Bright",  "Weathered", "Rolling", "Honest",  "Faraway",  "Painted",   "Humming",  "Early"};
static const char *const nouns[] = {
    "Harbour", "Orchard",   "Lantern",  "Compass",  "Staircase", "River",    "Violin",   "Letter",
    "Window",  "Telescope", "Bridge",   "Garden",   "Mirror",    "Envelope", "Sparrow",  "Island",
    "Clock",   "Meadow",    "Umbrella", "Station",  "Key",       "Feather",  "Carousel", "Atlas",
    "Kite",    "Library",   "Shore",    "Piano",    "Ladder",    "Comet",    "Teapot",   "Valley",
    "Balcony", "Whistle",   "Anchor",   "Portrait", "Cabin",     "Sundial",  "Ticket",   "Parade",
    "Tower",   "Almanac",   "Canal",    "Acrobat",  "Thimble",   "Horizon",  "Suitcase", "Melody"};

enum {
    N_TOPICS = sizeof topics / sizeof topics[0],
    N_ADJECTIVES = sizeof adjectives / sizeof adjectives[0],
    N_NOUNS = sizeof nouns / sizeof nouns[0],
    N_PAIRS = N_ADJECTIVES * N_NOUNS
};

void synth_item_title(const synth_world *w, uint32_t item, char *text, int n) {
    uint32_t topic = w->topic_of[w->slot_of[item]], number = item - 1;
    /* Pairs are shuffled, so that neighbours do not share a word; when they are used up, a part
     * number is added.  Items of one part differ in the pair, so no title comes twice. */
    permutation pairs = permutation_make(N_PAIRS, w->config.seed, RNG_SYNTH, 0);
    uint32_t pair = (uint32_t)permutation_at(&pairs, number % N_PAIRS), part = number / N_PAIRS;
    const char *adjective = adjectives[pair / N_NOUNS], *noun = nouns[pair % N_NOUNS];
    char topic_part[16] = "", title_part[16] = "";
    if (topic >= N_TOPICS) snprintf(topic_part, sizeof topic_part, " %u", topic / N_TOPICS + 1);
    if (part > 0) snprintf(title_part, sizeof title_part, " %u", part + 1);
    snprintf(text, (size_t)n, "The %s %s%s (%s%s)", adjective, noun, title_part,
             topics[topic % N_TOPICS], topic_part);
}

const char *synth_age_name(int age) {
    static const char *const names[SYNTH_AGES] = {"under 18", "18-24", "25-34",  "35-44",
                                                  "45-54",    "55-64", "over 64"};
    return names[age];
}

const char *synth_country_name(int country) {
    static const char *const names[SYNTH_COUNTRIES] = {"Brazil", "France", "Ghana",  "India",
                                                       "Japan",  "Mexico", "Norway", "Vietnam"};
    return names[country];
}
