#!/usr/bin/env python3
"""What checkpoints cost: the time that no step is made, and the bandwidth of writing and reading, beside plain copies.

    scripts/bench/saves.py [--executable FILE] [--directory DIR] [--rounds N] [--write]

    --directory DIR  on the disk that is measured (the system's folder for temporary files)
    --rounds N       runs of each kind, in turn with the plain copies (3); medians count
    --write          put the table into docs/benchmarks.md

A Llama of 45 million parameters in FP32 with AdamW: half a gigabyte of state, and steps of a tenth of a second or so, shorter than a save
takes to be written. Saves go in place of the run and beside it (checkpoint.async), with checkpoint.async_share as by default and of a tenth.
Beside them, in the same run: one thread's memcpy of as many bytes, a plain writer of a new file (pieces of 4 MiB, then fsync), through the
page cache and past it, and a plain reader of the same file, into memory that it has used before and, as a run that starts must, into memory
that nobody has touched; before each reading the system is asked to forget the file, and before a start to have its memory ready.
"While its files are written": the steps that begin before the slowest rank's files are on the disk, beside those that no save touches.
"""

import argparse
import collections
import concurrent.futures
import ctypes
import dataclasses
import functools
import json
import mmap
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIECE = 4 << 20
BLOCK = 4096
RECIPE = """recipe: 1
run: {device: cpu, output_dir: run}
model: {architecture: llama, vocab_size: 257, hidden_size: 768, intermediate_size: 2048, num_hidden_layers: 6, num_attention_heads: 12,
        max_position_embeddings: 256}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 32, micro_batch_size: 1, global_batch_size: 1, max_steps: STEPS}
optimizer: {lr: 1.0e-4}
checkpoint: {interval: INTERVAL, keep_latest: 2, async: ASYNC, async_share: SHARE}
eval: {interval: null, max_samples: 1}
metrics: {interval: 1, tensorboard: false}
"""
SAVED = re.compile(r"saved \S+step-(\d+) \(\S+ \S+ in ([\d.]+) s, of which no step was made for ([\d.]+) s; written in ([\d.]+) s\)")
RESUMED = re.compile(r"every byte of the checkpoint was checked, and its tensors loaded, in ([\d.]+) s")
DEFAULT_SHARE, SMALL_SHARE = 0.9, 0.1

READS = 5  # a round
STEPS, INTERVAL = 236, 56  # four saves, of which the later ones read back what stays and delete the rest


def forget(path):
    """Asks the system to drop what it has of a file or a folder's files."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(body):
    begin = time.perf_counter()
    body()
    return time.perf_counter() - begin


class Plain:
    """Plain copies of `size` bytes."""

    def __init__(self, folder, size):
        self.file = folder / "plain"
        self.size = size
        self.source, self.target = (mmap.mmap(-1, size) for _ in range(2))
        self.source[:] = os.urandom(1 << 16) * (size >> 16) + bytes(size & 0xFFFF)
        self.copy()  # both have their pages then

    def copy(self):
        addresses = [ctypes.addressof(ctypes.c_char.from_buffer(m)) for m in (self.target, self.source)]
        ctypes.memmove(*addresses, self.size)

    def write(self):
        self.file.unlink(missing_ok=True)
        view = memoryview(self.source)
        with open(self.file, "wb", buffering=0) as out:
            for begin in range(0, self.size, PIECE):
                out.write(view[begin:begin + PIECE])
            os.fsync(out.fileno())
        view.release()

    def write_direct(self):
        """As write(), past the page cache."""
        self.file.unlink(missing_ok=True)
        view = memoryview(self.source)
        out = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        for begin in range(0, self.size // BLOCK * BLOCK, PIECE):
            os.write(out, view[begin:min(begin + PIECE, self.size // BLOCK * BLOCK)])
        os.fsync(out)
        os.close(out)
        view.release()

    def write_direct_elsewhere(self):
        """The same by a process of its own."""
        child = os.fork()
        if child == 0:
            self.write_direct()
            os._exit(0)
        os.waitpid(child, 0)

    def read(self, target=None):
        view = memoryview(target or self.target)
        with open(self.file, "rb", buffering=0) as opened:
            for begin in range(0, self.size, PIECE):
                opened.readinto(view[begin:begin + PIECE])
        view.release()

    def read_anew(self):
        with mmap.mmap(-1, self.size) as untouched:
            self.read(untouched)


def touch_memory(size):
    """Uses so much memory and gives it back. A virtual machine's host takes away what nobody uses for two seconds (free page
    reporting), and to get it again takes whoever touches it longer than reading a file does: the run that starts next."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for begin in range(0, size, BLOCK):
            memory[begin] = 1


def llmtrain(executable, folder, steps, interval, is_async, share=DEFAULT_SHARE):
    values = {"STEPS": steps, "INTERVAL": interval, "ASYNC": str(is_async).lower(), "SHARE": share}
    text = functools.reduce(lambda text, key: text.replace(key, str(values[key])), values, RECIPE)
    (folder / "recipe.yaml").write_text(text)
    done = subprocess.run([executable, "run", "recipe.yaml"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def state_bytes(folder):
    newest = max((folder / "run" / "checkpoints").glob("step-*"))
    return sum(file.stat().st_size for file in newest.glob("*.safetensors"))


def step_seconds(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()]
    return {record["step"]: record["time/step_seconds"] for record in records if "time/step_seconds" in record}


def slowed_by(executable, folder, work):
    """By how much steps are slower while `work` goes on beside a run that saves nothing meanwhile."""
    subprocess.run(["rm", "-rf", str(folder / "run")], check=True)
    with concurrent.futures.ThreadPoolExecutor() as beside:
        run = beside.submit(llmtrain, executable, folder, INTERVAL, INTERVAL, False)
        begin = wait_for_step(folder, INTERVAL // 2)
        work()
        end = last_step(folder)
        run.result()
    steps = step_seconds(folder)
    busy = range(begin + 1, end + 2)
    quiet = [seconds for n, seconds in steps.items() if n >= 2 and n not in busy]
    return statistics.mean(steps[n] for n in busy) / statistics.mean(quiet) - 1


def last_step(folder):
    return max(step_seconds(folder), default=0) if (folder / "run" / "metrics.jsonl").exists() else 0


def wait_for_step(folder, step):
    while last_step(folder) < step:
        time.sleep(0.02)
    return last_step(folder)


def during(steps, save, took):
    """The steps that began within so many seconds behind the save of step `save`."""
    return [n for n in range(save + 1, min(save + INTERVAL, STEPS)) if sum(steps[k] for k in range(save + 1, n)) < took]


@dataclasses.dataclass
class RunWithSaves:
    """What the first save took, how long steps are without one, how much longer while one's files are written, and what one costs in all."""
    seconds: float
    waited: float
    written: float
    quiet_step: float | None = None
    slower: float | None = None
    lost: float | None = None


def run_with_saves(executable, folder, steps, is_async, share=DEFAULT_SHARE):
    subprocess.run(["rm", "-rf", str(folder / "run")], check=True)
    output = llmtrain(executable, folder, steps, INTERVAL, is_async, share)
    saves = [(int(step), *map(float, times)) for step, *times in SAVED.findall(output)]
    found = RunWithSaves(seconds=saves[0][1], waited=saves[0][2], written=saves[0][3])
    if not is_async:
        return found
    times = step_seconds(folder)
    touched = {n for save, whole, *_ in saves for n in during(times, save, whole)}
    # The first step warms up, and one that a save begins or ends with is neither.
    quiet = [times[n] for n in range(2, steps) if not touched & {n - 1, n, n + 1}]
    found.quiet_step = statistics.mean(quiet)
    written = {n for save, _, _, took in saves for n in during(times, save, took)}
    found.slower = statistics.mean(times[n] for n in written) / found.quiet_step - 1
    found.lost = sum(times[n] - found.quiet_step for n in during(times, *saves[0][:2]))
    return found


def measure(executable, folder, rounds):
    (folder / "text.txt").write_text("".join(f"word{i * 7919 % 61} " for i in range(40000)))
    llmtrain(executable, folder, 2, 2, False)  # prepares the data
    size = state_bytes(folder)
    plain = Plain(folder, size)
    found = collections.defaultdict(list)
    for _ in range(rounds):
        found["copy"].append(seconds(plain.copy))
        found["write direct"].append(seconds(plain.write_direct))
        found["write"].append(seconds(plain.write))
        found["in place"].append(run_with_saves(executable, folder, INTERVAL, False).seconds)
        for name, share in (("", DEFAULT_SHARE), (" in part", SMALL_SHARE)):
            beside = run_with_saves(executable, folder, STEPS, True, share)
            for field in ("waited", "seconds", "written", "slower", "lost", "quiet_step"):
                found[field + name].append(getattr(beside, field))
        found["plain slower"].append(slowed_by(executable, folder, plain.write_direct_elsewhere))
        for _ in range(READS):
            forget(plain.file)
            found["read"].append(seconds(plain.read))
            forget(plain.file)
            found["read anew"].append(seconds(plain.read_anew))
            forget(folder / "run")
            touch_memory(2 * size)
            found["check and load"].append(float(RESUMED.search(llmtrain(executable, folder, INTERVAL, INTERVAL, False))[1]))
    return size, found


def table(size, found):
    middle = {name: statistics.median(values) for name, values in found.items()}

    def row(what, name, note="", per_cent=False, rate=True):
        values = found[name]
        if per_cent:
            return f"| {what} | {100 * middle[name]:+.0f} % | {100 * min(values):+.0f} to {100 * max(values):+.0f} % | - | {note} |"
        speed = f"{size / middle[name] / 1e9:.2f}" if rate else "-"
        return f"| {what} | {middle[name]:.3f} s | {min(values):.3f} to {max(values):.3f} s | {speed} | {note} |"

    def share(of, name):
        return f"{100 * middle[of] / middle[name]:.0f} %"

    lines = [f"{size / 1e6:.0f} MB of state, steps of {middle['quiet_step']:.2f} s.", "", "| what | median | least to most | GB/s | |", "|---|---:|---:|---:|---|",
             row("memcpy by one thread", "copy"),
             row("a save beside the run: no step is made for", "waited", f"{middle['waited'] / middle['copy']:.2f} x memcpy"),
             row("its files, until they are on the disk", "written", f"{share('write', 'written')} of the plain writer's bandwidth"),
             row("steps while its files are written", "slower", per_cent=True),
             row("what all steps lose to a save", "lost", rate=False),
             row("a save, until it is there", "seconds", "two agreements between steps more"),
             row("the files of one that is written a tenth of the time (async_share: 0.1)", "written in part"),
             row("steps while its files are written", "slower in part", per_cent=True),
             row("what all steps lose to it", "lost in part", rate=False),
             row("steps while another process writes as much, past the page cache", "plain slower", per_cent=True),
             row("plain writer", "write"),
             row("plain writer, past the page cache", "write direct"),
             row("a save in place", "in place", f"{share('write', 'in place')} of the plain writer's bandwidth"),
             row("plain reader", "read"),
             row("plain reader, into untouched memory", "read anew"),
             row("checking every byte and loading it", "check and load",
                 f"{share('read', 'check and load')} of the plain reader's bandwidth, {share('read anew', 'check and load')} of that into untouched memory")]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", default=str(ROOT / "build/release/apps/llmtrain/llmtrain"))
    parser.add_argument("--directory", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        text = table(*measure(os.path.abspath(options.executable), pathlib.Path(folder), options.rounds))
    print(text)
    if options.write:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write(text + "\n")
            file.flush()
            subprocess.run([ROOT / "scripts/bench/put_section.py", ROOT / "docs/benchmarks.md", "saves", file.name], check=True)


if __name__ == "__main__":
    main()
