#!/usr/bin/env python3
"""Writes tests/unit/ops/z_loss_golden.json: loss, z-loss and gradients of an LM head by PyTorch's
autograd in FP64.

    python scripts/golden/z_loss.py

Hidden states and the head are formulas (formula.py). Of the head's rows the last ones are padding, of
the targets some are untrained (-1), and the logits are as they are or softly capped. loss and z_loss
are sums over the trained tokens, dx and dw gradients of grad_scale * (loss + z_loss) with
z_loss = z_loss_coef * logsumexp^2.
"""
import json
import pathlib

import torch

import formula

ROWS, HIDDEN, CLASSES, PADDED, SCALE = 70, 6, 19, 24, 2.0
Z_LOSS_COEF, GRAD_SCALE, SOFTCAPS = 0.03, 0.25, [0.0, 3.0]


def case(x, w, targets, softcap):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    logits = x @ w[:CLASSES].T
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")
    z_loss = Z_LOSS_COEF * logits[targets >= 0].logsumexp(1).square().sum()
    (GRAD_SCALE * (loss + z_loss)).backward()
    return {"softcap": softcap, "loss": loss.item(), "z_loss": z_loss.item(),
            "dx": x.grad.flatten().tolist(), "dw": w.grad.flatten().tolist()}


def main():
    x = torch.from_numpy(formula.weights("z-loss x", (ROWS, HIDDEN), 0.0, 1.0)).double()
    w = torch.from_numpy(formula.weights("z-loss head", (PADDED, HIDDEN), 0.0, SCALE)).double()
    targets = torch.from_numpy(formula.below("z-loss target", CLASSES, ROWS))
    targets[2::5] = -1
    golden = {"rows": ROWS, "hidden": HIDDEN, "classes": CLASSES, "padded": PADDED, "scale": SCALE,
              "z_loss_coef": Z_LOSS_COEF, "grad_scale": GRAD_SCALE, "targets": targets.tolist(),
              "cases": [case(x, w, targets, softcap) for softcap in SOFTCAPS]}
    root = pathlib.Path(__file__).resolve().parents[2]
    file = root / "tests" / "unit" / "ops" / "z_loss_golden.json"
    file.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
