"""Copies between two hosts: two members of one world, each with a memory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import multiworld as mw
from multiworld.testing import scaled
from multiworld.training.copies.keeper import CopyKeeper, as_heard
from multiworld.training.copies.memory import HostMemory
from multiworld.training.copies.names import Run
from multiworld.training.copies.plan import CopyFacts, choose
from multiworld.training.engine.facts import Facts
from multiworld.training.events import CopyFailed, CopyLoaded, CopySaved
from multiworld.training.recovery.records import Generation, Member
from multiworld.wire.messages import decode, encode
from tests.checkpoints import Trained

from .one_process import in_thread, worlds

RUN = Run(job="job", run="now", pid=1, start_time=1)
EVERY = 5

pytestmark = [pytest.mark.process, pytest.mark.timeout(scaled(60))]


@dataclass
class Host:
    """A host with one member of the training."""

    world: mw.World
    trained: Trained
    memory: HostMemory
    keeper: CopyKeeper
    events: list[tuple[type, dict[str, Any]]]

    def said(self, kind: type) -> list[dict[str, Any]]:
        return [fields for each, fields in self.events if each is kind]


def new_host(world: mw.World, folder: Path, *, seed: int) -> Host:
    folder.mkdir(exist_ok=True)
    trained, memory = Trained(seed).train(1), HostMemory(RUN, 2, str(folder))
    events: list[tuple[type, dict[str, Any]]] = []
    keeper = CopyKeeper(
        memory,
        copies=1,
        every_steps=EVERY,
        shard=world.rank,
        num_shards=2,
        member=f"m{world.rank}",
        state=trained.state,
        publish=lambda kind, **fields: events.append((kind, fields)),
    )
    return Host(world, trained, memory, keeper, events)


@contextmanager
def two_hosts(folder: Path) -> Iterator[list[Host]]:
    with worlds(2) as group:
        yield [new_host(world, folder / str(world.rank), seed=world.rank) for world in group]


def generation(num: int = 1) -> Generation:
    members = tuple(Member(id=f"m{rank}", rank=rank, host=f"host {rank}", replica="r") for rank in (0, 1))
    return Generation(number=num, members=members)


def step(hosts: list[Host]) -> list[CopyFacts]:
    """Do one step on both. Returns their facts of it."""
    said = [host.keeper.own_facts() for host in hosts]
    facts = [Facts(step=host.trained.state.step, copies=each) for host, each in zip(hosts, said, strict=True)]
    for host in hosts:
        host.trained.train(1)
        host.keeper.heard(host.world, generation(), facts)
    for host in hosts:
        host.keeper.after_step()
    return said


def end_snapshot(hosts: list[Host]) -> None:
    for host in hosts:
        assert host.keeper._taken is not None
        host.keeper._taken.wait(scaled(10))


def steps_in(host: Host) -> set[tuple[int, int, bool]]:
    return {(each.step, each.shard, each.is_copy) for each in host.memory.snapshots()}


def test_each_host_has_its_own_part_and_a_copy_of_the_others(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        step(hosts)
        end_snapshot(hosts)
        at = hosts[0].trained.state.step
        assert steps_in(hosts[0]) == {(at, 0, False), (at, 1, True)}
        assert steps_in(hosts[1]) == {(at, 1, False), (at, 0, True)}
        assert [each.whole for each in step(hosts)[:1]] == [(at,)]
        assert [fields["copies"] for fields in hosts[0].said(CopySaved)] == [1]


def test_two_snapshots_of_each_part_are_kept_at_most(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        for _ in range(4 * EVERY):
            step(hosts)
            if hosts[0].keeper._taken is not None:
                end_snapshot(hosts)
        assert [len(list((tmp_path / name).iterdir())) for name in "01"] == [4, 4]
        assert {each for each, _, _ in steps_in(hosts[0])} == {15, 20}
        for host in hosts:
            host.keeper.close(is_complete=True, has_failed=False)
        assert [list((tmp_path / name).iterdir()) for name in "01"] == [[], []]


def test_a_lost_partner_is_a_failure_of_that_snapshot_and_the_one_before_stays(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        step(hosts)
        end_snapshot(hosts)
        first = hosts[0].trained.state.step
        while hosts[0].trained.state.step < EVERY - 1:
            step(hosts)
        facts = [Facts(step=EVERY - 1, copies=host.keeper.own_facts()) for host in hosts]
        hosts[0].trained.train(1)
        hosts[0].keeper.heard(hosts[0].world, generation(), facts)
        hosts[0].keeper.after_step()
        hosts[1].world.abort()
        end_snapshot(hosts[:1])
        said = hosts[0].keeper.own_facts()
        assert (said.begun, said.is_busy, said.whole) == (EVERY, False, (first,))
        assert [fields["step"] for fields in hosts[0].said(CopyFailed)] == [EVERY]
        hosts[0].keeper.close(is_complete=False, has_failed=True)
        assert {(first, 0, False), (first, 1, True)} <= steps_in(hosts[0])


def test_a_part_comes_from_the_other_host_if_its_own_is_gone(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        step(hosts)
        end_snapshot(hosts)
        expected = [parameters_of(host) for host in hosts]
        at = hosts[0].trained.state.step
    with worlds(2) as group:  # the first process comes back on another host
        again = [
            new_host(group[0], tmp_path / "new", seed=5),
            new_host(group[1], tmp_path / "1", seed=6),
        ]
        held = {f"m{host.world.rank}": host.memory.snapshots() for host in again}
        plan = choose(["m0", "m1"], held, 2, saved_step=-1)
        assert plan is not None
        both = replace(generation(2), memory=plan)
        other = in_thread(again[1].keeper.fetch, group[1], both, plan)
        assert again[0].keeper.fetch(group[0], both, plan)
        assert other.result()
        for host in again:
            assert host.trained.state.step != at or not torch.equal(parameters_of(host), expected[host.world.rank])
            host.keeper.load()
            assert host.trained.state.step == at
            assert torch.equal(parameters_of(host), expected[host.world.rank])
        assert [(each["source"], each["holder"]) for each in again[0].said(CopyLoaded)] == [("copy", 1)]
        assert [(each["source"], each["holder"]) for each in again[1].said(CopyLoaded)] == [("own", 1)]


def test_a_damaged_part_is_never_loaded_and_not_announced_again(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        step(hosts)
        end_snapshot(hosts)
    for path in (tmp_path / "1").iterdir():
        content = bytearray(path.read_bytes())
        content[120] ^= 1
        path.write_bytes(content)
    with worlds(2) as group:
        again = [new_host(group[0], tmp_path / "new", seed=5), new_host(group[1], tmp_path / "1", seed=6)]
        plan = choose(["m0", "m1"], {"m1": again[1].memory.snapshots()}, 2, saved_step=-1)
        assert plan is not None
        before = [parameters_of(host) for host in again]
        other = in_thread(again[1].keeper.fetch, group[1], generation(2), plan)
        assert not again[0].keeper.fetch(group[0], generation(2), plan)
        assert not other.result()
        for host, values in zip(again, before, strict=True):
            host.keeper.failed(plan, plan.sources)
            assert torch.equal(parameters_of(host), values)
        assert [host.memory.snapshots() for host in again] == [(), ()]


def test_what_the_training_does_not_go_on_with_is_removed(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as hosts:
        step(hosts)
        end_snapshot(hosts)
        before = steps_in(hosts[0])
        while hosts[0].trained.state.step < EVERY:
            step(hosts)
        end_snapshot(hosts)
        held = {f"m{host.world.rank}": host.memory.snapshots() for host in hosts}
        assert len({each.label for each in held["m0"]}) == 2
        older = [each for each in held["m0"] if each.step < EVERY]
        plan = choose(["m0", "m1"], {"m0": [*older]}, 2, saved_step=-1)
        hosts[0].keeper.begins(plan)
        assert steps_in(hosts[0]) == before
        hosts[0].keeper.begins(None)
        assert hosts[0].memory.snapshots() == ()


def test_the_label_is_the_same_where_facts_were_made_and_where_they_were_heard() -> None:
    said = Facts(step=3, values={"loss": (1,)}, seconds={"forward": 0}, copies=CopyFacts(begun=2, whole=(2,)))
    assert as_heard(said) == as_heard(decode(Facts, encode(said)))


def parameters_of(host: Host) -> torch.Tensor:
    return torch.cat([each.detach().flatten().clone() for each in host.trained.model.parameters()])
