#!/bin/sh
# The cost of a catalogue: step time, peak memory and evaluation time against the number of items.
#
#   bench/catalogue_cost.sh --device cpu|cuda [--items "1000 ... 10000000"] [--eval-users 512] [--steps 10] [--out FILE.csv]
#
# Prints a table and appends its rows to FILE.csv (default: bench/results/cpu/catalogue_cost.csv, of a GPU
# bench/results/h200/catalogue_cost.csv); bench/catalogue_cost.py draws the file.  The batch stays the same: 64 synthetic
# users of about 60 events, configs/demo.gin with DEMO_SET ("--set X=Y ...") if that is set.  An evaluation ranks all items
# for --eval-users users.  Memory is the peak of the process in training, on a GPU that of the device.
# PYTHON (default python3) with PyTorch: the same model beside it with nn.Embedding, dense Adam and sparse=True with
# SparseAdam (bench/peers/hstu_torch.py); without PyTorch these rows are left out.  TMPDIR needs 5 GB for 10^7 items.
set -eu
cd "$(dirname "$0")/.."
device='' sizes='1000 10000 100000 1000000 10000000' eval_users=512 steps=10 out=''
usage() { sed -n '4s/^# *//p' bench/catalogue_cost.sh >&2; exit 2; }
while [ $# -ge 2 ]; do
    case $1 in
    --device) device=$2 ;;
    --items) sizes=$2 ;;
    --eval-users) eval_users=$2 ;;
    --steps) steps=$2 ;;
    --out) out=$2 ;;
    *) usage ;;
    esac
    shift 2
done
case $device in cpu | cuda | cuda:*) ;; *) usage ;; esac
[ $# -eq 0 ] || usage
make -s hstu
work=$(mktemp -d "${TMPDIR:-/tmp}/catalogue.XXXXXX")
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu} x${HSTU_THREADS:-$(nproc)}"
[ "$device" = cpu ] || machine="$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), $machine"
[ -n "$out" ] || out=bench/results/$([ "$device" = cpu ] && echo cpu || echo h200)/catalogue_cost.csv
mkdir -p "$(dirname "$out")"
[ -s "$out" ] || echo "date,commit,machine,load,device,program,items,tokens_a_step,ms_a_step,peak_mb,eval_users,eval_s" >"$out"
start="$(date -u +%F),$(git describe --always --dirty=+ 2>/dev/null || echo unknown),\"$machine\""
torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null || true)
[ -n "$torch" ] || echo "$python has no PyTorch: hstu alone" >&2

# value KEY < JSON lines: the last value of a number
value() { sed -n 's/.*"'"$1"'": *\([0-9.]*\).*/\1/p' | tail -1; }

# row PROGRAM ITEMS TOKENS MS MB EVAL
row() {
    printf '  %-14s %10d items %8.1f ms a step %9.0f MB %8.2f s for %d users\n' "$1" "$2" "$4" "$5" "$6" "$eval_users"
    printf '%s,%s,%s,%s,%d,%d,%.1f,%.1f,%d,%.3f\n' "$start" "$(cut -d' ' -f1 /proc/loadavg)" "$device" "$1" "$2" "$3" "$4" "$5" \
        "$eval_users" "$6" >>"$out"
}

for n in $sizes; do
    ./hstu synth --out "$work/data" --users 2048 --items "$n" --seed 3 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    # shellcheck disable=SC2086
    ./hstu bench train --device "$device" --gin-config-file configs/demo.gin ${DEMO_SET:-} --data "$work/data" --steps "$steps" \
        --json >"$work/bench.json"
    # shellcheck disable=SC2086
    ./hstu train configs/demo.gin ${DEMO_SET:-} --device "$device" --data "$work/data" --out "$work/run" --max-iters 2 \
        --eval-users "$eval_users" --json >"$work/train.json" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    tokens=$(value tokens_per_step <"$work/bench.json")
    row hstu "$n" "${tokens%.*}" "$(value ms_per_step <"$work/bench.json")" "$(value peak_mb <"$work/bench.json")" \
        "$(value eval_seconds <"$work/train.json")"
    rm -rf "$work/run"
    for kind in dense sparse; do
        [ -n "$torch" ] || continue
        "$python" bench/peers/hstu_torch.py "$work/data" --threads "${HSTU_THREADS:-$(nproc)}" --device "$device" --steps "$steps" \
            --batch 64 --layers 2 --heads 1 --dim 32 --head-dim 32 --max-len 100 --negatives 64 --eval-users "$eval_users" \
            $([ $kind = dense ] || echo --sparse) >"$work/torch.json" || { echo "torch $kind: $n items failed" >&2; continue; }
        row "torch $kind" "$n" "${tokens%.*}" "$(value ms_per_step <"$work/torch.json")" "$(value peak_mb <"$work/torch.json")" \
            "$(value eval_seconds <"$work/torch.json")"
    done
    rm -rf "$work/data"
done
