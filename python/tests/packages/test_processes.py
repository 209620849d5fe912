"""Several processes: FSDP over gloo, workers of a DataLoader, pickled layers, AMP with a scaler."""

import pickle

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from test_distributed import IMAGES, converted
from torch.utils.data import DataLoader, Dataset

import mhla
from mhla.nn import MHLA


def shard(rank, file):
    """One step of a model whose parameters are spread over two processes; gathered, it is that of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = converted()
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mhla.constrain_after_step(optimizer, model)
    model(IMAGES[2 * rank : 2 * rank + 2]).square().mean().backward()
    optimizer.step()
    whole = {name: p.full_tensor() for name, p in model.named_parameters()}
    if rank == 0:
        torch.save(whole, f"{file}.pt")
    dist.destroy_process_group()


def test_fsdp(tmp_path):
    pytest.importorskip("torch.distributed.fsdp")
    file = str(tmp_path / "store")
    multiprocessing.spawn(shard, (file,), nprocs=2)
    model = converted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mhla.constrain_after_step(optimizer, model)
    model(IMAGES).square().mean().backward()
    optimizer.step()
    got = torch.load(f"{file}.pt")
    for name, want in model.named_parameters():
        torch.testing.assert_close(got[name], want.detach(), rtol=1e-4, atol=1e-6)


class Features(Dataset):
    """Runs a layer in the worker, as a data set that computes features does."""

    def __init__(self, layer):
        self.layer = layer

    def __len__(self):
        return 6

    def __getitem__(self, i):
        with torch.no_grad():
            return self.layer(torch.full((1, 16, 8), float(i)).sin())[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(method):
    layer = MHLA(8, 2, grid=(4, 4), blocks=(2, 2)).eval()
    data = Features(layer)
    want = torch.stack([data[i] for i in range(6)])
    loader = DataLoader(data, batch_size=3, num_workers=2, multiprocessing_context=method)
    torch.testing.assert_close(torch.cat(list(loader)), want)
    torch.testing.assert_close(pickle.loads(pickle.dumps(layer))(want[:1].new_ones(1, 16, 8)), layer(want.new_ones(1, 16, 8)))


def test_amp_with_a_scaler():
    model = converted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mhla.constrain_after_step(optimizer, model)
    scaler = torch.amp.GradScaler("cpu")
    before = model.blocks[0].attn.mix.detach().clone()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(IMAGES).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    mix = model.blocks[0].attn.mix.detach()
    assert torch.isfinite(loss) and not torch.equal(mix, before) and 0 <= mix.min() and mix.max() <= 1
