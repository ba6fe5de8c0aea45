#!/usr/bin/env python3
"""Writes tests/unit/optim/optimizers_golden.json: twenty steps of torch.optim's AdamW, Adam, SGD and Muon.

Needs torch on the CPU, 2.9 or later. Inputs are those of rule_optimizers.py. Muon's class iterates in bf16
whatever its parameters are; here it does so in their type, and in bf16 once more beside parameters in FP32.
"""
import functools

import torch

import rule_optimizers as rules

STRIDES = {"a": 1, "b": 7, "c": 211, "d": 211, "e": 29}


class IteratesIn:
    """The torch module, but bfloat16 is another type."""

    def __init__(self, dtype):
        self.bfloat16 = dtype

    def __getattr__(self, name):
        return getattr(torch, name)


class MuonAndAdamW:
    """torch.optim.Muon, which takes matrices alone, and AdamW for what is none."""

    def __init__(self, groups, lr, betas, eps, weight_decay, iterates_in=None, **arguments):
        matrices = [group for group in groups if group["params"][0].dim() == 2]
        others = [group for group in groups if group["params"][0].dim() != 2]
        self.iterates_in = iterates_in or groups[0]["params"][0].dtype
        self.muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, **arguments)
        self.adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.param_groups = self.muon.param_groups + self.adamw.param_groups

    def step(self):
        torch.optim._muon.torch = IteratesIn(self.iterates_in)
        self.muon.step()
        torch.optim._muon.torch = torch
        self.adamw.step()

    @property
    def state(self):
        return {**self.muon.state, **self.adamw.state}


def cases():
    """Row of the table, keys of the recipe, class and arguments in torch."""
    adamw, adam, sgd = torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD
    same = {"weight_decay": 0.1}
    of_torch = {"betas": [0.9, 0.999], "weight_decay": 0.01}  # its own defaults, which it is not told
    for_the_rest = {"betas": (0.9, 0.95), "eps": 1e-8}  # of AdamW beside Muon
    betas = {"betas": [0.8, 0.99], "eps": 1e-6, **same}
    dampened = {"momentum": 0.8, "dampening": 0.25, **same}
    ahead = {"momentum": 0.8, "nesterov": True, **same}
    original = {"momentum": 0.9, "nesterov": False, "ns_steps": 3, **betas}
    return [
        ("adamw", of_torch, adamw, {}),
        ("adamw", betas, adamw, betas),
        ("adam", {**of_torch, "weight_decay": 0.0}, adam, {}),
        ("adam", betas, adam, betas),
        ("sgd", {}, sgd, {}),
        ("sgd", same, sgd, same),
        ("momentum", {}, sgd, {"momentum": 0.9}),
        ("momentum", dampened, sgd, dampened),
        ("momentum", ahead, sgd, ahead),
        ("muon", {}, MuonAndAdamW, {**for_the_rest, **same, "adjust_lr_fn": "match_rms_adamw"}),
        ("muon", {**original, "lr_adjustment": "original"}, MuonAndAdamW, {**original, "adjust_lr_fn": "original"}),
    ]


STATE_NAMES = {
    "adamw": {"exp_avg": "m", "exp_avg_sq": "v"},
    "adam": {"exp_avg": "m", "exp_avg_sq": "v"},
    "sgd": {},
    "momentum": {"momentum_buffer": "momentum"},
    "muon": {"momentum_buffer": "momentum", "exp_avg": "m", "exp_avg_sq": "v"},
}


def runs(row, make, arguments):
    run = functools.partial(rules.run, state_names=STATE_NAMES[row], strides=STRIDES)
    found = {"fp64": run(make, arguments, torch.float64), "fp32": run(make, arguments, torch.float32)}
    if row == "muon":
        found["bf16"] = run(make, {**arguments, "iterates_in": torch.bfloat16}, torch.float32)
    return found


def main():
    rules.write("optimizers_golden.json", {
        "generator": "scripts/golden/optimizers.py",
        "torch": torch.__version__,
        **rules.inputs(),
        "strides": STRIDES,
        "groups": rules.GROUPS,
        "cases": [{"name": row, "options": options, **runs(row, make, arguments)}
                  for row, options, make, arguments in cases()],
    })


if __name__ == "__main__":
    main()
