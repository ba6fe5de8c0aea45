#!/usr/bin/env python3
"""Verdicts of scripts/bench/gpu_table.py over what is right, missing or wrong."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/bench"))
import gpu_table  # noqa: E402


class Verdicts(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.at = pathlib.Path(self.directory.name)

    def tearDown(self):
        self.directory.cleanup()

    def told(self, command, *arguments):
        """(whether it is good, its rows)"""
        rows = io.StringIO()
        with contextlib.redirect_stdout(rows):
            good = command(*map(str, arguments))
        return good, rows.getvalue()

    def sanitized(self, *lines):
        (self.at / "memcheck.txt").write_text("".join("\t".join(line) + "\n" for line in lines))
        return self.told(gpu_table.sanitizer, "memcheck", self.at / "memcheck.txt", 6)

    def test_a_sanitizer_that_failed_hung_or_did_nothing_is_no_success(self):
        passed, skipped = ("2", "passed", "two"), ("3", "skipped", "three")
        good, rows = self.sanitized(("1", "passed", "one"), passed, skipped, ("5", "not done when the time was over", "five"))
        self.assertTrue(good)
        self.assertIn("2 of 6 cases without an error, 0 with one, 0 without an end, 1 have nothing", rows)
        self.assertIn("3 not reached", rows)
        self.assertIn("covered: 1-2;", rows)
        for bad in (("1", "FAILED (9): Invalid read", "one"), ("1", "HUNG: not done after 150 s", "one")):
            good, rows = self.sanitized(bad, passed)
            self.assertFalse(good)
            self.assertIn(f"one: {bad[1]}", rows)
        self.assertFalse(self.sanitized(skipped)[0])
        self.assertFalse(self.told(gpu_table.sanitizer, "memcheck", self.at / "none.txt", 6)[0])

    def test_memory_outside_of_the_plan_is_seen(self):
        gib = 1 << 30

        def memory(planned, arena, used, reached=None):
            (self.at / "memory.json").write_text(json.dumps(
                {"planned_bytes": planned, "arena_bytes": arena,
                 "reached_bytes": planned if reached is None else reached, "used_bytes_of_gpu": used}))
            return self.told(gpu_table.memory, self.at / "memory.json", "m", 512, 12 * 1024)[0]

        self.assertTrue(memory(11 * gib, 11 * gib, 11 * gib + 700))
        self.assertFalse(memory(11 * gib, 11 * gib, 12 * gib + 1))
        self.assertFalse(memory(11 * gib, 11 * gib, 10 * gib))
        self.assertFalse(memory(11 * gib, 70 * gib, 70 * gib))
        self.assertFalse(memory(11 * gib, 11 * gib, 11 * gib + 700, 11 * gib - 512))
        self.assertFalse(self.told(gpu_table.memory, self.at / "none.json", "m", 1, 2)[0])

    def spread(self, ours, eager, compiled):
        for seed in "12":
            run = self.at / seed / "run"
            run.mkdir(parents=True, exist_ok=True)
            shift = 0.5 * int(seed)
            (run / "metrics.jsonl").write_text("".join(
                json.dumps({"step": i + 1, "train/loss": shift + x}) + "\n" for i, x in enumerate(ours)))
            for name, losses in (("torch_eager", eager), ("torch_compile", compiled)):
                (self.at / seed / f"{name}.json").write_text(json.dumps({"losses": [shift + x for x in losses]}))
        return self.told(gpu_table.spread, self.at, 20, 1, 2)

    def test_what_lies_on_the_host_may_change_no_bit(self):
        for last, is_good in ((2.5, True), (2.5000001, False), (None, False)):
            for name, losses in (("bf16", [3.5, 2.5]), ("offload_states_host", [3.5, last])):
                records = [{"step": n, "train/loss": loss, "time/step_seconds": 0.25} for n, loss in enumerate(losses) if loss]
                (self.at / name).mkdir(exist_ok=True)
                (self.at / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
            good, rows = self.told(gpu_table.runs, self.at, "bf16\t\noffload_states_host\t")
            self.assertEqual(good, is_good)
            self.assertIn("250.0 ms a step" if last else "no result", rows)

    def test_losses_farther_from_pytorchs_than_its_own_runs_are_seen(self):
        flat = [3.0] * 20
        apart = lambda by: [3.0] * 10 + [3.0 + by] * 10  # noqa: E731
        self.assertTrue(self.spread(flat, flat, flat)[0])
        self.assertTrue(self.spread(apart(0.009), flat, flat)[0])
        good, rows = self.spread(apart(0.02), flat, flat)
        self.assertFalse(good)
        self.assertIn("0.0200 nats apart at most, 0.0100 allowed", rows)
        self.assertIn("two seeds of ours 0.5000", rows)
        self.assertTrue(self.spread(apart(0.02), flat, apart(0.015))[0])
        self.assertFalse(self.spread([3.1] + flat[1:], flat, flat)[0])
        for where in range(3):  # whose last loss is none
            runs = [flat, flat, flat]
            runs[where] = flat[:19] + [float("nan")]
            self.assertFalse(self.spread(*runs)[0])
        self.assertFalse(self.spread(flat[:19], flat, flat)[0])


if __name__ == "__main__":
    unittest.main()
