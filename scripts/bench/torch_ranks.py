#!/usr/bin/env python3
"""Times training steps of PyTorch on two ranks over gloo, for scripts/bench/ranks.py.

    torch_ranks.py MODE RANKS STEPS

MODE: alone (this process by itself), ddp (DistributedDataParallel, gradients exchanged with the last micro-batch) or
fsdp (fully_shard of every block and of the model: parameters, gradients and states in slices). GPT-2 124M in fp32,
8 sequences of 256 tokens a step, micro-batches of one, one thread per rank, AdamW fused. Prints JSON: the times of rank
0's steps after one of warm-up, in seconds, and PyTorch's version.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_step import MODELS, Decoder

SAMPLES = 8


def sharded(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(rank, mode, ranks, steps, results):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if mode != "alone":
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    shape = MODELS["gpt2-124m"]
    model = Decoder(shape)
    model = {"alone": lambda m: m, "ddp": DistributedDataParallel, "fsdp": sharded}[mode](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    micro_batches = SAMPLES // ranks
    seconds = []
    for step in range(steps + 1):
        begin = time.perf_counter()
        for i in range(micro_batches):
            ids, targets = (torch.randint(0, shape["vocab"], (1, shape["seq_len"])) for _ in range(2))
            if mode == "ddp":
                model.require_backward_grad_sync = i == micro_batches - 1
            (model(ids, targets) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step > 0:
            seconds.append(time.perf_counter() - begin)
    if rank == 0:
        results.put(seconds)
    if mode != "alone":
        dist.barrier()
        dist.destroy_process_group()


def main():
    mode, ranks, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=train, args=(rank, mode, ranks, steps, results)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a rank of {mode} failed")
    print(json.dumps({"seconds": results.get(), "version": torch.__version__}))


if __name__ == "__main__":
    main()
