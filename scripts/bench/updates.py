#!/usr/bin/env python3
"""What an optimizer's update takes per parameter, beside AdamW's in FP32 and the memory's own speed.

    scripts/bench/updates.py [--executable FILE] [--rounds N] [--steps N] [--threads N] [--write]

    --executable FILE  llmtrain (build/ci/apps/llmtrain/llmtrain)
    --rounds N         goes through all rows so often (5)
    --steps N          steps of a row in each round (5)
    --threads N        compute threads (2)
    --write            puts the table into docs/optimizers.md

The parameters are those of GPT-2 124M, far more than caches hold. `llmtrain bench` times the kernels of each step, and in its pauses how fast
memory is read and written in place. A figure is the median over rounds; beside AdamW stands the median of the rounds' ratios.
Exit code 1 where AdamW in FP32 has less than 85 % of that bandwidth, or AdamW with states of 8 bits takes more than 1.5 times as long.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ["gpt2-124m", "training.seq_len=64", "training.micro_batch_size=1", "training.global_batch_size=1", "run.device=cpu"]
PARAMETERS = 124_439_808
BASE, EIGHT_BITS = "adamw", "adamw_8bit"
# Overrides, and the bytes that one parameter moves: what is read, and what is written.
FP32 = "precision={compute: fp32}"  # the preset computes in bf16
ROWS = {BASE: ([FP32], 28),
        "adamw, states in bf16": ([FP32, "optimizer.state_dtype=bf16"], 20),
        "adamw, compute in bf16": (["precision={compute: bf16}"], 30),
        EIGHT_BITS: ([FP32, "optimizer={name: adamw_8bit}"], 16),
        "lion": ([FP32, "optimizer={name: lion}"], 20),
        "lion_8bit": ([FP32, "optimizer={name: lion_8bit}"], 14)}
UPDATES = ("adam_update", "eight_bit_update", "rule_update")


def measure(options, overrides, work):
    """Seconds of all updates of a step, and bytes per second of memory in place."""
    done = subprocess.run([options.executable.resolve(), "bench", *MODEL, *overrides, f"run.threads={options.threads}",
                           "--steps", str(options.steps), "--json"], cwd=work, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    seconds = [kernel["seconds"] for kernel in told["kernels"] if kernel["name"].startswith(UPDATES)]
    assert seconds, f"no update among {[kernel['name'] for kernel in told['kernels']]}"
    return sum(seconds), told["memory_bytes_per_second"]


def table(rounds):
    """Markdown, the share of bandwidth of BASE and the ratio of EIGHT_BITS."""
    bandwidth = statistics.median(memory for one in rounds for _, memory in one.values())
    lines = [f"Memory in place: {bandwidth / 1e9:.1f} GB/s, median of all steps' pauses.", "",
             "| update | ns a parameter | bytes a parameter | of the memory's speed | beside AdamW in FP32 |",
             "|---|---:|---:|---:|---:|"]
    shares, ratios = {}, {}
    for name, (_, moved) in ROWS.items():
        seconds = statistics.median(one[name][0] for one in rounds)
        shares[name] = statistics.median(moved * PARAMETERS / one[name][0] / one[name][1] for one in rounds)
        ratios[name] = statistics.median(one[name][0] / one[BASE][0] for one in rounds)
        lines.append(f"| {name} | {seconds / PARAMETERS * 1e9:.2f} | {moved} | {shares[name]:.0%} | {ratios[name]:.2f} |")
    return "\n".join(lines) + "\n", shares[BASE], ratios[EIGHT_BITS]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", default=ROOT / "build/ci/apps/llmtrain/llmtrain", type=pathlib.Path)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--steps", default=5, type=int)
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rounds = [{name: measure(options, overrides, work) for name, (overrides, _) in ROWS.items()}
                  for _ in range(options.rounds)]
        text, share, ratio = table(rounds)
        print(text, end="")
        if options.write:
            page = pathlib.Path(work) / "table"
            page.write_text(f"{options.threads} threads, {options.rounds} rounds of {options.steps} steps.\n{text}")
            subprocess.run([sys.executable, ROOT / "scripts/bench/put_section.py", ROOT / "docs/optimizers.md", "updates", page],
                           check=True)
    if share < 0.85 or ratio > 1.5:
        sys.exit(f"updates: AdamW has {share:.0%} of the memory's speed (85 % wanted), with states of 8 bits {ratio:.2f} of "
                 "its time (1.5 at most)")


if __name__ == "__main__":
    main()
