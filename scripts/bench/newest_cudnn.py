#!/usr/bin/env python3
"""Prints the file of the newest cuDNN 9 of those named; "" is the one that the loader finds by itself.

    newest_cudnn.py FILE...

Each is asked in a process of its own: two versions in one would share their parts. What cannot be loaded does not
count. Versions go to the standard error.
"""

import subprocess
import sys

ASK = """import ctypes, sys
print(ctypes.CDLL(sys.argv[1]).cudnnGetVersion())
print(next(line.split()[-1] for line in open("/proc/self/maps") if "libcudnn.so" in line))"""


def version_of(file):
    """(90200 for 9.2.0, its file); (0, "") where it cannot be loaded."""
    try:
        asked = subprocess.run([sys.executable, "-c", ASK, file or "libcudnn.so.9"], capture_output=True, text=True,
                               timeout=20)
        version, path = asked.stdout.split("\n")[:2]
        return int(version), path
    except (ValueError, OSError, subprocess.TimeoutExpired):
        return 0, ""


def main():
    newest, best = "", 0
    for file in sys.argv[1:]:
        version, path = version_of(file)
        print(f"cuDNN {version}: {path or file or 'none by the loader'}", file=sys.stderr)
        if best < version < 100000:
            newest, best = path, version
    print(newest)


if __name__ == "__main__":
    main()
