#!/usr/bin/env python3
"""The four products of a BERT layer in float16, fp8 (cuBLASLt), int8 and 2:4 sparse float16 (cuSPARSELt), by torch.

What the fastest of them could gain an encoder; microseconds of one product, median of 7 rounds of 20 in a CUDA graph.
Needs a Hopper GPU and torch 2.11.

    python3 bench/peers/encode_products.py > bench/results/h200/encode_products.csv
"""
import torch

SHAPES = (("base 16 x 2048", 32768, 768, 3072), ("large 8 x 512", 4096, 1024, 4096))


def microseconds(f, n=20, rounds=7):
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        f()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(n):
                f()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / n)
    return sorted(times)[rounds // 2]


def products(m, k, n):
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    w = torch.randn(n, k, device="cuda", dtype=torch.float16) * 0.02
    bias, one = torch.zeros(n, device="cuda", dtype=torch.float16), torch.ones((), device="cuda")
    x8, w8 = x.to(torch.float8_e4m3fn), (w * 64).to(torch.float8_e4m3fn)
    xi, wi = (x * 30).clamp(-127, 127).to(torch.int8), (w * 2000).clamp(-127, 127).to(torch.int8)
    kept = torch.tensor([1, 1, 0, 0], device="cuda", dtype=torch.float16).tile(n, k // 4)
    sparse, turned = torch._cslt_compress(w * kept), x.t().contiguous()
    algorithm = torch._cslt_sparse_mm_search(sparse, turned)
    return (microseconds(lambda: torch.nn.functional.linear(x, w, bias)),
            microseconds(lambda: torch._scaled_mm(x8, w8.t(), one, one, out_dtype=torch.float16, use_fast_accum=True)),
            microseconds(lambda: torch._int_mm(xi, wi.t())),
            microseconds(lambda: torch._cslt_sparse_mm(sparse, turned, alg_id=algorithm)))


print("model,product,float16_us,fp8_us,int8_us,sparse_us")
for name, rows, width, wide in SHAPES:
    for what, k, n in (("qkv", width, 3 * width), ("out", width, width), ("up", width, wide), ("down", wide, width)):
        print(name, what, *(f"{t:.1f}" for t in products(rows, k, n)), sep=",", flush=True)
