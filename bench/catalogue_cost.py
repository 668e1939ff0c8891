"""Draws bench/results/*/catalogue_cost.csv: step time, peak memory and evaluation time against the number of items.

    python3 bench/catalogue_cost.py bench/results/cpu/catalogue_cost.csv docs/img/catalogue-cpu.svg

Of several rows for a program and a number of items the last one counts.
"""
import csv
import math
import sys

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, PANEL, GAP = 960, 340, 70, 284, 64, 220, 84
PROGRAMS = (("hstu", "h"), ("torch dense", "d"), ("torch sparse", "s"))
STYLE = """<style>.h{stroke:#2563eb;fill:#2563eb}.d{stroke:#c2410c;fill:#c2410c}.s{stroke:#16a34a;fill:#16a34a}
.line{fill:none;stroke-width:2}.grid{stroke:#8884}text{fill:#444;stroke:none}
@media (prefers-color-scheme:dark){text{fill:#ccc}}</style>"""
POWERS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def short(v):
    if 1e-3 < v < 1e4:
        return "%g" % v
    return "10" + str(round(math.log10(v))).translate(POWERS)


def panel(out, left, title, unit, rows, key):
    points = {name: sorted((float(r["items"]), float(r[key])) for r in rows.values() if r["program"] == name) for name, _ in PROGRAMS}
    values = [v for p in points.values() for _, v in p]
    items = [n for p in points.values() for n, _ in p]
    low, high = (f(math.log10(g(values))) for f, g in ((math.floor, min), (math.ceil, max)))
    first, last = (math.log10(g(items)) for g in (min, max))

    def x(n):
        return left + PANEL * (math.log10(n) - first) / max(last - first, 1e-9)

    def y(v):
        return BOTTOM - (BOTTOM - TOP) * (math.log10(v) - low) / max(high - low, 1)

    out.append(f'<text x="{left}" y="{TOP - 14}">{title}</text>')
    for e in range(math.ceil(first), math.floor(last) + 1):
        out.append(f'<path class="grid" d="M{x(10**e):.1f} {TOP}V{BOTTOM}"/><text x="{x(10**e):.1f}" y="{BOTTOM + 18}" '
                   f'text-anchor="middle">{short(10**e) if e > 3 else 10**e}</text>')
    for e in range(low, high + 1):
        out.append(f'<path class="grid" d="M{left} {y(10**e):.1f}H{left + PANEL}"/><text x="{left - 6}" y="{y(10**e) + 4:.1f}" '
                   f'text-anchor="end">{short(10.0**e)}</text>')
    for name, mark in PROGRAMS:
        if not points[name]:
            continue
        line = "L".join(f"{x(n):.1f} {y(v):.1f}" for n, v in points[name])
        out.append(f'<path class="line {mark}" style="fill:none" d="M{line}"/>')
        for n, v in points[name]:
            out.append(f'<circle class="{mark}" cx="{x(n):.1f}" cy="{y(v):.1f}" r="3"><title>{name}: {n:,.0f} items, {v:g} {unit}</title></circle>')


def main():
    rows = {}
    with open(sys.argv[1], encoding="utf-8") as f:
        for r in csv.DictReader(f):
            rows[r["program"], r["items"]] = r
    one = next(iter(rows.values()))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
           "<title>The cost of a catalogue: step, memory and evaluation against the number of items</title>", STYLE]
    panels = (("Step, ms", "ms", "ms_a_step"), ("Peak memory, MB", "MB", "peak_mb"),
              (f'Evaluation of {one["eval_users"]} users, s', "s", "eval_s"))
    for i, (title, unit, key) in enumerate(panels):
        panel(out, LEFT + i * (PANEL + GAP), title, unit, rows, key)
    x = LEFT
    for name, mark in PROGRAMS:
        if any(r["program"] == name for r in rows.values()):
            out.append(f'<path class="line {mark}" d="M{x} 20h24"/><text x="{x + 30}" y="24">{name}</text>')
            x += 60 + 8 * len(name)
    out.append(f'<text x="{WIDTH - 20}" y="24" text-anchor="end">{one["machine"]}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{BOTTOM + 44}" text-anchor="middle">items of the catalogue; a batch of 64 users</text></svg>')
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


main()
