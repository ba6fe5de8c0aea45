#!/usr/bin/env python3
"""Tiny token files of llm.c and Megatron-LM, written with numpy as their formats say.

    scripts/golden/token_files.py            # writes tests/unit/data/golden/token_files/
    scripts/golden/token_files.py --check MEGATRON_LM_CHECKOUT LLM_C_CHECKOUT

--check writes the same documents with the programs' own code (megatron/core/datasets/indexed_dataset.py,
dev/data/data_common.py), which is not part of this repository, and compares the bytes.
"""
import pathlib
import sys
import tempfile

import numpy as np

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/data/golden/token_files"
END = 256  # of the byte tokenizer
TEXTS = ["To be, or not to be", "that is\nthe question:", "été – Ω", "x"]


def documents():
    return [list(text.encode()) for text in TEXTS]


def llmc(kind):
    magic, version, dtype = {"gpt-2": (20240520, 1, "<u2"), "llama-3": (20240801, 7, "<u4")}[kind]
    tokens = [token for document in documents() for token in [END] + document]
    header = np.zeros(256, dtype="<i4")
    header[:3] = [magic, version, len(tokens)]
    return header.tobytes() + np.array(tokens, dtype=dtype).tobytes()


def megatron(code, append_eod):
    dtype = np.dtype({4: "<i4", 8: "<u2"}[code])
    sequences = [document + [END] * append_eod for document in documents()]
    lengths = np.array([len(sequence) for sequence in sequences], dtype="<i4")
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * dtype.itemsize
    indices = np.arange(len(sequences) + 1, dtype="<i8")
    index = b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([code])
    index += np.array([len(lengths), len(indices)], "<u8").tobytes()
    index += lengths.tobytes() + pointers.astype("<i8").tobytes() + indices.tobytes()
    return b"".join(np.array(s, dtype=dtype).tobytes() for s in sequences), index


def files():
    result = {"gpt2.bin": llmc("gpt-2"), "llama3.bin": llmc("llama-3")}
    for name, code, append_eod in [("eod", 8, True), ("plain", 4, False)]:
        result[name + ".bin"], result[name + ".idx"] = megatron(code, append_eod)
    return result


def check(megatron_root, llmc_root):
    sys.path[:0] = [megatron_root, llmc_root + "/dev/data"]
    import torch
    from data_common import write_datafile
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    ours = files()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        tokens = [token for document in documents() for token in [END] + document]
        write_datafile(str(root / "gpt2.bin"), tokens, "gpt-2")
        write_datafile(str(root / "llama3.bin"), tokens, "llama-3")
        for name, dtype, append_eod in [("eod", np.uint16, True), ("plain", np.int32, False)]:
            builder = IndexedDatasetBuilder(str(root / (name + ".bin")), dtype=dtype)
            for document in documents():
                document = document + [END] * append_eod
                builder.add_document(torch.tensor(document), [len(document)])
            builder.finalize(str(root / (name + ".idx")))
        for name, content in ours.items():
            same = (root / name).read_bytes() == content
            print(f"{name}: {'the same' if same else 'DIFFERENT'}, {len(content)} bytes")
            if not same:
                sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(*sys.argv[2:4])
    else:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for name, content in files().items():
            (GOLDEN / name).write_bytes(content)
