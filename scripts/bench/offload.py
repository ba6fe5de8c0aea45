#!/usr/bin/env python3
"""What training with optimizer states on a disk costs (offload.optimizer: nvme), and with parameters there, too
(offload.parameters: nvme), beside what the disk allows.

    scripts/bench/offload.py [--executable FILE] [--directory DIR] [--rounds N] [--steps N] [--write]

    --directory DIR  on the disk that is measured (the system's folder for temporary files)
    --rounds N       runs, in turn with measurements of the disk (3); medians count
    --write          put the table into docs/memory.md

A Llama of 200 million parameters in bf16 with AdamW: 2.4 GB of masters and states, in steps so short that the disk matters. The
process has less memory than these alone take (a cgroup's limit, where one can be made, else RLIMIT_DATA): the run without offload
must fail, the one with offload keeps it. Beside it, in the same directory: a plain reader and a plain writer (O_DIRECT) that together move the bytes of a step, at the same time,
in pieces of 1, 4 and 16 MiB by one, two and eight threads each, of which what is fastest counts; and the step of a run without offload
and without a limit. A step can take no less than the longer of the two, so the speed that the disk allows is that. With parameters in
the file a step moves these as well, and reads them forth and back besides, which the disk allows at the plain reader's rate.
Exit code 1 where either has less than 60 % of that speed.
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
WAYS = [(mib * MIB, threads) for mib in (1, 4, 16) for threads in (1, 2, 8)]  # sizes of pieces, and who moves them
LARGEST, MOST_THREADS = max(piece for piece, _ in WAYS), max(threads for _, threads in WAYS)
LEAST_SHARE = 0.6  # of the speed that the disk allows
# Of the process beside its arena: stacks, libraries, samples, messages.
BESIDE_ARENA = 256 << 20
DISK_PART = 1 << 30  # of a step's bytes, which a plain reader and writer move
RECIPE = """recipe: 1
run: {device: cpu, output_dir: run, seed: 5}
model: {architecture: llama, vocab_size: 257, hidden_size: 1024, intermediate_size: 4096, num_hidden_layers: 12, num_attention_heads: 16,
        max_position_embeddings: 64}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 32, micro_batch_size: 1, global_batch_size: 1, max_steps: STEPS}
optimizer: {lr: 1.0e-4}
precision: {compute: bf16}
checkpoint: {interval: null}
eval: {interval: null, max_samples: 1}
metrics: {interval: 1, tensorboard: false}
"""
OFFLOAD = "offload={optimizer: nvme, master: nvme, buffer: 256MiB}"
WITH_PARAMETERS = "offload={optimizer: nvme, master: nvme, parameters: nvme, buffer: 256MiB}"


class Limit:
    """Of the memory of processes that a child enters before it becomes another program."""

    # Folders of either version of cgroups, and where the limit is written there.
    GROUPS = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]

    def __init__(self, limit):
        self.bytes, self.group = limit, None
        for parent, file in self.GROUPS:
            group = pathlib.Path(parent) / f"llmtrain-{os.getpid()}-{limit}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                (group / file).write_text(str(limit))
                self.group = group
                return
            except OSError:
                group.rmdir()

    def name(self):
        return "a cgroup" if self.group else "RLIMIT_DATA"

    def enter(self):
        if self.group:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (self.bytes, self.bytes))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.group:
            self.group.rmdir()


class Disk:
    """As many bytes that are read as others that are written, past the page cache. Times are those of `size` of each."""

    def __init__(self, folder, size):
        self.path = folder / "plain"
        self.whole = size
        self.size = min(size, DISK_PART) // LARGEST * LARGEST
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.fd, 0, 2 * self.size)
        self.memory = [mmap.mmap(-1, LARGEST) for _ in range(2 * MOST_THREADS)]
        for memory in self.memory:
            memory[:] = os.urandom(LARGEST)
        self.move(WAYS[0], writes=2)  # blocks are there then

    def run(self, way, thread, begin, is_write):
        piece, threads = way
        memory = memoryview(self.memory[thread + (MOST_THREADS if is_write else 0)])[:piece]
        for at in range(thread * piece, self.size, threads * piece):
            done = os.pwritev(self.fd, [memory], begin + at) if is_write else os.preadv(self.fd, [memory], begin + at)
            assert done == piece, done

    def move(self, way, reads=0, writes=0):
        """Seconds for reading, or writing, so many halves at the same time."""
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(2 * MOST_THREADS) as pool:
            work = [pool.submit(self.run, way, t, 0, False) for t in range(way[1]) if reads]
            work += [pool.submit(self.run, way, t, half * self.size, True) for half in range(2 - writes, 2) for t in range(way[1]) if writes]
            for each in work:
                each.result()
        return (time.perf_counter() - begin) * self.whole / self.size

    def fastest(self, **moves):
        return min(self.move(way, **moves) for way in WAYS)

    def close(self):
        os.close(self.fd)
        self.path.unlink()


def llmtrain(options, folder, command, overrides, limit=None):
    subprocess.run(["rm", "-rf", str(folder / "run")], check=True)
    return subprocess.run([options.executable, *command, "recipe.yaml", *overrides], cwd=folder, capture_output=True, text=True,
                          preexec_fn=limit.enter if limit else None)


def planned(options, folder, overrides):
    plan = json.loads(llmtrain(options, folder, ["plan", "--json"], overrides).stdout)
    extent = max(plan[phase]["extent_bytes"] for phase in ("step", "eval"))
    return extent, plan


def step_seconds(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = {record["step"]: record["time/step_seconds"] for record in records if "time/step_seconds" in record}
    return statistics.median(seconds for step, seconds in steps.items() if step > 2)


def run(options, folder, overrides, extent, limit=None):
    done = llmtrain(options, folder, ["run"], [*overrides, f"run.memory_limit={extent}"], limit)
    assert done.returncode == 0, done.stdout + done.stderr
    return step_seconds(folder), done.stdout + done.stderr


def measure(options, folder):
    (folder / "text.txt").write_text("".join(f"word{i * 7919 % 61} " for i in range(6000)))
    (folder / "recipe.yaml").write_text(RECIPE.replace("STEPS", str(options.steps)))
    plain_extent, plain_plan = planned(options, folder, [])
    extent, plan = planned(options, folder, [OFFLOAD])
    size = plan["offload"]["file_bytes"]
    least_extent, least_plan = planned(options, folder, [WITH_PARAMETERS])
    assert extent + BESIDE_ARENA < size, (extent + BESIDE_ARENA, size)
    with Limit(extent + BESIDE_ARENA) as limit, Limit(least_extent + BESIDE_ARENA) as least_limit:
        refused = llmtrain(options, folder, ["run"], [f"run.memory_limit={plain_extent}"], limit)
        assert refused.returncode != 0, "the run without offload fits into the limit"
        found, notes = in_turns(options, folder, [(extent, limit), (least_extent, least_limit)], plain_extent, size)
    ended = f"is killed by signal {-refused.returncode}" if refused.returncode < 0 else f"ends: `{refused.stderr.strip().splitlines()[-1]}`"
    least = least_plan["offload"]
    facts = {"least_extent": least_extent, "all_size": least["file_bytes"],
             "products_read": least["step_read_bytes"] - least["file_bytes"], "size": size, "limit": limit.bytes, "by": limit.name(),
             "extent": extent, "plain_extent": plain_extent, "refusal": ended, "notes": notes,
             "moved": plain_plan["held_bytes"]["optimizer"] - plan["held_bytes"]["optimizer"], "pool": plan["held_bytes"]["offload"]}
    return facts, {name: statistics.median(values) for name, values in found.items()}


def in_turns(options, folder, offloaded, plain_extent, size):
    """Seconds of each measurement, and what the last run with offload said. `offloaded`: of either form arena and limit."""
    (extent, limit), (least_extent, least_limit) = offloaded
    disk = Disk(folder, size)
    found = {name: [] for name in ("read", "write", "both", "plain", "offload", "parameters")}
    notes = ""
    for _ in range(options.rounds):
        found["read"].append(disk.fastest(reads=1))
        found["write"].append(disk.fastest(writes=1))
        found["both"].append(disk.fastest(reads=1, writes=1))
        seconds, notes = run(options, folder, [OFFLOAD], extent, limit)
        found["offload"].append(seconds)
        found["parameters"].append(run(options, folder, [WITH_PARAMETERS], least_extent, least_limit)[0])
        found["both"].append(disk.fastest(reads=1, writes=1))
        found["plain"].append(run(options, folder, [], plain_extent)[0])
    disk.close()
    return found, notes


def table(facts, found):
    size = facts["size"]
    allowed = max(found["both"], found["plain"])
    gigabytes = lambda count, seconds: f"{count / seconds / 1e9:.2f}"
    rows = [("plain reader", found["read"], gigabytes(size, found["read"])),
            ("plain writer", found["write"], gigabytes(size, found["write"])),
            ("both at the same time: the bytes of a step", found["both"], gigabytes(2 * size, found["both"])),
            ("a step without offload and without a limit", found["plain"], ""),
            ("the step that the disk allows: the longer of the last two", allowed, gigabytes(2 * size, allowed)),
            ("a step with offload, within the limit", found["offload"], gigabytes(2 * size, found["offload"]))]
    all_size, products_read = facts["all_size"], facts["products_read"]
    all_allowed = max(found["plain"], (found["both"] * all_size + found["read"] * products_read) / size)
    rows += [("the step that the disk allows with parameters there, too", all_allowed, gigabytes(2 * all_size + products_read, all_allowed)),
             (f"that step, in an arena of {facts['least_extent'] / 1e9:.2f} GB", found["parameters"],
              gigabytes(2 * all_size + products_read, found["parameters"]))]
    lines = [f"{size / 1e9:.2f} GB of states; memory of the arena {facts['extent'] / 1e9:.2f} GB instead of {facts['plain_extent'] / 1e9:.2f} "
             f"({facts['moved'] / 1e9:.2f} less in `optimizer`, {facts['pool'] / 1e9:.2f} more in `offload`); {facts['by']} allows {facts['limit'] / 1e9:.2f} GB, "
             f"with which the run without offload {facts['refusal']}.", "",
             "| what | s | GB/s |", "|---|---:|---:|"]
    lines += [f"| {name} | {seconds:.3f} | {rate} |" for name, seconds, rate in rows]
    lines += ["", f"**{100 * allowed / found['offload']:.0f} %** of the speed that the disk allows, with parameters there, too, "
              f"**{100 * all_allowed / found['parameters']:.0f} %**."]
    return "\n".join(lines), min(allowed / found["offload"], all_allowed / found["parameters"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", default=str(ROOT / "build/ci/apps/llmtrain/llmtrain"))
    parser.add_argument("--directory", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.executable = os.path.abspath(options.executable)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        facts, found = measure(options, pathlib.Path(folder))
    text, least_share = table(facts, found)
    print(text)
    print(facts["notes"].strip().splitlines()[-4:])
    if options.write:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write(text + "\n")
            file.flush()
            subprocess.run([ROOT / "scripts/bench/put_section.py", ROOT / "docs/memory.md", "offload", file.name], check=True)
    return 0 if least_share >= LEAST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
