#!/usr/bin/env python3
"""Table of predicted and measured step times in a directory of scripts/bench/predict.sh."""

import json
import pathlib
import statistics
import sys


def wrong_pairs(rows):
    """Pairs of runs whose measured times differ by over 5 % and are predicted in the other order."""
    wrong = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            times = a["median_step_seconds"], b["median_step_seconds"]
            guesses = a["predicted_step_seconds"], b["predicted_step_seconds"]
            far = abs(times[0] - times[1]) > 0.05 * max(times)
            if far and (times[0] - times[1]) * (guesses[0] - guesses[1]) < 0:
                wrong.append(f"{a['name']}/{b['name']}")
    return wrong


def error_of(row):
    return row["predicted_step_seconds"] / row["median_step_seconds"] - 1


def read_row(directory, name):
    """What was planned, and the medians over all rounds."""
    plan = json.loads((directory / f"{name}.plan.json").read_text())
    rounds = [json.loads(path.read_text()) for path in directory.glob(f"{name}.bench.*")]
    return {
        "name": name,
        "tokens_per_step": plan["tokens_per_step"],
        "predicted_step_seconds": plan["time"]["step_seconds"],
        "median_step_seconds": statistics.median(r["median_step_seconds"] for r in rounds),
        "best_step_seconds": min(r["best_step_seconds"] for r in rounds),
    }


def print_machine(profiles):
    """The machine, and how far it differed from itself."""
    machine = profiles[0]["machine"]
    peaks = [p["peak_fp32_flops"] / 1e9 for p in profiles]
    noise = statistics.median(p["noise"] for p in profiles)
    print(f"Machine: {machine['cpu']}, {profiles[0]['threads']} threads, "
          f"{machine['instruction_set']}, oneDNN {machine['onednn_version']}. "
          f"FMA peak {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s fp32 in {len(profiles)} profiles; "
          f"noise while measuring one: {100 * noise:.1f} %.\n")


def main():
    directory = pathlib.Path(sys.argv[1])
    print_machine([json.loads(p.read_text()) for p in directory.glob("profile.*")])
    rows = [read_row(directory, path.name.removesuffix(".plan.json"))
            for path in sorted(directory.glob("*.plan.json"))]
    print("| recipe | tokens per step | predicted | median step | best step | error |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['tokens_per_step']} "
              f"| {1e3 * row['predicted_step_seconds']:.0f} ms "
              f"| {1e3 * row['median_step_seconds']:.0f} ms "
              f"| {1e3 * row['best_step_seconds']:.0f} ms | {100 * error_of(row):+.1f} % |")
    errors = [abs(error_of(row)) for row in rows]
    wrong = wrong_pairs(rows)
    print(f"\n{len(rows)} recipes: median error {100 * statistics.median(errors):.1f} %, "
          f"worst {100 * max(errors):.1f} %; order by speed "
          + ("right." if not wrong else f"wrong for {', '.join(wrong)}."))


if __name__ == "__main__":
    main()
