#!/usr/bin/env python3
"""hstu encode, Hugging Face's own BertModel (eager and compiled) and onnxruntime on the CPU, in one run.

Usage: bench/peers/encode_hf.py [--hstu ./hstu] [--shapes 1x12x128,8x12x128,8x12x128:60] [--heads 12] [--threads N]
                                [--seconds S] [--turns N] [--ways hstu,eager,compile,onnxruntime] [--csv FILE]
A shape is sequences x layers x length, and after a colon the percentage of tokens that are real.  Heads have dimension
64.  All run the same random weights, saved by save_pretrained, on the same tokens; BertModel (sdpa) and onnxruntime get
them padded, with a mask.  The ways take turns; a row has the medians: ms, processor ms (of all threads; compare these
where other programs run, too), and the error of the real tokens' last hidden states against BertModel in float64: root
mean square over that of the values.  hstu's time is that of `hstu bench encode` for the same lengths in total, its error
that of `hstu encode`.  onnxruntime does not spin: waiting would count as processor time.  --csv appends the rows.
"""
import argparse
import copy
import csv
import datetime
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
import warnings

import numpy as np
import torch
import transformers

import encode_torch

N_WORDS, HEAD = 30522, 64


class Outputs(torch.nn.Module):
    """A BertModel whose outputs are tensors, as an exporter needs them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        out = self.model(ids, attention_mask=mask)
        return out.last_hidden_state, out.pooler_output


def shape_of(text, heads):
    size, _, real = text.partition(":")
    b, layers, n = map(int, size.split("x"))
    return argparse.Namespace(text=text, B=b, L=layers, S=n, H=heads, W=HEAD, avg_len=round(n * int(real) / 100) if real else 0)


def bench_hstu(a, s):
    command = [a.hstu, "bench", "encode", *map(str, (s.B, s.L, s.S, s.H, s.W)), "--json", "--device", "cpu", "--seconds", str(a.seconds)]
    command += ["--avg-len", str(s.avg_len)] if s.avg_len else []
    env = os.environ | {"HSTU_THREADS": str(a.threads)}
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)
    return row["ms"], row["cpu_ms"], row["tokens"]


def encode_hstu(a, folder, ids, n):
    """The hidden states (T, E) of `hstu encode`."""
    from safetensors.numpy import load_file

    lines, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.safetensors")
    with open(lines, "w") as f:
        f.writelines(json.dumps({"ids": row[:k].tolist()}) + "\n" for row, k in zip(ids, n))
    subprocess.run([a.hstu, "encode", folder, "--input", lines, "--out", out, "--device", "cpu"], check=True, capture_output=True,
                   env=os.environ | {"HSTU_THREADS": str(a.threads)})
    return load_file(out)["hidden"]


def onnx_session(a, model, folder, ids, mask):
    import onnxruntime

    path = os.path.join(folder, "model.onnx")
    axes = {0: "batch", 1: "length"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Outputs(model).eval(), (ids, mask), path, input_names=["ids", "mask"], output_names=["hidden", "pooled"],
                          dynamic_axes={"ids": axes, "mask": axes}, opset_version=17, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = a.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {"ids": ids.numpy(), "mask": mask.numpy()}
    return lambda: session.run(["hidden", "pooled"], feed)


def timed(f, seconds):
    ms, cpu = [], time.process_time()
    while len(ms) < 3 or sum(ms) < seconds * 1e3:
        start = time.perf_counter()
        f()
        ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(ms), (time.process_time() - cpu) * 1e3 / len(ms)


def rms_error(got, want):
    return float(np.sqrt(np.square(got - want).sum() / np.square(want).sum()))


def measure(a, s, folder):
    """Rows of a shape: way, ms, processor ms, error."""
    torch.manual_seed(1)
    config = transformers.BertConfig(hidden_size=s.H * s.W, num_hidden_layers=s.L, num_attention_heads=s.H, vocab_size=N_WORDS,
                                     intermediate_size=4 * s.H * s.W, max_position_embeddings=max(s.S, 512))
    model = transformers.BertModel(config, add_pooling_layer=True).eval()
    model.save_pretrained(folder)
    n = encode_torch.lengths(s, bench_hstu(argparse.Namespace(**vars(a) | {"seconds": 0.01}), s)[2])
    ids = torch.randint(0, N_WORDS, (s.B, s.S))
    mask = (torch.arange(s.S)[None, :] < n[:, None]).long()
    real = mask.bool().numpy()
    with torch.inference_mode():
        want = copy.deepcopy(model).double()(ids, attention_mask=mask).last_hidden_state.numpy()[real]
    ways, errors, times = {}, {}, {}
    for way in a.ways.split(","):
        if way == "hstu":
            errors[way] = rms_error(encode_hstu(a, folder, ids, n), want)
            continue
        if way == "onnxruntime":
            ways[way] = onnx_session(a, model, folder, ids, mask)
            hidden = ways[way]()[0]
        else:
            f = torch.compile(model) if way == "compile" else model
            ways[way] = lambda f=f: f(ids, attention_mask=mask)
            with torch.inference_mode():
                hidden = ways[way]().last_hidden_state.numpy()
        errors[way] = rms_error(hidden[real], want)
    with torch.inference_mode():
        for _ in range(a.turns):
            for way in errors:
                times.setdefault(way, []).append(bench_hstu(a, s)[:2] if way == "hstu" else timed(ways[way], a.seconds))
    return n.sum().item(), [(way, statistics.median(t[0] for t in times[way]), statistics.median(t[1] for t in times[way]), errors[way])
                            for way in errors]


def append_csv(a, s, tokens, rows):
    is_new = not os.path.exists(a.csv)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with open(a.csv, "a", newline="") as f:
        w = csv.writer(f, lineterminator="\n")
        if is_new:
            w.writerow(["date", "commit", "machine", "threads", "sequences", "layers", "length", "width", "tokens", "way", "ms", "cpu_ms", "error"])
        for way, ms, cpu, error in rows:
            w.writerow([datetime.date.today(), commit, a.machine, a.threads, s.B, s.L, s.S, s.H * s.W, tokens, way,
                        f"{ms:.1f}", f"{cpu:.1f}", f"{error:.1e}"])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hstu", default="./hstu")
    p.add_argument("--shapes", default="1x12x128,8x12x128,8x12x128:60")
    p.add_argument("--heads", type=int, default=12)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--ways", default="hstu,eager,compile,onnxruntime")
    p.add_argument("--csv")
    p.add_argument("--machine", default=platform.machine(), help="for the rows of --csv")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {a.threads} threads, float32; "
          "peer's processor time over hstu's in the last column\n")
    print(f"{'B x layers x n':<16} {'tokens':>7}  {'way':<12} {'ms':>9} {'CPU ms':>9} {'error':>8} {'ratio':>6}")
    for text in a.shapes.split(","):
        s = shape_of(text, a.heads)
        with tempfile.TemporaryDirectory() as folder:
            tokens, rows = measure(a, s, folder)
        ours = next((cpu for way, _, cpu, _ in rows if way == "hstu"), None)
        for way, ms, cpu, error in rows:
            ratio = f"{cpu / ours:6.2f}" if ours and way != "hstu" else ""
            print(f"{text:<16} {tokens:>7}  {way:<12} {ms:>9.1f} {cpu:>9.1f} {error:>8.1e} {ratio:>6}", flush=True)
        if a.csv:
            append_csv(a, s, tokens, rows)


if __name__ == "__main__":
    main()
