#!/usr/bin/env python3
"""Rows of scripts/gpu_check.sh's table, from what its programs left.

    gpu_table.py losses CPU GPU        metrics.jsonl of two runs in fp32
    gpu_table.py modes|runs DIR LINES  mode_NAME.json, or NAME/metrics.jsonl, of lines NAME <tab> SETTINGS
    gpu_table.py kernels FILE NAME     rates of single kernels
    gpu_table.py step DIR              ours.json
    gpu_table.py other DIR NAME        NAME.json, of other settings, beside ours.json
    gpu_table.py pytorch DIR NAME      NAME.json of torch_step.py beside ours.json

The exit code is 1 where something is missing or wrong.
"""

import json
import pathlib
import statistics
import sys

PROMISED_EQUAL = {"again", "no_graphs", "remainder"}  # to the bit
FARTHEST = 0.1  # nats, of the mean of the last tenth, that other orders of sums and roundings may move
CPU_LIMIT = 1e-4


def row(name, text):
    print(f"{name:<44} {text}")


def report(path):
    """What `bench --json` printed; None where it did not."""
    try:
        text = pathlib.Path(path).read_text()
        return json.loads(text[text.index("{"):])
    except (OSError, ValueError):
        return None


def losses_of(path):
    try:
        with open(path) as lines:
            records = [json.loads(line) for line in lines]
    except OSError:
        return {}
    return {r["step"]: r["train/loss"] for r in records if "train/loss" in r}


def losses(cpu, gpu):
    ours, theirs = losses_of(gpu), losses_of(cpu)
    name = f"fp32 loss, GPU against CPU, {len(theirs)} steps"
    if not theirs or ours.keys() != theirs.keys():
        row(name, f"WRONG: {len(ours)} steps on the GPU")
        return False
    apart = {step: abs(ours[step] - theirs[step]) for step in theirs}
    first = next((step for step in sorted(apart) if not apart[step] <= CPU_LIMIT), None)
    text = f"largest difference {max(apart.values()):.2e}"
    row(name, text if first is None else
        f"WRONG: {text}; step {first} is the first above {CPU_LIMIT:g}: {theirs[first]} and {ours[first]}")
    return first is None


def names_of(lines):
    return [line.split("\t")[0] for line in lines.splitlines()]


def base_of(name):
    return "fp32" if name == "tf32" else "bf16"


def modes(folder, lines):
    seconds, all_there = {}, True
    for name in names_of(lines):
        found = report(pathlib.Path(folder) / f"mode_{name}.json")
        if found is None:
            row(name, f"no result, see mode_{name}.log")
            all_there = False
            continue
        seconds[name] = found["median_step_seconds"]
        beside = seconds.get(base_of(name))
        ratio = f", {seconds[name] / beside:.3f} times as long" if beside else ""
        row(name, f"{1e3 * seconds[name]:.2f} ms a step{ratio}")
    return all_there


def runs(folder, lines):
    ended_well, found = True, {}
    for name in names_of(lines):
        found[name] = list(losses_of(pathlib.Path(folder) / name / "metrics.jsonl").values())
        beside = found[base_of(name)]
        if not found[name] or len(found[name]) != len(beside):
            row(name, f"no result, see run_{name}.log")
            ended_well = False
            continue
        tenth = max(1, len(beside) // 10)
        apart = abs(sum(found[name][-tenth:]) - sum(beside[-tenth:])) / tenth
        same = found[name] == beside
        good = same if name in PROMISED_EQUAL else apart <= FARTHEST
        words = "the same losses to the bit" if same else f"ends {apart:.4f} nats apart"
        row(name, words + ("" if good else ": WRONG"))
        ended_well = ended_well and good
    return ended_well


def kernel_rows(found, count, prefix=""):
    for kernel in found["kernels"][:count]:
        rate = (f"{1e-12 * kernel['flops_per_second']:.0f} TFLOP/s" if "flops_per_second" in kernel
                else f"{1e-12 * kernel['bytes_per_second']:.2f} TB/s")
        share = f", {100 * kernel['of_peak']:.0f} % of peak" if "of_peak" in kernel else ""
        row(prefix + kernel["name"], f"{1e3 * kernel['seconds']:.2f} ms, {kernel['launches']} launches, {rate}{share}")


def kernels(file, name):
    found = report(file)
    if found is None:
        row(name, "no result")
        return False
    if name != "cudnn":  # the others only differ in attention
        found["kernels"] = [k for k in found["kernels"] if k["name"].startswith("attention")]
    kernel_rows(found, 24, f"{name}: ")
    return True


def step(folder):
    found = report(pathlib.Path(folder) / "ours.json")
    if found is None:
        row("ours", "no result, see ours.log")
        return False
    kernel_rows(found, 10)
    rate = rate_of(found)
    text = f"{1e3 * found['median_step_seconds']:.2f} ms a step, {rate:,.0f} tokens/s"
    row("ours", f"{text}, MFU {100 * found.get('mfu', 0):.1f} %, determinism {found['determinism']}")
    if "predicted_step_seconds" in found:
        row("predicted", f"{found['predicted_step_seconds'] / found['median_step_seconds']:.2f} times the measured step")
    return True


def rate_of(found):
    return found["tokens_per_step"] / found["median_step_seconds"]


def other(folder, name):
    ours, found = (report(pathlib.Path(folder) / f"{file}.json") for file in ("ours", name))
    if ours is None or found is None:
        row(name, f"no result, see {name}.log")
        return False
    row(name, f"{rate_of(found):,.0f} tokens/s, MFU {100 * found.get('mfu', 0):.1f} %, "
              f"{found['median_step_seconds'] / ours['median_step_seconds']:.3f} times as long as ours")
    return True


def pytorch(folder, name):
    ours, found = (report(pathlib.Path(folder) / f"{file}.json") for file in ("ours", name))
    if ours is None or found is None:
        row(name, f"no result, see {name}.log")
        return False
    speed = found["tokens"] / statistics.median(found["seconds"])
    row(f"PyTorch {found['version']} {name[6:]}",
        f"{speed:,.0f} tokens/s, ours is {rate_of(ours) / speed:.2f} times as fast")
    return True


if __name__ == "__main__":
    commands = {f.__name__: f for f in (losses, modes, runs, kernels, step, other, pytorch)}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(0 if commands[sys.argv[1]](*sys.argv[2:]) else 1)
