#!/bin/sh
# make gpu-sanitize: compute-sanitizer over the tests of ops on a GPU, in float32 and bfloat16.
#
#   tools/sanitize.sh [UNIT] [TOOL ...]     default: build/release/tests/unit memcheck initcheck racecheck
#
# racecheck watches every access to shared memory and takes minutes where the other tools take seconds, so
# each test has a time limit (LIMIT, seconds).  A test that exceeds it is listed and does not count as passed.
unit=${1:-build/release/tests/unit}
[ $# -gt 0 ] && shift
[ $# -eq 0 ] && set -- memcheck initcheck racecheck
tests='test_norm test_gate test_l2 test_linear test_rows test_dropout test_negatives test_sampled_softmax test_logits_loss
test_update test_rank test_softmax attn_every_mask attn_lengths attn_head_dims attn_wide users_do_not_depend'
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
failed=0
for tool in "$@"; do
    for dtype in float32 bfloat16; do
        for test in $tests; do
            timeout "${LIMIT:-120}" compute-sanitizer --target-processes all --error-exitcode 9 --tool "$tool" \
                "$unit" --device cuda --dtype "$dtype" "$test" >"$log" 2>&1
            code=$?
            [ $code -eq 0 ] && continue
            failed=1
            [ $code -eq 124 ] && word='ran out of time' || word="failed ($code)"
            echo "$tool, $dtype, $test: $word"
            [ $code -eq 124 ] || grep -E '^=========|^    |^FAIL' "$log" | head -n 12
        done
        echo "$tool, $dtype: done"
    done
done
exit $failed
