#include "serve/api_keys.h"

#include "oom.h"
#include "test.h"

static const char text[] = "# our keys\n\nsecret-one shop 2 # two a second\r\nsecret-two test 0\n";

TEST(api_keys_limit_requests) {
    api_keys *k;
    const char *name;
    uint64_t second = 1000000000, now = 5 * second;
    CHECK_OK(api_keys_read(&k, "keys", text, strlen(text)));
    CHECK_EQ(api_keys_use(k, NULL, now, &name), KEY_UNKNOWN);
    CHECK_EQ(api_keys_use(k, "secret", now, &name), KEY_UNKNOWN);
    CHECK_EQ(api_keys_use(k, "secret-onx", now, &name), KEY_UNKNOWN);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name), KEY_OK);
    CHECK_STR(name, "shop");
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name), KEY_OVER_QUOTA);
    CHECK_EQ(api_keys_use(k, "secret-one", now + second / 2, &name), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now + second / 2, &name), KEY_OVER_QUOTA);
    now += 100 * second; /* no more than a second's worth gathers */
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name), KEY_OK);
    CHECK_EQ(api_keys_use(k, "secret-one", now, &name), KEY_OVER_QUOTA);
    for (int i = 0; i < 100; i++)
        CHECK_EQ(api_keys_use(k, "secret-two", now, &name), KEY_OK);
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
    bad("secret-one shop 1 2\n", "keys:1");
    bad("short shop 1\n", "8 to 128 bytes");
    bad("secret-one shop many\n", "'many' is not a number");
    bad("secret-one shop -1\n", "is not a number");
    bad("secret-one a 1\nsecret-one b 1\n", "keys:2: this key is there twice");
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
