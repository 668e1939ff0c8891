# The whole test: every build variant, every unit test, every fuzz target, every check.  Sourced by
# ./run.  All of it is counted, and the last line says "N passed, N failed[, N skipped]".

passed=0 failed=0 skipped=0 has_fuzz=0
FUZZ_SECONDS=${FUZZ_SECONDS:-10}
GPU_SECONDS=${GPU_SECONDS:-600}
# Only tests with threads: the thread sanitizer is slow, and finds nothing in the others.
TSAN_PATTERNS=(test_engine test_serve_check test_model.c:same_bits test_pool test_batcher test_prefetch test_progress test_builder test_log test_http.c test_journal test_server.c)
# Not in the build without libraries: arithmetic on the CPU, of objects that this build takes from release as they are.
MINIMAL_SKIPS='test_attn|test_attention|test_linear|test_plan_runner|test_search_exact|test_update'
# Tests whose results depend on the precision; tables and copies are tested once, in float32.
GPU_PATTERNS=(test_attn test_dropout test_dynamic test_gate test_l2 test_linear test_logits_loss test_model.c test_negatives
    test_norm test_rank test_rows test_sampled_softmax test_softmax_attn test_update)

# counted LABEL COMMAND...: one step, one count.
counted() {
    local code=0
    step "$@" || code=$?
    case $code in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
    return $code
}

# skip LABEL WHY
skip() {
    skipped=$((skipped + 1))
    result skip "$1" "$2"
}

# add_counts FILE: adds the counts that a test program wrote there; no file means that it did not finish.
add_counts() {
    local p f s
    if read -r p f s 2>/dev/null <"$1"; then
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
        counts="$p passed, $f failed, $s skipped"
    else
        failed=$((failed + 1))
        counts="it did not come to its end"
    fi
}

# unit_log LABEL [PART]: where the log of these unit tests goes; beside it .count, .code and .ms.
unit_log() { echo "$LOGS/unit-$(printf '%s' "$1" | tr -cs 'A-Za-z0-9' '-')${2:+-$2}.log"; }

# unit_run LABEL PART FOLDER [OPTION...] [PATTERN...]: one part of the unit tests of a build, quietly.
# A process a core, so the commands that tests start need few threads.
unit_run() {
    local log start
    log=$(unit_log "$1" "$2")
    rm -f "${log%.log}".{count,code,ms}
    start=$(now_ms)
    HSTU_THREADS=${HSTU_THREADS:-$((JOBS < 4 ? JOBS : 4))} "${time_limit[@]}" "${fixed_addresses[@]}" "$3/tests/unit" \
        --count "${log%.log}.count" --part "$2/$JOBS" "${@:4}" >"$log" 2>&1 </dev/null
    echo $? >"${log%.log}.code"
    echo $(($(now_ms) - start)) >"${log%.log}.ms"
}

# unit_report LABEL: the sum of its parts; failures are shown.
unit_report() {
    local part log stem code worst=0 ms=0 p=0 f=0 s=0 a b c counts
    log=$(unit_log "$1")
    stem=${log%.log}
    : >"$log"
    for ((part = 0; part < JOBS; part++)); do
        cat "$stem-$part.log" >>"$log"
        code=$(cat "$stem-$part.code")
        [ "$code" = 0 ] || worst=$code
        [ "$code" != 124 ] || break
        ms=$((ms + $(cat "$stem-$part.ms")))
        if read -r a b c 2>/dev/null <"$stem-$part.count"; then
            p=$((p + a)) f=$((f + b)) s=$((s + c))
        else
            f=$((f + 1)) # It did not come to its end.
        fi
    done
    if [ "$worst" = 124 ]; then
        skip "$1" "not done within $GPU_SECONDS s; 'make gpu-test' has no limit"
        return
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    counts="$p passed, $f failed, $s skipped"
    if [ "$worst" = 0 ]; then
        result ok "$1" "$(seconds $ms), $counts"
    else
        result FAIL "$1" "$counts; the whole log: $log"
        show_failures "$log"
    fi
}

# unit LABEL FOLDER [OPTION...] [PATTERN...]: starts unit tests in as many parts as there are cores, one process a
# core; unit_reports waits.
unit_labels=()
unit() {
    local part
    if [ ! -x "$2/tests/unit" ]; then
        skip "$1" "it was not built"
        return
    fi
    unit_labels+=("$1")
    for ((part = 0; part < JOBS; part++)); do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        unit_run "$1" $part "${@:2}" &
    done
}

unit_reports() {
    local label
    wait
    for label in "${unit_labels[@]}"; do unit_report "$label"; done
    unit_labels=()
}

# The lines of a unit log that belong to failures: a test's output comes before its verdict.
show_failures() {
    awk '/^ok  /   { text = ""; next }
         /^skip /  { text = ""; next }
         /^FAIL /  { printf "%s%s\n", text, $0; text = ""; next }
                   { text = text $0 "\n" }
         END       { printf "%s", text }' "$1" | tail -n 60 | sed 's/^/        /'
}

# Address randomisation with many bits breaks the shadow memory of older sanitizers; without it they
# always work.  Containers may forbid switching it off; then they run with it.
time_limit=()
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# A warning is a failure.  The release build keeps its usual flags, so that make has nothing to do
# afterwards; its warnings are found in the log.
build_release() {
    make -j"$JOBS" all tests 2>&1 | tee "$LOGS/release-make.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] && ! grep -q 'warning:' "$LOGS/release-make.log"
}

strict_make() {
    make -j"$JOBS" CFLAGS="${CFLAGS:-} -Werror" "$@"
}

# The files of TSAN_PATTERNS, without ".c" and the test's name.
tsan_files() { printf '%s\n' "${TSAN_PATTERNS[@]}" | sed 's/:.*//; s/\.c$//' | tr '\n' ' '; }

build_variants() {
    title "Building every variant"
    local with=''
    make -pn 2>/dev/null | grep -q '^FEATURES.*HSTU_HAS_CUDA' && with=', with CUDA'
    counted "release$with" build_release || return 1
    counted "asan: address and undefined sanitizers" strict_make VARIANT=asan unit
    counted "tsan: thread sanitizer" strict_make VARIANT=tsan TEST_FILES="$(tsan_files)" unit
    counted "minimal: only a C compiler" strict_make B=build/minimal CUDA=0 MINIMAL=1 REUSE=build/release unit
    # For its warnings alone; what it builds for fuzzing runs.
    if ! has clang; then
        skip "clang" "clang is not here"
    elif clang_can_fuzz; then
        counted "clang: what it does not build for fuzzing" strict_make CC=clang CUDA=0 BUT=fuzz syntax
    else
        counted "clang" strict_make CC=clang CUDA=0 syntax
    fi
    if clang_can_fuzz; then
        counted "fuzz targets" strict_make VARIANT=fuzz fuzz && has_fuzz=1
    else
        skip "fuzz targets" "clang with libFuzzer is not here"
    fi
    return 0 # Even when one failed: the others are worth running.
}

# The harness counts blocks that a test leaves behind, in every variant.  The sanitizer's leak check says where
# they came from; but on arm64 that of gcc 12 and clang 14 takes seconds at each exit.
is_leak_check_slow() {
    local start
    start=$(now_ms)
    build/asan/hstu --version >/dev/null 2>&1
    [ $(($(now_ms) - start)) -gt 1000 ]
}

run_units() {
    local type
    title "Unit tests"
    if [ -d "${SHARED:-../shared}" ]; then
        SHARED=$(cd "${SHARED:-../shared}" && pwd)
        export SHARED
    else
        note "No ${SHARED:-../shared}: tests on real data are skipped (set SHARED to a folder that has it)."
    fi
    # Timed before anything else runs; the longest tests come first.
    if is_leak_check_slow; then
        note "Here the sanitizer's leak check takes seconds a process: tests count their blocks instead."
        ASAN_OPTIONS=detect_leaks=0 unit "asan" build/asan
    else
        unit "asan" build/asan
    fi
    unit "release" build/release
    unit "minimal" build/minimal $(ls tests | grep '^test_.*\.c$' | grep -vE "^($MINIMAL_SKIPS)\.c" | sed 's/$/:/')
    unit "tsan: what has threads" build/tsan "${TSAN_PATTERNS[@]}"
    unit_reports
    counted "kill -9 at 12 random moments" tools/crash.sh --n 12
    counted "ranks: same bits, one killed, one stopped" tools/ranks.sh --steps 4 --kills 1 --within 12 bits kill stop small
    counted "files with one bit flipped" build/release/tests/flip --stride 5
    for type in tf32 bfloat16 float16; do
        counted "reference values, rounded to $type" build/release/tests/golden --device mirror --dtype $type tests/golden
    done
}

# Most of `make gpu-test`: its parts run in parallel, each for at most GPU_SECONDS.
run_gpu() {
    local type folder=tests/golden time_limit=(timeout "$GPU_SECONDS")
    title "On the GPU"
    case $(build/release/hstu doctor --json 2>/dev/null) in
    *'"verdict":"yes, on the CPU and on '*) ;;
    *'"no_gpu_reason":"this build is without CUDA"'*)
        if nvidia-smi -L >/dev/null 2>&1; then
            skip "ops and models on the GPU" "there is a GPU, but the build is without CUDA: nvcc and g++ are needed"
        else
            skip "ops and models on the GPU" "no GPU here, and the build is without CUDA"
        fi
        return ;;
    *) skip "ops and models on the GPU" "no usable GPU here ('hstu doctor' tells why)" && return ;;
    esac
    [ -d "${SHARED:-../shared}/golden" ] && folder=${SHARED:-../shared}/golden
    for type in float32 tf32 bfloat16 float16; do
        counted "reference values, $type" build/release/tests/golden --device cuda --dtype $type "$folder" tests/golden
    done
    unit "ops, models and tables, float32" build/release --device cuda
    for type in bfloat16 float16 tf32; do
        unit "ops and models, $type" build/release --device cuda --dtype $type "${GPU_PATTERNS[@]}"
    done
    for type in bfloat16 float32; do
        unit "sums in any order, $type" build/release --device cuda --fast --dtype $type "${GPU_PATTERNS[@]}"
    done
    unit_reports
}

# fuzz_one TARGET: a short run over a copy of its seeds and its corpus; the seed of the run is fixed.
fuzz_one() {
    local stem=${1##*/fuzz_} corpus
    corpus=build/fuzz/corpus/$stem
    rm -rf "$corpus" && mkdir -p "$corpus" build/fuzz/found
    cp tests/fuzz/seeds/"$stem"/* "$corpus"/ 2>/dev/null
    [ ! -e "tests/fuzz/corpus/$stem.tar.xz" ] || tar -C "$corpus" -xJf "tests/fuzz/corpus/$stem.tar.xz"
    "${fixed_addresses[@]}" "$1" -seed=1 -max_total_time="$FUZZ_SECONDS" -timeout=20 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="build/fuzz/found/$stem-" "$corpus"
}

# In parallel, one a core; each writes its exit code beside its log.
run_fuzz() {
    local target stem seeds code
    title "Fuzzing, $FUZZ_SECONDS s each"
    if [ $has_fuzz = 0 ]; then
        skip "fuzz targets" "they were not built"
        return
    fi
    for target in build/fuzz/fuzz/fuzz_*; do
        stem=${target##*/fuzz_}
        rm -f "$LOGS/fuzz-$stem.code"
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        (fuzz_one "$target" >"$LOGS/fuzz-$stem.log" 2>&1 </dev/null; echo $? >"$LOGS/fuzz-$stem.code") &
    done
    wait
    for target in build/fuzz/fuzz/fuzz_*; do
        stem=${target##*/fuzz_}
        code=$(cat "$LOGS/fuzz-$stem.code" 2>/dev/null)
        seeds=$(ls tests/fuzz/seeds/"$stem" 2>/dev/null | wc -l)
        if [ "$code" = 0 ]; then
            passed=$((passed + 1))
            result ok "$stem" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$LOGS/fuzz-$stem.log") runs from $seeds seeds"
        else
            failed=$((failed + 1))
            result FAIL "$stem" "the whole log: $LOGS/fuzz-$stem.log"
            grep -vE '^#[0-9]+' "$LOGS/fuzz-$stem.log" | tail -n 30 | sed 's/^/        /'
        fi
    done
}

# Parquet files of pyarrow, polars and duckdb, compared with what Python reads; the packages are kept in
# build/python.  tests/parquet has a few such files for machines without.
run_parquet() {
    local python=build/python/bin/python label="files of pyarrow, polars and duckdb" why
    title "Parquet"
    case $(build/release/hstu doctor --json 2>/dev/null) in
    *'"snappy","version":null'* | *'"zstd","version":null'* | *'"zlib","version":null'*)
        skip "$label" "this build lacks snappy, zstd or zlib" && return ;;
    esac
    if ! $python -c 'import pyarrow, polars, duckdb' 2>/dev/null; then
        why="Python's venv or its packages cannot be had here ($LOGS/python.log)"
        [ "${HSTU_INSTALL:-1}" = 0 ] && skip "$label" "HSTU_INSTALL=0: nothing is installed" && return
        { python3 -m venv build/python && timeout 300 $python -m pip install -q --only-binary :all: --timeout 15 --retries 1 \
            pyarrow polars duckdb; } >"$LOGS/python.log" 2>&1 || { skip "$label" "$why" && return; }
    fi
    counted "$label" $python tests/parquet/matrix.py build/release/hstu build/parquet
}

run_checks() {
    local counts
    title "Checks"
    counted "make install, use, make uninstall" bash tests/install.sh
    counted "./run setup where dnf installs" bash tests/setup_dnf.sh
    counted "pip install ./python" bash tests/python.sh
    counted "docs/learn.md: the programs compile and run" bash tests/learn.sh
    counted "docs/guide.md, followed" bash tests/guide.sh
    if [[ $(build/release/hstu doctor --json 2>/dev/null) == *'"libmicrohttpd","version":null'* ]]; then
        skip "docs/serving.md, followed" "this build has no libmicrohttpd"
    else
        counted "docs/serving.md, followed" bash tests/serving.sh
        counted "kill -9 of a server, 10 times" tools/serve_crash.sh --n 10
    fi
    rm -f "$LOGS/check.count"
    sh tools/check.sh --count "$LOGS/check.count"
    add_counts "$LOGS/check.count"
}

closing_line() {
    echo
    if [ $skipped -gt 0 ]; then
        echo "$passed passed, $failed failed, $skipped skipped"
    else
        echo "$passed passed, $failed failed"
    fi
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}

run_tests() {
    local start
    start=$(now_ms)
    mkdir -p "$LOGS"
    if setup test; then
        if build_variants; then
            run_units
            run_gpu
            run_fuzz
            run_parquet
            run_checks
        fi
    else
        failed=$((failed + 1))
    fi
    note "$(seconds $(($(now_ms) - start))) in all"
    closing_line
}
