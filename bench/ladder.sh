#!/usr/bin/env bash
# The ladder of docs/ladder.md: which changes of a config help, as means over seeds.
#
#   bench/ladder.sh prep ML-1M-FOLDER DIR   ML-1M with ties in source order (DIR/source) and mixed (DIR/mixed)
#   bench/ladder.sh run [options]           choose: leave two out, the best epoch on the validation event
#   bench/ladder.sh final [options]         measure: leave one out, as many epochs as validation chose
#   bench/ladder.sh show run|final [options]  the commands that are still to run
#   bench/ladder.sh table [--out FILE]      means and 95 % intervals by rung, as Markdown
#
# Options: --data DIR (data/ladder)  --out FILE.csv (bench/results/h200/ladder.csv)  --rungs A,B,.. (all)
# --seeds 1,2,.. (1,2,3,4,5)  --ties source,mixed (run: mixed; final: both)  --device DEVICE (cuda)  --jobs J (1) runs at
# a time on the device  --seconds N: start no run that would end later than N seconds from now  --ladder FILE: the rungs
# (bench/ladder.txt).  HSTU names the program.
#
# The CSV file is the only state: whatever has a row there is not run again, so that a ladder can be climbed in slices,
# and the rows of a rung that has changed have to be deleted.  `seconds` are those of training without evaluations, and
# `jobs` is how many runs the device had at once.  The figures of validation are those of the best evaluation, every ten
# epochs and in the last ten.  `train` also prints test figures at its end, which are not read.  `final` takes the last
# epoch, whatever it is worth; its number is the median of what validation chose for the rung, or the config's if
# validation has not seen the rung.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
hstu=${HSTU:-$here/hstu}
data=data/ladder out=$here/bench/results/h200/ladder.csv rungs='' seeds=1,2,3,4,5 ties='' device=cuda jobs=1 seconds=''
ladder=$here/bench/ladder.txt
header=rung,seed,part,ties,epochs,hr@10,ndcg@10,seconds,wall,jobs,command

die() {
    echo "ladder.sh: $*" >&2
    exit 2
}

usage() { sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//;p;}' "$0"; }

# rung NAME: the words of its command, config first; a rung's own bindings come after those it starts from.
rung() {
    local line
    line=$(awk -v name="$1" '!/^#/ && $1 == name { print; exit }' "$ladder")
    [ -n "$line" ] || die "no rung $1 in $ladder"
    # shellcheck disable=SC2086 # words
    set -- $line
    case $2 in
    /*.gin) echo "$2" ;;
    *.gin) echo "$here/$2" ;;
    *) rung "$2" ;;
    esac
    shift 2
    local binding
    for binding in "$@"; do printf -- '--set %s\n' "$binding"; done
}

# chosen RUNG TIES: the median of the epochs that validation chose for it, with these ties or, failing that, any.
chosen() {
    local of
    for of in "$2" '[a-z]*'; do
        grep -s "^$1,[0-9]*,validation,$of," "$out" | cut -d, -f5 | sort -n |
            awk '{ e[NR] = $1 } END { if (NR) print e[int((NR + 1) / 2)]; else exit 1 }' && return
    done
    return 0
}

# command_of RUNG SEED PART TIES: without --out.
command_of() {
    local words epochs
    words=$(printf '%s train %s --data %s --seed %s --device %s --json --save-every 100000' \
        "$hstu" "$(rung "$1" | paste -sd' ')" "$data/$4" "$2" "$device")
    if [ "$3" = validation ]; then
        echo "$words --validate --eval-every 10"
    else
        epochs=$(chosen "$1" "$4")
        echo "$words --split leave-one-out --eval-every 100000${epochs:+ --epochs $epochs}"
    fi
}

# wall_of RUNG PART: the seconds a run is expected to take: the longest of this rung, else of any, else a minute.
wall_of() {
    awk -F, -v rung="$1" -v part="$2" '
        NR > 1 { if ($9 > all) all = $9; if ($1 == rung && $9 > own) own = $9 }
        END { print int(own ? own + 1 : all ? all + 1 : 60) }' "$out"
}

# value KEY: the first number with this key; in "done" the intervals of the metrics follow under the same keys.
value() { grep -o "\"$1\":[-0-9.e]*" | head -n 1 | cut -d: -f2; }

# one RUNG SEED PART TIES: runs it and appends its row, unless there is no time left.
one() {
    local command run start line epochs seconds
    if [ -n "$until" ] && [ $(($(date +%s) + $(wall_of "$1" "$3"))) -gt "$until" ]; then
        echo "later: $1, seed $2, $3, ties $4" >&2
        return 0
    fi
    command=$(command_of "$@")
    run=$(mktemp -d)
    start=$(date +%s.%N)
    # shellcheck disable=SC2086 # words
    if ! $command --out "$run/run" >"$run/log" 2>"$run/errors"; then
        echo "$command: failed: $(tail -n 3 "$run/errors")" >&2
        rm -rf "$run"
        return 1
    fi
    line=$(tail -n 1 "$run/log") # "done"
    seconds=$(value seconds <<<"$line") epochs=$(value epoch <<<"$line")
    if [ "$3" = validation ]; then
        line=$(grep '"is_best":true' "$run/log" | tail -n 1)
        epochs=$(($(value epoch <<<"$line") + 1))
    fi
    # One short write, so that rows of runs at the same time do not mix.
    awk -v OFS=, -v rung="$1" -v seed="$2" -v part="$3" -v ties="$4" -v epochs="$epochs" -v hr="$(value hr@10 <<<"$line")" \
        -v ndcg="$(value ndcg@10 <<<"$line")" -v seconds="$seconds" -v start="$start" -v now="$(date +%s.%N)" -v jobs="$jobs" \
        -v command="${command//"$here/"/}" 'BEGIN { print rung, seed, part, ties, epochs, sprintf("%.4f", hr), sprintf("%.4f", ndcg),
            sprintf("%.1f", seconds), sprintf("%.1f", now - start), jobs, "\"" command "\"" }' >>"$out"
    echo "$1, seed $2, $3, ties $4: HR@10 $(value hr@10 <<<"$line"), NDCG@10 $(value ndcg@10 <<<"$line"), epoch $epochs" >&2
    rm -rf "$run"
}

# missing PART: RUNG SEED PART TIES of every run that has no row; all rungs of a seed before the next seed.
missing() {
    local seed tie name
    for seed in ${seeds//,/ }; do
        for tie in ${ties//,/ }; do
            for name in ${rungs//,/ }; do
                grep -qs "^$name,$seed,$1,$tie," "$out" || echo "$name $seed $1 $tie"
            done
        done
    done
}

# climb PART: what is missing, $jobs at a time.
climb() {
    local n status=0
    until=${seconds:+$(($(date +%s) + seconds))}
    mkdir -p "$(dirname "$out")"
    [ -s "$out" ] || echo "$header" >"$out"
    export until hstu data out device jobs ladder here
    export -f one rung chosen command_of wall_of value die
    missing "$1" | xargs -r -P "$jobs" -L 1 bash -c 'set -euo pipefail; one "$@"' one || status=1
    n=$(missing "$1" | wc -l)
    echo "$out: $(($(wc -l <"$out") - 1)) runs; $n of this command are left" >&2
    return $status
}

# table: a row a rung, part and order of ties, in the order of the ladder.
table() {
    [ -s "$out" ] || die "$out: no runs yet"
    echo '| rung | part | ties | seeds | epochs | HR@10 | NDCG@10 | training (s) | at once |'
    echo '|---|---|---|---|---|---|---|---|---|'
    awk -F, '
        # Student: 95 % of means of n lie within t(n - 1) standard errors.
        function interval(sum, squares, n,   mean, t) {
            mean = sum / n
            if (n < 2) return sprintf("%.4f", mean)
            split("12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262", t, " ")
            squares = squares / n - mean * mean
            return sprintf("%.4f ± %.4f", mean, (n < 11 ? t[n - 1] : 2) * sqrt((squares > 0 ? squares : 0) / (n - 1)))
        }
        FNR == NR { if (!/^#/ && NF) { split($0, word, " "); order[++n_rungs] = word[1] } next }
        FNR > 1 {
            key = $1 "," $3 "," $4
            n[key]++; epochs[key] += $5; seconds[key] += $8
            hr[key] += $6; hr2[key] += $6 * $6; ndcg[key] += $7; ndcg2[key] += $7 * $7
            if (n[key] > 1 && at[key] != $10) $10 = "varies"
            at[key] = $10
        }
        END {
            split("validation,mixed validation,source test,mixed test,source", kinds, " ")
            for (k = 1; k <= 4; k++)
                for (i = 1; i <= n_rungs; i++) {
                    key = order[i] "," kinds[k]
                    if (!(key in n)) continue
                    split(kinds[k], kind, ",")
                    printf "| %s | %s | %s | %d | %.0f | %s | %s | %.1f | %s |\n", order[i], kind[1], kind[2], n[key], epochs[key] / n[key],
                        interval(hr[key], hr2[key], n[key]), interval(ndcg[key], ndcg2[key], n[key]), seconds[key] / n[key], at[key]
                }
        }' "$ladder" "$out"
}

prep() {
    [ $# = 2 ] || die "prep: name ML-1M's folder and where the data go"
    raw=$(mktemp -d)
    trap 'rm -rf "$raw"' EXIT
    for order in source mixed; do
        mkdir "$raw/$order"
        for file in users movies; do
            if [ -e "$1/$file.dat" ]; then cp "$1/$file.dat" "$raw/$order"; else xz -dc "$1/$file.dat.xz" >"$raw/$order/$file.dat"; fi
        done
    done
    if [ -e "$1/ratings.dat" ]; then cp "$1/ratings.dat" "$raw/source"; else xz -dc "$1/ratings.dat.xz" >"$raw/source/ratings.dat"; fi
    "$here/bench/shuffle_ties.sh" <"$raw/source/ratings.dat" >"$raw/mixed/ratings.dat"
    for order in source mixed; do "$hstu" prep ml-1m --input "$raw/$order" --out "$2/$order"; done
}

what=${1:-}
[ $# -gt 0 ] && shift
[ "$what" != prep ] || { prep "$@"; exit; }
part=
[ "$what" != show ] || { part=${1:-}; [ $# -gt 0 ] && shift; }
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || die "$1 needs a value"
    case $1 in
    --data) data=$2 ;;
    --out) out=$2 ;;
    --rungs) rungs=$2 ;;
    --seeds) seeds=$2 ;;
    --ties) ties=$2 ;;
    --device) device=$2 ;;
    --jobs) jobs=$2 ;;
    --seconds) seconds=$2 ;;
    --ladder) ladder=$2 ;;
    *) die "unknown option $1" ;;
    esac
    shift 2
done
all=$(awk '!/^#/ && NF { print $1 }' "$ladder" | paste -sd,)
rungs=${rungs:-$all}
for name in ${rungs//,/ }; do rung "$name" >/dev/null; done
case $what$part in
run | showrun) part=validation ties=${ties:-mixed} ;;
final | showfinal) part=test ties=${ties:-mixed,source} ;;
table) ;;
*) usage; exit 2 ;;
esac
case $what in
run | final) climb "$part" ;;
show) missing "$part" | while read -r line; do
    # shellcheck disable=SC2086 # words
    command_of $line
done ;;
table) table ;;
esac
