"""A training without processes: members compute, agree and die in random order; all decisions are the real ones.

What the engine and the membership do thinly around the decisions is written down here once more, in one thread and
with a clock that only goes on when somebody acts. A breach of a promise raises AssertionError.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from multiworld.training.data.dealing import deal
from multiworld.training.data.ledger_check import Committed, Data, LedgerReport, Record, Rewound, check_records
from multiworld.training.data.orders import NumberedOrder
from multiworld.training.data.positions import Positions
from multiworld.training.engine.decision import Outcome, decide
from multiworld.training.engine.facts import Facts
from multiworld.training.recovery.agreement import Rules, Situation, agree
from multiworld.training.recovery.records import Announcement, Generation, LostMember, Member

NUM_MICRO_BATCHES, MICRO_BATCH, NUM_SAMPLES = 7, 2, 100
GLOBAL_BATCH = NUM_MICRO_BATCHES * MICRO_BATCH
LEASE_S, FENCE_S, MAX_ACTS = 1.0, 1.0, 20_000


@dataclass
class World:
    """What has reached the members of one generation's world. What was sent arrives, also of one that has died."""

    generation: Generation
    formed: set[str] = field(default_factory=set)
    shares: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    contributed: dict[int, set[str]] = field(default_factory=dict)
    facts: dict[int, dict[str, Facts]] = field(default_factory=dict)
    at_barrier: dict[int, set[str]] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.generation.members]


@dataclass
class Process:
    """One process. ``doing``: ``agree``, ``form``, ``train`` or ``barrier``."""

    member: Member
    doing: str = "agree"
    known: Generation | None = None
    world: World | None = None
    began: float = 0.0
    mine: Announcement | None = None
    said_below: int = -1
    decided: tuple[Generation | None, Generation] | None = None
    lost: tuple[LostMember, ...] = ()
    has_state: bool = False
    step: int = 0
    computing: bool = False
    done: list[int] = field(default_factory=list)
    share: tuple[int, ...] = ()
    is_complete: bool = False
    facts: tuple[Facts, ...] = ()
    outcome: Outcome = field(default_factory=Outcome)
    not_ready: frozenset[int] = frozenset()
    stopped_at: float | None = None
    queued: list[Committed] = field(default_factory=list)
    """What counted while the state was on its way: it is applied, and written down, when that has come."""

    @property
    def id(self) -> str:
        return self.member.id

    @property
    def phase(self) -> str:
        """In words, what it is at."""
        if self.doing != "train":
            return self.doing
        if not self.has_state:
            return "transfer"
        if self.is_complete:
            return "commit"
        return "reduce" if self.computing and set(self.share) <= set(self.done) else "compute"


class Training:
    """``size`` ranks on ``num_hosts`` hosts. ``act`` lets one process do one thing; ``seed`` says which."""

    def __init__(self, seed: int, size: int, num_hosts: int = 1) -> None:
        self.random = random.Random(seed)
        self.size, self.num_hosts = size, num_hosts
        self.rules = Rules(min_members=1, expected=size, gather_s=3.0)
        self.now = 0.0
        self.generation: Generation | None = None
        self.said: dict[tuple[int, str], Announcement] = {}
        self.processes: dict[str, Process] = {}
        self.worlds: dict[int, World] = {}
        self.num_started = 0
        self.cut_off = ""
        """The host that reaches neither the store nor the other hosts."""
        self.cut_at = 0.0
        self.to_return: list[int] = []
        """Ranks that the cut-off host's launcher has ended."""
        self.counted_at = 0.0
        """When a step counted on a member last."""
        self.records: list[Record] = []
        """The ledgers of all members."""
        self._positions = Positions(num_samples=NUM_SAMPLES, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH)
        self._order = NumberedOrder(NUM_SAMPLES, shuffle=True, seed=seed)
        for rank in range(size):
            self.start(rank)

    # ---- what happens to processes

    def start(self, rank: int) -> None:
        self.num_started += 1
        member = Member(id=f"{rank}.{self.num_started}", rank=rank, host=f"host{rank % self.num_hosts}")
        self.processes[member.id] = Process(member, began=self.now)

    def kill(self, process: Process) -> None:
        del self.processes[process.id]
        self.said = {key: each for key, each in self.said.items() if key[1] != process.id}

    def lose_each_other(self, one: Process, other: Process) -> None:
        """Both live, and take each other for gone."""
        for process, peer in ((one, other), (other, one)):
            if process.doing in ("train", "barrier") and process.world is not None and peer.id in process.world.ids:
                self.break_off(process, (LostMember(id=peer.id, cause="PeerUnreachableError", is_proven=False),))

    def cut(self, host: str) -> None:
        """The store is on the other side, or the launcher has another one there."""
        self.heal()
        self.cut_off, self.cut_at = host, self.now

    def heal(self) -> None:
        self.cut_off = ""
        for rank in self.to_return:
            self.start(rank)
        self.to_return.clear()

    def is_cut_off(self, process: Process) -> bool:
        return process.member.host == self.cut_off

    def across(self, process: Process, world: World) -> list[str]:
        """Return the members that cannot be reached."""
        return [
            each.id
            for each in world.generation.members
            if self.cut_off and (each.host == self.cut_off) != self.is_cut_off(process)
        ]

    def follow_cut(self) -> None:
        """A lease after the cut the store knows nothing more of that host; its launcher ends its workers, too."""
        if not self.cut_off or self.now - self.cut_at < max(LEASE_S, FENCE_S):
            return
        for process in [each for each in self.processes.values() if self.is_cut_off(each)]:
            self.kill(process)
            self.to_return.append(process.member.rank)

    # ---- one thing after the other

    def act(self) -> None:
        self.now += self.random.expovariate(100.0)
        self.follow_cut()
        ready = [each for each in self.processes.values() if each.stopped_at is None]
        if ready:
            process = self.random.choice(ready)
            {"agree": self.agree, "form": self.form, "train": self.train, "barrier": self.barrier}[process.doing](
                process
            )

    def break_off(self, process: Process, lost: tuple[LostMember, ...] = ()) -> None:
        process.lost += lost
        process.doing, process.began = "agree", self.now
        process.mine, process.decided = None, None
        process.world = None
        process.queued.clear()

    def announcement(self, process: Process) -> Announcement:
        computing = process.computing
        return Announcement(
            member=process.member,
            step=process.step,
            done=tuple(process.done) if process.has_state and computing else (),
            has_state=process.has_state,
            is_complete=process.is_complete and computing,
            facts=process.facts if process.has_state else (),
            lost=process.lost,
        )

    def agree(self, process: Process) -> None:
        """One turn of what a member does until a generation stands; others may act between its look and its word."""
        if self.is_cut_off(process):  # it looks for a store
            process.decided = None
            return
        if process.decided is not None:
            (expected, desired), process.decided = process.decided, None
            if self.generation == expected:
                assert expected is None or desired.number == expected.number + 1
                self.check(desired)
                self.generation = desired
            return
        if process.mine is None:
            process.mine = self.announcement(process)
        current, known = self.generation, process.known
        if current is not None and current.number > (-1 if known is None else known.number):
            if current.place_of(process.id) >= 0:
                self.withdraw(process)
                process.known, process.lost = current, ()
                process.doing, process.began = "form", self.now
                return
            if known is not None:
                self.become_newcomer(process)
                return
        number = 0 if current is None else current.number
        if process.said_below != number:
            self.withdraw(process)
            process.said_below = number
            self.said[number, process.id] = process.mine
        waited_s = self.now - process.began
        is_member = current is not None and current.place_of(process.id) >= 0
        silent = [each.id for each in self.processes.values() if is_member and self.is_silent(each, process)]
        situation = Situation(
            current=current,
            here=frozenset(self.processes),
            said={name: each for (below, name), each in self.said.items() if below == number},
            silent=frozenset(silent),
            waited_s=waited_s,
            is_confirmed=waited_s > 1.0 if self.num_hosts > 1 else None,
        )
        outcome = agree(situation, self.rules)
        if isinstance(outcome, Generation) and outcome.place_of(process.id) >= 0:
            process.decided = current, outcome

    def is_silent(self, process: Process, to: Process) -> bool:
        return process.stopped_at is not None and self.now - max(process.stopped_at, to.began) > LEASE_S

    def withdraw(self, process: Process) -> None:
        self.said.pop((process.said_below, process.id), None)
        process.said_below = -1

    def become_newcomer(self, process: Process) -> None:
        rank = process.member.rank
        self.kill(process)
        self.start(rank)

    def form(self, process: Process) -> None:
        generation = process.known
        assert generation is not None
        world = self.worlds.setdefault(generation.number, World(generation))
        others = [self.processes.get(each) for each in world.ids if each != process.id]
        dead = any(each is None for each in others) or bool(self.across(process, world))
        gave_up = any((generation.number, each) in self.said for each in world.ids)
        late = self.now - process.began > 5.0
        silent = any(each is not None and self.is_silent(each, process) for each in others)
        if dead or gave_up or late or silent or self.random.random() < 0.01:
            self.break_off(process)
            return
        came = [each for each in others if each is not None and each.known is generation]
        if len(came) == len(others) and all(each.doing == "form" or each.id in world.formed for each in came):
            world.formed.add(process.id)
            self.begin_generation(process, world)

    # ---- the engine

    def begin_generation(self, process: Process, world: World) -> None:
        generation = world.generation
        process.world, process.doing = world, "train"
        if generation.is_restart:
            process.has_state, process.step, process.computing = True, 0, False
            process.not_ready, process.facts = frozenset(), ()
            self.records.append(Rewound(member=process.id, step=0, generation=generation.number))
            return
        process.not_ready = frozenset(generation.place_of(each) for each in generation.stateless)
        if process.id in generation.stateless:
            process.has_state, process.step, process.computing = False, generation.step, False
        elif generation.step == process.step + 1:
            assert process.computing, "only who computes it can catch up with a step"
            assert process.is_complete, "only who had all gradients can catch up"
            self.count(process, generation.facts, generation.number - 1)
            process.outcome = Outcome()
        elif process.computing:
            assert generation.step == process.step
            process.is_complete = False
            self.deal(process, generation.done)
        else:
            assert generation.step == process.step

    def deal(self, process: Process, done: Mapping[str, tuple[int, ...]]) -> None:
        assert process.world is not None
        generation = process.world.generation
        places = range(len(generation.members))
        had = {generation.place_of(each): numbers for each, numbers in done.items()}
        dealt = deal(NUM_MICRO_BATCHES, [each for each in places if each not in process.not_ready], had)
        shares = [(*had.get(place, ()), *dealt.get(place, ())) for place in places]
        assert sorted(number for share in shares for number in share) == list(range(NUM_MICRO_BATCHES))
        assert process.world.shares.setdefault(process.step, shares) == shares, "two members have dealt differently"
        process.share = shares[generation.place_of(process.id)]

    def train(self, process: Process) -> None:
        world = process.world
        assert world is not None
        if self.may_break(process, world):
            return
        generation, step = world.generation, process.step
        if not process.computing:
            process.computing, process.done, process.is_complete = True, [], False
            is_first = generation.step == step and not generation.is_restart
            self.deal(process, generation.done if is_first else {})
        elif missing := [each for each in process.share if each not in process.done]:
            assert process.has_state
            process.done.append(missing[0])
        elif not process.is_complete:
            contributed = world.contributed.setdefault(step, set())
            if not self.across(process, world):
                contributed.add(process.id)
            process.is_complete = contributed == set(world.ids)
        else:
            facts = world.facts.setdefault(step, {})
            if process.id not in facts and not self.across(process, world):
                newcomers = self.newcomers(world) if generation.place_of(process.id) == 0 else ()
                facts[process.id] = Facts(
                    step=step,
                    member=process.id,
                    done=tuple(process.done),
                    newcomers=newcomers,
                    is_ready=process.has_state,
                )
            elif len(facts) == len(world.ids):
                self.count(process, tuple(facts[each] for each in world.ids), generation.number)
                if process.outcome.newcomers:
                    process.doing = "barrier"
                if not process.has_state and self.random.random() < 0.3:
                    process.has_state = True  # it has come, and what counted meanwhile was applied
                    self.records += process.queued
                    process.queued.clear()

    def newcomers(self, world: World) -> tuple[str, ...]:
        below = world.generation.number
        return tuple(sorted(name for number, name in self.said if number == below and name not in world.ids))

    def count(self, process: Process, facts: tuple[Facts, ...], number: int) -> None:
        """The step of generation ``number`` counts on this member: each micro-batch of it is in the sum once."""
        assert sorted(number for each in facts for number in each.done) == list(range(NUM_MICRO_BATCHES))
        assert {each.step for each in facts} == {process.step}
        process.facts, process.outcome = facts, decide(facts)
        world = process.world
        if world is not None and set(world.facts.get(process.step, {})) == set(world.ids):  # heard in this world
            process.not_ready = process.outcome.not_ready
        self.write_down(process, facts, number)
        process.step += 1
        process.computing, process.done, process.is_complete = False, [], False
        self.counted_at = self.now

    def write_down(self, process: Process, facts: tuple[Facts, ...], number: int) -> None:
        """As each member does in its ledger."""
        samples = [
            [
                self._order.id_of(self._order.index(*place))
                for place in self._positions.places(process.step, micro_batch)
            ]
            for micro_batch in range(NUM_MICRO_BATCHES)
        ]
        done = {each.member: each.done for each in facts}
        record = Committed(member=process.id, step=process.step, generation=number, done=done, samples=samples)
        (self.records if process.has_state else process.queued).append(record)

    def barrier(self, process: Process) -> None:
        world = process.world
        assert world is not None
        if self.may_break(process, world):
            return
        there = world.at_barrier.setdefault(process.step, set())
        if not self.across(process, world):
            there.add(process.id)
        if there == set(world.ids):
            self.break_off(process)

    def may_break(self, process: Process, world: World) -> bool:
        """Notice that a member is gone or has given the world up, perhaps later than what it has still sent."""
        gone = [each for each in world.ids if each not in self.processes]
        stopped = [
            each for each in world.ids if each in self.processes and self.is_silent(self.processes[each], process)
        ]
        others = [self.processes[each] for each in world.ids if each in self.processes]
        gave_up = [each for each in others if each.known is not world.generation or each.doing == "agree"]
        across = self.across(process, world)
        if not (gone or stopped or gave_up or across) or self.random.random() < 0.6:
            return False
        noticed = [self.random.choice([*gone, *stopped])] if gone or stopped else []
        lost = [LostMember(id=each, cause="PeerDiedError") for each in noticed if each not in across]
        lost += [LostMember(id=each, cause="PeerUnreachableError", is_proven=False) for each in across]
        self.break_off(process, tuple(lost))
        return True

    # ---- promises

    def check(self, generation: Generation) -> None:
        """What a generation must be when it is chosen."""
        assert len(set(generation.members)) == len(generation.members)
        with_state = [self.processes[each.id] for each in generation.members if each.id in self.processes]
        with_state = [each for each in with_state if each.has_state]
        for each in with_state:
            if not generation.is_restart:
                assert generation.step >= each.step, "a step that a survivor has counted would be done again"
        done = [number for numbers in generation.done.values() for number in numbers]
        assert len(set(done)) == len(done), "a micro-batch counts twice"
        assert not set(generation.stateless) & set(generation.sources) or generation.is_restart
        if not generation.is_restart:
            assert generation.sources

    def go_on_to(self, step: int) -> int:
        """Act until all processes of one world have done so many steps. Returns the number of acts."""
        for number in range(MAX_ACTS):
            self.act()
            some = list(self.processes.values())
            same = len({each.world.generation.number for each in some if each.world is not None}) == 1
            if same and all(each.world is not None and each.has_state and each.step >= step for each in some):
                return number
        raise AssertionError(f"no end after {MAX_ACTS} acts: {self.describe()}")

    def next_step_s(self) -> float:
        """Act until a step counts on any member. Returns how much time that took."""
        began = self.now
        for _ in range(MAX_ACTS):
            if self.counted_at > began:
                return self.now - began
            self.act()
        raise AssertionError(f"no step counts after {MAX_ACTS} acts: {self.describe()}")

    @property
    def may_go_on(self) -> bool:
        """Whether there is a process that is neither stopped nor cut off."""
        return any(each.stopped_at is None and not self.is_cut_off(each) for each in self.processes.values())

    def report(self) -> LedgerReport:
        """Return what the ledgers say: whether each sample was committed once, and each global batch was whole."""
        data = Data(global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, num_samples=NUM_SAMPLES)
        return check_records({"all": data}, self.records)

    def describe(self) -> str:
        lines = [f"generation {self.generation}", f"said {self.said}"]
        lines += [
            f"{each.id}: {each.doing} step {each.step} {each.has_state} {each.lost}" for each in self.processes.values()
        ]
        return "\n".join(lines)
