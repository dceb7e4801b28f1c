"""Whatever comes, is dropped and is taken: nothing is lost, mixed, reordered, or kept waiting too long."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from multiworld.serving.graph import Batch
from multiworld.serving.replica.batching import BatchQueue


@dataclass(eq=False)
class Item:
    number: int
    kind: int | None
    rows: int
    since: float
    alone: bool


@dataclass
class History:
    waiting: BatchQueue[Item]
    batch: Batch | None
    put: list[Item] = field(default_factory=list)
    taken: list[Item] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)

    def take(self, now: float) -> list[Item]:
        batch = self.waiting.take(now=now)
        assert len({item.kind for item in batch}) <= 1
        if len(batch) > 1:
            assert self.batch is not None
            assert sum(max(item.rows, 1) for item in batch) <= self.batch.max_size
            assert not any(item.alone for item in batch)
        self.taken += batch
        return batch

    def check(self) -> None:
        taken = [item.number for item in self.taken]
        assert len(set(taken)) == len(taken)
        waiting = {item.number for item in self.put if item in self.waiting}
        assert len(waiting) == len(self.waiting)
        assert {item.number for item in self.put} == set(taken) | self.dropped | waiting
        assert len(self.put) == len(taken) + len(self.dropped) + len(waiting)
        for kind in {item.kind for item in self.taken}:
            numbers = [item.number for item in self.taken if item.kind == kind]
            assert numbers == sorted(numbers)


batches = st.none() | st.builds(Batch, max_size=st.integers(1, 8), max_wait_s=st.sampled_from([0.0, 0.1, 0.3, 1.0]))
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.sampled_from([None, 0, 1, 2]),
            st.integers(0, 12),
            st.sampled_from(["plain", "plain", "plain", "urgent", "alone"]),
        ),
        st.tuples(st.just("drop"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 0.05, 0.1, 0.7])),
        st.tuples(st.just("take"), st.booleans()),
        st.tuples(st.just("tune"), batches),
    ),
    max_size=60,
)


@given(batches, steps)
def test_every_request_is_executed_once_in_time_and_in_order(
    batch: Batch | None, steps: list[tuple[object, ...]]
) -> None:
    history = History(BatchQueue(batch), batch)
    now = 0.0
    for step in steps:
        match step:
            case ("put", kind, int(rows), mode):
                item = Item(len(history.put), kind, rows, now, mode == "alone")  # type: ignore[arg-type]
                history.put.append(item)
                history.waiting.put(item, rows, kind, now=now, urgent=mode == "urgent", alone=item.alone)
            case ("drop", int(index)) if history.put:
                item = history.put[index % len(history.put)]
                if history.waiting.drop(item):
                    history.dropped.add(item.number)
            case ("pass", float(took)):
                now += took
            case ("take", _):
                history.take(now)
            case ("tune", tuned):
                history.batch = tuned  # type: ignore[assignment]
                history.waiting.tune(history.batch)
        history.check()
    while (due := history.waiting.due()) is not None:
        now = max(now, due)
        batch_taken = history.take(now)
        assert batch_taken, "due() promised a batch"
        history.check()
    assert len(history.taken) + len(history.dropped) == len(history.put)


@given(batches, st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 2), st.integers(1, 5)), max_size=40))
def test_nobody_waits_longer_than_allowed_when_asked_at_due(
    batch: Batch | None, arrivals: list[tuple[float, int, int]]
) -> None:
    history = History(BatchQueue(batch), batch)
    wait_s = batch.max_wait_s if batch else 0.0
    now = 0.0

    def run_until(end: float) -> None:
        while (due := history.waiting.due()) is not None and due <= end:
            at = max(due, now)
            assert all(at <= item.since + wait_s for item in history.take(at))

    for gap, kind, rows in arrivals:
        run_until(now + gap)
        now += gap
        item = Item(len(history.put), kind, rows, now, alone=False)
        history.put.append(item)
        history.waiting.put(item, rows, kind, now=now)
    run_until(float("inf"))
    assert not history.waiting
