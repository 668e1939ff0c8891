#!/usr/bin/env bash
# Kills the program (kill -9) at random moments, again and again:
#
#   tools/crash.sh [--n KILLS] [--seed S] [CASE...]
#
# Cases: static and dynamic (training on static and on dynamic tables, these with snapshots and a store on disk),
# prep, import (snapshots into a run).  After each kill the folder must be whole or resumable; the result in the end
# equals that of a run without kills, to the bit; and no temporary file is left.  HSTU: the program to kill
# (default: build/release/hstu).
set -u
cd "$(dirname "$0")/.." || exit 1
n=1000 seed=1 cases=()
while [ $# -gt 0 ]; do
    case $1 in
    --n | --seed)
        [[ ${2:-} =~ ^[0-9]+$ ]] || { echo "tools/crash.sh: $1 needs a number" >&2; exit 2; }
        if [ "$1" = --n ]; then n=$2; else seed=$2; fi
        shift ;;
    --help | -h) sed -n '4,9s/^# \{0,1\}//p' tools/crash.sh && exit 0 ;;
    static | dynamic | prep | import) cases+=("$1") ;;
    *) echo "tools/crash.sh: unknown argument $1; see --help" >&2 && exit 2 ;;
    esac
    shift
done
[ ${#cases[@]} -gt 0 ] || cases=(static dynamic prep import)
HSTU=$(realpath "${HSTU:-build/release/hstu}") || exit 1
RANDOM=$seed
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# stop WORDS: a failure; the folder is kept to be looked at.
stop() {
    trap - EXIT
    echo "FAIL  $*; seed $seed, kill $kills of $case; everything is in $work"
    [ ! -s last.log ] || tail -n 5 last.log | sed 's/^/    /'
    exit 1
}

quietly() { "$@" >last.log 2>&1 </dev/null || stop "exit code $? of: $*"; }

# until_killed MS COMMAND...: kills it at a random moment of MS milliseconds (0: not at all); fails if it was killed.
# It is waited for: until then it holds the lock of its run.
until_killed() {
    local code pid killer=
    "${@:2}" >last.log 2>&1 </dev/null &
    pid=$!
    if [ "$1" -gt 0 ]; then
        (sleep "$(awk -v ms="$1" -v r="$RANDOM" 'BEGIN { print ms * r / 32767 / 1000 }')"; kill -9 $pid) &
        killer=$!
    fi
    wait $pid
    code=$?
    [ -z "$killer" ] || { kill $killer; wait $killer; }
    [ $code = 0 ] && return 0
    [ $code = 137 ] || stop "exit code $code of: ${*:2}"
    kills=$((kills + 1))
    return 1
} 2>/dev/null

# nothing_left FOLDER: no temporary file or folder.
nothing_left() {
    local found
    found=$(find "$1" -mindepth 1 \( -name '.*' -o -name '*.tmp' -o -name 'hstu-table-*' -o -name '*.new' \))
    [ -z "$found" ] || stop "left behind: $found"
}

# column FILE HEADER_BYTES HEADER TENSOR: its rows in hexadecimal, a line each.
column() {
    local span n_rows
    span=$(sed -E "s/.*\"$4\":\{[^}]*\"data_offsets\":\[([0-9]+),([0-9]+)\].*/\1 \2/" <<<"$3")
    n_rows=$(sed -E "s/.*\"$4\":\{[^}]*\"shape\":\[([0-9]+).*/\1/" <<<"$3")
    set -- "$1" "$2" $span
    tail -c +$((9 + $2 + $3)) "$1" | head -c $(($4 - $3)) | od -An -v -tx1 -w$((($4 - $3) / n_rows)) | tr -d ' '
}

# rows_of FOLDER: the rows of its dynamic tables in the order of their keys: a resumed run may keep them in other slots.
rows_of() {
    local file n header tensor
    find "$1/" -name 'rows-*.safetensors' | sort | while read -r file; do
        n=$(od -An -tu8 -N8 "$file" | tr -d ' ')
        header=$(tail -c +9 "$file" | head -c "$n")
        for tensor in keys scores values state; do column "$file" "$n" "$header" $tensor >"column.$BASHPID.$tensor"; done
        paste column.$BASHPID.{keys,scores,values,state}
    done | sort
}

# same_run WHOLE PARTS: weights, optimizer, tables, state and log, but for times and where rows were found.
times='s/"(time|tokens_per_s|[a-z_]*seconds)": ?("[^"]*"|[^,}]*)//g; s/"tables":\[[^]]*\]//'
skipped='"event":"start"'
same_run() {
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp -s "$1/last/$file" "$2/last/$file" || stop "$file differs from a run without kills"
    done
    diff <(rows_of "$1/last") <(rows_of "$2/last") >differ || stop "the tables differ from a run without kills"
    for file in last/state.json log.jsonl; do
        diff <(sed -E "$times" "$1/$file" | grep -vE "$skipped") <(sed -E "$times" "$2/$file" | grep -vE "$skipped") >differ ||
            stop "$file differs from a run without kills: $(head -n 3 differ)"
    done
}

# train_case KILLS OPTION...: trains to the end through kills, as often as it takes.
train_case() {
    local wanted=$1 start ms resume
    shift
    start=$(now_ms)
    quietly "$HSTU" train --device cpu --out whole "$@"
    ms=$(($(now_ms) - start))
    while [ $kills -lt "$wanted" ]; do
        rm -rf parts
        until
            resume=()
            # Before config.json there is nothing to resume; what a kill left there must be no obstacle.
            [ ! -e parts/config.json ] || resume=(--resume)
            until_killed $((kills < wanted ? ms : 0)) "$HSTU" train --device cpu --out parts "$@" "${resume[@]}"
        do :; done
        ms=$((ms * 9 / 10 + 1)) # It came to its end: kill earlier.
        compared=$((compared + 1))
        same_run whole parts
        nothing_left parts
    done
}

case_static() {
    train_case "$1" --gin-config-file static.gin --data data --epochs 6
}

# The chain of snapshots gives the same table as without kills.
case_dynamic() {
    train_case "$1" --gin-config-file dynamic.gin --data data --snapshot-every 2 --epochs 6
    nothing_left stores
    quietly "$HSTU" import tables whole/snapshots/step-* --out from-whole
    quietly "$HSTU" import tables parts/snapshots/step-* --out from-parts
    diff <(rows_of from-whole) <(rows_of from-parts) >differ || stop "the chains of snapshots differ"
    [ "$(rows_of from-whole | wc -l)" -gt 100 ] || stop "the table has hardly a row"
}

case_prep() {
    local start ms
    start=$(now_ms)
    quietly "$HSTU" prep csv --input events.csv --out new
    ms=$(($(now_ms) - start))
    mkdir out && cp data/data.seq out
    while [ $kills -lt "$1" ]; do
        until_killed $ms "$HSTU" prep csv --input events.csv --out out && cp data/data.seq out/data.seq
        cmp -s out/data.seq data/data.seq || cmp -s out/data.seq new/data.seq || stop "data.seq is neither the old nor the new one"
        compared=$((compared + 1))
    done
    quietly "$HSTU" prep csv --input events.csv --out out
    cmp -s out/data.seq new/data.seq || stop "data.seq differs from that of a run without kills"
    nothing_left out
}

# Into the newest checkpoint of a run, which stays one.
case_import() {
    local start ms
    quietly "$HSTU" train --device cpu --gin-config-file dynamic.gin --data data --snapshot-every 2 --epochs 2 --out source
    cp -a source target && cp -a source reference
    start=$(now_ms)
    quietly "$HSTU" import tables source/snapshots/step-* --out reference
    ms=$(($(now_ms) - start))
    while [ $kills -lt "$1" ]; do
        until_killed $ms "$HSTU" import tables source/snapshots/step-* --out target
        rm -f weights
        quietly "$HSTU" export target --what weights --out weights
        compared=$((compared + 1))
    done
    quietly "$HSTU" import tables source/snapshots/step-* --out target
    diff -r reference/last/ target/last/ >differ || stop "the checkpoint differs from one without kills: $(cat differ)"
    nothing_left target
    nothing_left stores
}

mkdir stores
cat >static.gin <<'END'
train_fn.dataset_name = "synth"
train_fn.max_sequence_length = 20
train_fn.local_batch_size = 32
train_fn.main_module = "HSTU"
train_fn.item_embedding_dim = 8
train_fn.dropout_rate = 0.2
hstu_encoder.num_blocks = 1
hstu_encoder.num_heads = 1
hstu_encoder.dqk = 8
hstu_encoder.dv = 8
train_fn.loss_module = "SampledSoftmaxLoss"
train_fn.num_negatives = 16
train_fn.sampling_strategy = "local"
train_fn.learning_rate = 1e-3
END
cat >dynamic.gin <<END
TrainerArgs.train_batch_size = 32
TrainerArgs.eval_interval = 1000
DatasetArgs.dataset_name = 'synth'
DatasetArgs.max_history_seqlen = 20
DatasetArgs.max_num_candidates = 3
DatasetArgs.shuffle = True
NetworkArgs.dtype_str = 'float32'
NetworkArgs.num_layers = 1
NetworkArgs.num_attention_heads = 1
NetworkArgs.hidden_size = 8
NetworkArgs.num_position_buckets = 64
items/DynamicEmbeddingArgs.feature_names = ['item']
items/DynamicEmbeddingArgs.table_name = 'item'
items/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 512
items/DynamicEmbeddingArgs.store_folder = '$work/stores'
BenchmarkDatasetArgs.embedding_args = [@items/DynamicEmbeddingArgs()]
RankingArgs.prediction_head_arch = [8, 5]
RankingArgs.num_tasks = 1
END
quietly "$HSTU" synth --out data --users 200 --items 600 --mean-len 14 --seed 3
awk 'BEGIN { srand(5); print "user_id,item_id,timestamp"
    for (i = 0; i < 120000; i++) print int(rand() * 5000) "," int(rand() * 3000) "," 1000000 + i }' >events.csv

printf '%-8s %8s %10s %10s\n' case kills compared seconds
total=0 checks=0
for i in "${!cases[@]}"; do
    case=${cases[i]} kills=0 compared=0 start=$(now_ms)
    # The cases share the kills; the first ones take the remainder.
    part=$(((n - total) / (${#cases[@]} - i)))
    rm -rf whole parts out new target source reference from-*
    "case_$case" "$part"
    printf '%-8s %8d %10d %10d\n' "$case" "$kills" "$compared" $((($(now_ms) - start) / 1000))
    total=$((total + kills)) checks=$((checks + compared))
done
echo "$total kills, $checks results compared with those of runs without kills: the same; nothing left behind"
