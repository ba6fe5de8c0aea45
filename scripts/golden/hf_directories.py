"""Hugging Face directories, both ways.

    python scripts/golden/hf_directories.py
        saves tests/parity/golden/hf_* with transformers; the weights are formulas
    LLMTRAIN_HF_EXPORT=DIR build/tests/parity_test -tc='*opens*'
    python scripts/golden/hf_directories.py DIR
        opens what this program exported with transformers and compares logits with the goldens
"""

import pathlib
import sys

import torch
from safetensors import safe_open
from transformers import (AutoModelForCausalLM, Dots1Config, Gemma2Config, GPT2Config, LlamaConfig,
                          MistralConfig, MixtralConfig, MptConfig, Qwen2Config, Qwen3Config,
                          Qwen3MoeConfig)

import families
import formula
import models

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/parity/golden"
SAVED = {
    "hf_gpt2": (GPT2Config(vocab_size=37, n_positions=11, n_embd=16, n_layer=2, n_head=2,
                           bos_token_id=0, eos_token_id=0), torch.float32),
    "hf_llama": (LlamaConfig(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             head_dim=6, intermediate_size=20, rope_theta=500000.0),
                 torch.bfloat16),
    "hf_mistral": (MistralConfig(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                 intermediate_size=20, sliding_window=None),
                   torch.bfloat16),
    "hf_qwen2": (Qwen2Config(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             intermediate_size=20, tie_word_embeddings=True),
                 torch.float32),
    "hf_qwen3": (Qwen3Config(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             head_dim=6, intermediate_size=20,
                             rope_parameters={"rope_type": "yarn", "factor": 2.0,
                                              "rope_theta": 1000000.0,
                                              "original_max_position_embeddings": 32}),
                 torch.bfloat16),
    "hf_gemma2": (Gemma2Config(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                               num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                               head_dim=6, intermediate_size=20, query_pre_attn_scalar=6,
                               sliding_window=9, bos_token_id=None, pad_token_id=None),
                  torch.bfloat16),
    "hf_mpt": (MptConfig(vocab_size=37, max_seq_len=11, d_model=16, n_heads=4, n_layers=2),
               torch.float32),
    "hf_mixtral": (MixtralConfig(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                                 num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                 intermediate_size=20, num_local_experts=3),
                   torch.bfloat16),
    "hf_qwen3_moe": (Qwen3MoeConfig(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                                    num_hidden_layers=2, num_attention_heads=4,
                                    num_key_value_heads=2, head_dim=6, intermediate_size=20,
                                    moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2,
                                    mlp_only_layers=[0]),
                     torch.bfloat16),
    "hf_dots1": (Dots1Config(vocab_size=37, max_position_embeddings=64, hidden_size=16,
                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             head_dim=6, intermediate_size=20, moe_intermediate_size=12,
                             n_routed_experts=4, n_shared_experts=2, num_experts_per_tok=2,
                             n_group=2, first_k_dense_replace=1, sliding_window=None),
                 torch.bfloat16),
}


def save():
    for name, (config, dtype) in SAVED.items():
        model = families.build(config, "eager")
        families.load(model, lambda n, shape: formula.weights(n, shape, 0.0, 1.0))
        families.narrow(model, dtype).save_pretrained(GOLDEN / name)
        (GOLDEN / name / "generation_config.json").unlink()


def check(folder):
    worst = 0.0
    for path in sorted(folder.iterdir()):
        if path.name.startswith("gpt_oss_dense"):
            continue  # transformers has no such model
        with safe_open(GOLDEN / f"{path.name}.safetensors", "pt") as file:
            expected = file.get_tensor("logits")
            inputs = [file.get_tensor(k).long() for k in
                      ("tokens", "targets", "document_begin", "embedding_position")]
            factor = file.metadata().get("capacity_factor")
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
        assert model.dtype == torch.float32, model.dtype
        if factor is not None:
            families.limit_experts(model, float(factor), len(inputs[0]))
        logits = models.forward(model, inputs).logits.flatten(0, 1).double()
        error = ((logits - expected).norm() / expected.norm()).item()
        print(f"{path.name}: {model.config.model_type}, logits differ by {error:.1e}")
        worst = max(worst, error)
    assert 0 < worst <= 1e-5, worst


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[1])) if len(sys.argv) > 1 else save()
