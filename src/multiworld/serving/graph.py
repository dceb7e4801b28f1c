"""Which stages a pipeline has, and what flows from which into which: checked once, when it is made. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..model.signature import Signature

INPUT = "input"
"""What a stage names in ``inputs`` to take the request itself."""
GATEWAY = "gateway"
"""Stands for the gateways where a stage is named: they feed the first stages, and take the answers."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,62}")
DEVICE = re.compile(r"(?!gpu)[a-z][a-z0-9_]*(:[0-9]+)?")  # which of those there are, PyTorch knows
MAX_REPLICAS = 1024


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many requests a stage executes at once: concatenated along dimension 0, and split again.

    ``max_size`` counts rows (the sum of the requests' first dimensions), ``max_wait_s`` is how long the first of them
    may wait for others.
    """

    max_size: int = 16
    max_wait_s: float = 0.0

    def __post_init__(self) -> None:
        if not _is_count(self.max_size) or self.max_size < 1:
            raise ValueError(f"max_size must be a number of rows from 1, got {self.max_size!r}")
        if not isinstance(self.max_wait_s, (int, float)) or not 0 <= self.max_wait_s <= 60:
            raise ValueError(f"max_wait_s must lie between 0 and 60 seconds, got {self.max_wait_s!r}")


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    ``work``: an ``nn.Module``, a callable, a class (made in the replica, without arguments; its ``setup`` may be a
    coroutine, its ``__call__`` too), or ``"package.module:attribute"``, which names one of these. It is called with the
    payloads of ``inputs``, in that order: each a tensor, or a list or dict of tensors. ``inputs`` are names of stages,
    or ``"input"`` for the request itself; None: the stage before it in the list, ``"input"`` for the first.

    ``replicas`` run at first; an autoscaler stays between ``min_replicas`` and ``max_replicas`` (default: ``replicas``,
    so it does nothing). ``batch`` None: one request at a time, unless that is tuned while it serves; False: always, as
    its requests cannot be concatenated. ``idempotent=False``: after a loss a request that may have been executed is not
    executed again, and ends in RequestLostError. ``hosts``: the only hosts on which replicas may run; default: any.
    ``limit_s``: a work that has not returned for so long hangs, and its replica is replaced; None: it may take any
    time.

    ``canary``: an example of what the work is called with, a tuple with one payload for each of several ``inputs``. New
    replicas must answer it before they get requests, and new weights must answer it as the old ones do, but for the
    values. None: of new weights a recent request is asked. False: nothing is.

    ``signature``: what the stage takes and gives, for clients that ask: that of a pipeline is what its first stage
    takes and its last one gives. A model that is cut has one, from its example.
    """

    name: str
    work: Any
    inputs: tuple[str, ...] | None = None
    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    batch: Batch | Literal[False] | None = None
    idempotent: bool = True
    device: str = "cpu"
    hosts: tuple[str, ...] = ()
    limit_s: float | None = None
    canary: Any = field(default=None, compare=False, repr=False)
    signature: Signature | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name) or self.name in (INPUT, GATEWAY):
            raise ValueError(
                f"stage name {self.name!r}: expected a letter and up to 62 letters, digits, '_' or '.', "
                f"and not {INPUT!r} or {GATEWAY!r}"
            )
        for name in ("inputs", "hosts"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise TypeError(f"stage {self.name!r}: {name}={value!r} must be a sequence of names, not one string")
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        if not (callable(self.work) or (isinstance(self.work, str) and ":" in self.work)):
            raise TypeError(
                f"stage {self.name!r}: work must be a module, a callable, a class or 'package.module:attribute', "
                f"got {self.work!r}"
            )
        low, high = self.fewest, self.most
        if not all(map(_is_count, (self.replicas, low, high))) or not 0 <= low <= self.replicas <= high <= MAX_REPLICAS:
            raise ValueError(
                f"stage {self.name!r}: expected 0 <= min_replicas <= replicas <= max_replicas <= {MAX_REPLICAS}, got "
                f"min_replicas={low}, replicas={self.replicas}, max_replicas={high}"
            )
        if not isinstance(self.device, str) or not DEVICE.fullmatch(self.device):
            raise ValueError(
                f"stage {self.name!r}: device must be 'cpu', 'cuda', 'cuda:0' or the like, got {self.device!r}"
            )
        if self.limit_s is not None and not (isinstance(self.limit_s, (int, float)) and 0 < self.limit_s < math.inf):
            raise ValueError(f"stage {self.name!r}: limit_s must be a positive number of seconds, got {self.limit_s!r}")
        if self.batch is not None and self.batch is not False and not isinstance(self.batch, Batch):
            raise TypeError(f"stage {self.name!r}: batch must be a Batch, None or False, got {self.batch!r}")
        if self.signature is not None and not isinstance(self.signature, Signature):
            raise TypeError(f"stage {self.name!r}: signature must be a Signature or None, got {self.signature!r}")
        if self.replicas < 1:
            raise ValueError(f"stage {self.name!r}: replicas must be at least 1, got {self.replicas}")

    @property
    def fewest(self) -> int:
        """The lower bound of the autoscaler; 1 of an idle stage that may grow, unless it is given."""
        if self.min_replicas is not None:
            return self.min_replicas
        return self.replicas if self.max_replicas is None else min(1, self.replicas)

    @property
    def most(self) -> int:
        return self.replicas if self.max_replicas is None else self.max_replicas


class Graph:
    """The stages in an order in which each comes after its inputs, and who feeds whom."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        """Raises ValueError for a cycle, an unknown input or a name that comes twice."""
        named = _with_inputs(list(stages))
        if not named:
            raise ValueError("a pipeline needs at least one stage")
        self.stages: dict[str, Stage] = {}
        for stage in named:
            if stage.name in self.stages:
                raise ValueError(f"two stages are called {stage.name!r}")
            self.stages[stage.name] = stage
        for stage in named:
            for source in stage.inputs or ():
                if source != INPUT and source not in self.stages:
                    raise ValueError(
                        f"stage {stage.name!r} takes its input from {source!r}, but there are only "
                        f"{', '.join(map(repr, [INPUT, *self.stages]))}"
                    )
        self.order: tuple[str, ...] = _sorted(self.stages)
        self._downstream = {name: self._takers(name) for name in (INPUT, *self.stages)}
        self.outputs: tuple[str, ...] = tuple(name for name in self.order if not self._downstream[name])
        """The stages whose outputs are the answer: what nobody else takes."""
        self._repeatable: set[str] = {GATEWAY}
        for name in reversed(self.order):
            if self.stages[name].idempotent and self._repeatable.issuperset(self._downstream[name]):
                self._repeatable.add(name)
        if not self._downstream[INPUT]:
            raise ValueError(f"no stage takes {INPUT!r}, the request")

    def __iter__(self) -> Iterator[Stage]:
        return (self.stages[name] for name in self.order)

    def inputs(self, stage: str) -> tuple[str, ...]:
        """Return what a stage takes, in the order of its arguments; ``"input"`` comes from the gateway."""
        return self.stages[stage].inputs or ()

    def upstream(self, stage: str) -> tuple[str, ...]:
        """Return whose processes feed a stage: names of stages, and GATEWAY; for GATEWAY, the outputs."""
        if stage == GATEWAY:
            return self.outputs
        return tuple(dict.fromkeys(GATEWAY if name == INPUT else name for name in self.inputs(stage)))

    def downstream(self, stage: str) -> tuple[str, ...]:
        """Return which stages' processes a stage, or GATEWAY, feeds; GATEWAY for an output."""
        if stage == GATEWAY:
            return self._downstream[INPUT]
        return self._downstream[stage] or (GATEWAY,)

    def is_repeatable(self, stage: str) -> bool:
        """Return whether a request may be sent to a stage again: neither it nor one after it would refuse that."""
        return stage in self._repeatable

    def merges(self, stage: str) -> bool:
        """Return whether a stage waits for more than one message per request."""
        return stage != GATEWAY and len(self.upstream(stage)) > 1

    def _takers(self, source: str) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages.values() if source in (stage.inputs or ()))


def _with_inputs(stages: Sequence[Stage]) -> list[Stage]:
    result: list[Stage] = []
    for stage in stages:
        if not isinstance(stage, Stage):
            raise TypeError(f"expected stages, got {stage!r}")
        if stage.inputs is None:
            stage = replace(stage, inputs=(result[-1].name if result else INPUT,))
        elif not stage.inputs or len(set(stage.inputs)) != len(stage.inputs):
            raise ValueError(f"stage {stage.name!r}: inputs={stage.inputs!r} must be different names, at least one")
        result.append(stage)
    return result


def _sorted(stages: dict[str, Stage]) -> tuple[str, ...]:
    """Return the names in topological order, otherwise as they came (Kahn, 1962)."""
    done: dict[str, None] = {}
    while len(done) < len(stages):
        ready = [
            stage.name
            for stage in stages.values()
            if stage.name not in done and all(name == INPUT or name in done for name in stage.inputs or ())
        ]
        if not ready:
            left = ", ".join(repr(name) for name in stages if name not in done)
            raise ValueError(f"the stages {left} feed each other in a circle; a pipeline has no cycles")
        done.update(dict.fromkeys(ready))
    return tuple(done)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
