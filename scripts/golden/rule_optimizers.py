#!/usr/bin/env python3
"""Writes tests/unit/optim/rule_optimizers_golden.json: twenty steps of the authors' optimizers.

    scripts/golden/rule_optimizers.py LION_PYTORCH_PY ADAM_MINI_PY

Needs torch on the CPU and, of google/automl, lion/lion_pytorch.py and, of zyushun/Adam-mini,
adam_mini/adam_mini.py. Inputs are formulas that
tests/unit/optim/rule_golden_test.cpp repeats; of large tensors every so-many-th element is kept, and
the norm of all.
"""
import functools
import importlib.util
import json
import math
import pathlib
import sys

import numpy as np
import torch

import formula

SHAPES = {"a": (1, 1), "b": (7, 13), "c": (128, 64), "d": (64, 128), "e": (257,)}
ROWS_PER_HEAD = 16
STRIDES = {"a": 1, "b": 3, "c": 509, "d": 509, "e": 7}
LR = 0.02
# Warm-up and linear decay.
LR_FACTORS = [min(1.0, (t + 1) / 4) * (1 - t / 40) for t in range(20)]
GRADIENT_SCALES = [1.0, 2.0**-8, 0.25, 2.0**-7, 2.0]  # in turn: some norms above the limit, some below
MAX_GRAD_NORM = 1.0
SPECIAL = 97  # one element in so many is zero, one is subnormal in FP32, and one huge in some steps
SUBNORMAL = 2.0**-130
HUGE = 2.0**30
HUGE_STEPS = 5, 3  # t with t % 5 == 3
GROUPS = {"e": {"lr_scale": 2.0, "weight_decay": 0.0}, "b": {"lr_scale": 0.5, "weight_decay": 0.3}}


def gradient(name, t):
    key = f"{name} gradient {t}"
    values = formula.weights(key, SHAPES[name], 0.0, GRADIENT_SCALES[t % len(GRADIENT_SCALES)])
    flat = values.reshape(-1)
    kind = formula.below(f"{name} kind", SPECIAL, flat.size)
    flat[kind == 0] = 0
    flat[kind == 1] = SUBNORMAL
    if t % HUGE_STEPS[0] == HUGE_STEPS[1]:
        flat[kind == 2] = HUGE
    return torch.from_numpy(values.astype(np.float64))


class AdamMini:
    """The authors' class, which goes by names, on these shapes: `c` is a projection to queries of four heads."""

    NAMES = {"a": "mlp.a", "b": "mlp.b", "c": "q_proj.c", "d": "mlp.d", "e": "norm.e"}

    def __init__(self, made_by, groups, lr, **arguments):
        parameters = [group["params"][0] for group in groups]
        named = [(self.NAMES[name], p) for name, p in zip(SHAPES, parameters)]
        dim = SHAPES["c"][1]
        self.optimizer = made_by(named, lr=lr, dim=dim, n_heads=dim // ROWS_PER_HEAD, verbose=False, **arguments)
        for mine, given in zip(self.optimizer.param_groups, groups):
            mine["lr"] = given.get("lr", lr)
            mine["weight_decay"] = given.get("weight_decay", mine["weight_decay"])

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    def step(self):
        self.optimizer.step()


def cases(lion, adam_mini):
    """Row of the table, keys of the recipe, class and arguments of the author's code."""
    adam = torch.optim.Adam
    adamw = torch.optim.AdamW
    rmsprop = torch.optim.RMSprop
    same = {"weight_decay": 0.1}
    adagrad = {"lr_decay": 0.05, "initial_accumulator_value": 0.25, "eps": 1e-6, **same}
    with_momentum = {"alpha": 0.9, "momentum": 0.8, **same}
    centered = {"alpha": 0.95, "centered": True, **same}
    both = {"alpha": 0.9, "momentum": 0.8, "centered": True, "eps": 1e-6, **same}
    betas = {"betas": [0.8, 0.9], "eps": 1e-6, **same}
    return [
        ("nesterov", {"momentum": 0.8, **same}, torch.optim.SGD, {"momentum": 0.8, "nesterov": True, **same}),
        ("adagrad", same, torch.optim.Adagrad, same),
        ("adagrad", adagrad, torch.optim.Adagrad, adagrad),
        ("rmsprop", same, rmsprop, same),
        ("rmsprop", with_momentum, rmsprop, with_momentum),
        ("rmsprop", centered, rmsprop, centered),
        ("rmsprop", both, rmsprop, both),
        ("amsgrad", same, adam, {"amsgrad": True, **same}),
        ("amsgrad", {"decoupled": True, **betas}, adamw, {"amsgrad": True, **betas}),
        ("adam_mini", same, functools.partial(AdamMini, adam_mini), same),
        ("adam_mini", betas, functools.partial(AdamMini, adam_mini), {**betas, "betas": tuple(betas["betas"])}),
        ("lion", same, lion, same),
        ("lion", {"betas": [0.95, 0.98], **same}, lion, {"betas": (0.95, 0.98), **same}),
    ]


STATE_NAMES = {
    "nesterov": {"momentum_buffer": "momentum"},
    "adagrad": {"sum": "sum"},
    "rmsprop": {"square_avg": "v", "grad_avg": "m", "momentum_buffer": "momentum"},
    "amsgrad": {"exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "v_max"},
    "lion": {"exp_avg": "m"},
    "adam_mini": {"m": "m", "vmean": "v"},
}


def kept(tensor, stride, digits):
    flat = tensor.detach().double().flatten()
    return {"norm": float(f"{flat.norm().item():.{digits}g}"),
            "sample": [float(f"{x:.{digits}g}") for x in flat[::stride].tolist()]}


def run(make, arguments, dtype, state_names, lr=LR, strides=STRIDES, vector_strides=STRIDES):
    """Norms of gradients, and parameters and states after the steps; vectors are states of fewer elements."""
    digits = 15 if dtype == torch.float64 else 9
    parameters = {name: torch.nn.Parameter(torch.from_numpy(formula.weights(name, shape, 0.0, 1.0)).to(dtype))
                  for name, shape in SHAPES.items()}
    groups = []
    for name, parameter in parameters.items():
        group = {"params": [parameter]}
        if name in GROUPS:
            group |= {"lr": lr * GROUPS[name]["lr_scale"], "weight_decay": GROUPS[name]["weight_decay"]}
        groups.append(group)
    optimizer = make(groups, lr=lr, **arguments)
    base = [group["lr"] for group in optimizer.param_groups]
    norms = []
    for t, factor in enumerate(LR_FACTORS):
        for name, parameter in parameters.items():
            parameter.grad = gradient(name, t).to(dtype)
        for group, rate in zip(optimizer.param_groups, base):
            group["lr"] = rate * factor
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_GRAD_NORM).item())
        optimizer.step()
    assert all(math.isfinite(norm) for norm in norms)
    states = {f"{name}#{state_names[key]}":
              kept(state, (strides if state.numel() == p.numel() else vector_strides)[name], digits)
              for name, p in parameters.items() for key, state in optimizer.state[p].items()
              if key in state_names and state is not None}
    return {"norms": [float(f"{norm:.{digits}g}") for norm in norms],
            "parameters": {name: kept(p, strides[name], digits) for name, p in parameters.items()},
            "states": states}


def module_at(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs():
    """What a test needs to repeat the gradients and the learning rates."""
    return {
        "lr": LR,
        "lr_factors": LR_FACTORS,
        "gradient_scales": GRADIENT_SCALES,
        "max_grad_norm": MAX_GRAD_NORM,
        "special": SPECIAL,
        "subnormal": SUBNORMAL,
        "huge": HUGE,
        "huge_steps": HUGE_STEPS,
        "shapes": SHAPES,
        "rows_per_head": {"c": ROWS_PER_HEAD},
    }


def write(name, golden):
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "unit" / "optim" / name
    path.write_text(json.dumps(golden, separators=(",", ":")).replace("},", "},\n") + "\n")
    print(f"{path}: {path.stat().st_size} bytes, torch {torch.__version__}")


def main():
    lion = module_at("lion_pytorch", sys.argv[1])
    adam_mini = module_at("adam_mini", sys.argv[2])
    write("rule_optimizers_golden.json", {
        "generator": "scripts/golden/rule_optimizers.py",
        "torch": torch.__version__,
        "lion": "google/automl lion/lion_pytorch.py",
        "adam_mini": "zyushun/Adam-mini adam_mini/adam_mini.py, 402aadf",
        **inputs(),
        "strides": STRIDES,
        "groups": GROUPS,
        "cases": [{"name": row, "options": options,
                   "fp64": run(make, arguments, torch.float64, STATE_NAMES[row]),
                   "fp32": run(make, arguments, torch.float32, STATE_NAMES[row])}
                  for row, options, make, arguments in cases(lion.Lion, adam_mini.Adam_mini)],
    })


if __name__ == "__main__":
    main()
