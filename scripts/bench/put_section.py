#!/usr/bin/env python3
"""Replaces the text between `<!-- NAME begin -->` and `<!-- NAME end -->` of a page by a file, with the
commit that it was measured at.

    put_section.py PAGE NAME FILE
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    page, name, text = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    if git("status", "--porcelain", "--", ".", ":!docs"):
        commit += "-dirty"
    old = page.read_text()
    begin, end = f"<!-- {name} begin -->\n", f"<!-- {name} end -->"
    if begin not in old or end not in old:
        sys.exit(f"{page}: no section {name}")
    head, rest = old.split(begin, 1)
    tail = rest.split(end, 1)[1]
    page.write_text(f"{head}{begin}Commit {commit}.\n{text.read_text()}{end}{tail}")


if __name__ == "__main__":
    main()
