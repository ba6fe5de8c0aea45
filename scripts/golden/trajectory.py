"""Writes tests/parity/golden/trajectory_{gpt2,llama}.json: the losses of 200 steps of AdamW by PyTorch.

    python scripts/golden/trajectory.py [FOLDER]

FP32, transformers' models, clipping by global norm, weight decay on matrices and embeddings, linear
warm-up, then a constant learning rate; once with one thread and once with two. Weights and batches are
formulas (formula.py). A file holds the recipe of the run, offset and scale of each parameter's formula,
the losses with one thread, and how far those with two threads are from them.
"""

import json
import pathlib
import sys

import torch
from transformers import GPT2Config, LlamaConfig

import families
import formula

STEPS, WARMUP, SAMPLES, LENGTH, VOCAB = 200, 20, 4, 48, 96
LR, BETAS, EPS, DECAY, MAX_NORM = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0

RUN = f"""
training: {{seq_len: {LENGTH}, micro_batch_size: 2, global_batch_size: {SAMPLES}, max_steps: {STEPS}}}
optimizer: {{name: adamw, lr: {LR}, betas: [{BETAS[0]}, {BETAS[1]}], eps: {EPS}, weight_decay: {DECAY},
            max_grad_norm: {MAX_NORM}}}
lr_scheduler: {{type: constant, warmup: {WARMUP} steps}}
precision: {{compute: fp32}}
"""
CASES = {
    "gpt2": (
        GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=64, n_layer=3, n_head=4,
                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0),
        f"""
recipe: 1
model: {{architecture: gpt2, vocab_size: {VOCAB}, hidden_size: 64, num_hidden_layers: 3,
        num_attention_heads: 4, max_position_embeddings: {LENGTH}}}"""),
    "llama": (
        LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, hidden_size=64,
                    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=20,
                    intermediate_size=120, rms_norm_eps=1e-5),
        f"""
recipe: 1
model: {{architecture: llama, vocab_size: {VOCAB}, hidden_size: 64, num_hidden_layers: 3,
        num_attention_heads: 4, num_key_value_heads: 2, head_dim: 20, intermediate_size: 120,
        max_position_embeddings: {LENGTH}, rms_norm_eps: 1e-5}}"""),
}


def fill(name, shape):
    """Offset and scale of a parameter's formula: a deviation of 0.08 for matrices and embeddings."""
    if len(shape) == 1:
        return (0.0, 0.02) if name.endswith(".bias") else (1.0, 0.02)
    return 0.0, 0.08 * 3**0.5


def batch(step):
    """Sequences in which the next token is one of three, by the token before it."""
    rows = []
    for sample in range(SAMPLES):
        name = f"sequence {(step - 1) * SAMPLES + sample}"
        noise = formula.below(name, 3, LENGTH)
        row = [int(formula.below(name + " start", VOCAB, 1)[0])]
        for n in noise:
            row.append((row[-1] * 5 + 7 + int(n)) % VOCAB)
        rows.append(row)
    return torch.tensor(rows)


def train(config, threads, dtype=torch.float32):
    torch.set_num_threads(threads)
    model = families.build(config, "eager")
    families.load(model, lambda n, shape: formula.weights(n, shape, *fill(n, shape)))
    model.to(dtype)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY},
                                   {"params": others, "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        tokens = batch(step)
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, step / WARMUP)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
        losses.append(loss.item())
    shapes = {}
    for name, parameter in model.named_parameters():
        ours, transposed = families.own_names(model)[name]
        shapes |= {n: fill(n, p.shape) for n, p in families.split(parameter, ours, transposed).items()}
    return losses, norms, shapes


def largest_difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/parity/golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    for name, (config, recipe) in CASES.items():
        losses, norms, fills = train(config, 1)
        two, *_ = train(config, 2)
        with families.pure_fp64():
            exact, *_ = train(config, 1, torch.float64)
        clipped = sum(n > MAX_NORM for n in norms)
        print(f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {clipped} of {STEPS} steps clipped, "
              f"one against two threads {largest_difference(losses, two):.1e}, "
              f"fp32 against fp64 {largest_difference(losses, exact):.1e}")
        assert 0 < clipped < STEPS and losses[-1] < 0.5 * losses[0]
        golden = {"recipe": recipe + RUN, "fill": fills, "loss": losses,
                  "spread": [abs(a - b) for a, b in zip(losses, two)]}
        (folder / f"trajectory_{name}.json").write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
