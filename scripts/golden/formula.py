"""Weights and token batches by integer formulas that tests/support/formula.hpp repeats exactly."""

import numpy as np

MASK = (1 << 64) - 1
STRIDE = 0x9E3779B97F4A7C15


def name_hash(name):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def words(name, count, first=0):
    """SplitMix64 of the name's hash plus a stride per index."""
    with np.errstate(over="ignore"):
        i = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        z = np.uint64(name_hash(name)) + i * np.uint64(STRIDE)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(name, count):
    """Multiples of 2^-23 in [-1, 1), exact in FP32."""
    return (words(name, count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def weights(name, shape, offset, scale):
    """offset + scale * uniform, in FP64, rounded once to FP32."""
    values = offset + scale * uniform(name, int(np.prod(shape)))
    return values.astype(np.float32).reshape(shape)


def below(name, bound, count, first=0):
    """Integers in [0, bound)."""
    return (words(name, count, first) >> np.uint64(32)).astype(np.int64) % bound
