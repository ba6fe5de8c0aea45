#!/usr/bin/env python3
"""Prints the hardware profile whose numbers are the medians of several of one machine."""

import json
import statistics
import sys


def merged(values):
    """Medians of the numbers in equal structures; the first of what is no number."""
    first = values[0]
    if isinstance(first, dict):
        return {key: merged([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        if any(len(value) != len(first) for value in values):
            raise SystemExit("merge_profiles: the profiles hold different measurements")
        return [merged(list(items)) for items in zip(*values)]
    if isinstance(first, float):
        return statistics.median(values)
    return first


def main():
    profiles = [json.load(open(path)) for path in sys.argv[1:]]
    print(json.dumps(merged(profiles)))


if __name__ == "__main__":
    main()
