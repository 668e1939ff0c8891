#!/bin/sh
# bench/products.sh [THREADS...]: our matrix products beside OpenBLAS's, with the kernels OpenBLAS
# picks by itself and with its best for this CPU; some 15 s for each number of threads (1 and 2) and
# each of the two.  The rows are added to bench/results/cpu/products.csv.
cd "$(dirname "$0")/.." || exit 1
make CUDA=0 build/release/bench/bench_dense_cpu >/dev/null || exit 1
results=bench/results/cpu/products.csv
rows=$(mktemp) || exit 1
trap 'rm -f "$rows"' EXIT
best=
grep -q avx2 /proc/cpuinfo && best=HASWELL
grep -q avx512 /proc/cpuinfo && best=SKYLAKEX
[ $# -gt 0 ] || set -- 1 2
for threads in "$@"; do
    build/release/bench/bench_dense_cpu --products --csv "$rows" "$threads"
    [ -z "$best" ] || OPENBLAS_CORETYPE=$best build/release/bench/bench_dense_cpu --products --csv "$rows" "$threads"
done
[ -e $results ] ||
    echo "date,commit,cpu,kernel,openblas_core,threads,layer,pass,rows,n_in,n_out,gflops,openblas_gflops,ratio" >$results
sed "s/^/$(date +%F),$(git rev-parse --short HEAD),/" "$rows" >>$results
