/* hstu mask show, from outside. */
#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "test.h"

static char *said(int code, const char *options) {
    char *text;
    CHECK_EQ(test_command(&text, "%s mask show %s", test_program(), options), code);
    return text;
}

TEST(mask_show_picture) {
    char *text = said(0, "causal --n 4");
    CHECK_CONTAINS(text, "  \xe2\x96\x88\xe2\x96\x84\xc2\xb7\xc2\xb7\n"
                         "  \xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x84\n");
    CHECK_CONTAINS(text, "10 of 16: density 0.6250, sparsity 37.5 %");
    CHECK_CONTAINS(text, "1 to 4, mean 2.5");
    CHECK_CONTAINS(text, "STOF's rule has no threshold");
    free(text);
    text = said(0, "sliding,window=64,causal --n 1024");
    CHECK_CONTAINS(text, "(a character is 32 x 16 pairs)");
    CHECK_CONTAINS(text, "density 0.0615, sparsity 93.9 %");
    CHECK_CONTAINS(text, "0.0 % full, 12.1 % partial, 87.9 % empty");
    free(text);
}

/* The numbers that STOF's own rule gives for its masks. */
TEST(mask_show_json) {
    char *text = said(0, "sliding,window=32 --n 4096 --json");
    CHECK_CONTAINS(text, "\"mask\":\"sliding,window=32\"");
    CHECK_CONTAINS(text, "\"stof_rho\":0.0194");
    CHECK_CONTAINS(text, "\"stof_tau\":0.01875");
    CHECK_CONTAINS(text, "\"stof_kernel\":\"block-wise\"");
    CHECK_CONTAINS(text, "\"empty_tiles\":0.9536");
    CHECK_CONTAINS(text, "\"hopper_block\":\"one row tile\"");
    free(text);
    text = said(0, "none --n 1025 --json");
    CHECK_CONTAINS(text, "\"hopper_block\":\"three row tiles\"");
    CHECK_CONTAINS(text, "\"kernel\":\"block-wise\"");
    free(text);
    text = said(0, "none --n 128 --json");
    CHECK_CONTAINS(text, "\"hopper_block\":\"one row tile\"");
    free(text);
    text = said(0, "none --n 129 --json");
    CHECK_CONTAINS(text, "\"hopper_block\":\"three row tiles\"");
    free(text);
    text = said(0, "causal --n 1025 --json");
    CHECK_CONTAINS(text, "\"hopper_block\":\"two row tiles\"");
    free(text);
    text = said(0, "sliding,window=638,causal --n 2048 --json");
    CHECK_CONTAINS(text, "\"hopper_block\":\"one row tile\"");
    free(text);
    text = said(0, "sliding,window=639,causal --n 2048 --json");
    CHECK_CONTAINS(text, "\"hopper_block\":\"three row tiles\"");
    free(text);
}

TEST(mask_show_files) {
    char options[600], path[512], *text;
    st_file *f;
    snprintf(path, sizeof path, "%s/m.safetensors", test_folder());
    snprintf(options, sizeof options, "dilated,window=2,dilation=1 --n 130 --bits %s", path);
    free(said(0, options));
    CHECK_OK(st_open(&f, path));
    for (int i = 0; i < 130; i++)
        for (int j = 0; j < 130; j++)
            CHECK(((const uint8_t *)st_find(f, "mask")->data)[i * 130 + j] ==
                  (j <= i && i - j <= 4 && (i - j) % 2 == 0));
    st_close(f);
    snprintf(options, sizeof options, "dilated,window=2,dilation=1 --n 9 --bits %s", path);
    free(said(0, options));
    CHECK_OK(st_open(&f, path));
    const st_tensor *t = st_find(f, "mask");
    CHECK(t != NULL && t->n == 81);
    st_close(f);
    /* what it wrote is a mask again, of its own length */
    snprintf(options, sizeof options, "bits:%s --json", path);
    text = said(0, options);
    CHECK_CONTAINS(text, "\"tokens\":9,\"pairs\":21");
    CHECK_CONTAINS(text, "\"pairs_a_tile\":21,\"kernel\":\"row-wise\"");
    CHECK_CONTAINS(text, "\"backward_kernel\":\"row-wise\"");
    free(text);
    snprintf(options, sizeof options, "bits:%s", path);
    text = said(0, options);
    CHECK_CONTAINS(text, "a listed tile has 21.0 pairs");
    CHECK_CONTAINS(text, "so each row reads the keys it sees (backward: fewer than 44, row-wise)");
    free(text);
    snprintf(options, sizeof options, "bits:%s --n 10", path);
    text = said(2, options);
    CHECK_CONTAINS(text, "a mask of 9 tokens");
    free(text);
    text = said(0, "bits:tests/golden-encoder/bert-0/cases/bits.safetensors --sequence 1 --json");
    CHECK_CONTAINS(text, "\"rows_without_keys\":0");
    free(text);
    text = said(2, "bits:tests/golden-encoder/bert-0/cases/bits.safetensors --sequence 9");
    CHECK_CONTAINS(text, "there is none for sequence 9");
    free(text);
}

TEST(mask_show_svg) {
    char options[600], path[512], *svg;
    size_t n;
    snprintf(path, sizeof path, "%s/m.svg", test_folder());
    snprintf(options, sizeof options, "fixed --n 200 --svg %s", path);
    free(said(0, options));
    CHECK_OK(file_read_all(path, 1 << 20, &svg, &n));
    CHECK_CONTAINS(svg, "<svg xmlns");
    CHECK_CONTAINS(svg, "fixed, n = 200, density 0.");
    CHECK_CONTAINS(svg, "</svg>\n");
    CHECK_CONTAINS(svg, " d=\"M179.84 44v512M16 207.84h512M343.68 44v512M16 371.68h512"
                        "M507.52 44v512M16 535.52h512\"/>"); /* tiles of 64 */
    /* row 0 sees key 0 only: one cell of 2.56 */
    CHECK_CONTAINS(svg, "<rect x=\"16.00\" y=\"44.00\" width=\"2.56\" height=\"2.56\"/>");
    mem_free(svg);
    char *text = said(0, "none --n 3 --svg -");
    CHECK(strncmp(text, "<svg", 4) == 0);
    free(text);
}

TEST(mask_show_refuses) {
    free(said(2, ""));
    free(said(2, "causal --n 0"));
    char *text = said(2, "longfrmer");
    CHECK_CONTAINS(text, "did you mean 'longformer'?");
    free(text);
    text = said(2, "causal --bits -");
    CHECK_CONTAINS(text, "--bits -: cannot be written to stdout");
    free(text);
    text = said(2, "causal --bits /nowhere/x --svg /nowhere/x");
    CHECK_CONTAINS(text, "--svg and --bits are both /nowhere/x");
    free(text);
}
