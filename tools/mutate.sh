#!/bin/sh
# How well the tests see mistakes: makes small mistakes (mutants) in the C files of a folder, one at a
# time, and lists those that no test fails on.
#
#   tools/mutate.sh [--n 100] [--seed 1] [--jobs 1] [--variant release] [--keep DIR] [--resume RESULTS] FOLDER...
#   tools/mutate.sh [--variant release] [--keep DIR] --again RESULTS
#
# N mutants a folder, in turn of five kinds (tools/mutate.awk finds the places): a swapped comparison, a
# negated condition, an off-by-one, a changed constant, a dropped call.  The same seed and jobs draw the same
# mutants.  One that does not compile, or compiles to the same machine code, does not count: another is
# drawn.  A test file can see a mutant if gcov says that it executes the line; these run, the file of the
# same stem first, then the fastest, up to the first failure.  A hang is a failure.  All work is done on
# copies of the tree in a temporary folder; --keep names one that is kept, so that the next call builds only
# what has changed, and measures again only what test files that have changed execute, if nothing else
# has.  --variant asan also sees reads past an end.
#
# --again makes the survivors in a file of results again, in the line with the same text that is nearest to
# where it was, and runs the tests named there: what later tests kill, and what is gone with its line.
#
# --resume goes on after a call that was stopped: mutants in RESULTS (DIR/results.0 and on, one after the other) are
# not made again and count among the N of their folder, though the tree and so the draw may have changed since.
#
# Tests on real data need SHARED (default ../shared).  Exit status 0 whatever survives.
cd "$(dirname "$0")/.." || exit 1
n=100 seed=1 jobs=1 variant=release keep= again= resume=
while [ $# -gt 0 ]; do
    case $1 in
    --n) n=$2 ;;
    --seed) seed=$2 ;;
    --jobs) jobs=$2 ;;
    --variant) variant=$2 ;;
    --keep) keep=$2 ;;
    --again) again=$2 ;;
    --resume) resume=$2 ;;
    *) break ;;
    esac
    shift 2
done
for folder in "$@"; do [ -d "$folder" ] || set --; done
if { [ $# = 0 ] && [ ! -f "$again" ]; } || { [ -n "$resume" ] && [ ! -f "$resume" ]; }; then
    sed -n '2,/^cd/s/^# \{0,1\}//p' tools/mutate.sh >&2
    exit 2
fi
work=${keep:-$(mktemp -d)} || exit 1
[ -n "$keep" ] && mkdir -p "$keep"
work=$(cd "$work" && pwd -P)
[ -n "$keep" ] || trap 'rm -rf "$work"' EXIT
trap ': >"$work/stop"; wait; exit 130' INT TERM # those that run at the side see the file and end
rm -f "$work/stop"
SHARED=$(cd "${SHARED:-../shared}" 2>/dev/null && pwd)
export SHARED ASAN_OPTIONS=detect_leaks=0

# built TREE FLAGS [TARGET]: makes a target, or all that the tests run.  tools/probe.sh was run once: asking
# it each time is slow.
all="build/mutate/hstu build/mutate/hstu-inject.so build/mutate/tests/golden build/mutate/tests/unit"
command -v mpicc >/dev/null && all="$all build/mutate/hstu-mpi.so"
built() {
    (cd "$1" && make -s -j"$jobs" CUDA=0 VARIANT="$variant" B=build/mutate OPT_release=-O1 \
        PROBE="$(cat "$work/probe")" CFLAGS="-g0 -w $2" LDFLAGS="$2" ${3:-$all} 2>&1)
}

# A copy of what git knows and does not ignore.  A file that an earlier call left as a mutant is replaced,
# and so is newer than its object; one that is no more goes.
files() { git ls-files --cached --others --exclude-standard; }
copy_tree() {
    mkdir -p "$1"
    files | while IFS= read -r name; do
        cmp -s "$name" "$1/$name" || { mkdir -p "$1/$(dirname "$name")" && cp "$name" "$1/$name" 2>/dev/null; }
    done
    (cd "$1" && find src tests -type f) | while IFS= read -r name; do [ -e "$name" ] || rm "$1/$name"; done
}

# unit_file TREE FILE SECONDS: runs the tests of one file up to the first that fails.  Memory is limited: a
# mutant may ask for all of it.
unit_file() (
    cd "$1" || exit 1
    [ "$variant" = asan ] || ulimit -v 16000000
    exec timeout -k 5 "$3" build/mutate/tests/unit --first "$2:" </dev/null >"$1.log" 2>&1
)

# cover_files I: of the test files on stdin, each one's time and the lines that it executes, to maps/FILE: a
# key, the seconds, then "file:line test", or "file:line -" for a line of code.
cover_files() {
    tree=$work/cover data=$work/data.$1
    rm -rf "$data" && mkdir -p "$data"
    (cd "$tree" && find build/mutate/src -name '*.gcno' | xargs cp --parents -t "$data")
    ln -sfn "$tree" "$work/cover.$1" # for a log of its own
    GCOV_PREFIX=$data GCOV_PREFIX_STRIP=$(echo "$tree" | tr -cd / | wc -c)
    export GCOV_PREFIX GCOV_PREFIX_STRIP
    while [ ! -e "$work/stop" ] && read -r name key; do
        find "$data" -name '*.gcda' -delete
        start=$(date +%s)
        if ! unit_file "$work/cover.$1" "$name" 900; then
            echo "mutate: $name fails without a mutant, or has no tests here, so it is left out" >&2
            rm -f "$work/maps/$name"
            continue
        fi
        {
            echo "$key"
            echo "$name $(($(date +%s) - start))"
            (cd "$tree" && gcov -t $(find "$data" -name '*.gcda') 2>/dev/null) | awk -v test="$name" '
                { split($0, part, ":"); count = part[1]; line = part[2] + 0 }
                line == 0 && part[3] == "Source" { file = part[4] }
                line > 0 && file ~ /\.c$/ && count !~ /-/ {
                    print file ":" line, "-"
                    if (count !~ /#|=/) print file ":" line, test
                }'
        } >"$data/map" && mv "$data/map" "$work/maps/$name"
    done
}

# All maps, in cover.txt and times.txt.  A map is made again when its test file, or anything that is not a
# test file, has changed.
measure_coverage() {
    copy_tree "$work/cover"
    # Ranks that a test forks end by _exit, which alone would not write what they executed.  Without unistd.h: a file
    # may have functions of the same names.
    cat >"$work/exit.h" <<'END'
void __gcov_dump(void);
_Noreturn void _exit(int code);
__attribute__((weak)) _Noreturn void counted_exit(int code) { __gcov_dump(); _exit(code); }
#define _exit(code) counted_exit(code)
END
    built "$work/cover" "--coverage -include $work/exit.h" || { echo "mutate: the tests do not build" >&2; exit 1; }
    mkdir -p "$work/maps"
    key=$(files | grep -E '^(src|include|tests|Makefile)' | grep -v '/test_[^/]*$' | xargs cat | cksum)
    for file in $(find tests -name 'test_*.c' | sort); do
        mine="$key $(cksum <"$file") $variant"
        [ "$(head -n 1 "$work/maps/${file##*/}" 2>/dev/null)" = "$mine" ] || echo "${file##*/} $mine"
    done >"$work/stale.txt"
    i=0
    while [ $i -lt "$jobs" ]; do
        awk -v i=$i -v jobs="$jobs" 'NR % jobs == i' "$work/stale.txt" >"$work/stale.$i"
        cover_files $i <"$work/stale.$i" &
        i=$((i + 1))
    done
    wait
    for file in $(find tests -name 'test_*.c' | sort); do sed 1d "$work/maps/${file##*/}" 2>/dev/null; done | sort -u >"$work/cover.txt"
    grep '^test_' "$work/cover.txt" >"$work/times.txt"
}

# The places of a folder in the order in which they are drawn: the kinds in turn, each shuffled.
draw() {
    (cd "$work/cover" && awk -f tools/mutate.awk $(find "$1" -name '*.c' | LC_ALL=C sort)) |
        awk -F '\t' -v seed="$seed" '
            # Lehmer generator: the same numbers in every awk.
            function draw(k) { x = x * 16807 % 2147483647; return 1 + int(x / 2147483647 * k) }
            BEGIN { x = seed * 7919 + 1; for (i = 0; i < 9; i++) draw(1) }
            { if (!($1 in n)) kinds[++n_kinds] = $1; site[$1, ++n[$1]] = $0 }
            END {
                for (left = 1; left > 0;) {
                    left = 0
                    for (k = 1; k <= n_kinds; k++) {
                        kind = kinds[k]
                        if (n[kind] == 0) continue
                        i = draw(n[kind])
                        print site[kind, i]
                        site[kind, i] = site[kind, n[kind]--]
                        left++
                    }
                }
            }'
}

# The tests that can see a place, those of the same stem first, then by time.  A statement over several
# lines is executed where its first line is; data are seen by all that execute anything of the file, or of
# the folder where a file has data only.
add_tests() {
    awk -F '\t' -v cover="$work/cover.txt" -v times="$work/times.txt" '
        BEGIN {
            while ((getline row <times) > 0) { split(row, f, " "); seconds[f[1]] = f[2] }
            while ((getline row <cover) > 0) {
                split(row, f, " ")
                split(f[1], at, ":")
                if (f[2] == "-") { is_code[f[1]] = 1; continue }
                tests[f[1]] = tests[f[1]] " " f[2]
                add_any(at[1], f[2])
                sub(/\/[^\/]*$/, "", at[1])
                add_any(at[1], f[2])
            }
        }
        function add_any(of, test) { if (index(any[of] " ", " " test " ") == 0) any[of] = any[of] " " test }
        function ordered(list, stem,    name, n, i, j, t, out) {
            n = split(list, name, " ")
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && rank(name[j], stem) < rank(name[j - 1], stem); j--) {
                    t = name[j]; name[j] = name[j - 1]; name[j - 1] = t
                }
            for (i = 1; i <= n; i++) out = out " " name[i]
            return out
        }
        function rank(name, stem) { return name == "test_" stem ".c" ? -1 : seconds[name] }
        {
            stem = $2
            sub(/.*\//, "", stem)
            sub(/\.c$/, "", stem)
            for (line = $3; line > 0 && line > $3 - 12 && !(($2 ":" line) in is_code); line--);
            folder = $2
            sub(/\/[^\/]*$/, "", folder)
            list = ($2 ":" line) in is_code ? tests[$2 ":" line] : $2 in any ? any[$2] : any[folder]
            print $0 "\t" ordered(list, stem)
        }'
}

# mutant TREE FILE LINE COLUMN LENGTH TEXT: puts it into the tree.
mutant() {
    TEXT=$6 awk -v line="$3" -v at="$4" -v len="$5" '
        FNR == line { $0 = substr($0, 1, at - 1) ENVIRON["TEXT"] substr($0, at + len) }
        { print }' "$work/cover/$2" >"$1/$2"
}

# changed TREE FILE: the line before and after, as results show them.
changed() { diff "$work/cover/$2" "$1/$2" | sed -n 's/^\([<>]\) */    \1 /p'; }

# is_done FILE LINES: whether a mutant is among those of --resume.
is_done() {
    [ -n "$resume" ] && LINES_OF="$1
$2" awk '
        /^(SURVIVED|killed)/ { file = $3; sub(/:[0-9]*$/, "", file); next }
        /^    </ { old = $0; next }
        file "\n" old "\n" $0 == ENVIRON["LINES_OF"] { found = 1; exit }
        END { exit !found }' "$resume"
}

# killer TREE TEST...: the first test file that fails.
killer() {
    tree=$1
    shift
    for name; do
        [ ! -e "$work/stop" ] || return
        took=$(awk -v name="$name" '$1 == name { print $2 }' "$work/times.txt")
        unit_file "$tree" "$name" $((${again:+600} + 20 + 5 * took)) || { echo "$name"; return; }
    done
}

# run_mutants TREE MOST: of the places on stdin, to results on stdout.
run_mutants() {
    tree=$1 most=$2 counted=0 tab=$(printf '\t')
    while [ "$counted" -lt "$most" ] && [ ! -e "$work/stop" ] && IFS=$tab read -r kind file line at len text tests; do
        case $text in test_* | ' test_'*) tests=$text text= ;; esac # read joins empty fields
        object=$tree/build/mutate/${file%.c}.o
        mv "$object" "$tree.o"
        mutant "$tree" "$file" "$line" "$at" "$len" "$text"
        lines=$(changed "$tree" "$file")
        if ! is_done "$file" "$lines" && built "$tree" "" "build/mutate/${file%.c}.o" >/dev/null && ! cmp -s "$object" "$tree.o"; then
            counted=$((counted + 1))
            by=
            [ -z "$tests" ] || { built "$tree" "" >/dev/null; by=$(killer "$tree" $tests); }
            [ -n "$by" ] || [ ! -e "$work/stop" ] || break # not all of its tests have run
            if [ -n "$by" ]; then verdict="killed  " why="by $by"
            elif [ -z "$tests" ]; then verdict=SURVIVED why="no test executes it"
            else verdict=SURVIVED why="of$tests"; fi
            echo "$verdict $kind $file:$line ($why)"
            echo "$lines"
        fi
        cp "$work/cover/$file" "$tree/$file"
        sleep 0.01
        cp "$tree.o" "$object" # newer than the source again, and what the others were built with
    done
}

# run_again TREE: of the survivors on stdin, to results on stdout.
run_again() {
    tree=$1
    while [ ! -e "$work/stop" ] && read -r verdict kind place tests; do
        if [ "$verdict" != SURVIVED ]; then continue; fi
        read -r _ old
        read -r _ new
        file=${place%:*}
        tests=${tests#(of } tests=${tests%)}
        # No test executed it then: those of the same folder may now.
        case $tests in '(no '*) tests=$(cd "tests/$(dirname "${file#src/}")" && echo test_*.c) ;; esac
        line=$(OLD=$old awk -v was="${place#*:}" '
            { at = FNR - was; sub(/^ */, ""); if (at < 0) at = -at }
            $0 == ENVIRON["OLD"] && (best == "" || at < distance) { best = FNR; distance = at }
            END { print best }' "$file" 2>/dev/null)
        verdict='gone    ' by=
        if [ -n "$line" ]; then
            NEW=$new awk -v line="$line" 'FNR == line { $0 = ENVIRON["NEW"] } { print }' "$file" >"$tree/$file"
            built "$tree" "" >/dev/null && by=$(killer "$tree" $tests) || by='the compiler'
            [ -n "$by" ] && verdict='killed  ' || verdict=SURVIVED
            cp "$file" "$tree/$file"
        fi
        printf '%s %s %s:%s (%s)\n    < %s\n    > %s\n' "$verdict" "$kind" "$file" "$line" \
            "${by:+by }${by:-of $tests}" "$old" "$new"
    done
}

CC=${CC:-gcc} CUDA=0 NVCC='' MINIMAL='' PROBE_FLAGS='' sh tools/probe.sh >"$work/probe"
if [ -n "$again" ]; then
    copy_tree "$work/tree.0"
    built "$work/tree.0" "" || exit 1
    : >"$work/times.txt"
    run_again "$work/tree.0" <"$again"
    exit
fi
measure_coverage
i=0
while [ $i -lt "$jobs" ]; do
    [ -e "$work/tree.$i" ] || [ $i = 0 ] || cp -a "$work/tree.0" "$work/tree.$i" # built once, by all cores
    copy_tree "$work/tree.$i"
    built "$work/tree.$i" "" || exit 1
    i=$((i + 1))
done
for folder; do
    draw "$folder" | head -n $((4 * n)) | add_tests >"$work/sites.txt"
    left=$n
    [ -z "$resume" ] || left=$((n - $(grep -cE "^(SURVIVED|killed) .* $folder/" "$resume")))
    i=0
    while [ $i -lt "$jobs" ]; do
        share=$(((left + jobs - 1 - i) / jobs))
        awk -v i=$i -v jobs="$jobs" 'NR % jobs == i' "$work/sites.txt" >"$work/sites.$i"
        run_mutants "$work/tree.$i" $share <"$work/sites.$i" >"$work/results.$i" &
        i=$((i + 1))
    done
    wait
    cat "$work"/results.[0-9]* >"$work/results.txt"
    rm "$work"/results.[0-9]*
    cp "$work/results.txt" "$work/results-$(echo "$folder" | tr / -).txt"
    awk '/^SURVIVED/ { show = 1; print; next } /^killed/ { show = 0 } show' "$work/results.txt"
    awk -v folder="$folder" '
        /^SURVIVED/ { n++; s++; if (/no test executes/) never++ }
        /^killed/ { n++ }
        END { printf "%s: %d mutants, %d killed, %d survived (%d in lines that no test executes)\n", folder, n, n - s, s, never }
    ' "$work/results.txt"
done
