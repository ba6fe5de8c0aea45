#!/usr/bin/env python3
"""Writes tests/unit/optim/projected_golden.json: twenty steps of the authors' optimizers that work in subspaces.

    scripts/golden/projected_optimizers.py GALORE_TORCH

Needs torch on the CPU and, of jiaweizzhao/GaLore at 2cc66f8, the directory galore_torch with adamw.py and
galore_projector.py. Inputs are those of rule_optimizers.py; the vector is a parameter without a subspace.
The authors find singular vectors in FP32, with whatever signs the library gives them. In its place stands
the same decomposition in FP64, whose vectors have their largest component positive.
"""
import functools
import pathlib
import sys
import types

import torch

import rule_optimizers as rules

STRIDES = {"a": 1, "b": 7, "c": 1021, "d": 1021, "e": 29}
STATE_STRIDES = {"a": 1, "b": 4, "c": 509, "d": 509, "e": 29}
ADAM = {"exp_avg": "m", "exp_avg_sq": "v"}


def module_in(folder, name):
    """The authors' module, without the packages that only its other classes need."""
    package = types.ModuleType("galore_torch")
    package.__path__ = [folder]
    versions = types.ModuleType("transformers.utils.versions")
    versions.require_version = lambda requirement: None
    tensors = types.ModuleType("galore_torch.galore_projector_tensor")
    tensors.GaLoreProjectorTensor = None
    stand_ins = {"galore_torch": package, "transformers": types.ModuleType("transformers"),
                 "transformers.utils": types.ModuleType("transformers.utils"),
                 "transformers.utils.versions": versions,
                 "galore_torch.galore_projector_tensor": tensors}
    sys.modules.update(stand_ins)
    return rules.module_at(f"galore_torch.{name}", pathlib.Path(folder) / f"{name}.py")


def positive(vectors):
    """Rows with their largest component positive."""
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()


def orthogonal_matrix(projector, weights, rank, type):
    """In the place of GaLoreProjector.get_orthogonal_matrix."""
    u, s, vh = torch.linalg.svd(weights.double(), full_matrices=False)
    gaps = (s[:-1] - s[1:])[:rank] / s[0]
    assert gaps.numel() == 0 or gaps.min() > 1e-5, "vectors that rounding turns"
    vectors = positive(vh[:rank]) if type == "right" else positive(u.T[:rank]).T
    return vectors.to(weights.dtype)


class Galore:
    """The authors' class with groups of matrices that have a subspace."""

    def __init__(self, made_by, groups, lr, rank, update_proj_gap, scale, **arguments):
        subspace = {"rank": rank, "update_proj_gap": update_proj_gap, "scale": scale, "proj_type": "std"}
        groups = [{**group, **(subspace if group["params"][0].dim() == 2 else {})} for group in groups]
        self.optimizer = made_by(groups, lr=lr, no_deprecation_warning=True, **arguments)
        self.param_groups = self.optimizer.param_groups

    def step(self):
        self.optimizer.step()

    @property
    def state(self):
        return {p: {**state, **({"projector": state["projector"].ortho_matrix} if "projector" in state else {})}
                for p, state in self.optimizer.state.items()}


def cases(galore):
    """What differs from the file's inputs, keys of the recipe, class and arguments of the author's code."""
    defaults = {"rank": 128, "update_proj_gap": 200, "scale": 0.25}
    small = {"rank": 5, "update_proj_gap": 7, "scale": 0.25, "weight_decay": 0.1}
    numbers = {"rank": 32, "update_proj_gap": 7, "scale": 2.0, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1}
    whole = {"rank": 64, "update_proj_gap": 7, "scale": 1.0, "weight_decay": 0.1}
    return [("galore", options, galore, {**defaults, **options})
            for options in ({}, small, numbers, whole)]


def main():
    folder, = sys.argv[1:]
    adamw = module_in(folder, "adamw")
    adamw.GaLoreProjector.get_orthogonal_matrix = orthogonal_matrix
    galore = functools.partial(Galore, adamw.AdamW)
    run = functools.partial(rules.run, strides=STRIDES, vector_strides=STATE_STRIDES)
    rules.write("projected_golden.json", {
        "generator": "scripts/golden/projected_optimizers.py",
        "torch": torch.__version__,
        "galore": "jiaweizzhao/GaLore galore_torch/adamw.py, 2cc66f8",
        **rules.inputs(),
        "strides": STRIDES,
        "vector_strides": STATE_STRIDES,
        "groups": rules.GROUPS,
        "cases": [{"name": row, "options": options,
                   "fp64": run(make, arguments, torch.float64, {**ADAM, "projector": "projector"}),
                   "fp32": run(make, arguments, torch.float32, {**ADAM, "projector": "projector"})}
                  for row, options, make, arguments in cases(galore)],
    })


if __name__ == "__main__":
    main()
