#!/usr/bin/env python3
"""BERT base and large, three shapes each, beside torch.compile in one run: key padding and bigbird.

Usage: bench/peers/encode_shapes.py --hstu ./hstu [--shapes base:1x128,large:8x512,... | --random N [--seed S]]
                                    [--layers N] [--share .6] [--seconds S] [--turns N] [--cases padding,bigbird]
                                    [--dtype float16] [--any-card]
For each shape a process compiles the layer (torch.compile, and with FlexAttention under bigbird) as one function that
all layers of the model call, and records a whole pass as a CUDA graph.  When all have compiled, one after the other is
timed, in turns with `hstu bench encode` on as many tokens and the same mask.  A JSON line for each shape and mask, then
the geometric means, the lowest ratio and how many are below 1.2.  --random draws N shapes of 1 to 64 sequences of 32 to
2,048 tokens, at most 32,768 tokens (base) or 16,384 (large).  `ratio` is PyTorch's time, of its better way, over ours.
--any-card also times the kernels for every card on this one (HSTU_CUDA_SM=80): any_card_ms.  With
TORCHINDUCTOR_CACHE_DIR set, what was compiled before is taken from there.
"""
import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

WIDTHS = {"base": (12, 12), "large": (24, 16)}  # layers, heads of 64
SHAPES = "base:1x128,base:8x512,base:16x2048,large:1x128,large:8x512,large:16x2048"
BIGBIRD = "bigbird,window=32,global=32"


def shape_of(text, a):
    model, size = text.split(":")
    b, s = map(int, size.split("x"))
    layers, heads = WIDTHS[model]
    return argparse.Namespace(B=b, S=s, L=a.layers or layers, H=heads, W=64, device="cuda", name=text)


def draw(n, seed):
    rng, shapes = random.Random(seed), []
    while len(shapes) < n:
        model, most = rng.choice((("base", 32768), ("large", 16384)))
        b, s = (round(math.exp(rng.uniform(math.log(low), math.log(high)))) for low, high in ((1, 64), (32, 2048)))
        if b * s <= most:
            shapes.append(f"{model}:{b}x{s}")
    return ",".join(shapes)


def ours(a, shape, case, env=None):
    command = [a.hstu, "bench", "encode", *(str(x) for x in (shape.B, shape.L, shape.S, shape.H, shape.W)), "--json",
               "--device", "cuda", "--dtype", a.dtype, "--seconds", str(a.seconds)]
    command += ["--avg-len", str(round(a.share * shape.S))] if case == "padding" else ["--mask", BIGBIRD]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | (env or {})).stdout
    return json.loads(out)


def any_card(a, shape, case):
    try:
        return ours(a, shape, case, {"HSTU_CUDA_SM": "80"})
    except subprocess.CalledProcessError as e:
        print(f"{a.worker} {case}, kernels for every card: {e.stderr.strip()}", file=sys.stderr, flush=True)
        return None


def worker(a):
    import torch
    import encode_torch as peer

    torch.manual_seed(1)
    shape = shape_of(a.worker, a)
    model = peer.Encoder(shape).to("cuda", getattr(torch, a.dtype)).eval()
    ids = torch.randint(0, 30522, (shape.B, shape.S), device="cuda")
    graphs = {}

    def forward(layer, mask):
        x = model.norm(model.words(ids) + model.places)
        for one in model.layers:
            x = layer(one, x, mask)
        return x, torch.tanh(model.pooler(x[:, 0]))

    def record(case, name, mask):
        torch._dynamo.reset()
        start = time.time()
        layer = torch.compile(lambda one, x, m: one(x, m), dynamic=False)
        for _ in range(3):
            forward(layer, mask)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = forward(layer, mask)
        graphs.setdefault(case, {})[name] = (graph, out, mask)
        print(f"{a.worker} {case} {name}: {time.time() - start:.1f} s", file=sys.stderr, flush=True)

    def timed(graph):
        ms = []
        graph.replay()
        while len(ms) < 5 or sum(ms) < a.seconds * 1e3:
            torch.cuda.synchronize()
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            ms.append((time.perf_counter() - start) * 1e3)
        return statistics.median(ms)

    with torch.inference_mode():
        cases = a.cases.split(",")
        if "padding" in cases:
            shape.bits, shape.avg_len = None, round(a.share * shape.S)
            n = peer.lengths(shape, shape.B * shape.avg_len)
            record("padding", "compile", peer.pair_mask(shape, n))
        if "bigbird" in cases:
            shape.bits, shape.avg_len = a.bits, 0
            record("bigbird", "compile", peer.pair_mask(shape, torch.full((shape.B,), shape.S)))
            record("bigbird", "compile+flex", peer.flex_mask(shape, torch.full((shape.B,), shape.S)))
        print("ready", flush=True)
        if not sys.stdin.readline():  # compiled only, to fill the cache
            return
        for case, ways in graphs.items():
            mine, theirs = [], {name: [] for name in ways}
            for _ in range(a.turns):
                mine.append(ours(a, shape, case))
                for name, (graph, *_) in ways.items():
                    theirs[name].append(timed(graph))
            best = {name: statistics.median(ms) for name, ms in theirs.items()}
            older = any_card(a, shape, case) if a.any_card else None
            row = statistics.median(r["ms"] for r in mine)
            print(json.dumps({"shape": a.worker, "layers": shape.L, "mask": case, "dtype": a.dtype,
                              "real_tokens": round(mine[0]["real_tokens"], 3), "hstu_ms": round(row, 4),
                              "hstu_spread": [round(f(r["ms"] for r in mine), 4) for f in (min, max)],
                              "check_error": mine[0]["check_error"],
                              **{name + "_ms": round(ms, 4) for name, ms in best.items()},
                              **({"any_card_ms": round(older["ms"], 4)} if older else {}),
                              "ratio": round(min(best.values()) / row, 3)}), flush=True)
        print("done", flush=True)


def spawn(a, shape, folder):
    bits = os.path.join(folder, f"bits{shape.S}")
    if not os.path.exists(bits):
        subprocess.run([a.hstu, "mask", "show", BIGBIRD, "--n", str(shape.S), "--bits", bits], check=True,
                       stdout=subprocess.DEVNULL)
    command = [sys.executable, __file__, "--worker", shape.name, "--bits", bits, "--hstu", a.hstu, "--dtype", a.dtype,
               "--layers", str(a.layers), "--share", str(a.share), "--seconds", str(a.seconds), "--turns", str(a.turns),
               "--cases", a.cases] + (["--any-card"] if a.any_card else [])
    env = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, shape.name)} | os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hstu", default="./hstu")
    p.add_argument("--shapes", default=SHAPES)
    p.add_argument("--random", type=int, default=0, metavar="N")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--share", type=float, default=0.6)
    p.add_argument("--seconds", type=float, default=0.3)
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--cases", default="padding,bigbird")
    p.add_argument("--dtype", default="float16")
    p.add_argument("--any-card", action="store_true")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--bits", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker:
        worker(a)
        return
    if a.random:
        a.shapes = draw(a.random, a.seed)
    with tempfile.TemporaryDirectory() as folder:
        workers = [spawn(a, shape_of(text, a), folder) for text in a.shapes.split(",")]
        rows, live = [], []
        for w in workers:
            if w.stdout.readline().strip() == "ready":
                live.append(w)
        for w in live:
            w.stdin.write("go\n")
            w.stdin.flush()
            for line in w.stdout:
                if line.strip() == "done":
                    break
                print(line, end="", flush=True)
                rows.append(json.loads(line))
        for w in workers:
            w.stdin.close()
            w.wait()
    for case in a.cases.split(","):
        ratios = [r["ratio"] for r in rows if r["mask"] == case]
        if ratios:
            print(json.dumps({"mask": case, "shapes": len(ratios), "lowest": min(ratios),
                              "below_1.2": sum(r < 1.2 for r in ratios),
                              "geometric_mean": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3)}))
    if len(rows) < len(workers) * len(a.cases.split(",")):
        sys.exit("some shapes are missing")


main()
