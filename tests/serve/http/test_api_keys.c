#include "serve/http/api_keys.h"

#include "oom.h"
#include "test.h"

static const char text[] = "# our keys\n\nsecret-one shop 2 # two a second\r\nsecret-two test 0\n";

TEST(api_keys_limit_requests) {
    api_keys *k;
    const char *name;
    unsigned roles;
    uint64_t second = 1000000000, now = 5 * second;
    CHECK_OK(api_keys_read(&k, "keys", text, strlen(text)));
    CHECK_EQ(api_keys_use(k, NULL, now, &name, &roles), KEY_UNKNOWN);
    CHECK_EQ(api_keys_use(k, "secret", now, &name, &roles), KEY_UNKNOWN);
    CHECK_EQ(api_keys_use(k, "secret-onx", now, &name, &roles), KEY_UNKNOWN);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name, &roles), KEY_OK);
    CHECK_STR(name, "shop");
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name, &roles), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name, &roles), KEY_OVER_QUOTA);
    CHECK_EQ(api_keys_use(k, "secret-one", now + second / 2, &name, &roles), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now + second / 2, &name, &roles), KEY_OVER_QUOTA);
    now += 100 * second; /* no more than a second's worth gathers */
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name, &roles), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name, &roles), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name, &roles), KEY_OVER_QUOTA);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(api_keys_use(k, "secret-two", now, &name, &roles), KEY_OK);
    api_keys_close(k);
}

static unsigned roles_of(api_keys *k, const char *key) {
    const char *name;
    unsigned roles;
    CHECK_EQ(api_keys_use(k, key, 1, &name, &roles), KEY_OK);
    return roles;
}

TEST(api_keys_have_roles) {
    static const char file[] = "key-of-old a 0\nkey-of-page b 0 read # a page\n"
                               "key-of-shop c 0 read,events\nkey-of-boss d 0 admin\n";
    api_keys *k;
    const char *name;
    unsigned roles = 99;
    CHECK_OK(api_keys_read(&k, "keys", file, strlen(file)));
    CHECK_EQ(roles_of(k, "key-of-old"), KEY_ALL);
    CHECK_EQ(roles_of(k, "key-of-page"), KEY_READ);
    CHECK_EQ(roles_of(k, "key-of-shop"), KEY_READ + KEY_EVENTS);
    CHECK_EQ(roles_of(k, "key-of-boss"), KEY_ADMIN);
    CHECK_EQ(api_keys_without_roles(k), 1);
    CHECK_EQ(api_keys_use(k, "key-of-none", 1, &name, &roles), KEY_UNKNOWN);
    CHECK_EQ(roles, 0);
    api_keys_close(k);
}

static void bad(const char *content, const char *reason) {
    api_keys *k;
    CHECK_FAILS(api_keys_read(&k, "keys", content, strlen(content)), ERR_FORMAT, reason);
    CHECK(k == NULL);
}

TEST(api_keys_refuse_bad_files) {
    bad("", "no key");
    bad("# none\n", "no key");
    bad("secret-one shop\n", "keys:1: a line is KEY NAME");
    bad("secret-one shop 1 2\n", "keys:1: '2': roles are read, events and admin");
    bad("secret-one shop 1 read,\n", "'read,': roles are");
    bad("secret-one shop 1 ,read\n", "roles are");
    bad("secret-one shop 1 reads\n", "roles are");
    bad("secret-one shop 1 rea\n", "roles are");
    bad("secret-one shop 1 read events\n", "a line is KEY NAME");
    bad("short shop 1\n", "8 to 128 bytes");
    bad("secret-one shop many\n", "'many' is not a number");
    bad("secret-one shop -1\n", "is not a number");
    bad("secret-one a 1\nsecret-one b 1\n", "keys:2: this key appears twice");
}

/* Lengths up to the limits are fine, one byte more is not. */
TEST(api_keys_have_limits) {
    static const struct {
        int n_key, n_name, n_rate;
        bool is_good;
    } cases[] = {
        {API_KEY_MIN, 1, 1, true},
        {API_KEY_MIN - 1, 1, 1, false},
        {API_KEY_MAX, API_KEY_NAME - 1, 31, true},
        {API_KEY_MAX + 1, 1, 1, false},
        {API_KEY_MAX, API_KEY_NAME, 1, false},
        {API_KEY_MAX, 1, 32, false},
    };
    char letters[API_KEY_MAX + 2], line[400];
    memset(letters, 'k', sizeof letters);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_keys *k;
        const char *name;
        unsigned roles;
        snprintf(line, sizeof line, "%.*s %.*s %0*d\n", cases[i].n_key, letters, cases[i].n_name,
                 letters, cases[i].n_rate, 1);
        if (!cases[i].is_good) {
            bad(line, "a line is KEY NAME");
            continue;
        }
        CHECK_OK(api_keys_read(&k, "keys", line, strlen(line)));
        line[cases[i].n_key] = '\0';
        CHECK_EQ(api_keys_use(k, line, 1, &name, &roles), KEY_OK);
        CHECK_EQ(api_keys_use(k, line, 1, &name, &roles), KEY_OVER_QUOTA); /* one a second */
        CHECK_EQ(strlen(name), cases[i].n_name);
        line[cases[i].n_key - 1] = '\0';
        CHECK_EQ(api_keys_use(k, line, 1, &name, &roles), KEY_UNKNOWN);
        api_keys_close(k);
    }
}

/* Rates below one a second: the next request is let in when its time has come, not before. */
TEST(api_keys_count_slow_rates) {
    static const char file[] = "secret-key slow 0.5\n";
    static const struct {
        uint64_t at_ms;
        key_verdict want;
    } cases[] = {{10000, KEY_OK}, {11000, KEY_OVER_QUOTA}, {11999, KEY_OVER_QUOTA},
                 {12001, KEY_OK}, {99000, KEY_OK},         {99000, KEY_OVER_QUOTA}};
    api_keys *k;
    const char *name;
    unsigned roles;
    CHECK_OK(api_keys_read(&k, "keys", file, strlen(file)));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (api_keys_use(k, "secret-key", cases[i].at_ms * 1000000, &name, &roles) != cases[i].want)
            FAIL_TEST("at %" PRIu64 " ms: wanted %d", cases[i].at_ms, cases[i].want);
    api_keys_close(k);
}

static status read_and_close(void *context) {
    api_keys *k;
    TRY(api_keys_read(&k, "keys", context, strlen(context)));
    api_keys_close(k);
    return OK;
}

TEST(api_keys_report_lack_of_memory) {
    CHECK(oom_at_each_allocation(read_and_close, (char *)text) >= 2);
}
