#!/bin/sh
# The cost of a training step against the length of histories: linear in the tokens, but for the attention.
#
#   bench/length_cost.sh      appends to bench/results/cpu/length_cost.csv
#
# Synthetic users with histories longer than N, so that every sequence is full; Meta's ml-1m config with another
# max_sequence_length, and a batch that keeps the tokens of a step about the same (25,600).
set -e
cd "$(dirname "$0")/.."
make -s hstu
work=$(mktemp -d "${TMPDIR:-/tmp}/length.XXXXXX")
trap 'rm -rf "$work"' EXIT
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu}, ${HSTU_THREADS:-$(nproc)} threads"
out=bench/results/cpu/length_cost.csv
mkdir -p "$(dirname "$out")"
[ -s "$out" ] || echo "date,machine,N,users_a_step,tokens_a_step,ms_a_step,us_a_token,attention_us_a_token,rest_us_a_token" >"$out"
./hstu synth --out "$work/data" --users 600 --items 12000 --mean-len 3000 --seed 3 >/dev/null
for n in 50 100 200 400 800 1600; do
    batch=$((25600 / n))
    ./hstu bench train --device cpu --data "$work/data" --steps 6 --json --set train_fn.max_sequence_length=$n --set train_fn.local_batch_size=$batch |
        python3 -c '
import json, sys
n, batch, machine, date = sys.argv[1:]
r = json.loads(sys.stdin.read())
tokens, ms = r["tokens_per_step"], r["ms_per_step"]
attention = ms * sum(share for op, share in r["ops"].items() if op.startswith("attn"))
scale = 1000 / tokens
print(f"{date},\"{machine}\",{n},{batch},{tokens:.0f},{ms:.1f},{ms * scale:.3f},{attention * scale:.3f},{(ms - attention) * scale:.3f}")
' "$n" "$batch" "$machine" "$(date -u +%F)" | tee -a "$out"
done
