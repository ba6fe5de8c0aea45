#!/usr/bin/env python3
"""Number formats on the same model, text and steps: one table of losses.

    scripts/bench/precision.py [--executable FILE] [--only NAME ...] [--work DIR] [--write]

    --executable FILE  llmtrain (build/ci/apps/llmtrain/llmtrain)
    --only NAME ...    these rows (all)
    --work DIR         keeps runs there, and takes those that are there already (a folder for temporary files)
    --write            puts the table into docs/precision.md

The recipe is configs/optimizers/adamw.yaml (1.9 M parameters) with 600 steps and all linear layers in FP8. bf16 runs with three
seeds: the spread of their last evaluations, and one percent, is what the others may be off its mean. Exit code 1 where one is.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "optimizers" / "adamw.yaml"
PAGE = ROOT / "docs" / "precision.md"
STEPS = 600


def fp8(keys):
    return f'precision={{compute: fp8, fp8: {{{keys}, include: ["*"]}}}}'


ROWS = {"bf16, seed 1": ["precision={compute: bf16}", "run.seed=1"],
        "bf16, seed 2": ["precision={compute: bf16}", "run.seed=2"],
        "bf16, seed 3": ["precision={compute: bf16}", "run.seed=3"],
        "fp16": ["precision={compute: fp16}", "run.seed=1"],
        "fp8, current": [fp8("scaling: current"), "run.seed=1"],
        "fp8, delayed": [fp8("scaling: delayed"), "run.seed=1"],
        "fp8, block": [fp8("scaling: block"), "run.seed=1"]}


def run(executable, name, work):
    """Loss of the last evaluation, and over all steps the numbers that did not fit (None but in FP8) and the
    steps that were skipped (None but in FP16)."""
    directory = work / name.replace(", ", "-").replace(" ", "")
    metrics = directory / "metrics.jsonl"
    if not metrics.exists() or "eval/loss" not in metrics.read_text():
        subprocess.run([executable, "run", RECIPE, f"run.output_dir={directory}", "metrics.interval=1",
                        "checkpoint.interval=null", f"training.max_steps={STEPS}", f"eval.interval={STEPS}", *ROWS[name]],
                       check=True, cwd=work, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    saturated = [sum(value for key, value in record.items() if key.startswith("fp8/saturated"))
                 for record in records if "fp8/saturated/input" in record]
    skipped = [record["train/skipped_steps"] for record in records if "train/skipped_steps" in record]
    return ([record["eval/loss"] for record in records if "eval/loss" in record][-1],
            sum(saturated) if saturated else None, skipped[-1] if skipped else None)


def table(results):
    """Markdown, and whether all rows are within their limit."""
    base = [row[0] for name, row in results.items() if name.startswith("bf16")]
    if not base:
        return "", True
    mean, spread = sum(base) / len(base), max(base) - min(base)
    limit = spread + 0.01 * mean
    lines = ["", f"Mean of bf16 {mean:.4f}, spread {spread:.4f}, limit {limit:.4f}.", "",
             "| precision | loss of the last evaluation | beside bf16's mean | numbers that did not fit | skipped steps |",
             "|---|---:|---:|---:|---:|"]
    fine = True
    for name, (loss, saturated, skipped) in results.items():
        fine = fine and abs(loss - mean) <= limit
        counts = ["" if count is None else f"{count:,.0f}" for count in (saturated, skipped)]
        lines.append(f"| {name} | {loss:.4f} | {loss - mean:+.4f} | {counts[0]} | {counts[1]} |")
    return "\n".join(lines) + "\n", fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", default=ROOT / "build/ci/apps/llmtrain/llmtrain", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=ROWS)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or pathlib.Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        results = {}
        for name in options.only or ROWS:
            results[name] = run(options.executable.resolve(), name, work)
            print(f"{name}: {results[name][0]:.4f}", flush=True)
        text, fine = table(results)
        print(text)
        if options.write:
            section = work / "table.md"
            section.write_text(text)
            subprocess.run([sys.executable, ROOT / "scripts/bench/put_section.py", PAGE, "precision", section], check=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
