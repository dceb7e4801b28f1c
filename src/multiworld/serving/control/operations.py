"""What the owner of a deployment orders, and waits for: the controller's fleet carries it out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from ..errors import DeploymentError
from .fleet.actions import Action, UpdateRolledBack
from .fleet.fleet import Fleet
from .fleet.rollout import check_settle
from .history import History
from .weights_store import WeightsStore

HOPELESS_DEATHS = 3  # of the first replicas of a stage, before any has served


class Operations:
    """On the controller's event loop. An order stands, however long it is waited for.

    ``now`` and ``do``: the controller's clock, and what has it carry out what the fleet decides.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        weights: WeightsStore,
        history: History,
        now: Callable[[], float],
        do: Callable[[list[Action]], None],
    ) -> None:
        self._fleet, self._state, self._weights, self._history = fleet, fleet.state, weights, history
        self._now, self._do = now, do
        self._bringing_weights = asyncio.Lock()
        self._stepped = asyncio.Event()

    def stepped(self) -> None:
        """The fleet has decided something: what is waited for may hold now."""
        self._stepped.set()

    async def scale(
        self, stage: str, replicas: int, *, reason: str = "ordered", force: bool = True, timeout_s: float | None = 60.0
    ) -> None:
        """Have another number of replicas of a stage; returns when they serve, and the others are gone.

        With ``timeout_s=None`` at once. ``force``: also more than the stage, or its hosts, are meant for. Raises
        UnknownStageError, ValueError; DeploymentError when the time is over, though the order stands.
        """
        if not force:
            most, why = self._fleet.most_replicas(stage)
            if replicas > most:
                raise DeploymentError(f"{replicas} replicas are more than {most}, {why}: --force allows it")
        self._do(self._fleet.scale(stage, replicas, self._now(), reason=reason))
        if timeout_s is not None:
            await self.until(lambda: self._is_full(stage), timeout_s)
            self._check_full(stage, timeout_s)

    async def drain(self, replica: str, *, scale_down: bool = False, timeout_s: float | None = 60.0) -> None:
        """Let a replica finish what it holds and end; another takes its place first, unless ``scale_down``.

        Raises UnknownStageError, DeploymentError.
        """
        self._do(self._fleet.drain(replica, self._now(), scale_down=scale_down))
        if timeout_s is not None and not await self.until(lambda: replica not in self._state.members, timeout_s):
            raise DeploymentError(f"{replica} has not ended within {timeout_s:g} s; {self._why_not(replica)}")

    async def update(
        self,
        stage: str,
        weights: Mapping[str, Tensor] | str | Path,
        *,
        parallel: bool = False,
        settle_s: float = 1.0,
        needs_verdict: bool = False,
        timeout_s: float | None = 300.0,
    ) -> int:
        """Bring new weights (a dict of tensors, or a file of ``torch.save``) in, and return the version's number.

        Returns when all replicas have them, or with ``timeout_s=None`` at once. Raises ValueError, UnknownStageError,
        DeploymentError: if they are no weights, if they did not prove themselves (the old ones serve on), or if it is
        not over in time.
        """
        check_settle(settle_s)
        async with self._bringing_weights:  # one at a time: the next version's number is that of its file
            version, plan = self._fleet.next_version(stage), self._state.plans[stage]
            path = await self._weights.put(stage, version, weights, over=plan.weights.get(plan.version))
            now = self._now()
            self._do(
                self._fleet.update(stage, path, now, parallel=parallel, settle_s=settle_s, needs_verdict=needs_verdict)
            )
        if timeout_s is None:
            return version

        def is_over() -> bool:
            if plan.rollout is not None and plan.rollout.version == version:
                return False
            return plan.version != version or all(each.version == version for each in self._state.of_stage(stage))

        if not await self.until(is_over, timeout_s):
            raise DeploymentError(f"the update of stage {stage!r} is not over after {timeout_s:g} s; it goes on")
        for event in reversed(list(self._history)):
            if isinstance(event, UpdateRolledBack) and (event.stage, event.version) == (stage, version):
                traceback = plan.last_error.partition("\n")[2]  # its first line says what the reason says
                raise DeploymentError(
                    f"the update of stage {stage!r} was rolled back: {event.reason}. "
                    f"Version {event.previous} serves on.\n{traceback}".rstrip()
                )
        return version

    def judge(self, stage: str, good: bool, reason: str = "") -> None:
        """Say whether the new replicas of an update that waits for a verdict answer right."""
        self._do(self._fleet.judge(stage, good, reason, self._now()))

    def tune(self, stage: str, **settings: float) -> None:
        """Change ``batch_max_size`` or ``batch_max_wait_s`` of a stage. Raises UnknownStageError, ValueError."""
        self._do(self._fleet.tune(stage, settings, self._now()))

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every stage takes requests. Raises DeploymentError that names what is missing, and why."""
        if not await self.until(lambda: self._state.unready_since is None and not self._state.missing(), timeout_s):
            errors = [plan.last_error for plan in self._state.plans.values() if plan.last_error]
            text = f"not ready within {timeout_s:g} s: {self._state.missing()}"
            raise DeploymentError("\n".join([text, *errors]))

    async def wait_complete(self, timeout_s: float = 60.0) -> None:
        """Wait until every stage has as many replicas as wanted, and all serve.

        Raises DeploymentError, and does not wait on for a stage none of whose first replicas came up.
        """
        plans = self._state.plans
        await self.until(lambda: bool(self._hopeless()) or all(map(self._is_full, plans)), timeout_s)
        stage = self._hopeless()
        if stage:
            raise DeploymentError(
                f"stage {stage!r} does not come up: {plans[stage].crash.deaths} replicas in a row ended before one "
                f"served. {self._why_not(stage)}".rstrip()
            )
        for stage in plans:
            self._check_full(stage, timeout_s)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds after a step; False when the time is over."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            self._stepped.clear()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            try:
                await asyncio.wait_for(self._stepped.wait(), remaining)
            except asyncio.TimeoutError:
                return holds()
        return True

    def _hopeless(self) -> str:
        """Return a stage that no replica serves and that some have died of, or nothing."""
        plans = self._state.plans.items()
        deaths = {stage: plan.crash.deaths for stage, plan in plans if not self._state.num_open(stage)}
        return next((stage for stage, number in deaths.items() if number >= HOPELESS_DEATHS), "")

    def _is_full(self, stage: str) -> bool:
        return self._state.num_open(stage) == self._state.plans[stage].desired == len(self._state.of_stage(stage))

    def _check_full(self, stage: str, timeout_s: float) -> None:
        if not self._is_full(stage):
            num_open, desired = self._state.num_open(stage), self._state.plans[stage].desired
            raise DeploymentError(
                f"stage {stage!r} has {num_open} of {desired} replicas "
                f"after {timeout_s:g} s; the order stands. {self._why_not(stage)}".rstrip()
            )

    def _why_not(self, name: str) -> str:
        plan = self._state.plans.get(name) or self._state.plans.get(name.rpartition("-")[0])
        return "" if plan is None else "; ".join(filter(None, [plan.waits_for, plan.last_error]))
