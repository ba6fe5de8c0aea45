#!/usr/bin/env python3
"""Writes tests/unit/optim/q_galore_golden.json: twenty steps of Q-GaLore as its authors have it.

    scripts/golden/quantized_projected_optimizers.py Q_GALORE_TORCH SITE_PACKAGES

Needs torch and numpy, of VITA-Group/Q-GaLore at 5bd2f1c the directory q_galore_torch, and the package
bitsandbytes in the folder SITE_PACKAGES. The authors' class steps, projects, follows its subspaces and quantizes
its projectors. In the place of what it leaves to others stands:
- of their FP32 singular vectors with whatever signs the library gives them, those of projected_optimizers.py, but the
  first one with the sign by which it is nearer to the last choice's, for their cosine has a sign;
- of the package's kernels for GPUs, its update in PyTorch, one operation after the other, between its own
  dequantize_blockwise and quantize_blockwise (eight_bit_optimizers.py says why), in the type of the run.
Projectors are rounded to FP32 before they are quantized, also in FP64, and a group is at most the whole projector.
Gradients are noise beside a matrix of rank one, some with none, so that some subspaces stay and some turn.

Of codes and their scales the FNV-1a hash over all steps is kept, and of the last step some; of all else some.
"""
import math
import sys

import numpy as np
import torch

import eight_bit_optimizers as eight_bit
import formula
import projected_optimizers as projected
import rule_optimizers as rules

SHAPES = {"a": (1, 1), "b": (7, 13), "c": (128, 64), "d": (64, 128), "e": (257,), "f": (4100,)}
STRIDES = {"a": 1, "b": 7, "c": 1021, "d": 1021, "e": 29, "f": 509}
STATE_STRIDES = {"a": 1, "b": 4, "c": 67, "d": 67, "e": 29, "f": 509}
DRIFT = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": 0.0, "f": 0.0}
GROUPS = {"e": {"lr_scale": 2.0, "weight_decay": 0.0}, "b": {"lr_scale": 0.5, "weight_decay": 0.3}}
NO_SIMILARITY = -2.0


class TorchWithFloat:
    """torch, but that its float is this type: what the authors' class takes for a state in whole numbers' place."""

    def __init__(self, dtype):
        self.float = dtype

    def __getattr__(self, name):
        return getattr(torch, name)


def update_32bit(name, g, p, m, beta1, eps, step, lr, v, beta2, weight_decay, *_, **__):
    assert name == "adam"
    p.mul_(1 - lr * weight_decay)
    m.copy_(m * beta1 + g * (1 - beta1))
    v.copy_(v * beta2 + g * (1 - beta2) * g)
    p.sub_(m * (lr / (1 - beta1**step)) / (v.sqrt() / math.sqrt(1 - beta2**step) + eps))


def update_8bit_blockwise(name, g, p, codes1, codes2, beta1, beta2, eps, step, lr, map1, map2, scales1, scales2,
                          weight_decay, **_):
    ops, block = torch.ops.bitsandbytes, eight_bit.BLOCK
    coded = ((codes1, scales1, map1), (codes2, scales2, map2))
    m, v = (ops.dequantize_blockwise(codes, scales, values, block, torch.float32).to(p.dtype)
            for codes, scales, values in coded)
    update_32bit(name, g, p, m, beta1, eps, step, lr, v, beta2, weight_decay)
    for state, (codes, scales, values) in zip((m, v), coded):
        new_codes, new_scales = ops.quantize_blockwise(state.float(), values, block)
        codes.copy_(new_codes.reshape(codes.shape))
        scales.copy_(new_scales)


def orthogonal_matrix(projector, weights, rank, type):
    """In the place of GaLoreProjector.get_orthogonal_matrix."""
    vectors = projected.orthogonal_matrix(projector, weights, rank, type)
    first, last = vectors[:1] if type == "right" else vectors[:, :1], projector.past_ortho_vector
    if last is not None and torch.dot(first.flatten(), last) < 0:
        first.neg_()
    return vectors


def older_base(base):
    """The package's class with two arguments that it had when the authors wrote theirs."""

    class Older(base):
        def __init__(self, name, params, lr, betas, eps, weight_decay, bits, args, min_8bit_size, percentile_clipping,
                     block_wise, is_paged):
            super().__init__(name, params, lr, betas, eps, weight_decay, bits, args, min_8bit_size, is_paged=is_paged)
            self.older = {"percentile_clipping": percentile_clipping, "block_wise": block_wise}

        def get_config(self, *arguments):
            return {**super().get_config(*arguments), **self.older}

    return Older


def authors_module(folder, package):
    torch.cuda.synchronize = lambda: None
    package.optim.optimizer.Optimizer2State = older_base(package.optim.optimizer.Optimizer2State)
    module = projected.module_in(folder, "q_galore_torch", "q_galore_adamw8bit")
    projector = module.GaLoreProjector
    quantize = projector._quantize

    def rounded(self, w, q_group_size=-1, n_bit=8):
        codes, scales, zeros, shape = quantize(self, w.float(), min(q_group_size, w.numel()), n_bit)
        return codes, scales.to(w.dtype), zeros.to(w.dtype), shape

    projector._quantize = rounded
    projector.get_orthogonal_matrix = orthogonal_matrix
    module.F.optimizer_update_32bit = update_32bit
    module.F.optimizer_update_8bit_blockwise = update_8bit_blockwise
    return module


class QGalore:
    """The authors' class with groups of matrices that have a subspace."""

    DEFAULTS = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_bits": 4, "proj_group_size": 256,
                "cos_threshold": 0.4, "gamma_proj": 2, "queue_size": 5}

    def __init__(self, module, dtype, groups, lr, options):
        given = {**self.DEFAULTS, **options}
        subspace = {key: given.pop(key) for key in self.DEFAULTS}
        bits, size = subspace.pop("proj_bits"), subspace.pop("proj_group_size")
        subspace |= {"quant": bits is not None, "quant_n_bit": bits, "quant_group_size": size, "proj_type": "std"}
        module.torch = TorchWithFloat(dtype)

        class InOneType(module.AdamW8bit):
            def init_state(self, group, p, gindex, pindex):
                super().init_state(group, p, gindex, pindex)
                for key in ("state1", "state2"):
                    if self.state[p][key].dtype == torch.float32:
                        self.state[p][key] = self.state[p][key].to(dtype)

        if "betas" in given:
            given["betas"] = tuple(given["betas"])
        self.queue_size = subspace["queue_size"]
        self.optimizer = InOneType([{**group, **(subspace if group["params"][0].dim() == 2 else {})}
                                    for group in groups], lr=lr, **given)
        self.param_groups = self.optimizer.param_groups

    def step(self):
        self.optimizer.step()

    def states(self, p):
        """In the order of the optimizer's states here."""
        state = self.optimizer.state[p]
        found = {}
        if "projector" in state:
            projector = state["projector"]
            found["projector"] = projector.ortho_matrix
            if projector.quant:
                found["projector_scale"] = projector.ortho_matrix_scales.float()
                found["projector_zero"] = projector.ortho_matrix_zeros.to(torch.uint8)
            found["leading_vector"] = projector.past_ortho_vector
            missing = [NO_SIMILARITY] * (self.queue_size - len(projector.queue))
            found["similarities"] = torch.tensor(missing + projector.queue, dtype=torch.float64)
            found["gap"] = torch.tensor([projector.update_proj_gap], dtype=torch.float64)
        for name, key in (("m", "1"), ("v", "2")):
            found[name] = state["state" + key]
            if found[name].dtype == torch.uint8:
                found[name + "_scale"] = state["absmax" + key]
        return found


def is_coded(name, tensor):
    return tensor.dtype == torch.uint8 or name.endswith("_scale")


def gradient(name, t):
    shape = SHAPES[name]
    values = formula.weights(f"{name} gradient {t}", shape, 0.0, 1.0).astype(np.float64)
    if len(shape) == 2:
        rows = formula.weights(f"{name} rows", (shape[0], 1), 0.0, 1.0).astype(np.float64)
        columns = formula.weights(f"{name} columns", (1, shape[1]), 0.0, 1.0).astype(np.float64)
        values += DRIFT[name] * rows * columns
    return torch.from_numpy(values * rules.GRADIENT_SCALES[t % len(rules.GRADIENT_SCALES)])


def kept_state(name, tensor, hashes, stride, digits):
    if not is_coded(name, tensor):
        return rules.kept(tensor, stride, digits)
    sample = tensor.flatten()[::stride]
    bits = sample if tensor.dtype == torch.uint8 else torch.from_numpy(sample.numpy().view(np.uint32).astype(np.int64))
    return {"hash": str(hashes), "bits": bits.tolist()}


def run(module, options, dtype):
    digits = 15 if dtype == torch.float64 else 9
    parameters = {name: torch.nn.Parameter(torch.from_numpy(formula.weights(name, shape, 0.0, 1.0)).to(dtype))
                  for name, shape in SHAPES.items()}
    groups = []
    for name, parameter in parameters.items():
        settings = GROUPS.get(name, {})
        decay = {"weight_decay": settings["weight_decay"]} if settings else {}
        groups.append({"params": [parameter], "lr": rules.LR * settings.get("lr_scale", 1.0), **decay})
    optimizer = QGalore(module, dtype, groups, rules.LR, options)
    base = [group["lr"] for group in optimizer.param_groups]
    norms, hashes = [], {}
    for t, factor in enumerate(rules.LR_FACTORS):
        for name, parameter in parameters.items():
            parameter.grad = gradient(name, t).to(dtype)
        for group, rate in zip(optimizer.param_groups, base):
            group["lr"] = rate * factor
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), rules.MAX_GRAD_NORM).item())
        optimizer.step()
        for name, parameter in parameters.items():
            for state, tensor in optimizer.states(parameter).items():
                if is_coded(state, tensor):
                    key = f"{name}#{state}"
                    hashes[key] = eight_bit.hashed(hashes.get(key, 0xCBF29CE484222325), tensor)
    states = {}
    for name, parameter in parameters.items():
        for state, tensor in optimizer.states(parameter).items():
            stride = 1 if state in ("similarities", "leading_vector") else STATE_STRIDES[name]
            states[f"{name}#{state}"] = kept_state(state, tensor, hashes.get(f"{name}#{state}"), stride, digits)
    return {"norms": [float(f"{norm:.{digits}g}") for norm in norms],
            "parameters": {name: rules.kept(p, STRIDES[name], digits) for name, p in parameters.items()},
            "states": states}


def cases():
    """Keys of the recipe; without codes of any kind, with some, and with all."""
    whole = {"proj_bits": None, "min_8bit_size": 1 << 20}
    return [
        {**whole, "rank": 5, "update_proj_gap": 2, "queue_size": 3, "weight_decay": 0.1},
        {**whole, "rank": 32, "update_proj_gap": 3, "queue_size": 2, "gamma_proj": 1.5, "cos_threshold": 0.1,
         "scale": 2.0, "betas": [0.8, 0.95], "eps": 1e-3},
        {},
        {"rank": 5, "update_proj_gap": 2, "queue_size": 2, "proj_group_size": 64, "min_8bit_size": 500,
         "weight_decay": 0.1},
        {"rank": 32, "update_proj_gap": 1, "proj_bits": 8, "proj_group_size": 64, "min_8bit_size": 0, "scale": 1.0},
    ]


def case(module, options):
    fp32, tolerance = run(module, options, torch.float32), 1e-6
    if options.get("proj_bits", 4) is not None:  # rounding chooses another code now and then
        fp32["states"], tolerance = {}, 1e-5
    return {"name": "q_galore", "options": options, "fp32_tolerance": tolerance,
            "fp64": run(module, options, torch.float64), "fp32": fp32}


def main():
    package = eight_bit.bitsandbytes_without_library(sys.argv[2])
    module = authors_module(sys.argv[1], package)
    rules.write("q_galore_golden.json", {
        "generator": "scripts/golden/quantized_projected_optimizers.py",
        "torch": torch.__version__,
        "bitsandbytes": package.__version__,
        "q_galore": "VITA-Group/Q-GaLore q_galore_torch/q_galore_adamw8bit.py, 5bd2f1c",
        "lr": rules.LR,
        "lr_factors": rules.LR_FACTORS,
        "gradient_scales": rules.GRADIENT_SCALES,
        "max_grad_norm": rules.MAX_GRAD_NORM,
        "shapes": SHAPES,
        "strides": STRIDES,
        "state_strides": STATE_STRIDES,
        "drift": DRIFT,
        "groups": GROUPS,
        "cases": [case(module, options) for options in cases()],
    })


if __name__ == "__main__":
    main()
