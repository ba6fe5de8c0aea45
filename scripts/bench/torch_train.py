#!/usr/bin/env python3
"""Trains a model of torch_step.py from the weights and on the batches of another program, for gpu_check.sh.

    torch_train.py weights MODEL DIR SEED... [cuda]
    torch_train.py train MODEL DIR STEPS SAMPLES NAME SEED... [cuda] [compile] [fp32]

`weights` writes DIR/SEED/weights: config.json and model.safetensors of first weights, as transformers has them.
`train` reads DIR/SEED/batches.bin (`llmtrain data batches`), begins with these weights, takes STEPS steps of SAMPLES
samples in bf16 (autocast) and writes the losses to DIR/SEED/NAME.json: AdamW as the recipe of gpu_check.sh has it,
clipped by global norm, a warm-up and then a constant rate. All seeds share one process, so that a model is compiled
once. The same seed gives the same weights on the same kind of device.
"""

import json
import math
import pathlib
import struct
import sys

import torch
from torch import nn

from torch_step import MODELS, Decoder

LR, BETAS, EPS, DECAY, MAX_NORM, WARMUP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0, 20


def initialize(model, shape, seed):
    """Matrices and tables of deviation 0.02, those that end a branch smaller by the root of their number."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.ones_(parameter)
        else:
            ends_branch = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * shape["layers"]) if ends_branch else 1))


def named_for_gpt2(model):
    """transformers' Conv1D holds [in, out]."""
    yield "transformer.wte.weight", model.embedding.weight
    yield "transformer.wpe.weight", model.positions.weight
    for i, block in enumerate(model.blocks):
        at = f"transformer.h.{i}."
        for theirs, ours in (("ln_1", block.norm1), ("ln_2", block.norm2)):
            yield at + theirs + ".weight", ours.weight
            yield at + theirs + ".bias", ours.bias
        for theirs, ours in (("attn.c_attn", block.qkv), ("attn.c_proj", block.out), ("mlp.c_fc", block.up),
                             ("mlp.c_proj", block.down)):
            yield at + theirs + ".weight", ours.weight.t()
            yield at + theirs + ".bias", ours.bias
    yield "transformer.ln_f.weight", model.norm.weight
    yield "transformer.ln_f.bias", model.norm.bias


def named_for_llama(model):
    yield "model.embed_tokens.weight", model.embedding.weight
    for i, block in enumerate(model.blocks):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", block.norm1.weight
        yield at + "post_attention_layernorm.weight", block.norm2.weight
        hidden, kv = block.out.weight.size(0), block.kv_width
        for name, part in zip("qkv", block.qkv.weight.split((hidden, kv, kv))):
            yield f"{at}self_attn.{name}_proj.weight", part
        yield at + "self_attn.o_proj.weight", block.out.weight
        for name, layer in (("gate", block.gate), ("up", block.up), ("down", block.down)):
            yield f"{at}mlp.{name}_proj.weight", layer.weight
    yield "model.norm.weight", model.norm.weight
    yield "lm_head.weight", model.head.weight


def config_of(shape, model):
    if not shape["llama"]:
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": shape["vocab"],
                "n_embd": shape["hidden"], "n_layer": shape["layers"], "n_head": shape["heads"],
                "n_positions": shape["seq_len"], "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
                "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape["vocab"],
            "hidden_size": shape["hidden"], "num_hidden_layers": shape["layers"],
            "num_attention_heads": shape["heads"], "num_key_value_heads": shape.get("kv_heads", shape["heads"]),
            "intermediate_size": model.blocks[0].up.weight.size(0), "max_position_embeddings": shape["seq_len"],
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors:
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + 4 * tensor.numel()]}
        at += 4 * tensor.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in tensors:
            file.write(tensor.detach().float().cpu().contiguous().numpy().tobytes())


def write_weights(name, folder, seeds, device):
    shape = MODELS[name]
    with torch.device(device):
        model = Decoder(shape)
    for seed in seeds:
        initialize(model, shape, seed)
        to = folder / str(seed) / "weights"
        to.mkdir(parents=True, exist_ok=True)
        named = list((named_for_llama if shape["llama"] else named_for_gpt2)(model))
        write_safetensors(to / "model.safetensors", named)
        (to / "config.json").write_text(json.dumps(config_of(shape, model), indent=1))


def batches_of(path, shape, samples, steps):
    """(tokens, targets), each [steps, samples, seq_len]; no target is -1, which is PyTorch's -100."""
    values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.int32).long()
    values = values.view(-1, samples, 2, shape["seq_len"])
    if len(values) < steps:
        sys.exit(f"{path} has {len(values)} steps of {samples} samples, {steps} are needed")
    values[values == -1] = -100
    return values[:, :, 0].contiguous(), values[:, :, 1].contiguous()


def train(model, forward, batches, steps, settings, device):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS, fused=device == "cuda")
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, (step + 1) / WARMUP)
        ids, targets = (part[step].to(device) for part in batches)
        with torch.autocast(device, torch.bfloat16, enabled="fp32" not in settings):
            loss = forward(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.detach())
    return [x.item() for x in losses]


def main():
    words = [w for w in sys.argv[1:] if w not in ("cuda", "compile", "fp32")]
    settings = set(sys.argv[1:]) - set(words)
    if len(words) < 4 or words[0] not in ("weights", "train"):
        sys.exit(__doc__)
    device = "cuda" if "cuda" in settings else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    verb, name, folder = words[0], words[1], pathlib.Path(words[2])
    if verb == "weights":
        return write_weights(name, folder, [int(seed) for seed in words[3:]], device)
    steps, samples, run, seeds = int(words[3]), int(words[4]), words[5], [int(seed) for seed in words[6:]]
    shape = MODELS[name]
    with torch.device(device):
        model = Decoder(shape)
    forward = torch.compile(model) if "compile" in settings else model
    for seed in seeds:
        initialize(model, shape, seed)
        batches = batches_of(folder / str(seed) / "batches.bin", shape, samples, steps)
        losses = train(model, forward, batches, steps, settings, device)
        (folder / str(seed) / f"{run}.json").write_text(json.dumps({"losses": losses, "version": torch.__version__}))


if __name__ == "__main__":
    main()
