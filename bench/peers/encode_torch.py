#!/usr/bin/env python3
"""The PyTorch side of `hstu bench encode`: the same BERT encoder in eager mode and compiled.

Usage: bench/peers/encode_torch.py B L S H W [--avg-len A] [--bits FILE] [--dtype float16] [--device cuda]
                                   [--threads N] [--seconds S] [--hstu ./hstu]
The shape is that of `hstu bench encode B L S H W` (FFN four times as wide, gelu by erf).  Sequences are padded to
the longest one, as PyTorch needs it: with --avg-len the attention gets a mask of key padding, with --bits any mask,
the same for both.  Prints a JSON line for each way: milliseconds (on a GPU by graph replay) and, on the CPU, processor
time.  With --hstu the program runs first, in the same minute, and `ratio` is its time to that of PyTorch (processor
time on the CPU, where other programs may run too); with --alternate N they take turns N times.
"""
import argparse
import json
import math
import os
import struct
import subprocess
import time

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention


class Layer(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)
        self.up, self.down = torch.nn.Linear(dim, 4 * dim), torch.nn.Linear(4 * dim, dim)
        self.norm1, self.norm2 = torch.nn.LayerNorm(dim, eps=1e-12), torch.nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x, mask):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4)
        if mask is None or isinstance(mask, torch.Tensor):
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            a = flex_attention(q, k, v, block_mask=mask)
        a = a.transpose(1, 2).reshape(b, n, e)
        x = self.norm1(x + self.out(a))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        dim = a.H * a.W
        self.words = torch.nn.Embedding(30522, dim)
        self.places = torch.nn.Parameter(torch.randn(a.S, dim) * 0.02)
        self.norm = torch.nn.LayerNorm(dim, eps=1e-12)
        self.layers = torch.nn.ModuleList(Layer(dim, a.H) for _ in range(a.L))
        self.pooler = torch.nn.Linear(dim, dim)

    def forward(self, ids, mask):
        x = self.norm(self.words(ids) + self.places)
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def lengths(a, ours):
    """As many real tokens as hstu has, spread as it spreads them."""
    if not a.avg_len:
        return torch.full((a.B,), a.S)
    reach = min(a.S - a.avg_len, a.avg_len - 1)
    g = torch.Generator().manual_seed(1)
    n = a.avg_len - reach + torch.randint(0, 2 * reach + 1, (a.B,), generator=g)
    while ours and n.sum() != ours:  # the same number of tokens as hstu
        i = torch.randint(0, a.B, (1,), generator=g)
        n[i] = (n[i] + (1 if n.sum() < ours else -1)).clamp(1, a.S)
    return n


def read_bits(path):
    """Tensor `mask` of a safetensors file of bytes."""
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    first, last = json.loads(raw[8:8 + size])["mask"]["data_offsets"]
    return torch.frombuffer(bytearray(raw[8 + size + first:8 + size + last]), dtype=torch.uint8).bool()


def flex_mask(a, n):
    """The same mask for FlexAttention: blocks of 128, made once."""
    from torch.nn.attention.flex_attention import create_block_mask

    bits = read_bits(a.bits).view(a.S, a.S).to(a.device) if a.bits else None
    n = n.to(a.device)

    def sees(b, h, q, k):
        inside = k < n[b]
        return inside & bits[q, k] if bits is not None else inside

    return create_block_mask(sees, a.B if a.avg_len else None, None, a.S, a.S, device=a.device)


def pair_mask(a, n):
    """bool (B or 1, 1, S, S), or None."""
    if a.bits:
        bits = read_bits(a.bits).view(1, 1, a.S, a.S)
    else:
        bits = None
    if a.avg_len:
        keys = (torch.arange(a.S)[None, :] < n[:, None])[:, None, None, :]
        bits = keys.expand(a.B, 1, a.S, a.S) if bits is None else bits & keys
    return None if bits is None else bits.to(a.device).contiguous()


def timed(f, a):
    """Median ms and processor ms of f."""
    is_gpu = a.device != "cpu"
    for _ in range(3):
        f()
    if is_gpu:
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            f()
        f = g.replay
    ms, cpu = [], time.process_time()
    while len(ms) < 3 or sum(ms) < a.seconds * 1e3:
        if is_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        if is_gpu:
            torch.cuda.synchronize()
        ms.append((time.perf_counter() - start) * 1e3)
    return sorted(ms)[len(ms) // 2], (time.process_time() - cpu) * 1e3 / len(ms)


def run_hstu(a):
    command = [a.hstu, "bench", "encode", *(str(x) for x in (a.B, a.L, a.S, a.H, a.W)), "--json", "--device",
               "cpu" if a.device == "cpu" else "cuda", "--dtype", a.dtype, "--seconds", str(a.seconds)]
    if a.avg_len:
        command += ["--avg-len", str(a.avg_len)]
    if a.mask or a.bits:
        command += ["--mask", a.mask or "bits:" + a.bits]
    env = os.environ | {"HSTU_THREADS": str(a.threads)}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def main():
    p = argparse.ArgumentParser()
    for name in "BLSHW":
        p.add_argument(name, type=int)
    p.add_argument("--avg-len", type=int, default=0)
    p.add_argument("--bits", help="the mask for both: safetensors with `mask` (S, S) as bytes")
    p.add_argument("--mask", help="the same mask as a rule, for hstu")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--hstu")
    p.add_argument("--alternate", type=int, default=1)
    p.add_argument("--no-compile", action="store_true")
    a = p.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    dtype = getattr(torch, a.dtype)
    ours = run_hstu(a) if a.hstu else None
    model = Encoder(a).to(a.device, dtype).eval()
    n = lengths(a, ours["tokens"] if ours else 0)
    ids, mask = torch.randint(0, 30522, (a.B, a.S), device=a.device), pair_mask(a, n)
    ways = {"eager": (model, mask)}
    if not a.no_compile:
        ways["compile"] = (torch.compile(model), mask)
    if a.device != "cpu" and mask is not None and not a.no_compile:
        ways["compile+flex"] = (torch.compile(model), flex_mask(a, n))
    with torch.inference_mode():
        for name, (f, mask) in ways.items():
            key, ratios, rows = "cpu_ms" if a.device == "cpu" else "ms", [], []
            for _ in range(a.alternate):
                mine = run_hstu(a) if a.hstu else None
                ms, cpu = timed(lambda: f(ids, mask), a)
                rows.append((ms, cpu, mine))
                if mine:
                    ratios.append((cpu if key == "cpu_ms" else ms) / mine[key])
            rows.sort(key=lambda row: row[1] if key == "cpu_ms" else row[0])
            ms, cpu, mine = rows[len(rows) // 2]
            line = {"peer": f"torch {torch.__version__} {name}", "shape": [a.B, a.L, a.S, a.H, a.W],
                    "dtype": a.dtype, "mask": a.mask or a.bits or "none", "real_tokens": round(n.sum().item() / (a.B * a.S), 3),
                    "ms": round(ms, 3), "cpu_ms": round(cpu, 3)}
            if ratios:
                line |= {"hstu_ms": round(mine["ms"], 3), "hstu_cpu_ms": round(mine["cpu_ms"], 3),
                         "hstu_is_faster_by": round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3),
                         "spread": [round(min(ratios), 3), round(max(ratios), 3)]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
