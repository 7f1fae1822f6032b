"""Tests lnrnn.torch in other processes: workers of a DataLoader, DistributedDataParallel."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from networks import said  # noqa: E402
from torch_twins import B, I, T, twin  # noqa: E402

forks = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")


class Encoded(torch.utils.data.Dataset):
    """A data set whose items are outputs of a module, computed by a worker."""

    def __init__(self, module, items):
        self.module, self.items = module, items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        with torch.no_grad():
            return self.module(self.items[k])[0]


@forks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of a fork with threads
def test_workers_of_a_data_loader_can_compute():
    module, items = twin("LSTM", num_layers=2), torch.randn(6, T, B, I)
    with torch.no_grad():
        want = torch.stack([module(x)[0] for x in items])  # packs the weights before the fork
    loader = torch.utils.data.DataLoader(
        Encoded(module, items), batch_size=3, num_workers=2, multiprocessing_context="fork", timeout=120
    )
    assert torch.equal(torch.cat(list(loader)), want)


DISTRIBUTED = """
import datetime, os, tempfile, warnings
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import lnrnn, lnrnn.torch

warnings.simplefilter("ignore", ResourceWarning)  # of some versions of torch.multiprocessing
T, B, I, H = 6, 8, 3, 12

def model(seed):
    rnn = lnrnn.torch.GRU(I, H, 2, norm=lnrnn.BatchNormSpec(T), seed=seed)
    assert rnn.engine == "lnrnn"
    return rnn

def data(rank):
    return torch.randn(T, B, I, generator=torch.Generator().manual_seed(rank))

def work(rank, file, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=120))
    rnn = model(rank)  # DistributedDataParallel gives all of them rank 0's
    ddp = torch.nn.parallel.DistributedDataParallel(rnn)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        ddp(data(rank))[0].square().mean().backward()
        optimiser.step()
    torch.save({name: value for name, value in rnn.state_dict().items()}, f"{out}{rank}")
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file, out = os.path.join(folder, "meet"), os.path.join(folder, "state")
        mp.start_processes(work, (file, out), nprocs=2, start_method="fork")
        one, two = (torch.load(f"{out}{rank}", weights_only=True) for rank in range(2))
    parameters = [name for name, _ in model(0).named_parameters()]
    print(all(torch.equal(one[name], two[name]) for name in parameters))
    alone = model(0)
    optimiser = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        for rank in range(2):
            state = {k: v.clone() for k, v in alone.named_buffers()}
            (alone(data(rank))[0].square().mean() / 2).backward()
            if rank:  # rank 0's buffers are those of all
                for name, b in alone.named_buffers():
                    b.copy_(state[name])
        optimiser.step()
    print(all(torch.allclose(one[name], p, atol=1e-6) for name, p in alone.named_parameters()))
"""


@forks
def test_distributed_data_parallel_trains_like_one_process():
    """Two processes end with the parameters of one process that trains on both batches."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    assert said(DISTRIBUTED) == "True\nTrue"
