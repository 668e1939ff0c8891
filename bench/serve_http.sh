#!/usr/bin/env bash
# hstu serve under load: requests a second and latencies of an empty route and of recommendations, by wrk beside it.
#
#   [SECONDS_EACH=8] [CONNECTIONS=8] [OUT=FILE.csv] bench/serve_http.sh     appends rows to FILE.csv
#                                                    (default: bench/results/cpu/serve.csv)
#
# The model is that of configs/demo.gin, trained for two epochs on the data of `hstu synth`; every request is of one of
# 1,500 users at random.  Server and wrk (Debian: wrk) share the machine's cores.
set -eu
cd "$(dirname "$0")/.."
command -v wrk >/dev/null || { echo "serve_http.sh: wrk is not here; apt-get install wrk" >&2; exit 1; }
each=${SECONDS_EACH:-8} connections=${CONNECTIONS:-8} out=${OUT:-bench/results/cpu/serve.csv} port=${PORT:-18080}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu} x$(nproc), wrk beside it"
[ -s "$out" ] || echo "date,commit,machine,what,connections,seconds,requests_per_s,p50_us,p99_us" >"$out"

./hstu synth --out "$work/data" >/dev/null 2>&1
./hstu train --gin-config-file configs/demo.gin --data "$work/data" --out "$work/run" --device cpu --epochs 2 >/dev/null 2>&1
./hstu serve "$work/run" --data "$work/data" --port "$port" --device cpu >/dev/null 2>"$work/log" &
server=$!
for _ in $(seq 100); do grep -q '^ready:' "$work/log" && break; sleep .1; done
grep -q '^ready:' "$work/log" || { cat "$work/log" >&2; exit 1; }
cat >"$work/recommend.lua" <<'LUA'
wrk.method = "POST"
request = function()
    return wrk.format(nil, nil, nil, string.format('{"user": %d, "top_k": 10}', math.random(1, 1500)))
end
LUA

# us TEXT: 149.00us, 1.54ms or 1.2s in microseconds
us() { printf '%s\n' "$1" | awk '/us$/ { printf "%.0f", $1 } /ms$/ { printf "%.0f", $1 * 1e3 } /[0-9]s$/ { printf "%.0f", $1 * 1e6 }'; }

# measure WHAT PATH [OPTION...]
measure() {
    wrk -t1 -c"$connections" -d"$each" --latency "${@:3}" "http://127.0.0.1:$port$2" >"$work/wrk" 2>&1
    if grep -q 'Non-2xx\|Socket errors' "$work/wrk"; then cat "$work/wrk" >&2; exit 1; fi
    local rate p50 p99
    rate=$(awk '/^Requests\/sec/ { printf "%.0f", $2 }' "$work/wrk")
    p50=$(us "$(awk '$1 == "50%" { print $2 }' "$work/wrk")") p99=$(us "$(awk '$1 == "99%" { print $2 }' "$work/wrk")")
    echo "$(date +%F),$commit,\"$machine\",\"$1\",$connections,$each,$rate,$p50,$p99" >>"$out"
    printf '%-24s %8s requests/s   p50 %6s us   p99 %6s us\n' "$2" "$rate" "$p50" "$p99"
}
measure "GET /health" /health
measure "POST /v1/recommend, top_k 10, configs/demo.gin" /v1/recommend -s "$work/recommend.lua"
