"""A node that is made anew has the same tensors, and nothing that was issued is lost or done twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multiworld.errors import PeerStoppedError
from multiworld.remote import DeclaredCall, NodeDeadError, NodeReturnsError, NotReplayableWarning, RemoteOperationError
from multiworld.remote.capturing.capture import capture
from multiworld.remote.node.executor import Executor
from multiworld.remote.protocol.messages import NodeStatistics
from multiworld.remote.recovery.keeper import Keeper
from multiworld.remote.recovery.node_recovery import NodeRecovery
from multiworld.remote.recovery.schedule import MAX_LOSSES, Schedule

from ..fake_node import FakeNode, remote_of, values


@pytest.fixture
def recovery(fake: FakeNode) -> Iterator[NodeRecovery]:
    """Of the node ``fake``, which was empty when its first snapshot was taken."""
    recovery = NodeRecovery(fake.session)
    recovery.take_snapshot()
    yield recovery
    recovery.close()


def lose_and_replace(fake: FakeNode) -> None:
    fake.lose()
    assert fake.session.away == "the connection broke: killed"
    fake.replace()
    assert fake.session.away is None


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcomes


def test_tensors_come_back_from_the_snapshot_as_the_views_of_one_memory_that_they_were(
    fake: FakeNode, recovery: NodeRecovery
) -> None:
    x = fake.node.send(torch.arange(12.0).reshape(3, 4))
    row, turned = x[1], x.t()
    conjugate = torch.complex(x, x).conj()
    empty = fake.node.zeros(0, 3)
    recovery.take_snapshot()
    assert recovery.num_records == 0
    lose_and_replace(fake)
    x.add_(100)
    assert values(row).tolist() == [104, 105, 106, 107]
    assert torch.equal(values(turned), torch.arange(12.0).reshape(3, 4).t() + 100)
    assert torch.equal(values(conjugate.resolve_conj()), torch.complex(*[torch.arange(12.0).reshape(3, 4)] * 2).conj())
    assert values(empty).shape == (0, 3)
    assert (recovery.statistics.num_recoveries, recovery.statistics.last_num_records) == (1, 1)


def test_what_was_issued_since_the_snapshot_is_executed_again(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.zeros(3)
    recovery.take_snapshot()
    for _ in range(300):
        x.add_(1)
    assert values(x)[0] == 300
    lose_and_replace(fake)
    assert values(x).tolist() == [300] * 3
    lose_and_replace(fake)
    x.add_(1)
    lose_and_replace(fake)
    assert values(x).tolist() == [301] * 3


def test_what_is_issued_while_the_node_is_away_is_executed_when_it_is_there(
    fake: FakeNode, recovery: NodeRecovery
) -> None:
    x = fake.node.zeros(3)
    fake.lose()
    assert not fake.node.is_alive
    for _ in range(300):
        x = x + 1
    sent = fake.node.send(torch.full((3,), 5.0))
    large = fake.node.send(torch.arange(20_000.0))
    fake.replace()
    assert values(x + sent).tolist() == [305] * 3
    assert values(large[-1]).item() == 19_999


@pytest.mark.sources
def test_waits_go_on_over_the_new_node_and_get_what_they_asked_for(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.full((3,), 2.0)
    large = fake.node.full((20_000,), 3.0)
    values(x)
    release = threading.Event()
    fake.there._executor.execute = lambda batch: release.wait(10)  # type: ignore[assignment]
    waits = [
        in_thread(lambda: values(x)),
        in_thread(lambda: values(large)),
        in_thread(lambda: asyncio.run(remote_of(large).fetched())),
        in_thread(fake.node.synchronize),
        in_thread(lambda: fake.node.statistics),
    ]
    while fake.sync_points.total < 5:
        threading.Event().wait(0.001)
    x.add_(1)  # behind them
    release.set()
    lose_and_replace(fake)
    for thread, _ in waits:
        thread.join(10)
    (small,), (all_of_it,), (awaited,), (synchronized,), (statistics,) = (outcomes for _, outcomes in waits)
    assert small.tolist() == [2] * 3
    assert torch.equal(all_of_it, torch.full((20_000,), 3.0))
    assert torch.equal(awaited, torch.full((20_000,), 3.0))
    assert synchronized is None
    assert isinstance(statistics, NodeStatistics)
    assert values(x).tolist() == [3] * 3


@pytest.mark.sources
def test_a_wait_that_is_to_raise_raises_and_loses_nothing(fake: FakeNode) -> None:
    recovery = NodeRecovery(fake.session, raises=True)
    recovery.take_snapshot()
    x = fake.node.zeros(3)
    values(x)
    fake.there._executor.execute = lambda batch: None  # type: ignore[method-assign]
    thread, outcomes = in_thread(lambda: values(x.add_(1)))
    while not fake.session.link.answers.are_awaited:
        threading.Event().wait(0.001)
    fake.lose()
    thread.join(10)
    (error,) = outcomes
    assert type(error) is NodeReturnsError
    assert isinstance(error, NodeDeadError)
    assert "nodes[1].wait_alive()" in str(error)
    fake.replace()
    fake.node.wait_alive(1)
    assert values(x).tolist() == [1] * 3


def test_a_large_tensor_that_was_changed_here_after_it_was_sent_is_sent_again_as_it_was(
    fake: FakeNode, recovery: NodeRecovery
) -> None:
    local = torch.zeros(20_000)
    there = fake.node.send(local, non_blocking=True)
    local.fill_(9)
    assert values(there).sum() == 0
    lose_and_replace(fake)
    assert values(there).sum() == 0
    assert recovery.log_bytes > local.nbytes
    recovery.take_snapshot()
    assert recovery.log_bytes == 0


def test_dropout_draws_the_same_numbers_again(fake: FakeNode, recovery: NodeRecovery) -> None:
    def drawn(*, kills: bool) -> Tensor:
        fake.node.manual_seed(5)
        x = fake.node.ones(50)
        fake.node.synchronize()
        recovery.take_snapshot()
        y = nn.functional.dropout(x, 0.5)
        if kills:
            lose_and_replace(fake)
        y = y + nn.functional.dropout(x, 0.5)
        recovery.take_snapshot()
        if kills:
            lose_and_replace(fake)
        return values(y + torch.rand_like(x))

    assert torch.equal(drawn(kills=False), drawn(kills=True))


def test_a_gpu_that_was_seeded_and_not_used_yet_has_its_seed_again(
    fake: FakeNode, recovery: NodeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.node.manual_seed(5)
    fake.node.rand(3)
    recovery.take_snapshot()
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    lose_and_replace(fake)
    drawn = values(fake.node.rand(3))
    assert seeds == [5]
    numbers = torch.rand(6, generator=torch.Generator().manual_seed(5))
    assert torch.equal(drawn, numbers[3:])


def test_a_question_is_asked_again_and_its_tensors_are_there(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.send(torch.tensor([0.0, 3.0, 0.0, 4.0]))
    where = torch.nonzero(x)
    lose_and_replace(fake)
    assert values(where).tolist() == [[1], [3]]
    fake.node.synchronize()
    assert fake.session.stream.failures.total == 0


def test_a_question_with_another_answer_than_before_loses_what_needs_it(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.send(torch.tensor([0.0, 3.0, 0.0, 4.0]))
    where = torch.nonzero(x)
    doubled = where * 2
    values(doubled)
    recovery.answered(recovery._log._entries[1].request or 0, b'{"say":"outcome","shown":null}')
    lose_and_replace(fake)
    with pytest.raises(RemoteOperationError, match="returned something else"):
        values(doubled)
    assert values(x).tolist() == [0, 3, 0, 4]


def test_failures_are_told_once_and_stay_failures(fake: FakeNode, recovery: NodeRecovery) -> None:
    lost = fake.node.zeros(3).index_select(0, fake.node.send(torch.tensor([9])))
    kept = fake.node.ones(3)
    fake.node.synchronize()
    assert fake.session.stream.failures.total == 1
    lose_and_replace(fake)  # executed again
    fake.node.synchronize()
    recovery.take_snapshot()
    lose_and_replace(fake)  # from the snapshot
    with pytest.raises(RemoteOperationError, match=r"(?s)index_select.*test_node_recovery\.py"):
        values(lost + kept)
    assert values(kept).tolist() == [1] * 3
    assert fake.session.stream.failures.total == 1
    assert fake.session.unseen_errors() == []


def test_tensors_that_were_freed_do_not_come_back(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.zeros(3)
    y = x + 1
    del x
    recovery.take_snapshot()
    z = y + 1
    del y
    fake.node.synchronize()
    lose_and_replace(fake)
    assert values(z).tolist() == [2] * 3
    assert fake.num_tensors == 1


def test_a_node_that_is_lost_while_it_is_made_anew_is_made_anew_again(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.full((3,), 7.0)
    large = fake.node.send(torch.arange(20_000.0))
    fake.lose()
    fake.session.stream.transmit = lambda batch: fake.lose()  # type: ignore[method-assign]
    with pytest.raises(NodeDeadError):
        fake.replace()
    del fake.session.stream.transmit
    assert fake.session.away is not None
    fake.replace()
    assert values(x).tolist() == [7] * 3
    assert values(large[3]).item() == 3


@pytest.mark.sources
def test_a_node_that_gets_no_further_is_given_up_and_says_where(
    fake: FakeNode, recovery: NodeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = fake.node.zeros(3)
    values(x)
    fake.there._executor.execute = lambda batch: None  # type: ignore[method-assign]
    x.add_(1)
    for _ in range(MAX_LOSSES):
        fake.lose()
        monkeypatch.setattr(Executor, "execute", lambda *_: None)
        fake.replace()
    fake.lose()
    with pytest.raises(NodeDeadError, match=r"(?s)it was lost 4 times in a row.*aten\.add_\.Tensor at .*test_node"):
        values(x)


def test_a_node_that_is_lost_again_and_again_and_executes_all_meanwhile_comes_back_each_time(
    fake: FakeNode, recovery: NodeRecovery
) -> None:
    x = fake.node.zeros(3)
    for _ in range(3 * MAX_LOSSES):
        x.add_(1)
        position = fake.session.stream.queue.position
        lose_and_replace(fake)
        fake.session.stream.room.wait_while(lambda: fake.session.stream.queue.confirmed <= position)  # noqa: B023
    assert values(x).tolist() == [3 * MAX_LOSSES] * 3


def test_a_node_without_a_snapshot_does_not_come_back(fake: FakeNode) -> None:
    recovery = NodeRecovery(fake.session)
    x = fake.node.zeros(3)
    fake.lose()
    with pytest.raises(NodeDeadError, match="it has no snapshot yet"):
        values(x)
    recovery.close()


def test_without_recovery_again_a_node_is_as_any_other(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.zeros(3)
    recovery.close()
    x.add_(1)
    assert values(x).tolist() == [1] * 3
    fake.lose()
    with pytest.raises(NodeDeadError):
        values(x)


def test_a_recovery_that_ends_while_the_node_is_away_gives_it_up(fake: FakeNode, recovery: NodeRecovery) -> None:
    x = fake.node.zeros(3)
    fake.lose()
    thread, outcomes = in_thread(lambda: values(x))
    recovery.close()
    thread.join(10)
    assert [type(each) for each in outcomes] == [NodeDeadError]
    assert "ended before it was made anew" in str(outcomes[0])


def test_a_snapshot_that_has_no_room_on_the_node_is_an_error_and_no_more(
    fake: FakeNode, recovery: NodeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = fake.node.ones(3)
    values(x)
    with monkeypatch.context() as patch:
        patch.setattr("multiworld.remote.node.snapshots._generators", no_room)
        with pytest.raises(RemoteOperationError, match="a snapshot failed on node 1"):
            recovery.take_snapshot()
    lose_and_replace(fake)
    assert values(x).tolist() == [1] * 3


SHARD = "tests.unit.remote.functions_of_nodes:load_shard"


@pytest.mark.parametrize("like", [None, torch.empty(2, 5)], ids=["answered", "foreseen"])
def test_a_call_that_is_declared_replayable_is_made_again(like: Tensor | None) -> None:
    with FakeNode(calls=[DeclaredCall(name=SHARD, replayable=True)]) as fake:
        recovery = NodeRecovery(fake.session)
        recovery.take_snapshot()
        shard = fake.node.call(SHARD, "train", like=like)
        fake.node.synchronize()
        lose_and_replace(fake)
        assert values(shard * 2).tolist() == [[1.0] * 5] * 2
        assert fake.session.stream.failures.total == 0
        recovery.close()


def test_a_call_that_is_not_warns_and_costs_the_node_until_a_snapshot_holds_what_it_did() -> None:
    for waits in (True, False):
        with FakeNode(calls=[DeclaredCall(name=SHARD)]) as fake:
            noticed = threading.Event()
            recovery = NodeRecovery(fake.session, notice=noticed.set)
            recovery.take_snapshot()
            with pytest.warns(NotReplayableWarning, match=r"load_shard on node 1 is not declared replayable"):
                shard = fake.node.call(SHARD, "train")
            assert noticed.is_set()
            assert recovery.has_gap
            if waits:
                recovery.take_snapshot()
                assert not recovery.has_gap
                lose_and_replace(fake)
                assert values(shard).shape == (2, 5)
            else:
                fake.lose()
                with pytest.raises(NodeDeadError, match=r"the call of .*load_shard can't be made again"):
                    values(shard)
            recovery.close()


def no_room() -> None:
    raise MemoryError("no room")


def test_a_captured_step_is_defined_again_and_replays_are_executed_again(fake: FakeNode) -> None:
    x = fake.node.send(torch.ones(4))
    with capture(x) as before:
        before.returns(x * 2 + 1)
    recovery = NodeRecovery(fake.session)
    recovery.take_snapshot()
    counter = fake.node.zeros(4)
    with capture(x) as after:
        counter.add_(x)
    after(x)
    recovery.take_snapshot()
    made = before(x)
    after(x)
    lose_and_replace(fake)
    after(x)
    assert values(made).tolist() == [3] * 4
    assert values(before(made)).tolist() == [7] * 4
    assert values(counter).tolist() == [4] * 4
    del before
    recovery.close()


def test_a_node_that_comes_back_during_a_capture_adds_nothing_to_the_step(
    fake: FakeNode, recovery: NodeRecovery
) -> None:
    x = fake.node.send(torch.ones(4))
    with capture(x) as step:
        y = x + 1
        lose_and_replace(fake)
        step.returns(y * 2)
    assert "2 operations" in repr(step)
    assert values(step(x)).tolist() == [4] * 4


def test_a_node_with_streams_is_refused_and_nothing_is_kept_of_it(fake: FakeNode) -> None:
    stream = fake.node.stream()
    with pytest.raises(RuntimeError, match="node 1 has streams"):
        NodeRecovery(fake.session)
    assert (fake.session.stream.queue.log, fake.session.recovery) == (None, None)
    stream.close()


def test_a_recoverable_node_refuses_streams(fake: FakeNode, recovery: NodeRecovery) -> None:
    with pytest.raises(RuntimeError, match="node 1 is recoverable"):
        fake.node.stream()
    assert recovery.num_records == 0


MAX_LOG_BYTES = 5_000
ONE_BATCH = 6_000  # bytes in the log, at most


def issue_until_held(fake: FakeNode, x: Tensor, *, fetches: bool = False) -> tuple[threading.Thread, list[Any]]:
    """Return a thread that issues much, once it waits for room or is done; what it returns are the values of ``x``."""

    def issue() -> Tensor:
        for _ in range(300):
            for _ in range(4):
                x.add_(1)
            if fetches:
                values(x)
        return values(x)

    held = threading.Event()
    room = fake.session.stream.room
    wait = room.wait

    def noted_wait(is_behind: Callable[[], bool]) -> None:
        held.set()
        wait(is_behind)

    def run() -> Tensor:
        try:
            return issue()
        finally:
            held.set()

    room.wait = noted_wait  # type: ignore[method-assign]
    thread, outcomes = in_thread(run)
    assert held.wait(30)
    room.wait = wait  # type: ignore[method-assign]
    return thread, outcomes


@pytest.mark.parametrize("fetches", [False, True], ids=["batches", "fetches"])
def test_a_log_at_its_bound_holds_the_master_until_a_snapshot_is_complete(fake: FakeNode, fetches: bool) -> None:
    full = threading.Event()
    recovery = NodeRecovery(fake.session, max_bytes=MAX_LOG_BYTES, notice=full.set)
    x = fake.node.zeros(3)
    recovery.take_snapshot()
    thread, outcomes = issue_until_held(fake, x, fetches=fetches)
    assert full.is_set()
    most = 0
    while thread.is_alive():
        most = max(most, recovery.log_bytes)
        recovery.take_snapshot()
        thread.join(0.001)
    assert 2 * MAX_LOG_BYTES < most < 2 * MAX_LOG_BYTES + ONE_BATCH
    assert outcomes[0].tolist() == [1200] * 3
    assert fake.session.stream.room.num_waits > 0
    recovery.close()


def test_a_log_that_nobody_can_cut_holds_nobody(
    fake: FakeNode, recovery: NodeRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery._log._max_bytes = MAX_LOG_BYTES
    x = fake.node.zeros(3)
    thread, outcomes = issue_until_held(fake, x)
    assert outcomes == []
    with monkeypatch.context() as patch:
        patch.setattr("multiworld.remote.node.snapshots._generators", no_room)
        with pytest.raises(RemoteOperationError, match="a snapshot failed on node 1"):
            recovery.take_snapshot()
    thread.join(30)
    assert outcomes[0].tolist() == [1200] * 3
    assert recovery.log_bytes > 2 * MAX_LOG_BYTES
    recovery.take_snapshot()
    assert recovery.log_bytes < MAX_LOG_BYTES


@pytest.mark.parametrize("end", ["close", "loss"])
def test_the_end_of_recovery_and_of_the_node_end_the_wait_for_a_shorter_log(fake: FakeNode, end: str) -> None:
    recovery = NodeRecovery(fake.session, max_bytes=MAX_LOG_BYTES)
    x = fake.node.zeros(3)
    recovery.take_snapshot()
    thread, outcomes = issue_until_held(fake, x)
    if end == "loss":
        fake.lose()
        fake.session.give_up("the test wants it")
    recovery.close()
    thread.join(30)
    assert [isinstance(each, NodeDeadError) for each in outcomes] == [end == "loss"]


def test_a_snapshot_of_a_lost_node_says_why_it_is_lost_without_advice_for_worlds(fake: FakeNode) -> None:
    recovery = NodeRecovery(fake.session, max_bytes=MAX_LOG_BYTES)
    keeper = Keeper(recovery, Schedule(3600.0, max_log_bytes=MAX_LOG_BYTES), 60.0, threading.Event())

    def lost() -> None:
        raise PeerStoppedError("remote-1", 1, 1, "its process has been stopped for 2.0 s")

    recovery.take_snapshot = lost  # type: ignore[method-assign]
    with pytest.raises(NodeDeadError, match=r"node 1, which is lost: it is stopped: its process has been") as caught:
        keeper.snapshot()
    assert "world" not in str(caught.value)


def test_a_log_that_became_full_during_a_snapshot_is_cut_again_at_once(fake: FakeNode) -> None:
    recovery = NodeRecovery(fake.session, max_bytes=MAX_LOG_BYTES)
    keeper = Keeper(recovery, Schedule(3600.0, max_log_bytes=MAX_LOG_BYTES), 60.0, threading.Event())
    x = fake.node.zeros(3)
    keeper.snapshot()
    assert keeper._look() > 0
    take = recovery.take_snapshot

    def take_and_issue() -> None:
        take()
        recovery.take_snapshot = take  # type: ignore[method-assign]
        for _ in range(400):
            x.add_(1)
        fake.session.flush()

    recovery.take_snapshot = take_and_issue  # type: ignore[method-assign]
    for _ in range(400):
        x.add_(1)
    fake.session.flush()
    assert keeper._look() == 0.0
    assert recovery.log_bytes > MAX_LOG_BYTES
    assert keeper._look() > 0
    assert (recovery.statistics.num_snapshots, recovery.num_records) == (3, 0)
    recovery.close()
