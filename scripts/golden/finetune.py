"""Writes tests/parity/golden/finetune{,.json}: 50 steps of fine-tuning on prompts and completions by PyTorch.

    python scripts/golden/finetune.py [FOLDER]

finetune/ is a small Llama as transformers saves it and pairs.jsonl, sums in words. Every step takes all of
it: prompt and completion as bytes, an end token in front and behind, rows cut into samples; the loss is the
mean over the rows that predict a completion's bytes or the end. finetune.json holds the recipe, the losses
in FP64 and in FP32, and how far FP32 with two threads is from one.
"""

import json
import pathlib
import sys

import torch
from transformers import LlamaConfig

import families
import formula

STEPS, LENGTH, END, VOCAB = 50, 40, 256, 260
LR, BETAS, EPS, DECAY, MAX_NORM = 5e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()

CONFIG = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, hidden_size=16, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=6, intermediate_size=24,
                     rms_norm_eps=1e-5, tie_word_embeddings=True)
RECIPE = """
recipe: 1
model: {{architecture: llama, vocab_size: {vocab}, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, head_dim: 6, intermediate_size: 24,
        max_position_embeddings: {length}, rms_norm_eps: 1e-5, tie_word_embeddings: true}}
training: {{seq_len: {length}, micro_batch_size: 1, global_batch_size: {samples}, max_steps: {steps}}}
optimizer: {{name: adamw, lr: {lr}, betas: [{beta1}, {beta2}], eps: {eps}, weight_decay: {decay},
            max_grad_norm: {norm}}}
lr_scheduler: {{type: constant, warmup: 0}}
"""


def pairs():
    rows = []
    for i in range(24):
        a, b = (int(formula.below(f"pair {i} {side}", 7, 1)[0]) for side in "ab")
        rows.append((f"{WORDS[a]} and {WORDS[b]} make ", WORDS[a + b]))
    rows.insert(5, ("a prompt so long that samples hold nothing else, " * 3, "yes"))
    rows.insert(11, ("", "no prompt"))
    return rows


def segments(rows):
    """Parts of documents as the samples cut them: (read, predicted) with -100 where nothing is trained."""
    stream = []
    for document, (prompt, completion) in enumerate(rows):
        prompt, completion = list(prompt.encode()), list(completion.encode())
        read = [END] + prompt + completion
        predicted = [-100] * len(prompt) + completion + [END]
        stream += [(document, r, p) for r, p in zip(read, predicted)]
    parts, samples = [], -(-len(stream) // LENGTH)
    for begin in range(0, len(stream), LENGTH):
        sample = stream[begin:begin + LENGTH]
        for document in sorted({d for d, _, _ in sample}):
            parts.append([(r, p) for d, r, p in sample if d == document])
    return parts, samples


def tensors(parts):
    """Padded behind: causal attention does not see it."""
    read = torch.zeros(len(parts), LENGTH, dtype=torch.long)
    predicted = torch.full((len(parts), LENGTH), -100)
    for i, part in enumerate(parts):
        read[i, :len(part)] = torch.tensor([r for r, _ in part])
        predicted[i, :len(part)] = torch.tensor([p for _, p in part])
    return read, predicted


def first_model():
    model = families.build(CONFIG, "eager")
    families.load(model, lambda n, shape: formula.weights(
        n, shape, *((1.0, 0.02) if len(shape) == 1 else (0.0, 0.2))))
    return model


def train(threads, dtype, read, predicted):
    torch.set_num_threads(threads)
    model = first_model().to(dtype)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for _ in range(STEPS):
        logits = model(input_ids=read, use_cache=False).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, predicted.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/parity/golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    rows = pairs()
    parts, samples = segments(rows)
    read, predicted = tensors(parts)
    one = train(1, torch.float32, read, predicted)
    two = train(2, torch.float32, read, predicted)
    with families.pure_fp64():
        exact = train(1, torch.float64, read, predicted)
    trained = int((predicted >= 0).sum())
    print(f"{samples} samples, {trained} trained rows of {sum(map(len, parts))}, loss {exact[0]:.3f} -> "
          f"{exact[-1]:.3f}, fp32 against fp64 {max(abs(a - b) for a, b in zip(one, exact)):.1e}")
    assert exact[-1] < 0.5 * exact[0]
    first_model().save_pretrained(folder / "finetune")
    (folder / "finetune/generation_config.json").unlink(missing_ok=True)
    lines = [json.dumps({"prompt": p, "completion": c}) for p, c in rows]
    (folder / "finetune/pairs.jsonl").write_text("\n".join(lines) + "\n")
    recipe = RECIPE.format(vocab=VOCAB, length=LENGTH, samples=samples, steps=STEPS, lr=LR, beta1=BETAS[0],
                           beta2=BETAS[1], eps=EPS, decay=DECAY, norm=MAX_NORM)
    golden = {"recipe": recipe, "trained_rows": trained, "fp64": exact, "fp32": one,
              "spread": [abs(a - b) for a, b in zip(one, two)]}
    (folder / "finetune.json").write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
