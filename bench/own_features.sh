#!/bin/sh
# What features and actions are worth, on ML-1M: the same config with one of them at a time, and with all.
#
#   bench/own_features.sh ML-1M-FOLDER CONFIG.gin [SEEDS] [OPTION...] > features.csv
#
# ML-1M-FOLDER has ratings.dat, movies.dat, users.dat and titles.npy, which bench/peers/title_vectors.py makes; options go to
# 'hstu train' (--epochs 20), DEVICE to all commands.  Prints a row a seed and a variant, then the mean of each and its 95 % interval by Student's t
# over the seeds.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
ml1m=$1 config=$2 seeds=${3:-5}
[ $# -gt 3 ] && shift 3 || shift $#
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hstu=${HSTU:-$here/hstu} device=${DEVICE:-auto}

{ echo user_id,item_id,rating,timestamp; sed 's/::/,/g' "$ml1m/ratings.dat"; } > "$work/log.csv"
{ echo user_id,sex,age,occupation; cut -d: -f1,3,5,7 "$ml1m/users.dat" | tr : ,; } > "$work/users.csv"
iconv -f latin1 -t utf-8 "$ml1m/movies.dat" | awk -F:: -v OFS=, '
    BEGIN { print "item_id", "title", "genres", "year" }
    { year = substr($2, length($2) - 4, 4); gsub(/"/, "\"\"", $2); print $1, "\"" $2 "\"", $3, year }' > "$work/movies.csv"
"$hstu" prep csv --input "$work/log.csv" --users "$work/users.csv" --items "$work/movies.csv" \
    --item-features genres:list:pipe,year:number --out "$work/data" > "$work/log" 2>&1
"$hstu" prep csv --input "$work/log.csv" --users "$work/users.csv" --items "$work/movies.csv" \
    --item-features genres:list:pipe,year:number --item-vectors "$ml1m/titles.npy" --out "$work/titles" > "$work/log" 2>&1
"$hstu" prep ml-1m --input "$ml1m" --out "$work/with-user-id" > "$work/log" 2>&1

# one NAME DATA SEED USERS ITEMS ACTIONS [OPTION...]
one() {
    name=$1 data=$2 seed=$3 users=$4 items=$5 actions=$6
    shift 6
    rm -rf "$work/run"
    "$hstu" train "$config" --device "$device" --data "$work/$data" --out "$work/run" --seed "$seed" --set train_fn.user_features="$users" \
        --set train_fn.item_features="$items" --set train_fn.action_input="$actions" "$@" > "$work/log" 2>&1
    "$hstu" eval "$work/run" --device "$device" --json > "$work/eval.json" 2> "$work/log"
    echo "$name,$seed,$(grep -o '"hr@10": *[0-9.]*' "$work/eval.json" | head -n 1 | sed 's/.*: *//'),$(
        grep -o '"ndcg@10": *[0-9.]*' "$work/eval.json" | head -n 1 | sed 's/.*: *//')"
}

echo "variant,seed,hr@10,ndcg@10"
for seed in $(seq 1 "$seeds"); do
    one none data "$seed" False False False "$@"
    one actions data "$seed" False False True "$@"
    one users data "$seed" True False False "$@"
    one user-id with-user-id "$seed" True False False "$@"
    one items data "$seed" False True False "$@"
    one titles titles "$seed" False True False "$@"
    one all data "$seed" True True True "$@"
done | tee "$work/rows"
awk -F, '{ n[$1]++; h[$1] += $3; hh[$1] += $3 * $3; d[$1] += $4; dd[$1] += $4 * $4; if (n[$1] == 1) name[++k] = $1 }
    function half(s, ss, m) { return m > 1 ? t[m - 1] * sqrt((ss - s * s / m) / (m - 1) / m) : 0 }
    BEGIN { split("12.71 4.30 3.18 2.78 2.57 2.45 2.36 2.31 2.26", t, " ") }
    END { for (i = 1; i <= k; i++) { v = name[i]
              printf "# %-8s hr@10 %.4f +- %.4f  ndcg@10 %.4f +- %.4f  (%d seeds)\n", v, h[v] / n[v], half(h[v], hh[v], n[v]),
                  d[v] / n[v], half(d[v], dd[v], n[v]), n[v] } }' "$work/rows"
