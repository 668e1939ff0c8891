#!/usr/bin/env python3
"""Attention on power-law graphs beside torch.sparse (cuSPARSE), PyG and gather-and-scatter, in one run.

Usage: HSTU_LIBRARY=.../libhstu.so PYTHONPATH=python bench/peers/graph_shapes.py [--device cuda] [--dtype float32]
           [--edges 10000,100000,1000000,10000000] [--exponents 2.1,2.5] [--ops attention,gat,spmm,sddmm] [--shape HxD] [--turns N]
Graphs: as many edges as told, 1 of 20 as many vertices (50 for 10^6 edges and more, as Reddit), degrees and the popularity of
columns by a power law of the exponent, a hub of 1 % of the edges.  Each op, forward and with its gradients, is first compared
with float64 (gather and scatter, on the rows of the first --checked edges), then timed in turns with its peers; a JSON line
each, then geometric means of the best peer's time over ours.  attention: 4 heads of 32, softmax.  gat: 8 heads of 16, PyG's
GATConv with and without torch.compile, the same Linear before both.  spmm, sddmm: 128 columns, torch.sparse.mm and
sampled_addmm; --shape 1x64 sets heads and dimension of all.  On a CPU torch computes with --threads, and so does the library
with HSTU_THREADS; peers that gather rows are left out above --gathered edges, whose copies need the memory.  gb_per_s: the bytes
of the gathered rows, once a product (backward: three), over our time; with no reuse of caches it is at most the memory's."""
import argparse
import json
import math
import statistics
import sys
import time

import torch

from hstu.graph_attention import Graph, gat, graph_attn, sddmm, spmm


def power_law(n, exponent, g):
    return (torch.rand(n, generator=g, dtype=torch.float64).clamp(min=1e-12) ** (-1 / (exponent - 1))).clamp(max=n)


def make_graph(edges, exponent, seed=1):
    g = torch.Generator().manual_seed(seed)
    n = max(edges // (50 if edges >= 10**6 else 20), 64)
    of_row, of_column = power_law(n, exponent, g), power_law(n, exponent, g)
    row = torch.searchsorted(of_row.cumsum(0) / of_row.sum(), torch.rand(edges, generator=g, dtype=torch.float64)).clamp(max=n - 1)
    column = torch.searchsorted(of_column.cumsum(0) / of_column.sum(), torch.rand(edges, generator=g, dtype=torch.float64)).clamp(max=n - 1)
    row[: edges // 100], column[: edges // 100] = 0, torch.randint(n, (edges // 100,), generator=g)
    keys = torch.unique(row * n + column)
    row, column = keys // n, keys % n
    indptr = torch.zeros(n + 1, dtype=torch.long)
    indptr[1:] = torch.bincount(row, minlength=n).cumsum(0)
    return n, indptr, row, column


def timer(device):
    def run(f):
        if device != "cuda":
            start = time.perf_counter()
            f()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        f()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3
    return run


def scatter_softmax(x, row, n):
    largest = torch.full((n, *x.shape[1:]), -math.inf, dtype=x.dtype, device=x.device)
    largest = largest.scatter_reduce(0, row[:, None].expand_as(x), x.detach(), "amax")
    e = (x - largest[row]).exp()
    return e / torch.zeros_like(largest).index_add(0, row, e)[row]


def both(f, leaves, dout):
    """Forward alone, and with gradients."""
    def forward():
        with torch.no_grad():
            return f()

    def backward():
        return torch.autograd.grad(f(), leaves, dout)
    return forward, backward


def cases(a, n, indptr, row, column, graph):
    """Of each op: name, leaves, ours, its formula on some edges, peers with and without gradients, numbers gathered."""
    device, dtype = a.device, getattr(torch, a.dtype)
    g = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.randn(shape, generator=g).to(device, dtype).requires_grad_()

    def compiled(f):
        return torch.compile(f, dynamic=False)

    edges, gathers = len(column), len(column) <= a.gathered
    r, c, indptr = row.to(device), column.to(device), indptr.to(device)
    index = torch.int32 if device == "cuda" else torch.int64
    pattern = torch.sparse_csr_tensor(indptr.to(index), c.to(index), torch.ones(edges, device=device, dtype=dtype), (n, n))
    heads, dim = map(int, a.shape.split("x")) if a.shape else (4, 32)
    if "attention" in a.ops:
        q, k, v = (draw(n, heads, dim) for _ in range(3))

        def formula(q, k, v, row=r, column=c):
            w = scatter_softmax((q[row] * k[column]).sum(-1) / dim**0.5, row, n)
            return torch.zeros_like(v).index_add(0, row, w[..., None] * v[column])

        def sparse():
            out = []
            for h in range(heads):
                s = torch.sparse.sampled_addmm(pattern, q[:, h].contiguous(), k[:, h].t().contiguous(), beta=0.0, alpha=dim**-0.5)
                w = scatter_softmax(s.values()[:, None], r, n)[:, 0]
                out.append(torch.sparse_csr_tensor(pattern.crow_indices(), pattern.col_indices(), w, (n, n)) @ v[:, h])
            return torch.stack(out, 1)
        peers = {"gather": lambda: formula(q, k, v)} if gathers else {}
        if a.compile and gathers:
            fused = compiled(formula)
            peers["gather_compiled"] = lambda: fused(q, k, v)
        yield ("attention", (q, k, v), lambda: graph_attn(graph, q, k, v), formula, peers, {"sparse": sparse},
               2 * heads * dim * edges)
    heads, dim = (heads, dim) if a.shape else (8, 16)
    if "gat" in a.ops:
        h, left, right = draw(n, heads, dim), draw(n, heads), draw(n, heads)

        def formula(h, left, right, row=r, column=c, signs=None):
            x = left[row] + right[column]
            x = torch.where((x if signs is None else signs) < 0, 0.2 * x, x)
            w = scatter_softmax(x, row, n)
            return torch.zeros_like(h).index_add(0, row, w[..., None] * h[column])
        peers = {"gather": lambda: formula(h, left, right)} if gathers else {}
        try:
            from torch_geometric.nn import GATConv
            conv = GATConv(heads * dim, dim, heads=heads, add_self_loops=False, bias=False).to(device, dtype)
            pairs = torch.stack([c, r])  # from column to row

            class Given(torch.nn.Module):  # the Linear layer is the same for both: left out
                def forward(self, x):
                    return x
            conv.lin = Given()

            def pyg(f):
                return lambda: f(h.reshape(n, heads * dim), pairs).reshape(n, heads, dim)
            peers = {"pyg": pyg(conv), **({"pyg_compiled": pyg(compiled(conv))} if a.compile else {})} if gathers else {}
            ours = lambda: gat(graph, (h * conv.att_dst).sum(-1), (h * conv.att_src).sum(-1), h)  # noqa: E731

            def exact(wide, row=r, column=c):  # an x near 0 that rounds to the other sign has another slope: signs are those of the type
                left, right = ((h * x).sum(-1).detach().float() for x in (conv.att_dst, conv.att_src))
                return formula(wide, (wide * conv.att_dst.to(wide)).sum(-1), (wide * conv.att_src.to(wide)).sum(-1), row, column,
                               left[row] + right[column])
            yield "gat", (h,), ours, exact, peers, {}, heads * dim * edges
        except ImportError:
            if a.compile and gathers:
                fused = compiled(formula)
                peers["gather_compiled"] = lambda: fused(h, left, right)
            yield "gat", (h, left, right), lambda: gat(graph, left, right, h), formula, peers, {}, heads * dim * edges
    width = heads * dim
    values = torch.rand(edges, generator=g).to(device, dtype)
    if "spmm" in a.ops:
        x = draw(n, width)
        matrix = torch.sparse_csr_tensor(indptr.to(index), c.to(index), values, (n, n))

        def formula(x, row=r, column=c):
            return torch.zeros_like(x).index_add(0, row, values[:len(row), None].to(x.dtype) * x[column])
        peers = {"sparse": lambda: matrix @ x, **({"gather": lambda: formula(x)} if gathers and device == "cpu" else {})}
        yield "spmm", (x,), lambda: spmm(graph, x, values), formula, peers, {}, width * edges
        if device == "cpu":  # a GPU's torch.sparse has no other reductions

            def largest(x, row=r, column=c):
                every = values[:len(row), None].to(x.dtype) * x[column]
                found = torch.zeros_like(x).scatter_reduce(0, row[:, None].expand_as(every), every, "amax", include_self=False)
                return found
            yield ("spmm_max", (x,), lambda: spmm(graph, x, values, "max"), largest,
                   {"sparse": lambda: torch.sparse.mm(matrix, x, "amax")}, {}, width * edges)
    if "sddmm" in a.ops:
        q, k = draw(n, width), draw(n, width)

        def formula(q, k, row=r, column=c):
            return (q[row] * k[column]).sum(-1)
        peers = {"gather": lambda: formula(q, k)} if gathers and device == "cpu" else {}
        yield ("sddmm", (q, k), lambda: sddmm(graph, q, k), formula, peers,
               {"sparse": lambda: torch.sparse.sampled_addmm(pattern, q, k.t(), beta=0.0)}, width * edges)


def check(a, name, leaves, ours, exact, indptr, row, column):
    """The largest error of results and gradients, by root mean square, against float64: on the rows of the first edges, which
    alone have gradients."""
    rows = max(int((indptr <= a.checked).sum()) - 1, 1)
    edges, out = int(indptr[rows]), ours()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    n = edges if len(out) == len(column) else rows
    some = dout.clone()
    some[n:] = 0
    got = (out[:n], *torch.autograd.grad(out, leaves, some))
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = exact(*wide, row=row[:edges].to(out.device), column=column[:edges].to(out.device))[:n]
    want = (want, *torch.autograd.grad(want, wide, dout[:n].double()))
    error = max(((x.double() - y).norm() / y.norm().clamp(min=1e-30)).item() for x, y in zip(got, want))
    if not error < (1e-4 if out.dtype == torch.float32 else 2e-2):
        sys.exit(f"graph_shapes.py: {name}: results differ from float64 by {error:.2g} of their size; nothing was timed")
    return error, dout


def timings(a, ways):
    """The median of each way, in turns; None for one that fails."""
    run, found = timer(a.device), {name: [] for name in ways}
    for name, f in list(ways.items()):
        try:
            for _ in range(3):
                f()
        except Exception as e:  # whatever a compiler says
            print(f"{name}: {str(e).splitlines()[0][:150]}", file=sys.stderr, flush=True)
            del ways[name], found[name]
    for _ in range(a.turns):
        for name, f in ways.items():
            found[name].append(run(f))
    return {name: statistics.median(t) for name, t in found.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--edges", default="10000,100000,1000000,10000000")
    p.add_argument("--exponents", default="2.1,2.5")
    p.add_argument("--ops", default="attention,gat,spmm,sddmm")
    p.add_argument("--shape", help="heads x dimension of all ops, as 4x32")
    p.add_argument("--turns", type=int, default=15)
    p.add_argument("--checked", type=int, default=10**6)
    p.add_argument("--gathered", type=int, default=2 * 10**7)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--no-compile", dest="compile", action="store_false")
    a = p.parse_args()
    a.ops, ratios = a.ops.split(","), {}
    torch.set_num_threads(a.threads)
    size = torch.tensor([], dtype=getattr(torch, a.dtype)).element_size()
    for edges in map(int, a.edges.split(",")):
        for exponent in map(float, a.exponents.split(",")):
            n, indptr, row, column = make_graph(edges, exponent)
            start = time.perf_counter()
            graph = Graph(indptr, column, n)
            graph.handle(0 if a.device == "cuda" else -1)
            seconds = time.perf_counter() - start
            for name, leaves, ours, exact, peers, no_gradient, numbers in cases(a, n, indptr, row, column, graph):
                error, dout = check(a, name, leaves, ours, exact, indptr, row, column)
                ways = [{"ours": both(ours, leaves, dout)[i], **{k: both(f, leaves, dout)[i] for k, f in peers.items()}}
                        for i in range(2)]
                ways[0].update({k: both(f, leaves, dout)[0] for k, f in no_gradient.items()})
                for i, which in enumerate(("forward", "both")):
                    t = timings(a, ways[i])
                    best = min((x for k, x in t.items() if k != "ours"), default=math.nan)
                    line = {"op": name, "pass": which, "shape": a.shape, "edges": len(column), "rows": n, "exponent": exponent,
                            "largest_degree": int(indptr.diff().max()), "dtype": a.dtype, "device": a.device, "error": error,
                            "setup_ms": seconds * 1e3, **{k + "_ms": x * 1e3 for k, x in t.items()}, "ratio": best / t["ours"],
                            "gb_per_s": numbers * size * (1 if i == 0 else 3) / t["ours"] / 1e9}
                    if not math.isnan(best):
                        ratios.setdefault((name, which), []).append(best / t["ours"])
                    print(json.dumps({k: float(f"{x:.4g}") if isinstance(x, float) else x for k, x in line.items()}), flush=True)
                torch._dynamo.reset()
    for (name, which), x in ratios.items():
        print(f"{name} {which}: {math.exp(statistics.mean(map(math.log, x))):.2f} times, lowest {min(x):.2f}")
    everything = [y for x in ratios.values() for y in x]
    print(f"all: {math.exp(statistics.mean(map(math.log, everything))):.2f} times, lowest {min(everything):.2f}")


if __name__ == "__main__":
    main()
