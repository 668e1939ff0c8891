# The whole test: every build variant, every unit test, every fuzz target, every check.  Sourced by
# ./run.  All of it is counted, a table says where the time went, and the last line says "N passed, N failed[, N skipped]".

passed=0 failed=0 skipped=0 has_fuzz=0
GPU_SECONDS=${GPU_SECONDS:-600}
# Only tests with threads: the thread sanitizer is slow, and finds nothing in the others.
TSAN_PATTERNS=(test_engine test_serve_check.c:serve_check_of_ranking test_serve_check.c:serve_check_of_two_tiers_in test_model.c:same_bits test_pool test_batcher test_prefetch test_progress test_builder test_log test_http.c test_journal test_server.c test_handle test_api_model.c:api_model_in_threads test_api_model.c:api_model_closed test_api_model.c:api_train_stops_by)
# Tests whose results depend on the precision; tables and copies are tested once, in float32.
GPU_PATTERNS=(test_attn test_dropout test_dynamic test_gate test_l2 test_linear test_logits_loss test_model.c test_negatives
    test_norm test_rank test_rows test_sampled_softmax test_softmax test_update)

# count CODE: of one step.
count() {
    case $1 in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# counted LABEL COMMAND...: one step, one count.
counted() {
    local code=0
    step "$@" || code=$?
    count $code
    return $code
}

# beside LABEL COMMAND...: a step in the background, as many at once as there are cores; beside_end waits for all and
# shows them in their order.
beside_labels=()
beside() {
    while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
    beside_labels+=("$1")
    step_run "$@" &
}

beside_end() {
    local label code
    wait
    for label in "${beside_labels[@]}"; do
        code=0
        step_show "$label" || code=$?
        count $code
    done
    beside_labels=()
}

# mark NAME: a row of the last table, for the time since the last mark.
marks=() marked_ms='' marked_cpu=0
mark() {
    local cpu ms
    ms=$(now_ms)
    times >"$LOGS/times" # in this shell: a subshell would count its own children
    cpu=$(awk 'NR == 2 { gsub(/s/, ""); split($1, u, "m"); split($2, s, "m")
        printf "%d", (u[1] + s[1]) * 60000 + (u[2] + s[2]) * 1000 }' "$LOGS/times")
    [ -z "$marked_ms" ] || marks+=("$(printf '%-40s %8s %10s' "$1" "$(seconds $((ms - marked_ms)))" "$(seconds $((cpu - marked_cpu)))")")
    marked_ms=$ms marked_cpu=$cpu
}

# Where the time went, and the tests that take most of the processor.
time_table() {
    local log
    title "$(printf '%-42s %8s %10s' "Time" wall CPU)"
    printf '  %s\n' "${marks[@]}"
    title "Tests that take longest"
    for log in "$LOGS"/unit-*.log; do
        [ ! -e "$log" ] || sed -n "s/^ok  *\([^ ]*\) .* \([0-9]*\) ms of CPU\$/\2 $(basename "$log" .log | sed 's/^unit-//') \1/p" "$log"
    done | sort -rn | head -n 10 | awk '{ printf "  %6.1f s of CPU  %-10s %s\n", $1 / 1000, $2, $3 }'
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

# unit LABEL FOLDER [OPTION...] [PATTERN...]: the unit tests of a build, one more at once than there are cores, because
# some wait.  The commands that tests start need few threads then.
unit() {
    local log code p=0 f=0 s=0 counts step="unit $1"
    if [ ! -x "$2/tests/unit" ]; then
        skip "$1" "it was not built"
        return
    fi
    log=$(step_log "$step")
    rm -f "${log%.log}.count"
    HSTU_THREADS=${HSTU_THREADS:-$((JOBS < 4 ? JOBS : 4))} step_run "$step" "${time_limit[@]}" "${fixed_addresses[@]}" \
        "$2/tests/unit" --count "${log%.log}.count" --jobs $((JOBS + 1)) "${show_progress[@]/#LABEL/$1}" "${@:3}"
    code=$(cat "${log%.log}.code")
    mark "unit tests: $1"
    if [ "$code" = 124 ]; then
        skip "$1" "not done within $GPU_SECONDS s; 'make gpu-test' has no limit"
        return
    fi
    read -r p f s 2>/dev/null <"${log%.log}.count" || f=1 # It did not come to its end.
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    counts="$p passed, $f failed, $s skipped"
    if [ "$code" = 0 ]; then
        result ok "$1" "$(step_seconds "$step"); $counts"
    else
        result FAIL "$1" "$counts; the whole log: $log"
        show_failures "$log"
    fi
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
show_progress=()
if [ -t 1 ]; then show_progress=(--progress LABEL); fi
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# A warning is a failure.  The release build keeps its usual flags, so that make has nothing to do
# afterwards; its warnings are found in the log.
build_release() {
    make -j"$JOBS" all tests build/release/libhstu.so 2>&1 | tee "$LOGS/release-make.log"
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
    mark "build: release$with"
    counted "asan: address and undefined sanitizers" strict_make VARIANT=asan unit build/asan/libhstu.so
    mark "build: asan"
    counted "tsan: thread sanitizer" strict_make VARIANT=tsan TEST_FILES="$(tsan_files)" unit
    mark "build: tsan"
    counted "minimal: only a C compiler" strict_make B=build/minimal CUDA=0 MINIMAL=1 REUSE=build/release unit
    mark "build: minimal"
    # For its warnings alone; what it builds for fuzzing runs.
    if ! has clang; then
        skip "clang" "clang is not here"
    elif clang_can_fuzz; then
        counted "clang: what it does not build for fuzzing" strict_make CC=clang CUDA=0 BUT=fuzz NEEDED=build/asan syntax
    else
        counted "clang" strict_make CC=clang CUDA=0 syntax
    fi
    if clang_can_fuzz; then
        counted "fuzz targets" strict_make VARIANT=fuzz NEEDED=build/asan fuzz && has_fuzz=1
    else
        skip "fuzz targets" "clang with libFuzzer is not here"
    fi
    mark "build: clang, fuzz targets"
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

# In the build without libraries: the files of tests that run the program, or test what is compiled otherwise there.  All
# other objects are copies of release's, and so are the results of tests that need no others.
minimal_files() {
    local helpers source stem
    [ -z "${HSTU_TEST_ALL:-}" ] || return 0
    helpers=$(grep -l 'test_program()' tests/*.h | sed 's|.*/||' | paste -sd '|')
    {
        grep -lE "test_program\(\)|HSTU_HAS_|\"($helpers)\"" tests/test_*.c
        grep -rl HSTU_HAS_ src --include='*.c' | while read -r source; do
            stem=$(basename "$source" .c)
            ls tests/test_"${stem%%_*}"*.c 2>/dev/null
        done
    } | sort -u | sed 's|.*/||; s|$|:|'
}

# Unit tests save many checkpoints, each with several fsyncs, for which they would wait most of the time on a disk.
use_memory_for_tests() {
    [ -z "${HSTU_TEST_FOLDER:-}" ] && [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] &&
        [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -gt 4000000 ] || return 0
    HSTU_TEST_FOLDER=$(mktemp -d /dev/shm/hstu-XXXXXX) || return 0
    export HSTU_TEST_FOLDER
    trap 'rm -rf "$HSTU_TEST_FOLDER"' EXIT
}

run_units() {
    local type
    title "Unit tests"
    use_memory_for_tests
    if [ -d "${SHARED:-../shared}" ]; then
        SHARED=$(cd "${SHARED:-../shared}" && pwd)
        export SHARED
    else
        note "No ${SHARED:-../shared}: tests on real data are skipped (set SHARED to a folder that has it)."
    fi
    if is_leak_check_slow; then
        note "Here the sanitizer's leak check takes seconds a process: tests count their blocks instead."
        ASAN_OPTIONS=detect_leaks=0 unit "asan" build/asan
    else
        unit "asan" build/asan
    fi
    unit "release" build/release
    unit "minimal" build/minimal $(minimal_files)
    unit "tsan" build/tsan "${TSAN_PATTERNS[@]}"
}

# One after the other, for what is left of the cores.
run_behind() {
    local type
    step_run "files with one bit flipped" nice -n 19 build/release/tests/flip --stride "$FLIP_STRIDE"
    for type in tf32 bfloat16 float16; do
        step_run "reference values, rounded to $type" nice -n 19 build/release/tests/golden --device mirror --dtype $type tests/golden
    done
}

run_attacks() {
    title "Kills, flipped bits, reference values"
    # Ranks must answer in time, and wait half of theirs: only what gives way to them runs beside.
    run_behind &
    counted "ranks: same bits, one killed, one stopped" tools/ranks.sh --steps 4 --kills 1 --within 12 bits kill stop small
    beside_labels=("files with one bit flipped" "reference values, rounded to "{tf32,bfloat16,float16})
    beside "kill -9 at $CRASHES random moments" tools/crash.sh --n "$CRASHES"
    beside_end
    mark "ranks, kills, flipped bits, reference values"
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

run_fuzz() {
    local target stem step seeds log
    title "Fuzzing, $FUZZ_SECONDS s each"
    if [ $has_fuzz = 0 ]; then
        skip "fuzz targets" "they were not built"
        return
    fi
    for target in build/fuzz/fuzz/fuzz_*; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do wait -n; done
        step_run "fuzz ${target##*/fuzz_}" fuzz_one "$target" &
    done
    wait
    for target in build/fuzz/fuzz/fuzz_*; do
        stem=${target##*/fuzz_} step="fuzz ${target##*/fuzz_}"
        seeds=$(ls tests/fuzz/seeds/"$stem" 2>/dev/null | wc -l)
        log=$(step_log "$step")
        if [ "$(cat "${log%.log}.code")" = 0 ]; then
            passed=$((passed + 1))
            result ok "$stem" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs from $seeds seeds"
        else
            failed=$((failed + 1))
            result FAIL "$stem" "the whole log: $log"
            grep -vE '^#[0-9]+' "$log" | tail -n 30 | sed 's/^/        /'
        fi
    done
    mark "fuzzing"
}

# Parquet files of pyarrow, polars and duckdb, compared with what Python reads; the packages are kept in
# build/python.  tests/parquet has a few such files for machines without.
run_parquet() {
    local python=build/python/bin/python label="Parquet files of pyarrow, polars and duckdb" why
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
    beside "$label" $python tests/parquet/matrix.py build/release/hstu build/parquet
}

run_checks() {
    local counts rules="rules of the code"
    title "Checks"
    rm -f "$LOGS/check.count"
    step_run "$rules" sh tools/check.sh --count "$LOGS/check.count" &
    beside "pip install ./python" bash tests/python.sh
    beside "docs/learn.md: the programs compile and run" bash tests/learn.sh
    run_parquet # packages first: the next also takes from build/python
    if [[ $(build/release/hstu doctor --json 2>/dev/null) == *'"libmicrohttpd","version":null'* ]]; then
        skip "docs/serving.md, followed" "this build has no libmicrohttpd"
    else
        beside "docs/serving.md, followed" bash tests/serving.sh
        beside "kill -9 of a server, $SERVE_CRASHES times" tools/serve_crash.sh --n "$SERVE_CRASHES"
    fi
    beside "make install, use, make uninstall" bash tests/install.sh
    beside "docs/guide.md, followed" bash tests/guide.sh
    beside "./run setup where dnf installs" bash tests/setup_dnf.sh
    beside_end
    cat "$(step_log "$rules")"
    add_counts "$LOGS/check.count"
    mark "Python, documents, installation, rules"
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

# run_tests [--all]
run_tests() {
    local start
    # The short forms see every kind of fault; the long ones more of each kind.
    if [ "${1:-}" = --all ]; then
        export HSTU_TEST_ALL=1
        FUZZ_SECONDS=${FUZZ_SECONDS:-60} CRASHES=100 FLIP_STRIDE=1 SERVE_CRASHES=100
    elif [ $# -gt 0 ]; then
        echo "./run test: unknown option '$1'; there is --all" >&2
        return 2
    else
        FUZZ_SECONDS=${FUZZ_SECONDS:-3} CRASHES=12 FLIP_STRIDE=5 SERVE_CRASHES=10
    fi
    start=$(now_ms)
    mkdir -p "$LOGS"
    rm -f "$LOGS"/unit-*
    mark start
    if setup test; then
        mark "setup"
        if build_variants; then
            run_units
            run_attacks
            run_gpu
            run_fuzz
            run_checks
        fi
        time_table
    else
        failed=$((failed + 1))
    fi
    note "$(seconds $(($(now_ms) - start))) in all"
    closing_line
}
