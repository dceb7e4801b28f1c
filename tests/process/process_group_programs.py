"""Programs that use PyTorch's own distributed features over a world."""

from __future__ import annotations

import copy
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import multiworld as mw
from multiworld.testing.member_program import describe_error
from multiworld.testing.worker import report, wait_command

BACKENDS = ["shm", "gloo"]
"""What all tests of process groups run over."""

Default = Literal["none", "own", "shared"]
WIDTH = 8
BATCH = 4


def run_features(rank: int, world_size: int) -> None:
    """Do what each command says in a world of its own, until told to quit."""
    torch.set_num_threads(1)
    with mw.WorldManager() as manager:
        while (command := wait_command()).name != "quit":
            fields = dict(command.fields)
            world = manager.blocking.join(fields["world"], rank, world_size, fields["store"], fields["backend"])
            try:
                with default_group(fields["default"], world, fields["folder"]):
                    FEATURES[command.name](world, fields["folder"])
                    assert not dist.is_initialized() or dist.get_rank(world.process_group()) == rank
            except Exception as error:  # told to the test, and to the others
                world.abort()
                report("failed", number=fields["world"], text=traceback.format_exc(), **describe_error(error))
                continue
            world.blocking.leave()
            tables = c10d._world.pg_map, c10d._world.pg_names, c10d._world.pg_group_ranks, c10d._world.tags_to_pg
            report("done", left=[len(table) for table in tables])


@contextmanager
def default_group(kind: Default, world: mw.World, folder: str) -> Iterator[None]:
    """Have a default group, of this process alone or of all in another order, that works before and after."""
    if kind == "none":
        yield
        assert not dist.is_initialized()
        return
    if kind == "own":
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    else:
        members = FileStore(f"{folder}/members", world.world_size)
        dist.init_process_group(
            "gloo", store=members, rank=world.world_size - 1 - world.rank, world_size=world.world_size
        )
    default = dist.group.WORLD
    try:
        yield
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == dist.get_world_size()
        assert dist.group.WORLD is default
    finally:
        dist.destroy_process_group()


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def batch(step: int, world_size: int) -> Tensor:
    """``[world_size * BATCH, WIDTH]``: the same in all processes."""
    return torch.randn(world_size * BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    loss: Tensor = (model(inputs) - 1).square().mean()
    return loss


def own_part(whole: Tensor, world: mw.World) -> Tensor:
    return whole[world.rank * BATCH : (world.rank + 1) * BATCH]


def train_like_one_process(model: nn.Module, reference: nn.Module, world: mw.World) -> None:
    """Train both on the same batches: one in parts, the other as a whole."""
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    for step in range(4):
        whole = batch(step, world.world_size)
        loss_of(model, own_part(whole, world)).backward()  # type: ignore[no-untyped-call]
        loss_of(reference, whole).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


# ---- features


def ddp(world: mw.World, folder: str) -> None:
    for options in ({}, {"bucket_cap_mb": 1e-5, "gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model, reference = make_model(), make_model()
        wrapped = DistributedDataParallel(model, process_group=world.process_group(), **options)
        train_like_one_process(wrapped, reference, world)
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def ddp_with_a_hook(world: mw.World, folder: str) -> None:
    """The hook's chain of futures runs arithmetic, so it must not be run by the thread that moves tensors."""
    group = world.process_group()

    def halve_and_back(_, bucket):  # type: ignore[no-untyped-def] # DDP looks at annotations, and these are strings
        sent = bucket.buffer().half().div_(world.world_size)
        future = dist.all_reduce(sent, group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].float())

    model, reference = make_model(), make_model()
    wrapped = DistributedDataParallel(model, process_group=group)
    wrapped.register_comm_hook(None, halve_and_back)
    train_like_one_process(wrapped, reference, world)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=0)


def pytorchs_hooks(world: mw.World, folder: str) -> None:
    """Those of PowerSGD wait, in what they chain to one future of the group, for another."""
    group = world.process_group()
    alone = group.split_group([world.rank])
    hooks: list[tuple[Any, Any]] = [
        (group, default_hooks.allreduce_hook),
        (group, default_hooks.fp16_compress_hook),
        (powersgd_state(group), powerSGD_hook.powerSGD_hook),
        (powersgd_state(group), default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
        (PostLocalSGDState(group, alone, start_localSGD_iter=9), post_localSGD_hook),  # type: ignore[no-untyped-call]
    ]
    for state, hook in hooks:
        model = make_model()
        wrapped = DistributedDataParallel(model, process_group=group)
        wrapped.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(wrapped, own_part(batch(step, world.world_size), world)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        everyone = [torch.empty_like(weights) for _ in range(world.world_size)]
        dist.all_gather(everyone, weights, group=group)
        for theirs in everyone:
            torch.testing.assert_close(theirs, weights)
    dist.destroy_process_group(alone)


def powersgd_state(group: dist.ProcessGroup) -> powerSGD_hook.PowerSGDState:
    """It compresses from the third step on."""
    return powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)


def fsdp(world: mw.World, folder: str) -> None:
    model, reference = make_model(), make_model()
    mesh = world.device_mesh()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    train_like_one_process(model, reference, world)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(ours.full_tensor(), theirs, atol=1e-6, rtol=0)


def meshes_of_two_dimensions(world: mw.World, folder: str) -> None:
    """HSDP, and tensor parallelism along the second dimension."""
    for shape in ((world.world_size, 1), (1, world.world_size)):
        mesh = world.device_mesh(("replicate", "shard"), shape=shape)
        model, reference = make_model(), make_model()
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        train_like_one_process(model, reference, world)
        _compare(model, reference)
    model, reference = make_model(), make_model()
    plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["shard"], plan, src_data_rank=None)
    for each in (model, reference):
        loss_of(each, batch(0, 1)).backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD(each.parameters(), lr=0.1).step()
    _compare(model, reference)


def _compare(model: nn.Module, reference: nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert isinstance(ours, DTensor)
        torch.testing.assert_close(ours.full_tensor(), theirs, atol=1e-6, rtol=0)


def dtensor(world: mw.World, folder: str) -> None:
    mesh = world.device_mesh("rows")
    whole = torch.arange(float(world.world_size * 12)).view(-1, 4)
    if dist.is_initialized():  # PyTorch scatters only where there is one
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        assert DeviceMesh.from_group(world.process_group(), "cpu").get_local_rank() == world.rank
    else:
        sharded = DTensor.from_local(whole.chunk(world.world_size)[world.rank], mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(_whole(sharded.sum()), whole.sum())
    columns = sharded.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.to_local(), whole.chunk(world.world_size, dim=1)[world.rank])
    product = DTensor.from_local(torch.ones(4, 4), mesh, [Replicate()])
    assert torch.equal(_whole(sharded @ product), whole @ torch.ones(4, 4))


def _whole(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()


def pipelining(world: mw.World, folder: str) -> None:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(world.world_size)]
    torch.manual_seed(1)
    for layer in layers:
        layer.reset_parameters()
    reference = copy.deepcopy(nn.Sequential(*layers))
    inputs, targets = batch(0, 4), batch(1, 4)
    device = torch.device("cpu")
    stage = PipelineStage(layers[world.rank], world.rank, world.world_size, device, group=world.process_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    losses: list[Tensor] = []
    if world.rank == 0:
        schedule.step(inputs)
    elif world.rank == world.world_size - 1:
        schedule.step(target=targets, losses=losses)
    else:
        schedule.step()
    expected = (reference(inputs) - targets).square().mean()
    expected.backward()
    if losses:
        torch.testing.assert_close(torch.stack(losses).mean(), expected, atol=1e-6, rtol=0)
    theirs = reference[world.rank].weight.grad
    torch.testing.assert_close(layers[world.rank].weight.grad, theirs, atol=1e-6, rtol=0)


def distributed_checkpoint(world: mw.World, folder: str) -> None:
    mesh, group = world.device_mesh(), world.process_group()
    whole = torch.arange(float(world.world_size * 12)).view(-1, 4)
    own = whole.chunk(world.world_size)[world.rank].clone()

    def state(shard: Tensor, value: float) -> dict[str, Any]:
        return {"sharded": DTensor.from_local(shard, mesh, [Shard(0)]), "whole": torch.full((3,), value), "step": value}

    path = f"{folder}/checkpoint"
    save(state(own, 5.0), checkpoint_id=path, process_group=group)
    loaded = state(torch.zeros_like(own), 0.0)
    load(loaded, checkpoint_id=path, process_group=group)
    assert torch.equal(loaded["sharded"].full_tensor(), whole)
    assert loaded["whole"].tolist() == [5.0] * 3
    assert loaded["step"] == 5.0
    assert sorted(os.listdir(path)) == [".metadata", *(f"__{rank}_0.distcp" for rank in range(world.world_size))]


FEATURES: dict[str, Callable[[mw.World, str], None]] = {
    feature.__name__: feature
    for feature in (
        ddp,
        ddp_with_a_hook,
        pytorchs_hooks,
        fsdp,
        meshes_of_two_dimensions,
        dtensor,
        pipelining,
        distributed_checkpoint,
    )
}


# ---- a world that breaks under them


def use_until_broken(rank: int, world_size: int, store: str, backend: str, folder: str) -> None:
    """Repeat each kind of operation on a thread and in a world of its own; report the error that ends it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    with mw.WorldManager() as manager:
        join = manager.blocking.join
        worlds = [join(feature, rank, world_size, store, backend) for feature in REPEATED]
        threads = [threading.Thread(target=_repeat, args=(world, folder)) for world in worlds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _repeat(world: mw.World, folder: str) -> None:
    step, group = REPEATED[world.name](world, folder), world.process_group()
    number = 0
    try:
        while True:
            step()
            number += 1
            if number == 3:
                report("busy", feature=world.name)
    except Exception as error:  # of whatever kind: that is the question
        report("ended", feature=world.name, trace=traceback.format_exc(), **describe_error(error))
    anew: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(1), group=group),
        lambda: group.barrier().wait(),
        lambda: REPEATED[world.name](world, folder)(),
    ]
    errors = []
    for again in anew:
        try:
            again()
        except Exception as error:  # as above
            errors.append(type(error).__name__)
    report("afterwards", feature=world.name, errors=errors)


def _repeat_ddp(world: mw.World, folder: str) -> Callable[[], Any]:
    model = DistributedDataParallel(make_model(), process_group=world.process_group(), bucket_cap_mb=1e-5)
    return lambda: loss_of(model, batch(world.rank, 1)).backward()  # type: ignore[no-untyped-call]


def _repeat_fsdp(world: mw.World, folder: str) -> Callable[[], Any]:
    model = make_model()
    fully_shard(model, mesh=world.device_mesh())
    return lambda: loss_of(model, batch(world.rank, 1)).backward()  # type: ignore[no-untyped-call]


def _repeat_functional(world: mw.World, folder: str) -> Callable[[], Any]:
    group = world.process_group()
    return lambda: functional.wait_tensor(functional.all_reduce(torch.ones(100_000), "sum", group))  # type: ignore[no-untyped-call]


def _repeat_dtensor(world: mw.World, folder: str) -> Callable[[], Any]:
    mesh = world.device_mesh()
    return lambda: DTensor.from_local(torch.ones(4, 4), mesh, [Shard(0)]).full_tensor()


def _repeat_send(world: mw.World, folder: str) -> Callable[[], Any]:
    """Around the ring."""
    group, size = world.process_group(), world.world_size

    def step() -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.ones(1000), group=group, group_peer=(world.rank + 1) % size),
                dist.P2POp(dist.irecv, torch.empty(1000), group=group, group_peer=(world.rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()

    return step


def _repeat_objects(world: mw.World, folder: str) -> Callable[[], Any]:
    group = world.process_group()
    gathered: list[Any] = [None] * world.world_size
    return lambda: dist.all_gather_object(gathered, {"rank": world.rank}, group=group)


def _repeat_future(world: mw.World, folder: str) -> Callable[[], Any]:
    group = world.process_group()

    def step() -> None:
        work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
        assert work is not None
        work.get_future().wait()

    return step


def _repeat_pipelining(world: mw.World, folder: str) -> Callable[[], Any]:
    layer, device = nn.Linear(WIDTH, WIDTH), torch.device("cpu")
    stage = PipelineStage(layer, world.rank, world.world_size, device, group=world.process_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    inputs = [batch(0, 4)] if world.rank == 0 else []
    return lambda: schedule.step(*inputs, target=batch(1, 4) if world.rank == world.world_size - 1 else None)


def _repeat_checkpoint(world: mw.World, folder: str) -> Callable[[], Any]:
    state = {"whole": torch.ones(3), f"own{world.rank}": torch.ones(3)}
    return lambda: save(state, checkpoint_id=f"{folder}/checkpoint", process_group=world.process_group())


REPEATED: dict[str, Callable[[mw.World, str], Callable[[], Any]]] = {
    "ddp": _repeat_ddp,
    "fsdp": _repeat_fsdp,
    "functional": _repeat_functional,
    "dtensor": _repeat_dtensor,
    "send": _repeat_send,
    "objects": _repeat_objects,
    "future": _repeat_future,
    "pipelining": _repeat_pipelining,
    "checkpoint": _repeat_checkpoint,
}


# ---- a program that just ends

_kept: list[Any] = []


def end_without_cleaning_up(rank: int, world_size: int, store: str, backend: str) -> None:
    """With a receive pending, and with all that PyTorch has of the group still there."""
    manager = mw.WorldManager()
    world = manager.blocking.join("w", rank, world_size, store, backend)
    group = world.process_group()
    functional.wait_tensor(functional.all_reduce(torch.ones(1), "sum", group))  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(make_model(), process_group=group)
    loss_of(model, batch(0, 1)).backward()  # type: ignore[no-untyped-call]
    work = group.recv([torch.zeros(1)], 1 - rank)
    _kept.extend([manager, model, world.device_mesh(), work, work.get_future().then(lambda _: None)])
    report("ready")
    wait_command()


# ---- training that survives


def train(
    rank: int, world_size: int, store: str, backend: str, num_steps: int, dies_at: int | None, is_new: bool
) -> list[tuple[int, float]]:
    """Train over a world that may break and form again; return the losses of this rank's parts as (step, loss).

    With ``dies_at`` this process is killed inside the backward pass of that step, when a part of the gradients has been
    reduced. Afterwards all go on from the newest state that a survivor has of the step that all survivors have reached.
    """
    torch.set_num_threads(1)
    with mw.WorldManager() as manager:
        join = manager.blocking.join
        world = join("training", rank, world_size, store, backend, timeout_s=60)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        states: dict[int, Any] = {} if is_new else {0: _state(model, optimizer)}  # of the last two steps
        losses: dict[int, float] = {}
        while True:
            try:
                step = _agree(world, states, model, optimizer)
                wrapped = DistributedDataParallel(model, process_group=world.process_group(), bucket_cap_mb=1e-5)
                while step < num_steps:
                    if step == dies_at:
                        next(model.parameters()).register_hook(_die)  # type: ignore[no-untyped-call]
                    loss = loss_of(wrapped, own_part(batch(step, world_size), world))
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    losses[step] = loss.item()
                    step += 1
                    states = {step - 1: states[step - 1], step: _state(model, optimizer)}
                world.blocking.barrier()
                return sorted(losses.items())
            except mw.WorldBrokenError as error:
                report("noticed", step=step, **describe_error(error))
                world = manager.blocking.rejoin("training", timeout_s=60)


def _die(_: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def _agree(world: mw.World, states: dict[int, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the state after the last step that all have finished, from one who has it; return the number of the next."""
    group = world.process_group()
    reached: list[list[int]] = [[]] * world.world_size
    dist.all_gather_object(reached, sorted(states), group=group)
    step = min(max(steps) for steps in reached if steps)
    source = next(rank for rank, steps in enumerate(reached) if step in steps)
    chosen: list[Any] = [states.get(step)]
    dist.broadcast_object_list(chosen, group=group, group_src=source)
    of_model, of_optimizer = chosen[0]
    model.load_state_dict(of_model)
    optimizer.load_state_dict(copy.deepcopy(of_optimizer))
    states.clear()
    states[step] = chosen[0]
    return step


def train_alone(world_size: int, num_steps: int) -> list[list[float]]:
    """Return the losses that each rank must see at each step: ``[num_steps][world_size]``."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(num_steps):
        whole = batch(step, world_size)
        losses.append([loss_of(model, part).item() for part in torch.split(whole, BATCH)])
        optimizer.zero_grad()
        loss_of(model, whole).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return losses
