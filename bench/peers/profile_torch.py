"""An attention step of PyTorch, to profile with torch.profiler and with `hstu profile`.

    hstu profile --out ours -- python3 bench/peers/profile_torch.py
    python3 bench/peers/profile_torch.py --torch-profiler --ours ours

Both record the same kernels: 25 training steps of one attention layer (bfloat16), then 25 products of
8192 x 8192 float16 matrices, each between two CUDA events.  The first prints the time of the last 20 products by
events; the second records everything with torch.profiler and prints its kernels beside those of the folder
that the first has left."""
import argparse
import csv

import torch

B, H, S, D, STEPS, PRODUCTS = 8, 16, 2048, 64, 25, 20


def step(layer, x):
    qkv, out = layer
    q, k, v = qkv(x).view(B, S, 3, H, D).permute(2, 0, 3, 1, 4)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = out(y.transpose(1, 2).reshape(B, S, H * D))
    y.square().mean().backward()
    with torch.no_grad():
        for linear in layer:
            linear.weight -= 1e-3 * linear.weight.grad
            linear.weight.grad = None


def between_events(f, n):
    """The times of n calls, in milliseconds."""
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)]
    for start, end in pairs:
        start.record()
        f()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def work():
    torch.manual_seed(1)
    layer = [torch.nn.Linear(H * D, n * H * D, bias=False, device="cuda", dtype=torch.bfloat16) for n in (3, 1)]
    x = torch.randn(B, S, H * D, device="cuda", dtype=torch.bfloat16)
    steps = between_events(lambda: step(layer, x), STEPS)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    between_events(lambda: torch.mm(a, b), 5)
    products = between_events(lambda: torch.mm(a, b), PRODUCTS)
    print(f"events: {sum(steps[5:]) / len(steps[5:]):.4f} ms a step (the last {len(steps[5:])}), "
          f"{sum(products) / PRODUCTS:.4f} ms a product ({PRODUCTS})")


def compare(profiler, folder):
    theirs = {}
    for e in profiler.events():
        if e.device_type == torch.autograd.DeviceType.CUDA and not e.is_user_annotation:
            n, us = theirs.get(e.name, (0, 0.0))
            theirs[e.name] = n + 1, us + e.time_range.elapsed_us()
    ours = {}
    with open(f"{folder}/cuda_gpu_sum.csv") as f:
        for row in csv.DictReader(f):
            ours[row["Operation"]] = int(row["Instances"]), float(row["Total Time (ns)"]) / 1e3
    order = lambda table: sorted(table.items(), key=lambda item: -item[1][1])
    print(f"{'ours: us':>12} {'calls':>6}   {'torch: us':>12} {'calls':>6}  kernel (torch's name)")
    for (_, (n, us)), (name, (m, theirs_us)) in list(zip(order(ours), order(theirs)))[:14]:
        print(f"{us:12.1f} {n:6d}   {theirs_us:12.1f} {m:6d}  {name[:70]}")
    sums = [sum(us for _, us in table.values()) for table in (ours, theirs)]
    calls = [sum(n for n, _ in table.values()) for table in (ours, theirs)]
    print(f"{sums[0]:12.1f} {calls[0]:6d}   {sums[1]:12.1f} {calls[1]:6d}  all: ratio {sums[0] / sums[1]:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch-profiler", action="store_true")
    parser.add_argument("--ours", help="folder of hstu profile, to print beside torch's")
    args = parser.parse_args()
    if not args.torch_profiler:
        work()
    else:
        work()  # without anything recorded
        with torch.profiler.profile() as profiler:
            work()
        print(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=10, max_name_column_width=40))
        if args.ours:
            compare(profiler, args.ours)
