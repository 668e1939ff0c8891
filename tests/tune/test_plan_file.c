#include "tune/plan_file.h"

#include "format/json.h"
#include "test.h"

/* A sealed file with this content before the seal. */
static const char *write_plan(const char *content) {
    static char path[4096];
    buf text = {0};
    snprintf(path, sizeof path, "%s/plan.json", test_folder());
    CHECK_OK(buf_text(&text, content));
    CHECK_OK(json_add_seal(&text));
    FILE *f = fopen(path, "wb");
    fwrite(buf_str(&text), 1, text.n_bytes, f);
    fclose(f);
    buf_fini(&text);
    return path;
}

TEST(a_plan_is_read) {
    plan_file f;
    const char *path = write_plan(
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"bert\",\n  "
        "\"value\": 41115,\n"
        "  \"tiles\": [{\"start\": 3, \"end\": 7, \"m\": 64, \"n\": 32, \"k\": 16, \"warps_m\": 4, "
        "\"warps_n\": 1}]\n}");
    CHECK_OK(plan_file_read(&f, path));
    CHECK_STR(f.layer, "bert");
    CHECK(f.value == 41115 && f.n_tiles == 1 && f.tile[0].first == 2 && f.tile[0].last == 6);
    CHECK(f.tile[0].params.tile_m == 64 && f.tile[0].params.warps_n == 1);
    CHECK_EQ(test_command(NULL, "sed -i s/41115/41114/ '%s'", path), 0);
    CHECK_FAILS(plan_file_read(&f, path), ERR_FORMAT, "modified since");
    CHECK_FAILS(plan_file_read(&f, "/nowhere/plan.json"), ERR_IO, "nowhere");
}

TEST(a_kernel_may_be_an_op_of_the_backend) {
    plan_file f;
    const char *path = write_plan(
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"bert\",\n  "
        "\"value\": 41115,\n  \"tiles\": [{\"start\": 1, \"end\": 2, \"library\": 1}]\n}");
    CHECK_OK(plan_file_read(&f, path));
    CHECK(f.n_tiles == 1 && f.tile[0].last == 1 && f.tile[0].params.library == LIBRARY);
    path = write_plan(
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"bert\",\n  "
        "\"value\": 41115,\n  \"tiles\": [{\"start\": 1, \"end\": 2, \"library\": 3}]\n}");
    CHECK_FAILS(plan_file_read(&f, path), ERR_FORMAT, "library");
}

TEST(plans_that_are_none) {
    static const char *const bad[] = {
        "{\n  \"kind\": \"hstu plan cost model\"\n}",
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 2,\n  \"layer\": \"bert\",\n  "
        "\"value\": 1\n}",
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"bert\",\n  "
        "\"value\": 65536\n}",
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"a layer with a "
        "long name\",\n  \"value\": 1\n}",
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"bert\",\n  "
        "\"value\": 1,\n  \"tiles\": 3\n}",
        "{\n  \"kind\": \"hstu fusion plan\",\n  \"version\": 1,\n  \"layer\": \"bert\",\n  "
        "\"value\": 1,\n  \"tiles\": [{\"start\": 16}]\n}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        plan_file f;
        CHECK_FAILS(plan_file_read(&f, write_plan(bad[i])), ERR_FORMAT, "plan.json");
    }
}
