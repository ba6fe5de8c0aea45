#!/usr/bin/env python3
"""What computing activations again adds to a step, beside what the plan says.

    scripts/bench/recompute.py [--executable FILE] [--threads N] [--rounds N] [--seconds N] [--keep DIR] [--write]

    --executable FILE  llmtrain (build/ci/apps/llmtrain/llmtrain)
    --threads N        compute threads (2)
    --rounds N         goes through all rows so often (7)
    --seconds N        times the steps of a row for about so long in each round (3)
    --keep DIR         keeps the profile of `llmtrain doctor` and the rounds there, and goes on from what is there
    --write            puts the table into docs/planner.md

A round times, for each row, steps that keep everything, then steps of the row, then of the first kind again. What a row adds is
its median step at the profile's speed (`llmtrain bench` samples how fast multiply-adds are in pauses of the steps) less the mean of
those around it, so that a machine whose speed drifts moves both; the figure is the median over rounds. A block keeps 145 MB, far more
than is near a processor: what is computed again comes from memory, as in models that need this. Exit code 1 where one is off the plan's
by more than a tenth of it and by more than LEAST of a step, or where activations exceed a budget. Rounds that --keep has kept are
those of this executable.
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = """recipe: 1
run: {{threads: {threads}}}
model: {{architecture: llama, vocab_size: 2048, hidden_size: 512, intermediate_size: 1408, num_hidden_layers: 6,
        num_attention_heads: 8, max_position_embeddings: 512}}
tokenizer: {{type: bytes}}
data: {{sources: [{{path: never-read.txt}}]}}
training: {{seq_len: 512, micro_batch_size: 8, global_batch_size: 8, max_steps: 100}}
optimizer: {{lr: 1.0e-4}}
"""
LEAST = 0.005  # of a step: medians of few steps tell no less
NOTHING = "activation_checkpoint.mode=none"
ROWS = {f"budget {share}": f"activation_checkpoint={{mode: budget, budget: {share}}}" for share in (0.8, 0.6, 0.4, 0.3)}
ROWS |= {"sqrt": "activation_checkpoint.mode=sqrt", "full": "activation_checkpoint.mode=full"}


def told(executable, work, *words):
    environment = os.environ | {"XDG_CACHE_HOME": str(work / "cache")}  # no profile of the user's
    done = subprocess.run([executable, *words], cwd=work, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout) if "--json" in words else None


class Comparison:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.executable = options.executable.resolve()
        (work / "recipe.yaml").write_text(RECIPE.format(threads=options.threads))
        if not (work / "profile").exists():
            told(self.executable, work, "doctor", "--threads", str(options.threads), "--output", "profile")

    def planned(self, override):
        """Seconds of a step, and bytes of activations."""
        plan = told(self.executable, self.work, "plan", "recipe.yaml", "--profile", "profile", "--json", override)
        return plan["time"]["step_seconds"], plan["step"]["category_bytes"]["activations"]

    def timed(self, override, steps):
        bench = told(self.executable, self.work, "bench", "recipe.yaml", "--profile", "profile", "--steps", str(steps),
                     "--json", override)
        return bench["step_seconds_at_profile_speed"]

    def round(self, steps):
        added, before = {}, self.timed(NOTHING, steps)
        for name, override in ROWS.items():
            seconds, after = self.timed(override, steps), self.timed(NOTHING, steps)
            added[name] = seconds / (0.5 * (before + after)) - 1
            before = after
        return added

    def run(self):
        """Lines of the table, and whether every row holds."""
        base, everything = self.planned(NOTHING)
        steps = max(3, round(self.options.seconds / base))
        plans = {name: self.planned(override) for name, override in ROWS.items()}
        kept = self.work / f"rounds-{hashlib.sha256(self.executable.read_bytes()).hexdigest()[:12]}.json"
        rounds = json.loads(kept.read_text()) if kept.exists() else []
        while len(rounds) < self.options.rounds:
            rounds.append(self.round(steps))
            kept.write_text(json.dumps(rounds))
            print(f"round {len(rounds)}: " + ", ".join(f"{name} {100 * of:+.1f} %" for name, of in rounds[-1].items()), flush=True)
        added = {name: [of_round[name] for of_round in rounds] for name in ROWS}
        fine = True
        lines = ["", f"{self.options.threads} threads, {self.options.rounds} rounds of {steps} steps.", "",
                 "| activations | of all | planned to add | added | off |", "|---|---:|---:|---:|---:|"]
        for name, (seconds, held) in plans.items():
            plan, found = seconds / base - 1, statistics.median(added[name])
            off = found / plan - 1
            within = not name.startswith("budget") or held <= float(name.split()[1]) * everything
            fine = fine and within and (abs(off) <= 0.1 or abs(found - plan) <= LEAST)
            lines.append(f"| {name} | {held / everything:.3f} | {100 * plan:.1f} % | {100 * found:.1f} % | {100 * off:+.0f} % |")
        return lines, fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executable", default=ROOT / "build/ci/apps/llmtrain/llmtrain", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.keep or pathlib.Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        lines, fine = Comparison(options, work).run()
        text = "\n".join(lines) + "\n"
        print(text)
        if options.write:
            section = work / "table.md"
            section.write_text(text)
            subprocess.run([sys.executable, ROOT / "scripts/bench/put_section.py", ROOT / "docs/planner.md", "recompute", section],
                           check=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
