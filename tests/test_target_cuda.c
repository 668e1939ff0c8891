#include "test.h"
#include "tune/target.h"

/* Every kernel that a layer can have, with default tiles: NVRTC compiles it without a GPU. */
static void compile_all(chain_layer layer, act_type act, int sm, int every) {
    const chain *c = chain_of(layer);
    chain_shape shape = {
        .n_sequences = 1, .max_len = 128, .n_heads = 4, .dim_head = 32, .n_tokens = 128};
    char version[64];
    int at = 0;
    if (!target_nvrtc_version(version, sizeof version)) SKIP_TEST("no NVRTC");
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = first; last < CHAIN_OPS; last++) {
            kernel_spec s = {.c = c,
                             .shape = shape,
                             .first = first,
                             .last = last,
                             .attend = ATTEND_BYTES,
                             .act = act,
                             .is_cuda = true};
            tile_params tiles[EMIT_MAX_TILES];
            int n;
            buf source, cubin;
            s.from = plan_template(c, &shape, first, last, NULL);
            if (s.from == TEMPLATE_NONE || at++ % every != 0) continue;
            s.shared_limit = sm == 80 ? 163 << 10 : 227 << 10;
            CHECK_OK(emit_tiles(&s, tiles, &n));
            CHECK(n > 0);
            s.tile = tiles[0];
            buf_init(&source);
            buf_init(&cubin);
            CHECK_OK(emit_kernel(&s, &source, NULL));
            CHECK_OK(target_compile_cuda(&source, sm, &cubin));
            CHECK(cubin.n_bytes > 1000 && memcmp(cubin.data, "\177ELF", 4) == 0);
            buf_fini(&source);
            buf_fini(&cubin);
        }
}

TEST(kernels_of_bert_compile_for_hopper) {
    compile_all(CHAIN_BERT, ACT_F16, 90, 6);
}
TEST(kernels_of_hstu_compile_for_ampere) {
    compile_all(CHAIN_HSTU, ACT_BF16, 80, 6);
}
TEST(kernels_of_sasrec_compile_in_float32) {
    compile_all(CHAIN_SASREC, ACT_F32, 80, 8);
}

TEST(bad_source_is_told) {
    buf source, cubin;
    char version[64];
    if (!target_nvrtc_version(version, sizeof version)) SKIP_TEST("no NVRTC");
    buf_init(&source);
    buf_init(&cubin);
    CHECK_OK(buf_text(&source, "int f( {"));
    CHECK_FAILS(target_compile_cuda(&source, 80, &cubin), ERR_UNSUPPORTED, "NVRTC cannot compile");
    buf_fini(&source);
    buf_fini(&cubin);
}
