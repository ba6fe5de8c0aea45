"""transformers' models under this program's parameter names, and without their FP32 casts."""

import contextlib
import json
import math
from unittest import mock

import torch
from torch import nn
from transformers import Dots1Config, Dots1ForCausalLM, Gemma2Config, Gemma2ForCausalLM
from transformers import GPT2Config, GPT2LMHeadModel, GptOssConfig, GptOssForCausalLM
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import MistralConfig, MistralForCausalLM, MptConfig, MptForCausalLM
from transformers import MixtralConfig, MixtralForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.dots1 import modeling_dots1
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

CLASSES = {GPT2Config: GPT2LMHeadModel, LlamaConfig: LlamaForCausalLM,
           MistralConfig: MistralForCausalLM, Qwen2Config: Qwen2ForCausalLM,
           Qwen3Config: Qwen3ForCausalLM, Gemma2Config: Gemma2ForCausalLM,
           MptConfig: MptForCausalLM, GptOssConfig: GptOssForCausalLM,
           MixtralConfig: MixtralForCausalLM, Qwen3MoeConfig: Qwen3MoeForCausalLM,
           Dots1Config: Dots1ForCausalLM}
# Modules that cast to FP32, with the first word of their classes.
CASTING = {modeling_llama: "Llama", modeling_mistral: "Mistral", modeling_qwen2: "Qwen2",
           modeling_qwen3: "Qwen3", modeling_gemma2: "Gemma2", modeling_gpt_oss: "GptOss",
           modeling_mixtral: "Mixtral", modeling_qwen3_moe: "Qwen3Moe", modeling_dots1: "Dots1"}


class _DenseMlp(modeling_llama.LlamaMLP):
    """In the place of gpt-oss' experts, which return their router's scores too."""

    def forward(self, x):
        return super().forward(x), None


def build(config, attention):
    config._attn_implementation = attention
    config._experts_implementation = "eager"
    model = CLASSES[type(config)](config).eval()
    if isinstance(model, GptOssForCausalLM):
        config.mlp_bias = False
        for layer in model.model.layers:
            layer.mlp = _DenseMlp(config)
    return model


# Keys of gpt-oss' experts.
_EXPERTS = ("num_local_experts", "num_experts_per_tok", "router_aux_loss_coef", "mlp_bias",
            "output_router_logits", "swiglu_limit", "swiglu_alpha", "experts_per_token")


def config_text(config):
    """config.json of the model that build() makes."""
    values = config.to_dict()
    if isinstance(config, GptOssConfig):
        values = {k: v for k, v in values.items() if k not in _EXPERTS}
        values["model_type"] = "gpt_oss_dense"
    return json.dumps(values, indent=2, sort_keys=True)


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


def mpt_map(config):
    """As gpt2_map."""
    names = {"wte": ["embed_tokens"], "norm_f": ["norm"]}
    for i in range(config.n_layers):
        hf, own = f"blocks.{i}", f"layers.{i}"
        names |= {f"{hf}.norm_1": [f"{own}.input_layernorm"],
                  f"{hf}.norm_2": [f"{own}.post_attention_layernorm"],
                  f"{hf}.attn.Wqkv": [f"{own}.self_attn.{x}_proj" for x in "qkv"],
                  f"{hf}.attn.out_proj": [f"{own}.self_attn.o_proj"],
                  f"{hf}.ffn.up_proj": [f"{own}.mlp.up_proj"],
                  f"{hf}.ffn.down_proj": [f"{own}.mlp.down_proj"]}
    return {f"transformer.{hf}.weight": ([f"model.{name}.weight" for name in own], False)
            for hf, own in names.items()}


def experts_map(model):
    """As gpt2_map: experts' tensors are [experts, out, in] here and there."""
    names = {}
    for n, _ in model.named_parameters():
        if ".mlp.experts." in n:
            parts = n.rpartition(".")[2].replace("_up_proj", "_proj up_proj").split()
            names[n] = ([f"{n.rpartition('.')[0]}.{part}.weight" for part in parts], False)
    return names


def own_names(model):
    """HF name of each parameter (a tied one once) -> (our names, transposed)."""
    maps = {GPT2LMHeadModel: gpt2_map, MptForCausalLM: mpt_map}
    special = maps[type(model)](model.config) if type(model) in maps else experts_map(model)
    return {n: special.get(n, ([n], False)) for n, _ in model.named_parameters()}


def buffers(model):
    """Values that no gradient changes, by name."""
    return dict(b for b in model.named_buffers() if b[0].endswith(".e_score_correction_bias"))


def narrow(model, dtype):
    """The model in this type but for what transformers keeps in FP32 when it reads one."""
    kept = {n: b.clone() for n, b in buffers(model).items()}
    model = model.to(dtype)
    if dtype.itemsize < 4:
        for n, b in kept.items():
            module, _, name = n.rpartition(".")
            setattr(model.get_submodule(module), name, b)
    return model


def split(value, names, transposed):
    """A tensor of the HF model as our parameters."""
    value = value.t() if transposed else value
    return dict(zip(names, value.chunk(len(names), max(0, value.dim() - 2))))


def load(model, make):
    """Sets every parameter from make(our name, shape)."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for hf, (names, transposed) in own_names(model).items():
            parts = split(parameters[hf], names, transposed)
            whole = torch.cat([torch.from_numpy(make(n, tuple(p.shape))) for n, p in parts.items()],
                              max(0, parameters[hf].dim() - 2))
            parameters[hf].copy_(whole.t() if transposed else whole)
        for name, buffer in buffers(model).items():
            buffer.copy_(torch.from_numpy(make(name, tuple(buffer.shape))))


def gradients(model):
    """Our name -> gradient in FP64."""
    parameters = dict(model.named_parameters())
    result = {}
    for hf, (names, transposed) in own_names(model).items():
        result |= split(parameters[hf].grad.double(), names, transposed)
    return result


def _scaled_embedding(self, ids):
    # The module keeps its factor in FP32.
    return nn.functional.embedding(ids, self.weight) * self.scalar_embed_scale


def _router(self, x):
    logits = nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    chosen, expert = torch.topk(nn.functional.softmax(logits, dim=-1), self.top_k, dim=-1)
    return logits, chosen / chosen.sum(-1, keepdim=True) if self.norm_topk_prob else chosen, expert


def _sigmoid_router(self, x):
    logits = nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    scores = logits.sigmoid()
    keys = (scores + self.e_score_correction_bias).unflatten(-1, (self.num_group, -1))
    kept = torch.topk(keys.topk(2, dim=-1)[0].sum(-1), self.topk_group, dim=-1)[1]
    mask = torch.zeros(keys.shape[:2], dtype=torch.bool).scatter_(1, kept, True)
    keys = keys.masked_fill(~mask[..., None], -math.inf).flatten(1)
    expert = torch.topk(keys, self.top_k, dim=-1)[1]
    chosen = scores.gather(1, expert)
    if self.norm_topk_prob:
        chosen = chosen / (chosen.sum(-1, keepdim=True) + 1e-20)
    return logits, chosen * self.routed_scaling_factor, expert


def watch_routers(model):
    """The list to which each router adds its logits from now on."""
    logits = []
    for name, module in model.named_modules():
        if name.endswith(".mlp.gate"):
            module.register_forward_hook(lambda _, inputs, out: logits.append(out[0]))
    return logits


def limit_experts(model, factor, sequences):
    """From now on an expert takes of each sequence's choices those with the largest scores, as many as
    `factor` of its even share, rounded up; weights of the others are zero, and those that stay are
    what they were. Returns a list to which each router adds the least relative distance between the
    scores of the last choice that stays and the first that goes, and how many go."""
    seen = []

    def limit(_, inputs, out):
        logits, weights, expert = out
        scores = nn.functional.softmax(logits.detach().float(), dim=-1).gather(1, expert)
        tokens, top_k = len(expert) // sequences, expert.shape[1]
        room = math.ceil(factor * tokens * top_k / logits.shape[1])
        kept, gap = torch.ones_like(weights), math.inf
        for first in range(0, len(expert), tokens):
            for e in range(logits.shape[1]):
                choices = [(-scores[row, k].item(), row, k) for row in range(first, first + tokens)
                           for k in range(top_k) if expert[row, k] == e]
                choices.sort()
                for _, row, k in choices[room:]:
                    kept[row, k] = 0
                if len(choices) > room:
                    gap = min(gap, 1 - choices[room][0] / choices[room - 1][0])
        seen.append((gap, int((kept == 0).sum())))
        return logits, weights * kept, expert

    for name, module in model.named_modules():
        if name.endswith(".mlp.gate"):
            module.register_forward_hook(limit)
    return seen


def balance_loss(config, router_logits):
    return modeling_mixtral.load_balancing_loss_func(
        router_logits, config.num_local_experts, config.num_experts_per_tok)


_to_float = torch.Tensor.float


def _stay_double(self):
    return self if self.dtype == torch.float64 else _to_float(self)


def _norm(self, x):
    if isinstance(self, modeling_gemma2.Gemma2RMSNorm):
        weight, eps = 1 + self.weight, self.eps
    else:
        weight, eps = self.weight, self.variance_epsilon
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def _frequencies(config, length):
    """Frequencies of RoPE in FP64, and the factor of cosine and sine, for sequences of `length`."""
    p = config.rope_parameters
    theta, kind, factor = p["rope_theta"], p["rope_type"], p.get("factor", 1.0)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    longest = config.max_position_embeddings
    if kind == "dynamic":
        theta *= (factor * max(length, longest) / longest - factor + 1) ** (dim / (dim - 2))
    plain = [math.pow(theta, -2.0 * i / dim) for i in range(dim // 2)]
    first_length = p.get("original_max_position_embeddings", longest)
    if kind == "linear":
        return [f / factor for f in plain], 1.0
    if kind == "llama3":
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        turns = [first_length * f / (2 * math.pi) for f in plain]
        kept = [min(max((t - low) / (high - low), 0.0), 1.0) for t in turns]
        return [f * (k + (1 - k) / factor) for f, k in zip(plain, kept)], 1.0
    if kind == "yarn":
        def component(turns):
            return dim * math.log(first_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first, last = component(p["beta_fast"]), component(p["beta_slow"])
        if p.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        kept = [1 - min(max((i - first) / (last - first), 0.0), 1.0) for i in range(dim // 2)]
        return [f * (k + (1 - k) / factor) for f, k in zip(plain, kept)], 0.1 * math.log(factor) + 1
    return plain, 1.0


def _rotary(self, x, position_ids):
    # The frequencies are correctly rounded FP32 values; everything after them is FP64.
    length = int(position_ids.max()) + 1
    exact, magnitude = _frequencies(self.config, length)
    frequency = torch.tensor(exact, dtype=torch.float32).double()
    kind = self.config.rope_parameters["rope_type"]
    if kind != "default":
        theirs, their_magnitude = ROPE_INIT_FUNCTIONS[kind](self.config, None, seq_len=length)
        assert (theirs.double() / frequency - 1).abs().max() < 1e-6, (kind, theirs, exact)
        assert abs(their_magnitude / magnitude - 1) < 1e-12
    angle = position_ids[..., None].double() * frequency
    if not isinstance(self, modeling_gpt_oss.GptOssRotaryEmbedding):
        angle = torch.cat((angle, angle), dim=-1)
    return magnitude * angle.cos(), magnitude * angle.sin()


def _attention(module, query, key, value, attention_mask, scaling, dropout=0.0, softcap=None, **_):
    sinks = getattr(module, "sinks", None)
    key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
    value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + attention_mask
    if sinks is not None:
        sink = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    probabilities = nn.functional.softmax(scores, dim=-1)[..., : key.shape[2]]
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), probabilities


@contextlib.contextmanager
def pure_fp64():
    """Within it, models cast nothing to FP32 (GPT-2 never does)."""
    with contextlib.ExitStack() as stack:
        # What MPT does before its softmax; its slopes are exact in FP32.
        stack.enter_context(mock.patch.object(torch.Tensor, "float", _stay_double))
        stack.enter_context(mock.patch.object(modeling_gemma2.Gemma2TextScaledWordEmbedding, "forward",
                                              _scaled_embedding))
        stack.enter_context(mock.patch.object(modeling_qwen3_moe.Qwen3MoeTopKRouter, "forward", _router))
        stack.enter_context(mock.patch.object(modeling_dots1.Dots1TopkRouter, "forward", _sigmoid_router))
        for module, word in CASTING.items():
            for holder, name, value in (
                (getattr(module, word + "RMSNorm"), "forward", _norm),
                (getattr(module, word + "RotaryEmbedding"), "forward", _rotary),
                (module, "eager_attention_forward", _attention),
            ):
                stack.enter_context(mock.patch.object(holder, name, value))
        yield
