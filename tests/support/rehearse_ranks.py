"""rehearse_ranks.py WAY: an unmodified training program of several ranks for tests/support/rehearse_check.py, as PyTorch's documentation
starts them: torchrun --nproc-per-node 4 rehearse_ranks.py ddp. The first rank says what was trained."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn


def model():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6).cuda()


def train(trained, optimizer, after_backward=None):
    for _ in range(3):
        trained(torch.randn(4, 256, 512, device="cuda")).sum().backward()
        if after_backward:
            after_backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def ddp():
    trained = nn.parallel.DistributedDataParallel(model(), device_ids=[int(os.environ["LOCAL_RANK"])])
    train(trained, torch.optim.AdamW(trained.parameters()))
    return trained


def fsdp():
    """FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    trained, mesh = model(), init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in trained.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(trained, mesh=mesh)
    train(trained, torch.optim.AdamW(trained.parameters()))
    return trained


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    trained = FullyShardedDataParallel(model(), auto_wrap_policy=ModuleWrapPolicy({nn.TransformerEncoderLayer}), use_orig_params=True,
                                       device_id=torch.cuda.current_device())
    train(trained, torch.optim.AdamW(trained.parameters()))
    return trained


def zero():
    """Stage 1 by hand: each rank keeps the optimizer's state of its share of the parameters."""
    trained, ranks, rank = model(), dist.get_world_size(), dist.get_rank()
    loads, owners = [0] * ranks, {}
    for parameter in sorted(trained.parameters(), key=torch.numel, reverse=True):
        owners[parameter] = loads.index(min(loads))
        loads[owners[parameter]] += parameter.numel()
    optimizer = torch.optim.AdamW([parameter for parameter, owner in owners.items() if owner == rank])

    def reduce():
        for parameter, owner in owners.items():
            dist.reduce(parameter.grad, owner, op=dist.ReduceOp.AVG)
            if owner != rank:
                parameter.grad = None

    train(trained, optimizer, reduce)
    for parameter, owner in owners.items():
        dist.broadcast(parameter.data, owner)
    return trained


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
told = [None] * dist.get_world_size()
dist.all_gather_object(told, {"rank": dist.get_rank(), "words": "w" * dist.get_rank()})
assert [(each["rank"], len(each["words"])) for each in told] == [(rank, rank) for rank in range(len(told))], told
parameters_count = sum(p.numel() for p in globals()[sys.argv[1]]().parameters())
dist.barrier()
if dist.get_rank() == 0:
    print(f"{sys.argv[1]}: {parameters_count} parameters", flush=True)
dist.destroy_process_group()
