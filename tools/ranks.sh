#!/usr/bin/env bash
# Ranks, from outside: the same bits on any number of them, and what happens when one is lost.
#
#   tools/ranks.sh [--steps N] [--kills N] [--seed S] [--within SECONDS] [--data DIR] [CASE...]
#
# Cases: bits (four configs, static, dynamic with evictions, with contextual features and with static tables in shards, on 1, 2, 4 and 8 ranks, forked,
# by mpirun where it is there, and by TCP; saved on 4, resumed on 2, 3 and 1), kill (kill -9 of each of 3 ranks at random
# moments, resumed to the end), stop (SIGSTOP of each rank, forked, by TCP and by mpirun), disk (no space for a
# checkpoint, as root), net (a network that is cut, as root), small (fewer users in a batch than ranks), launch (hstu
# launch starts a killed job of 4 ranks again with 3, then with 2).
# --within: a job whose rank is lost must end in so many seconds (default 5; a machine with other work may need more).
# --data: prepared data with ratings for the first two configs (default: invented).  HSTU: the program.
set -u
cd "$(dirname "$0")/.." || exit 1
steps=100 n_kills=50 seed=1 within=5 data= cases=()
while [ $# -gt 0 ]; do
    case $1 in
    --steps | --kills | --seed | --within)
        [[ ${2:-} =~ ^[0-9]+$ ]] || { echo "tools/ranks.sh: $1 needs a number" >&2; exit 2; }
        case $1 in --steps) steps=$2 ;; --kills) n_kills=$2 ;; --within) within=$2 ;; *) seed=$2 ;; esac
        shift ;;
    --data) data=$(realpath "${2:-}") || exit 2; shift ;;
    --help | -h) sed -n '4,12s/^# \{0,1\}//p' tools/ranks.sh && exit 0 ;;
    bits | kill | stop | disk | net | small | launch) cases+=("$1") ;;
    *) echo "tools/ranks.sh: unknown argument $1; see --help" >&2 && exit 2 ;;
    esac
    shift
done
[ ${#cases[@]} -gt 0 ] || cases=(bits kill stop disk net small launch)
HSTU=$(realpath "${HSTU:-build/release/hstu}") || exit 1
export HSTU_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
has_mpi=
[ -e "$(dirname "$HSTU")/hstu-mpi.so" ] && command -v mpirun >/dev/null && has_mpi=1
RANDOM=$seed
work=$(mktemp -d) || exit 1
root=$PWD
cleanup() {
    ip netns del hstu-a 2>/dev/null
    ip netns del hstu-b 2>/dev/null
    umount "$work/disk" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work" || exit 1

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# stop_here WORDS: a failure.
stop_here() {
    echo "FAIL  $*; seed $seed"
    [ ! -s last.log ] || tail -n 5 last.log | cut -c1-300 | sed 's/^/    /'
    exit 1
}

[ "$steps" -ge 4 ] || { echo "ranks.sh: --steps $steps: the resumed run has four parts, so give 4 or more" >&2; exit 2; }

# One config each, small enough for a hundred steps.
options_of() {
    case $1 in
    static) set -- static.gin "${data:-plain}" ;;
    dynamic) set -- dynamic.gin "${data:-plain}" ;;
    context) set -- context.gin context ;;
    shards) set -- shards.gin context ;;
    small) set -- small.gin context ;;
    esac
    echo "--gin-config-file $1 --data $2 --device cpu --eval-every 1000 --save-every 1000 --batch-per step"
}

# Below the ports that systems give to connections.
free_port() { echo $((12000 + RANDOM % 18000)); }

# run WAY N CONFIG OUT OPTION...: trains; WAY: one, fork, mpi, tcp.
run() {
    local way=$1 n=$2 config=$3 out=$4 r code=0 pids=()
    shift 4
    set -- "$HSTU" train $(options_of "$config") --out "$out" "$@"
    case $way in
    one) "$@" ;;
    fork) "$@" --ranks "$n" ;;
    mpi) mpirun --oversubscribe --bind-to none -n "$n" "$@" ;;
    tcp)
        export WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT
        MASTER_PORT=$(free_port)
        for ((r = n - 1; r >= 0; r--)); do
            RANK=$r "$@" &
            pids+=($!)
        done
        for r in "${pids[@]}"; do wait "$r" || code=$?; done
        unset WORLD_SIZE MASTER_ADDR MASTER_PORT
        return $code ;;
    esac
} >last.log 2>&1 </dev/null

# digest RUN: of every tensor of its last checkpoint.
digest() {
    (cd "$1/last/" && find . -name '*.safetensors' | sort | xargs sha256sum | sha256sum | cut -c1-16)
}

case_bits() {
    local config way n want got
    for config in ${configs:-static dynamic context shards}; do
        run one 1 $config one --max-iters "$steps" || stop_here "$config on one process"
        want=$(digest one)
        for way in fork ${has_mpi:+mpi} tcp; do
            for n in 2 4 8; do
                run $way $n $config many --max-iters "$steps" || stop_here "$config on $n ranks ($way)"
                got=$(digest many)
                [ "$got" = "$want" ] || stop_here "$config on $n ranks ($way): $got, on one $want"
                rm -rf many
            done
        done
        run fork 4 $config parts --max-iters $((steps / 4)) || stop_here "$config, first part"
        run fork 2 $config parts --max-iters $((steps / 2)) --resume || stop_here "$config, second part"
        run tcp 3 $config parts --max-iters $((steps * 3 / 4)) --resume || stop_here "$config, third part"
        run one 1 $config parts --max-iters "$steps" --resume || stop_here "$config, last part"
        for n in model optimizer; do
            cmp -s one/last/$n.safetensors parts/last/$n.safetensors || stop_here "$config: $n of a run on 4, 2, 3 and 1 ranks"
        done
        if [ $config = dynamic ]; then # its rows may stand in other slots
            for n in one parts; do
                "$HSTU" export $n --what items --format csv --out $n.csv >last.log 2>&1 || stop_here "export"
            done
            cmp -s one.csv parts.csv || stop_here "rows of a run on 4, 2, 3 and 1 ranks"
        fi
        echo "bits     $config: $steps steps on 1 = 2 = 4 = 8 ranks (fork${has_mpi:+, mpirun}, tcp), = 4, 2, 3, 1 resumed: $want"
        rm -rf one parts
    done
}

# Waits until the run has finished an epoch: all ranks are connected, and watch each other.
training_began() {
    local i
    for ((i = 0; i < 1200; i++)); do
        ! grep -qs '"event":"epoch"' parts/log.jsonl || return 0
        sleep 0.05
    done
    stop_here "no epoch within 60 s"
}

# ranks_of PID: processes of the forked ranks, in order.
ranks_of() { pgrep -P "$1" | sort -n; }

# The job must end by itself, with an error.  ended PID SINCE: the milliseconds it took go to `took`.
ended() {
    timeout 15 tail --pid="$1" -f /dev/null || stop_here "it did not end within 15 s"
    took=$(($(now_ms) - $2))
    wait "$1" && stop_here "exit code 0 after a rank was lost"
    [ $took -gt "$longest" ] && longest=$took
    [ $took -le $((within * 1000)) ] || stop_here "it ended after $took ms"
}

case_kill() {
    local kills=0 rank pid resume victim start ms longest=0 whole
    start=$(now_ms)
    run one 1 static one --epochs 6 || stop_here "one process"
    whole=$(digest one)
    run fork 3 static timed --epochs 6 || stop_here "3 ranks"
    ms=$(($(now_ms) - start))
    while [ $kills -lt $((3 * n_kills)) ]; do
        rm -rf parts
        while :; do
            resume=
            [ ! -e parts/config.json ] || resume=--resume
            "$HSTU" train $(options_of static) --save-every 1 --out parts --epochs 6 --ranks 3 $resume >last.log 2>&1 </dev/null &
            pid=$!
            rank=$((kills % 3))
            sleep "$(awk -v ms=$ms -v r=$RANDOM 'BEGIN { print ms * r / 32767 / 1000 }')"
            victim=$(ranks_of $pid | sed -n "$((rank + 1))p")
            if [ -z "$victim" ] || [ $kills -ge $((3 * n_kills)) ] || ! kill -9 "$victim" 2>/dev/null; then
                wait $pid && break
                stop_here "a run that was not killed failed"
            fi
            start=$(now_ms)
            timeout 15 tail --pid=$pid -f /dev/null || stop_here "it did not end within 15 s"
            took=$(($(now_ms) - start))
            wait $pid && break # it had finished
            grep -q 'rank [0-9] was killed by signal 9' last.log || stop_here "the message does not name the rank"
            [ $took -gt $longest ] && longest=$took
            [ $took -le $((within * 1000)) ] || stop_here "it ended after $took ms"
            kills=$((kills + 1))
        done 2>/dev/null
        # Kills move towards the start, but not before ranks are there.
        [ $ms -lt 1500 ] || ms=$((ms * 9 / 10))
        [ "$(digest parts)" = "$whole" ] || stop_here "the result differs from a run without kills"
    done
    echo "kill     $kills kills of 3 ranks: each ended the job within $longest ms and named the rank; resumed runs have the bits of one without kills"
}

case_stop() {
    local way rank pid victim start longest r
    for way in fork tcp ${has_mpi:+mpi}; do
        longest=0
        for rank in 0 1 2; do
            rm -rf parts
            case $way in
            tcp)
                export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT
                MASTER_PORT=$(free_port)
                for r in 0 1 2; do
                    RANK=$r "$HSTU" train $(options_of static) --out parts --epochs 100000 >log.$r 2>&1 </dev/null &
                    eval "pid$r=$!"
                done
                unset WORLD_SIZE MASTER_ADDR MASTER_PORT
                eval "victim=\$pid$rank" ;;
            *)
                if [ $way = fork ]; then
                    "$HSTU" train $(options_of static) --out parts --epochs 100000 --ranks 3 >last.log 2>&1 </dev/null &
                else
                    mpirun --oversubscribe --bind-to none -n 3 "$HSTU" train $(options_of static) --out parts --epochs 100000 >last.log 2>&1 </dev/null &
                fi
                pid=$!
                training_began
                victim=$(pgrep -P $pid hstu | sort -n | sed -n "$((rank + 1))p")
                # The order of process ids is not that of ranks where they have begun again.
                [ $way = fork ] || for victim in $(pgrep -P $pid hstu); do
                    tr '\0' '\n' <"/proc/$victim/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$rank" && break
                done ;;
            esac
            training_began
            sleep 1
            start=$(now_ms)
            kill -STOP "$victim" || stop_here "rank $rank is not there ($way)"
            if [ $way = tcp ]; then
                for r in 0 1 2; do
                    [ $r = $rank ] || eval "ended \$pid$r $start"
                done
                kill -9 "$victim"
                wait "$victim" 2>/dev/null
                cat log.? >last.log
            else
                ended $pid "$start"
            fi
            grep -qE "rank $rank .*(is stopped|was lost) .*step" last.log || stop_here "the message does not name rank $rank ($way)"
        done 2>/dev/null
        echo "stop     $way: each of 3 ranks stopped (SIGSTOP): the job ended within $longest ms, and named the rank"
    done
}

# A checkpoint that does not fit: an error that says so, the checkpoint before is whole, and the run goes on later.
# One of three ranks may write only small files.
one_without_room() {
    local r pids=() code=0
    run one 1 shards one --max-iters 8 || stop_here "one process"
    run tcp 3 shards parts --max-iters 4 || stop_here "3 ranks"
    export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT
    MASTER_PORT=$(free_port)
    for r in 2 1 0; do
        ([ $r != 1 ] || ulimit -f 60 # of 1 KiB
            RANK=$r exec "$HSTU" train $(options_of shards) --out parts --max-iters 8 --resume) >log.$r 2>&1 </dev/null &
        pids+=($!)
    done
    for r in "${pids[@]}"; do wait "$r" && code=1; done
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    cp log.0 last.log
    [ $code = 0 ] || stop_here "a rank ended well though rank 1 could not write"
    grep -q 'rank 1: parts/.*safetensors: cannot be written' log.0 || stop_here "the message does not name rank and path"
    run fork 2 shards parts --max-iters 8 --resume || stop_here "it does not go on"
    [ "$(digest parts)" = "$(digest one)" ] || stop_here "the result differs from a run with space"
    echo "disk     one of 3 ranks without room for its part of a checkpoint ended the job, was named with the path, and the checkpoint of before was whole"
    rm -rf one parts
}

case_disk() {
    one_without_room
    [ "$(id -u)" = 0 ] || { echo "disk     skipped: only root can mount"; return; }
    run one 1 static one --epochs 4 || stop_here "one process"
    mkdir -p disk
    mount -t tmpfs -o size=16m tmpfs disk 2>/dev/null || { echo "disk     skipped: a file system cannot be mounted here"; return; }
    "$HSTU" train $(options_of static) --save-every 1 --out disk/run --epochs 2 --ranks 3 >last.log 2>&1 || stop_here "3 ranks"
    head -c 100000000 /dev/zero >disk/full 2>/dev/null
    "$HSTU" train $(options_of static) --save-every 1 --out disk/run --epochs 4 --ranks 3 --resume >last.log 2>&1 && stop_here "a full disk went unnoticed"
    grep -qi 'disk/run.*space' last.log || stop_here "the message does not say what is missing, and where"
    rm disk/full
    "$HSTU" train $(options_of static) --save-every 1 --out disk/run --epochs 4 --ranks 3 --resume >last.log 2>&1 || stop_here "it does not go on"
    [ "$(digest disk/run)" = "$(digest one)" ] || stop_here "the result differs from a run with space"
    umount disk
    echo "disk     a full disk ended the job with a message; resumed with space it has the bits of a run that always had it"
}

# Two ranks in two network namespaces; the link goes down.
case_net() {
    local a b start longest=0
    [ "$(id -u)" = 0 ] && ip netns add hstu-a 2>/dev/null && ip netns add hstu-b 2>/dev/null ||
        { echo "net      skipped: no network namespaces here"; return; }
    rm -rf parts
    ip link add hstu-va netns hstu-a type veth peer name hstu-vb netns hstu-b || { echo "net      skipped: no veth here"; return; }
    ip -n hstu-a addr add 10.77.0.1/24 dev hstu-va && ip -n hstu-b addr add 10.77.0.2/24 dev hstu-vb
    for a in a b; do ip -n hstu-$a link set hstu-v$a up && ip -n hstu-$a link set lo up; done
    export WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29533
    RANK=0 ip netns exec hstu-a "$HSTU" train $(options_of static) --out parts --epochs 100000 >last.log 2>&1 </dev/null &
    a=$!
    RANK=1 ip netns exec hstu-b "$HSTU" train $(options_of static) --out parts --epochs 100000 >log.1 2>&1 </dev/null &
    b=$!
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    training_began
    sleep 1
    start=$(now_ms)
    ip -n hstu-a link set hstu-va down
    ended $a "$start"
    ended $b "$start"
    grep -q 'rank 1 on .* was lost at step .*does not answer' last.log || stop_here "rank 0 does not name rank 1"
    grep -q 'rank 0 on .* was lost at step .*does not answer' log.1 || stop_here "rank 1 does not name rank 0"
    echo "net      two ranks in two network namespaces, link cut: both ended within $longest ms, and named the other"
}

case_small() {
    local n want
    run one 1 small one --max-iters 20 || stop_here "one process"
    want=$(digest one)
    for n in 3 8; do
        run fork $n small many --max-iters 20 || stop_here "$n ranks"
        [ "$(digest many)" = "$want" ] || stop_here "batches of 2 users on $n ranks"
        rm -rf many
    done
    echo "small    batches of 2 users on 1 = 3 = 8 ranks: $want"
}

# A rank of the first two starts is killed; the job ends on 2 ranks with the bits of one process.
case_launch() {
    local pid job i n
    run one 1 static one --epochs 40 || stop_here "one process"
    "$HSTU" launch --restarts 3 --pause 0 --ranks 4,3,2 -- "$HSTU" train $(options_of static) --save-every 1 --out parts --epochs 40 --ranks {} >last.log 2>&1 </dev/null &
    pid=$!
    for n in 4 3; do
        job=
        for ((i = 0; i < 1200; i++)); do
            job=$(pgrep -P $pid -f -- "--ranks $n")
            [ -n "$job" ] && [ "$(ranks_of "$job" | wc -l)" = $n ] && [ "$(grep -cs '"event":"epoch"' parts/log.jsonl)" -gt $((2 * (5 - n))) ] && break
            sleep 0.05
        done
        kill -9 "$(ranks_of "$job" | sed -n 2p)" || stop_here "no job of $n ranks"
        timeout 15 tail --pid="$job" -f /dev/null
    done
    wait $pid || stop_here "the job did not end well"
    [ "$(digest parts)" = "$(digest one)" ] || stop_here "the result differs from a run without kills"
    echo "launch   a job of 4 ranks, killed, went on with 3, killed, and ended with 2: the bits of one process"
}

cat >static.gin <<'END'
train_fn.dataset_name = "synth"
train_fn.max_sequence_length = 30
train_fn.local_batch_size = 64
train_fn.main_module = "HSTU"
train_fn.item_embedding_dim = 16
train_fn.dropout_rate = 0.2
hstu_encoder.num_blocks = 2
hstu_encoder.num_heads = 1
hstu_encoder.dqk = 16
hstu_encoder.dv = 16
train_fn.loss_module = "SampledSoftmaxLoss"
train_fn.num_negatives = 32
train_fn.sampling_strategy = "local"
train_fn.learning_rate = 1e-3
END
ranking() {
    cat <<END
TrainerArgs.train_batch_size = $1
TrainerArgs.eval_interval = 100000
TrainerArgs.clip_grad = 1.0
DatasetArgs.dataset_name = 'synth'
DatasetArgs.max_history_seqlen = 30
DatasetArgs.shuffle = True
NetworkArgs.dtype_str = 'float32'
NetworkArgs.num_layers = 1
NetworkArgs.num_attention_heads = 2
NetworkArgs.hidden_size = 16
NetworkArgs.kv_channels = 8
RankingArgs.prediction_head_arch = [16, $2]
RankingArgs.num_tasks = $3
END
}
# Room for a part of the items, 8 shards of 64 rows that the ranks share: rows are evicted.
{
    ranking 32 10 1
    cat <<'END'
items/DynamicEmbeddingArgs.feature_names = ['item']
items/DynamicEmbeddingArgs.table_name = 'item'
items/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 512
BenchmarkDatasetArgs.embedding_args = [@items/DynamicEmbeddingArgs()]
END
} >dynamic.gin
ranking 32 8 8 >context.gin
# The same with static tables of which each rank holds a part.
{
    ranking 32 8 8
    cat <<'END'
items/EmbeddingArgs.feature_names = ['item']
items/EmbeddingArgs.table_name = 'item'
items/EmbeddingArgs.item_vocab_size_or_capacity = 1000
items/EmbeddingArgs.sharding_type = 'model_parallel'
city/EmbeddingArgs.feature_names = ['city']
city/EmbeddingArgs.table_name = 'city'
city/EmbeddingArgs.item_vocab_size_or_capacity = 100
city/EmbeddingArgs.sharding_type = 'model_parallel'
BenchmarkDatasetArgs.embedding_args = [@items/EmbeddingArgs(), @city/EmbeddingArgs()]
END
} >shards.gin
ranking 2 8 8 >small.gin
"$HSTU" synth --out plain --users 600 --items 900 --mean-len 20 --seed 3 >last.log 2>&1 || stop_here "synth"
awk 'BEGIN { srand(7); print "user_id,item_id,timestamp,action"
    for (i = 0; i < 12000; i++) print int(rand() * 400) "," int(rand() * rand() * 900) "," 1000000 + i "," int(rand() * 256) }' >events.csv
awk 'BEGIN { srand(8); print "user_id,age,city"
    for (u = 0; u < 400; u++) print u "," int(rand() * 7) "," int(rand() * 40) }' >users.csv
"$HSTU" prep csv --input events.csv --action-col action --action-kind bits --users users.csv --user-features age,city --out context >last.log 2>&1 || stop_here "prep"

for case in "${cases[@]}"; do
    rm -rf one many parts timed
    "case_$case" || exit 1
done
