#!/bin/sh
# Items without events, on ML-1M: no movie of 2000 is in the training part.  Each user's first rating of such a movie is what
# has to be found, and the user's log ends there.
#
#   bench/cold_items.sh ML-1M-FOLDER CONFIG.gin [SEEDS] [OPTION...] > cold.csv
#
# ML-1M-FOLDER has ratings.dat and movies.dat, and for vectors titles.npy, which bench/peers/title_vectors.py makes; options
# go to 'hstu train' (--epochs 20), DEVICE to all commands.  Prints a row a seed and a kind of content: HR@10 and NDCG@10 of
# the cold movies among the whole catalogue, and HR@10 among the cold ones alone, of which guessing finds 10.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
ml1m=$1 config=$2 seeds=${3:-5}
[ $# -gt 3 ] && shift 3 || shift $#
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hstu=${HSTU:-$here/hstu} device=${DEVICE:-auto}

# movies.csv: id, title, genres, year; cold.txt: those of 2000; train.csv and test.csv.
iconv -f latin1 -t utf-8 "$ml1m/movies.dat" | awk -F:: -v OFS=, -v cold="$work/cold.txt" '
    BEGIN { print "item_id", "title", "genres", "year" }
    { year = substr($2, length($2) - 4, 4); gsub(/"/, "\"\"", $2)
      print $1, "\"" $2 "\"", $3, year; if (year == 2000) print $1 > cold }' > "$work/movies.csv"
sort -t: -k1,1n -k7,7n -s "$ml1m/ratings.dat" | awk -F:: -v OFS=, -v w="$work" '
    BEGIN { while ((getline id < (w "/cold.txt")) > 0) cold[id] = 1
            print "user_id", "item_id", "rating", "timestamp" > (w "/train.csv")
            print "user_id", "item_id", "rating", "timestamp" > (w "/test.csv") }
    $1 in done { next }
    !($2 in cold) { n[$1]++; print $1, $2, $3, $4 > (w "/train.csv"); next }
    n[$1] { done[$1] = 1; print $1, $2, $3, $4 > (w "/test.csv") }'
"$hstu" prep csv --input "$work/test.csv" --out "$work/test" > "$work/log" 2>&1
tail -n +2 "$work/test.csv" | cut -d, -f1 > "$work/users.txt"

# value FILE KEY: a number of an object of JSON.
value() {
    grep -o "\"$2\": *[0-9.e-]*" "$1" | head -n 1 | sed 's/.*: *//'
}

# one NAME SEED [OPTION...]: trains on $work/NAME and prints its row.
one() {
    name=$1 seed=$2 run=$work/run
    shift 2
    rm -rf "$run"
    "$hstu" train "$config" --device "$device" --data "$work/data-${name%%-*}" --out "$run" --split none --seed "$seed" "$@" > "$work/log" 2>&1
    "$hstu" eval "$run" --device "$device" --test-file "$work/test" --json > "$work/all.json" 2> "$work/log"
    "$hstu" recommend "$run" --device "$device" --users "$work/users.txt" --allow "$work/cold.txt" --json > "$work/lists.jsonl" 2> "$work/log"
    "$hstu" eval --device "$device" --recommendations "$work/lists.jsonl" --data "$work/data-${name%%-*}" --test-file "$work/test" --json \
        > "$work/among.json" 2> "$work/log"
    echo "$name,$seed,$(value "$work/all.json" hr@10),$(value "$work/all.json" ndcg@10),$(value "$work/among.json" hr@10)"
}

items="--input $work/train.csv --items $work/movies.csv"
features="--item-features genres:list:pipe,year:number"
# shellcheck disable=SC2086 # options
{
    "$hstu" prep csv $items --item-features none --out "$work/data-ids" > "$work/log" 2>&1
    "$hstu" prep csv $items $features --out "$work/data-features" > "$work/log" 2>&1
    "$hstu" prep csv $items $features --item-vectors "$ml1m/titles.npy" --out "$work/data-titles" > "$work/log" 2>&1
}
echo "# $(wc -l < "$work/cold.txt") cold movies of $(($(wc -l < "$work/movies.csv") - 1)), $(wc -l < "$work/users.txt") users"
echo "content,seed,hr@10,ndcg@10,hr@10 among cold"
for seed in $(seq 1 "$seeds"); do
    one ids "$seed" "$@"
    one features "$seed" --set train_fn.item_features=True "$@"
    one titles "$seed" --set train_fn.item_features=True "$@"
    one features-undropped "$seed" --set train_fn.item_features=True --set train_fn.item_id_dropout=0 "$@"
done
