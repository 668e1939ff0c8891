#!/usr/bin/env bash
# hstu recommend --all-users -k 100 against hstu eval with the same run and data: wall and CPU seconds, ratios.
#
#   [RUNS=3] [OUT=FILE.csv] bench/recommend_all.sh RUN DATA [DEVICE]     appends rows to FILE.csv
#                                                    (default: bench/results/cpu/recommend_all.csv)
#
# DEVICE is cpu (default) or cuda.  Both commands open the data, load the checkpoint and go through every user; the
# commands take turns, so that both see the same load of the machine.  Wall time is around the whole command, CPU time
# is user and system time of all its threads.  recommend writes JSON lines to a file; before it is timed, the number of
# users and items is checked.
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 2 ] || { sed -n '4,5s/^# \{0,1\}//p' bench/recommend_all.sh >&2; exit 2; }
run=$1 data=$2 device=${3:-cpu} runs=${RUNS:-3} k=100
out=${OUT:-bench/results/cpu/recommend_all.csv}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu} x$(nproc)"
if [ "$device" != cpu ] && command -v nvidia-smi >/dev/null; then machine="$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), $machine"; fi
mkdir -p "$(dirname "$out")"
[ -s "$out" ] || echo "date,commit,machine,load,device,repetition,command,users,k,seconds,cpu_seconds,times_eval,times_cpu_of_eval" >"$out"

recommend() { ./hstu recommend "$run" --data "$data" --device "$device" --all-users -k $k --format jsonl --out "$work/all.jsonl" 2>"$work/log"; }
evaluate() { ./hstu eval "$run" --data "$data" --device "$device" --json >"$work/eval.json" 2>"$work/log"; }

# milliseconds COMMAND: sets wall_ms and cpu_ms.
milliseconds() {
    local start used TIMEFORMAT='%3U %3S'
    start=$(date +%s%N)
    { time "$1"; } 2>"$work/time" || { cat "$work/log" >&2; exit 1; }
    wall_ms=$((($(date +%s%N) - start) / 1000000))
    used=$(tail -n 1 "$work/time")
    used=${used//./}
    cpu_ms=$((10#${used% *} + 10#${used#* }))
}

# thousandths NUMBER: 1234 as 1.234
thousandths() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }

milliseconds recommend # and warms the page cache
users=$(wc -l <"$work/all.jsonl")
items=$(grep -o '"id":' "$work/all.jsonl" | wc -l)
[ "$items" -le $((users * k)) ] && [ "$items" -gt $((users * k / 2)) ] || { echo "$users users with $items items: not what was asked for" >&2; exit 1; }
for repetition in $(seq "$runs"); do
    milliseconds evaluate
    eval_wall=$wall_ms eval_cpu=$cpu_ms
    milliseconds recommend
    for what in eval recommend; do
        [ $what = eval ] && w=$eval_wall c=$eval_cpu || w=$wall_ms c=$cpu_ms
        echo "$(date -u +%F),$commit,\"$machine\",$(cut -d' ' -f1 /proc/loadavg),$device,$repetition,$what,$users,$k,$(thousandths $w),$(thousandths $c),$(thousandths $((w * 1000 / eval_wall))),$(thousandths $((c * 1000 / eval_cpu)))" >>"$out"
        printf '%s %d %-10s %9s s wall %9s s CPU   %s of eval (wall), %s (CPU)\n' "$device" "$repetition" $what "$(thousandths $w)" "$(thousandths $c)" \
            "$(thousandths $((w * 1000 / eval_wall)))" "$(thousandths $((c * 1000 / eval_cpu)))"
    done
done
