#!/usr/bin/env python3
"""Table of predicted and measured step times in a directory of scripts/bench/predict.sh."""

import json
import pathlib
import statistics
import sys

# At the speed that the machine left to us while the steps were measured.
PREDICTED = "predicted_now_step_seconds"


def wrong_pairs(rows):
    """Pairs of runs whose measured times differ by over 5 % and are predicted in the other order."""
    wrong = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            times = a["median_step_seconds"], b["median_step_seconds"]
            guesses = a[PREDICTED], b[PREDICTED]
            far = abs(times[0] - times[1]) > 0.05 * max(times)
            if far and (times[0] - times[1]) * (guesses[0] - guesses[1]) < 0:
                wrong.append(f"{a['name']}/{b['name']}")
    return wrong


def error_of(row, predicted):
    return row[predicted] / row["median_step_seconds"] - 1


def print_machine(profile):
    machine = profile["machine"]
    print(f"Machine: {machine['cpu']}, {profile['threads']} threads, {machine['instruction_set']}, "
          f"oneDNN {machine['onednn_version']}. FMA peak {profile['peak_fp32_flops'] / 1e9:.0f} "
          f"GFLOP/s fp32, {profile['peak_bf16_flops'] / 1e9:.0f} bf16; "
          f"{profile['usual_fp32_flops'] / 1e9:.0f} fp32 between the kernels measured. "
          f"Noise while measuring the profile: {100 * profile['noise']:.1f} %.\n")


def main():
    directory = pathlib.Path(sys.argv[1])
    print_machine(json.loads((directory / "profile.json").read_text()))
    rows = []
    for path in sorted(directory.glob("*.bench.json")):
        rows.append(json.loads(path.read_text()) | {"name": path.name.removesuffix(".bench.json")})
    print("| recipe | tokens per step | multiply-adds | predicted | median step | error |"
          " error without the speed of the minute |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['name']} | {row['tokens_per_step']} | {row['fma_fp32_flops'] / 1e9:.0f} "
              f"GFLOP/s | {1e3 * row[PREDICTED]:.0f} ms "
              f"| {1e3 * row['median_step_seconds']:.0f} ms "
              f"| {100 * error_of(row, PREDICTED):+.1f} % "
              f"| {100 * error_of(row, 'predicted_step_seconds'):+.1f} % |")
    wrong = wrong_pairs(rows)
    for label, predicted in (("", PREDICTED),
                             ("without the speed of the minute ", "predicted_step_seconds")):
        errors = [abs(error_of(row, predicted)) for row in rows]
        print(f"\n{len(rows)} recipes: {label}median error {100 * statistics.median(errors):.1f} %, "
              f"worst {100 * max(errors):.1f} %.")
    print("\nOrder by speed "
          + ("right." if not wrong else f"wrong for {', '.join(wrong)}."))


if __name__ == "__main__":
    main()
