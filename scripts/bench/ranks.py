#!/usr/bin/env python3
"""Layouts of two ranks beside two runs of one rank that know nothing of each other, in turn, in one run.

    scripts/bench/ranks.py [--executable FILE] [--rounds N] [--steps N] [--cases NAME ...] [--quick] [--python FILE] [--write]

    --rounds N    times that each layout has its turn (3); --steps N: steps per turn of which the first is not counted (4)
    --cases ...   default: all of CASES below
    --quick       predict from a coarser profile
    --python FILE an interpreter that has torch: PyTorch's DDP and FSDP over gloo beside two of its own runs
    --write       put the table into docs/benchmarks.md

GPT-2 124M in fp32, determinism: run, 8 sequences of 256 tokens a step, micro-batches of one, one thread per rank. 100 % is
what the two runs by themselves do together: they share caches and memory, too, but wait for nobody. They run at the beginning
and at the end of each round, and a round's cases are compared with the mean of both. A ratio is the median of the rounds';
a pipeline's is told as a share of what its schedule allows, too: of the time in which its ranks work by the plan, with stages as they
are. Beside the measured time of a step stands the one that
`llmtrain plan` predicts from what two ranks of `llmtrain doctor` measured before.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALONE = "two runs by themselves"
CASES = {
    "dp 2": ["parallelism.dp=2"],
    "dp 2, zero 1": ["parallelism.dp=2", "parallelism.zero=1"],
    "dp 2, zero 3": ["parallelism.dp=2", "parallelism.zero=3"],
    "tp 2": ["parallelism.tp=2"],
    "sp 2": ["parallelism.sp=2"],
    "sp 2, ulysses": ["parallelism.sp=2", "parallelism.sp_algo=ulysses"],
    "pp 2": ["parallelism.pp=2", "parallelism.pp_layers=[9,3]"],
    "pp 2, eager_1f1b": ["parallelism.pp=2", "parallelism.pp_schedule=eager_1f1b",
                         "parallelism.pp_layers=[9,3]"],
    "pp 2, zb_h1": ["parallelism.pp=2", "parallelism.pp_schedule=zb_h1", "parallelism.pp_layers=[9,3]"],
}
TORCH_CASES = {"PyTorch, DDP over gloo": "ddp", "PyTorch, FSDP over gloo": "fsdp"}
RECIPE = """recipe: 1
run: {threads: 1, device: cpu}
model: {architecture: gpt2, vocab_size: 50304, hidden_size: 768, num_hidden_layers: 12, num_attention_heads: 12,
        max_position_embeddings: 256, tie_word_embeddings: true}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 256, micro_batch_size: 1, global_batch_size: 8, max_steps: STEPS}
optimizer: {lr: 1.0e-4, weight_decay: 0.1}
checkpoint: {interval: null}
eval: {interval: null, max_samples: 1}
metrics: {interval: 1, tensorboard: false}
"""
ENVIRONMENT = os.environ | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def step_seconds(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [record["time/step_seconds"] for record in records if "time/step_seconds" in record]
    return statistics.median(seconds[1:])


def turn(arguments, directory, number, overrides, ranks):
    """Seconds of a step of each run: two of one rank side by side, or one of two ranks."""
    names = [f"run-{number}-{i}" for i in range(2 if ranks == 1 else 1)]
    commands = [[arguments.executable, "run", "recipe.yaml", f"run.output_dir={name}", *overrides] for name in names]
    if ranks > 1:
        commands = [["mpirun", "-n", str(ranks), *command] for command in commands]
    processes = [subprocess.Popen(command, cwd=directory, env=ENVIRONMENT, stdout=subprocess.DEVNULL) for command in commands]
    for process in processes:
        if process.wait(timeout=600) != 0:
            raise SystemExit(f"failed: {' '.join(map(str, process.args))}")
    return [step_seconds(directory / name) for name in names]


def torch_seconds(arguments, mode):
    """Seconds of a step of each run: two side by side that know nothing of each other, or one of two ranks."""
    ranks, count = (1, 2) if mode == "alone" else (2, 1)
    command = [arguments.python, ROOT / "scripts/bench/torch_ranks.py", mode, str(ranks), str(arguments.steps - 1)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    results = [json.loads(process.communicate(timeout=600)[0]) for process in processes]
    return [statistics.median(result["seconds"]) for result in results], results[0]["version"]


class Torch:
    """PyTorch's turns, and rows of a table like ours, of shares of PyTorch's own two runs."""

    def __init__(self):
        self.alone, self.rates, self.version = [], {case: [] for case in TORCH_CASES}, ""

    def take_turns(self, arguments):
        seconds, self.version = torch_seconds(arguments, "alone")
        self.alone.append(sum(8 / of_run for of_run in seconds))
        for case, mode in TORCH_CASES.items():
            self.rates[case].append(8 / torch_seconds(arguments, mode)[0][0])

    def lines(self):
        rate = statistics.median(self.alone)
        lines = [f"| PyTorch {self.version}, {ALONE} | {rate:.2f} | 100 % | {16 / rate:.2f} s | | |"]
        for case, of_case in self.rates.items():
            share = statistics.median(rate / of_all for rate, of_all in zip(of_case, self.alone))
            rate = statistics.median(of_case)
            lines.append(f"| {case} | {rate:.2f} | {100 * share:.1f} % | {8 / rate:.2f} s | | |")
        return lines


def prediction(arguments, directory, overrides):
    """Seconds of a step; of a pipeline the share of them in which a rank works, else None."""
    command = [arguments.executable, "plan", "recipe.yaml", "--ranks", "2", "--profile", "profile.json", *overrides]
    text = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    value, unit = re.search(r"predicted step time +([\d.]+) (ms|s)", text).groups()
    idle = re.search(r"^ +pipeline .* idle for ([\d.]+)% of its time", text, re.MULTILINE)
    return float(value) * {"ms": 1e-3, "s": 1}[unit], 1 - float(idle.group(1)) / 100 if idle else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--executable", type=pathlib.Path, default=ROOT / "build/release/apps/llmtrain/llmtrain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--quick", action="store_true", help="a coarser profile")
    parser.add_argument("--python", type=pathlib.Path, help="an interpreter that has torch")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    arguments.executable = arguments.executable.resolve()
    alone, rates, number, predicted, works = [], {case: [] for case in arguments.cases}, 0, {}, {}
    torch = Torch() if arguments.python else None
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        (directory / "recipe.yaml").write_text(RECIPE.replace("STEPS", str(arguments.steps)))
        (directory / "text.txt").write_text("\n".join(f"{i} {i * 7919 % 104729} words of a line" for i in range(2000)))
        turn(arguments, directory, "data", [], 1)  # tokens are prepared, pages are warm
        doctor = ["doctor", "--threads", "1", "--output", "profile.json", *(["--quick"] if arguments.quick else [])]
        subprocess.run(["mpirun", "-n", "2", arguments.executable, *doctor], cwd=directory, env=ENVIRONMENT,
                       stdout=subprocess.DEVNULL, check=True)
        for case in arguments.cases:
            predicted[case], works[case] = prediction(arguments, directory, CASES[case])
        for _ in range(arguments.rounds):
            before = sum(8 / seconds for seconds in turn(arguments, directory, number, [], 1))
            for case in arguments.cases:
                number += 1
                rates[case].append(8 / turn(arguments, directory, number, CASES[case], 2)[0])
            if torch:
                torch.take_turns(arguments)
            number += 1
            after = sum(8 / seconds for seconds in turn(arguments, directory, number, [], 1))
            alone.append((before + after) / 2)
            number += 1
    lines = [f"Rounds: {arguments.rounds}, of {arguments.steps - 1} steps.", "",
             "| two ranks | sequences/s | of two runs by themselves | step | predicted | off |", "|---|---:|---:|---:|---:|---:|"]

    rate = statistics.median(alone)
    lines.append(f"| {ALONE} | {rate:.2f} | 100 % | {16 / rate:.2f} s | | |")  # samples of both
    for case, of_case in rates.items():
        share = statistics.median(rate / of_all for rate, of_all in zip(of_case, alone))
        rate = statistics.median(of_case)
        measured, off = 8 / rate, 100 * (predicted[case] * rate / 8 - 1)
        allowed = works[case]
        of_schedule = f" ({100 * share / allowed:.1f} % of its schedule's {100 * allowed:.1f})" if allowed else ""
        lines.append(f"| {case} | {rate:.2f} | {100 * share:.1f} %{of_schedule} | {measured:.2f} s | {predicted[case]:.2f} s "
                     f"| {off:+.0f} % |")
    if torch:
        lines += torch.lines()
    text = "\n".join(lines) + "\n"
    print(text, end="")
    for case, of_case in rates.items():
        shares = (f"{100 * rate / of_all:.1f} %" for rate, of_all in zip(of_case, alone))
        print(f"round by round, {case}: {', '.join(shares)}")
    if arguments.write:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as table:
            table.write(text)
            table.flush()
            subprocess.run([ROOT / "scripts/bench/put_section.py", ROOT / "docs/benchmarks.md", "ranks", table.name], check=True)


if __name__ == "__main__":
    main()
