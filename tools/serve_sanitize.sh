#!/bin/bash
# A server built with the address and with the thread sanitizer, under everything that clients can do at once
# (tools/serve_mixed.py), then drained by SIGTERM: no report, exit code 0.   tools/serve_sanitize.sh [--seconds S] [--no-build] [VARIANT ...]
set -eu
seconds=60 variants=() is_built=''
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2; shift ;;
    --no-build) is_built=yes ;;
    *) variants+=("$1") ;;
    esac
    shift
done
[ ${#variants[@]} -gt 0 ] || variants=(asan tsan)
work=$(mktemp -d)
server=''
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "serve_sanitize: $*" >&2; exit 1; }

for variant in "${variants[@]}"; do
    [ -n "$is_built" ] || make -j2 VARIANT="$variant" CUDA=0 hstu >"$work/make" 2>&1 || { tail -20 "$work/make"; fail "the build of $variant failed"; }
    program=build/$variant/hstu
    if [ ! -d "$work/engine" ]; then # by whichever build is first: the answers are the same
        "$program" synth --out "$work/data" --users 600 --items 300 --mean-len 30 --seed 1 >/dev/null 2>&1
        "$program" train --gin-config-file configs/demo.gin --data "$work/data" --out "$work/run" --max-iters 3 --device cpu >"$work/log" 2>&1 ||
            { cat "$work/log"; fail "train failed"; }
        "$program" build "$work/run" --out "$work/engine" >"$work/log" 2>&1 || { cat "$work/log"; fail "build failed"; }
    fi
    rm -rf "$work/state"
    ASAN_OPTIONS=detect_leaks=1 TSAN_OPTIONS="halt_on_error=0 exitcode=66" "$program" serve "$work/run" "$work/engine" \
        --name a --name b --split 50,50 --data "$work/data" --state "$work/state" --port 0 --device cpu --access-log "$work/access" \
        2>"$work/server" &
    server=$!
    port=''
    for _ in $(seq 600); do
        port=$(sed -n 's|^ready: http://127.0.0.1:\([0-9]*\)/.*|\1|p' "$work/server")
        [ -z "$port" ] || break
        sleep 0.1
    done
    [ -n "$port" ] || { cat "$work/server" >&2; fail "$variant: the server does not start"; }
    tools/serve_mixed.py "$port" --seconds "$seconds" --models a,b || { tail -60 "$work/server" >&2; fail "$variant: wrong answers"; }
    kill -TERM "$server"
    code=0
    wait "$server" || code=$?
    server=''
    if [ $code -ne 0 ] || grep -qE 'Sanitizer|runtime error' "$work/server"; then
        grep -vE '^(note|model)' "$work/server" | head -120 >&2
        fail "$variant: exit code $code"
    fi
    echo "$variant: $seconds s of mixed load, $(wc -l <"$work/access") lines in the access log, no report"
done
