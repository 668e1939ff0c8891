#!/bin/sh
# How long a model takes, and how much memory, by the size of a log: the figures of docs/choose.md.
#
#   bench/choose.sh --device cpu|cuda [--threads N] [--large] [--events "N N ..."] [--steps 100] [--out FILE.csv]
#
# Synthetic logs of about 60 events a user, of 10^4, 10^5 and 10^6 events (within two minutes on two cores), with --large
# of 10^7 and 10^8, too; --events names other sizes.  `hstu train` chooses the config, takes --steps steps, and ranks all
# items for 2,000 users; the time of an epoch is drawn on from those steps.  Prints a Markdown table for docs/choose.md
# and appends its rows to FILE.csv (default: bench/results/cpu/choose.csv, of a GPU bench/results/h200/choose.csv).
# ./hstu is built if it is missing.  TMPDIR needs 6 GB for 10^8 events.
set -eu
cd "$(dirname "$0")/.."
device='' sizes='10000 100000 1000000' steps=100 out=''
usage() { sed -n '4s/^# *//p' bench/choose.sh >&2; exit 2; }
while [ $# -ge 1 ]; do
    [ "$1" != --large ] || { sizes="$sizes 10000000 100000000"; shift; continue; }
    [ $# -ge 2 ] || usage
    case $1 in
    --device) device=$2 ;;
    --threads) HSTU_THREADS=$2; export HSTU_THREADS ;;
    --events) sizes=$2 ;;
    --steps) steps=$2 ;;
    --out) out=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $device in cpu | cuda | cuda:*) ;; *) usage ;; esac
[ -x hstu ] || make -s hstu
work=$(mktemp -d "${TMPDIR:-/tmp}/choose.XXXXXX")
trap 'rm -rf "$work"' EXIT
machine="$(uname -m) $(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1) x${HSTU_THREADS:-$(nproc)}"
[ "$device" = cpu ] || machine="$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), $machine"
[ -n "$out" ] || out=bench/results/$([ "$device" = cpu ] && echo cpu || echo h200)/choose.csv
mkdir -p "$(dirname "$out")"
[ -s "$out" ] || echo "date,commit,machine,load,device,events,users,items,config,steps_an_epoch,s_an_epoch,eval_s_per_100k_users,peak_mb,data_mb" >"$out"

# value KEY: the last value of a number in the run's JSON lines
value() { sed -n 's/.*"'"$1"'": *\([0-9.]*\).*/\1/p' "$work/json" | tail -1; }

# The program's peak of resident memory in kB goes to the last line of stdout.
peak='import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)'

printf 'On %s (%s), commit %s:\n\n' "$machine" "$device" "$(git describe --always --dirty=+ 2>/dev/null)"
row='| %11s | %9s | %7s | %-26s | %10s | %22s | %14s | %12s |\n'
# shellcheck disable=SC2059
printf "$row" events users items config "s an epoch" "s to rank 100,000 users" "peak memory MB" "data file MB"
echo '|---:|---:|---:|---|---:|---:|---:|---:|'
set --
for events in $sizes; do
    users=$((events / 60)) items=$((events / 500))
    [ $items -ge 1000 ] || items=1000
    ./hstu synth --out "$work/data" --users $users --items $items --seed 3 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    python3 -c "$peak" ./hstu train --device "$device" --data "$work/data" --out "$work/run" --max-iters "$steps" \
        --eval-users 2000 --json >"$work/json" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    config=$(sed -n 's/.*"config":"\([^"]*\)".*/\1/p' "$work/json" | head -1)
    batch=$(value batch)
    an_epoch=$(((users + batch - 1) / batch))
    line=$(awk -v s="$(value seconds)" -v n="$(value step)" -v e=$an_epoch -v t="$(value eval_seconds)" -v u="$(value users)" \
        -v kb="$(tail -1 "$work/json")" -v data="$(wc -c <"$work/data/data.seq")" \
        'BEGIN { printf "%.2f %.1f %.0f %.1f", s / n * e, t / u * 1e5, kb / 1000, data / 1e6 }')
    # shellcheck disable=SC2086
    set -- $line
    # shellcheck disable=SC2059
    printf "$row" "$events" "$users" "$items" "$config" "$@"
    printf '%s,%s,"%s",%s,%s,%d,%d,%d,%s,%d,%s,%s,%s,%s\n' "$(date -u +%F)" "$(git describe --always --dirty=+ 2>/dev/null)" \
        "$machine" "$(cut -d' ' -f1 /proc/loadavg)" "$device" "$events" "$users" "$items" "$config" "$an_epoch" "$@" >>"$out"
    rm -rf "$work/data" "$work/run"
done
