#!/usr/bin/env python3
"""Gathers text of a machine as JSONL, a file a document, for scripts/gpu_check.sh.

    gather_text.py TO BYTES DIR...

Files of words for people or compilers (.txt, .md, .rst, .html, .py, .h, .hpp, .c, .cpp, and `copyright`), in the order
of their names, the directories one after another, until TO has BYTES of text; a file counts once, whatever its place.
Prints how much there is; exit code 1 where it is less than a quarter of BYTES.
"""

import json
import os
import pathlib
import sys

KINDS = {".txt", ".md", ".rst", ".html", ".py", ".h", ".hpp", ".c", ".cpp"}
LONGEST, SHORTEST = 1 << 20, 200


def files_below(folder):
    for at, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = pathlib.Path(at) / name
            if path.suffix in KINDS or name == "copyright":
                yield path


def main():
    to, wanted, folders = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    size, documents, met = 0, 0, set()
    with open(to, "w") as out:
        for path in (path for folder in folders for path in files_below(folder)):
            if size >= wanted:
                break
            try:
                if not path.is_file() or not SHORTEST <= path.stat().st_size <= LONGEST:
                    continue
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if hash(text) in met:
                continue
            met.add(hash(text))
            out.write(json.dumps({"text": text}) + "\n")
            size += len(text.encode())
            documents += 1
    print(f"{size / 1e6:.1f} MB of text in {documents} files")
    sys.exit(0 if size >= wanted / 4 else 1)


if __name__ == "__main__":
    main()
