#!/usr/bin/env python3
"""Every optimizer on the same model, text and steps: one table and one plot of losses.

    scripts/bench/optimizers.py [--executable FILE] [--only NAME ...] [--work DIR] [--write]

    --executable FILE  llmtrain (build/ci/apps/llmtrain/llmtrain)
    --only NAME ...    these recipes of configs/optimizers/ (all)
    --work DIR         keeps runs there, and takes those that are there already (a folder for temporary files)
    --write            puts the table into docs/optimizers.md and the plot beside it

Recipes are configs/optimizers/NAME.yaml, which differ in their optimizer alone. Distances are those of the last evaluation's
loss to AdamW's. Exit code 1 where one is longer than is allowed: their rates are starting points, and some learn slower.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs" / "optimizers"
BASE = "adamw"
PAGE = ROOT / "docs" / "optimizers.md"
PLOT = ROOT / "docs" / "optimizers.svg"
# Nats per token above AdamW after 300 steps. Seeds lie 0.025 apart.
ALLOWED = {"adamw": 0, "adam": 0.05, "adamw_8bit": 0.05, "amsgrad": 0.05, "galore": 0.1, "q_galore": 0.1, "adam_mini": 0.1, "muon": 0.15,
           "rmsprop": 0.15, "came": 0.2, "ldadamw": 0.25, "adagrad": 0.3, "lion": 0.4, "lion_8bit": 0.4, "adafactor": 0.5, "sm3": 0.8,
           "nesterov": 1.3, "momentum": 1.4, "sgd": 1.6}
WINDOW = 15  # steps of which a point of a curve is the mean


def run(executable, name, work):
    directory = work / name
    metrics = directory / "metrics.jsonl"
    if not metrics.exists() or "eval/loss" not in metrics.read_text():
        subprocess.run([executable, "run", CONFIGS / f"{name}.yaml", f"run.output_dir={directory}", "metrics.interval=1",
                        "checkpoint.interval=null"], check=True, cwd=work, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [record["train/loss"] for record in records if "train/loss" in record]
    return losses, [record["eval/loss"] for record in records if "eval/loss" in record][-1]


def smooth(losses):
    return [sum(losses[max(0, i - WINDOW + 1):i + 1]) / (i + 1 - max(0, i - WINDOW + 1)) for i in range(len(losses))]


def table(results):
    base = results[BASE][1]
    rows = ["", "| optimizer | loss of the last evaluation | beside AdamW | allowed |", "|---|---:|---:|---:|"]
    for name, (_, last) in sorted(results.items(), key=lambda item: item[1][1]):
        rows.append(f"| `{name}` | {last:.3f} | {last - base:+.3f} | {ALLOWED[name]:g} |")
    return "\n".join(rows) + "\n"


def plot(results):
    """Training losses over steps; names stand at the ends, apart from each other."""
    width, height, left, right, top, bottom = 900, 520, 50, 130, 20, 40
    steps = max(len(losses) for losses, _ in results.values())
    low = min(min(smooth(losses)) for losses, _ in results.values())
    high = max(losses[0] for losses, _ in results.values())

    def x(step):
        return left + (width - left - right) * step / (steps - 1)

    def y(loss):
        return top + (height - top - bottom) * (high - min(loss, high)) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for loss in range(int(low) + 1, int(high) + 1):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for step in range(0, steps + 1, 50):
        parts.append(f'<text x="{x(min(step, steps - 1)):.1f}" y="{height - bottom + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{left}" y="{height - 6}">training loss in nats per token, mean of {WINDOW} steps, over steps</text>')
    ends = []
    for i, (name, (losses, _)) in enumerate(sorted(results.items())):
        curve = smooth(losses)
        color = f"hsl({360 * i // len(results)}, 70%, 40%)"
        dash = ' stroke-dasharray="5 3"' if i % 2 else ""
        points = " ".join(f"{x(s):.1f},{y(loss):.1f}" for s, loss in enumerate(curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"{dash}/>')
        ends.append((y(curve[-1]), name, color, x(len(curve) - 1)))
    at = 0.0
    for end, name, color, edge in sorted(ends):
        at = max(end, at + 14)
        parts.append(f'<text x="{edge + 8:.1f}" y="{at + 4:.1f}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", default=ROOT / "build/ci/apps/llmtrain/llmtrain", type=pathlib.Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = options.only or sorted(file.stem for file in CONFIGS.glob("*.yaml"))
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or pathlib.Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        results = {}
        for name in names:
            results[name] = run(options.executable.resolve(), name, work)
            print(f"{name}: {results[name][1]:.4f}", flush=True)
        if BASE not in results:
            return 0
        text = table(results)
        print(text)
        if options.write:
            section = work / "table.md"
            section.write_text(text)
            subprocess.run([sys.executable, ROOT / "scripts/bench/put_section.py", PAGE, "optimizers", section], check=True)
            PLOT.write_text(plot(results))
        return 1 if any(last - results[BASE][1] > ALLOWED[name] for name, (_, last) in results.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
