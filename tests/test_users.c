#include "serve/users.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/rng.h"
#include "oom.h"
#include "train_test.h"

static engine_id number(int64_t n) {
    return (engine_id){.number = n, .n = 1};
}

static engine_id text(const char *t) {
    return (engine_id){.text = t, .n = strlen(t)};
}

static id_text user_of(const char *t) {
    id_text id;
    engine_id e = text(t);
    CHECK_OK(id_text_make(&id, &e, "the user"));
    return id;
}

static engine_event event_at(int64_t item, int64_t time) {
    return (engine_event){.item = number(item), .has_time = true, .time = time};
}

static engine_added add(users *u, const char *who, const engine_event *events, size_t n) {
    id_text id = user_of(who);
    engine_added out;
    uint64_t ticket;
    CHECK_OK(users_add(u, &id, events, n, NULL, &ticket, &out));
    return out;
}

static user_history history(const users *u, const char *who) {
    id_text id = user_of(who);
    return users_history(u, &id);
}

static bool erase(users *u, const char *who) {
    id_text id = user_of(who);
    uint64_t ticket;
    bool existed;
    CHECK_OK(users_erase(u, &id, NULL, &ticket, &existed));
    return existed;
}

/* A user of the data keeps its events, and gets new ones at their places by time. */
TEST(users_write_numbers_as_printf_does) {
    static const int64_t numbers[] = {0, 7, -1, 10, -90, 1234567890123, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        id_text id;
        char want[32];
        engine_id e = number(numbers[i]);
        CHECK_OK(id_text_make(&id, &e, "the item"));
        CHECK_EQ(id.n, (size_t)snprintf(want, sizeof want, "%" PRId64, numbers[i]));
        CHECK(strcmp(id.text, want) == 0);
    }
}

TEST(users_put_events_in_order_of_time) {
    seq_file *data;
    users u;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK_OK(users_init(&u, data, 1000));
    char who[32];
    snprintf(who, sizeof who, "%lld", (long long)data->user_id[3]);
    user_history before = history(&u, who);
    size_t n = (size_t)seq_length(data, 3);
    CHECK(before.is_known && before.n == n && before.own == NULL && n > 4);
    int64_t tps = data->time_per_second, last = data->time[data->offsets[4] - 1];
    stored_event middle = user_history_at(&before, 2);
    engine_event events[3] = {event_at(data->item_id[5], last / tps + 50),
                              event_at(data->item_id[6], middle.time / tps),
                              event_at(data->item_id[7], last / tps + 20)};
    engine_added out = add(&u, who, events, 3);
    CHECK(out.n_added == 3 && out.n_late == 1 && out.n_events == n + 3);
    user_history after = history(&u, who);
    CHECK(after.n == n + 3 && after.version == 1 && after.is_known);
    for (size_t i = 1; i < after.n; i++)
        CHECK(user_history_at(&after, i).time >= user_history_at(&after, i - 1).time);
    CHECK_EQ(user_history_at(&after, after.n - 1).item, 5);
    CHECK_EQ(user_history_at(&after, after.n - 2).item, 7);
    /* Of equal times the newcomer is the later one. */
    size_t at = 0;
    while (!user_history_at(&after, at).is_added)
        at++;
    CHECK(at >= 3 && user_history_at(&after, at).item == 6);
    CHECK(user_history_at(&after, at + 1).time > middle.time || at + 1 == after.n - 2);
    CHECK_EQ(u.n_known, data->n_users);
    users_fini(&u);
    seq_file_close(data);
}

/* An id counts once, also within one call; unknown items are kept and named. */
TEST(users_add_an_event_id_once) {
    users u;
    CHECK_OK(users_init(&u, NULL, 1000));
    engine_event e[3] = {event_at(1, 100), event_at(2, 90), event_at(3, 80)};
    e[0].id = text("a");
    e[1].id = number(17);
    e[2].id = text("a");
    engine_added out = add(&u, "eve", e, 3);
    CHECK(out.n_added == 2 && out.n_duplicates == 1 && out.n_events == 2);
    out = add(&u, "eve", e, 3);
    CHECK(out.n_added == 0 && out.n_duplicates == 3 && out.n_events == 2);
    CHECK_EQ(history(&u, "eve").version, 1); /* nothing changed */
    e[1].id = text("17");                    /* the same id */
    CHECK_EQ(add(&u, "eve", e + 1, 1).n_duplicates, 1);
    CHECK_EQ(add(&u, "other", e, 1).n_added, 1); /* another user's ids are its own */
    user_history h = history(&u, "eve");
    engine_id item = users_item_id(&u, user_history_at(&h, 0).item);
    CHECK(item.n == 1 && item.text[0] == '2');
    CHECK_EQ(u.counts[user_history_at(&h, 1).item], 2);
    /* Forgotten with the user. */
    CHECK(erase(&u, "eve") && !erase(&u, "eve"));
    CHECK(!history(&u, "eve").is_known && u.n_known == 1);
    CHECK_EQ(add(&u, "eve", e, 3).n_added, 2);
    users_fini(&u);
}

/* A journal in memory: a list of records with their texts. */
typedef struct journal {
    arena arena;
    engine_record record[256];
    size_t n;
    bool fails;
} journal;

static status append(void *ctx, const engine_record *records, size_t n, uint64_t *ticket) {
    journal *j = ctx;
    if (j->fails) return fail(ERR_IO, "the disk is full");
    for (size_t i = 0; i < n; i++) {
        engine_record *r = &j->record[j->n++];
        *r = records[i];
        TRY(arena_copy_text(&j->arena, r->user.text, r->user.n, &r->user.text));
        if (r->kind == ENGINE_RECORD_ERASE) continue;
        CHECK(r->event.has_time && r->event.item.text != NULL);
        TRY(arena_copy_text(&j->arena, r->event.item.text, r->event.item.n, &r->event.item.text));
        if (r->event.id.n > 0)
            TRY(arena_copy_text(&j->arena, r->event.id.text, r->event.id.n, &r->event.id.text));
    }
    *ticket = j->n;
    return OK;
}

static status append_one(void *ctx, const engine_record *r) {
    uint64_t ticket;
    return append(ctx, r, 1, &ticket);
}

static void replay(users *u, const journal *j) {
    for (size_t i = 0; i < j->n; i++) {
        const engine_record *r = &j->record[i];
        id_text id;
        uint64_t ticket;
        bool existed;
        engine_added out;
        CHECK_OK(id_text_make(&id, &r->user, "the user"));
        if (r->kind == ENGINE_RECORD_ERASE)
            CHECK_OK(users_erase(u, &id, NULL, &ticket, &existed));
        else
            CHECK_OK(users_add(u, &id, &r->event, 1, NULL, &ticket, &out));
    }
}

static void check_same_user(const users *a, const users *b, const char *who) {
    user_history x = history(a, who), y = history(b, who);
    CHECK(x.n == y.n && x.is_known == y.is_known);
    for (size_t i = 0; i < x.n; i++) {
        stored_event p = user_history_at(&x, i), q = user_history_at(&y, i);
        engine_id own = users_item_id(a, p.item), other = users_item_id(b, q.item);
        CHECK(p.time == q.time && p.action == q.action && own.number == other.number);
        CHECK(own.n == other.n && (own.n == 0 || memcmp(own.text, other.text, own.n) == 0));
    }
}

/* Users of the data and others; random events, repeated ids, erasures. */
static void random_change(users *u, const engine_journal *j, const seq_file *data, uint32_t step) {
    rng_block r = rng_draw(rng_make_key(3, RNG_TEST), step, 0, 0, 0);
    char who[32], id[32];
    engine_event e[2];
    uint64_t ticket;
    snprintf(who, sizeof who, "%lld",
             r.word[0] % 3 == 0 ? (long long)(900 + r.word[1] % 3)
                                : (long long)data->user_id[r.word[1] % 4]);
    id_text user = user_of(who);
    if (r.word[2] % 8 == 0) {
        bool existed;
        CHECK_OK(users_erase(u, &user, j, &ticket, &existed));
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        rng_block s = rng_draw(rng_make_key(4, RNG_TEST), step, i, 0, 0);
        e[i] = event_at(s.word[0] % 70, 900000000 + s.word[1] % 200000000);
        e[i].action = (uint16_t)(s.word[2] % 5);
        snprintf(id, sizeof id, "e%u", s.word[3] % 40);
        if (s.word[2] % 2 == 0) e[i].id = text(i == 0 ? id : "same");
        engine_added out;
        CHECK_OK(users_add(u, &user, &e[i], 1, j, &ticket, &out));
    }
}

/* The journal leads to the same state, and so does the shorter one that a visit writes. */
TEST(users_are_the_same_after_a_replay) {
    static journal j, shorter;
    seq_file *data;
    users u, again, third;
    engine_journal to = {.ctx = &j, .append = append};
    arena_init(&j.arena, 1 << 12);
    arena_init(&shorter.arena, 1 << 12);
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK_OK(users_init(&u, data, 1000));
    CHECK_OK(users_init(&again, data, 1000));
    CHECK_OK(users_init(&third, data, 1000));
    for (uint32_t step = 0; step < 90; step++)
        random_change(&u, &to, data, step);
    replay(&again, &j);
    CHECK_OK(users_visit(&u, append_one, &shorter));
    CHECK(shorter.n > 10 && shorter.n < j.n);
    replay(&third, &shorter);
    for (int i = 0; i < 7; i++) {
        char who[32];
        snprintf(who, sizeof who, "%lld", i < 3 ? 900ll + i : (long long)data->user_id[i - 3]);
        check_same_user(&u, &again, who);
        check_same_user(&u, &third, who);
    }
    CHECK(u.n_known == again.n_known && u.n_known == third.n_known);
    users_fini(&u);
    users_fini(&again);
    users_fini(&third);
    arena_fini(&j.arena);
    arena_fini(&shorter.arena);
    seq_file_close(data);
}

/* What the journal refuses has not happened: the same id can be sent again. */
TEST(users_change_nothing_that_the_journal_refuses) {
    static journal j;
    users u;
    engine_journal to = {.ctx = &j, .append = append};
    engine_added out;
    uint64_t ticket;
    bool existed;
    id_text who = user_of("7");
    engine_event e = event_at(1, 5);
    e.id = text("once");
    arena_init(&j.arena, 1 << 12);
    CHECK_OK(users_init(&u, NULL, 3));
    j.fails = true;
    CHECK_FAILS(users_add(&u, &who, &e, 1, &to, &ticket, &out), ERR_IO, "disk is full");
    CHECK(history(&u, "7").n == 0 && !history(&u, "7").is_known);
    j.fails = false;
    CHECK_OK(users_add(&u, &who, &e, 1, &to, &ticket, &out));
    CHECK_EQ(out.n_added, 1);
    j.fails = true;
    CHECK_FAILS(users_erase(&u, &who, &to, &ticket, &existed), ERR_IO, "disk is full");
    CHECK_EQ(history(&u, "7").n, 1);
    j.fails = false;
    engine_event more[3] = {event_at(1, 6), event_at(1, 7), event_at(1, 8)};
    CHECK_FAILS(users_add(&u, &who, more, 3, &to, &ticket, &out), ERR_UNSUPPORTED, "at most 3");
    CHECK_EQ(j.n, 1);
    more[1].time = INT64_MAX;
    CHECK_FAILS(users_add(&u, &who, more, 2, &to, &ticket, &out), ERR_USAGE, "event 2");
    more[1].item = (engine_id){.text = "", .n = 0};
    CHECK_FAILS(users_add(&u, &who, more, 2, &to, &ticket, &out), ERR_USAGE, "event 2");
    CHECK(history(&u, "7").n == 1 && j.n == 1);
    users_fini(&u);
    arena_fini(&j.arena);
}

/* Seconds and fractions survive, before 1970 too. */
TEST(users_keep_times) {
    users u;
    int64_t s, ticks;
    uint32_t ns;
    CHECK_OK(users_init(&u, NULL, 3));
    static const int64_t seconds[] = {0, 1900000000, -5};
    for (int i = 0; i < 3; i++) {
        engine_event e = event_at(1, seconds[i]);
        e.time_ns = 123456789;
        CHECK_OK(users_ticks(&u, &e, 0, &ticks));
        users_time(&u, ticks, &s, &ns);
        CHECK(s == seconds[i] && ns == 123456789);
    }
    u.ticks = 1000;
    users_time(&u, -1, &s, &ns);
    CHECK(s == -1 && ns == 999000000);
    users_fini(&u);
}

static status grow(void *ctx) {
    users u;
    status st = users_init(&u, ctx, 1000);
    for (int i = 0; i < 6 && st == OK; i++) {
        id_text who = user_of(i % 2 == 0 ? "1" : "stranger");
        engine_event e[2] = {event_at(1000 + i, i), event_at(1, 3)};
        char id[16];
        engine_added out;
        uint64_t ticket;
        snprintf(id, sizeof id, "id%d", i);
        e[0].id = text(id);
        size_t n = users_history(&u, &who).n;
        st = users_add(&u, &who, e, 2, NULL, &ticket, &out);
        CHECK_EQ(users_history(&u, &who).n, st == OK ? n + 2 : n);
    }
    users_fini(&u);
    return st;
}

TEST(users_out_of_memory) {
    seq_file *data;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK(oom_at_each_allocation(grow, data) > 10);
    seq_file_close(data);
}
