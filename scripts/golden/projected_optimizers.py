#!/usr/bin/env python3
"""Writes tests/unit/optim/projected_golden.json: twenty steps of the authors' optimizers that work in subspaces.

    scripts/golden/projected_optimizers.py GALORE_TORCH LDADAMW_TORCH

Needs torch on the CPU and, of jiaweizzhao/GaLore at 2cc66f8, the directory galore_torch with adamw.py and
galore_projector.py and, of IST-DASLab/LDAdam at f3c5daf, the directory ldadamw_torch with ldadamw.py and
projector.py. Inputs are those of rule_optimizers.py; the vector is a parameter without a subspace.
The authors find singular vectors, and LDAdam's also orthonormal ones, in FP32, with whatever signs the library
gives them. In their place stand the same decompositions in FP64, whose singular vectors have their largest
component positive and whose triangles a positive diagonal. That LDAdam's steps do not depend on such signs is
checked here.
LDAdam's authors leave a gradient's error in its own memory, so that it is there when gradients are clipped.
Here the gradient alone is clipped, and the error added to it before the step.
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


def module_in(folder, package, name, stand_ins=()):
    """The authors' module, without the packages that only its other classes need."""
    parent = types.ModuleType(package)
    parent.__path__ = [folder]
    sys.modules.update({package: parent, **dict(stand_ins)})
    return rules.module_at(f"{package}.{name}", pathlib.Path(folder) / f"{name}.py")


def galore_module(folder):
    versions = types.ModuleType("transformers.utils.versions")
    versions.require_version = lambda requirement: None
    tensors = types.ModuleType("galore_torch.galore_projector_tensor")
    tensors.GaLoreProjectorTensor = None
    adamw = module_in(folder, "galore_torch", "adamw", {
        "transformers": types.ModuleType("transformers"),
        "transformers.utils": types.ModuleType("transformers.utils"),
        "transformers.utils.versions": versions,
        "galore_torch.galore_projector_tensor": tensors})
    adamw.GaLoreProjector.get_orthogonal_matrix = orthogonal_matrix
    return adamw


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


def orthonormal(matrix, signs_of=lambda triangle: triangle.diagonal().sign()):
    """In the place of LDAdam's Gram_Schmidt."""
    q, triangle = torch.linalg.qr(matrix.double())
    sizes = triangle.diagonal().abs()
    assert sizes.min() > 1e-4 * sizes.max(), "columns that rounding turns"
    return (q * signs_of(triangle)).to(matrix.dtype)


def ldadam_module(folder):
    ldadamw = module_in(folder, "ldadamw_torch", "ldadamw")
    projector = sys.modules["ldadamw_torch.projector"]
    projector.projector.get_orthogonal_matrix_svd = lambda self, grad, svd_lowrank=False: setattr(
        self, "ortho_matrix", orthogonal_matrix(self, grad, self.rank, self.proj_type))
    projector.Gram_Schmidt = orthonormal
    return ldadamw


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


class Ldadamw:
    """The authors' class, whose errors are taken from the gradients after a step and put back before the next."""

    def __init__(self, made_by, groups, lr, rank, **arguments):
        groups = [{**group, "enable_lowrank": group["params"][0].dim() == 2,
                   "rank": min(rank, *group["params"][0].shape)} for group in groups]
        self.optimizer = made_by(groups, lr=lr, **arguments)
        self.param_groups = self.optimizer.param_groups
        self.errors = {}

    def step(self):
        for p, error in self.errors.items():
            p.grad.add_(error)
        self.optimizer.step()
        if self.optimizer.error_feedback:
            self.errors = {group["params"][0]: group["params"][0].grad.clone()
                           for group in self.param_groups if group["enable_lowrank"]}

    @property
    def state(self):
        def own(p, state):
            projector = {"projector": state["previous_projector"].ortho_matrix} if "previous_projector" in state else {}
            return {**state, **projector, **({"error": self.errors[p]} if p in self.errors else {})}
        return {p: own(p, state) for p, state in self.optimizer.state.items()}


GALORE_STATES = {**ADAM, "projector": "projector"}
LDADAMW_STATES = {name: name for name in ("projector", "m", "v", "error")}


def cases(galore, ldadamw):
    """What differs from the file's inputs, keys of the recipe, class and arguments of the author's code, states."""
    defaults = {"rank": 128, "update_proj_gap": 200, "scale": 0.25}
    small = {"rank": 5, "update_proj_gap": 7, "scale": 0.25, "weight_decay": 0.1}
    numbers = {"rank": 32, "update_proj_gap": 7, "scale": 2.0, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1}
    whole = {"rank": 64, "update_proj_gap": 7, "scale": 1.0, "weight_decay": 0.1}
    for options in ({}, small, numbers, whole):
        yield "galore", options, galore, {**defaults, **options}, GALORE_STATES
    few = {"rank": 5, "weight_decay": 0.1}
    others = {"rank": 32, "betas": [0.8, 0.95], "rho": 0.5, "eps": 1e-3, "weight_decay": 0.1}
    forgets = {"rank": 5, "error_feedback": False, "weight_decay": 0.1}
    all_dims = {"rank": 64, "rho": 0.3, "error_feedback": False, "weight_decay": 0.1}
    for options in ({}, few, others, forgets, all_dims):  # rho 0 follows single huge elements, which leave no rank
        arguments = {"rank": 16, **options}
        if "betas" in arguments:
            arguments["betas"] = tuple(arguments["betas"])
        yield "ldadamw", options, ldadamw, arguments, LDADAMW_STATES


def run(make, arguments, dtype, states):
    return rules.run(make, arguments, dtype, states, strides=STRIDES, vector_strides=STATE_STRIDES)


def check_signs(ldadamw, arguments):
    """With the library's signs and with opposite ones the authors' parameters are the same."""
    projector = sys.modules["ldadamw_torch.projector"]
    found = []
    for signs_of in (lambda triangle: 1.0, lambda triangle: -triangle.diagonal().sign()):
        projector.Gram_Schmidt = functools.partial(orthonormal, signs_of=signs_of)
        found.append(run(ldadamw, arguments, torch.float64, LDADAMW_STATES)["parameters"])
    projector.Gram_Schmidt = orthonormal
    for name, kept in found[0].items():
        distance = torch.dist(*(torch.tensor(f[name]["sample"], dtype=torch.float64) for f in found))
        assert distance < 1e-12 * kept["norm"], "steps that depend on signs"


def main():
    galore_folder, ldadam_folder = sys.argv[1:]
    galore = functools.partial(Galore, galore_module(galore_folder).AdamW)
    ldadamw = functools.partial(Ldadamw, ldadam_module(ldadam_folder).LDAdamW)
    check_signs(ldadamw, {"rank": 5})
    rules.write("projected_golden.json", {
        "generator": "scripts/golden/projected_optimizers.py",
        "torch": torch.__version__,
        "galore": "jiaweizzhao/GaLore galore_torch/adamw.py, 2cc66f8",
        "ldadamw": "IST-DASLab/LDAdam ldadamw_torch/ldadamw.py, f3c5daf",
        **rules.inputs(),
        "strides": STRIDES,
        "vector_strides": STATE_STRIDES,
        "groups": rules.GROUPS,
        "cases": [{"name": row, "options": options,
                   "fp64": run(make, arguments, torch.float64, states),
                   "fp32": run(make, arguments, torch.float32, states)}
                  for row, options, make, arguments, states in cases(galore, ldadamw)],
    })


if __name__ == "__main__":
    main()
