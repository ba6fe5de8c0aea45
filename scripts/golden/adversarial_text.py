"""The text of lib/data/adversarial_text.cpp, for goldens made in Python."""

MASK = (1 << 64) - 1

FIXED = [
    "'s", "'LL", "'\u017f", "n't", "'Re", "\n", "\n\n", "\t", "\r\n", "\u180e", "\u00a0", "\u3000", "\u0085", "\u2028",
    "std::", "template<", "<|endoftext|>", "<|pad|>", "<|pad|>>", "<|", "<s>", "</s>", "<unk>", "<0x0A>", "<mask>",
    "\u2581", "\u2581\u2581", "\u00e9", "e\u0301", "\u212a", "\u0130", "\u01c5", "\ufb01", "\u1e9b\u0323", "\u0344",
    "\U0001f469\u200d\U0001f467", "\u0660\u0661", "\u00b2", "\u2167", "\u200d", "\ufeff", "\ufffd", "\x00",
]
COMMON = ["the", "return", "const", "value", "type", "operator", "namespace", "int", "size", "iterator"]
SPACES = "\t\n\x0b\x0c\r \u0085\u00a0\u1680\u2003\u2009\u2028\u202f\u205f\u3000\u200b"
PUNCTUATION = "_;(){}[]<>=+-*/&|!,."


def splitmix(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def character(code_point):
    return "?" if 0xD800 <= code_point <= 0xDFFF else chr(code_point)


def piece(kind, v, random):
    if kind == 0:
        return "".join(chr(97 + next(random) % 26) for _ in range(1 + v % 7))
    if kind == 1:
        return " " * (1 + v % 4)
    if kind == 2:
        return str(v % 100000)
    if kind == 3:
        return FIXED[v % len(FIXED)]
    if kind == 4:
        return character(1 + v % 0x10FFFF)
    if kind == 5:
        return character(0xA0 + v % 0x2F60)
    if kind == 6:
        return " " + COMMON[v % len(COMMON)]
    if kind == 7:
        return PUNCTUATION[v % len(PUNCTUATION)]
    if kind == 8:
        word = COMMON[v % len(COMMON)]
        return word.upper() if v & 0x400 else word[0].upper() + word[1:]
    if kind == 9:
        marks = "".join(chr(0x300 + next(random) % 0x70) for _ in range(1 + v % 3))
        return chr(97 + (v >> 8) % 26) + marks
    if kind == 10:
        return chr(0xAC00 + (v >> 1) % 11172) if v & 1 else (
            chr(0x1100 + (v >> 1) % 19) + chr(0x1161 + (v >> 8) % 21) + chr(0x11A7 + (v >> 16) % 28))
    if kind == 11:
        return chr(0x4E00 + v % 0x5200) + chr(0x3041 + (v >> 16) % 86)
    if kind == 12:
        return SPACES[v % len(SPACES)] * (1 + (v >> 8) % 3)
    if kind == 13:
        return "a= \n-*#0"[v % 8] * (1 + (v >> 8) % 40)
    if kind == 14:
        return chr(0x1F300 + v % 0x400)
    return " " + chr(0x600 + v % 0x800) + chr(0x600 + (v >> 12) % 0x800)


def adversarial_text(seed, pieces=1000):
    random = splitmix(seed)
    parts = []
    for _ in range(pieces):
        r = next(random)
        parts.append(piece(r % 16, r >> 8, random))
    return "".join(parts)
