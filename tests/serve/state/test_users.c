#include "serve/state/users.h"

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
    engine_added out = {0};
    user_change c;
    CHECK_OK(users_prepare_add(u, &id, events, n, &c));
    users_apply(u, &c, &out);
    return out;
}

static user_history history(const users *u, const char *who) {
    id_text id = user_of(who);
    return users_history(u, &id);
}

static bool erase(users *u, const char *who) {
    id_text id = user_of(who);
    user_change c;
    CHECK_OK(users_prepare_erase(u, &id, &c));
    bool existed = c.existed;
    users_apply(u, &c, NULL);
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

/* What is prepared shows nothing, and what is reverted has not happened: the same ids can be sent
 * again, also where two changes of a user were on their way. */
TEST(users_change_nothing_that_is_reverted) {
    users u;
    user_change c[3];
    id_text who = user_of("7");
    engine_event e[2] = {event_at(1, 5), event_at(2, 6)};
    CHECK_OK(users_init(&u, NULL, 4));
    e[0].id = text("once");
    e[1].id = text("twice");
    CHECK_EQ(add(&u, "7", e, 1).n_added, 1);
    CHECK_OK(users_prepare_add(&u, &who, e, 2, &c[0]));
    CHECK_OK(users_prepare_add(&u, &who, e + 1, 1, &c[1]));
    CHECK(c[0].n_new == 1 && c[0].in[0].is_duplicate && c[1].n_new == 0);
    CHECK(history(&u, "7").n == 1 && users_n_items(&u) == 1);
    engine_event more[2] = {event_at(3, 7), event_at(4, 8)};
    CHECK_OK(users_prepare_add(&u, &who, more, 2, &c[2]));
    users_revert(&u, &c[2]);
    users_revert(&u, &c[1]);
    users_revert(&u, &c[0]);
    CHECK(u.n_prepared == 0 && u.prepared_item_bytes == 0 && u.state[0]->n_prepared == 0);
    CHECK(history(&u, "7").n == 1 && u.state[0]->ids.n == 1 && users_n_items(&u) == 1);
    CHECK(history(&u, "7").version == 1 && u.n_added == 1 && u.n_duplicates == 0);
    CHECK_EQ(add(&u, "7", e, 2).n_added, 1);
    CHECK_EQ(add(&u, "7", more, 2).n_events, 4);
    CHECK_FAILS(users_prepare_add(&u, &who, more, 1, &c[0]), ERR_UNSUPPORTED, "at most 4");
    more[1].time = INT64_MAX;
    CHECK_FAILS(users_prepare_add(&u, &who, more, 2, &c[0]), ERR_USAGE, "event 2");
    more[1].item = (engine_id){.text = "", .n = 0};
    CHECK_FAILS(users_prepare_add(&u, &who, more, 2, &c[0]), ERR_USAGE, "event 2");
    CHECK_OK(users_prepare_erase(&u, &who, &c[0]));
    CHECK(c[0].existed);
    users_revert(&u, &c[0]);
    CHECK_EQ(history(&u, "7").n, 4);
    /* Nor is a user left that a refused change was the first of. */
    id_text first = user_of("first"), second = user_of("second");
    CHECK_OK(users_prepare_add(&u, &first, e, 1, &c[0]));
    CHECK_OK(users_prepare_add(&u, &second, e, 1, &c[1]));
    CHECK_OK(users_prepare_add(&u, &first, e + 1, 1, &c[2]));
    CHECK_EQ(u.names.n, 3);
    for (int i = 3; i-- > 0;)
        users_revert(&u, &c[i]);
    CHECK_EQ(u.names.n, 1);
    engine_event many[5] = {event_at(1, 1), event_at(1, 2), event_at(1, 3), event_at(1, 4),
                            event_at(1, 5)};
    CHECK_FAILS(users_prepare_add(&u, &second, many, 5, &c[0]), ERR_UNSUPPORTED, "at most 4");
    CHECK_EQ(u.names.n, 1);
    users_fini(&u);
}

/* Room is made for all that is prepared at once, so that applying cannot fail. */
TEST(users_apply_many_prepared_changes) {
    enum { CHANGES = 200 };
    static user_change c[CHANGES];
    static engine_event e[CHANGES];
    users u;
    CHECK_OK(users_init(&u, NULL, 1000));
    for (int i = 0; i < CHANGES; i++) {
        id_text who = user_of(i % 3 == 0 ? "a" : "b");
        e[i] = event_at(1000000000 + i, CHANGES - i);
        CHECK_OK(users_prepare_add(&u, &who, &e[i], 1, &c[i]));
    }
    for (int i = 0; i < CHANGES; i++) {
        engine_added out = {0};
        users_apply(&u, &c[i], &out);
        CHECK(out.n_added == 1 && (out.n_late == 1) == (i > 1));
    }
    CHECK(history(&u, "a").n + history(&u, "b").n == CHANGES && users_n_items(&u) == CHANGES);
    CHECK(u.n_prepared == 0 && u.prepared_item_bytes == 0 && u.n_added == CHANGES);
    users_fini(&u);
}

/* An event of the data counts once: nightly data may have events that a server was sent. */
TEST(users_count_events_of_the_data_once) {
    seq_file *data;
    users u;
    char who[32];
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK_OK(users_init(&u, data, 1000));
    snprintf(who, sizeof who, "%lld", (long long)data->user_id[3]);
    user_history h = history(&u, who);
    stored_event old = user_history_at(&h, 2);
    engine_event e = {.item = users_item_id(&u, old.item), .has_time = true, .action = old.action};
    users_time(&u, old.time, &e.time, &e.time_ns);
    id_text id = user_of(who);
    bool is_known;
    CHECK_OK(users_has_event(&u, &id, &e, &is_known));
    CHECK(is_known);
    CHECK_EQ(add(&u, who, &e, 1).n_duplicates, 1);
    e.id = text("with an id");
    CHECK_EQ(add(&u, who, &e, 1).n_duplicates, 1);
    engine_event again = event_at(1, 5); /* another event with that id */
    again.id = e.id;
    CHECK_EQ(add(&u, who, &again, 1).n_duplicates, 1);
    engine_event other = e;
    other.id = (engine_id){0};
    other.action = (uint16_t)(old.action + 1);
    CHECK_EQ(add(&u, who, &other, 1).n_added, 1);
    CHECK_EQ(add(&u, who, &other, 1).n_added, 1); /* without an id, and not of the data */
    other = e;
    other.id = (engine_id){0};
    other.time++;
    CHECK_OK(users_has_event(&u, &id, &other, &is_known));
    CHECK(!is_known);
    /* So it is when a state is read. */
    user_state *s;
    size_t n = history(&u, who).n;
    CHECK_OK(users_restore_user(&u, who, strlen(who), 17, &s));
    CHECK_OK(users_restore_event(&u, s, &e, &is_known));
    CHECK(is_known && history(&u, who).n == n && s->row == 17);
    CHECK_OK(users_restore_event(&u, s, &other, &is_known));
    CHECK(!is_known && history(&u, who).n == n + 1);
    /* Of an erased user nothing of the data counts. */
    CHECK(erase(&u, who));
    CHECK_EQ(add(&u, who, &e, 1).n_added, 1);
    users_fini(&u);
    CHECK_OK(users_init(&u, data, 1000));
    CHECK_OK(users_restore_erased(&u, 3));
    CHECK(!history(&u, who).is_known && u.n_known == data->n_users - 1);
    users_fini(&u);
    seq_file_close(data);
}

/* Popular items and the number of users are those of the histories. */
static void check_counts(const users *u) {
    uint64_t n_known = 0;
    uint32_t *counts = calloc(u->n_counts, sizeof *counts);
    for (uint64_t i = 0; i < u->n_data_users; i++) {
        engine_id id;
        id_text name;
        CHECK_OK(users_data_name(u, i, &id, &name));
        user_history h = users_history(u, &name);
        n_known += h.is_known;
        for (size_t k = 0; k < h.n; k++)
            counts[user_history_at(&h, k).item]++;
    }
    for (uint32_t i = 0; i < u->names.n; i++) {
        const user_state *s = u->state[i];
        if (s->data_user < u->n_data_users) continue;
        n_known += s->n > 0;
        for (size_t k = 0; k < s->n; k++)
            counts[s->events[k].item]++;
    }
    CHECK_EQ(u->n_known, n_known);
    for (size_t i = 1; i < u->n_counts; i++)
        CHECK_EQ(u->counts[i], counts[i]);
    free(counts);
}

/* Users move to other data with what they added; what is in that data counts once, what was stored
 * and is not in it any more counts again, and the erased stay so. */
TEST(users_move_to_other_data) {
    seq_file *data;
    users u, fresh;
    char who[3][32];
    user_state *s;
    bool is_known;
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    CHECK_OK(users_init(&u, data, 1000));
    for (int i = 0; i < 3; i++)
        snprintf(who[i], sizeof who[i], "%lld", (long long)data->user_id[i]);
    stored_event old = {.time = data->time[1], .item = data->item[1], .action = data->action[1]};
    engine_event same = {
        .item = users_item_id(&u, old.item), .has_time = true, .action = old.action};
    users_time(&u, old.time, &same.time, &same.time_ns);
    engine_event named = event_at(77, 1900000000);
    named.id = text("order");
    CHECK_OK(users_restore_user(&u, who[0], strlen(who[0]), 17, &s));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(users_restore_event(&u, s, &same, &is_known));
        CHECK(is_known);
    }
    CHECK_EQ(add(&u, who[0], &named, 1).n_added, 1);
    CHECK_EQ(add(&u, "new", &named, 1).n_added, 1);
    CHECK(erase(&u, who[1]) && erase(&u, who[2]));
    CHECK_EQ(add(&u, who[2], &named, 1).n_added, 1);
    CHECK_OK(users_restore_user(&u, who[2], strlen(who[2]), 23, &s));
    same.id = text("seen"); /* known, but not by an event of its own */
    CHECK_EQ(add(&u, who[0], &same, 1).n_duplicates, 1);
    same.id = (engine_id){0};
    engine_event seen = event_at(3, 7);
    seen.id = text("seen");
    check_counts(&u);
    size_t n = history(&u, who[0]).n;
    CHECK_OK(users_init(&fresh, data, 1000));
    CHECK_OK(users_restore_erased(&fresh, 1)); /* as the state says of one of them */
    CHECK_OK(users_take(&fresh, &u));
    CHECK(history(&fresh, who[0]).version > history(&u, who[0]).version);
    users_fini(&u);
    check_counts(&fresh);
    CHECK(history(&fresh, who[0]).n == n && fresh.n_added == 3);
    CHECK(!history(&fresh, who[1]).is_known && history(&fresh, who[2]).n == 1);
    CHECK(history(&fresh, "new").n == 1);
    for (uint32_t i = 0; i < fresh.names.n; i++) {
        size_t length;
        const char *name = text_map_get(&fresh.names, i, &length);
        int64_t row = strncmp(name, who[0], length) == 0   ? 17
                      : strncmp(name, who[2], length) == 0 ? 23
                                                           : 0;
        CHECK_EQ(fresh.state[i]->row, row);
    }
    CHECK_EQ(add(&fresh, who[0], &seen, 1).n_duplicates, 1);
    CHECK_EQ(add(&fresh, who[0], &named, 1).n_duplicates, 1);
    CHECK_EQ(add(&fresh, who[0], &same, 1).n_duplicates, 1);
    /* To no data: what is left is what the state has. */
    CHECK_OK(users_init(&u, NULL, 1000));
    CHECK_OK(users_take(&u, &fresh));
    users_fini(&fresh);
    check_counts(&u);
    user_history h = history(&u, who[0]);
    CHECK(h.n == 2 && u.n_known == 3 && u.ticks == 1000000000);
    int64_t seconds;
    uint32_t ns;
    users_time(&u, user_history_at(&h, 0).time, &seconds, &ns);
    CHECK(seconds == same.time && ns == same.time_ns);
    CHECK_EQ(add(&u, who[0], &named, 1).n_duplicates, 1);
    /* And back. */
    CHECK_OK(users_init(&fresh, data, 1000));
    CHECK_OK(users_take(&fresh, &u));
    check_counts(&fresh);
    CHECK(history(&fresh, who[0]).n == n && history(&fresh, who[2]).n == 1);
    CHECK(!history(&fresh, who[1]).is_known);
    users_fini(&fresh);
    users_fini(&u);
    seq_file_close(data);
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

/* Times that do not fit the ticks of the data keep their place: before all others, or after. */
TEST(users_restore_times_out_of_range) {
    static const int64_t times[] = {5, INT64_MAX / 2, 4, -INT64_MAX / 2, 6};
    static const char *const want[] = {"13", "12", "10", "14", "11"};
    users u;
    user_state *s;
    bool is_known;
    CHECK_OK(users_init(&u, NULL, 3));
    CHECK_OK(users_restore_user(&u, "ann", 3, 1, &s));
    for (int i = 0; i < 5; i++) {
        char item[8];
        snprintf(item, sizeof item, "%d", 10 + i);
        engine_event e = event_at(0, times[i]);
        e.item = text(item);
        CHECK_OK(users_restore_event(&u, s, &e, &is_known));
        CHECK(!is_known);
    }
    user_history h = history(&u, "ann");
    CHECK_EQ(h.n, 5);
    for (size_t i = 0; i < 5; i++) {
        engine_id id = users_item_id(&u, user_history_at(&h, i).item);
        CHECK(id.n == 2 && memcmp(id.text, want[i], 2) == 0);
    }
    users_fini(&u);
}

static status grow(void *ctx) {
    users u;
    status st = users_init(&u, ctx, 1000);
    for (int i = 0; i < 6 && st == OK; i++) {
        id_text who = user_of(i % 2 == 0 ? "1" : "stranger");
        engine_event e[2] = {event_at(1000 + i, i), event_at(1, 3)};
        char id[16];
        engine_added out = {0};
        user_change c;
        snprintf(id, sizeof id, "id%d", i);
        e[0].id = text(id);
        size_t n = users_history(&u, &who).n;
        st = users_prepare_add(&u, &who, e, 2, &c);
        CHECK_EQ(users_history(&u, &who).n, n);
        if (st == OK) users_apply(&u, &c, &out);
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
