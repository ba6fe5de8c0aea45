"""transformers' GPT-2 and Llama under this program's parameter names, and without their FP32 casts."""

import contextlib
import math

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama


def build(config, attention):
    config._attn_implementation = attention
    family = {GPT2Config: GPT2LMHeadModel, LlamaConfig: LlamaForCausalLM}[type(config)]
    return family(config).eval()


def gpt2_map(config):
    """HF name -> (our names, transposed)."""
    names = {
        "transformer.wte.weight": (["model.embed_tokens.weight"], False),
        "transformer.wpe.weight": (["model.embed_positions.weight"], False),
        "transformer.ln_f.weight": (["model.norm.weight"], False),
        "transformer.ln_f.bias": (["model.norm.bias"], False),
    }
    for i in range(config.n_layer):
        hf, own = f"transformer.h.{i}", f"model.layers.{i}"
        for kind in ("weight", "bias"):
            transposed = kind == "weight"
            names[f"{hf}.ln_1.{kind}"] = ([f"{own}.input_layernorm.{kind}"], False)
            names[f"{hf}.ln_2.{kind}"] = ([f"{own}.post_attention_layernorm.{kind}"], False)
            qkv = [f"{own}.self_attn.{x}_proj.{kind}" for x in "qkv"]
            names[f"{hf}.attn.c_attn.{kind}"] = (qkv, transposed)
            names[f"{hf}.attn.c_proj.{kind}"] = ([f"{own}.self_attn.o_proj.{kind}"], transposed)
            names[f"{hf}.mlp.c_fc.{kind}"] = ([f"{own}.mlp.up_proj.{kind}"], transposed)
            names[f"{hf}.mlp.c_proj.{kind}"] = ([f"{own}.mlp.down_proj.{kind}"], transposed)
    return names


def own_names(model):
    """HF name of each parameter (a tied one once) -> (our names, transposed)."""
    special = gpt2_map(model.config) if isinstance(model, GPT2LMHeadModel) else {}
    return {n: special.get(n, ([n], False)) for n, _ in model.named_parameters()}


def split(value, names, transposed):
    """A tensor of the HF model as our parameters."""
    value = value.t() if transposed else value
    return dict(zip(names, value.chunk(len(names))))


def load(model, make):
    """Sets every parameter from make(our name, shape)."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for hf, (names, transposed) in own_names(model).items():
            parts = split(parameters[hf], names, transposed)
            whole = torch.cat([torch.from_numpy(make(n, tuple(p.shape))) for n, p in parts.items()])
            parameters[hf].copy_(whole.t() if transposed else whole)


def gradients(model):
    """Our name -> gradient in FP64."""
    parameters = dict(model.named_parameters())
    result = {}
    for hf, (names, transposed) in own_names(model).items():
        result |= split(parameters[hf].grad.double(), names, transposed)
    return result


def _norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def _rotary(self, x, position_ids):
    # The frequencies are correctly rounded FP32 values; everything after them is FP64.
    config = self.config
    theta, dim = config.rope_parameters["rope_theta"], config.head_dim
    frequency = [math.pow(theta, -2.0 * i / dim) for i in range(dim // 2)]
    frequency = torch.tensor(frequency, dtype=torch.float32).double()
    angle = position_ids[..., None].double() * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def _attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
    value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling + attention_mask
    probabilities = nn.functional.softmax(scores, dim=-1)
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), probabilities


@contextlib.contextmanager
def pure_fp64():
    """Within it, transformers' Llama casts nothing to FP32 (its GPT-2 never does)."""
    norm, rotary = modeling_llama.LlamaRMSNorm, modeling_llama.LlamaRotaryEmbedding
    kept = norm.forward, rotary.forward, modeling_llama.eager_attention_forward
    norm.forward, rotary.forward = _norm, _rotary
    modeling_llama.eager_attention_forward = _attention
    try:
        yield
    finally:
        norm.forward, rotary.forward, modeling_llama.eager_attention_forward = kept
