#!/usr/bin/env python3
"""Writes tests/unit/kernels/quantize_golden.json: codes by ml_dtypes, scales by the formulas of
Transformer Engine written in NumPy.

    python scripts/golden/quantize.py        (needs numpy and ml_dtypes)

formats   for each: the number of every code, the code of each of the 65,536 bf16 (as runs: first
          bits, code), and codes of the FP32 halfway between neighbours and of those next to it.
          Encoding saturates: clipped, then cast. -1 is the code of a NaN in a format without one.
scales    [bits of amax, bits of scale, bits of 1 / scale] by format, type and rounding of the scale.
histories what is left of a history after each step, and the scale.
tensors   codes and scales of matrices by formula (formula.py), for each row of the quantizers'
          table, whole where they are few, and their FNV-1a hash.
"""
import json
import pathlib

import ml_dtypes
import numpy as np

import formula

F32 = np.float32
BF16 = ml_dtypes.bfloat16


class Small:
    """A format that ml_dtypes has."""

    def __init__(self, dtype, bits, has_nan=True):
        self.dtype, self.bits, self.has_nan = dtype, bits, has_nan
        self.max = F32(ml_dtypes.finfo(dtype).max)
        numbers = np.unique(self.decode()[np.isfinite(self.decode())])
        self.limit = self.max + (numbers[-1] - numbers[-2]) / 2

    def decode(self):
        return np.arange(1 << self.bits, dtype=np.uint8).view(self.dtype).astype(F32)

    def encode(self, x):
        with np.errstate(invalid="ignore"):
            codes = np.clip(x, -self.max, self.max).astype(self.dtype).view(np.uint8).astype(int)
        # Devices do not agree on a NaN's sign; its code has none.
        return np.where(np.isnan(x), codes & 0x7F if self.has_nan else -1, codes)


class Int8:
    """Two's complement, symmetric."""

    bits, max = 8, F32(127)

    def decode(self):
        return np.arange(256, dtype=np.uint8).view(np.int8).astype(F32)

    def encode(self, x):
        whole = np.rint(np.clip(np.where(np.isnan(x), 0, x), -127, 127))
        return np.where(np.isnan(x), -1, whole.astype(np.int8).view(np.uint8).astype(int))


FORMATS = {"e4m3": Small(ml_dtypes.float8_e4m3fn, 8), "e5m2": Small(ml_dtypes.float8_e5m2, 8),
           # No quantizer has these; they say that the description of a format admits them.
           "e3m2": Small(ml_dtypes.float6_e3m2fn, 6, False),
           "e2m3": Small(ml_dtypes.float6_e2m3fn, 6, False),
           "e2m1": Small(ml_dtypes.float4_e2m1fn, 4, False), "int8": Int8()}


def bits(x):
    return np.atleast_1d(np.asarray(x, F32)).view(np.uint32).tolist()


def runs(codes):
    first = np.flatnonzero(np.diff(codes, prepend=-2))
    return [[int(i), int(codes[i])] for i in first]


def ties(fmt):
    numbers = np.unique(fmt.decode()[np.isfinite(fmt.decode())])
    numbers = numbers[np.abs(numbers) <= fmt.max]
    middle = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(F32)
    around = np.concatenate([middle, np.nextafter(middle, F32(np.inf)),
                             np.nextafter(middle, F32(-np.inf)), numbers])
    return [[b, int(c)] for b, c in zip(bits(around), fmt.encode(around))]


def format_golden(fmt):
    every = np.arange(65536, dtype=np.uint16).view(BF16).astype(F32)
    numbers = fmt.decode()
    return {"decode": [None if np.isnan(x) else bits(x)[0] for x in numbers],
            "bf16": runs(fmt.encode(every)), "ties": ties(fmt)}


def scale_of_amax(amax, fmax, largest, power_of_two):
    """quantize_scale_calc.py's scale_from_amax_tensor with eps 0."""
    amax = np.asarray(amax, F32)
    with np.errstate(divide="ignore", over="ignore"):
        scale = F32(fmax) / amax
        scale = np.where(np.isinf(scale), F32(largest), scale)
        scale = np.where(amax == 0, F32(1), scale)
        if power_of_two:
            _, exponent = np.frexp(scale)
            scale = np.ldexp(F32(1), exponent - 1).astype(F32)
            scale = np.where(np.isinf(amax), F32(0), scale)
        scale = np.where(amax == 0, F32(1), scale).astype(F32)
        return scale, (F32(1) / scale).astype(F32)


LARGEST = {"fp32": np.finfo(F32).max, "bf16": ml_dtypes.finfo(BF16).max,
           "fp16": np.finfo(np.float16).max}


def scales_golden():
    amax = np.array([0, 1e-45, 1e-40, 1.1754944e-38, 1e-37, 1.3e-36, 1e-30, 1e-3, 0.3, 1, 255, 256,
                     300, 447, 448, 449, 896, 57344, 1e5, 1e30, 3.3e38, 3.4028235e38, np.inf], F32)
    cases = []
    for name in ("e4m3", "e5m2"):
        for dtype, largest in LARGEST.items():
            for power_of_two in (False, True):
                scale, inverse = scale_of_amax(amax, FORMATS[name].max, float(largest), power_of_two)
                rows = [list(row) for row in zip(bits(amax), bits(scale), bits(inverse))]
                cases.append({"format": name, "dtype": dtype, "power_of_two": power_of_two,
                              "rows": rows})
    return cases


def roll(history, scale, fmax, margin, algorithm):
    """_default_sf_compute and the roll of delayed_scaling.cu, for one tensor."""
    with np.errstate(over="ignore"):
        amax = np.fmax.reduce(history) if algorithm == "max" else history[0]
        new = F32(F32(fmax) / amax) / F32(2.0**margin) if amax != 0 else F32(np.inf)
    if not np.isfinite(amax) or not amax > 0:
        new = scale
    elif np.isinf(new):
        new = np.finfo(F32).max
    history = np.roll(history, -1)
    history[0] = 0
    return history, F32(new)


def history_golden():
    steps = {"plain": [1, 3, 2, 0.5, 0.25, 4, 1], "zeros": [0, 0, 2, 0, 0, 0, 0],
             "tiny": [1e-44, 1e-40, 1e-38, 3, 0, 0, 1], "infinite": [2, np.inf, 1, 3, 1, 1, 1],
             "nan": [np.nan, 1, np.nan, 2, 8, 1, 1], "huge": [3e38, 3.4e38, 1, 1, 1, 1, 1]}
    cases = []
    for length in (1, 2, 4):
        for fmt, margin, algorithm in (("e4m3", 0, "max"), ("e5m2", 3, "most_recent"),
                                       ("e4m3", -2, "max")):
            for name, amax in steps.items():
                history, scale, after = np.zeros(length, F32), F32(1), []
                for x in amax:
                    history[0] = F32(x)
                    history, scale = roll(history, scale, FORMATS[fmt].max, margin, algorithm)
                    after.append({"scale": bits(scale)[0],
                                  "history": [None if np.isnan(h) else bits(h)[0] for h in history]})
                cases.append({"name": name, "length": length, "format": fmt, "margin": margin,
                              "algorithm": algorithm,
                              "amax": [None if np.isnan(x) else bits(F32(x))[0] for x in amax],
                              "after": after})
    return cases


def matrix(shape, special):
    """Numbers over 40 binades, with zeros, subnormal ones, a row of zeros, NaNs and an infinity."""
    n = shape[0] * shape[1]
    exponent = formula.below("quantize exponent", 41, n) - 20
    x = np.ldexp(formula.uniform("quantize", n), exponent).astype(F32)
    i = np.arange(n)
    x[i % 97 == 13] = 0
    x[i % 211 == 5] = F32(1e-40)
    if special:
        x[i % 307 == 100] = np.nan
        x[i % 1009 == 1000] = -np.inf
    x = x.reshape(shape)
    x[2::7] = 0
    return x


WHOLE, ROW, COLUMN, SQUARE = (0, 0), (1, 128), (128, 1), (128, 128)
QUANTIZERS = {"e4m3_current": ("e4m3", WHOLE, False), "e5m2_current": ("e5m2", WHOLE, False),
              "e4m3_delayed": ("e4m3", WHOLE, None), "e5m2_delayed": ("e5m2", WHOLE, None)}
for block_name, block in (("1x128", ROW), ("128x1", COLUMN), ("128x128", SQUARE)):
    QUANTIZERS["e4m3_" + block_name] = ("e4m3", block, False)
    QUANTIZERS["e4m3_" + block_name + "_pow2"] = ("e4m3", block, True)


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & formula.MASK
    return h


def quantize(x, dtype, name):
    """Codes, scales and the number of elements half a step beyond the range, block by block."""
    fmt, (down, across), power_of_two = QUANTIZERS[name]
    fmt = FORMATS[fmt]
    down, across = down or x.shape[0], across or x.shape[1]
    codes, scales, saturated = np.zeros(x.shape, np.uint8), [], 0
    for r in range(0, x.shape[0], down):
        for c in range(0, x.shape[1], across):
            block = x[r:r + down, c:c + across]
            if power_of_two is None:  # delayed: an amax of earlier steps
                scale = F32(fmt.max / F32(1000))
            else:
                amax = np.fmax.reduce(np.abs(block), axis=None)
                amax = F32(0) if np.isnan(amax) else amax
                scale = scale_of_amax(amax, fmt.max, float(LARGEST[dtype]), power_of_two)[0]
            with np.errstate(invalid="ignore"):
                scaled = block * scale
            saturated += int(np.sum(np.abs(scaled) > fmt.limit))
            codes[r:r + down, c:c + across] = fmt.encode(scaled)
            scales.append(F32(scale))
    return codes, np.array(scales, F32), saturated


def tensors_golden():
    cases = []
    for shape in ((1, 1), (3, 5), (5, 300), (131, 3), (150, 270)):
        for dtype in ("fp32", "bf16"):
            for special in (False, True):
                x = matrix(shape, special)
                x = x.astype(BF16).astype(F32) if dtype == "bf16" else x
                for name in QUANTIZERS:
                    codes, scales, saturated = quantize(x, dtype, name)
                    case = {"quantizer": name, "shape": shape, "dtype": dtype, "special": special,
                            "codes_hash": str(fnv(codes.tobytes())),
                            "scales_hash": str(fnv(scales.tobytes())), "saturated": saturated}
                    if codes.size <= 15:
                        case |= {"codes": codes.flatten().tolist(), "scales": bits(scales)}
                    cases.append(case)
    return cases


def main():
    golden = {"formats": {name: format_golden(fmt) for name, fmt in FORMATS.items()},
              "scales": scales_golden(), "histories": history_golden(),
              "tensors": tensors_golden()}
    root = pathlib.Path(__file__).resolve().parents[2]
    file = root / "tests" / "unit" / "kernels" / "quantize_golden.json"
    file.write_text(json.dumps(golden, separators=(",", ":")).replace('],"', '],\n"')
                    .replace('},{"', '},\n{"') + "\n")


if __name__ == "__main__":
    main()
