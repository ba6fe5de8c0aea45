#!/usr/bin/env python3
"""Table of predicted and measured step times of the runs in a directory of scripts/bench/predict.sh."""

import json
import pathlib
import statistics
import sys

# The first steps touch memory for the first time and prepare the products.
WARMUP = 2


def read_run(directory, name):
    plan = json.loads((directory / f"{name}.plan.json").read_text())
    lines = (directory / "runs" / name / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    seconds = [r["time/step_seconds"] for r in records if "time/step_seconds" in r][WARMUP:]
    return plan["time"], plan["tokens_per_step"], statistics.median(seconds), min(seconds)


def wrong_pairs(rows):
    """Pairs of runs whose measured times differ by over 5 % and are predicted in the other order."""
    wrong = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            if abs(a[3] - b[3]) > 0.05 * max(a[3], b[3]) and (a[2] - b[2]) * (a[3] - b[3]) < 0:
                wrong.append(f"{a[0]}/{b[0]}")
    return wrong


def main():
    directory = pathlib.Path(sys.argv[1])
    profile = json.loads((directory / "profile.json").read_text())
    rows = []
    for path in sorted(directory.glob("*.plan.json")):
        name = path.name.removesuffix(".plan.json")
        time, tokens, median, best = read_run(directory, name)
        rows.append((name, tokens, time["step_seconds"], median, best))
    errors = [abs(r[2] / r[3] - 1) for r in rows]
    machine = profile["machine"]
    print(f"Machine: {machine['cpu']}, {profile['threads']} threads, {machine['instruction_set']}, "
          f"oneDNN {machine['onednn_version']}. FMA peak {profile['peak_fp32_flops'] / 1e9:.0f} "
          f"GFLOP/s fp32, {profile['peak_bf16_flops'] / 1e9:.0f} bf16. "
          f"Noise while measuring the profile: {100 * profile['noise']:.1f} %.\n")
    print("| recipe | tokens per step | predicted | median step | best step | error |")
    print("|---|---|---|---|---|---|")
    for (name, tokens, predicted, median, best), error in zip(rows, errors):
        sign = "+" if predicted >= median else "-"
        print(f"| {name} | {tokens} | {1e3 * predicted:.0f} ms | {1e3 * median:.0f} ms "
              f"| {1e3 * best:.0f} ms | {sign}{100 * error:.1f} % |")
    wrong = wrong_pairs(rows)
    print(f"\n{len(rows)} recipes: median error {100 * statistics.median(errors):.1f} %, "
          f"worst {100 * max(errors):.1f} %; order by speed "
          + ("right." if not wrong else f"wrong for {', '.join(wrong)}."))


if __name__ == "__main__":
    main()
