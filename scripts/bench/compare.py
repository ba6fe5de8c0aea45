#!/usr/bin/env python3
"""Table of predicted and measured step times in a directory of scripts/bench/predict.sh."""

import json
import pathlib
import statistics
import sys


def step_seconds(path):
    return json.loads(path.read_text())["time"]["step_seconds"]


def read_row(directory, name):
    """Times in seconds: by the profile, and per round as predicted just before, as timed, and as it would
    have been timed at the profile's speed."""
    benches = [json.loads(path.read_text()) for path in sorted(directory.glob(f"{name}.bench.*"))]
    return {
        "name": name,
        "tokens": benches[0]["tokens_per_step"],
        "profile": step_seconds(directory / f"{name}.plan.json"),
        "now": [step_seconds(path) for path in sorted(directory.glob(f"{name}.now.*"))],
        "timed": [bench["median_step_seconds"] for bench in benches],
        "even": [bench["step_seconds_at_profile_speed"] for bench in benches],
        "peaks": [bench["peak_flops"] for bench in benches],
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
          f"{machine['instruction_set']}. "
          f"FMA peak {profile['peak_fp32_flops'] / 1e9:.0f} GFLOP/s fp32 in the profile, noise while "
          f"measuring it {100 * profile['noise']:.1f} %; {min(peaks):.0f} to {max(peaks):.0f} "
          f"GFLOP/s around the steps.\n")


def main():
    directory = pathlib.Path(sys.argv[1])
    rows = [read_row(directory, path.name.removesuffix(".plan.json"))
            for path in sorted(directory.glob("*.plan.json"))]
    print_machine(json.loads((directory / "profile").read_text()), rows)
    print("| recipe | tokens per step | predicted | step at the profile's speed | error "
          "| predicted just before | step as timed | error | spread of rounds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        even, now, timed = (statistics.median(row[key]) for key in ("even", "now", "timed"))
        print(f"| {row['name']} | {row['tokens']} | {1e3 * row['profile']:.0f} ms | {1e3 * even:.0f} ms "
              f"| {100 * (row['profile'] / even - 1):+.1f} % | {1e3 * now:.0f} ms | {1e3 * timed:.0f} ms "
              f"| {100 * (now / timed - 1):+.1f} % "
              f"| {100 * (max(row['timed']) / min(row['timed']) - 1):.0f} % |")
    print(f"\n{len(rows)} recipes, one profile measured beforehand, {len(rows[0]['now'])} rounds:\n")
    print_verdict("predicted by the profile, each step at the profile's speed",
                  [(row["profile"], statistics.median(row["even"])) for row in rows])
    print_verdict("predicted by the profile, steps as timed, however fast the machine was",
                  [(row["profile"], statistics.median(row["timed"])) for row in rows])
    print_verdict("predicted just before, steps as timed",
                  [(statistics.median(row["now"]), statistics.median(row["timed"])) for row in rows])
    print_verdict("each of these for itself",
                  [pair for row in rows for pair in zip(row["now"], row["timed"])], ordered=False)


if __name__ == "__main__":
    main()
