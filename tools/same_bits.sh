#!/bin/sh
# A refactoring proof: two builds of hstu train three configs for some steps on the CPU, and their
# checkpoints must be the same, bit for bit.
#
#   tools/same_bits.sh OLD NEW DATA [STEPS]
#
# OLD and NEW are hstu programs, DATA is a folder of 'hstu prep ml-1m'.  The checkpoints of OLD are kept
# in OLD.same_bits for later calls.  A config whose checkpoints differ is printed with the file that differs.
[ $# -ge 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
old=$1 new=$2 data=$3 steps=${4:-50}
root=$(dirname "$0")/..
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# train PROGRAM OUT NAME: one of the three configs.
train() {
    program=$1 out=$2
    case $3 in
    hstu)
        set -- configs/ml-1m/hstu-sampled-softmax-n128-final.gin
        ;;
    ranking)
        set -- configs/movielen_ranking.gin --set DatasetArgs.max_history_seqlen=60 \
            --set TrainerArgs.train_batch_size=32 --set NetworkArgs.hidden_size=32 \
            --set NetworkArgs.kv_channels=8 --set TrainerArgs.clip_grad=1.0
        ;;
    dynamic)
        set -- bench/tables_ml1m.gin --set DatasetArgs.max_history_seqlen=100
        ;;
    esac
    file=$1
    shift
    "$program" train --gin-config-file "$root/$file" "$@" --data "$data" --out "$out" \
        --max-iters "$steps" --device cpu >"$work/log" 2>&1 || {
        cat "$work/log"
        return 1
    }
}

# content FILE: the bytes to compare.  Of a safetensors file these are the tensors without the header, because
# the header has the config as that build writes it.
content() {
    case $1 in
    *.safetensors) tail -c "+$((9 + $(od -An -t u8 -N 8 "$1")))" "$1" ;;
    *) cat "$1" ;;
    esac
}

# compare OLD_RUN NEW_RUN: the files of both newest checkpoints, except state.json, which has times.
compare() {
    (cd "$1/last" && find . -type f ! -name state.json ! -name manifest.json | sort) >"$work/files"
    while read -r file; do
        content "$1/last/$file" >"$work/old"
        content "$2/last/$file" | cmp -s - "$work/old" || { echo "          $file" && return 1; }
    done <"$work/files"
}

failed=0
for name in hstu ranking dynamic; do
    kept=$old.same_bits/$name-$steps
    [ -e "$kept/last" ] || { rm -rf "$kept" && mkdir -p "$old.same_bits" && train "$old" "$kept" $name; } || exit 1
    train "$new" "$work/$name" $name || exit 1
    if compare "$kept" "$work/$name"; then
        echo "  same    $name: $(wc -l <"$work/files") files of step $steps"
    else
        echo "  DIFFER  $name"
        failed=1
    fi
done
exit $failed
