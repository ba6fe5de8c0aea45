#!/usr/bin/env python3
"""Speed of encoding and of training beside Hugging Face's `tokenizers`, in turns on this machine.

    pip install tokenizers && python3 scripts/bench/tokenizer_speed.py LLMTRAIN [--rounds N] [FILES...]

Encodes the files (default: the C++ headers in /usr/include/c++) with the four tokenizers of
tests/unit/data/golden/styles, all files at once on all cores: llmtrain by `tokenizer encode --stats`, which
times the encoding alone, Hugging Face by encode_batch_fast. Trains a vocabulary of 8,192 with the pattern of
GPT-2 from the same files, reading included. Prints the table of docs/benchmarks.md: medians of the rounds,
and the median of the rounds' ratios.
"""
import argparse
import glob
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

STYLES = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/data/golden/styles"


def encode_ours(llmtrain, file, names):
    out = subprocess.run([llmtrain, "tokenizer", "encode", str(file), *names, "--stats"], check=True,
                         capture_output=True, text=True).stdout
    return int(re.search(r"(\d+) tokens", out)[1]), float(re.search(r"([\d.]+) s,", out)[1])


def encode_theirs(tokenizer, texts):
    begin = time.perf_counter()
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    seconds = time.perf_counter() - begin
    return sum(map(len, encodings)), seconds


def train_ours(llmtrain, names, folder):
    begin = time.perf_counter()
    subprocess.run([llmtrain, "tokenizer", "train", *names, "--output", folder, "--vocab-size", "8192"], check=True,
                   stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def train_theirs(names):
    begin = time.perf_counter()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=8192, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train(names, trainer)
    return time.perf_counter() - begin


def row(name, ours, theirs, unit):
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    print(f"| {name} | {unit(statistics.median(ours))} | {unit(statistics.median(theirs))} | {ratio:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_intermixed_args()
    files = arguments.files or sorted(glob.glob("/usr/include/c++/**/*.h", recursive=True))
    with tempfile.TemporaryDirectory() as folder:
        texts = [pathlib.Path(name).read_bytes().decode(errors="ignore") for name in files]
        names = [f"{folder}/{i}.txt" for i in range(len(texts))]
        for name, text in zip(names, texts):
            pathlib.Path(name).write_bytes(text.encode())
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        print(f"{len(texts)} files, {megabytes:.1f} MB, {os.cpu_count()} cores, {arguments.rounds} rounds\n")
        print("| | llmtrain | Hugging Face | ratio |\n|---|---|---|---|")
        for style in ["gpt2", "llama3", "o200k", "llama2"]:
            ours, theirs = [], []
            for _ in range(arguments.rounds):
                tokens, seconds = encode_ours(arguments.llmtrain, STYLES / f"{style}.json", names)
                ours.append(seconds)
                # A fresh tokenizer has an empty cache, as llmtrain has.
                expected, seconds = encode_theirs(Tokenizer.from_file(str(STYLES / f"{style}.json")), texts)
                theirs.append(seconds)
                assert tokens == expected, (style, tokens, expected)
            row(f"encode, {style} style", ours, theirs, lambda s: f"{megabytes / s:.1f} MB/s")
        ours, theirs = [], []
        for turn in range(arguments.rounds):
            ours.append(train_ours(arguments.llmtrain, names, f"{folder}/trained-{turn}"))
            theirs.append(train_theirs(names))
        row("train 8,192 tokens", ours, theirs, lambda s: f"{s:.2f} s")


if __name__ == "__main__":
    main()
