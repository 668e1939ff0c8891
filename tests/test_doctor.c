#include "base/json.h"
#include "test.h"

TEST(doctor_ends_with_a_verdict) {
    char *text;
    CHECK_EQ(test_command(&text, "%s doctor", test_program()), 0);
    CHECK_CONTAINS(text, ", for matrix products on the CPU\n");
    CHECK_CONTAINS(text, "\n  ok  memory ");
    const char *verdict = strstr(text, "\nfit: yes");
    CHECK(verdict != NULL && strchr(verdict + 1, '\n')[1] == '\0');
    CHECK(strchr(text, '\033') == NULL); /* no colours in a pipe */
    free(text);
}

TEST(doctor_json_is_one_object) {
    char *text;
    arena a;
    const json_value *root, *fit;
    int64_t cores;
    const char *products;
    arena_init(&a, 4096);
    CHECK_EQ(test_command(&text, "%s doctor --json", test_program()), 0);
    CHECK_OK(json_parse(&a, "doctor", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "usable_cores", &cores));
    CHECK(cores >= 1);
    CHECK_OK(json_member_string(root, "products", &products));
    CHECK_CONTAINS(products, "x"); /* rows x columns of a tile */
    fit = json_member(root, "fit");
    CHECK(fit != NULL && fit->type == JSON_BOOL && fit->boolean);
    CHECK_EQ(json_member(root, "libraries")->n_children, 12);
    const json_value *ranks = json_member(root, "ranks");
    CHECK(ranks != NULL && ranks->type == JSON_BOOL && ranks->boolean);
    CHECK(json_member(root, "gpus")->type == JSON_ARRAY);
    arena_fini(&a);
    free(text);
}

/* What this build lacks is named with its remedy; `make MINIMAL=1` lacks all of it. */
TEST(doctor_says_how_to_get_what_is_missing) {
    char *text;
    CHECK_EQ(test_command(&text, "%s doctor", test_program()), 0);
#ifdef HSTU_HAS_ARCHIVE
    CHECK_CONTAINS(text, "\n  ok  libarchive   3.");
#else
    CHECK_CONTAINS(text, "\n  --  libarchive   not in this build; it adds reading .zip");
    CHECK_CONTAINS(text, "apt-get install libarchive-dev, then make");
#endif
#ifdef HSTU_HAS_CUDA
    CHECK_CONTAINS(text, "\n  ok  CUDA ");
#else
    CHECK_CONTAINS(text, "put nvcc on PATH");
#endif
    free(text);
}
