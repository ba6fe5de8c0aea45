#!/usr/bin/env python3
"""One run that something happens to every so often: how much of the time goes into training all the same.

    scripts/soak.py [--executable FILE] [--minutes N] [--every SECONDS] [--ranks N] [--seed N] [--write]

    --minutes N      how long (30)
    --every SECONDS  a fault at a random time between half and one and a half of it after the last one (20)
    --ranks N        of mpirun, one thread each (2)
    --write          put the table into docs/reliability.md

Faults: a rank is killed, or all; a rank is stopped (SIGSTOP), so that the others miss it; SIGUSR1 to the launcher, which
hands it on, so that all save and end; a byte of the newest checkpoint is turned over while the run is down; the newest checkpoint is cut off. Whatever ends
the run, it is started again at once, as a batch script would, and goes on from its checkpoints.

Effective training time is that of the steps that count, at the pace of the same run that nothing happens to (measured right
before and after, with its saves), as a share of the whole. Steps that were made twice, starts, and the time until a fault is
noticed are what it lacks. The run that nothing happens to is then trained to the same step, which takes as long again but may
share the machine: all losses and the last checkpoint's files must be the same to the bit. Memory and open files of the
disturbed run's processes must not grow while they live, nor from one start to the next.
Exit code 1 if something does not hold.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPE = """recipe: 1
run: {device: cpu, threads: 1, seed: 7}
model: {architecture: llama, vocab_size: 257, hidden_size: 192, intermediate_size: 512, num_hidden_layers: 4,
        num_attention_heads: 6, max_position_embeddings: 128}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 128, micro_batch_size: 4, global_batch_size: 8, max_steps: 100000000}
optimizer: {lr: 1.0e-4}
lr_scheduler: {type: constant, warmup: 0}
checkpoint: {interval: 4, keep_latest: 3, async: true}
resilience: {hang_timeout: 1s}
eval: {interval: null, max_samples: 1}
metrics: {interval: 1, tensorboard: false}
"""
ENVIRONMENT = os.environ | {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_odls_base_sigkill_timeout": "0"}  # mpirun itself would wait a second or two before it kills the others
STEP = re.compile(r"step-(\d+)$")
ANONYMOUS = re.compile(r"RssAnon:\s+(\d+) kB")


class Run:
    """`llmtrain run` in `folder`, started again whenever it has ended."""

    def __init__(self, executable, folder, name, ranks, *more):
        self.command = [executable, "run", "recipe.yaml", f"run.output_dir={name}", f"parallelism.dp={ranks}", *more]
        if ranks > 1:
            self.command = ["mpirun", "-n", str(ranks), *self.command]
        self.folder, self.name, self.ranks = folder, name, ranks
        self.process, self.starts, self.codes = None, 0, []
        self.lives = []  # of each process: [(seconds since its start, bytes, open files)]

    @property
    def directory(self):
        return self.folder / self.name

    def start(self):
        self.log = open(self.folder / f"{self.name}.log", "ab")
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=ENVIRONMENT, stdout=self.log, stderr=self.log)
        self.begin, self.starts = time.monotonic(), self.starts + 1
        self.samples = {}

    def pids(self):
        """Of the ranks, in the order of their start."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if entry.name.isdigit() and os.readlink(entry / "cwd") == str(self.folder):
                    if words[0].endswith(b"llmtrain") and f"run.output_dir={self.name}".encode() in words:
                        found.append(int(entry.name))
            except OSError:
                pass  # it has ended
        return sorted(found)

    def look(self):
        """Notes memory and open files of each process; the exit code once it has ended."""
        for pid in self.pids():
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                if "State:\tT" in status:
                    continue  # stopped, perhaps within a save, whose memory and file it has as long as it is
                memory = int(ANONYMOUS.search(status)[1]) << 10  # what is read of files is the system's
                files = len(os.listdir(f"/proc/{pid}/fd"))
            except (OSError, TypeError):
                continue  # it ends
            self.samples.setdefault(pid, []).append((time.monotonic() - self.begin, memory, files))
        code = self.process.poll()
        if code is not None:
            self.codes.append(code)
            self.lives += self.samples.values()
        return code

    def wait(self, seconds):
        """So long, or until it has ended: who waits for it learns that at once."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def stop(self):
        self.process.send_signal(signal.SIGUSR1)
        self.process.wait()
        self.look()

    def records(self):
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                pass  # being written
        return [record for record in found if "train/loss" in record]


def newest_checkpoint(run):
    steps = [path for path in (run.directory / "checkpoints").glob("step-*") if STEP.search(path.name)]
    return max(steps, default=None)


def spoil(run, how):
    """While the run is down: its newest checkpoint is no longer what was written."""
    checkpoint = newest_checkpoint(run)
    if checkpoint is None:
        return
    file = max(checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    with open(file, "r+b") as opened:
        size = os.fstat(opened.fileno()).st_size
        if how == "cut":
            opened.truncate(size // 2)
        else:
            opened.seek(size // 2)
            byte = opened.read(1)
            opened.seek(size // 2)
            opened.write(bytes([byte[0] ^ 1]))


def let_happen(run, fault, chance):
    """Does it; whether the checkpoint is to be spoiled before the next start."""
    pids = run.pids()
    if not pids:
        return None
    if fault == "a rank is killed":
        os.kill(chance.choice(pids), signal.SIGKILL)
    elif fault == "a rank is stopped":
        os.kill(chance.choice(pids), signal.SIGSTOP)
    elif fault == "SIGUSR1":
        run.process.send_signal(signal.SIGUSR1)
    else:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    return {"a byte is turned over": "flip", "a checkpoint is cut off": "cut"}.get(fault)


def pace(run, seconds):
    """Steps a second of a run that nothing happens to."""
    run.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and run.look() is None:
        time.sleep(0.2)
    first, *_, last = run.records()[10:]  # what saves hold up is in the time between them, and in no step's
    return (last["step"] - first["step"]) / (last["time/elapsed_seconds"] - first["time/elapsed_seconds"])


def differences(disturbed, whole):
    """Of two runs that have ended at the same step: what is not the same, or "" ."""
    losses = [[(record["step"], record["train/loss"]) for record in run.records()] for run in (disturbed, whole)]
    if losses[0] != losses[1]:
        unlike = next((i for i, (a, b) in enumerate(zip(*losses)) if a != b), min(map(len, losses)))
        return f"losses from the {unlike + 1}th on"
    directories = [newest_checkpoint(run) for run in (disturbed, whole)]
    files = [sorted(path.name for path in directory.glob("*.safetensors")) for directory in directories]
    if directories[0].name != directories[1].name or files[0] != files[1] or not files[0]:
        return f"checkpoints: {directories[0].name} and {directories[1].name}"
    unlike = [name for name in files[0] if len({(directory / name).read_bytes() for directory in directories}) > 1]
    return " ".join(unlike)


def growth(lives):
    """Within a life, the largest growth of memory (as a share) and of open files between its halves; and both between the
    first and the last third of all lives. Of both what is taken whatever is being saved."""
    memory, files, ends = [], [], []
    for life in lives:
        settled = [sample for sample in life if sample[0] > 4]  # snapshots for saves are there
        if len(settled) < 40:
            continue
        halves = settled[:len(settled) // 2], settled[len(settled) // 2:]
        bytes_of = [min(sample[1] for sample in half) for half in halves]
        files_of = [min(sample[2] for sample in half) for half in halves]
        memory.append(bytes_of[1] / bytes_of[0] - 1)
        files.append(files_of[1] - files_of[0])
        ends.append((bytes_of[1], files_of[1]))
    third = max(1, len(ends) // 3)
    first, last = ends[:third], ends[-third:]
    between = statistics.median(e[0] for e in last) / statistics.median(e[0] for e in first) - 1
    more_files = statistics.median(e[1] for e in last) - statistics.median(e[1] for e in first)
    return max(memory), max(files), between, more_files


FAULTS = ["a rank is killed", "all are killed", "a rank is stopped", "SIGUSR1", "a byte is turned over", "a checkpoint is cut off"]


def soak(options, folder, chance):
    """The disturbed run, how long it took, and how often each fault came."""
    run = Run(options.executable, folder, "soak", options.ranks)
    begin = time.monotonic()
    run.start()
    next_fault = begin + chance.uniform(0.5, 1.5) * options.every
    came, spoils = dict.fromkeys(FAULTS, 0), None
    while time.monotonic() < begin + 60 * options.minutes:
        if run.look() is not None:
            if spoils:
                spoil(run, spoils)
            spoils = None
            run.start()
        if time.monotonic() > next_fault:
            fault = chance.choice(FAULTS)
            if run.pids():
                spoils = let_happen(run, fault, chance)
                came[fault] += 1
            next_fault = time.monotonic() + chance.uniform(0.5, 1.5) * options.every
        run.wait(0.1)
    seconds = time.monotonic() - begin
    run.stop()
    return run, seconds, came


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", type=pathlib.Path, default=ROOT / "build/ci/apps/llmtrain/llmtrain")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.executable = options.executable.resolve()
    chance = random.Random(options.seed)
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        (folder / "recipe.yaml").write_text(RECIPE)
        (folder / "text.txt").write_text("".join(path.read_text() for path in sorted(ROOT.glob("docs/*.md"))))
        alone = min(60.0, 6 * options.minutes)
        first = Run(options.executable, folder, "before", options.ranks)
        before = pace(first, alone)
        first.stop()
        run, seconds, came = soak(options, folder, chance)
        steps = run.records()
        last = steps[-1]["step"]
        whole = Run(options.executable, folder, "after", options.ranks, f"training.max_steps={last}", "resilience.hang_timeout=5m")
        after = pace(whole, alone)
        print(f"{last:,} steps in {seconds:.0f} s; the undisturbed run ends at that one, too", flush=True)
        while whole.look() is None:
            time.sleep(1)
        unlike = differences(run, whole)
        share = last / ((before + after) / 2) / seconds
        in_order = [record["step"] for record in steps] == list(range(1, len(steps) + 1))
        memory, files, between, more_files = growth(run.lives)
        memory_of_whole, files_of_whole, *_ = growth(whole.lives)  # half an hour in one life
        ends = {code: run.codes.count(code) for code in sorted(set(run.codes))}
        log = (folder / "soak.log").read_text(errors="replace")
    for holds, text in ((not unlike, "not as in the undisturbed run: " + unlike), (in_order, "a step is missing or twice"),
                        (share >= 0.9, "less than 90 % of the time went into training"), (memory < 0.01, "memory grows"),
                        (between < 0.01, "memory grows from start to start"), (files <= 0, "open files grow"),
                        (more_files <= 0, "open files grow from start to start"),
                        (memory_of_whole < 0.01 and files_of_whole <= 0, "the undisturbed run's memory or open files grow"),
                        ("2" not in map(str, ends), "a start was refused")):
        if not holds:
            problems.append(text)
    table = (f"{options.minutes:g} minutes, {options.ranks} ranks, {sum(came.values())} faults, {run.starts} starts, seed {options.seed}, `hang_timeout: 1s`.\n\n"
             "| | |\n|---|---:|\n"
             + "".join(f"| {fault} | {count} |\n" for fault, count in came.items())
             + f"| exit codes of the launcher | {', '.join(f'{code}: {count}' for code, count in ends.items())} |\n"
             f"| steps that count | {last:,} |\n"
             f"| steps a second without faults, before and after | {before:.2f}, {after:.2f} |\n"
             f"| effective training time | {100 * share:.1f} % |\n"
             f"| all losses and the last checkpoint as without faults | {'no: ' + unlike if unlike else 'to the bit'} |\n"
             f"| growth of memory in a life, and from start to start | {100 * memory:.2f} %, {100 * between:.2f} % |\n"
             f"| growth of open files in a life, and from start to start | {files:g}, {more_files:g} |\n"
             f"| growth of memory and open files of the undisturbed run | {100 * memory_of_whole:.2f} %, {files_of_whole:g} |\n")
    print(table)
    if problems:
        print("does not hold: " + "; ".join(problems), file=sys.stderr)
        print(log[-4000:], file=sys.stderr)
    if options.write:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as section:
            section.write(table)
            section.flush()
            subprocess.run([sys.executable, ROOT / "scripts/bench/put_section.py", ROOT / "docs/reliability.md", "soak", section.name], check=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
