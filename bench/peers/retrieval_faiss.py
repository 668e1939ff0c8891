#!/usr/bin/env python3
"""faiss-cpu's IndexFlatIP on the problem of `hstu bench search`: the k best of random items by inner product.

    pip install faiss-cpu numpy
    bench/peers/retrieval_faiss.py [--items 1000000] [--dim 64] [--k 10] [--queries 1,8,64] [--hstu build/release/hstu]

With --hstu, each round runs both, one after the other, so that other load on the machine meets both; medians of the
rounds are printed as CSV."""
import argparse, json, os, statistics, subprocess, time

import faiss
import numpy

p = argparse.ArgumentParser()
p.add_argument("--items", type=int, default=1000000)
p.add_argument("--dim", type=int, default=64)
p.add_argument("--k", type=int, default=10)
p.add_argument("--queries", default="1,8,64")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--threads", type=int, default=os.cpu_count())
p.add_argument("--hstu", help="the program; both are then timed in turn")
a = p.parse_args()

faiss.omp_set_num_threads(a.threads)
r = numpy.random.default_rng(1)
index = faiss.IndexFlatIP(a.dim)
index.add(r.standard_normal((a.items, a.dim), dtype=numpy.float32))
print("queries,faiss_ms,hstu_ms,faiss_over_hstu")
for n in [int(x) for x in a.queries.split(",")]:
    q = r.standard_normal((n, a.dim), dtype=numpy.float32)
    index.search(q, a.k)
    theirs, ours = [], []
    for _ in range(a.rounds):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            index.search(q, a.k)
            times.append(1e3 * (time.perf_counter() - start))
        theirs.append(statistics.median(times))
        if a.hstu:
            out = subprocess.run([a.hstu, "bench", "search", "--items", str(a.items), "--dim", str(a.dim), "--k", str(a.k),
                                  "--queries", str(n), "--device", "cpu", "--dtype", "float32", "--json"], check=True, capture_output=True,
                                 env={**os.environ, "HSTU_THREADS": str(a.threads)}).stdout
            ours.append(json.loads(out.splitlines()[0])["ms"])
    f, h = statistics.median(theirs), statistics.median(ours) if ours else float("nan")
    print(f"{n},{f:.2f},{h:.2f},{f / h:.2f}")
