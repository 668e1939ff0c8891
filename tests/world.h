/* Data sets that describe one world in different ways: the same users and events, with other ids,
 * more items, fewer items, other contextual values.  For tests of matching by id. */
#ifndef HSTU_TESTS_WORLD_H
#define HSTU_TESTS_WORLD_H

#include "base/rng.h"
#include "data/build/builder.h"
#include "test.h"

enum { WORLD_USERS = 30, WORLD_ITEMS = 40, WORLD_EVENTS = 12, WORLD_FIRST_ID = 5 };

typedef struct world {
    const char *folder; /* in the test's folder */
    bool has_text;      /* item ids are strings: the numbers as text with the prefix */
    const char *prefix;
    const char *title;   /* first word of the titles; NULL: "title" */
    bool has_new_item;   /* an item whose id sorts first: user 3 ends with it, user 4 had it early,
                            and it occurs twice in the new user's history */
    bool has_idle_item;  /* the same item in the catalogue only, without events */
    bool has_new_user;   /* user 0, of items 1, 2, 3 and the new item */
    int n_gone;          /* the first items of the world are not in this data */
    bool has_context;    /* features "age" and "sex" */
    bool has_new_values; /* an age that sorts first, and feature "club" before the others */
    int content; /* 0: none; else features "kind" and "year" and vectors, other ones by number */
    uint16_t n_codes;    /* actions are codes below this; 0: stars */
    bool has_half_stars; /* or half stars */
    int64_t ticks;       /* of a second; 0: 1 */
} world;

/* The item of an event: 1..WORLD_ITEMS. */
static inline int world_item(int user, int event) {
    rng_block b = rng_draw(rng_make_key(7, RNG_TEST), (uint32_t)user, (uint32_t)event, 0, 0);
    return (int)rng_below(b.word[0], WORLD_ITEMS) + 1;
}

static inline void world_id(const world *w, int item, char text[32]) {
    int id = item == 0 ? WORLD_FIRST_ID : 1000 + 10 * item;
    /* Numbers of equal width, so that strings sort like numbers. */
    snprintf(text, 32, "%s%s%d", w->prefix != NULL ? w->prefix : "",
             w->has_text && item == 0 ? "000" : "", id);
}

static inline status world_add(const world *w, builder_sink *s, int user, int item, int event) {
    char id[32];
    uint32_t user_number, item_number;
    int64_t ticks = w->ticks > 0 ? w->ticks : 1;
    uint16_t action = (uint16_t)((user + event) % (w->n_codes > 0 ? w->n_codes : 5));
    if (item > 0 && item <= w->n_gone) return OK;
    world_id(w, item, id);
    TRY(sink_user(s, user, &user_number));
    TRY(w->has_text ? sink_item_text(s, id, strlen(id), &item_number)
                    : sink_item(s, atoll(id), &item_number));
    return sink_add_numbered(s, user_number, item_number, action,
                             (1000000000 + user * 1000 + event * 60) * ticks);
}

static inline status world_add_events(const world *w, builder_sink *s) {
    int n_more = 5;
    TRY(sink_begin_block(s, 0, WORLD_USERS * (WORLD_EVENTS + 2) + 8));
    for (int u = 1; u <= WORLD_USERS; u++) {
        for (int e = 0; e < WORLD_EVENTS; e++)
            TRY(world_add(w, s, u, world_item(u, e), 2 * e + 2));
        if (w->has_new_item && u == 3) TRY(world_add(w, s, u, 0, 2 * WORLD_EVENTS + 2));
        if (w->has_new_item && u == 4) TRY(world_add(w, s, u, 0, 5));
    }
    for (int e = 0; w->has_new_user && e < n_more; e++)
        TRY(world_add(w, s, 0, e % 2 == 0 ? 1 + e / 2 : 0, 2 * e));
    return sink_end_block(s);
}

static inline status world_set(builder *b, int feature, int user, const char *value) {
    char id[16];
    snprintf(id, sizeof id, "%d", user);
    return builder_set_context(b, feature, id, strlen(id), value, strlen(value));
}

static inline status world_add_context(const world *w, builder *b) {
    static const char *const ages[] = {"18", "25", "35"};
    int club, age, sex;
    if (w->has_new_values) TRY(builder_add_context(b, "club", &club));
    TRY(builder_add_context(b, "age", &age));
    TRY(builder_add_context(b, "sex", &sex));
    for (int u = 1; u <= WORLD_USERS; u++) {
        if (w->has_new_values) TRY(world_set(b, club, u, u % 2 == 0 ? "chess" : "go"));
        TRY(world_set(b, age, u, w->has_new_values && u == 9 ? "1" : ages[u % 3]));
        TRY(world_set(b, sex, u, u % 2 == 0 ? "f" : "m"));
    }
    return OK;
}

static inline status world_add_content(const world *w, builder *b, const char *id, int item,
                                       const int feature[2]) {
    char text[16];
    float *vector;
    snprintf(text, sizeof text, "%c|all", 'a' + item % (w->content + 2));
    TRY(builder_put_content(b, feature[0], text, strlen(text)));
    snprintf(text, sizeof text, "%d", 1900 + item * w->content);
    TRY(builder_put_content(b, feature[1], text, strlen(text)));
    TRY(builder_add_vector(b, id, strlen(id), &vector));
    vector[0] = (float)item, vector[1] = (float)w->content;
    return OK;
}

/* The whole catalogue, in events or not, with titles. */
static inline status world_add_titles(const world *w, builder *b) {
    static const content_spec kind = {.name = "kind"}, year = {.name = "year"};
    char id[32], title[64];
    int feature[2];
    if (w->content > 0) {
        TRY(builder_add_content(b, &kind, &feature[0]));
        TRY(builder_add_content(b, &year, &feature[1]));
        TRY(builder_begin_vectors(b, WORLD_ITEMS + 1, 2));
    }
    for (int i = w->has_new_item || w->has_idle_item ? 0 : w->n_gone + 1; i <= WORLD_ITEMS; i++) {
        if (i > 0 && i <= w->n_gone) continue;
        world_id(w, i, id);
        snprintf(title, sizeof title, "%s of %d", w->title != NULL ? w->title : "title", i);
        TRY(builder_add_item(b, id, strlen(id), title, strlen(title)));
        if (w->content > 0) TRY(world_add_content(w, b, id, i, feature));
    }
    return OK;
}

/* Writes the data; its path, in static memory. */
static inline const char *world_make(const world *w) {
    static char path[8][512];
    static int next;
    char *folder = path[next++ % 8];
    builder *b;
    builder_stats stats;
    builder_options o = {.has_text_items = w->has_text,
                         .actions = w->n_codes > 0      ? ACTION_CODE
                                    : w->has_half_stars ? ACTION_HALF_STARS
                                                        : ACTION_STARS,
                         .time_per_second = w->ticks > 0 ? w->ticks : 1};
    snprintf(folder, sizeof path[0], "%s/%s", test_folder(), w->folder);
    CHECK_OK(builder_create(&b, &o, NULL));
    CHECK_OK(world_add_events(w, builder_get_sink(b, 0)));
    CHECK_OK(world_add_titles(w, b));
    if (w->has_context) CHECK_OK(world_add_context(w, b));
    CHECK_OK(builder_write(b, folder, "{}", &stats));
    builder_destroy(b);
    return folder;
}

static inline seq_file *world_open(const world *w) {
    seq_file *s;
    CHECK_OK(seq_file_open(&s, world_make(w), NULL));
    return s;
}

#endif
