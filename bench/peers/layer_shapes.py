#!/usr/bin/env python3
"""The best fusion plan of a BERT-base layer beside torch.compile in one run: three shapes, with and without a mask.

Usage: bench/peers/layer_shapes.py --hstu ./hstu [--shapes 1x128,8x512,16x2048] [--masks none,bigbird] [--cache DIR]
                                   [--checks N] [--dtype float16] [--load 16x2048]
For each shape and mask a process compiles the layer (layer_torch.py; under bigbird with FlexAttention too).  When all
have compiled, each is timed, then `hstu tune --search exact` finds the best plan for the same shape and mask, and the
process is timed again; PyTorch's time is the lower of the two.  A JSON line for each; `ratio` is PyTorch's time, of its
better way, over the found plan's.  For the shapes of --load both are also measured without rests, for half a second:
PyTorch's layer, and an encoder of four of ours, of which a quarter counts.  With --cache DIR generated kernels that are
there need not be compiled.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

BIGBIRD = "bigbird,window=32,global=32"


def is_loaded(a, shape):
    return shape in (a.load or "").split(",")


def spawn(a, folder, shape, mask):
    b, s = shape.split("x")
    item = f"{b},{s},{mask}"
    if mask != "none":
        bits = os.path.join(folder, f"bits{s}")
        if not os.path.exists(bits):
            subprocess.run([a.hstu, "mask", "show", BIGBIRD, "--n", s, "--bits", bits], check=True,
                           stdout=subprocess.DEVNULL)
        item += "," + bits
    here = os.path.dirname(os.path.abspath(__file__))
    go = os.path.join(folder, f"go-{shape}-{mask}")
    env = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, os.path.join(here, "layer_torch.py"), "--dtype", a.dtype, "--wait", go, "--turns", "2",
               item] + (["--load"] if is_loaded(a, shape) else [])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    return shape, mask, go, process


def read_times(process):
    """The milliseconds of each way until the end of a turn, rested and under load."""
    ms, loaded = {}, {}
    for line in process.stdout:
        row = json.loads(line)
        if row["peer"] == "turn":
            break
        ms[row["peer"].split()[-1]] = row["ms"]
        loaded[row["peer"].split()[-1]] = row.get("ms_under_load")
    return ms, loaded


def encode(a, shape, mask):
    """Milliseconds of one of our layers under load."""
    b, s = shape.split("x")
    command = [a.hstu, "bench", "encode", b, "4", s, "12", "64", "--device", "cuda", "--dtype", a.dtype, "--seconds",
               ".5", "--json"] + ([] if mask == "none" else ["--mask", BIGBIRD])
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["ms"] / 4


def best_of(ms):
    return min(v for k, v in ms.items() if k != "eager")


def tune(a, shape, mask):
    b, s = shape.split("x")
    command = [a.hstu, "tune", "--search", "exact", "--layer", "bert", "--batch", b, "--length", s, "--device", "cuda",
               "--dtype", a.dtype, "--checks", str(a.checks), "--json"]
    command += ["--mask", "none" if mask == "none" else BIGBIRD] + (["--cache", a.cache] if a.cache else [])
    start = time.time()
    out = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return out, time.time() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hstu", default="./hstu")
    p.add_argument("--shapes", default="1x128,8x512,16x2048")
    p.add_argument("--masks", default="none,bigbird")
    p.add_argument("--cache")
    p.add_argument("--checks", type=int, default=2)
    p.add_argument("--dtype", default="float16")
    p.add_argument("--load")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workers = [spawn(a, folder, s, m) for s in a.shapes.split(",") for m in a.masks.split(",")]
        for *_, process in workers:
            process.stdout.readline()  # ready
        for shape, mask, go, process in workers:
            open(go, "w").close()
            first, _ = read_times(process)
            found, seconds = tune(a, shape, mask)
            open(go + "1", "w").close()
            second, loaded = read_times(process)
            process.wait()
            torch = {k: round(min(first[k], second[k]), 5) for k in first}
            best = best_of(torch)
            row = {"shape": shape, "mask": mask, "dtype": a.dtype, "plan": found["value"],
                   "found_ms": round(found["ms"], 5), "unfused_ms": round(found["unfused_ms"], 5),
                   "built_in_ms": round(found["hand_fused_ms"], 5), "torch_ms": torch,
                   "ratio": round(best / found["ms"], 3),
                   "to_unfused": round(found["unfused_ms"] / found["ms"], 2),
                   "to_built_in": round(found["hand_fused_ms"] / found["ms"], 3),
                   "search_s": round(seconds, 1)}
            if is_loaded(a, shape):
                row["built_in_loaded_ms"] = round(encode(a, shape, mask), 5)
                row["torch_loaded_ms"] = loaded
                row["loaded_ratio"] = round(best_of(loaded) / row["built_in_loaded_ms"], 3)
            print(json.dumps(row), flush=True)


main()
