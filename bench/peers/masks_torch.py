"""The PyTorch side of `hstu bench masks`: FlexAttention (compiled) and SDPA with the same mask, for causal
also SDPA's flash and cuDNN kernels, which take no mask tensor, in the same layout of numbers (B sequences
of n tokens, 12 heads of 64, bfloat16).

    python3 bench/peers/masks_torch.py [--bits DIR] [--length N] [--cells BxN,...] [--backward [BxN,...]]
        [--hstu ./hstu]

DIR holds masks as `hstu mask show KIND --n N --bits DIR/NAME-N.safetensors` writes them (NAME: sliding,
longformer, bigbird); without DIR the masks are computed here, and bigbird's random blocks are others
than ours, of the same number and density.  Prints one line of JSON a row: ms by replay of a CUDA graph
of 20 calls, and by plain calls.  With --hstu the program measures the same cells in the same run, cell by
cell, its masks are the peers' masks, and a table of ratios (peer's time / ours) follows.  --backward
measures both passes too, in all cells or in those named.  The shapes are
compiled one by one (dynamic=False, everything forgotten after each cell): a kernel compiled for every shape
would be slower.
"""
import argparse
import json
import math
import os
import struct
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

H, D = 12, 64
CELLS = [(1, 128), (8, 512), (8, 1024), (16, 2048), (16, 4096)]
MASKS = {"causal": "causal", "sliding": "sliding,window=64,causal", "longformer": "longformer,window=32,global=32",
         "bigbird": "bigbird,window=32,global=32"}


def read_bits(path, n):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        begin, end = header["mask"]["data_offsets"]
        data = f.read()[begin:end]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(n, n).bool().cuda()


def dense(kind, n, folder):
    path = os.path.join(folder, f"{kind}-{n}.safetensors") if folder else ""
    if path and os.path.exists(path):
        return read_bits(path, n)
    i = torch.arange(n, device="cuda")[:, None]
    j = torch.arange(n, device="cuda")[None, :]
    if kind == "causal":
        return j <= i
    if kind == "sliding":
        return ((i - j) <= 64) & (j <= i)
    near = (i - j).abs() <= 32
    if kind == "longformer":
        h = n // 2
        band_i, band_j = (i >= h) & (i < h + 32), (j >= h) & (j < h + 32)
        return near | (i < 32) | (j < 32) | band_i | band_j
    mask = near | (i < 32) | (j < 32)
    generator = torch.Generator().manual_seed(0)
    blocks = (n + 31) // 32
    for b in range(blocks):
        column = min(max(b + int(torch.randint(3, (1,), generator=generator)) - 1, 0), blocks - 1)
        pairs = torch.randperm(1024, generator=generator)[:102].cuda()
        rows, columns = b * 32 + pairs // 32, column * 32 + pairs % 32
        keep = (rows < n) & (columns < n)
        mask[rows[keep], columns[keep]] = True
    return mask


def plain_ms(f, n=30):
    for _ in range(3):
        f()
    times = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[n // 2]


def replay_ms(f, calls=20, n=20):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            f()
    graph.replay()
    times = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) / calls)
    return sorted(times)[n // 2]


def exact(q, k, v, mask):
    """Head 0 of sequence 0 in float64."""
    s = (q[0, 0].double() @ k[0, 0].double().T) / math.sqrt(D)
    return torch.softmax(s.masked_fill(~mask, -math.inf), -1) @ v[0, 0].double()


def write_bits(program, folder, lengths):
    for n in lengths:
        for kind, text in MASKS.items():
            subprocess.run([program, "mask", "show", text, "--n", str(n), "--bits", f"{folder}/{kind}-{n}.safetensors"],
                           check=True, stdout=subprocess.DEVNULL)


def ours(program, b, n):
    """Rows of `hstu bench masks`, by mask."""
    out = subprocess.run([program, "bench", "masks", "--device", "cuda", "--json", "--sequences", str(b), "--length", str(n)],
                         check=True, capture_output=True, text=True).stdout
    return {row["mask"]: row for row in map(json.loads, out.splitlines())}


def causal_by(backend, q, k, v):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cells_of(text):
    return [tuple(map(int, c.split("x"))) for c in text.split(",") if c]


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


PEERS = ("flex", "sdpa", "flash", "cudnn")


def print_table(rows):
    print(f"{'mask':10} {'B':>3} {'n':>5} | forward, replayed {'ours':>7} " + " ".join(f"{p:>7}" for p in PEERS)
          + f" {'best/ours':>9} {'flex/ours':>9} | both passes, plain {'ours':>7} {'flex':>7} {'flex/ours':>9}")
    forward, both = [], []
    for r in rows:
        ours_ms, ours_both = r["hstu_replay_ms"], r["hstu_fwd_bwd_ms"]
        peers = [r.get(p + "_replay_ms", math.nan) for p in PEERS]
        ratio = min(ms for ms in peers if not math.isnan(ms)) / ours_ms
        second = r.get("flex_fwd_bwd_ms", math.nan) / ours_both
        if r["mask"] != "causal":
            forward.append(ratio)
        if not math.isnan(second):
            both.append(second)
        print(f"{r['mask']:10} {r['sequences']:3} {r['length']:5} | {'':17} {ours_ms:7.4f} "
              + " ".join(f"{ms:7.4f}" for ms in peers) + f" {ratio:9.2f} {peers[0] / ours_ms:9.2f} | {'':18} "
              f"{ours_both:7.4f} {r.get('flex_fwd_bwd_ms', math.nan):7.4f} {second:9.2f}")
    print(f"sparse cells, forward: geometric mean {mean(forward):.2f}, least {min(forward, default=math.nan):.2f}; "
          f"both passes: geometric mean {mean(both):.2f}, least {min(both, default=math.nan):.2f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bits", default="")
    p.add_argument("--length", type=int, default=0)
    p.add_argument("--cells", default="")
    p.add_argument("--backward", nargs="?", const="all", default="")
    p.add_argument("--hstu", default="")
    args = p.parse_args()
    cells = cells_of(args.cells) or CELLS
    both_cells = cells if args.backward == "all" else cells_of(args.backward)
    cells = [c for c in cells if not args.length or c[1] == args.length]
    folder = tempfile.TemporaryDirectory()
    if args.hstu and not args.bits:
        args.bits = folder.name
        write_bits(args.hstu, args.bits, {n for _, n in cells})
    rows = []
    for b, n in cells:
        own = ours(args.hstu, b, n) if args.hstu else {}
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 64
        compiled = torch.compile(flex_attention, dynamic=False)
        for kind in MASKS:
            mask = dense(kind, n, args.bits)
            q, k, v = (torch.randn(b, H, n, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
            block = create_block_mask(lambda _b, _h, i, j: mask[i, j], None, None, n, n, device="cuda")
            runs = {
                "flex": lambda: compiled(q, k, v, block_mask=block),
                "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            }
            if kind == "causal":
                runs["flash"] = lambda: causal_by(SDPBackend.FLASH_ATTENTION, q, k, v)
                runs["cudnn"] = lambda: causal_by(SDPBackend.CUDNN_ATTENTION, q, k, v)
            row = {"peer": "torch " + torch.__version__, "mask": kind, "sequences": b, "length": n,
                   "density": round(mask.float().mean().item(), 4)}
            want = exact(q, k, v, mask)
            with torch.no_grad():
                for name, f in runs.items():
                    try:
                        got = f()[0, 0].double()
                    except RuntimeError as e:  # this PyTorch has no such kernel
                        row[name + "_refused"] = str(e)[:80]
                        continue
                    row[name + "_error"] = float(f"{((got - want).norm() / want.norm()).item():.2e}")
                    row[name + "_ms"] = round(plain_ms(f), 4)
                    row[name + "_replay_ms"] = round(replay_ms(f), 4)
            if (b, n) in both_cells:
                for x in (q, k, v):
                    x.requires_grad_(True)
                dout = torch.randn_like(q)

                def both():
                    torch.autograd.grad(compiled(q, k, v, block_mask=block), (q, k, v), dout)

                row["flex_fwd_bwd_ms"] = round(plain_ms(both), 4)
            if own:
                mine = own[MASKS[kind]]
                row["hstu_replay_ms"], row["hstu_error"] = round(mine["fwd_replay_ms"], 4), mine["error"]
                row["hstu_fwd_bwd_ms"] = round(mine["fwd_ms"] + mine["bwd_ms"], 4)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.hstu:
        print_table(rows)


main()
