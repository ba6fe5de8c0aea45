#!/usr/bin/env python3
"""Writes tests/unit/optim/factored_golden.json: twenty steps of the authors' optimizers with factored states.

    scripts/golden/factored_optimizers.py ADAFACTOR_PY SM3_PY CAME_PY

Needs torch on the CPU and, of tensorflow/tensor2tensor, tensor2tensor/utils/adafactor.py at bafdc1b, of
google-research/google-research, sm3/sm3.py at 0c1bbe5 and, of yangluo7/CAME, came_pytorch/CAME.py at
e77c5c0. The first two are written for TensorFlow 1; they run on numpy_tensorflow.py in its place, the
fp64 golden with a `tf.float32` of 64 bits. Inputs are those of rule_optimizers.py. Adafactor and SM3 have
no weight decay: their cases have groups of their own.
"""
import functools
import sys

import numpy as np
import torch

import numpy_tensorflow
import rule_optimizers as rules

STRIDES = {"a": 1, "b": 7, "c": 1021, "d": 1021, "e": 29}
VECTOR_STRIDES = {"a": 1, "b": 4, "c": 19, "d": 19, "e": 29}  # of states with a number for a row or column
LARGE_LR = 0.5  # above (t + 1)^-0.5 in some steps


class OnTensorflow:
    """An optimizer of the authors for each parameter, behind the interface of torch's."""

    def __init__(self, path, groups, lr, **arguments):
        self.parameters = [group["params"][0] for group in groups]
        self.param_groups = [{"lr": lr, **group} for group in groups]
        arrays = [p.detach().numpy() for p in self.parameters]
        self.authors, self.tf = numpy_tensorflow.load(path, arrays[0].dtype)
        self.variables = [numpy_tensorflow.Tensor(array) for array in arrays]  # share the parameters' memory
        self.optimizers = [self.made(group, group["lr"] / lr, **arguments) for group in self.param_groups]

    @property
    def state(self):
        return {p: {name: torch.from_numpy(slot.values) for name, slot in optimizer.slots[variable].items()}
                for p, variable, optimizer in zip(self.parameters, self.variables, self.optimizers)}

    def step(self):
        for p, variable, optimizer in zip(self.parameters, self.variables, self.optimizers):
            optimizer.apply_gradients([(numpy_tensorflow.Tensor(p.grad.numpy()), variable)])
        self.tf.global_step += 1


class Adafactor(OnTensorflow):
    """With our learning rate in the place of the authors' 0.01 and groups that scale it."""

    def made(self, group, lr_scale, exponent=0.8, relative_step=True, **arguments):
        def lr():
            most = (self.tf.global_step + 1) ** -0.5
            return min(group["lr"], lr_scale * most) if relative_step else group["lr"]

        return self.authors.AdafactorOptimizer(
            learning_rate=lr, decay_rate=lambda: self.authors.adafactor_decay_rate_pow(exponent), **arguments)


class Sm3(OnTensorflow):
    def made(self, group, lr_scale, momentum):
        return self.authors.SM3Optimizer(lambda: group["lr"], momentum)


STATE_NAMES = {
    "adafactor": {"vr": "row", "vc": "column", "v": "column", "m": "m"},
    "sm3": {"accumulator_0": "row", "accumulator_1": "column", "accumulator": "column", "momentum": "m"},
    "came": {"exp_avg": "m", "exp_avg_sq_row": "row", "exp_avg_sq_col": "column", "exp_avg_sq": "column",
             "exp_avg_res_row": "residual_row", "exp_avg_res_col": "residual_column"},
}
WITHOUT_DECAY = {name: {**group, "weight_decay": 0.0} for name, group in rules.GROUPS.items()}


def cases(adafactor, sm3, came):
    """What differs from the file's inputs, keys of the recipe, class and arguments of the author's code."""
    adafactor = functools.partial(Adafactor, adafactor)
    sm3 = functools.partial(Sm3, sm3)
    undecayed = {"groups": WITHOUT_DECAY}
    absolute = {"beta1": 0.9, "scale_parameter": False, "relative_step": False}
    same = {"weight_decay": 0.1}
    numbers = {"betas": [0.8, 0.9, 0.95], "eps": [1e-28, 1e-12], "clip_threshold": 0.7, **same}
    large_eps = {"eps": [1e-6, 1e-3], **same}  # not lost beside the squares
    return [
        ("adafactor", undecayed, {}, adafactor, {}),
        ("adafactor", {"lr": LARGE_LR, **undecayed}, {}, adafactor, {}),
        ("adafactor", undecayed, absolute, adafactor,
         {"beta1": 0.9, "multiply_by_parameter_scale": False, "relative_step": False}),
        ("adafactor", undecayed, {"clip_threshold": 0.5, "decay_rate": 0.7}, adafactor,
         {"clipping_threshold": 0.5, "exponent": 0.7}),
        ("sm3", undecayed, {"momentum": 0.9}, sm3, {"momentum": 0.9}),
        ("sm3", undecayed, {"momentum": 0.0}, sm3, {"momentum": 0.0}),
        ("came", {}, same, came, same),
        ("came", {}, numbers, came, numbers),
        ("came", {}, large_eps, came, large_eps),
    ]


def main():
    adafactor, sm3, came = sys.argv[1:]
    run = functools.partial(rules.run, strides=STRIDES, vector_strides=VECTOR_STRIDES)
    rules.write("factored_golden.json", {
        "generator": "scripts/golden/factored_optimizers.py",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "adafactor": "tensorflow/tensor2tensor tensor2tensor/utils/adafactor.py, bafdc1b",
        "sm3": "google-research/google-research sm3/sm3.py, 0c1bbe5",
        "came": "yangluo7/CAME came_pytorch/CAME.py, e77c5c0",
        **rules.inputs(),
        "strides": STRIDES,
        "vector_strides": VECTOR_STRIDES,
        "groups": rules.GROUPS,
        "cases": [{"name": row, **own, "options": options,
                   **{name: run(make, arguments, dtype, STATE_NAMES[row], lr=own.get("lr", rules.LR))
                      for name, dtype in (("fp64", torch.float64), ("fp32", torch.float32))}}
                  for row, own, options, make, arguments
                  in cases(adafactor, sm3, rules.module_at("came", came).CAME)],
    })


if __name__ == "__main__":
    main()
