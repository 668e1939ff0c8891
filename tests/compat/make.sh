#!/usr/bin/env bash
# Makes the files of this folder with an older program; later builds must read them (tests/test_compat.c).  They were made
# by b278c5c on arm64 and are not made again: another version gets a folder of its own beside this one.
#   tests/compat/make.sh PROGRAM       needs python3, curl, and a program with libmicrohttpd
set -eu
cd "$(dirname "$0")"
here=$PWD program=$(realpath "$1") work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HSTU_LOG=warn HSTU_THREADS=1
cd "$work"
hstu() { "$program" "$@" >>log 2>&1 || { tail -n 5 log >&2 && echo "failed: hstu $*" >&2 && exit 1; }; }

# Events of 30 users on 40 items, by a generator of our own: ids, times, actions.
events() { # FORMAT of user, item, time, stars
    awk -v format="$1\n" 'BEGIN {
        x = 7
        for (user = 1; user <= 30; user++)
            for (n = 4 + user % 7; n > 0; n--) {
                x = (x * 1103 + 12345) % 65536
                printf format, user * 3, 1 + (x % 40) * (x % 3 + 1) % 40, 1000000000 + user * 1000 - n * 7, 1 + x % 5
            }
    }'
}

mkdir -p data sources
{ echo user_id,item_id,timestamp,rating && events '%d,%d,%d,%d'; } >sources/numeric.csv
events '{"actor": {"id": "A %d"}, "sku": "ü/%d", "at": %d.25, "what": "buy %d"}' |
    sed 's/buy [12]"/view"/; s/buy [345]"/buy"/' >sources/text.jsonl
{ echo sku,title && for i in $(seq 40); do echo "ü/$i,\"Title, the $i.\""; done; } >sources/items.csv
{ echo id,age,country && for i in $(seq 30); do echo "A $((i * 3)),$((i % 6)),c$((i % 4))"; done; } >sources/users.csv
printf 'user_id,movie_id,rating,unix_timestamp,sex,zip_code\n5,"[30, 10, 20]","[4, 0, 2]","[300, 100, 200]",1,17\n2,"[7]","[3]","[978300760]",2,\n' >sources/seqs.csv
hstu prep csv --input sources/numeric.csv --out data/numeric
hstu prep csv --input sources/numeric.csv --time-col none --action-col none --out data/plain
hstu prep csv --input sources/numeric.csv --action-kind code --drop-duplicates --min-user-events 6 --out data/core
hstu prep jsonl --input sources/text.jsonl --user actor.id --item sku --time at --action what --action-map view=1,buy=2 \
    --items sources/items.csv --items-id sku --users sources/users.csv --out data/text
hstu prep processed-seqs --input sources/seqs.csv --out data/seqs
hstu synth --out data/synth --users 40 --items 60 --mean-len 9 --seed 3

# A model of each task and kind of table.
meta="train_fn.dataset_name = 'synth'
train_fn.max_sequence_length = 12
train_fn.local_batch_size = 8
train_fn.item_embedding_dim = 8
train_fn.num_negatives = 16
train_fn.sampling_strategy = 'local'
train_fn.item_l2_norm = True
train_fn.learning_rate = 3e-3"
network="TrainerArgs.train_batch_size = 8
TrainerArgs.eval_interval = 1000
DatasetArgs.dataset_name = 'synth'
DatasetArgs.max_history_seqlen = 12
NetworkArgs.dtype_str = 'float32'
NetworkArgs.num_layers = 1
NetworkArgs.num_attention_heads = 1
NetworkArgs.hidden_size = 8
NetworkArgs.num_position_buckets = 64"
ranks="DatasetArgs.max_num_candidates = 3
RankingArgs.prediction_head_arch = [8, 5]
RankingArgs.num_tasks = 1"
dynamic="movies/DynamicEmbeddingArgs.feature_names = ['item']
movies/DynamicEmbeddingArgs.table_name = 'mo/vies'
movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 256
movies/DynamicEmbeddingArgs.evict_strategy = 'lfu'
BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]"
encoder="train_fn.main_module = 'HSTU'
hstu_encoder.num_blocks = 1
hstu_encoder.dqk = 8
hstu_encoder.dv = 8"
mkdir gin runs
printf '%s\n' "$meta" "$encoder" >gin/retrieval.gin
printf '%s\n' "$meta" "train_fn.main_module = 'SASRec'" "sasrec_encoder.num_blocks = 1" "sasrec_encoder.ffn_hidden_dim = 8" >gin/sasrec.gin
printf '%s\n' "$network" "RetrievalArgs.num_negatives = 16" >gin/retrieval-nv.gin
printf '%s\n' "$network" "RetrievalArgs.num_negatives = 16" "$dynamic" >gin/retrieval-dynamic.gin
printf '%s\n' "$network" "$ranks" >gin/ranking.gin
printf '%s\n' "$network" "$ranks" "$dynamic" >gin/ranking-dynamic.gin
train() { hstu train --device cpu --gin-config-file "gin/$1.gin" --data "data/$2" --out "runs/$3" --epochs 2 "${@:4}"; }
train retrieval synth retrieval
train retrieval text text --validate
train sasrec numeric sasrec
train retrieval-nv synth retrieval-nv
train retrieval-dynamic synth retrieval-dynamic
train ranking synth ranking
train ranking-dynamic synth ranking-dynamic
rm -f runs/*/report.html
# A run that was stopped: a later build resumes it.
train retrieval synth stopped --save-every 1
rm -f runs/stopped/report.html

mkdir engines tables plans
for run in retrieval text ranking ranking-dynamic; do hstu build runs/$run --out engines/$run; done
hstu export runs/retrieval-dynamic --what tables --out tables/retrieval
hstu export runs/ranking-dynamic --what tables --out tables/ranking
hstu tune --search random --budget 2 --layer sasrec --batch 2 --length 9 --heads 2 --dim 4 --device cpu --cache "$work/cache" --out plans/sasrec.json
hstu tune --search exact --checks 2 --layer hstu --batch 2 --length 9 --heads 2 --dim 4 --mask causal --device cpu --cache "$work/cache" --out plans/hstu.json
hstu sweep gin/retrieval.gin --set-range train_fn.learning_rate=1e-3,1e-2 --data data/synth --out sweep --epochs 1 --device cpu
rm -f sweep/*/report.html sweep/*/run/report.html

rm -rf "$here"/*.tar.gz "$here"/plans
cp -r plans "$here"/
pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c "$@" | gzip -9n; }
pack data sources >"$here"/data.tar.gz
pack runs gin >"$here"/runs.tar.gz
pack engines tables >"$here"/engines.tar.gz
pack sweep >"$here"/sweep.tar.gz

# What the program that wrote them says of them.
mkdir expected
cd "$work"
export HSTU_LOG=warn
while IFS='|' read -r name arguments; do
    eval "\"$program\" $arguments" >"expected/$name" 2>>log || { echo "failed: $arguments" >&2 && exit 1; }
done <"$here/commands"
rm -f expected/-*
rm -rf "$here/expected"
cp -r expected "$here"/
du -sh "$here"
