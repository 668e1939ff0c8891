#include "cli/bench/attn_peers.h"

#include "test.h"

/* Figures as they were published, and the range that a rounded figure stands for. */
TEST(attn_peers_figures) {
    attn_shape even = {4, 128, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE};
    attn_shape tiny = {4, 64, 512, 50, true, ATTN_CAUSAL, BIAS_NONE};
    CHECK(fabs(attn_peer_tflops(&even, PEER_HOPPER, TIMED_PLAIN, PASS_FORWARD) - 207) <= 0.5);
    CHECK(fabs(attn_peer_tflops(&even, PEER_AMPERE, TIMED_REPLAY, PASS_BACKWARD) - 178) <= 0.5);
    /* 63 us and "4": 13025 tokens of sequences of 1 to 50 are 0.22 GFLOP. */
    CHECK(fabs(attn_peer_tflops(&tiny, PEER_HOPPER, TIMED_REPLAY, PASS_FORWARD) - 3.56) < 0.01);
    CHECK(isnan(attn_peer_tflops(&tiny, PEER_HOPPER, TIMED_PLAIN, PASS_FORWARD)));
}

TEST(attn_peers_best) {
    attn_shape s = {4, 64, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE};
    CHECK(fabs(attn_peer_best(&s, false, TIMED_PLAIN, PASS_FORWARD) - 154) <= 0.5);  /* Ampere */
    CHECK(fabs(attn_peer_best(&s, false, TIMED_PLAIN, PASS_BACKWARD) - 130) <= 0.5); /* Hopper */
    CHECK(fabs(attn_peer_best(&s, true, TIMED_PLAIN, PASS_BACKWARD) - 97) <= 0.5);
    s.bias = BIAS_TIME;
    CHECK(isnan(attn_peer_best(&s, false, TIMED_PLAIN, PASS_FORWARD)));
    s = (attn_shape){4, 32, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE};
    CHECK(isnan(attn_peer_best(&s, true, TIMED_REPLAY, PASS_BACKWARD)));
}
