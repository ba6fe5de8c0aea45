#!/usr/bin/env python3
"""Makes tests/unit/data/golden/near_duplicates.json with `datasketch` (made with 2.0.0).

Pairs of texts: the document that `tokenizer_golden.document` generates for a seed, and its first part
with the rest of another document behind it. For each pair the exact Jaccard similarity of the sets of
word 5-grams, datasketch's estimate from 128 permutations, and whether its MinHashLSH with threshold 0.8
finds the one by the other. tests/unit/data/near_duplicates_golden_test.cpp makes the same texts.

    pip install datasketch tokenizers && python3 scripts/golden/near_duplicates.py
"""
import json
import pathlib
import re

from datasketch import MinHash, MinHashLSH
from tokenizer_golden import document

SEEDS = range(5000, 5012)
PERCENTS = (30, 60, 70, 80, 90, 94, 97, 99)
PERMUTATIONS = 128
THRESHOLD = 0.8
SHINGLE_WORDS = 5


def shingles(text):
    """Words are ASCII letters, digits, '_' and everything beyond ASCII; ASCII capitals are small."""
    words = re.findall(rb"[A-Za-z0-9_\x80-\xff]+", text.lower())
    return {b" ".join(words[i:i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1)}


def sketch(elements):
    result = MinHash(num_perm=PERMUTATIONS)
    result.update_batch(sorted(elements))
    return result


def joined(seed, percent):
    first, second = (document(s).encode() for s in (seed, seed + 1000))
    cuts = [text.find(b" ", len(text) * percent // 100) for text in (first, second)]
    return first[:cuts[0]] + second[cuts[1]:]


def main():
    pairs = []
    for seed in SEEDS:
        whole = shingles(document(seed).encode())
        for percent in PERCENTS:
            other = shingles(joined(seed, percent))
            lsh = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
            lsh.insert("whole", sketch(whole))
            pairs.append({
                "seed": seed,
                "percent": percent,
                "jaccard": len(whole & other) / len(whole | other),
                "estimate": float(sketch(whole).jaccard(sketch(other))),
                "found": bool(lsh.query(sketch(other))),
            })
    out = pathlib.Path(__file__).parents[2] / "tests/unit/data/golden/near_duplicates.json"
    out.write_text(json.dumps(pairs, indent=0).replace("{\n", "{").replace(",\n\"", ", \"").replace("\n}", "}") + "\n")


if __name__ == "__main__":
    main()
