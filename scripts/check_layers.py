#!/usr/bin/env python3
"""Checks that every include follows the floors of the house, and that every project include exists.

    scripts/check_layers.py [ROOT]

Exit code 0 when all is well, 1 with one `file:line: problem` per line otherwise.
"""

import pathlib
import re
import sys

# Folder -> folders it may include besides itself, lowest floor first; not transitive. Every folder above
# GROUND may include GROUND. CMakeLists.txt has the same edges.
GROUND = ("lib/base", "lib/recipe", "lib/tensor")
FLOORS = {
    "lib/base": (),
    "lib/recipe": ("lib/base",),
    "lib/tensor": ("lib/base",),
    "kernels": (),
    "lib/comm": ("kernels",),
    "lib/mesh": ("lib/comm",),
    "lib/param": ("kernels", "lib/mesh"),
    "lib/autograd": ("kernels", "lib/param"),
    "lib/ops": ("lib/autograd", "kernels", "lib/comm", "lib/mesh", "lib/param"),
    "lib/layers": ("lib/ops", "lib/mesh", "lib/param"),
    "lib/models": ("lib/layers", "lib/ops", "lib/mesh", "lib/param"),
    "lib/parallel": ("lib/autograd", "lib/ops", "kernels", "lib/comm", "lib/mesh", "lib/param"),
    "lib/offload": (),
    "lib/optim": ("kernels", "lib/comm", "lib/mesh", "lib/param", "lib/offload"),
    "lib/data": (),
    "lib/checkpoint": ("lib/comm", "lib/mesh", "lib/param"),
    "lib/engine": "all but lib/data",
    "lib/plan": "all",
    "lib/train": "all",
    "apps": "all",
    "tests": "all",
}
# A backend sees the kernels' declarations and itself; only the engine and what stands on it name one.
BACKENDS = ("kernels/cpu", "kernels/cuda", "kernels/meta")
BACKEND_USERS = ("lib/engine", "lib/plan", "lib/train", "apps", "tests")
# Third-party header -> (files, folders) that may include it: "cpp" means source files only.
THIRD_PARTY = {
    "fmt/": ("any", "all"),
    "xxhash.h": ("cpp", ("lib/base",)),
    "yaml-cpp/": ("cpp", ("lib/recipe",)),
    "nlohmann/": ("cpp", "all"),
    "CLI/": ("cpp", ("apps",)),
    "pcre2.h": ("cpp", ("lib/data",)),
    "zlib.h": ("cpp", ("lib/data", "tests")),
    "zstd.h": ("cpp", ("lib/data", "tests")),
    "utf8proc.h": ("cpp", ("lib/data",)),
    "doctest/": ("any", ("tests",)),
    "mpi.h": ("cpp", ("lib/comm",)),
    "nccl.h": ("any", ("kernels/cuda",)),
    "cublas": ("any", ("kernels/cuda",)),
    "cudnn": ("any", ("kernels/cuda",)),
    "cuda_runtime.h": ("any", ("kernels/cuda", "tests")),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
HEADERS = {".hpp", ".cuh", ".h"}


def floor_of(path):
    """The row of the table that a path from the root belongs to, or None."""
    parts = path.split("/")
    for candidate in ("/".join(parts[:2]), parts[0]):
        if candidate in FLOORS or candidate in BACKENDS:
            return candidate
    return None


def may_include(user, used):
    if user == used:
        return True
    if used in BACKENDS:
        return user in BACKEND_USERS
    if user in BACKENDS:
        return used == "kernels" or used in GROUND
    order = list(FLOORS)
    if used in ("apps", "tests"):
        return user == "tests" and used == "tests"
    if order.index(used) > order.index(user):
        return False
    if used in GROUND and user not in GROUND or FLOORS[user] == "all":
        return True
    if FLOORS[user] == "all but lib/data":
        return used != "lib/data"
    return used in FLOORS[user]


def check_project_include(root, path, user, target):
    if not (root / target).is_file():
        return f'"{target}" does not exist (paths start at the repository root)'
    used = floor_of(target)
    if used is None:
        return f'"{target}" lies in no folder of the table'
    if not may_include(user, used):
        return f'{user} may not include {used} ("{target}")'
    return None


def check_third_party(path, user, target):
    for prefix, (where, folders) in THIRD_PARTY.items():
        if not target.startswith(prefix):
            continue
        if user == "tests":
            return None
        if folders != "all" and user not in folders:
            return f"{user} may not include <{target}>; only {', '.join(folders)} may"
        if where == "cpp" and path.suffix in HEADERS:
            return f"<{target}> belongs into a source file, not into a header"
    return None


def check_file(root, path):
    name = path.relative_to(root).as_posix()
    user = floor_of(name)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        if user is None:
            problem = f"{name} lies in no folder of the table"
        elif quote == '"':
            problem = check_project_include(root, path, user, target)
        else:
            problem = check_third_party(path, user, target)
        if problem:
            yield f"{name}:{number}: {problem}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    root = root.resolve()
    files = sorted(
        path
        for folder in ("apps", "kernels", "lib", "tests")
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES
    )
    if not files:
        print(f"{root}: no sources here; give the repository's root", file=sys.stderr)
        return 1
    problems = [problem for path in files for problem in check_file(root, path)]
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
