"""A training in pipelines without processes: the real engine, membership, agreement and planner, on simulated worlds.

Each process runs a program as a user's is, until it has done all steps or is killed. What it computes is compared with
an undisturbed training (``chain.py``). A breach of a promise raises AssertionError.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from multiworld.errors import MultiworldError, WorldBrokenError
from multiworld.training.data.ledger import check_ledger
from multiworld.training.data.ledger_check import LedgerReport, check_records
from multiworld.training.data.recorder import CommitRecorder
from multiworld.training.engine.decision import Outcome
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.step import Step
from multiworld.training.engine.trainer import Trainer
from multiworld.training.errors import LayersLostError, TooFewReplicasError
from multiworld.training.options import TrainingOptions
from multiworld.training.pipeline.foresight import Foresight
from multiworld.training.pipeline.opened import Opened
from multiworld.training.pipeline.parts import PipelinedParts
from multiworld.training.planning.nodes import Node
from multiworld.training.planning.template import Schedule
from multiworld.training.planning.templates import Templates, make_templates
from multiworld.training.planning.uniform import uniform_profile
from multiworld.training.recovery.membership import Membership, MembershipOptions, OverError
from multiworld.training.recovery.records import Generation, Member
from multiworld.training.recovery.team import Team
from multiworld.training.replica.replica import Replica
from multiworld.training.state import TrainingState
from multiworld.wire.progress.operation import Operation
from multiworld.world.manager import WorldManager

from . import chain
from .clock import taking_turns, worked
from .launcher import Launcher, Link
from .manager import Manager
from .member import SEEN_S
from .network import LEASE_S, Network
from .stores import lease_later
from .turns import Process, Turns
from .worlds import Worlds

T = TypeVar("T")
SMALLEST = 2
"""Processes that the model needs."""

COMPUTE_S = 0.0005
"""Mean time of a layer's forward, of its backward, of loading a micro-batch, and of an optimizer's step."""

NUM_MORE = 2
"""Processes that may come beside those that a training begins with."""

RETURN_S = 0.1
"""Mean time until a process that has ended is started again."""

LOOK_S = 0.1

RECOVERING = ("agree", "form", "move")

SENDING, SEND_S = "multiworld-training-send", 0.02
"""Mean time that a state takes, where layers are moved beside the steps."""

EXPECTED = (LayersLostError, TooFewReplicasError)
"""The errors with which a training may end after failures."""

JOIN_S, GATHER_S = 30.0, 3.0


@functools.cache
def templates_for(num_nodes: int, tolerate: int, schedule: Schedule) -> Templates:
    layer_bytes = 1 << 20
    memory_bytes = 4 * layer_bytes * -(-chain.NUM_LAYERS // SMALLEST)
    profile = uniform_profile(chain.NUM_LAYERS, layer_bytes=layer_bytes)
    node = Node(memory_bytes=memory_bytes)
    templates = make_templates(profile, node, num_nodes=num_nodes, tolerate=tolerate, schedules=[schedule])
    assert templates.smallest == SMALLEST
    return templates


class Program:
    """What one process runs."""

    def __init__(self, training: Training, process: Process, rank: int, number: int) -> None:
        self.process, self.rank = process, rank
        self.error: MultiworldError | None = None
        self.is_over = self.is_leaving = self.is_late = False
        self.generation: Generation | None = None
        self._before_agreement = 0
        self._training = training
        options = training.options
        self.id = f"{rank}.{number}"
        manager = cast(WorldManager, Manager(training.worlds, process, training.launcher.servers.get, self._own_store))
        store = None if training.is_launched else training.launcher.server.url
        self.membership = Membership(
            manager,
            Member(id=self.id, rank=rank, host=process.host),
            MembershipOptions(
                name=options.name,
                rules=training.rules(),
                lease_s=options.lease_s,
                join_timeout_s=options.join_timeout_s,
                store=store,
            ),
        )
        replica = Replica(options.name, rank, 1, _no_world)
        self.team = Team(manager, self.membership, replica, name=options.name, backend="tcp", store=store)
        self.model = chain.layers_of_chain(self._pause)
        changing = frozenset(name for layer in self.model.layers for name in layer.buffers)
        self.parts = PipelinedParts(self.model, changing, exact=options.exact)
        self.optimizer = self.parts.add_optimizer(chain.History)
        loader = chain.loader_of(training.seed)
        self.state = TrainingState()
        self.state.add("loader", loader)
        self.recorder = CommitRecorder(training.folder, self.id, loader)
        opened = Opened(self.parts, training.templates, chain.loss_of, Foresight())
        self.trainer: Trainer = opened.make_trainer(
            self.team,
            self.state,
            chain.SlowLoader(loader, self._pause).as_loader(),
            self,
            self,
            options,
            training.num_nodes,
        )
        self.trainer.ending.num_wanted = lambda: training.size
        self.trainer.services.is_leaving = lambda: self.is_leaving

    def _own_store(self) -> str:
        launcher = self._training.launcher
        return launcher.place_on(self.process.host).store if self._training.is_launched else launcher.server.url

    def run(self) -> None:
        try:
            for step in self.trainer.steps(self._training.num_steps):
                with step:
                    for _ in step:
                        raise AssertionError("a step of pipelines yields no micro-batches")
                    self._pause("optimizer")
                    self.optimizer.step()
                    self.trainer.optimizer_stepped()
            self.is_over = True
        except OverError:
            self.is_late = True
        except LayersLostError as error:
            self._training.check_given_up(self)
            self.error = error
        except MultiworldError as error:
            self.error = error
        self.process.phase = "end"
        self.trainer.close()
        self.team.close(gracefully=self.error is None)
        self.membership.close()
        self.recorder.close()

    def _pause(self, what: str) -> None:
        self.process.phase = what
        self._training.turns.pause(COMPUTE_S)

    # ---- what the engine tells

    def step_committed(self, step: Step, generation: Generation, facts: Sequence[Facts], outcome: Outcome) -> None:
        self._training.committed(self, step, generation, facts)
        self.recorder.commit(step.index, generation.number, facts, num_restarts=self.trainer.num_restarts)

    def step_applied(self, step: Step) -> None:
        self._training.check_state(self)

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None:
        self.process.phase, self._before_agreement = "agree", step

    def recovery_phase(self, name: str, step: int, took_s: float) -> None:
        self.process.phase = {"agree": "form", "form": "move"}.get(name, self.process.phase)

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None:
        self.generation = now
        self._training.check_generation(now)

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None: ...

    def saves(self, step: int) -> None:
        """Once that step was begun there is a checkpoint of an undisturbed training, from which all can begin."""

        def restart(most: int | None) -> None:
            if not self._training.is_saved:
                return
            self._training.check_lost(self)
            self._load(self._training.reference.states[step])
            self.state.step = step

        self.trainer.services.saved_step = lambda: step if self._training.is_saved else -1
        self.trainer.services.restart = restart

    def _load(self, state: Mapping[str, tuple[list[float], list[int]]]) -> None:
        buffers = {name for layer in self.model.layers for name in layer.buffers}
        values = {name: torch.tensor(each, dtype=torch.float64) for name, (each, _) in state.items()}
        self.parts.holdings.put(
            {
                "layers": list(range(chain.NUM_LAYERS)),
                "parameters": {name: each.view(1, -1) for name, each in values.items() if name not in buffers},
                "buffers": {name: each for name, each in values.items() if name in buffers},
                "optimizers": [
                    {
                        name: {"history": torch.tensor([each[:-1]]), "steps": torch.tensor(each[-1:])}
                        for name, (_, each) in state.items()
                        if each
                    }
                ],
            }
        )

    @property
    def holds(self) -> tuple[int, frozenset[int]]:
        """Return the next step of this process's state, and the layers of which it has that state."""
        standing = self.trainer.standing
        step = self._before_agreement if self.process.phase in RECOVERING else self.state.step
        return step, self.parts.holdings.held if standing.has_state else frozenset()

    def held(self) -> dict[str, tuple[list[float], list[int]]]:
        """Return the state of the layers that this process holds."""
        layers = self.parts.holdings.held
        parameters: dict[str, nn.Parameter] = {}
        buffers: dict[str, Tensor] = {}
        for layer in layers:
            parameters.update(self.model.layers[layer].parameters)
            buffers.update(self.model.layers[layer].buffers)
        return chain.state_of(parameters, buffers, self.optimizer)


class Training:
    """``size`` ranks on ``num_hosts`` hosts. ``seed`` says what happens when."""

    def __init__(
        self,
        seed: int,
        size: int,
        *,
        num_steps: int,
        num_hosts: int = 1,
        tolerate: int = 1,
        exact: bool = False,
        saved_step: int | None = None,
        is_launched: bool | None = None,
        prefetches: bool | None = None,
    ) -> None:
        """``saved_step``: of a checkpoint from which all can begin that come later; None: there is none.
        ``is_launched``: by a launcher, which ends the processes of hosts that are cut off; None: if there are several.
        ``prefetches``: newcomers get layers beside the steps, one from each source in a step, and not in a pause; None:
        the seed says so.
        """
        self.is_launched = num_hosts > 1 if is_launched is None else is_launched
        self.seed, self.size, self.num_steps, self.num_hosts = seed, size, num_steps, num_hosts
        self.tolerate, self.saved_step = tolerate, saved_step
        self.turns = Turns(seed)
        self.network = Network(self.turns)
        self.worlds = Worlds(self.turns, self.network)
        self.options = TrainingOptions(
            name="t", exact=exact, tolerate=tolerate, lease_s=LEASE_S, join_timeout_s=JOIN_S, gather_s=GATHER_S
        )
        self.num_nodes = size + NUM_MORE
        schedule = Schedule.ZERO_BUBBLE if seed % 2 else Schedule.ONE_F_ONE_B
        self.templates = templates_for(self.num_nodes, tolerate, schedule)
        self.programs: list[Program] = []
        """Of processes that live or have ended well; those that were killed are not in it."""
        self.num_started = self.num_coming = 0
        self.is_lost = False
        """Some layers are with nobody: the launcher starts nothing again."""
        self.counted_at = 0.0
        """When a step counted on a member last."""
        self.cut_at = 0.0
        self.furthest = 0
        self.reference = chain.reference(seed % 4, num_steps)
        self.seed = seed % 4
        self._folder = tempfile.TemporaryDirectory(prefix="simulated-")
        self.folder = Path(self._folder.name)
        self.launcher = Launcher(self.turns, self.network, num_hosts, self._end_workers)
        self._to_return: list[int] = []
        """Ranks whose processes a launcher has ended, until their hosts return."""
        prefetches = bool(seed % 2) if prefetches is None else prefetches
        # else all moves are small
        more = {"SMALL_BYTES": 0, "SHARE": 0.0, "MAX_MISSED": 4, "run_in_thread": self._late} if prefetches else {}
        self._patches = taking_turns(self.turns, process_link=self._link, new_member=self._new_member, **more)
        self._checked: set[int] = set()

    def __enter__(self) -> Training:
        self._patches.__enter__()
        for rank in range(self.size):
            self.start(rank)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.turns.processes:
            self.turns.kill(process)
        self._patches.__exit__(None, None, None)
        self._folder.cleanup()

    def _late(self, work: Callable[[], T], name: str) -> Operation[T]:
        """Do work in a thread; a state is some time on its way."""

        def later() -> T:
            if name == SENDING:
                self.turns.pause(SEND_S)
            return work()

        return worked(self.turns, later, name)

    def rules(self) -> Any:
        from multiworld.training.recovery.agreement import Rules

        return Rules(min_members=1, expected=self.size, gather_s=GATHER_S, return_s=JOIN_S)

    def restart_failed(self) -> list[str]:
        """Start those again that have ended with an error, as a launcher does. Returns the names of the errors."""
        failed = [each for each in self.programs if each.error is not None and _has_ended(each)]
        for program in failed:
            self.programs.remove(program)
            assert isinstance(program.error, EXPECTED), f"{program.id} ended with {program.error!r}: {self.describe()}"
            self.is_lost |= isinstance(program.error, LayersLostError)
            self.start_later(program.rank)
        return [type(program.error).__name__ for program in failed]

    def start_later(self, rank: int) -> None:
        self.num_coming += 1

        def come() -> None:
            self.num_coming -= 1
            if not self.is_lost:
                self.start(rank)

        self.turns.after(self.turns.some(RETURN_S), come)

    def _new_member(self, rank: int, host: str) -> Member:
        """Return a process that comes back as another member, with an id that follows from the seed."""
        self.num_started += 1
        return Member(id=f"{rank}.{self.num_started}", rank=rank, host=host)

    def _link(self) -> Link | None:
        """Return the link to the launcher; a training on one host has none, so that both cases are there."""
        process = self.turns.process
        return Link(self.launcher, process) if process is not None and self.is_launched else None

    @property
    def has_all_hosts(self) -> bool:
        """Whether there are several, and all of them reach each other and have a part in the job."""
        launcher = self.launcher
        return self.is_launched and not (self.network.is_cut or launcher.out or launcher.is_losing)

    def _end_workers(self, hosts: frozenset[str]) -> None:
        for program in self.living:
            if program.process.host in hosts:
                self._to_return.append(program.rank)
                self.kill(program)

    @property
    def is_saved(self) -> bool:
        return self.saved_step is not None and self.furthest > self.saved_step

    # ---- what happens to processes

    @property
    def living(self) -> list[Program]:
        """Those that have not ended yet."""
        return [each for each in self.programs if each.process.is_alive and not _has_ended(each)]

    def start(self, rank: int) -> None:
        self.num_started += 1
        number = self.num_started

        self.num_coming += 1

        def run(process: Process) -> None:
            self.num_coming -= 1
            program = Program(self, process, rank, number)
            self.programs.append(program)
            if self.saved_step is not None:
                program.saves(self.saved_step)
            program.run()

        self.turns.start(f"{rank}.{number}", f"host{rank % self.num_hosts}", run)

    def kill(self, program: Program) -> None:
        self.turns.kill(program.process)
        self.programs.remove(program)
        program.recorder.close()
        self.worlds.died(program.process)

    def lose_host(self, host: str) -> None:
        """Its agent dies with all that it has started."""
        self._end_workers(frozenset({host}))
        for server in self.launcher.servers.values():
            if server.process.host == host:
                self.turns.kill(server.process)
        self.launcher.lose(frozenset({host}), self.turns.some(SEEN_S))

    def run_while(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            assert self.turns.advance(), f"all wait for ever: {self.describe()}"

    def cut(self, apart: frozenset[str]) -> None:
        """Part these hosts from the others."""
        self.cut_at = self.turns.now
        if self.is_launched:
            self.launcher.cut(apart)
        else:
            self.network.cut(apart)
        self.worlds.cut()
        lease_later(self.turns, self.launcher.server)

    def heal(self) -> None:
        """All hosts are there, and reach each other."""
        self.network.heal()
        self.worlds.healed()
        self._return_hosts()

    def _return_hosts(self) -> None:
        if self.launcher.is_losing:
            self.turns.after(LOOK_S, self._return_hosts)
            return
        self.launcher.return_all()
        to_return, self._to_return = self._to_return, []
        for rank in to_return:
            self.start(rank)

    # ---- promises

    def committed(self, program: Program, step: Step, generation: Generation, facts: Sequence[Facts]) -> None:
        expected = self.reference.losses[step.index]
        assert step.values["loss"] == expected, (
            f"{program.id}: step {step.index} has the loss {step.values['loss']}, and not {expected}"
        )
        self.furthest = max(self.furthest, step.index + 1)
        self.counted_at = self.turns.now

    def check_state(self, program: Program) -> None:
        """Each layer has had each step once, with the gradients of each sample once."""
        step = program.state.step
        expected = self.reference.states[step]
        for name, state in program.held().items():
            assert state == expected[name], (
                f"{program.id}: {name} before step {step} is {state}, and not {expected[name]}"
            )

    def check_generation(self, generation: Generation) -> None:
        if generation.number in self._checked:
            return
        self._checked.add(generation.number)
        assignment, num_members = generation.coming or generation.assignment, len(generation.members)
        assert assignment is not None
        owners = [set(assignment.owners(layer)) for layer in range(chain.NUM_LAYERS)]
        least = min(map(len, owners))
        wanted = min(self.tolerate + 1, num_members // SMALLEST)
        assert least >= wanted, f"{num_members} members, and a layer has {least} owners: {assignment}"
        assert not assignment.idle, f"idle: {assignment}"
        at_work = {member for each in assignment.pipelines for member in each.members if member}  # none is rerouted
        assert at_work == {each.id for each in generation.members}, f"not all work: {assignment}"
        assert sum(each.num_micro_batches for each in assignment.pipelines) == chain.NUM_MICRO_BATCHES

    def check_given_up(self, by: Program) -> None:
        """A process has ended as some layer is with nobody: steps would be lost, and there is no checkpoint."""
        assert self.furthest, f"{by.id} gave up, and no step was committed: {self.describe()}"
        assert not self.is_saved, f"{by.id} gave up though there is a checkpoint: {self.describe()}"
        self.check_lost(by)

    def check_lost(self, by: Program) -> None:
        """Steps are given up: no processes had all layers together before one step, but for those that were away for
        longer than they are waited for.
        """
        held: dict[int, set[int]] = {}
        for program in self.programs:
            if program.process.is_alive and not program.is_over and not self._is_long_away(program, by):
                step, layers = program.holds
                held.setdefault(step, set()).update(layers)
        whole = [step for step, layers in held.items() if len(layers) == chain.NUM_LAYERS]
        assert not whole, f"{by.id} gave steps up though all layers are there before step {whole}: {self.describe()}"

    def _is_long_away(self, program: Program, of: Program) -> bool:
        """No process stands still for as long as it is waited for where there is no checkpoint."""
        if self.is_saved and program.process.is_stopped:
            return True
        waited_s = GATHER_S if self.is_saved else JOIN_S
        return not self.network.reaches(program.process, of.process) and self.turns.now - self.cut_at >= waited_s

    def check_ended(self) -> None:
        """Nothing is left open by those that have ended well."""
        open_worlds = [each for each in self.worlds.standing if each.process.is_alive]
        assert not open_worlds, f"left open: {open_worlds}"
        for program in self.programs:
            if program.is_over and not program.trainer.standing.has_left:
                assert program.state.step == self.num_steps
                self.check_state(program)

    def report(self) -> LedgerReport:
        return check_ledger(self.folder) if self.furthest else check_records({}, ())

    def describe(self) -> str:
        lines = [
            f"{each.id}: {each.process.phase} step {each.state.step} of generation "
            f"{None if each.generation is None else each.generation.number}, holds {each.holds}, {each.error!r}"
            for each in self.programs
        ]
        return "\n".join([f"at {self.turns.now:.3f} s", *lines])


def _has_ended(program: Program) -> bool:
    return not program.process.threads


def _no_world(name: str, rank: int, size: int) -> Any:
    raise AssertionError("a process is a replica by itself")
