#!/usr/bin/env python3
"""The best fusion plan of a BERT-base layer beside torch.compile in one run: three shapes, with and without a mask.

Usage: bench/peers/layer_shapes.py --hstu ./hstu [--shapes 1x128,8x512,16x2048] [--masks none,bigbird] [--cache DIR]
                                   [--checks N] [--dtype float16]
For each shape and mask a process compiles the layer (layer_torch.py; under bigbird with FlexAttention too).  When all
have compiled, each is timed, then `hstu tune --search exact` finds the best plan for the same shape and mask, and the
process is timed again; PyTorch's time is the lower of the two.  A JSON line for each; `ratio` is PyTorch's time, of its
better way, over the found plan's.  With --cache DIR generated kernels that are there need not be compiled.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

BIGBIRD = "bigbird,window=32,global=32"


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
    process = subprocess.Popen([sys.executable, os.path.join(here, "layer_torch.py"), "--dtype", a.dtype, "--wait", go,
                                "--turns", "2", item], stdout=subprocess.PIPE, text=True, env=env)
    return shape, mask, go, process


def read_times(process):
    """The milliseconds of each way until the end of a turn."""
    ms = {}
    for line in process.stdout:
        row = json.loads(line)
        if row["peer"] == "turn":
            break
        ms[row["peer"].split()[-1]] = row["ms"]
    return ms


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
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workers = [spawn(a, folder, s, m) for s in a.shapes.split(",") for m in a.masks.split(",")]
        for *_, process in workers:
            process.stdout.readline()  # ready
        for shape, mask, go, process in workers:
            open(go, "w").close()
            first = read_times(process)
            found, seconds = tune(a, shape, mask)
            open(go + "1", "w").close()
            second = read_times(process)
            process.wait()
            torch = {k: round(min(first[k], second[k]), 5) for k in first}
            best = min(v for k, v in torch.items() if k != "eager")
            print(json.dumps({"shape": shape, "mask": mask, "dtype": a.dtype, "plan": found["value"],
                              "found_ms": round(found["ms"], 5), "unfused_ms": round(found["unfused_ms"], 5),
                              "built_in_ms": round(found["hand_fused_ms"], 5), "torch_ms": torch,
                              "ratio": round(best / found["ms"], 3),
                              "to_unfused": round(found["unfused_ms"] / found["ms"], 2),
                              "to_built_in": round(found["hand_fused_ms"] / found["ms"], 3),
                              "search_s": round(seconds, 1)}), flush=True)


main()
