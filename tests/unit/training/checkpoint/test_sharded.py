"""States whose tensors are sharded over the processes of a replica, as by FSDP2: here one rank after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from multiworld.training.checkpoint.loading import load
from multiworld.training.checkpoint.orders import UnfinishedError
from multiworld.training.state import TrainingState
from multiworld.training.sync.outer import make_outer_step
from multiworld.training.sync.strategies import DiLoCo
from tests.checkpoints import only, write

ROWS, COLUMNS = 5, 3


@contextlib.contextmanager
def rank_of(size: int, rank: int) -> Iterator[DeviceMesh]:
    """A mesh without any communication: nothing here needs some. Its name keeps it out of caches of other ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,), mesh_dim_names=(f"{rank} of {size}",))
    finally:
        dist.destroy_process_group()


def whole(seed: int) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))


def part_of(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    local = tensor.chunk(mesh.size())[mesh.get_local_rank()].clone()
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())


class Trained:
    """A sharded weight, one that all ranks have whole, AdamW with a state for both, and DiLoCo's outer step."""

    def __init__(self, mesh: DeviceMesh, seed: int) -> None:
        self.model = nn.Module()
        self.model.weight = nn.Parameter(part_of(whole(seed), mesh))
        scale = DTensor.from_local(torch.full((2,), float(seed)), mesh, [Replicate()], run_check=False)
        self.model.scale = nn.Parameter(scale)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.outer = make_outer_step(DiLoCo(every=2), [self.model])
        self.state = TrainingState()
        self.state.add("model.net", self.model)
        self.state.add("optimizer.adamw", self.optimizer)
        self.state.add("outer", self.outer)

    def train(self, mesh: DeviceMesh) -> Trained:
        for parameter in self.model.parameters():
            parameter.grad = part_of(whole(7), mesh) if parameter.shape == (ROWS, COLUMNS) else parameter.detach()
        self.optimizer.step()
        self.outer.apply(0, self.outer.payload(0))
        self.state.step += 1
        return self

    def shards(self) -> dict[str, Tensor]:
        outer = self.outer.state_dict()
        tensors = {f"anchor.{name}": each for name, each in outer["anchors"].items()}
        for prefix, states in (("inner", self.optimizer.state_dict()["state"]), ("outer", outer["state"])):
            for index, state in states.items():
                tensors |= {f"{prefix}.{index}.{name}": each for name, each in state.items()}
        assert "outer.0.momentum_buffer" in tensors or not self.state.step
        tensors |= self.model.state_dict()
        return {name: each.to_local() if isinstance(each, DTensor) else each for name, each in tensors.items()}


def save(directory: Path, size: int) -> None:
    for rank in reversed(range(size)):  # the first writer comes last: it completes the checkpoint
        with rank_of(size, rank) as mesh:
            write(directory, Trained(mesh, seed=1).train(mesh).state, writer=rank, num_writers=size)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_each_process_writes_its_shards_and_plain_dcp_reads_whole_tensors(tmp_path: Path) -> None:
    save(tmp_path, 2)
    with rank_of(1, 0) as mesh:
        alone = Trained(mesh, seed=1).train(mesh).shards()
    read = {"weight": torch.empty(ROWS, COLUMNS), "scale": torch.empty(2)}
    dcp_load({"model": {"net": read}}, checkpoint_id=only(tmp_path).path)
    assert torch.equal(read["weight"], alone["weight"])
    assert torch.equal(read["scale"], alone["scale"])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_new_model_and_optimizer_take_their_shards_at_any_number_of_processes(tmp_path: Path, size: int) -> None:
    save(tmp_path, 2)
    for rank in range(size):
        with rank_of(size, rank) as mesh:
            expected, back = Trained(mesh, seed=1).train(mesh), Trained(mesh, seed=2)
            load(only(tmp_path), back.state)
            shards = back.shards()
            assert shards.keys() == expected.shards().keys()
            for name, shard in expected.shards().items():
                assert torch.equal(shards[name], shard), name
            assert back.state.step == 1


def test_a_checkpoint_without_the_shards_of_all_processes_is_not_completed(tmp_path: Path) -> None:
    with (
        rank_of(2, 0) as mesh,
        pytest.raises(UnfinishedError, match=r"net\.weight, .*: not all of it was written"),
    ):
        write(tmp_path, Trained(mesh, seed=1).train(mesh).state)
    assert list(tmp_path.iterdir()) == []
