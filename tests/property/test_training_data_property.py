"""Deaths, joins and ways back at any moment: each sample is committed once, and the global batch is constant.

The simulated run does what members do: deal the micro-batches, compute some, lose members, deal what is missing again,
commit, and write it down, each member in a ledger of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from multiworld.training.data.dealing import deal
from multiworld.training.data.demand import Demand, Wanted
from multiworld.training.data.ledger_check import Committed, Data, Record, Rewound, check_records
from multiworld.training.data.orders import NumberedOrder, Order, ShardedOrder
from multiworld.training.data.positions import Positions

NUM_SCHEDULES = 1_000


@dataclass
class Run:
    """One training, with faults drawn from ``random``."""

    random: random.Random
    positions: Positions
    order: Order
    members: list[str]
    generation: int = 1
    born: int = 0
    records: list[Record] = field(default_factory=list)
    committed: dict[int, list[list[str]]] = field(default_factory=dict)
    num_lost: int = 0

    def train(self, num_steps: int) -> None:
        step = 0
        while step < num_steps:
            if self.random.random() < 0.1:
                self.join()
            self.step(step)
            step += 1
            if self.random.random() < 0.02:  # all are lost: the newest checkpoint is some steps old
                step = self.go_back(step)

    def step(self, step: int) -> None:
        num, done = self.positions.num_micro_batches, dict[str, list[int]]()
        while True:
            shares = deal(num, self.members, done)
            dead = [member for member in self.members if self.random.random() < 0.05]
            for member, share in shares.items():
                finished = self.random.randint(0, len(share)) if dead else len(share)
                done.setdefault(member, []).extend(share[:finished])
            if not dead:
                break
            self.lose(dead)
            done = {member: did for member, did in done.items() if member in self.members}
        samples = [self.ids(step, number) for number in range(num)]
        self.committed[step] = samples
        writers = [member for member in self.members if self.random.random() < 0.7] or self.members[:1]
        for writer in writers:
            self.records.append(
                Committed(member=writer, step=step, generation=self.generation, done=dict(done), samples=samples)
            )
        if self.random.random() < 0.03:
            self.lose(self.members[:1])  # right behind the commit

    def ids(self, step: int, number: int) -> list[str]:
        return [self.order.id_of(self.order.index(*place)) for place in self.positions.places(step, number)]

    def lose(self, dead: list[str]) -> None:
        self.num_lost += len(dead)
        self.members = [member for member in self.members if member not in dead]
        if not self.members:
            self.join()
        self.generation += 1

    def join(self) -> None:
        self.born += 1
        self.members.append(f"member{self.born}")
        self.generation += 1

    def go_back(self, step: int) -> int:
        at = self.random.randint(max(0, step - 5), step)
        self.generation += 1
        self.records += [Rewound(member=member, step=at, generation=self.generation) for member in self.members]
        return at


@pytest.mark.timeout(120)
def test_whatever_dies_each_sample_is_committed_once_and_the_global_batch_is_constant() -> None:
    num_lost = num_void = 0
    for seed in range(NUM_SCHEDULES):
        chance = random.Random(seed)
        micro_batch, num = chance.randint(1, 3), chance.randint(1, 6)
        sizes = {"global_batch": micro_batch * num, "micro_batch": micro_batch}
        lengths = [chance.randint(0, 20) for _ in range(4)] + [micro_batch * num]
        drop_last, shuffle = chance.random() < 0.3, chance.random() < 0.8
        order: Order = (
            ShardedOrder(lengths, **sizes, shuffle=shuffle, seed=seed)
            if chance.random() < 0.3
            else NumberedOrder(sum(lengths), shuffle=shuffle, seed=seed)
        )
        positions = Positions(num_samples=order.num_samples, drop_last=drop_last, **sizes)
        run = Run(chance, positions, order, [f"rank{rank}" for rank in range(chance.randint(1, 4))])
        run.train(num_steps=20)
        chance.shuffle(run.records)
        data = Data(
            global_batch=micro_batch * num, micro_batch=micro_batch, num_samples=order.num_samples, drop_last=drop_last
        )
        report = check_records({"rank0": data}, run.records)
        assert (report.steps, report.problems) == (20, ()), f"seed {seed}: {report}"
        check_by_hand(run, f"seed {seed}")
        num_lost += run.num_lost
        num_void += report.void
    assert num_lost > NUM_SCHEDULES
    assert num_void > NUM_SCHEDULES / 10


def check_by_hand(run: Run, seed: str) -> None:
    """As the ledger's check says, with none of its code."""
    names = [name for step in range(20) for ids in run.committed[step] for name in ids]
    assert len(names) == 20 * run.positions.global_batch, seed
    size = run.order.num_samples
    if run.positions.drop_last:
        size = size // run.positions.global_batch * run.positions.global_batch
    for begin in range(0, len(names), size):
        epoch = names[begin : begin + size]
        assert len(set(epoch)) == len(epoch), seed


@given(
    num=st.integers(0, 40),
    members=st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True),
    seed=st.integers(0, 1_000_000),
)
def test_dealing_shares_out_all_that_is_missing_and_levels(num: int, members: list[int], seed: int) -> None:
    chance = random.Random(seed)
    done: dict[int, list[int]] = {}
    for number in range(num):
        if chance.random() < 0.5:
            done.setdefault(chance.choice([*members, 100]), []).append(number)
    shares = deal(num, members, done)
    finished = {number for numbers in done.values() for number in numbers}
    dealt = [number for member in members for number in shares[member]]
    assert dealt == [number for number in range(num) if number not in finished]
    totals = {member: len(shares[member]) + len(done.get(member, ())) for member in members}
    got = [totals[member] for member in members if shares[member]]
    assert all(most <= least + 1 for most in got for least in totals.values())


@settings(max_examples=300)
@given(seed=st.integers(0, 1_000_000), ahead=st.integers(1, 6))
def test_workers_lose_nothing_and_load_nothing_twice_while_shares_change(seed: int, ahead: int) -> None:
    """A loader with ``ahead`` micro-batches in its workers, which deliver in the order of what they began."""
    chance = random.Random(seed)
    demand, begun, ready = Demand(num_steps=8), list[Wanted | None](), set[Wanted]()
    begun += [demand.begin() for _ in range(ahead)]
    loaded: list[Wanted] = []

    def receive() -> None:
        wanted = begun.pop(0)
        begun.append(demand.begin())
        if wanted is not None and demand.finish(wanted):
            assert wanted not in ready
            ready.add(wanted)
            loaded.append(wanted)

    for step in range(8):
        for _ in range(1 + (chance.random() < 0.3)):  # after a loss the same step again, with other micro-batches
            share = sorted(chance.sample(range(6), chance.randint(0, 6)))
            if chance.random() < 0.3:
                demand.expect(step + 1, sorted(chance.sample(range(6), 3)))
            demand.ask(step, share)
            ready = {wanted for wanted in ready if wanted.step >= step}
            for number in share:
                for _ in range(20 * ahead):
                    if Wanted(step, number) in ready:
                        break
                    if chance.random() < 0.05:  # the workers die
                        demand.give_back([wanted for wanted in begun if wanted is not None])
                        begun = [demand.begin() for _ in range(ahead)]
                    receive()
                ready.remove(Wanted(step, number))
                demand.take(Wanted(step, number))
        assert all(wanted.step < 8 for wanted in loaded)
    assert len(ready) <= 6 * 8
