"""A converted model under DistributedDataParallel: two processes over gloo have the gradients of one."""

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from test_families import timm_vit
from torch.nn.parallel import DistributedDataParallel

import mhla

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def converted():
    torch.manual_seed(0)
    return mhla.replace_attention(timm_vit(), blocks=(4, 4), backend="torch")[0]


def work(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = DistributedDataParallel(converted())
    model(IMAGES[2 * rank : 2 * rank + 2]).square().mean().backward()
    if rank == 0:
        torch.save([p.grad for p in model.module.parameters()], f"{file}.pt")
    dist.destroy_process_group()


def test_two_processes(tmp_path):
    file = str(tmp_path / "store")
    multiprocessing.spawn(work, (file,), nprocs=2)
    model = converted()
    model(IMAGES).square().mean().backward()
    for got, want in zip(torch.load(f"{file}.pt"), (p.grad for p in model.parameters())):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
