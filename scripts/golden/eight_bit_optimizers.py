#!/usr/bin/env python3
"""Writes tests/unit/optim/eight_bit_golden.json: twenty steps of bitsandbytes' 8-bit AdamW and Lion.

    scripts/golden/eight_bit_optimizers.py SITE_PACKAGES

Needs torch and numpy, and the package bitsandbytes in the folder SITE_PACKAGES. The package computes in
PyTorch here, without its compiled library, as it does wherever it finds none: that library finds codes on
the CPU in a table of 65,536 equal steps of [-1, 1], which takes zero for 2e-5 of a block's largest value.

Cases "package" are AdamW8bit.step() and Lion8bit.step(). Their betas and gradients are such that every
product of a gradient is exact: PyTorch may or may not fuse it with the sum behind it. Cases "operations"
have the usual betas and any gradients; here the update is stated, in the package's order, with each
operation rounded by itself, between the package's dequantize_blockwise and quantize_blockwise.
Its kernels for GPUs, not PyTorch, see to it that a state keeps its sign; here that is done behind each step.

Of codes and scales the FNV-1a hash over all steps is kept, and of the last step some; of parameters some.
"""
import ctypes
import json
import math
import pathlib
import sys

import numpy as np
import torch

import formula

SHAPES = {"a": (1, 1), "b": (7, 13), "c": (128, 64), "d": (64, 128), "e": (257,), "f": (37, 211)}
STRIDES = {"a": 1, "b": 7, "c": 509, "d": 509, "e": 16, "f": 487}
LR = 0.02
LR_FACTORS = [min(1.0, (t + 1) / 4) * (1 - t / 40) for t in range(20)]
GRADIENT_SCALES = [1.0, 2.0**-8, 0.25, 2.0**-7, 2.0]  # in turn
GRADIENT_STEPS = 2**10  # of [0, 1), in cases "package"
SPECIAL = 97  # one element in so many is zero, one tiny, and one huge in some steps
TINY = 2.0**-30
HUGE = 2.0**20
HUGE_STEPS = 5, 3  # t with t % 5 == 3
GROUPS = {"e": {"lr_scale": 2.0, "weight_decay": 0.0}, "b": {"lr_scale": 0.5, "weight_decay": 0.3}}
BLOCK = 256


def bitsandbytes_without_library(folder):
    """The package, as it is where its compiled library cannot be loaded."""
    load = ctypes.cdll.LoadLibrary

    def refuse(name):
        if "libbitsandbytes" in str(name):
            raise OSError(f"{name} is not wanted")
        return load(name)

    ctypes.cdll.LoadLibrary = refuse
    sys.path.insert(0, folder)
    import bitsandbytes
    import bitsandbytes.cextension
    ctypes.cdll.LoadLibrary = load
    assert type(bitsandbytes.cextension.lib).__name__.startswith("ErrorHandlerMock")
    assert pathlib.Path(bitsandbytes.__file__).is_relative_to(pathlib.Path(folder).resolve())
    return bitsandbytes


def gradient(name, t, coarse):
    scale = GRADIENT_SCALES[t % len(GRADIENT_SCALES)]
    values = formula.weights(f"{name} gradient {t}", SHAPES[name], 0.0, 1.0)
    if coarse:
        values = np.floor(values * GRADIENT_STEPS) / GRADIENT_STEPS
    values = values * scale
    flat = values.reshape(-1)
    kind = formula.below(f"{name} kind", SPECIAL, flat.size)
    flat[kind == 0] = 0
    flat[kind == 1] = TINY
    if t % HUGE_STEPS[0] == HUGE_STEPS[1]:
        flat[kind == 2] = HUGE
    return torch.from_numpy(values.astype(np.float32))


def keep_sign(codes, m, values):
    """No m below zero becomes zero, of whose code the one before it is the smallest number below zero."""
    zero = int((values == 0).nonzero())
    codes[(m < 0) & (codes == zero)] = zero - 1


class Operations:
    """The update of one parameter as the package has it, one operation after the other."""

    def __init__(self, package, name, parameter, lr, betas, weight_decay, eps=None):
        self.ops = torch.ops.bitsandbytes
        self.name, self.p, self.lr, self.betas, self.decay, self.eps = name, parameter, lr, betas, weight_decay, eps
        self.maps = [package.functional.create_dynamic_map(signed=True),
                     package.functional.create_dynamic_map(signed=False)][:2 if name == "adamw_8bit" else 1]
        blocks = -(-parameter.numel() // BLOCK)
        self.codes = [torch.zeros(parameter.shape, dtype=torch.uint8) for _ in self.maps]
        self.scales = [torch.zeros(blocks) for _ in self.maps]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        states = [self.ops.dequantize_blockwise(codes, scales, values, BLOCK, torch.float32)
                  for codes, scales, values in zip(self.codes, self.scales, self.maps)]
        g, p, (beta1, beta2) = self.p.grad, self.p.data, self.betas
        p *= 1 - self.lr * self.decay
        if self.name == "adamw_8bit":
            m = states[0] * beta1 + g * (1 - beta1)
            v = states[1] * beta2 + g * (1 - beta2) * g
            root = v.sqrt() / math.sqrt(1 - beta2**self.t) + self.eps
            p -= m * (self.lr / (1 - beta1**self.t)) / root
            states = [m, v]
        else:
            p -= torch.sign(states[0] * beta1 + g * (1 - beta1)) * self.lr
            states = [states[0] * beta2 + g * (1 - beta2)]
        for k, (state, values) in enumerate(zip(states, self.maps)):
            self.codes[k], self.scales[k] = self.ops.quantize_blockwise(state, values, BLOCK)
        keep_sign(self.codes[0], states[0], self.maps[0])


class Package:
    """The package's own class, for one parameter."""

    def __init__(self, package, name, parameter, lr, betas, weight_decay, eps=None):
        make = {"adamw_8bit": package.optim.AdamW8bit, "lion_8bit": package.optim.Lion8bit}[name]
        more = {} if eps is None else {"eps": eps}
        self.parameter, self.lr = parameter, lr
        self.beta = betas[0 if name == "adamw_8bit" else 1]
        self.values = package.functional.create_dynamic_map(signed=True)
        self.codes = None
        self.optimizer = make([parameter], lr=lr, betas=betas, weight_decay=weight_decay, min_8bit_size=0, **more)

    def step(self):
        self.optimizer.param_groups[0]["lr"] = self.lr
        m = torch.zeros_like(self.parameter.grad) if self.codes is None else torch.ops.bitsandbytes.dequantize_blockwise(
            self.codes[0], self.scales[0], self.values, BLOCK, torch.float32)
        m = m * self.beta + self.parameter.grad * (1 - self.beta)
        self.optimizer.step()
        state = self.optimizer.state[self.parameter]
        keys = [key for key in ("1", "2") if state.get("state" + key) is not None]
        self.codes = [state["state" + key] for key in keys]
        self.scales = [state["absmax" + key] for key in keys]
        assert all(codes.dtype == torch.uint8 for codes in self.codes)
        keep_sign(self.codes[0], m, self.values)


def hashed(value, tensor):
    """FNV-1a, goes on from `value`."""
    for byte in tensor.contiguous().numpy().tobytes():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def run(package, kind, name, options):
    kept = {"parameters": {}, "states": {}}
    for shape_name, shape in SHAPES.items():
        parameter = torch.nn.Parameter(torch.from_numpy(formula.weights(shape_name, shape, 0.0, 1.0)))
        group = GROUPS.get(shape_name, {})
        lr = LR * group.get("lr_scale", 1.0)
        decay = group.get("weight_decay", options["weight_decay"])
        make = {"package": Package, "operations": Operations}[kind]
        one = make(package, name, parameter, lr, options["betas"], decay, options.get("eps"))
        hashes = {}
        for t, factor in enumerate(LR_FACTORS):
            parameter.grad = gradient(shape_name, t, kind == "package")
            one.lr = lr * factor
            one.step()
            for k in range(len(one.codes)):
                for key, tensor in (("mv"[k], one.codes[k]), ("mv"[k] + "_scale", one.scales[k])):
                    hashes[key] = hashed(hashes.get(key, 0xCBF29CE484222325), tensor)
        stride = STRIDES[shape_name]
        kept["parameters"][shape_name] = [float(f"{x:.9g}") for x in parameter.detach().flatten()[::stride].tolist()]
        for k in range(len(one.codes)):
            state = f"{shape_name}#{'mv'[k]}"
            kept["states"][state] = {"hash": str(hashes["mv"[k]]), "sample": one.codes[k].flatten()[::stride].tolist()}
            scales = one.scales[k].numpy().view(np.uint32)
            kept["states"][state + "_scale"] = {"hash": str(hashes["mv"[k] + "_scale"]), "bits": scales[:4].tolist()}
    return kept


CASES = [
    ("package", "adamw_8bit", {"betas": [0.875, 1 - 2.0**-10], "eps": 1e-8, "weight_decay": 0.1}),
    ("package", "lion_8bit", {"betas": [0.875, 1 - 2.0**-5], "weight_decay": 0.1}),
    ("operations", "adamw_8bit", {"betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}),
    ("operations", "lion_8bit", {"betas": [0.9, 0.99], "weight_decay": 0.1}),
]


def main():
    package = bitsandbytes_without_library(sys.argv[1])
    maps = {"signed": package.functional.create_dynamic_map(signed=True),
            "unsigned": package.functional.create_dynamic_map(signed=False)}
    golden = {
        "generator": "scripts/golden/eight_bit_optimizers.py",
        "torch": torch.__version__,
        "bitsandbytes": package.__version__,
        "lr": LR,
        "lr_factors": LR_FACTORS,
        "gradient_scales": GRADIENT_SCALES,
        "gradient_steps": GRADIENT_STEPS,
        "special": SPECIAL,
        "tiny": TINY,
        "huge": HUGE,
        "huge_steps": HUGE_STEPS,
        "shapes": SHAPES,
        "strides": STRIDES,
        "groups": GROUPS,
        "maps": {key: {"hash": str(hashed(0xCBF29CE484222325, values)),
                       "bits": values.numpy().view(np.uint32)[::17].tolist()} for key, values in maps.items()},
        "cases": [{"kind": kind, "name": name, "options": options, **run(package, kind, name, options)}
                  for kind, name, options in CASES],
    }
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "unit" / "optim" / "eight_bit_golden.json"
    path.write_text(json.dumps(golden, separators=(",", ":")).replace("},", "},\n") + "\n")
    print(f"{path}: {path.stat().st_size} bytes, torch {torch.__version__}, bitsandbytes {package.__version__}")


if __name__ == "__main__":
    main()
