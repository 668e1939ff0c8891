#!/usr/bin/env bash
# Gives every command what it should not get, and counts the answers that are none:
#
#   tools/attack.sh [paths] [limits] [access] [flips]
#
# paths: folders, pipes, devices, loops of links, sparse, empty and foreign files, long names and names with escape
# sequences in the place of every input and output.  limits: ulimit -f, -n, -u, -v, -s, closed and full streams, umask
# 777, a full disk (as root).  access: folders and files without permission (as root, who becomes nobody).  flips: a bit
# of a file of a checkpoint.  Each command must end by itself within 20 seconds with exit code 0, 1 or 2, say why it
# failed, and send no escape sequence.  HSTU: the program (default: build/release/hstu); FLIPS: how many (default 200).
set -u
cd "$(dirname "$0")/.." || exit 1
for word in "$@"; do
    case $word in
    paths | limits | access | flips) ;;
    --help | -h) sed -n '4,10s/^# \{0,1\}//p' tools/attack.sh && exit 0 ;;
    *) echo "tools/attack.sh: unknown argument $word; see --help" >&2 && exit 2 ;;
    esac
done
HSTU=$(realpath "${HSTU:-build/release/hstu}") || exit 1
gin=$PWD/configs/demo.gin
work=$(mktemp -d) || exit 1
trap 'umount "$work/disk" 2>/dev/null; chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work" || exit 1
escape=$(printf '\033')
n=0 bad=0

# judge CODE WORDS: what the last command did.
judge() {
    n=$((n + 1))
    local code=$1 why=
    shift
    [ "$code" -le 2 ] || why="exit code $code"
    [ "$code" -eq 0 ] || [ -s err ] || why="exit code $code without a word"
    grep -qE 'Sanitizer|runtime error' err && why="a sanitizer"
    grep -q "$escape" err && why="an escape sequence"
    [ -n "$why" ] || return 0
    bad=$((bad + 1))
    echo "BAD   $why: $(printf '%q ' "$@" | cut -c1-200): $(tail -n 1 err | cut -c1-160)"
}

# try ARGUMENTS: the program with these.
try() {
    timeout -k 1 20 "$HSTU" "$@" >out 2>err </dev/null
    judge $? "$@"
    rm -rf made made.*
}

prepare() {
    "$HSTU" synth --out data --users 200 --items 100 --mean-len 12 >/dev/null || exit 1
    "$HSTU" train --device cpu --gin-config-file "$gin" --data data --out run --epochs 1 >/dev/null 2>&1 || exit 1
    printf 'user,item,time\n1,2,3\n1,3,4\n2,2,5\n2,5,6\n1,5,7\n2,7,8\n' >x.csv
}

# Devices are inputs only: as root a defect could replace them.
attack_paths() {
    local place source
    mkdir folder && mkfifo pipe && ln -s loop loop && truncate -s 20G sparse && : >empty && printf x >one
    head -c 100000 /dev/urandom >random
    printf x >"$(printf 'new\nline%s[2J\342\200\256' "$escape")"
    local long places
    long=$(printf 'a%.0s' $(seq 4100))
    places=(folder pipe loop sparse empty one random "$(printf 'new\nline%s[2J\342\200\256' "$escape")" nothing
        "$long" "${long:0:255}" "${long:0:256}/x" "" . run run/last run/last/model.safetensors data/data.seq)
    for place in "${places[@]}" /dev/zero /dev/full /dev/null /proc/self/mem /; do
        try info "$place"
        try eval "$place" --data data --device cpu
        try eval run --data "$place" --device cpu
        try recommend "$place" --data data --user 1 --device cpu
        try recommend run --data "$place" --user 1 --device cpu
        try export "$place" --what weights --out made
        try export "$place" --what items --format csv --out made
        try export "$place" --what tables --out made
        try import tables "$place" --out made
        try train --device cpu --data data --out made --epochs 1 --gin-config-file "$place"
        try train --device cpu --data "$place" --out made --epochs 1 --gin-config-file "$gin"
        [ "$place" != pipe ] || continue # these read pipes, and wait for their writers
        try recommend run --data data --users "$place" --device cpu
        try recommend run --data data --history "@$place" --device cpu
        try score run --data data --user 1 --candidates "@$place" --device cpu
        try prep csv --input x.csv --items "$place" --out made
        for source in csv jsonl ml-100k ml-1m ml-20m kuairand-pure amzn-books processed-seqs; do
            try prep $source --input "$place" --out made
        done
    done
    for place in pipe loop empty one random "$long" "${long:0:256}/x" "" data/data.seq run/config.json; do
        try train --device cpu --data data --out "$place" --epochs 1 --gin-config-file "$gin"
        try train --device cpu --data data --out "$place" --resume
        try synth --users 10 --items 20 --mean-len 5 --out "$place"
        try prep csv --input x.csv --out "$place"
        try export run --what tables --out "$place"
    done
    for place in pipe loop folder "$long" ""; do
        try prep csv --input x.csv --out made --emit-csv "$place"
        try export run --what weights --out "$place"
    done
    [ -p pipe ] || { bad=$((bad + 1)) && echo "BAD   a pipe was replaced by a file"; }
}

# Commands that write to MADE.
commands=("info data" "info data --json" "eval run --data data --device cpu" "doctor" "--help" "train --help-config"
    "train --gin-config-file $gin --data data --device cpu --epochs 1 --out MADE/run"
    "recommend run --data data --user 1 --device cpu" "export run --what weights --out MADE/w"
    "recommend run --data data --all-users --device cpu --format csv --out MADE/r.csv"
    "export run --what items --format npz --out MADE/i.npz"
    "prep csv --input x.csv --out MADE/p --emit-csv MADE/e.csv" "synth --users 300 --items 100 --mean-len 12 --out MADE/s")

# under LIMIT WORDS: a command in a shell of its own, after the LIMIT; words are split on purpose.
under() {
    local limit=$1 words=$2
    rm -rf made && mkdir made
    # shellcheck disable=SC2086
    (eval "$limit" && exec timeout -k 1 20 "$HSTU" ${words//MADE/made}) >out 2>err </dev/null
    judge $? "$limit:" "$words"
    [ -z "$(find made -name '*.tmp' 2>/dev/null)" ] || { bad=$((bad + 1)) && echo "BAD   left by $limit: $words"; }
    chmod -R u+rwx made 2>/dev/null
}

attack_limits() {
    local words limit
    for words in "${commands[@]}"; do
        for limit in 'ulimit -f 1' 'ulimit -f 4' 'ulimit -f 40' 'ulimit -n 5' 'ulimit -n 8' 'ulimit -n 16' 'ulimit -u 1' \
            'ulimit -v 150000' 'ulimit -s 256' 'umask 777' 'exec >&-' 'exec >/dev/full' 'exec <&-'; do
            under "$limit" "$words"
        done
        # shellcheck disable=SC2086
        timeout -k 1 20 "$HSTU" ${words//MADE/made} <&- >&- 2>&-
        local code=$?
        echo "no word can arrive" >err
        judge $code "all streams closed:" "$words"
        mkdir -p disk && mount -t tmpfs -o size=100k tmpfs disk 2>/dev/null || continue
        # shellcheck disable=SC2086
        timeout -k 1 20 "$HSTU" ${words//MADE/disk} >out 2>err </dev/null
        judge $? "full disk:" "$words"
        umount disk
    done
}

attack_access() {
    local as="setpriv --reuid 65534 --regid 65534 --clear-groups" words
    [ "$(id -u)" = 0 ] && $as true 2>/dev/null || { echo "skip  access: only root can become nobody" && return; }
    cp -r data closed && chmod 0 closed/data.seq && mkdir shut && chmod 0 shut && cp -r run locked && chmod -R a-w locked
    for words in "info closed" "info shut" "info shut/x" "eval locked --data data --device cpu" \
        "eval run --data closed --device cpu" "train --gin-config-file $gin --data data --device cpu --out shut/x --epochs 1" \
        "train --data data --device cpu --out locked --resume --epochs 3" "train --data data --device cpu --out run --resume" \
        "prep csv --input shut --out made" "prep ml-1m --input shut/x --out made" "prep csv --input x.csv --out locked" \
        "synth --out shut/x --users 10 --items 20 --mean-len 5" "export run --what weights --out shut/w" \
        "import tables shut --out made"; do
        # shellcheck disable=SC2086
        $as timeout -k 1 20 "$HSTU" $words >out 2>err </dev/null
        judge $? "as nobody:" "$words"
    done
}

attack_flips() {
    local files file at byte i
    mapfile -t files < <(find run/last/ -type f | sort)
    for ((i = 0; i < ${FLIPS:-200}; i++)); do
        file=${files[RANDOM % ${#files[@]}]}
        at=$(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$file")))
        byte=$(od -An -tu1 -j $at -N 1 "$file")
        printf "$(printf '\\%03o' $((byte ^ 1 << RANDOM % 8)))" | dd of="$file" bs=1 seek=$at conv=notrunc status=none
        timeout -k 1 20 "$HSTU" eval run --data data --device cpu >out 2>err </dev/null
        local code=$?
        judge $code eval after a flip in "$file" at $at
        [ $code -ne 0 ] || { bad=$((bad + 1)) && echo "BAD   a flip in $file at $at went unseen"; }
        printf "$(printf '\\%03o' "$byte")" | dd of="$file" bs=1 seek=$at conv=notrunc status=none
    done
    try eval run --data data --device cpu
}

prepare
[ $# -gt 0 ] || set -- paths limits access flips
for word in "$@"; do
    before=$n before_bad=$bad
    attack_"$word"
    echo "$word: $((n - before)) commands, $((bad - before_bad)) bad answers"
done
[ "$bad" -eq 0 ]
