#!/usr/bin/env bash
# Fuzzing for as long as you like:
#
#   tools/fuzz.sh --minutes M [--jobs J] [TARGET...]
#
# Runs every target (or those named: json, gin, ...) for its share of M minutes, J at a time, from its seeds and
# its corpus; adds what reaches new code to the corpus (tests/fuzz/corpus/TARGET.tar.xz, minimised), and a row to
# tests/fuzz/executions.csv.  A crash is kept under build/fuzz/found, with the command that shows it again.
set -u
cd "$(dirname "$0")/.." || exit 1

usage() {
    sed -n '4,9s/^# \{0,1\}//p' tools/fuzz.sh
    exit "$1"
}

minutes='' jobs=1 targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --jobs)
        [[ ${2:-} =~ ^[0-9]+(\.[0-9]+)?$ ]] || { echo "tools/fuzz.sh: $1 needs a number" >&2; exit 2; }
        if [ "$1" = --minutes ]; then minutes=$2; else jobs=${2%.*}; fi
        shift ;;
    --help | -h) usage 0 ;;
    -*) echo "tools/fuzz.sh: unknown option $1" >&2; usage 2 >&2 ;;
    *) targets+=("${1#fuzz_}") ;;
    esac
    shift
done
[ -n "$minutes" ] || usage 2 >&2
[ "$jobs" -ge 1 ] || jobs=1

work=build/fuzz
table=tests/fuzz/executions.csv
mkdir -p $work/found $work/logs tests/fuzz/corpus
if [ ${#targets[@]} -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        source=${source##*/fuzz_}
        targets+=("${source%.c}")
    done
fi
for target in "${targets[@]}"; do
    [ -e "tests/fuzz/fuzz_$target.c" ] || { echo "tools/fuzz.sh: there is no target $target" >&2; exit 2; }
done
make -j"$jobs" VARIANT=fuzz "${targets[@]/#/$work/fuzz/fuzz_}" >$work/logs/make.log 2>&1 || { tail -n 20 $work/logs/make.log; exit 1; }

# Address randomisation with many bits breaks the shadow memory of older sanitizers.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then fixed_addresses=(setarch "$(uname -m)" -R); fi
limits=(-timeout=20 -rss_limit_mb=3000 -max_len=4096)
share=$(awk -v m="$minutes" -v j="$jobs" -v n=${#targets[@]} 'BEGIN { s = m * 60 * j / n; print s < 1 ? 1 : int(s) }')

# pack TARGET: the files of its grown corpus that reach what the seeds do not, in one archive whose bytes depend on
# them alone.
pack() {
    local grown=$work/grown/$1 least=$work/least/$1
    rm -rf "$least" && mkdir -p "$least"
    cp tests/fuzz/seeds/"$1"/* "$least"/
    "${fixed_addresses[@]}" "$work/fuzz/fuzz_$1" -merge=1 "${limits[@]}" "$least" "$grown" >>"$work/logs/$1.merge.log" 2>&1 || return 1
    (cd tests/fuzz/seeds/"$1" && ls) | (cd "$least" && xargs rm -f)
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -C "$least" -cf - . | xz -9e >"$work/least/$1.tar.xz" &&
        mv "$work/least/$1.tar.xz" tests/fuzz/corpus/"$1".tar.xz
}

# fuzz_one TARGET: leaves "executions seconds crashes files" in its .row.
fuzz_one() {
    local target=$1 grown=$work/grown/$1 log=$work/logs/$1.log crashes=0 start=$SECONDS
    rm -rf "$grown" "$work/logs/$target".{row,merge.log} && mkdir -p "$grown"
    [ ! -e "tests/fuzz/corpus/$target.tar.xz" ] || tar -C "$grown" -xJf "tests/fuzz/corpus/$target.tar.xz"
    "${fixed_addresses[@]}" "$work/fuzz/fuzz_$target" -max_total_time="$share" "${limits[@]}" -print_final_stats=1 \
        -artifact_prefix="$work/found/$target-" "$grown" "tests/fuzz/seeds/$target" >"$log" 2>&1 </dev/null || crashes=1
    local took=$((SECONDS - start)) executions
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    # A crash ends a target without its statistics: the last line with a count is what there is.
    [ -n "$executions" ] || executions=$(sed -n 's/^#\([0-9]*\)\t.*/\1/p' "$log" | tail -n 1)
    [ $crashes = 1 ] || pack "$target" || echo "$target: the corpus was not merged; see $work/logs/$target.merge.log" >&2
    echo "${executions:-0} $took $crashes $(tar -tJf "tests/fuzz/corpus/$target.tar.xz" 2>/dev/null | grep -vc '/$')" >"$work/logs/$target.row"
    rm -rf /dev/shm/hstu-fuzz-"$target"-*
}

for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    fuzz_one "$target" &
done
wait

[ -e $table ] || echo "date,commit,target,executions,seconds,crashes" >$table
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
failed=0
printf '%-16s %14s %8s %8s %8s\n' target executions seconds corpus crashes
for target in "${targets[@]}"; do
    read -r executions took crashes files <"$work/logs/$target.row"
    printf '%-16s %14s %8s %8s %8s\n' "$target" "$executions" "$took" "$files" "$crashes"
    echo "$(date -u +%F),$commit,$target,$executions,$took,$crashes" >>$table
    [ "$crashes" = 0 ] && continue
    failed=1
    found=$(grep -o "Test unit written to .*" "$work/logs/$target.log" | sed 's/Test unit written to //' | tail -n 1)
    grep -E 'ERROR:|SUMMARY:' "$work/logs/$target.log" | sed 's/^/    /'
    echo "    again: $work/fuzz/fuzz_$target ${found:-$work/found/$target-*}"
done
awk -F, -v kb="$(du -k tests/fuzz | tail -n 1 | cut -f1)" '
    NR > 1 { n += $4; s += $5; c += $6 }
    END { printf "\nin all %.0f executions in %.1f hours, %d crashes: %.2f %% of 10^9; tests/fuzz has %d kB\n", n, s / 3600, c, n / 1e7, kb }' $table
exit $failed
