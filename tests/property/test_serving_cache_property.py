"""Whatever steps come, late, twice or out of order: no step goes on from tokens that are not those of its sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from multiworld.serving.generation.cache import Fate, Plan, SequenceTable, Step

NUM_SEQUENCES = 5
MAX_LENGTH = 14


def token_at(sequence: int, attempt: int, position: int, cuts: list[int]) -> tuple[int, int, int]:
    """The token of a sequence: each attempt says others than the one before, from its cut on."""
    latest = max(number for number in range(attempt + 1) if number == 0 or cuts[number] <= position)
    return sequence, latest, position


@dataclass
class Store:
    """What a replica holds: the tokens that its states were made of."""

    table: SequenceTable
    cuts: list[int]
    held: dict[bytes, list[tuple[int, int, int]]] = field(default_factory=dict)

    def tokens(self, step: Step, begin: int, end: int) -> list[tuple[int, int, int]]:
        return [token_at(step.sequence[0], step.attempt, position, self.cuts) for position in range(begin, end)]

    def carry_out(self, plan: Plan, steps: list[Step], fails_at: int | None) -> None:
        seen = [index for each in plan.rounds for index in each.steps] + list(plan.refused)
        assert sorted(seen) == list(range(len(steps)))
        for number, each in enumerate(plan.rounds):
            for sequence in each.dropped:
                self.held.pop(sequence, None)
            assert len({steps[index].sequence for index in each.steps}) == len(each.steps)
            if fails_at is not None and number >= fails_at:
                for index in each.steps:
                    self.table.undo(steps[index])
                continue
            for index in each.steps:
                self.take(steps[index])
            assert sum(map(len, self.held.values())) <= self.table.capacity
        self.check()

    def take(self, step: Step) -> None:
        held = self.held.setdefault(step.sequence, [])
        assert held[: step.position] == self.tokens(step, 0, step.position), f"{step} goes on from {held}"
        end = step.position + step.length
        beyond = held[end:] if held[step.position : end] == self.tokens(step, step.position, end) else []
        held[step.position :] = self.tokens(step, step.position, end) + beyond

    def check(self) -> None:
        assert self.table.num_tokens <= self.table.capacity
        assert self.table.num_tokens == sum(self.table.length(bytes([i])) for i in range(NUM_SEQUENCES))
        for sequence in range(NUM_SEQUENCES):
            assert self.table.length(bytes([sequence])) <= len(self.held.get(bytes([sequence]), []))


step = st.builds(
    lambda sequence, attempt, position, length: (bytes([sequence]), attempt, position, length),
    st.integers(0, NUM_SEQUENCES - 1),
    st.integers(0, 2),
    st.integers(0, MAX_LENGTH),
    st.integers(1, 6),
)
moves = st.one_of(
    st.tuples(st.just("plan"), st.lists(step, max_size=6), st.none() | st.integers(0, 2)),
    st.tuples(st.just("go on"), st.lists(st.integers(0, NUM_SEQUENCES - 1), max_size=6), st.none()),
    st.tuples(st.just("forget"), st.integers(0, NUM_SEQUENCES - 1), st.none()),
    st.tuples(st.just("wait"), st.floats(0, 20), st.none()),
)


@given(st.integers(1, 25), st.lists(st.integers(0, 8), min_size=2, max_size=2), st.lists(moves, max_size=25))
def test_no_step_goes_on_from_a_state_that_is_not_its_own(
    capacity: int, cuts: list[int], history: list[tuple[str, object, int | None]]
) -> None:
    store = Store(SequenceTable(capacity, idle_s=10.0), [0, *cuts])
    now = 0.0
    for move, what, fails_at in history:
        if move == "wait":
            assert isinstance(what, float)
            now += what
        elif move == "forget":
            assert isinstance(what, int)
            store.table.forget(bytes([what]))
            store.held.pop(bytes([what]), None)
        else:
            assert isinstance(what, list)
            steps = (
                [Step(*fields) for fields in what]
                if move == "plan"
                else [Step(bytes([i]), 2, store.table.length(bytes([i])), 1) for i in what]
            )
            store.carry_out(store.table.plan(steps, now=now), steps, fails_at)


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), min_size=1, max_size=12))
def test_a_sequence_that_begins_is_taken_if_it_fits_at_all(capacity: int, begun: list[tuple[int, int]]) -> None:
    table = SequenceTable(capacity)
    steps = [Step(bytes([number]), 0, 0, length) for number, length in begun]
    plan = table.plan(steps, now=0.0)
    assert {index: Fate.TOO_LONG for index, one in enumerate(steps) if one.length > capacity} == plan.refused


@given(st.integers(1, 8), st.integers(1, 20))
def test_what_fits_together_goes_on_together(num_sequences: int, num_tokens: int) -> None:
    table = SequenceTable(num_sequences * num_tokens)
    for position in range(num_tokens):
        steps = [Step(bytes([number]), 0, position, 1) for number in range(num_sequences)]
        (only,) = table.plan(steps, now=0.0).rounds
        assert only.steps == tuple(range(num_sequences))
        assert not only.dropped
