#!/usr/bin/env python3
"""Seeds one-line faults, one at a time, and checks that a test sees each of them.

    scripts/seeded_faults.py [--dir build/seeded-faults] [--jobs N] [--only PATTERN] [--untried] [--fresh]

scripts/seeded_faults.toml lists the faults. Each is applied to a git worktree of its own, made from
the committed state (the checkout itself is never touched), only the tests that must fail are built,
and they are run. A fault counts as seen when it compiles and its tests, which pass without it, fail.

Results are kept in the directory, so that an interrupted run goes on where it was; --fresh forgets
them. docs/seeded-faults.md is written after each fault; rows of faults that this directory has not
tried stay, with the commit that they were seen at, and with a mark where the fault, or what shall see
it, is not that of today; --untried tries those that have no row of their form today. Exit code 1 if a
fault went unseen or could not be tried.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "scripts" / "seeded_faults.toml"
PAGE = ROOT / "docs" / "seeded-faults.md"
TIMEOUT_S = 600
# All layouts take most of an hour on two cores.
TIMEOUTS_S = {"mesh": 3600}
# What a test is told by its environment, try after try, until one fails.
TRIES = {"mesh": [{"LLMTRAIN_LAYOUTS": "quick"}, {}]}
HEADER = """# Seeded faults

`scripts/seeded_faults.py` applies each of these one-line faults to a worktree of its own and runs the
named tests; a fault is *seen* when it compiles and a test fails. Without a fault the same tests
pass. The lines themselves are in `scripts/seeded_faults.toml`; `id` is a hash of one with its tests.
Where a commit is marked with *, the fault was seen in another form, or by other tests, than it has now.

"""
CHANGED = "*"


def git(*arguments, cwd=ROOT):
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True,
                          text=True).stdout.strip()


def load_faults():
    with open(FAULTS, "rb") as file:
        faults = tomllib.load(file)["fault"]
    names = [fault["name"] for fault in faults]
    assert len(names) == len(set(names)), "two faults of one name"
    return faults


def digest(fault):
    return hashlib.sha256(json.dumps(fault, sort_keys=True).encode()).hexdigest()[:16]


def short_id(fault):
    return digest(fault)[:8]


def failing_case(output):
    """The first case of doctest's output in which something fails. Its name also stands above what
    a case that passes has to say."""
    name = None
    for line in output.splitlines():
        if case := re.match(r"TEST CASE:\s+(.+?)$", line):
            name = case.group(1)
        elif re.search(r": (?:FATAL )?ERROR: ", line):
            return name
    return None


def number_of_cases(output):
    """How many cases doctest ran by its own account: 0 where a filter names none."""
    found = re.search(r"^\[doctest\] test cases: +(\d+)", output, re.MULTILINE)
    return int(found.group(1)) if found else None


class Scratch:
    """A worktree at the committed state, with a build directory of its own."""

    def __init__(self, directory, jobs):
        self.tree = directory / "tree"
        # As deep in its tree as others in theirs: compiled files of the same sources are then shared.
        self.build_dir = self.tree / "build" / "seeded"
        self.jobs = jobs
        self.commit = git("rev-parse", "--short=10", "HEAD")
        if self.tree.exists():
            git("checkout", "--force", "--detach", "HEAD", cwd=self.tree)
            git("checkout", "--force", "--detach", self.commit, cwd=self.tree)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            git("worktree", "prune")
            git("worktree", "add", "--detach", str(self.tree), self.commit)
        self.passing = set()
        self.environment = os.environ | {"CCACHE_BASEDIR": str(self.tree)}
        # Kernels for a GPU are tried on the emulated one.
        self.run("cmake", "-S", self.tree, "-B", self.build_dir, "-G", "Ninja",
                 "-DLLMTRAIN_CUDA=OFF")
        plugin = self.build_dir / "tests" / "libllmtrain_cuda_emulated.so"
        transport = self.build_dir / "apps" / "llmtrain" / "libllmtrain_mpi.so"
        self.of_test = {"cuda": {"LLMTRAIN_CUDA_PLUGIN": str(plugin)},
                        "mesh": {"LLMTRAIN_MPI_PLUGIN": str(transport)},
                        "reliability": {"LLMTRAIN_MPI_PLUGIN": str(transport)}}

    def run(self, *command):
        done = subprocess.run([str(c) for c in command], env=self.environment,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(str(c) for c in command)}\n{done.stdout}{done.stderr}")

    def build(self, tests):
        self.run("cmake", "--build", self.build_dir, "-j", self.jobs, "--target",
                 *[f"{test}_test" for test in tests])

    def failure(self, test, cases):
        """None if the test passes, else the name of the first case that fails."""
        for more in TRIES.get(test, [{}]):
            if failed := self.failure_of_try(test, cases, more):
                return failed
        return None

    def failure_of_try(self, test, cases, more):
        command = [str(self.build_dir / "tests" / f"{test}_test"), "--no-colors", "--abort-after=1"]
        if cases:
            command.append(f"--test-case={cases}")
        try:
            done = subprocess.run(command, cwd=self.build_dir,
                                  env=self.environment | self.of_test.get(test, {}) | more,
                                  capture_output=True, text=True, errors="replace",
                                  timeout=TIMEOUTS_S.get(test, TIMEOUT_S))
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{test} {cases or ''} ran out of time, which says nothing") from None
        if done.returncode == 0:
            if number_of_cases(done.stdout) == 0:
                raise RuntimeError(f"{test} has no case {cases}")
            return None
        return failing_case(done.stdout) or f"(ended with {done.returncode})"

    def require_passing(self, fault):
        """The fault's tests pass as long as it is not there."""
        for test in fault["tests"]:
            key = (test, fault.get("cases"))
            if key in self.passing:
                continue
            self.build([test])
            failed = self.failure(*key)
            if failed:
                raise RuntimeError(f"{test} fails without any fault: {failed}")
            self.passing.add(key)

    def seed(self, fault):
        path = self.tree / fault["file"]
        text = path.read_text()
        found = text.count(fault["old"])
        if found != 1:
            raise RuntimeError(f"{fault['file']} has the old text {found} times, not once")
        path.write_text(text.replace(fault["old"], fault["new"]))

    def restore(self, fault):
        git("checkout", "--force", "--", fault["file"], cwd=self.tree)


def try_fault(scratch, fault):
    """The row of the table: what the tests said."""
    scratch.require_passing(fault)
    try:
        scratch.seed(fault)
        scratch.build(fault["tests"])
        seen = {test: scratch.failure(test, fault.get("cases")) for test in fault["tests"]}
    finally:
        scratch.restore(fault)
    return {"commit": scratch.commit, "tests": seen}


def is_seen(result):
    return all(result["tests"].values())


def row_of(fault, result):
    seen = "; ".join(f"`{test}`: {case or '**nothing**'}"
                     for test, case in result["tests"].items())
    return (f"| {fault['name']} | `{fault['file']}` | {seen} | {result['commit']} "
            f"| {short_id(fault)} |")


def marked(row, fault):
    """A row of the page, with a mark if it is not of the fault as it is now."""
    cells = row.removesuffix(" |").split(" | ")
    commit = cells[-2].removesuffix(CHANGED)
    cells[-2] = commit if cells[-1] == short_id(fault) else commit + CHANGED
    return " | ".join(cells) + " |"


def earlier_rows():
    """The page's rows by the name and file of their faults."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    return {line.split(" | ")[0] + line.split(" | ")[1]: line
            for line in lines if line.startswith("| ") and not line.startswith("| fault ")}


def write_page(faults, results):
    earlier = earlier_rows()
    rows = []
    for fault in faults:
        if digest(fault) in results:
            rows.append(row_of(fault, results[digest(fault)]))
        elif row := earlier.get(f"| {fault['name']}`{fault['file']}`"):
            rows.append(marked(row, fault))
    seen = sum("**nothing**" not in row for row in rows)
    changed = sum(f"{CHANGED} | " in row for row in rows)
    summary = (f"{len(faults)} faults, {len(rows)} tried, {seen} seen, "
               f"{changed} of them in another form.\n\n")
    head = ["| fault | where | seen by | commit | id |", "|---|---|---|---|---|"]
    PAGE.write_text(HEADER + summary + "\n".join(head + rows) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "seeded-faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", metavar="PATTERN",
                        help="faults whose name matches this regular expression")
    parser.add_argument("--untried", action="store_true",
                        help="faults of which the page has no row as they are now")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    arguments = parser.parse_args()

    faults = load_faults()
    directory = arguments.dir.resolve()
    scratch = Scratch(directory, arguments.jobs)
    kept = directory / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() and not arguments.fresh else {}
    # What no test saw is tried again: somebody has worked on it.
    done = {name for name, result in results.items() if is_seen(result)}
    if arguments.untried:
        rows = {row.removesuffix(" |").split(" | ")[-1] for row in earlier_rows().values()}
        done |= {digest(fault) for fault in faults if short_id(fault) in rows}
    todo = [fault for fault in faults
            if digest(fault) not in done and re.search(arguments.only or "", fault["name"])]
    failures = 0
    for fault in todo:
        try:
            result = try_fault(scratch, fault)
        except RuntimeError as error:
            failures += 1
            print(f"not tried: {fault['name']}: {error}", file=sys.stderr, flush=True)
            continue
        results[digest(fault)] = result
        kept.write_text(json.dumps(results, indent=1))
        write_page(faults, results)
        print(f"{'seen' if is_seen(result) else 'UNSEEN':7} {fault['name']}", flush=True)
    write_page(faults, results)
    unseen = [fault["name"] for fault in faults
              if digest(fault) in results and not is_seen(results[digest(fault)])]
    for name in unseen:
        print(f"no test sees: {name}", file=sys.stderr)
    return 1 if unseen or failures else 0


if __name__ == "__main__":
    sys.exit(main())
