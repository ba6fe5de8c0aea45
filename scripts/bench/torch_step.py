#!/usr/bin/env python3
"""Times training steps of PyTorch for scripts/bench/versus_pytorch.py and scripts/gpu_check.sh.

    torch_step.py MODEL DTYPE THREADS STEPS [fused] [compile] [cuda] [samples=N] [wait=FILE]

MODEL is a row of MODELS; DTYPE is fp32 or bf16 (autocast). Prints JSON: the times of the steps after two
(on a GPU five, or two where a step has several micro-batches) of warm-up, in seconds, what they hold, and PyTorch's
version. A step is forward and backward of `samples` samples (the model's batch) in micro-batches of as many as fit,
AdamW and clearing the gradients, on random tokens, with scaled_dot_product_attention. With cuda it runs on the first
GPU, where a micro-batch that does not fit is halved, and THREADS says nothing. With wait=FILE it makes FILE.ready behind the
first step and goes on when there is FILE: compilers of several models may run beside each other, timings not.
"""

import json
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

# layers, heads, hidden, vocabulary, batch, tokens per sequence; the shapes of versus_pytorch.py, and
# those of configs/*.yaml with fewer samples where PyTorch's activations ask for it
MODELS = {
    "gpt2-124m": dict(layers=12, heads=12, hidden=768, vocab=50304, batch=4, seq_len=256, llama=False),
    "tiny-gpt": dict(layers=6, heads=6, hidden=384, vocab=320, batch=16, seq_len=256, llama=False),
    "tiny-llama": dict(layers=4, heads=4, hidden=256, vocab=8192, batch=8, seq_len=256, llama=True),
    "124m": dict(layers=12, heads=12, hidden=768, vocab=50304, batch=32, seq_len=1024, llama=False),
    "1558m": dict(layers=48, heads=25, hidden=1600, vocab=50304, batch=8, seq_len=1024, llama=False),
    "1.5b": dict(layers=28, heads=12, kv_heads=2, hidden=1536, inner=8960, vocab=151936, batch=8, seq_len=1024,
                 llama=True, qkv_bias=True, tied=True),
    "7b": dict(layers=28, heads=28, kv_heads=4, hidden=3584, inner=18944, vocab=152064, batch=4, seq_len=1024,
               llama=True, qkv_bias=True, checkpoint=True),
    "1b": dict(layers=16, heads=32, kv_heads=8, hidden=2048, inner=8192, vocab=32768, batch=4, seq_len=1024,
               llama=True),
}


class RmsNorm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden, self.heads, self.llama = shape["hidden"], shape["heads"], shape["llama"]
        self.kv_heads = shape.get("kv_heads", self.heads)
        self.kv_width = hidden // self.heads * self.kv_heads
        norm = RmsNorm if self.llama else nn.LayerNorm
        bias = not self.llama
        inner = shape.get("inner", (8 * hidden // 3 + 63) // 64 * 64 if self.llama else 4 * hidden)
        self.norm1, self.norm2 = norm(hidden), norm(hidden)
        self.qkv = nn.Linear(hidden, hidden + 2 * self.kv_width, bias=bias or shape.get("qkv_bias", False))
        self.out = nn.Linear(hidden, hidden, bias=bias)
        self.gate = nn.Linear(hidden, inner, bias=False) if self.llama else None
        self.up, self.down = nn.Linear(hidden, inner, bias=bias), nn.Linear(inner, hidden, bias=bias)

    def forward(self, x, cos, sin):
        batch, rows, hidden = x.shape
        q, k, v = (t.view(batch, rows, -1, hidden // self.heads).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split((hidden, self.kv_width, self.kv_width), 2))
        if self.llama:
            q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                  **({"enable_gqa": True} if self.kv_heads != self.heads else {}))
        x = x + self.out(attended.transpose(1, 2).reshape(batch, rows, hidden))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y) if self.llama else F.gelu(self.up(y), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        hidden, vocab, rows, llama = shape["hidden"], shape["vocab"], shape["seq_len"], shape["llama"]
        self.embedding = nn.Embedding(vocab, hidden)
        self.positions = None if llama else nn.Embedding(rows, hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["layers"]))
        self.norm = (RmsNorm if llama else nn.LayerNorm)(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if shape.get("tied", not llama):
            self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)
        dim = hidden // shape["heads"]
        angles = torch.outer(torch.arange(rows).float(), 10000 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.checkpoint = shape.get("checkpoint", False)

    def forward(self, ids, targets):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(block, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def wait_for(file):
    """Gives back what memory the first step had, says so, and returns once there is `file`."""
    torch.cuda.empty_cache()
    pathlib.Path(file + ".ready").touch()
    while not pathlib.Path(file).exists():
        time.sleep(0.05)


def seconds_of(shape, forward, optimizer, settings, device, samples, micro_batch, steps, behind_first):
    """Of each step after the warm-up: `samples` samples in micro-batches of `micro_batch`."""
    micro_steps = samples // micro_batch
    warmup = 5 if device == "cuda" and micro_steps == 1 else 2
    seconds = []
    for step in range(warmup + steps):
        if step == 1:
            behind_first()
        batches = [torch.randint(0, shape["vocab"], (2, micro_batch, shape["seq_len"]), device=device)
                   for _ in range(micro_steps)]
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for ids, targets in batches:
            with torch.autocast(device, torch.bfloat16, enabled="bf16" in settings):
                loss = forward(ids, targets) / micro_steps
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        if step >= warmup:
            seconds.append(time.perf_counter() - begin)
    return seconds


def main():
    name, dtype, threads, steps, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
    if threads > 0:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = MODELS[name]
    samples = next((int(s.split("=")[1]) for s in settings if s.startswith("samples=")), shape["batch"])
    turn = next((s.split("=")[1] for s in settings if s.startswith("wait=")), "")
    device = "cuda" if "cuda" in settings else "cpu"
    with torch.device(device):
        model = Decoder(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused="fused" in settings)
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means fp32, here and there
    micro_batch = min(shape["batch"], samples)
    if samples % micro_batch:
        sys.exit(f"{samples} samples are no whole micro-batches of {micro_batch}")
    while True:
        forward = torch.compile(model) if "compile" in settings else model
        try:
            seconds = seconds_of(shape, forward, optimizer, {dtype, *settings}, device, samples, micro_batch, steps,
                                 lambda: wait_for(turn) if turn else None)
            break
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                raise
        # Behind the handler, which holds what the step had.
        micro_batch //= 2
        optimizer.zero_grad(set_to_none=True)
        torch.compiler.reset()
        torch.cuda.empty_cache()
    print(json.dumps({"seconds": seconds, "tokens": samples * shape["seq_len"], "micro_batch": micro_batch,
                      "micro_steps": samples // micro_batch, "version": torch.__version__}))


if __name__ == "__main__":
    main()
