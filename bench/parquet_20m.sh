#!/bin/sh
# hstu prep parquet against pandas + pyarrow on 20 million rows: wall and CPU seconds, ratios, peak memory.
#
#   [PYTHON=python3] [RUNS=3] bench/parquet_20m.sh [ROWS]     appends rows to bench/results/cpu/parquet_20m.csv
#
# The rows are those of gen_ml20m (user, item, rating, time), written by pyarrow as it writes by itself
# (SNAPPY, dictionaries, row groups of 2^20 rows), in the order of the original and in random order.
#   hstu          hstu prep parquet: read, number ids, sort, write data.seq, checksums and fsync included
#   pandas        read_parquet, factorize, sort_values, the columns as .npy, fsync included
#   pandas-array  the best we could do with the tools: one argsort of a combined key
# The contenders take turns within each run, so that both see the same load of the machine.  CPU seconds
# are user and system time of all threads; imports of Python are left out.
set -e
cd "$(dirname "$0")/.."
rows=${1:-20000263}
runs=${RUNS:-3}
python=${PYTHON:-python3}
work=$(mktemp -d "${TMPDIR:-/tmp}/parquet20m.XXXXXX")
trap 'rm -rf "$work"' EXIT
make -s hstu build/release/bench/gen_ml20m
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(lscpu 2>/dev/null | sed -n 's/^Model name: *//p' | head -1)
machine="$(uname -m) ${cpu:-cpu} x$(nproc)"
out=bench/results/cpu/parquet_20m.csv
mkdir -p "$(dirname "$out")"
[ -s "$out" ] || echo "date,commit,machine,load,order,run,contender,rows,seconds,cpu_seconds,peak_bytes,times_slower_than_hstu,times_cpu_of_hstu" >"$out"

# field NAME TEXT: a number out of one line of JSON.
field() { printf '%s' "$2" | sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p"; }

hstu_once() {
    rm -rf "$work/out"
    "$python" - "$work/in.parquet" "$work/out" <<'PY'
import json, resource, subprocess, sys
run = subprocess.run(["./hstu", "prep", "parquet", "--input", sys.argv[1], "--out", sys.argv[2], "--json"],
                     check=True, capture_output=True, text=True, env={"HSTU_LOG": "quiet"})
result = json.loads(run.stdout)
use = resource.getrusage(resource.RUSAGE_CHILDREN)
result["peak_bytes"] = use.ru_maxrss * 1024
result["cpu_seconds"] = round(use.ru_utime + use.ru_stime, 3)
print(json.dumps({k: result[k] for k in ("users", "events", "max_len", "seconds", "cpu_seconds", "peak_bytes")}))
PY
}
pandas_once() { rm -rf "$work/pd" && "$python" bench/peers/parquet_pandas.py "$work/in.parquet" "$work/pd" "$1"; }

# report ORDER RUN CONTENDER JSON: one row.
report() {
    s=$(field seconds "$4")
    c=$(field cpu_seconds "$4")
    wall=$(echo "scale=4; $s / $hstu_seconds" | bc)
    work_ratio=$(echo "scale=4; $c / $hstu_cpu" | bc)
    printf '%s,%s,"%s",%s,%s,%s,%s,%s,%.3f,%.3f,%s,%.2f,%.2f\n' "$(date -u +%F)" "$commit" "$machine" \
        "$(cut -d' ' -f1 /proc/loadavg)" "$1" "$2" "$3" "$rows" "$s" "$c" "$(field peak_bytes "$4")" "$wall" "$work_ratio" >>"$out"
    printf '%s run %s %-12s %7.2f s wall, %6.2f s CPU, %5d MB peak, %5.2fx wall, %5.2fx CPU of hstu\n' "$1" "$2" "$3" "$s" "$c" \
        "$(($(field peak_bytes "$4") / 1000000))" "$wall" "$work_ratio"
}

for order in original shuffled; do
    mkdir -p "$work/data"
    build/release/bench/gen_ml20m "$work/data" "$rows" $order
    "$python" -c 'import sys, pyarrow.csv, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.csv.read_csv(sys.argv[1]), sys.argv[2])' "$work/data/ratings.csv" "$work/in.parquet"
    rm -rf "$work/data"
    for run in $(seq "$runs"); do
        hstu=$(hstu_once)
        usual=$(pandas_once usual)
        array=$(pandas_once array)
        hstu_seconds=$(field seconds "$hstu")
        hstu_cpu=$(field cpu_seconds "$hstu")
        for key in users events max_len; do
            if [ "$(field $key "$hstu")" != "$(field $key "$usual")" ] || [ "$(field $key "$hstu")" != "$(field $key "$array")" ]; then
                echo "the contenders disagree about $key: $hstu / $usual / $array" >&2
                exit 1
            fi
        done
        report $order "$run" hstu "$hstu"
        report $order "$run" pandas "$usual"
        report $order "$run" pandas-array "$array"
    done
done
