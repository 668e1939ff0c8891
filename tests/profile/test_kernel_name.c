#include "profile/kernel_name.h"

#include "test.h"

enum { NAME_BYTES = 96 };

static const char *shown(const char *mangled) {
    static char name[NAME_BYTES];
    kernel_name(mangled, name, sizeof name);
    return name;
}

TEST(kernel_names_are_readable) {
    CHECK_STR(shown("_Z19rng_draw_any_kernelPfi"), "rng_draw_any_kernel");
    CHECK_STR(shown("_Z22rank_finish_any_kernelILb1EEv8rank_jobPf"),
              "rank_finish_any_kernel<true>");
    CHECK_STR(shown("_Z20attn_fwd_sm80_kernelI13__nv_bfloat16Li64ELb0EEvPT_"),
              "attn_fwd_sm80_kernel<__nv_bfloat16, 64, false>");
    CHECK_STR(shown("_Z19attn_fwd_f32_kernelIfLin3ELb0EEvPT_"),
              "attn_fwd_f32_kernel<float, -3, false>");
    CHECK_STR(shown("_Z20attn_fwd_sm90_kernelI6__half9fwd_shapeI10large_d128EEv9attn_args"),
              "attn_fwd_sm90_kernel<__half, fwd_shape<large_d128>>");
    CHECK_STR(shown("_ZN3foo4gateIL3epi1E6__halfEEvPT0_"), "gate<1, __half>");
    CHECK_STR(shown("_Z9with_tileI4tileILi8EEEvPf"), "with_tile<tile<8>>");
    CHECK_STR(shown("_ZN34_GLOBAL__N__81c2f8b8_4_k_cu__Z1fPf11anon_kernelEPf"), "anon_kernel");
    CHECK_STR(shown("_Z1aImE"), "a<unsigned long>");
}

/* Names that it cannot parse are returned unchanged, also when they end in the middle. */
TEST(kernel_names_as_given) {
    const char *whole = "_ZN3foo4gateIL3epi1E6__halfLb1ELin3E4tileILi8EEEEvPT0_";
    CHECK_STR(shown("sm90_xmma_gemm_bf16bf16"), "sm90_xmma_gemm_bf16bf16");
    CHECK_STR(shown(""), "");
    CHECK_STR(shown("_Z"), "_Z");
    CHECK_STR(shown("_Z99999999999999999999x"), "_Z99999999999999999999x");
    /* For this one a demangler is needed, which not every machine has. */
    const char *pointer = shown("_Z4gateIPfE");
    CHECK(strcmp(pointer, "_Z4gateIPfE") == 0 || strcmp(pointer, "gate<float*>") == 0);
    for (size_t n = 0; n <= strlen(whole); n++) {
        char *part = strndup(whole, n); /* on the heap: a sanitizer sees a step too far */
        CHECK(strlen(shown(part)) < NAME_BYTES);
        free(part);
    }
    char nested[4096] = "_Z1aI";
    for (int i = 0; i < 1000; i++)
        strcat(nested, "1bI");
    CHECK_EQ(strlen(shown(nested)), NAME_BYTES - 1);
}
