# The whole test: every build variant, every unit test, every fuzz target, every check.  Sourced by
# ./run.  All of it is counted, a table says where the time went, and the last line says "N passed, N failed[, N skipped]".

passed=0 failed=0 skipped=0
# With so many cores, sections run beside each other instead of one after the other.
WIDE_CORES=8
# Only tests with threads: the thread sanitizer is slow, and finds nothing in the others.
TSAN_PATTERNS=(test_engine test_replicas test_cache.c:serve_check_of_ranking test_cache.c:serve_check_of_two_tiers_in test_model.c:same_bits test_thread test_batcher test_prefetch test_log test_builder test_http.c test_state test_user_writer test_server.c test_server_models test_handle test_api_model.c:api_model_in_threads test_api_model.c:api_model_closed test_api_model.c:api_train_stops_by)
# Tests whose results depend on the precision; tables and copies are tested once, in float32.
GPU_PATTERNS=(test_attn test_dropout test_dynamic test_full_softmax test_gate test_glu test_head.c test_l2 test_ligr test_linear
    test_logits_loss test_model.c test_mol
    test_negatives test_norm test_pass.c test_rank test_rows test_sampled_softmax test_softmax test_update)

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

is_wide() { [ "$JOBS" -ge "$WIDE_CORES" ]; }

# A section is a function that runs steps and prints their lines.  Where sections run beside each other, its lines go to
# a file, and are shown in the order of `sections`, whatever ends first.
#
# after SECTION...: waits for others; fails where what they build is not there.
after() {
    local section
    for section in "$@"; do
        while is_wide && [ ! -e "$LOGS/$section.done" ]; do sleep 0.2; done
        [ ! -e "$LOGS/$section.failed" ] || return 1
    done
    marked_ms=$(now_ms) # the wait is nobody's time
}

section_start() {
    (
        passed=0 failed=0 skipped=0 marks=() marked_ms=$(now_ms) marked_cpu=0
        "$1"
        [ ${#marks[@]} -eq 0 ] || printf '%s\n' "${marks[@]}" >"$LOGS/$1.marks"
        echo $passed $failed $skipped >"$LOGS/$1.count"
        touch "$LOGS/$1.done"
    ) >"$LOGS/$1.lines" 2>&1 &
    section_pids+=($!)
}

# section_show SECTION PID
section_show() {
    wait "$2"
    touch "$LOGS/$1.done" # Even where it was killed: others wait for it.
    cat "$LOGS/$1.lines"
    add_counts "$LOGS/$1.count"
    [ ! -e "$LOGS/$1.marks" ] || mapfile -t -O ${#marks[@]} marks <"$LOGS/$1.marks"
}

# run_sections WORD...: a word that begins with a capital letter is a title, any other a section.
section_pids=()
run_sections() {
    local word at=0
    rm -f "$LOGS"/*.{done,failed,lines,count,marks}
    if is_wide; then
        for word in "$@"; do [[ $word == [A-Z]* ]] || section_start "$word"; done
    fi
    for word in "$@"; do
        if [[ $word == [A-Z]* ]]; then
            title "$word"
        elif is_wide; then
            section_show "$word" "${section_pids[at++]}"
        else
            "$word"
            [ ! -e "$LOGS/build_release.failed" ] || return # The others need it.
        fi
    done
}

# What still runs when this shell ends, at Ctrl-C for example.
stop_all() {
    local at
    [ ${#section_pids[@]} -eq 0 ] || kill "${section_pids[@]}" 2>/dev/null
    for at in "$LOGS"/running/*; do
        [ ! -e "$at" ] || kill "${at##*/}" 2>/dev/null
    done
    [ -z "${own_folder:-}" ] || rm -rf "$own_folder"
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
    [ -z "$1" ] || marks+=("$(printf '%-40s %8s %10s' "$1" "$(seconds $((ms - marked_ms)))" "$(seconds $((cpu - marked_cpu)))")")
    marked_ms=$ms marked_cpu=$cpu
}

# Where the time went, and the tests that take most of the processor.
time_table() {
    local log
    title "$(printf '%-42s %8s %10s' "Time$(is_wide && echo ", of parts beside each other")" wall CPU)"
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

# unit LABEL FOLDER [OPTION...] [PATTERN...]: the unit tests of a build; unit_jobs: so many at once.
unit() {
    unit_run "$@"
    mark "unit tests: $1"
    unit_show "$1"
}

unit_threads() { if is_wide; then echo 2; else echo $((JOBS < 4 ? JOBS : 4)); fi; }

# Without anything beside them one more at once than there are cores, because some wait.  The commands that tests start
# need few threads then.
unit_run() {
    local log step="unit $1"
    log=$(step_log "$step")
    rm -f "${log%.log}".{count,code}
    [ -x "$2/tests/unit" ] || return 0
    HSTU_THREADS=${HSTU_THREADS:-$(unit_threads)} step_run "$step" \
        nice -n "${unit_nice:-0}" "${fixed_addresses[@]}" \
        "$2/tests/unit" --count "${log%.log}.count" --jobs "${unit_jobs:-$((JOBS + 1))}" \
        "${show_progress[@]/#LABEL/$1}" "${@:3}"
}

unit_show() {
    local log code p=0 f=0 s=0 counts step="unit $1"
    log=$(step_log "$step")
    if [ ! -e "${log%.log}.code" ]; then
        skip "$1" "it was not built"
        return
    fi
    code=$(cat "${log%.log}.code")
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
fixed_addresses=()
show_progress=()
if [ -t 1 ] && ! is_wide; then show_progress=(--progress LABEL); fi
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi

# A warning is a failure.  The release build keeps its usual flags, so that make has nothing to do
# afterwards; its warnings are found in the log.
make_release() {
    limited make -j"$JOBS" all tests build/release/libhstu.so 2>&1 | tee "$LOGS/release-make.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] && ! grep -q 'warning:' "$LOGS/release-make.log"
}

# What is compiled beside the release build gives way to it: everything else waits for that one.
strict_make() {
    local give_way=()
    is_wide && give_way=(nice -n 10)
    limited "${give_way[@]}" make -j"$JOBS" CFLAGS="${CFLAGS:-} -Werror" "$@"
}

# The files of TSAN_PATTERNS, without ".c" and the test's name.
tsan_files() { printf '%s\n' "${TSAN_PATTERNS[@]}" | sed 's/:.*//; s/\.c$//' | tr '\n' ' '; }

build_release() {
    local with=''
    make -pn 2>/dev/null | grep -q '^FEATURES.*HSTU_HAS_CUDA' && with=', with CUDA'
    counted "release$with" make_release || touch "$LOGS/build_release.failed"
    mark "build: release$with"
}

build_asan() {
    counted "asan: address and undefined sanitizers" strict_make VARIANT=asan unit build/asan/libhstu.so
    mark "build: asan"
}

build_tsan() {
    counted "tsan: thread sanitizer" strict_make VARIANT=tsan TEST_FILES="$(tsan_files)" unit
    mark "build: tsan"
}

build_minimal() {
    after build_release || return
    counted "minimal: only a C compiler" strict_make B=build/minimal CUDA=0 MINIMAL=1 REUSE=build/release unit
    mark "build: minimal"
}

build_fuzz() {
    after build_asan
    # For its warnings alone; what it builds for fuzzing runs.
    if ! has clang; then
        skip "clang" "clang is not here"
    elif clang_can_fuzz; then
        counted "clang: what it does not build for fuzzing" strict_make CC=clang CUDA=0 BUT=fuzz NEEDED=build/asan syntax
    else
        counted "clang" strict_make CC=clang CUDA=0 syntax
    fi
    if clang_can_fuzz; then
        counted "fuzz targets" strict_make VARIANT=fuzz NEEDED=build/asan fuzz || touch "$LOGS/build_fuzz.failed"
    else
        skip "fuzz targets" "clang with libFuzzer is not here"
        touch "$LOGS/build_fuzz.failed"
    fi
    mark "build: clang, fuzz targets"
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
        grep -lE "test_program\(\)|HSTU_HAS_|\"($helpers)\"" -r tests --include='test_*.c'
        grep -rl HSTU_HAS_ src --include='*.c' | while read -r source; do
            stem=$(basename "$source" .c)
            find tests -name "test_${stem%%_*}*.c"
        done
    } | sort -u | sed 's|.*/||; s|$|:|'
}

# Unit tests save many checkpoints, each with several fsyncs, for which they would wait most of the time on a disk.
use_memory_for_tests() {
    [ -z "${HSTU_TEST_FOLDER:-}" ] && [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] &&
        [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -gt 4000000 ] || return 0
    own_folder=$(mktemp -d /dev/shm/hstu-XXXXXX) || return 0
    export HSTU_TEST_FOLDER=$own_folder
}

find_shared() {
    if [ -d "${SHARED:-../shared}" ]; then
        SHARED=$(cd "${SHARED:-../shared}" && pwd)
        export SHARED
    else
        note "No ${SHARED:-../shared}: tests on real data are skipped (set SHARED to a folder that has it)."
    fi
}

# share PART: with sections beside each other the unit tests of this one get a part of the cores.
share() { is_wide && unit_jobs=$((JOBS / $1 > 2 ? JOBS / $1 : 2)); }

units_asan() {
    after build_asan
    share 2
    if is_leak_check_slow; then
        note "Here the sanitizer's leak check takes seconds a process: tests count their blocks instead."
        ASAN_OPTIONS=detect_leaks=0 unit "asan" build/asan
    else
        unit "asan" build/asan
    fi
}

units_release() {
    after build_release || return
    share 4
    unit "release" build/release
}

units_minimal() {
    after build_release build_minimal || return
    share 4
    unit "minimal" build/minimal $(minimal_files)
}

units_tsan() {
    after build_tsan
    share 4
    unit "tsan" build/tsan "${TSAN_PATTERNS[@]}"
}

# One after the other, or all at once, for what is left of the cores.
run_behind() {
    local type
    step_run "files with one bit flipped" nice -n 19 build/release/tests/flip --stride "$FLIP_STRIDE" &
    is_wide || wait
    for type in tf32 bfloat16 float16; do
        step_run "reference values, rounded to $type" nice -n 19 build/release/tests/golden --device mirror --dtype $type tests/golden &
        is_wide || wait
    done
    wait
}

attacks() {
    after build_release || return
    # Ranks must answer in time, and wait half of theirs: only what gives way to them runs beside.
    run_behind &
    after units_release units_minimal
    counted "ranks: same bits, one killed, one stopped" tools/ranks.sh --steps 4 --kills 1 --within 12 bits kill stop small
    beside_labels=("files with one bit flipped" "reference values, rounded to "{tf32,bfloat16,float16})
    beside "kill -9 at $CRASHES random moments" tools/crash.sh --n "$CRASHES"
    beside_end
    mark "ranks, kills, flipped bits, reference values"
}

# Says why nothing can run on a GPU; nothing where it can.
gpu_obstacle() {
    case $(build/release/hstu doctor --json 2>/dev/null) in
    *'"verdict":"yes, on the CPU and on '*) ;;
    *'"no_gpu_reason":"this build is without CUDA"'*)
        if nvidia-smi -L >/dev/null 2>&1; then
            echo "there is a GPU, but the build is without CUDA: nvcc and g++ are needed"
        else
            echo "no GPU here, and the build is without CUDA"
        fi ;;
    *) echo "no usable GPU here ('hstu doctor' tells why)" ;;
    esac
}

# gpu_unit LABEL OPTION...: one after the other, or all at once, where a GPU's memory holds few processes of each.
gpu_labels=()
gpu_unit() {
    gpu_labels+=("$1")
    if is_wide; then
        unit_run "$1" build/release "${@:2}" &
    else
        unit "$1" build/release "${@:2}"
    fi
}

# Most of `make gpu-test`.
gpu() {
    export HSTU_TEST_SECONDS=200 # six programs share the GPU
    # Nothing there depends on the clock: what runs beside it goes first.
    local type label why folder=tests/golden unit_nice=0
    is_wide && unit_nice=5
    after build_release || return
    why=$(gpu_obstacle)
    [ -z "$why" ] || { skip "ops and models on the GPU" "$why" && return; }
    share 4
    [ -d "${SHARED:-../shared}/golden" ] && folder=${SHARED:-../shared}/golden
    for type in float32 tf32 bfloat16 float16; do
        beside "reference values, $type" nice -n "$unit_nice" build/release/tests/golden --device cuda --dtype $type "$folder" tests/golden
    done
    for type in float32 bfloat16 float16; do
        beside "attention at random shapes, $type" nice -n "$unit_nice" build/release/hstu bench attention --device cuda \
            --dtype $type --random 40 --seed 1 --check
    done
    is_wide || { beside_end && mark "reference values on the GPU"; }
    unit_nice=0 gpu_unit "ops, models and tables, float32" --device cuda # the longest: it does not give way
    for type in bfloat16 float16 tf32; do
        gpu_unit "ops and models, $type" --device cuda --dtype $type "${GPU_PATTERNS[@]}"
    done
    for type in bfloat16 float32; do
        gpu_unit "sums in any order, $type" --device cuda --fast --dtype $type "${GPU_PATTERNS[@]}"
    done
    is_wide || return
    beside_end
    for label in "${gpu_labels[@]}"; do unit_show "$label"; done
    mark "reference values and unit tests on the GPU"
}

# fuzz_one TARGET: a short run over a copy of its seeds and its corpus; the seed of the run is fixed.
fuzz_one() {
    local stem=${1##*/fuzz_} corpus
    corpus=build/fuzz/corpus/$stem
    rm -rf "$corpus" && mkdir -p "$corpus" build/fuzz/found
    cp tests/fuzz/seeds/"$stem"/* "$corpus"/ 2>/dev/null
    [ ! -e "tests/fuzz/corpus/$stem.tar.xz" ] || tar -C "$corpus" -xJf "tests/fuzz/corpus/$stem.tar.xz"
    limited "${fixed_addresses[@]}" "$1" -seed=1 -max_total_time="$FUZZ_SECONDS" -timeout=20 -rss_limit_mb=3000 \
        -print_final_stats=1 -artifact_prefix="build/fuzz/found/$stem-" "$corpus"
}

fuzz() {
    local target stem step seeds log
    if ! after build_fuzz; then
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

# Trained tokenizers and random texts, compared with the package tokenizers, which is kept in build/python, too.
run_tokenizers() {
    local python=build/python/bin/python label="texts of the package tokenizers"
    if ! $python -c 'import tokenizers' 2>/dev/null; then
        [ "${HSTU_INSTALL:-1}" = 0 ] && skip "$label" "HSTU_INSTALL=0: nothing is installed" && return
        { [ -x $python ] || python3 -m venv build/python; } >"$LOGS/tokenizers.log" 2>&1 &&
            timeout 300 $python -m pip install -q --only-binary :all: --timeout 15 --retries 1 tokenizers >>"$LOGS/tokenizers.log" 2>&1 ||
            { skip "$label" "Python's package tokenizers cannot be had here ($LOGS/tokenizers.log)" && return; }
    fi
    beside "WordPiece: $label" $python tests/encoder/compare.py build/release/hstu --texts 4000
    beside "BPE and Unigram: $label" $python tests/encoder/compare_json.py build/release/hstu --texts 10000
    if $python -c 'import sentence_transformers' 2>/dev/null; then
        beside "heads of transformers and sentence-transformers" $python tests/encoder/compare_heads.py build/release/hstu
    else # they bring torch, which is too large to be installed for a test
        skip "heads of transformers and sentence-transformers" "build/python has no package sentence-transformers"
    fi
}

# Traces for TensorBoard, read by its plugin, which is kept in build/python, too.
run_tensorboard() {
    local python=build/python/bin/python label="traces for TensorBoard's plugin"
    if ! $python -c 'import torch_tb_profiler.profiler.loader' 2>/dev/null; then
        [ "${HSTU_INSTALL:-1}" = 0 ] && skip "$label" "HSTU_INSTALL=0: nothing is installed" && return
        { [ -x $python ] || python3 -m venv build/python; } >"$LOGS/tensorboard.log" 2>&1 &&
            timeout 300 $python -m pip install -q --only-binary :all: --timeout 15 --retries 1 torch-tb-profiler >>"$LOGS/tensorboard.log" 2>&1 ||
            { skip "$label" "Python's package torch-tb-profiler cannot be had here ($LOGS/tensorboard.log)" && return; }
    fi
    beside "$label" $python tests/profile/tensorboard.py build/release/hstu
}

# What `make dist` has built, as a wheel and as an image; wheels for the other architecture and packages take minutes more.
run_dist() {
    local label="make dist: one file, glibc 2.28"
    beside "$label" bash tests/dist.sh
    beside_end
    [ "$(cat "$(step_log "$label" | sed 's/log$/code/')")" = 0 ] || return
    beside "make image: its own user, SIGTERM" env SECTIONS=oci bash tests/packaging.sh
    beside "make wheel: no compiler, below 20 s" bash tests/python.sh --manylinux
    beside_end
    [ -n "${HSTU_TEST_ALL:-}" ] || return 0
    counted "make wheel WHEEL_ARCH=aarch64, under qemu" bash tests/python.sh --aarch64
    has nvcc && counted "make wheel-cuda" bash tests/python.sh --cuda
    counted "make deb: lintian, install, purge" bash tests/deb.sh
}

# A link that leads nowhere, or an anchor that is not there, ends the build of the site.
run_site() {
    local label="make site: the documents' links"
    if [ ! -x build/site-python/bin/mkdocs ]; then
        [ "${HSTU_INSTALL:-1}" = 0 ] && skip "$label" "HSTU_INSTALL=0: nothing is installed" && return
        make --no-print-directory build/site-python/bin/mkdocs >"$LOGS/site.log" 2>&1 ||
            { skip "$label" "Python's package mkdocs cannot be had here ($LOGS/site.log)" && return; }
    fi
    beside "$label" make --no-print-directory site
}

checks() {
    local counts rules="rules of the code"
    after build_release build_asan build_tsan build_minimal || return
    rm -f "$LOGS/check.count"
    step_run "$rules" sh tools/check.sh --count "$LOGS/check.count" &
    beside "pip install ./python" bash tests/python.sh
    beside "docs/learn.md: the programs compile and run" bash tests/learn.sh
    run_parquet # packages first: the next also takes from build/python
    run_tokenizers
    run_tensorboard
    beside "export to ONNX, in ONNX Runtime" bash tests/onnx.sh
    if [[ $(build/release/hstu doctor --json 2>/dev/null) == *'"libmicrohttpd","version":null'* ]]; then
        skip "docs/serving.md, followed" "this build has no libmicrohttpd"
    else
        beside "docs/serving.md, followed" bash tests/serving.sh
        beside "packaging/: systemd, Kubernetes, Prometheus, nginx" bash tests/packaging.sh
        beside "GET /openapi.json is valid and true" bash tests/openapi.sh
        beside "kill -9 of a server, $SERVE_CRASHES times" tools/serve_crash.sh --n "$SERVE_CRASHES"
    fi
    run_site
    beside "make install, use, make uninstall" bash tests/install.sh
    beside "docs/guide.md, followed" bash tests/guide.sh
    beside "docs/own-data.md, followed" bash tests/guide.sh build/release/hstu docs/own-data.md
    beside "./run setup where dnf installs" bash tests/setup_dnf.sh
    beside_end
    run_dist
    cat "$(step_log "$rules")"
    add_counts "$LOGS/check.count"
    mark "Python, documents, installation, rules"
}

# closing_lines MS: what was tested where, as bench/results has it, and the counts.
closing_lines() {
    local commit gpu
    commit=$(git rev-parse --short HEAD 2>/dev/null) || commit=unknown
    [ "$commit" = unknown ] || git diff --quiet HEAD || commit="$commit with changes"
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c |
        sed -E 's/^ *1 //; s/^ *([0-9]+) /\1 x /' | paste -sd,)
    printf '\ncommit %s, %s, %s, %d cores, %s minutes\n' "$commit" "${gpu:-no GPU}" "$(uname -m)" "$JOBS" \
        "$(awk -v ms="$1" 'BEGIN { printf "%.1f", ms / 60000 }')"
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
    # The short forms see every kind of fault; the long ones more of each kind.  A step that hangs is stopped: no other
    # takes as long as its limit.
    if [ "${1:-}" = --all ]; then
        export HSTU_TEST_ALL=1
        FUZZ_SECONDS=${FUZZ_SECONDS:-60} CRASHES=100 FLIP_STRIDE=1 SERVE_CRASHES=100 STEP_SECONDS=${STEP_SECONDS:-14400}
    elif [ $# -gt 0 ]; then
        echo "./run test: unknown option '$1'; there is --all" >&2
        return 2
    else
        FUZZ_SECONDS=${FUZZ_SECONDS:-3} CRASHES=12 FLIP_STRIDE=5 SERVE_CRASHES=10
        is_wide && STEP_SECONDS=${STEP_SECONDS:-$((10400 / JOBS > 600 ? 10400 / JOBS : 600))}
        HSTU_TEST_SECONDS=${HSTU_TEST_SECONDS:-60} # of one test: what takes longer is a campaign of tools/
    fi
    start=$(now_ms)
    export HSTU_TEST_SECONDS=${HSTU_TEST_SECONDS:-600}
    mkdir -p "$LOGS"
    rm -rf "$LOGS"/unit-* "$LOGS/running"
    trap stop_all EXIT
    trap 'exit 130' INT TERM
    mark ''
    if setup test; then
        mark "setup"
        use_memory_for_tests
        find_shared
        run_sections "Building every variant" build_release build_asan build_tsan build_minimal build_fuzz \
            "Unit tests" units_asan units_release units_minimal units_tsan \
            "Kills, flipped bits, reference values" attacks "On the GPU" gpu \
            "Fuzzing, $FUZZ_SECONDS s each" fuzz "Checks" checks
        time_table
    else
        failed=$((failed + 1))
    fi
    closing_lines $(($(now_ms) - start))
}
