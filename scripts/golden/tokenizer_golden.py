#!/usr/bin/env python3
"""Makes tests/unit/data/golden with Hugging Face's `tokenizers` (made with 0.23.3).

Two byte-level BPEs are trained on the text that `document` below generates, saved as tokenizer.json,
and used to encode other documents; ids.json keeps the number and the FNV-1a hash of the ids.
tests/unit/data/golden_test.cpp generates the same text and expects the same vocabulary and ids.

    pip install tokenizers && python3 scripts/golden/tokenizer_golden.py
"""
import json
import pathlib

from adversarial_text import COMMON, MASK, splitmix
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TRAINING_SEEDS = range(0, 20)
TEST_SEEDS = range(1000, 1040)
PIECES = 1500
VOCAB_SIZE = 700

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

FIXED = [
    "'s", "'LL", "'\u017f", "n't", "\n", "\n\n", "\t", "\r\n", "\u180e", "\u00a0", "\u3000", "\u0085",
    "std::", "template<", "<|endoftext|>", "<|pad|>", "<|pad|>>", "<|", "\u00e9", "e\u0301", "\u212a",
    "\u4e2d\u6587", "\U0001f600", "\U0001f469\u200d\U0001f467", "\u0660\u0661", "\u00b2", "\u2167",
]


def document(seed):
    random = splitmix(seed)
    parts = []
    for _ in range(PIECES):
        r = next(random)
        kind, v = r % 8, r >> 8
        if kind == 0:
            parts.append("".join(chr(97 + next(random) % 26) for _ in range(1 + v % 7)))
        elif kind == 1:
            parts.append(" " * (1 + v % 4))
        elif kind == 2:
            parts.append(str(v % 100000))
        elif kind == 3:
            parts.append(FIXED[v % len(FIXED)])
        elif kind == 4:
            code_point = 1 + v % 0x10FFFF
            parts.append("?" if 0xD800 <= code_point <= 0xDFFF else chr(code_point))
        elif kind == 5:
            parts.append(chr(0xA0 + v % 0x2F60))
        elif kind == 6:
            parts.append(" " + COMMON[v % len(COMMON)])
        else:
            parts.append("_;(){}[]<>=+-*/&|!,."[v % 20])
    return "".join(parts)


def train(pre_tokenizer, ignore_merges):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([document(seed) for seed in TRAINING_SEEDS], trainer)
    if ignore_merges:
        tokenizer.model.ignore_merges = True
        tokenizer.add_special_tokens([AddedToken("<|pad|>", normalized=False)])
        tokenizer.add_tokens([AddedToken("<|pad|>>", normalized=True)])
    return tokenizer


def fnv1a(documents):
    value = 0xCBF29CE484222325
    for ids in documents:
        for i in ids:
            for byte in i.to_bytes(4, "little"):
                value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/data/golden"
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        "gpt2": train(pre_tokenizers.ByteLevel(add_prefix_space=False), False),
        "llama3": train(
            pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]),
            True,
        ),
    }
    golden = {}
    for name, tokenizer in rows.items():
        tokenizer.save(str(folder / f"{name}.json"), pretty=False)
        ids = [tokenizer.encode(document(seed), add_special_tokens=False).ids for seed in TEST_SEEDS]
        golden[name] = {"tokens": sum(map(len, ids)), "fnv1a": f"{fnv1a(ids):016x}"}
    (folder / "ids.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
