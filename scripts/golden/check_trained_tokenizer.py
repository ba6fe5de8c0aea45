#!/usr/bin/env python3
"""Trains a tokenizer per pattern with llmtrain, loads it with Hugging Face's `tokenizers`, and compares
all ids, of text files and of generated text, with and without special tokens. Exit code 1 if any differ.

    pip install tokenizers && python3 scripts/golden/check_trained_tokenizer.py LLMTRAIN [FILES...]

Without FILES: the C++ headers in /usr/include/c++.
"""
import glob
import json
import pathlib
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

from adversarial_text import adversarial_text

PATTERNS = ["gpt2", "llama3", "o200k", "identifiers"]  # those without '.' or '^', which engines read alike
GENERATED = range(200)


def main():
    llmtrain, files = sys.argv[1], sys.argv[2:] or sorted(glob.glob("/usr/include/c++/*/bits/*.h"))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        for name in files:
            text = pathlib.Path(name).read_bytes().decode(errors="ignore")
            texts.append(text)
        texts += [adversarial_text(seed) for seed in GENERATED]
        names = []
        for i, text in enumerate(texts):
            names.append(f"{folder}/{i}.txt")
            pathlib.Path(names[-1]).write_bytes(text.encode())
        for pattern in PATTERNS:
            subprocess.run([llmtrain, "tokenizer", "train", *files, "--output", f"{folder}/{pattern}",
                            "--vocab-size", "4096", "--pattern", pattern], check=True, stdout=subprocess.DEVNULL)
            theirs = Tokenizer.from_file(f"{folder}/{pattern}/tokenizer.json")
            for special in ([], ["--special"]):
                ours = subprocess.run([llmtrain, "tokenizer", "encode", f"{folder}/{pattern}", *names, "--json",
                                       *special], check=True, capture_output=True, text=True).stdout.splitlines()
                expected = [theirs.encode(text, add_special_tokens=bool(special)).ids for text in texts]
                same = sum(json.loads(a) == b for a, b in zip(ours, expected))
                tokens = sum(map(len, expected))
                print(f"{pattern} {' '.join(special) or 'plain'}: {same} of {len(texts)} texts the same, {tokens} ids")
                failed = failed or same != len(texts) or len(ours) != len(texts)
    sys.exit(failed)


if __name__ == "__main__":
    main()
