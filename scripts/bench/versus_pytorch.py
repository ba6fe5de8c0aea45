#!/usr/bin/env python3
"""Whole training steps on the CPU beside PyTorch's, in turn, in one run.

    scripts/bench/versus_pytorch.py [--python FILE] [--executable FILE] [--threads N] [--rounds N] [--steps N]
                                    [--cases MODEL:DTYPE ...] [--preload FILE] [--write]

    --python FILE   an interpreter that has torch (python3)
    --preload FILE  a shared library in LD_PRELOAD of PyTorch alone; the table's head names it
    --rounds N      times that each program has its turn (3); --steps N: steps per turn (3)
    --cases ...     default: gpt2-124m, tiny-gpt and tiny-llama, each :fp32 and :bf16
    --write         put the table into docs/benchmarks.md

PyTorch runs with its fused AdamW, eager and compiled; the faster one of a case counts. MFU is of the
multiply-add peak that `llmtrain bench` measures in pauses of its steps, for both with the same FLOP.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The shapes of torch_step.py.
RECIPES = {
    "gpt2-124m": ("gpt2", 50304, 768, 3072, 12, 12, 4),
    "tiny-gpt": ("gpt2", 320, 384, 1536, 6, 6, 16),
    "tiny-llama": ("llama", 8192, 256, 704, 4, 4, 8),
}
SETTINGS = (["fused"], ["fused", "compile"])


def write_recipe(path, model, dtype, threads):
    architecture, vocab, hidden, inner, layers, heads, batch = RECIPES[model]
    path.write_text(f"""recipe: 1
run: {{threads: {threads}}}
model: {{architecture: {architecture}, vocab_size: {vocab}, hidden_size: {hidden}, intermediate_size: {inner},
        num_hidden_layers: {layers}, num_attention_heads: {heads}, max_position_embeddings: 256}}
tokenizer: {{type: bytes}}
data: {{sources: [{{path: never-read.txt}}]}}
training: {{seq_len: 256, micro_batch_size: {batch}, global_batch_size: {batch}, max_steps: 100}}
optimizer: {{lr: 1.0e-4, weight_decay: 0.1}}
precision: {{compute: {dtype}}}
""")


def our_turn(arguments, recipe):
    command = [arguments.executable, "bench", recipe.name, "--steps", str(arguments.steps), "--json"]
    bench = json.loads(subprocess.run(command, cwd=recipe.parent, check=True, stdout=subprocess.PIPE).stdout)
    return bench


def their_turn(arguments, model, dtype, settings):
    command = [arguments.python, ROOT / "scripts/bench/torch_step.py", model, dtype, str(arguments.threads),
               str(arguments.steps), *settings]
    environment = os.environ | ({"LD_PRELOAD": str(arguments.preload)} if arguments.preload else {})
    result = json.loads(subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE).stdout)
    return statistics.median(result["seconds"]), result["version"]


def measure(arguments, directory, case):
    """A row: medians over the rounds, and the median of the rounds' ratios."""
    model, dtype = case.split(":")
    recipe = directory / f"{model}-{dtype}.yaml"
    write_recipe(recipe, model, dtype, arguments.threads)
    ours, theirs = [], {" ".join(settings): [] for settings in SETTINGS}
    for _ in range(arguments.rounds):
        ours.append(our_turn(arguments, recipe))
        for settings in SETTINGS:
            seconds, version = their_turn(arguments, model, dtype, settings)
            theirs[" ".join(settings)].append(seconds)
    best = min(theirs, key=lambda name: statistics.median(theirs[name]))
    mfu = [bench["mfu"] for bench in ours]
    return {
        "case": case.replace(":", ", "),
        "ours": statistics.median(bench["median_step_seconds"] for bench in ours),
        "theirs": statistics.median(theirs[best]),
        "setting": best,
        "ratio": statistics.median(t / bench["median_step_seconds"] for t, bench in zip(theirs[best], ours)),
        "mfu": statistics.median(mfu),
        "their_mfu": statistics.median(bench["mfu"] * bench["median_step_seconds"] / t
                                       for t, bench in zip(theirs[best], ours)),
        "peak": statistics.median(bench["peak_flops"] for bench in ours),
        "version": version,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--executable", default=ROOT / "build/release/apps/llmtrain/llmtrain", type=pathlib.Path)
    parser.add_argument("--threads", default=2, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--steps", default=3, type=int)
    parser.add_argument("--cases", nargs="+", default=[f"{m}:{d}" for m in RECIPES for d in ("fp32", "bf16")])
    parser.add_argument("--preload", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.preload:
        arguments.preload = arguments.preload.resolve()
        if not arguments.preload.is_file():  # the loader would go on without it
            parser.error(f"--preload {arguments.preload}: no such file")
    arguments.executable = arguments.executable.resolve()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = directory  # what an interrupted run left is not used
        rows = []
        for case in arguments.cases:
            rows.append(measure(arguments, pathlib.Path(directory), case))
            print(f"{case}: {rows[-1]['ratio']:.2f} times as fast", file=sys.stderr, flush=True)
    preloaded = f" with {arguments.preload.name} preloaded" if arguments.preload else ""
    lines = [f"PyTorch {rows[0]['version']}{preloaded}, {arguments.threads} threads, rounds: {arguments.rounds}, of {arguments.steps} steps.",
             "", "| case | ours | PyTorch | setting | times as fast | MFU | PyTorch's MFU | peak |", "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {r['case']} | {1e3 * r['ours']:.0f} ms | {1e3 * r['theirs']:.0f} ms | {r['setting']} | {r['ratio']:.2f} "
              f"| {100 * r['mfu']:.1f} % | {100 * r['their_mfu']:.1f} % | {r['peak'] / 1e9:.0f} GFLOP/s |" for r in rows]
    table = "\n".join(lines) + "\n"
    print(table)
    if arguments.write:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write(table)
            file.flush()
            subprocess.run([sys.executable, ROOT / "scripts/bench/put_section.py", ROOT / "docs/benchmarks.md",
                            "versus-pytorch", file.name], check=True)


if __name__ == "__main__":
    main()
