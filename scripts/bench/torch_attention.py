#!/usr/bin/env python3
"""PyTorch's causal attention on cuDNN alone: both directions, in bf16, by the GPU's clock.

    torch_attention.py SEQUENCES HEADS KV_HEADS TOKENS HEAD_DIM [ROUNDS]

Prints JSON: flops_per_second of forward and backward (the median of ROUNDS, 20, behind five that do not count). A
backward counts as five products, a forward as two, of half the scores each, as `llmtrain bench` counts them.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEATING = 5


def main(sequences, heads, kv_heads, tokens, head_dim, rounds=20):
    def drawn(count, grad=True):
        return torch.randn(sequences, count, tokens, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=grad)

    q, k, v, dout = drawn(heads), drawn(kv_heads), drawn(kv_heads), drawn(heads, grad=False)
    product = sequences * heads * tokens * tokens * head_dim  # multiply-adds of half the scores, as FLOP
    times = {"forward": [], "backward": []}
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for _ in range(HEATING + rounds):
            begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            begin.record()
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
            middle.record()
            out.backward(dout)
            end.record()
            torch.cuda.synchronize()
            times["forward"].append(begin.elapsed_time(middle))
            times["backward"].append(middle.elapsed_time(end))
            q.grad = k.grad = v.grad = None
    products = {"forward": 2, "backward": 5}
    rates = {name: products[name] * product / (1e-3 * statistics.median(all_times[HEATING:]))
             for name, all_times in times.items()}
    print(json.dumps({"flops_per_second": rates, "cudnn": torch.backends.cudnn.version(), "torch": torch.__version__}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
