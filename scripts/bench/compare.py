#!/usr/bin/env python3
"""Table of predicted and measured step times in a directory of scripts/bench/predict.sh."""

import json
import pathlib
import statistics
import sys


def step_seconds(path):
    return json.loads(path.read_text())["time"]["step_seconds"]


def read_row(directory, name):
    """Times in seconds: by the profile alone, and per round as predicted just before and as measured."""
    benches = sorted(directory.glob(f"{name}.bench.*"))
    return {
        "name": name,
        "tokens": json.loads(benches[0].read_text())["tokens_per_step"],
        "profile": step_seconds(directory / f"{name}.plan.json"),
        "now": [step_seconds(path) for path in sorted(directory.glob(f"{name}.now.*"))],
        "measured": [json.loads(path.read_text())["median_step_seconds"] for path in benches],
        "peaks": [json.loads(path.read_text())["peak_flops"] for path in benches],
    }


def wrong_pairs(times):
    """Pairs of (predicted, measured) whose measured times differ by over 5 % and are predicted in the
    other order."""
    return sum(1 for i, a in enumerate(times) for b in times[i + 1 :]
               if abs(a[1] - b[1]) > 0.05 * max(a[1], b[1]) and (a[1] - b[1]) * (a[0] - b[0]) < 0)


def print_verdict(what, times, ordered=True):
    errors = [abs(predicted / measured - 1) for predicted, measured in times]
    wrong = wrong_pairs(times)
    order = f", order by speed {'right' if not wrong else f'wrong in {wrong} pairs'}" if ordered else ""
    print(f"- {what}: median error {100 * statistics.median(errors):.1f} %, worst "
          f"{100 * max(errors):.1f} %{order}.")


def print_machine(profile, rows):
    """The machine, and how far it differed from itself."""
    machine = profile["machine"]
    peaks = [peak / 1e9 for row in rows for peak in row["peaks"]]
    print(f"Machine: {machine['cpu']}, {profile['threads']} threads, "
          f"{machine['instruction_set']}, oneDNN {machine['onednn_version']}. "
          f"FMA peak {profile['peak_fp32_flops'] / 1e9:.0f} GFLOP/s fp32 in the profile, noise while "
          f"measuring it {100 * profile['noise']:.1f} %; {min(peaks):.0f} to {max(peaks):.0f} "
          f"GFLOP/s around the steps.\n")


def main():
    directory = pathlib.Path(sys.argv[1])
    rows = [read_row(directory, path.name.removesuffix(".plan.json"))
            for path in sorted(directory.glob("*.plan.json"))]
    print_machine(json.loads((directory / "profile").read_text()), rows)
    print("| recipe | tokens per step | predicted just before | median step | error | spread of rounds "
          "| by the profile alone | error |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        now, measured = statistics.median(row["now"]), statistics.median(row["measured"])
        print(f"| {row['name']} | {row['tokens']} | {1e3 * now:.0f} ms | {1e3 * measured:.0f} ms "
              f"| {100 * (now / measured - 1):+.1f} % "
              f"| {100 * (max(row['measured']) / min(row['measured']) - 1):.0f} % "
              f"| {1e3 * row['profile']:.0f} ms | {100 * (row['profile'] / measured - 1):+.1f} % |")
    print(f"\n{len(rows)} recipes, one profile measured beforehand, {len(rows[0]['now'])} rounds:\n")
    medians = [statistics.median(row["measured"]) for row in rows]
    print_verdict("predicted just before, medians of the rounds",
                  [(statistics.median(row["now"]), m) for row, m in zip(rows, medians)])
    print_verdict("each round for itself",
                  [pair for row in rows for pair in zip(row["now"], row["measured"])], ordered=False)
    print_verdict("by the profile alone", [(row["profile"], m) for row, m in zip(rows, medians)])


if __name__ == "__main__":
    main()
