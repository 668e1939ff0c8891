#!/bin/sh
# hstu prep against pandas on 20 million rows in the ml-20m layout: seconds, ratio, peak memory.
#
#   bench/prep_20m.sh [ROWS]       appends rows to bench/results/cpu/prep_20m.csv
#
# Three contenders read the same generated ratings.csv, in the page cache, and write to the same disk:
#   hstu          hstu prep ml-20m: read, sort, group, write data.seq, checksums and fsync included
#   pandas-lists  read_csv, sort_values, groupby().agg(list), to_pickle: the references' way, with
#                 typed columns and without their slow to_csv
#   pandas-array  the best we could do with pandas and numpy: no groupby, raw .npy columns
# The order of rows is that of the original (by user, then movie), and random.  Times are wall clock
# inside the process, imports of Python left out; the best of RUNS (default 3; lists: 1).
set -e
cd "$(dirname "$0")/.."
rows=${1:-20000263}
runs=${RUNS:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/prep20m.XXXXXX")
trap 'rm -rf "$work"' EXIT
make -s hstu build/release/bench/gen_ml20m
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu} x$(nproc)"
out=bench/results/cpu/prep_20m.csv
mkdir -p "$(dirname "$out")"
[ -s "$out" ] || echo "date,commit,machine,order,contender,rows,seconds,peak_bytes,columns_bytes,peak_over_columns,times_slower_than_hstu" >"$out"

# field NAME TEXT: a number out of one line of JSON.
field() { printf '%s' "$2" | sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p"; }

# hstu_once: seconds and peak bytes.  The peak is that of the child, as the kernel counts it.
hstu_once() {
    rm -rf "$work/out"
    python3 - "$work/data" "$work/out" <<'PY'
import json, resource, subprocess, sys
run = subprocess.run(["./hstu", "prep", "ml-20m", "--input", sys.argv[1], "--out", sys.argv[2], "--json"],
                     check=True, capture_output=True, text=True, env={"HSTU_LOG": "quiet"})
result = json.loads(run.stdout)
result["peak_bytes"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({k: result[k] for k in ("users", "events", "max_len", "seconds", "peak_bytes")}))
PY
}
pandas_once() { rm -rf "$work/pd" && python3 bench/peers/prep_pandas.py "$work/data" "$work/pd" $1; }

# best N COMMAND...: the JSON of the fastest of N runs.
best() {
    n=$1
    shift
    fastest=
    for i in $(seq "$n"); do
        line=$("$@")
        if [ -z "$fastest" ] || [ "$(echo "$(field seconds "$line") < $(field seconds "$fastest")" | bc)" = 1 ]; then
            fastest=$line
        fi
    done
    echo "$fastest"
}

# report ORDER CONTENDER JSON: one row; the columns of an event are 18 bytes (user is implied).
report() {
    s=$(field seconds "$3")
    peak=$(field peak_bytes "$3")
    columns=$((rows * 18))
    line=$(printf '%s,%s,"%s",%s,%s,%s,%.3f,%s,%s,%.2f,%.1f' "$(date -u +%F)" "$commit" "$machine" "$1" "$2" "$rows" \
        "$s" "$peak" "$columns" "$(echo "scale=4; $peak / $columns" | bc)" "$(echo "scale=4; $s / $hstu_seconds" | bc)")
    echo "$line" >>"$out"
    echo "$1 $2: $s s, $((peak / 1000000)) MB ($(echo "scale=2; $peak / $columns" | bc) of the columns), $(echo "scale=1; $s / $hstu_seconds" | bc)x hstu"
}

for order in original shuffled; do
    mkdir -p "$work/data"
    build/release/bench/gen_ml20m "$work/data" "$rows" $order
    cat "$work/data/ratings.csv" >/dev/null
    hstu=$(best "$runs" hstu_once)
    hstu_seconds=$(field seconds "$hstu")
    array=$(best "$runs" pandas_once array)
    lists=$(best 1 pandas_once lists)
    for key in users events max_len; do
        if [ "$(field $key "$hstu")" != "$(field $key "$array")" ] || [ "$(field $key "$hstu")" != "$(field $key "$lists")" ]; then
            echo "the contenders disagree about $key: $hstu / $array / $lists" >&2
            exit 1
        fi
    done
    report $order hstu "$hstu"
    report $order pandas-lists "$lists"
    report $order pandas-array "$array"
done
