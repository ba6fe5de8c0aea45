#!/usr/bin/env python3
"""Rows of scripts/gpu_check.sh's table, from what its programs left.

    gpu_table.py losses CPU GPU        metrics.jsonl of two runs in fp32
    gpu_table.py ranks NAME ONE SEVERAL TEXT
                                       metrics.jsonl of one process and of several in fp64
    gpu_table.py modes|runs DIR LINES  mode_NAME.json, or NAME/metrics.jsonl, of lines NAME <tab> SETTINGS
    gpu_table.py kernels FILE NAME     rates of single kernels
    gpu_table.py torch_attention DIR NAME
                                       NAME_torch.json of torch_attention.py beside NAME_run.json and NAME_fast.json
    gpu_table.py memory FILE NAME BEFORE MOST
                                       the driver's figures beside the plan's; nvidia-smi's in MiB
    gpu_table.py sanitizer TOOL FILE COUNT
                                       lines NUMBER <tab> VERDICT <tab> NAME of that many test cases
    gpu_table.py spread DIR STEPS SEED...
                                       SEED/run/metrics.jsonl, SEED/torch_eager.json, SEED/torch_compile.json
    gpu_table.py step DIR              ours.json
    gpu_table.py other DIR NAME        NAME.json, of other settings, beside ours.json
    gpu_table.py pytorch DIR NAME      NAME.json of torch_step.py beside ours.json

The exit code is 1 where something is missing or wrong.
"""

import json
import math
import pathlib
import statistics
import sys

PROMISED_EQUAL = {"again", "no_graphs", "remainder"}  # to the bit, as are all offload_...
FARTHEST = 0.1  # nats, of the mean of the last tenth, that other orders of sums and roundings may move
CPU_LIMIT = 1e-4
FP64_LIMIT = 1e-9  # of losses and norms, relative
BESIDE_ARENA = 1 << 30  # bytes that a plan leaves to context, code and libraries
WINDOW = 10  # steps whose mean losses are compared
TIMES_SPREAD, LEAST_SPREAD = 2, 0.01  # of PyTorch's own spread; nats
FIRST_STEP = 0.02  # nats, of the same weights and batch


def row(name, text):
    print(f"{name:<44} {text}")


def report(path):
    """What `bench --json` printed; None where it did not."""
    try:
        text = pathlib.Path(path).read_text()
        return json.loads(text[text.index("{"):])
    except (OSError, ValueError):
        return None


def by_step(path, key):
    try:
        with open(path) as lines:
            records = [json.loads(line) for line in lines]
    except OSError:
        return {}
    return {r["step"]: r[key] for r in records if key in r}


def losses_of(path):
    return by_step(path, "train/loss")


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


def numbers_of(path):
    """Losses and norms of all steps, in their order; none where the file is missing."""
    try:
        with open(path) as lines:
            records = [json.loads(line) for line in lines]
    except OSError:
        return []
    keys = ("train/loss", "train/grad_norm", "eval/loss")
    return [record[key] for record in records for key in keys if key in record]


def ranks(name, one, several, text):
    expected, found = numbers_of(one), numbers_of(several)
    if not expected or len(expected) != len(found):
        row(name, f"WRONG: {len(found)} losses and norms, {len(expected)} expected")
        return False
    apart = max(abs(a - b) / abs(a) for a, b in zip(expected, found))
    good = apart <= FP64_LIMIT
    row(name, f"{'' if good else 'WRONG: '}{len(found)} losses and norms at most {apart:.1e} apart; {text}")
    return good


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
        if not seconds:
            formula_row(found)
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
        good = same if name in PROMISED_EQUAL or name.startswith("offload_") else apart <= FARTHEST
        words = "the same losses to the bit" if same else f"ends {apart:.4f} nats apart"
        times = by_step(pathlib.Path(folder) / name / "metrics.jsonl", "time/step_seconds").values()
        words += f", {1e3 * statistics.median(times):.1f} ms a step" if times else ""
        row(name, words + ("" if good else ": WRONG"))
        ended_well = ended_well and good
    return ended_well


def kernel_rows(found, count, prefix=""):
    for kernel in found["kernels"][:count]:
        rate = (f"{1e-12 * kernel['flops_per_second']:.0f} TFLOP/s" if "flops_per_second" in kernel
                else f"{1e-12 * kernel['bytes_per_second']:.2f} TB/s")
        share = f", {100 * kernel['of_peak']:.0f} % of peak" if "of_peak" in kernel else ""
        share += f", {100 * kernel['of_copy']:.0f} % of the copy's" if "of_copy" in kernel else ""
        row(prefix + kernel["name"], f"{1e3 * kernel['seconds']:.2f} ms, {kernel['launches']} launches, {rate}{share}")


def copy_row(found):
    rate, sheet = found["copy_bytes_per_second"], found["memory_bytes_per_second"]
    row("a copy on the device, in this run", f"{1e-12 * rate:.2f} TB/s read and written"
        + (f", {100 * rate / sheet:.0f} % of the data sheet's" if sheet > 0 else ""))


def formula_row(found):
    row("MFU is", found.get("mfu_formula", "not counted: no data sheet of this GPU is known"))


GIB = 1 << 30


def memory(file, name, before, most):
    """By the driver, of all that is on the GPU: cudaMemGetInfo, with the engine there, and nvidia-smi."""
    found = report(file)
    if found is None:
        row(name, f"no result, see memory_{name}.log")
        return False
    planned, arena, reached, used = (found[key] for key in (
        "planned_bytes", "arena_bytes", "reached_bytes", "used_bytes_of_gpu"))
    seen = f"{(int(most) - int(before)) / 1024:.2f} GiB more than before" if before.isdigit() and most.isdigit() else "unknown"
    beside = used - planned
    good = reached == planned == arena and 0 <= beside <= BESIDE_ARENA
    row(f"{name}: memory", f"planned {planned / GIB:.2f} GiB, reached {reached / GIB:.2f} of an arena of {arena / GIB:.2f}, in use by cudaMemGetInfo "
        f"{used / GIB:.2f} ({beside / (1 << 20):.0f} MiB beside the plan, {BESIDE_ARENA >> 20} are left for it), "
        f"by nvidia-smi {seen}" + ("" if good else ": WRONG"))
    return good


def ranges(numbers):
    """"1-4 7"."""
    parts = []
    for n in sorted(numbers):
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


def sanitizer(tool, file, count):
    try:
        lines = [line.split("\t") for line in pathlib.Path(file).read_text().splitlines()]
    except OSError:
        lines = []
    of = {word: [line for line in lines if line[1].startswith(word)] for word in ("passed", "skipped", "FAILED", "HUNG")}
    # Those that the end of the time cut off have checked nothing either.
    left = set(range(1, int(count) + 1)) - {int(line[0]) for word in of.values() for line in word}
    good = bool(of["passed"]) and not of["FAILED"] and not of["HUNG"]
    row(tool, ("" if good else "FAILED: ") + f"{len(of['passed'])} of {count} cases without an error, {len(of['FAILED'])} with one, "
        f"{len(of['HUNG'])} without an end, {len(of['skipped'])} have nothing to check here, {len(left)} not reached")
    row("", f"covered: {ranges(int(line[0]) for line in of['passed'])}; names: {tool}.txt beside this table")
    for number, verdict, name in of["FAILED"] + of["HUNG"]:
        row("", f"{name[:100]}: {verdict[:160]}")
    return good


def windows(values):
    return [statistics.fmean(values[i:i + WINDOW]) for i in range(0, len(values), WINDOW)]


def farthest(a, b):
    return max(abs(x - y) for x, y in zip(windows(a), windows(b)))


def spread(folder, steps, *seeds):
    """Ours against PyTorch's, eager and compiled, and those against each other: mean losses of ten steps."""
    all_runs, apart, theirs = {}, [], []
    for seed in seeds:
        at = pathlib.Path(folder) / seed
        runs_of = {"ours": list(losses_of(at / "run" / "metrics.jsonl").values())}
        for name in ("torch_eager", "torch_compile"):
            runs_of[name] = (report(at / f"{name}.json") or {}).get("losses", [])
        missing = [name for name, values in runs_of.items() if len(values) != int(steps)]
        if missing:
            row(f"seed {seed}", f"no result of {', '.join(missing)}")
            return False
        wild = [name for name, values in runs_of.items() if not all(map(math.isfinite, values))]
        if wild:
            row(f"seed {seed}", f"WRONG: losses of {', '.join(wild)} are not finite")
            return False
        ours, eager, compiled = runs_of.values()
        own = farthest(eager, compiled)
        distances = farthest(ours, eager), farthest(ours, compiled)
        first = abs(ours[0] - eager[0])
        last = ", ".join(f"{name} {windows(values)[-1]:.4f}" for name, values in runs_of.items())
        row(f"seed {seed}", f"begins at {ours[0]:.4f} ({first:.1e} from eager), ends at {last}; farthest apart: "
            f"{distances[0]:.4f} from eager, {distances[1]:.4f} from compiled, these two {own:.4f}")
        if not first <= FIRST_STEP:
            row(f"seed {seed}", "WRONG: the first losses are of other weights or batches")
            return False
        apart.append(max(distances))
        theirs.append(own)
        all_runs[seed] = ours
    limit = max(TIMES_SPREAD * max(theirs), LEAST_SPREAD)
    good = max(apart) <= limit
    row("bf16 losses beside PyTorch's", f"{max(apart):.4f} nats apart at most, {limit:.4f} allowed ({TIMES_SPREAD} times PyTorch's "
        f"own spread, or {LEAST_SPREAD}); two seeds of ours {farthest(*list(all_runs.values())[:2]):.4f}" + ("" if good else ": WRONG"))
    return good


def kernels(file, name):
    found = report(file)
    if found is None:
        row(name, "no result")
        return False
    copy_row(found)
    if name == "cudnn":
        formula_row(found)
    else:  # the others only differ in attention, or are made for norms
        wanted = "norm_" if name.startswith("norms_") else "attention"
        found["kernels"] = [k for k in found["kernels"] if k["name"].startswith(wanted)]
    kernel_rows(found, 24, f"{name}: ")
    return True


def torch_attention(folder, name):
    theirs = report(f"{folder}/{name}_torch.json")
    if theirs is None:
        row(f"{name}_torch", "no result")
        return False
    for direction, rate in theirs["flops_per_second"].items():
        words = f"{1e-12 * rate:.0f} TFLOP/s"
        for way in ("run", "fast"):
            ours = report(f"{folder}/{name}_{way}.json")
            for kernel in ours["kernels"] if ours else []:
                if kernel["name"].startswith(f"attention_{direction}"):
                    words += f", ours in {way} {100 * kernel['flops_per_second'] / rate:.0f} % of it"
        row(f"PyTorch {theirs['torch']}, cuDNN {theirs['cudnn']}, {name} {direction}", words)
    return True


def step(folder):
    found = report(pathlib.Path(folder) / "ours.json")
    if found is None:
        row("ours", "no result, see ours.log")
        return False
    formula_row(found)
    copy_row(found)
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
    if name == "fp8":
        copy_row(found)
        found["kernels"] = [k for k in found["kernels"] if k["name"].startswith(("matmul ", "quantize ", "block_amax "))]
        kernel_rows(found, 12, "fp8: ")
    return True


def pytorch(folder, name):
    ours, found = (report(pathlib.Path(folder) / f"{file}.json") for file in ("ours", name))
    if ours is None or found is None:
        row(name, f"no result, see {name}.log")
        return False
    speed = found["tokens"] / statistics.median(found["seconds"])
    if found["tokens"] != ours["tokens_per_step"]:
        row(name, f"WRONG: {found['tokens']} tokens an update, ours has {ours['tokens_per_step']}")
        return False
    row(f"PyTorch {found['version']} {name[6:]}",
        f"{speed:,.0f} tokens/s, MFU {100 * ours.get('mfu', 0) * speed / rate_of(ours):.1f} %, ours is "
        f"{rate_of(ours) / speed:.2f} times as fast; {found['micro_steps']} micro-batches of {found['micro_batch']} samples")
    return True


if __name__ == "__main__":
    commands = {f.__name__: f for f in (losses, ranks, modes, runs, kernels, torch_attention, memory, sanitizer, spread, step,
                                        other, pytorch)}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(0 if commands[sys.argv[1]](*sys.argv[2:]) else 1)
