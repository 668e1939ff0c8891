#!/usr/bin/env bash
# hstu serve under load, over HTTP and in process: requests a second, latencies, CPU time of the server for a request.
#
#   [DEVICE=cpu] [RUN=DIR DATA=DIR] [PROGRAMS="./hstu OTHER/hstu"] [ROUNDS=1] [CONNECTIONS="1 64"] [EVENTS="20 2048"]
#   [REQUESTS=4000] [SENDERS=1] [OUT=FILE.csv] bench/serve_http.sh        appends rows to FILE.csv
#                                                    (default: bench/results/cpu/serve.csv)
#
# Without RUN the model is that of configs/demo.gin, trained for two epochs on the data of `hstu synth`.  Requests are
# recommendations for users of DATA, for users nobody knows (the model computes nothing), and for histories of so many
# events that come with the request; `hstu bench throughput` sends them from one thread, beside the server, and asks the
# engine in its own process the same.  Several PROGRAMS take turns.  One sender may be slower than a server: SENDERS
# processes share 16 connections or more (their rates are summed, of p50 the mean is shown, of p99 the highest), and
# where there is wrk (Debian: wrk) it asks for /health and for unknown users as well.
set -eu
cd "$(dirname "$0")/.."
device=${DEVICE:-cpu} out=${OUT:-bench/results/cpu/serve.csv} port=${PORT:-18080} n=${REQUESTS:-4000}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu} x$(nproc), $device, clients beside it"
[ -s "$out" ] || echo "date,commit,machine,what,connections,seconds,requests_per_s,p50_us,p99_us" >"$out"

run=${RUN:-$work/run} data=${DATA:-$work/data}
if [ -z "${RUN:-}" ]; then
    ./hstu synth --out "$work/data" >/dev/null 2>&1
    ./hstu train --gin-config-file configs/demo.gin --data "$data" --out "$run" --device cpu --epochs 2 >/dev/null 2>&1
fi

# requests N KIND: a body a line; KIND: known, unknown, or how many events the history has
requests() {
    awk -v n="$1" -v kind="$2" 'BEGIN { srand(7)
        for (i = 0; i < n; i++) {
            if (kind == "known") { printf "{\"user\": %d, \"top_k\": 10}\n", 1 + int(1500 * rand()); continue }
            if (kind == "unknown") { printf "{\"user\": \"nobody %d\", \"top_k\": 10}\n", i; continue }
            printf "{\"history\": ["
            for (k = 0; k < kind; k++)
                printf "%s{\"item\": %d, \"time\": %d}", (k > 0 ? ", " : ""), 1 + int(1000 * rand()), 1700000000 + 60 * k
            print "], \"top_k\": 10}"
        } }'
}
for kind in known unknown ${EVENTS:-20 2048}; do
    some=$n
    case $kind in *[0-9]*) [ "$kind" -lt 1000 ] || some=$((n / 8)) ;; esac
    requests "$some" "$kind" >"$work/$kind.jsonl"
done

cpu_us() { awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) * 1000000 / hz }' "/proc/$1/stat"; }

# row PROGRAM WHAT CONNECTIONS SECONDS RATE P50 P99 [NOTE]
row() {
    local commit
    commit=$(git -C "$(dirname "$1")" describe --always --dirty 2>/dev/null || echo "$1")
    echo "$(date +%F),$commit,\"$machine\",\"$2\",$3,$4,$5,$6,$7" >>"$out"
    printf '%-24s %-44s %3s %8s requests/s   p50 %7s us   p99 %7s us   %s\n' "$1" "$2" "$3" "$5" "$6" "$7" "${8:-}"
}

# measure PROGRAM KIND CONNECTIONS [--server URL | RUN ...]
measure() {
    local program=$1 kind=$2 connections=$3 how="over HTTP" senders=${SENDERS:-1} before after note="" i senders_of=()
    local seconds rate p50 p99
    shift 3
    [ "$1" = --server ] || how="in process"
    [ "$how" = "over HTTP" ] && [ "$connections" -ge 16 ] || senders=1
    rm -f "$work"/report.*
    before=$(cpu_us "$server")
    for i in $(seq "$senders"); do
        "$program" bench throughput "$@" --dataset "$work/$kind.jsonl" --concurrency $((connections / senders)) \
            --warmup 50 --report-json "$work/report.$i" >"$work/text.$i" 2>&1 &
        senders_of+=($!)
    done
    for i in $(seq "$senders"); do
        wait "${senders_of[i - 1]}" || { cat "$work/text.$i" >&2; exit 1; }
    done
    after=$(cpu_us "$server")
    [ "$how" = "in process" ] ||
        note="server $(((after - before) / (senders * ($(wc -l <"$work/$kind.jsonl") + 50)))) us of CPU"
    read -r seconds rate p50 p99 <<<"$(awk -F'[:,]' '/request_throughput_req_s/ { r += $2 }
        /total_latency_ms/ && $2 > t { t = $2 } /request_latency_percentiles_ms/ { is_it = 1 }
        /"p50"/ && is_it { p += $2; n++ } /"p99"/ && is_it { if ($2 > q) q = $2; is_it = 0 }
        END { printf "%.2f %.0f %.0f %.0f", t / 1000, r, p / n * 1000, q * 1000 }' "$work"/report.*)"
    row "$program" "recommend $how, $kind$(case $kind in *[0-9]*) echo ' events' ;; *) echo ' users' ;; esac)" \
        "$connections" "$seconds" "$rate" "$p50" "$p99" "$note"
}

# us TEXT: 149.00us, 1.54ms or 1.2s in microseconds
us() { printf '%s\n' "$1" | awk '/us$/ { printf "%.0f", $1 } /ms$/ { printf "%.0f", $1 * 1e3 } /[0-9]s$/ { printf "%.0f", $1 * 1e6 }'; }

# measure_wrk PROGRAM WHAT CONNECTIONS URL [OPTION...]
measure_wrk() {
    wrk -t$(($3 < 4 ? 1 : ($(nproc) + 3) / 4)) -c"$3" -d4 --latency "${@:5}" "$4" >"$work/wrk" 2>&1
    if grep -q 'Non-2xx\|Socket errors' "$work/wrk"; then cat "$work/wrk" >&2; exit 1; fi
    row "$1" "$2, wrk" "$3" 4 "$(awk '/^Requests\/sec/ { printf "%.0f", $2 }' "$work/wrk")" \
        "$(us "$(awk '$1 == "50%" { print $2 }' "$work/wrk")")" "$(us "$(awk '$1 == "99%" { print $2 }' "$work/wrk")")"
}
printf 'wrk.method = "POST"\nwrk.body = [[{"user": "nobody", "top_k": 10}]]\n' >"$work/unknown.lua"

for _ in $(seq "${ROUNDS:-1}"); do
    for program in ${PROGRAMS:-./hstu}; do
        "$program" serve "$run" --data "$data" --port "$port" --device "$device" >/dev/null 2>"$work/log" &
        server=$!
        for _ in $(seq 600); do grep -q '^ready:' "$work/log" && break; sleep .1; done
        grep -q '^ready:' "$work/log" || { cat "$work/log" >&2; exit 1; }
        url=http://127.0.0.1:$port
        for connections in ${CONNECTIONS:-1 64}; do
            for kind in known unknown ${EVENTS:-20 2048}; do
                measure "$program" "$kind" "$connections" --server "$url"
                case $kind in *[0-9]*) measure "$program" "$kind" "$connections" "$run" --device "$device" ;; esac
            done
            command -v wrk >/dev/null || continue
            measure_wrk "$program" "GET /health" "$connections" "$url/health"
            measure_wrk "$program" "recommend, unknown users" "$connections" "$url/v1/recommend" -s "$work/unknown.lua"
        done
        kill "$server"
        wait "$server" || true
        server=
    done
done
