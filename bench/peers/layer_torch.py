#!/usr/bin/env python3
"""The PyTorch side of `hstu tune --layer bert`: one BERT layer in eager mode and compiled.

Usage: bench/peers/layer_torch.py [--heads 12] [--dtype float16] [--rounds N] [--wait FILE] [--turns N] B,S,MASK[,BITS] ...
The width is 64 times the heads: 12 for BERT base, 16 for large.  MASK is `none` or the name of a mask whose bits (safetensors, `hstu mask show MASK --n S --bits FILE`) are BITS.
Everything is compiled first; with --wait the timing begins when FILE exists, so that another program can be measured
in between; with --turns N everything is timed N times, the later ones when FILE1, FILE2, ... exist.  Prints a JSON line for each shape and way: milliseconds of a layer, timed as hstu times a found plan: a graph of
the layer is replayed for about 2 ms between two events, after the card has rested for 50 ms, since under load it lowers
its clock to keep to its power limit; median of such rounds.  With --load, milliseconds of a replay during half a second
of them, too.
"""
import argparse
import json
import os
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask

from encode_torch import Layer, read_bits

def ways_of(b, s, bits, layer, dtype):
    x = torch.randn(b, s, 64 * layer.heads, device="cuda", dtype=dtype)
    dense = read_bits(bits).view(1, 1, s, s).cuda() if bits else None
    ways = {"eager": lambda: layer(x, dense)}
    compiled = torch.compile(layer, dynamic=False)
    ways["compile"] = lambda: compiled(x, dense)
    if bits:
        table = dense[0, 0]
        block = create_block_mask(lambda b, h, q, k: table[q, k], None, None, s, s, device="cuda")
        flex = torch.compile(layer, dynamic=False)
        ways["compile+flex"] = lambda: flex(x, block)
    return ways


def record(f):
    for _ in range(3):
        f()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        f()
    return g


def between(g, n):
    """Milliseconds of a replay, of n one after the other."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(n):
        g.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n


def rested(g, n):
    time.sleep(0.05)
    between(g, 2)  # the first replay after a rest takes longer, and hstu's rounds do not have it either
    return between(g, n)


def timed(g, rounds):
    between(g, 1)
    once = between(g, 1)
    n = 1 if once > 2 else int(2 / once) + 1
    return sorted(rested(g, n) for _ in range(rounds))[rounds // 2]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("shape", nargs="+")
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--dtype", default="float16")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--wait")
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--load", action="store_true")
    a = p.parse_args()
    torch.manual_seed(1)
    dtype, graphs = getattr(torch, a.dtype), []
    with torch.inference_mode():
        layer = Layer(64 * a.heads, a.heads).to("cuda", dtype).eval()
        for shape in a.shape:
            b, s, mask, *bits = shape.split(",")
            torch._dynamo.reset()
            for name, f in ways_of(int(b), int(s), bits[0] if bits else None, layer, dtype).items():
                start = time.time()
                graphs.append((int(b), int(s), mask, name, f, record(f), time.time() - start))
        print(json.dumps({"peer": "ready"}), flush=True)
        for turn in range(a.turns):
            while a.wait and not os.path.exists(a.wait + (str(turn) if turn else "")):
                time.sleep(0.05)
            for b, s, mask, name, _, g, seconds in graphs:  # _ keeps its tensors
                row = {"peer": f"torch {torch.__version__} {name}", "layer": [b, s, a.heads, 64], "dtype": a.dtype,
                       "mask": mask, "ms": round(timed(g, a.rounds), 5), "compile_s": round(seconds, 1)}
                if a.load:
                    between(g, int(200 / row["ms"]) + 1)
                    row["ms_under_load"] = round(between(g, int(500 / row["ms"]) + 1), 5)
                print(json.dumps(row), flush=True)
            if a.turns > 1:
                print(json.dumps({"peer": "turn"}), flush=True)


main()
