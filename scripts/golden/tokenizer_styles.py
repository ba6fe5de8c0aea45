#!/usr/bin/env python3
"""Makes tests/unit/data/golden/styles with Hugging Face's `tokenizers` (made with 0.23.3).

    pip install tokenizers && python3 scripts/golden/tokenizer_styles.py [--train]

--train makes vocabularies in the styles of GPT-2, Llama 3, o200k and Llama 2 from this machine's C++
headers and from generated text; without it the committed ones are used. ids.json keeps, for each of
them, the number of ids of more than 5 MB of generated text and the FNV-1a hashes of ids, of the text
decoded from them and of what `add_special_tokens` frames. variants.json does so for variants of these
files, each a JSON merge patch (RFC 7386), and for normalizers alone.
tests/unit/data/styles_test.cpp generates the same text and expects the same.
"""
import copy
import glob
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from adversarial_text import MASK, adversarial_text
from tokenizer_golden import LLAMA3_PATTERN

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/unit/data/golden/styles"
STYLE_SEEDS, STYLE_PIECES = range(100), 11000
VARIANT_SEEDS, VARIANT_PIECES = range(1000, 1100), 200
VOCAB_SIZE = 2048

WORD_END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + WORD_END + "|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + WORD_END + "|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def fnv1a(value, data):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def training_text():
    headers = sorted(glob.glob("/usr/include/c++/*/bits/*.h"))
    for name in headers:
        yield pathlib.Path(name).read_text(errors="ignore")
    for seed in range(10_000, 10_200):
        yield adversarial_text(seed)


def split_and_byte_level(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def train_byte_level(pre_tokenizer, special_tokens):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def train_gpt2():
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel()
    return tokenizer


def train_llama3():
    tokenizer = train_byte_level(split_and_byte_level(LLAMA3_PATTERN), [])
    tokenizer.model.ignore_merges = True
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
            special_tokens=[("<|begin_of_text|>", begin)]),
    ])
    return tokenizer


def train_o200k():
    tokenizer = train_byte_level(split_and_byte_level(O200K_PATTERN), [])
    tokenizer.add_special_tokens(["<|startoftext|>", "<|endoftext|>", "<|pad|>"])
    return tokenizer


def train_llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Merges do not cross words in SentencePiece's training; the file then needs no pre-tokenizer.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE + 256, limit_alphabet=300, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)])
    tokenizer.train_from_iterator(training_text(), trainer)
    file = json.loads(tokenizer.to_str())
    file["pre_tokenizer"] = None
    file["added_tokens"] = file["added_tokens"][:3]
    file["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


def added(content, **options):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **options}


def variants(llama2, gpt2):
    """(name, base file, merge patch)"""
    size = len(llama2["model"]["vocab"])
    specials = llama2["added_tokens"]
    metaspace = {"type": "Metaspace", "replacement": "▁"}
    def space(scheme, split):
        return {"normalizer": None, "pre_tokenizer": {**metaspace, "prepend_scheme": scheme, "split": split},
                "decoder": {**metaspace, "prepend_scheme": scheme, "split": split}}
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"metaspace {scheme} {split}", "llama2", space(scheme, split)
    yield "metaspace in the older notation", "llama2", {
        "normalizer": None, "pre_tokenizer": {**metaspace, "add_prefix_space": True, "str_rep": "▁"},
        "decoder": {**metaspace, "add_prefix_space": True}}
    yield "metaspace first behind NFKC", "llama2", {
        "normalizer": {"type": "NFKC"}, "pre_tokenizer": space("first", True)["pre_tokenizer"]}
    split_numbers = {"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "Isolated", "invert": False}
    yield "digits cut, then metaspace first", "llama2", {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split_numbers, space("first", True)["pre_tokenizer"]]}}
    yield "digits cut only", "llama2", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split_numbers]}}
    for fuse in (True, False):
        yield f"no byte fallback, fuse_unk {fuse}", "llama2", {"model": {"byte_fallback": False, "fuse_unk": fuse}}
    # Without some of the byte tokens a character falls back to bytes or to the unknown token.
    holes = {f"<0x{byte:02X}>": None for byte in range(256) if byte % 5 == 3}
    for fuse in (True, False):
        yield f"some bytes only, fuse_unk {fuse}", "llama2", {
            "added_tokens": [t for t in specials if t["content"] == "<unk>"],
            "model": {"fuse_unk": fuse, "vocab": holes}, "post_processor": None}
    yield "ignore_merges", "llama2", {"model": {"ignore_merges": True},
                                      "pre_tokenizer": space("always", True)["pre_tokenizer"], "normalizer": None}
    tokens = [added("<mask>", lstrip=True), added("<|pad|>", rstrip=True),
              added("std::", single_word=True, special=False),
              added("<|endoftext|>", lstrip=True, rstrip=True, single_word=True),
              added("THE", normalized=True, special=False), added("e\u0301", normalized=True, special=False),
              added(" ", special=False), added("\n\n", lstrip=True, special=False)]
    vocabulary = llama2["model"]["vocab"]
    for token in tokens:
        token["id"] = vocabulary.get(token["content"], size)
        size += token["content"] not in vocabulary
    yield "added tokens that strip", "llama2", {"added_tokens": specials + tokens}
    yield "added tokens behind NFC and lower case", "llama2", {
        "added_tokens": specials + tokens,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}}
    forms = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"]
    for form in forms:
        yield f"GPT-2 behind {form}", "gpt2", {"normalizer": {"type": form}}
    yield "strip and replace", "llama2", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "▁"}, {"type": "Prepend", "prepend": "▁"}]}}
    prefix = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    yield "GPT-2 with a space in front", "gpt2", {"pre_tokenizer": prefix}
    yield "a space in front of every digit", "gpt2", {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split_numbers, {**prefix, "use_regex": False}]}}
    yield "decoder null", "llama2", {"decoder": None}
    yield "decoder without end", "llama2", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Strip", "content": "▁", "start": 1, "stop": 0}, {"type": "ByteFallback"},
        {"type": "Replace", "pattern": {"Regex": "[a-c]+"}, "content": "-"}]}}
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
               "add_prefix_space": True}
    yield "framed by RobertaProcessing", "llama2", {"post_processor": roberta}


def merged(target, patch):
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


def measured(tokenizer, seeds, pieces):
    count, ids_hash, text_hash, framed_hash = 0, *[0xCBF29CE484222325] * 3
    for seed in seeds:
        text = adversarial_text(seed, pieces)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        count += len(ids)
        ids_hash = fnv1a(ids_hash, b"".join(i.to_bytes(4, "little") for i in ids))
        text_hash = fnv1a(text_hash, tokenizer.decode(ids, skip_special_tokens=False).encode())
        framed = tokenizer.encode(text, add_special_tokens=True).ids
        framed_hash = fnv1a(framed_hash, b"".join(i.to_bytes(4, "little") for i in framed))
    return {"tokens": count, "ids": f"{ids_hash:016x}", "decoded": f"{text_hash:016x}",
            "framed": f"{framed_hash:016x}"}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    styles = {"gpt2": train_gpt2, "llama3": train_llama3, "o200k": train_o200k, "llama2": train_llama2}
    if "--train" in sys.argv[1:]:
        for name, train in styles.items():
            train().save(str(FOLDER / f"{name}.json"), pretty=False)
    files = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in styles}
    rows = {name: measured(Tokenizer.from_str(json.dumps(file)), STYLE_SEEDS, STYLE_PIECES)
            for name, file in files.items()}
    (FOLDER / "ids.json").write_text(json.dumps(rows, indent=1) + "\n")
    rows = []
    for name, base, patch in variants(files["llama2"], files["gpt2"]):
        tokenizer = Tokenizer.from_str(json.dumps(merged(copy.deepcopy(files[base]), patch)))
        rows.append({"name": name, "base": base, "patch": patch,
                     **measured(tokenizer, VARIANT_SEEDS, VARIANT_PIECES)})
    (FOLDER / "variants.json").write_text(
        "[\n" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
