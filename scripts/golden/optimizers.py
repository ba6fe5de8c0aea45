#!/usr/bin/env python3
"""Writes tests/unit/optim/optimizers_golden.json: five steps of PyTorch's optimizers.

Needs torch on the CPU. All inputs are multiples of 1/256, exact in every type.
"""
import json
import pathlib

import torch

SHAPES = {"w": (3, 5), "n": (7,)}  # a matrix that decays and a norm that does not
LR = 0.02
LR_FACTORS = [0.5, 1.0, 1.0, 0.75, 0.25]
GRADIENT_SCALES = [4.0, 0.125, 1.0, 0.0625, 2.0]  # some norms above MAX_GRAD_NORM, some below
MAX_GRAD_NORM = 1.0
LR_SCALE_OF_N = 2.0


class FullPrecision:
    """The torch module, but bfloat16 is the type of the parameters: Muon's iteration without its
    rounding."""

    def __init__(self, dtype):
        self.bfloat16 = dtype

    def __getattr__(self, name):
        return getattr(torch, name)


class MuonAndAdamW:
    """torch.optim.Muon for the first group, a matrix, AdamW for the second."""

    def __init__(self, groups, lr, betas, eps, weight_decay, **arguments):
        self.muon = torch.optim.Muon(groups[:1], lr=lr, weight_decay=weight_decay, **arguments)
        self.adamw = torch.optim.AdamW(groups[1:], lr=lr, betas=betas, eps=eps)
        self.param_groups = self.muon.param_groups + self.adamw.param_groups

    def step(self):
        torch.optim._muon.torch = FullPrecision(self.param_groups[0]["params"][0].dtype)
        self.muon.step()
        torch.optim._muon.torch = torch
        self.adamw.step()

    @property
    def state(self):
        return {**self.muon.state, **self.adamw.state}


ADAM = {"betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
CASES = [  # row of the table, keys of the recipe, class and arguments in torch
    ("adamw", ADAM, torch.optim.AdamW, ADAM),
    ("adam", ADAM, torch.optim.Adam, ADAM),
    ("sgd", {"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    ("momentum", {"momentum": 0.8, "dampening": 0.25, "weight_decay": 0.1}, torch.optim.SGD,
     {"momentum": 0.8, "dampening": 0.25, "weight_decay": 0.1}),
    ("momentum", {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}, torch.optim.SGD,
     {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    ("muon", {**ADAM, "momentum": 0.8}, MuonAndAdamW,
     {**ADAM, "momentum": 0.8, "adjust_lr_fn": "match_rms_adamw"}),
    ("muon", {**ADAM, "momentum": 0.9, "nesterov": False, "ns_steps": 3, "lr_adjustment": "original"},
     MuonAndAdamW, {**ADAM, "momentum": 0.9, "nesterov": False, "ns_steps": 3}),
]
# Five iterations multiply an error by up to 3.4445^5.
FP32_TOLERANCE = {"muon": 1e-4}
STATE_NAMES = {"exp_avg": "m", "exp_avg_sq": "v", "momentum_buffer": "momentum"}


def draw(generator, shape, scale):
    return torch.round(torch.randn(shape, generator=generator) * scale * 256).double() / 256


def flat(tensor, digits):
    return [float(f"{x:.{digits}g}") for x in tensor.detach().double().flatten().tolist()]


def run(make, arguments, dtype, initial, gradients):
    digits = 15 if dtype == torch.float64 else 9
    parameters = {name: torch.nn.Parameter(value.to(dtype, copy=True)) for name, value in initial.items()}
    no_decay = {"weight_decay": 0.0, "lr": LR * LR_SCALE_OF_N}
    optimizer = make([{"params": [parameters["w"]]}, {"params": [parameters["n"]], **no_decay}],
                     lr=LR, **arguments)
    base = [group["lr"] for group in optimizer.param_groups]
    steps = []
    for factor, gradient in zip(LR_FACTORS, gradients):
        for name, parameter in parameters.items():
            parameter.grad = gradient[name].to(dtype, copy=True)
        for group, lr in zip(optimizer.param_groups, base):
            group["lr"] = lr * factor
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_GRAD_NORM)
        optimizer.step()
        steps.append({"grad_norm": flat(norm, digits)[0],
                      **{name: flat(p, digits) for name, p in parameters.items()}})
    states = {f"{name}#{STATE_NAMES[key]}": flat(state, digits)
              for name, p in parameters.items() for key, state in optimizer.state[p].items()
              if key in STATE_NAMES and state is not None}
    return {"steps": steps if dtype == torch.float64 else steps[-1:], "states": states}


def main():
    generator = torch.Generator().manual_seed(20240607)
    initial = {name: draw(generator, shape, 1.0) for name, shape in SHAPES.items()}
    gradients = [{name: draw(generator, shape, scale) for name, shape in SHAPES.items()}
                 for scale in GRADIENT_SCALES]
    golden = {
        "generator": "scripts/golden/optimizers.py",
        "torch": torch.__version__,
        "lr": LR,
        "lr_factors": LR_FACTORS,
        "max_grad_norm": MAX_GRAD_NORM,
        "lr_scale_of_n": LR_SCALE_OF_N,
        "initial": {name: flat(value, 17) for name, value in initial.items()},
        "gradients": [{name: flat(g, 17) for name, g in step.items()} for step in gradients],
        "cases": [{"name": name, "options": options,
                   "fp64": run(make, arguments, torch.float64, initial, gradients),
                   "fp32": run(make, arguments, torch.float32, initial, gradients),
                   "fp32_tolerance": FP32_TOLERANCE.get(name, 1e-6)}
                  for name, options, make, arguments in CASES],
    }
    root = pathlib.Path(__file__).resolve().parents[2]
    path = root / "tests" / "unit" / "optim" / "optimizers_golden.json"
    path.write_text(json.dumps(golden, separators=(",", ":")).replace("],", "],\n") + "\n")
    print(f"{path}: {path.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
