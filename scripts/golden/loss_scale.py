#!/usr/bin/env python3
"""Writes tests/unit/optim/loss_scale_golden.json: the scale of a loss by torch.amp.GradScaler.

    python scripts/golden/loss_scale.py

Each case has the scaler's arguments and a series of steps, 1 where gradients are finite and 0 where one
is infinite. Of each step: the scale behind it, the good steps since it changed, and whether the optimizer
took it. No series comes to a scale below 1 or above 2^32, which PyTorch does not know as bounds.
"""
import json
import pathlib
import random

import torch

# init_scale, growth_factor, backoff_factor, growth_interval, chance of an overflow
CASES = [(2.0**16, 2.0, 0.5, 3, 0.25), (2.0**20, 4.0, 0.25, 2, 0.3), (2.0**20, 16.0, 0.125, 4, 0.2),
         (2.0**16, 2.0, 0.0625, 1, 0.2), (2.0**16, 2.0, 0.5, 2000, 0.1)]
STEPS = 48


def series(scaler, finite):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.scale(torch.zeros(()))  # makes the scaler's tensors
    scales, good_steps, taken = [], [], []
    for step in finite:
        before = parameter.detach().clone()
        parameter.grad = torch.tensor([1.0, 1.0 if step else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        good_steps.append(scaler._get_growth_tracker())
        taken.append(int(not torch.equal(parameter, before)))
    assert all(1 <= scale <= 2.0**32 for scale in scales), scales
    return {"scales": scales, "good_steps": good_steps, "taken": taken}


def main():
    cases = []
    for number, (initial, growth, backoff, interval, chance) in enumerate(CASES):
        draw = random.Random(number)
        finite = [int(draw.random() >= chance) for _ in range(STEPS)]
        scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_factor=growth, backoff_factor=backoff,
                                      growth_interval=interval)
        cases.append({"init_scale": initial, "growth_factor": growth, "backoff_factor": backoff,
                      "growth_interval": interval, "finite": finite, **series(scaler, finite)})
    lines = ",\n".join(json.dumps(case) for case in cases)
    root = pathlib.Path(__file__).resolve().parents[2]
    (root / "tests/unit/optim/loss_scale_golden.json").write_text('{"cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
