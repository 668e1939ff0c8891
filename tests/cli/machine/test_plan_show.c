#include "format/json.h"
#include "test.h"

TEST(first_line_table_and_reasons) {
    char *text;
    CHECK_EQ(test_command(&text, "'%s' plan show 0001101010101010", test_program()), 0);
    CHECK(strncmp(text, "6826 0 2 1 2 3 4\n", 17) == 0);
    CHECK_CONTAINS(text, "gemm0 + bias0");
    CHECK_CONTAINS(text, "Segment 3-4 is legal");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 0000000000000000 --layer hstu", test_program()),
             0);
    CHECK(strncmp(text, "0 0 1 1 15\n", 11) == 0);
    CHECK_CONTAINS(text, "illegal: split into 5 kernels");
    CHECK_CONTAINS(text, "after operator 5: qk is a product");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 32768", test_program()), 0);
    CHECK_CONTAINS(text, "Bit 0 has no effect");
    free(text);
}

TEST(json_and_picture) {
    char *text;
    arena memory;
    const json_value *root;
    int64_t value;
    arena_init(&memory, 1 << 12);
    CHECK_EQ(test_command(&text, "'%s' plan show 41115 --json --svg '%s/plan.svg'", test_program(),
                          test_folder()),
             0);
    CHECK_OK(json_parse(&memory, "plan", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "value", &value));
    CHECK_EQ(value, 41115);
    CHECK_EQ(json_member(root, "kernels")->n_children, 8);
    arena_fini(&memory);
    free(text);
    CHECK_EQ(test_command(&text, "cat '%s/plan.svg'", test_folder()), 0);
    CHECK_CONTAINS(text, "<svg xmlns");
    free(text);
}

TEST(bad_input_is_a_sentence) {
    static const char *const cases[][2] = {{"65536", "beyond 65535"},
                                           {"010101010101010", "15 bits"},
                                           {"1 --layer brt", "did you mean 'bert'?"},
                                           {"x", "neither a value"},
                                           {"1 2", "2"},
                                           {"1 --heads 0", "--heads"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text;
        CHECK_EQ(test_command(&text, "'%s' plan show %s", test_program(), cases[i][0]), 2);
        CHECK_CONTAINS(text, cases[i][1]);
        free(text);
    }
    CHECK_EQ(test_command(NULL, "'%s' plan show 1 --svg /nowhere/x.svg", test_program()), 1);
}

TEST(source_of_every_kernel) {
    char *text;
    CHECK_EQ(test_command(&text, "'%s' plan show 1365 --layer hstu --source | grep -c '^ENTRY'",
                          test_program()),
             0);
    CHECK_EQ(atoi(text), 13);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 0 --source --cuda", test_program()), 0);
    CHECK_CONTAINS(text, "#define ELEM_BITS 16");
    CHECK_CONTAINS(text, "ENTRY(bert_3_7, bert_3_7_block)");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 6826 --source --heads 1 --dim 8 --ffn 57",
                          test_program()),
             0);
    CHECK_CONTAINS(text, "n_end = tile < 1 ? 57 : 57");
    free(text);
}
