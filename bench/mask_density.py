"""Draws time against density from what `hstu bench masks --curve` prints.

    hstu bench masks --device cuda --curve > curve.txt && python3 bench/mask_density.py curve.txt curve.svg

Two families of masks, forward and backward, by replay: sliding windows (their pairs fill tiles) and pairs
scattered at random (every tile is listed).  Where a family changes from one kernel to another a line marks it:
windows of at least MASK_WIDE_KEYS keys (ops/mask_rule.h) have three row tiles a block, scattered pairs say it in
the table.
"""
import math
import sys

WIDTH, HEIGHT = 760, 430
X0, X1, Y0, Y1 = 64, 620, 370, 40
LOW_X, HIGH_X = 4e-4, 1.0
WIDE_KEYS = 640
STYLE = """<style>.w{stroke:#2563eb;fill:#2563eb}.s{stroke:#c2410c;fill:#c2410c}.line{fill:none;stroke-width:2}
.back{stroke-dasharray:7 3}.ideal{stroke:#888;stroke-dasharray:2 4;fill:none}.grid{stroke:#8884}
.switch{stroke:#16a34a;stroke-width:1.5}text{fill:#444;stroke:none}
@media (prefers-color-scheme:dark){text{fill:#ccc}}</style>"""


def read(path):
    """Rows of the two families: (density, forward ms, backward ms, kernel, name), and the first row's shape."""
    rows, shape = {"w": [], "s": []}, ""
    for line in open(path, encoding="utf-8"):
        f = line.split()
        if len(f) < 14 or not (f[0].startswith("sliding") or f[0] in ("none", "scattered")):
            continue
        shape = shape or f"{f[1]} sequences of {f[2]}"
        rows["s" if f[0] == "scattered" else "w"].append((float(f[3]), float(f[7]), float(f[9]), f[13], f[0]))
    return rows, shape


def is_wide(name):
    return name == "none" or 2 * int(name.split("=")[1]) + 1 >= WIDE_KEYS


def number(v):
    return ("%g" % v).replace("0.", ".", 1) if v < 1 else "%g" % v


def main():
    rows, shape = read(sys.argv[1])
    times = [r[i] for family in rows.values() for r in family for i in (1, 2)]
    steps = [m * 10.0**e for e in range(-3, 3) for m in (1, 2, 5)]
    low = max(s for s in steps if s <= min(times))
    high = min(s for s in steps if s >= max(times))

    def x(d):
        return X0 + (X1 - X0) * math.log(d / LOW_X) / math.log(HIGH_X / LOW_X)

    def y(t):
        return Y0 - (Y0 - Y1) * math.log(t / low) / math.log(high / low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
           "<title>Softmax attention under masks: time against density</title>", STYLE]
    for d in (5e-4, 1e-3, 2e-3, 5e-3, .01, .02, .05, .1, .2, .5, 1):
        out.append(f'<path class="grid" d="M{x(d):.1f} {Y1}V{Y0}"/><text x="{x(d):.1f}" y="{Y0 + 18}" '
                   f'text-anchor="middle">{number(d)}</text>')
    for t in (s for s in steps if low <= s * 1.0001 and s <= high * 1.0001):
        out.append(f'<path class="grid" d="M{X0} {y(t):.1f}H{X1}"/><text x="{X0 - 6}" y="{y(t) + 4:.1f}" '
                   f'text-anchor="end">{number(t)}</text>')
    for name, family in rows.items():
        for i, kind in ((1, ""), (2, " back")):
            points = "L".join(f"{x(r[0]):.1f} {y(r[i]):.1f}" for r in family)
            out.append(f'<path class="line {name}{kind}" style="fill:none" d="M{points}"/>')
            for r in family:
                out.append(f'<circle class="{name}" cx="{x(r[0]):.1f}" cy="{y(r[i]):.1f}" r="3"><title>{r[4]}: density '
                           f'{r[0]:g}, {r[i]:.3f} ms, by {r[3]}</title></circle>')
            label = {"w": "windows", "s": "scattered"}[name] + (", backward" if i == 2 else ", forward")
            last = family[-1]
            out.append(f'<text x="{x(last[0]) + 8:.1f}" y="{y(last[i]) + 4:.1f}">{label}</text>')
    for i in (1, 2):  # a fixed time, that of the sparsest window's memory, and a part proportional to the pairs
        first, last = rows["w"][0], rows["w"][-1]
        rate = (last[i] - first[i]) / (last[0] - first[0])
        fixed = last[i] - rate * last[0]
        shares = [first[0] * (last[0] / first[0]) ** (k / 40) for k in range(41)]
        points = "L".join(f"{x(d):.1f} {y(fixed + rate * d):.1f}" for d in shares)
        out.append(f'<path class="ideal" d="M{points}"/>')
    for i, label, down in ((0, "scattered, forward", 14), (-1, "backward", 32)):
        for before, after in zip(rows["s"], rows["s"][1:]):
            if before[3].split("/")[i] != after[3].split("/")[i]:
                at = x(math.sqrt(before[0] * after[0]))
                out.append(f'<path class="switch" d="M{at:.1f} {Y1}V{Y0}"/><text x="{at - 5:.1f}" y="{Y1 + down}" '
                           f'text-anchor="end">{label}: by rows</text><text x="{at + 5:.1f}" y="{Y1 + down}">by tiles</text>')
    for before, after in zip(rows["w"], rows["w"][1:]):
        if is_wide(before[4]) != is_wide(after[4]):
            at = x(math.sqrt(before[0] * after[0]))
            out.append(f'<path class="switch" stroke-dasharray="3 3" d="M{at:.1f} {Y1 + 60}V{Y0}"/><text x="{at - 5:.1f}" '
                       f'y="{Y0 - 8}" text-anchor="end">windows: one row tile a block</text><text x="{at + 5:.1f}" y="{Y0 - 8}">three</text>')
    out.append(f'<text x="{(X0 + X1) / 2}" y="{Y0 + 40}" text-anchor="middle">share of the pairs attended</text>')
    out.append(f'<text x="{X0}" y="20">ms, {shape}, 12 heads of 64, bfloat16, H200, by replay; dotted: linear in the pairs</text>')
    out.append("</svg>")
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


main()
