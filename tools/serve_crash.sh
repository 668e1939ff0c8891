#!/bin/bash
# Kills a server with --state at random moments while events are sent (every fourth time it is asked to end), and starts it
# again: no event that it acknowledged may be lost, none may be there twice.   tools/serve_crash.sh [--n KILLS] [--seed S] [PROGRAM]
set -eu
kills=100 seed=1 program=build/release/hstu
while [ $# -gt 0 ]; do
    case $1 in
    --n) kills=$2; shift ;;
    --seed) seed=$2; shift ;;
    *) program=$1 ;;
    esac
    shift
done
program=$(realpath "$program")
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "serve_crash: $*" >&2; exit 1; }
RANDOM=$seed

"$program" synth --out "$work/data" --users 50 --items 40 --mean-len 10 --seed 1 >/dev/null 2>&1
"$program" train --gin-config-file configs/demo.gin --data "$work/data" --out "$work/run" --epochs 1 --device cpu >/dev/null 2>&1 || fail "train failed"

start() {
    : >"$work/ready"
    "$program" serve "$work/run" --name m --state "$work/state" --port 0 --device cpu --access-log off 2>"$work/ready" &
    server=$!
    for _ in $(seq 200); do
        port=$(sed -n 's|^ready: http://127.0.0.1:\([0-9]*\)/.*|\1|p' "$work/ready")
        [ -z "$port" ] || return 0
        sleep 0.05
    done
    cat "$work/ready" >&2
    fail "the server does not start"
}

# Sends events with ids until the server is gone; a line for each that was acknowledged.
send() {
    local i=0 answer
    while :; do
        i=$((i + 1))
        answer=$(curl -sf -m 5 "127.0.0.1:$port/v1/events" \
            -d "{\"user\": \"u$2\", \"events\": [{\"item\": $((i % 40 + 1)), \"time\": $(($1 * 1000 + i)), \"id\": \"$1-$2-$i\"}]}") || return 0
        case $answer in *'"added":1'*) echo "u$2 $(($1 * 1000 + i))" >>"$work/acknowledged.$2" ;; *) fail "odd answer: $answer" ;; esac
    done
}

for round in $(seq "$kills"); do
    start
    for s in 1 2 3; do send "$round" $s & done
    sleep 0.$((RANDOM % 40 + 5))
    # As an upgrade does it, too: the next server starts on the folder that the last one left.
    [ $((round % 4)) = 0 ] && kill -TERM "$server" || kill -9 "$server"
    wait 2>/dev/null || true
    server=''
done
start
n=0
for s in 1 2 3; do
    [ -e "$work/acknowledged.$s" ] || continue
    for page in $(seq 0 9); do # of 10,000 events
        curl -sf "127.0.0.1:$port/v1/users/u$s?offset=$((page * 10000))&limit=10000" | grep -o '"time":[0-9]*' || break
    done | cut -d: -f2 | sort -n >"$work/there"
    [ -z "$(uniq -d "$work/there")" ] || fail "an event of u$s is there twice"
    cut -d' ' -f2 "$work/acknowledged.$s" | sort -n >"$work/want"
    lost=$(sort "$work/want" | comm -23 - <(sort "$work/there") | wc -l)
    [ "$lost" -eq 0 ] || fail "$lost acknowledged events of u$s are lost"
    n=$((n + $(wc -l <"$work/want")))
done
[ "$n" -gt 0 ] || fail "nothing was acknowledged"
echo "$kills kills: all of $n acknowledged events are there, each once"
