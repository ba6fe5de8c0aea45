#!/usr/bin/env python3
"""Plans of runs whose speed somebody has published, beside what they published.

    scripts/bench/plan_published.py [--executable FILE] [--write]

    --write       put the table into docs/planner.md

Needs no GPU: times are those of a data sheet (`llmtrain plan --profile h100`).
"""

import argparse
import pathlib
import re
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LONG = ["training.seq_len=131072", "model.max_position_embeddings=131072", "training.global_batch_size=128",
        "parallelism.sp=16"]
AGAIN = ["activation_checkpoint.mode=selective", "activation_checkpoint.ops=[norm,activation]"]
EIGHT = ["parallelism.zero=3", "training.seq_len=8192", "training.micro_batch_size=1", "training.global_batch_size=8", *AGAIN]
# What, recipe and overrides, GPUs, published TFLOP/s per GPU or tokens/s per GPU, by whom.
ROWS = [
    ("Llama 3 405B, 8K tokens", ["llama3-405b"], 16384, "400 TFLOP/s, 41 %", "arXiv 2407.21783, table 4"),
    ("the same, norms and SwiGLU computed again", ["llama3-405b", *AGAIN], 16384, "400 TFLOP/s, 41 %", "the same"),
    ("as the first, gradients sharded", ["llama3-405b", "parallelism.zero=2"], 16384, "400 TFLOP/s, 41 %", "the same"),
    ("Llama 3 405B, 8K tokens, computed again", ["llama3-405b", *AGAIN], 8192, "430 TFLOP/s, 43 %", "the same"),
    ("Llama 3 405B, 131K tokens, computed again", ["llama3-405b", *LONG, *AGAIN], 16384, "380 TFLOP/s, 38 %", "the same"),
    ("Llama 3 8B, ZeRO 3, norms and SwiGLU computed again", ["llama3-8b", "run.device=cuda", *EIGHT], 8, "6,667 tokens/s", "torchtitan, bf16, compiled"),
    ("the same", ["llama3-8b", "run.device=cuda", *EIGHT, "training.global_batch_size=128"], 128, "6,514 tokens/s",
     "the same"),
    ("Qwen3-235B-A22B", ["qwen3-235b-a22b"], 1024, "253 TFLOP/s in FP8 on 256", "Megatron-Bridge"),
]


def number(text, pattern):
    found = re.search(pattern, text)
    return found.group(1) if found else "?"


def plan(executable, arguments, ranks):
    command = [executable, "plan", *arguments, "--ranks", str(ranks), "--profile", "h100"]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: does not fit
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout, time.monotonic() - begin


def rate(text):
    units = {"": 1, "k": 1e3, "M": 1e6}
    value, unit = re.search(r"tokens per second +([\d.]+)([kM]?)", text).groups()
    return float(value) * units[unit]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--executable", type=pathlib.Path, default=ROOT / "build/release/apps/llmtrain/llmtrain")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = ["| run | GPUs | layout | published | planned: TFLOP/s per GPU, MFU | tokens/s per GPU | memory of the fullest GPU | planned in |",
             "|---|---:|---|---|---:|---:|---:|---:|"]
    for name, recipe, ranks, published, source in ROWS:
        text, seconds = plan(arguments.executable.resolve(), recipe, ranks)
        mfu = float(number(text, r"MFU +([\d.]+)%"))
        layout = number(text, r"ranks +\d+ = ([^;]*);").strip()
        fits = re.search(r"(fits|does NOT fit) +([\d.]+ [KMGT]iB)", text)
        lines.append(f"| {name} | {ranks:,} | {layout} | {published} ({source}) | {mfu / 100 * 989.4:.0f}, {mfu:.1f} % "
                     f"| {rate(text) / ranks:,.0f} | {fits.group(2)}{'' if fits.group(1) == 'fits' else ', too much'} "
                     f"| {seconds:.1f} s |")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.write:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as table:
            table.write(text)
            table.flush()
            subprocess.run([ROOT / "scripts/bench/put_section.py", ROOT / "docs/planner.md", "published", table.name], check=True)


if __name__ == "__main__":
    main()
