"""Writes tests/parity/golden/*.safetensors: logits, loss and gradients of transformers' models in
FP64, with the errors of PyTorch's own FP32 and BF16 runs against them, and fp16_errors.json with
those of its FP16 runs. Of BF16 and FP16 there are two runs each, with plain and with fused
attention (SDPA; not of Gemma 2, which it cannot do); their errors differ by luck up to a factor of
two in small tensors, and the larger counts.

    python scripts/golden/models.py [FOLDER]

Weights are formulas (formula.py), scaled so that attention is sharp and logits are large. A file holds
    metadata "config"                                   transformers' config.json
    metadata "capacity_factor"                          of experts that drop tokens, which transformers
                                                        does not know
    tokens, targets, document_begin, embedding_position I32 [sequences, T]; target -1 = untrained
    logits F64 [rows, vocab], loss F64 [1]              loss: mean over trained tokens
    error.logits, error.loss F64 [2]                    L2 distance of FP32, BF16 from FP64
    grad.<parameter> F64, meta.<parameter> F64 [4]      offset and scale of the formula, FP32 and BF16
                                                        error of the gradient; what no gradient
                                                        changes has meta alone
and fp16_errors.json, for each model,
    {"logits": ..., "loss": ..., "gradients": {<parameter>: ...}}   L2 distance of FP16 from FP64
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (Dots1Config, Gemma2Config, GPT2Config, GptOssConfig, LlamaConfig,
                          MistralConfig, MixtralConfig, MptConfig, Qwen2Config, Qwen3Config,
                          Qwen3MoeConfig)

import families
import formula

GPT2 = {"vocab_size": 53, "n_positions": 29, "bos_token_id": 0, "eos_token_id": 0,
        "n_embd": 20, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA = {"vocab_size": 53, "max_position_embeddings": 40, "hidden_size": 20, "num_hidden_layers": 2}

# name -> (config, first rows of the documents of each sequence, rows per sequence, positions restart)
CASES = {
    "gpt2_tied": (GPT2Config(**GPT2, n_inner=52), [[0, 7, 8, 19], [0]], 23, True),
    "gpt2_untied_gelu": (
        GPT2Config(**GPT2 | {"n_head": 5}, n_inner=44, activation_function="gelu",
                   tie_word_embeddings=False, layer_norm_epsilon=1e-3),
        [[0, 1, 12], [0, 17], [0, 11]], 19, False),
    "llama_one_kv_head": (
        LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=1, head_dim=14,
                    intermediate_size=36, rms_norm_eps=1e-5),
        [[0, 5, 16], [0, 22]], 23, True),
    "llama_grouped_biased_tied": (
        LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                    intermediate_size=44, rope_theta=500000.0, tie_word_embeddings=True,
                    attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3),
        [[0, 13, 14], [0]], 31, False),
    "llama_multi_head": (
        LlamaConfig(**LLAMA, num_attention_heads=2, intermediate_size=48, rms_norm_eps=1e-6),
        [[0, 2, 19]], 37, True),
    "llama_linear_rope": (
        LlamaConfig(**LLAMA, num_attention_heads=2, intermediate_size=28,
                    rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 3000.0}),
        [[0], [0, 9]], 29, False),
    "llama_dynamic_rope": (
        LlamaConfig(**LLAMA | {"max_position_embeddings": 13}, num_attention_heads=2,
                    intermediate_size=28,
                    rope_parameters={"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}),
        [[0, 10], [0]], 31, False),
    "llama_llama3_rope": (
        LlamaConfig(**LLAMA, num_attention_heads=2, num_key_value_heads=1, intermediate_size=28,
                    rope_parameters={"rope_type": "llama3", "factor": 8.0, "rope_theta": 500.0,
                                     "low_freq_factor": 1.0, "high_freq_factor": 3.0,
                                     "original_max_position_embeddings": 24}),
        [[0, 6], [0]], 37, False),
    "llama_yarn_rope": (
        LlamaConfig(**LLAMA, num_attention_heads=2, intermediate_size=28,
                    rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0,
                                     "beta_fast": 2.0, "beta_slow": 0.25,
                                     "original_max_position_embeddings": 10}),
        [[0], [0, 21]], 31, False),
    "mistral_window": (
        MistralConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                      intermediate_size=44, sliding_window=7, rms_norm_eps=1e-5),
        [[0, 13, 14], [0]], 37, False),
    "qwen2_upper_windows": (
        Qwen2Config(**LLAMA | {"hidden_size": 24, "num_hidden_layers": 3}, num_attention_heads=4,
                    num_key_value_heads=1, intermediate_size=28, rope_theta=1000000.0,
                    tie_word_embeddings=True, use_sliding_window=True, sliding_window=5,
                    max_window_layers=1),
        [[0, 6, 20], [0]], 29, True),
    "qwen3_upper_windows": (
        Qwen3Config(**LLAMA | {"num_hidden_layers": 3}, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=6, intermediate_size=28, rope_theta=1000000.0,
                    use_sliding_window=True, sliding_window=7, max_window_layers=2,
                    attention_bias=True),
        [[0, 6, 20], [0]], 29, True),
    "qwen3_one_kv_head": (
        Qwen3Config(**LLAMA, num_attention_heads=3, num_key_value_heads=1, head_dim=14,
                    intermediate_size=36, tie_word_embeddings=True, rms_norm_eps=1e-3),
        [[0, 11], [0, 3]], 19, False),
    "gemma2_alternating": (
        Gemma2Config(**LLAMA | {"num_hidden_layers": 3}, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=6, intermediate_size=28, sliding_window=7,
                     query_pre_attn_scalar=9, attn_logit_softcapping=6.0,
                     final_logit_softcapping=9.0, pad_token_id=None),
        [[0, 6, 20], [0]], 23, True),
    "gemma2_uncapped": (
        Gemma2Config(**LLAMA, num_attention_heads=2, num_key_value_heads=1, head_dim=14,
                     intermediate_size=36, sliding_window=40, query_pre_attn_scalar=14,
                     attn_logit_softcapping=None, final_logit_softcapping=None,
                     tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-3,
                     hidden_activation="gelu", pad_token_id=None),
        [[0, 11], [0, 3]], 19, False),
    "gpt_oss_dense_sinks": (
        GptOssConfig(**LLAMA | {"num_hidden_layers": 3}, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=6, intermediate_size=28, sliding_window=7,
                     num_local_experts=2, num_experts_per_tok=1,
                     rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0,
                                      "beta_fast": 2.0, "beta_slow": 0.25, "truncate": False,
                                      "original_max_position_embeddings": 10}),
        [[0, 6, 20], [0]], 29, True),
    "mpt_alibi": (
        MptConfig(vocab_size=53, max_seq_len=40, d_model=20, n_heads=5, n_layers=2),
        [[0, 6, 20], [0]], 29, True),
    "mpt_untied": (
        MptConfig(vocab_size=53, max_seq_len=23, d_model=24, n_heads=2, n_layers=2,
                  attn_config={"softmax_scale": 0.5}, layer_norm_epsilon=1e-3,
                  tie_word_embeddings=False),
        [[0, 11], [0, 3]], 23, False),
    "qwen2_multi_head": (
        Qwen2Config(**LLAMA, num_attention_heads=2, num_key_value_heads=2, intermediate_size=48),
        [[0, 11], [0, 3]], 19, True),
    "mixtral_window": (
        MixtralConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                      intermediate_size=28, sliding_window=7, num_local_experts=5,
                      router_aux_loss_coef=0.0),
        [[0, 13, 14], [0]], 37, False),
    "qwen3_moe_some_layers": (
        Qwen3MoeConfig(**LLAMA | {"num_hidden_layers": 4}, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=6, intermediate_size=28,
                       moe_intermediate_size=12, num_experts=7, num_experts_per_tok=3,
                       decoder_sparse_step=2, mlp_only_layers=[3], rope_theta=1000000.0,
                       attention_bias=True, router_aux_loss_coef=0.0),
        [[0, 6, 20], [0]], 29, True),
    # The balance loss of transformers is that of all rows, ours that of each sequence.
    "qwen3_moe_balanced": (
        Qwen3MoeConfig(**LLAMA, num_attention_heads=2, num_key_value_heads=1, head_dim=10,
                       intermediate_size=28, moe_intermediate_size=12, num_experts=6,
                       num_experts_per_tok=2, mlp_only_layers=[0], norm_topk_prob=True,
                       tie_word_embeddings=True, router_aux_loss_coef=0.75),
        [[0, 11]], 32, False),
    "qwen3_moe_capacity": (
        Qwen3MoeConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                       intermediate_size=28, moe_intermediate_size=12, num_experts=6,
                       num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.0),
        [[0, 6, 20], [0]], 29, True),
    "dots1_groups": (
        Dots1Config(**LLAMA | {"num_hidden_layers": 3}, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=6, intermediate_size=28,
                    moe_intermediate_size=12, n_routed_experts=9, n_shared_experts=2,
                    num_experts_per_tok=4, n_group=3, topk_group=2, first_k_dense_replace=1,
                    norm_topk_prob=True, routed_scaling_factor=2.5, rms_norm_eps=1e-5,
                    rope_theta=1000000.0, sliding_window=None),
        [[0, 6, 20], [0]], 29, True),
    "dots1_one_group": (
        Dots1Config(**LLAMA, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
                    intermediate_size=28, moe_intermediate_size=14, n_routed_experts=5,
                    n_shared_experts=1, num_experts_per_tok=2, attention_bias=True,
                    tie_word_embeddings=True, routed_scaling_factor=0.75),
        [[0, 11], [0, 3]], 23, False),
    # Heads of whole chunks of 16 bytes in BF16: what tensor cores and cuDNN take.
    "llama_whole_heads": (
        LlamaConfig(**LLAMA, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                    intermediate_size=44, rms_norm_eps=1e-5),
        [[0], [0, 22]], 37, True),
    "mistral_whole_heads": (
        MistralConfig(**LLAMA, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                      intermediate_size=44, sliding_window=7, rms_norm_eps=1e-5),
        [[0, 13, 14], [0]], 31, False),
}

# Experts that take no more than this part of their even share of a sequence's choices.
CAPACITY_FACTORS = {"qwen3_moe_capacity": 0.8}


def fill(config, name, shape):
    """Offset and scale of a parameter's formula. Keys are large and queries small: the gradient of the
    keys' bias, whose exact value in GPT-2 is zero, is rounding noise in proportion to the queries."""
    if name.endswith(".e_score_correction_bias"):
        return 0.0, 0.5  # changes many choices by scores between 0 and 1
    if name.endswith(".mlp.gate.weight"):
        return 0.0, 6.0 * (3.0 / shape[1]) ** 0.5  # experts are not chosen by rounding errors
    gain = {"q_proj": 0.2, "k_proj": 14.0, "lm_head": 2.0}.get(name.split(".")[-2], 1.0)
    if name.endswith(".sinks"):
        return 1.0, 2.0
    if name.endswith(".bias"):
        return 0.0, 0.5 * min(gain, 1.0)
    if len(shape) == 1:
        if config.model_type == "gemma2":
            return 0.0, 0.5  # its norms' weights count from one
        return (2.5, 1.0) if "k_norm" in name else (1.0, 0.5)
    return 0.0, 1.0 if "embed" in name else gain * (3.0 / shape[-1]) ** 0.5


def batch(name, documents, length, restart, vocab):
    tokens = formula.below(name + ".tokens", vocab, len(documents) * length)
    tokens = torch.from_numpy(tokens).reshape(len(documents), length)
    begin = torch.zeros_like(tokens)
    for row, starts in zip(begin, documents):
        for start in starts:
            row[start:] = start
    position = torch.arange(length).expand_as(begin)
    targets = tokens.roll(-1, 1)
    targets[:, -1] = -1
    targets[:, :-1][begin[:, 1:] != begin[:, :-1]] = -1  # the next document is not to be guessed
    targets[0, 3] = targets[-1, 9] = -1
    return tokens, targets, begin, position - begin if restart else position


def mask(begin, window, dtype):
    """What attention adds to its scores: documents, causality, and the last `window` keys if any."""
    index = torch.arange(begin.shape[1])
    seen = (index[None, None, :] <= index[None, :, None]) & (index[None, None, :] >= begin[..., None])
    if window is not None:
        seen &= index[None, None, :] > index[None, :, None] - window
    zeros = torch.zeros(seen.shape, dtype=dtype)
    return zeros.masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def forward(model, inputs):
    tokens, _, begin, position = inputs
    window = getattr(model.config, "sliding_window", None)
    attention_mask = mask(begin, window, model.dtype)
    if getattr(model.config, "layer_types", None):
        attention_mask = {"full_attention": mask(begin, None, model.dtype),
                          "sliding_attention": attention_mask}
    plain = model.config._attn_implementation == "eager"
    return model(input_ids=tokens, attention_mask=attention_mask, position_ids=position,
                 output_attentions=plain, use_cache=False)


def sharpness(attentions, begin):
    """Per layer, the largest probability in rows that see at least five keys."""
    rows = torch.arange(begin.shape[1]) - begin >= 4
    return [a.detach().amax(-1).transpose(0, 1)[:, rows].max().item() for a in attentions or ()]


def run(config, inputs, dtype, attention="eager", capacity_factor=None):
    _, targets, begin, _ = inputs
    model = families.build(config, attention)
    families.load(model, lambda n, shape: formula.weights(n, shape, *fill(config, n, shape)))
    routers = families.watch_routers(model)
    limits = (families.limit_experts(model, capacity_factor, len(targets)) if capacity_factor else [])
    out = forward(families.narrow(model, dtype), inputs)
    logits = out.logits.flatten(0, 1)
    if dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    loss = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1)
    whole = loss
    if getattr(config, "router_aux_loss_coef", 0) > 0 and config.model_type != "gpt_oss":
        # Of every token as the loss itself, which is a mean over the trained ones.
        per_token = targets.numel() / (targets >= 0).sum().item()
        whole = loss + (config.router_aux_loss_coef * per_token
                        * families.balance_loss(config, tuple(routers)))
    whole.backward()
    return {"logits": logits.detach().double(), "loss": loss.detach().double().reshape(1),
            "grads": families.gradients(model), "sharp": sharpness(out.attentions, begin),
            "limits": limits,
            "buffers": {n: b.shape for n, b in families.buffers(model).items()}}


def layer_of(name):
    return ".".join(name.split(".")[:3]) if ".layers." in name else name.split(".")[1]


def check(name, exact, single):
    """The conditions under which the comparison means something."""
    span = (exact["logits"].max() - exact["logits"].min()).item()
    assert min(exact["sharp"]) > 0.5, "attention is flat"
    assert span > 10, "logits are small"
    assert all(gap > 0.02 and dropped > 5 for gap, dropped in exact["limits"]), exact["limits"]
    largest = {}
    for n, g in exact["grads"].items():
        largest[layer_of(n)] = max(largest.get(layer_of(n), 0), g.norm().item())
    worst = 0.0
    for n, g in exact["grads"].items():
        limit = max(g.norm().item(), 1e-3 * largest[layer_of(n)])
        worst = max(worst, (single["grads"][n] - g).norm().item() / limit)
    assert worst < 1e-5, f"PyTorch's own fp32 error is {worst:.1e}"
    print(f"{name}: loss {exact['loss'].item():.3f}, largest attention probability with >= 5 keys "
          f"{min(exact['sharp']):.3f} (least of the layers), logits span {span:.1f}, "
          f"fp32 gradient error {worst:.1e}")


def narrow_runs(config, inputs, dtype, factor):
    fused = families.CLASSES[type(config)]._supports_sdpa
    return [run(config, inputs, dtype, a, factor) for a in ("eager", "sdpa")[: 1 + fused]]


def fp16_errors(runs, bf16_runs, exact):
    """A loss is one number, and often right by luck: its error counts as at least an eighth of
    that in BF16, which has three bits less."""
    def error(get, of=runs):
        return float(f"{max((get(r) - get(exact)).norm().item() for r in of):.3g}")
    loss = lambda r: r["loss"]
    return {"logits": error(lambda r: r["logits"]),
            "loss": max(error(loss), error(loss, bf16_runs) / 8),
            "gradients": {n: error(lambda r: r["grads"][n]) for n in exact["grads"]}}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/parity/golden")
    torch.set_num_threads(1)
    of_fp16 = {}
    for name, (config, documents, length, restart) in CASES.items():
        inputs = batch(name, documents, length, restart, config.vocab_size)
        factor = CAPACITY_FACTORS.get(name)
        with families.pure_fp64():
            exact = run(config, inputs, torch.float64, capacity_factor=factor)
        single = run(config, inputs, torch.float32, capacity_factor=factor)
        half = narrow_runs(config, inputs, torch.bfloat16, factor)
        of_fp16[name] = fp16_errors(narrow_runs(config, inputs, torch.float16, factor), half, exact)
        check(name, exact, single)
        luck = max((h["loss"] / exact["loss"] - 1).abs().item() for h in half)
        assert luck > 2e-4, f"PyTorch's bf16 loss is right by luck: {luck:.1e}"

        def errors(get):
            fp32, *bf16 = [(get(o) - get(exact)).norm() for o in (single, *half)]
            return torch.stack([fp32, max(bf16)])

        tensors = {k: v.int().contiguous() for k, v in
                   zip(("tokens", "targets", "document_begin", "embedding_position"), inputs)}
        for key in ("logits", "loss"):
            tensors[key] = exact[key]
            tensors["error." + key] = errors(lambda r: r[key])
        for n, g in exact["grads"].items():
            formula_of = torch.tensor(fill(config, n, g.shape), dtype=torch.float64)
            tensors["grad." + n] = g.contiguous()
            tensors["meta." + n] = torch.cat([formula_of, errors(lambda r: r["grads"][n])])
        for n, shape in exact["buffers"].items():
            formula_of = torch.tensor(fill(config, n, shape), dtype=torch.float64)
            tensors["meta." + n] = torch.cat([formula_of, torch.zeros_like(formula_of)])
        metadata = {"config": families.config_text(config)}
        if factor is not None:
            metadata["capacity_factor"] = str(factor)
        save_file(tensors, folder / f"{name}.safetensors", metadata)
    (folder / "fp16_errors.json").write_text(json.dumps(of_fp16, indent=1) + "\n")


if __name__ == "__main__":
    main()
