"""The agent of one host: it starts and ends workers as the coordinator orders, and reports what becomes of them."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

from ...process.spawn.fork_server import ForkServer
from ...wire.progress.thread import ProgressThread
from ...world.launcher.launched import Place, job_name
from ...world.launcher.news import Broke, Left, News, Progressed, Trained, TrainingFault, TrainingPipelines
from ...world.launcher.remote_nodes import RemoteNodes
from ..job import actions
from ..job.assignment import Assignment, Membership
from ..job.options import JobOptions
from ..logs.pump import LogPump
from ..rendezvous.endpoint import STATIC_PORT, split_endpoint
from ..torch_services.metrics import JobMetrics
from ..torch_services.timers import OverrunTimer
from .absence import Absence
from .clock import now_us
from .local_worker import LocalWorker, Starter
from .master_store import MasterKeeper, MasterStore
from .shared_port import SharedPort
from .training_news import TrainingNews
from .worker_port import WorkerPort

logger = logging.getLogger(__name__)

LOOKS_PER_LEASE = 4
JUST_NOW_S = 1.0


class Agent:
    """Everything here runs on the progress thread. ``report`` reaches the coordinator, if there is one now.

    What a coordinator may not have heard of before it died is kept, and told again to the next: ``introduction``.
    """

    def __init__(
        self,
        loop: ProgressThread,
        options: JobOptions,
        *,
        token: bytes,
        address: str,
        fork_server: ForkServer,
        pump: LogPump,
        inherited: Mapping[str, str],
        report: Callable[[actions.Report], None],
        metrics: JobMetrics,
        door: Callable[[], SharedPort | None] = lambda: None,
    ) -> None:
        self._loop, self._options, self._pump, self._report = loop, options, pump, report
        self._door, self._metrics = door, metrics
        self._held: dict[int, LocalWorker] = {}  # by local rank; also the last one that ended there
        self._restarted: dict[int, list[float]] = {}
        self._store = ""
        self._masters = MasterKeeper(loop, address, self._serving, self._leads)
        self._port = WorkerPort(loop, token, on_hello=self._greeted, on_news=self._news, on_gone=lambda _: None)
        self._starter = Starter(loop, options, fork_server, pump, self._port.address, inherited)
        self._replaced: set[LocalWorker] = set()  # given up, and still dying while another stands in their place
        self._trainings = TrainingNews(loop, report)
        self._remote: RemoteNodes | None = None  # the last news of it
        self._when_idle: list[Callable[[], None]] = []  # when all that were given up have ended
        self._closed = False
        self._look_every_s = options.lease_s / LOOKS_PER_LEASE
        self._looked_at = time.monotonic()
        self._absence = Absence(lease_s=options.lease_s, now=time.monotonic())
        self._away, self._back_at = 0.0, 0.0  # how long we were, the last time
        loop.call_later(self._look_every_s, self._look)

    # ---- orders

    def obey(self, order: actions.Order) -> None:
        if isinstance(order, actions.Start):
            self._start(order.worker, order.assignment)
        elif isinstance(order, actions.Reassign):
            self._reassign(order.worker, order.assignment)
        elif isinstance(order, Membership):
            self._regroup(order)
        elif isinstance(order, actions.Stop):
            self._stop(order)
        elif isinstance(order, actions.Kill):
            held = self._find(order.worker)
            if held is not None:
                held.kill("as asked")
        elif isinstance(order, actions.OpenMaster):
            self._masters.open(order.generation)
        elif isinstance(order, actions.Die):
            os.kill(os.getpid(), signal.SIGKILL)  # somebody tries what happens then

    def use_store(self, url: str) -> None:
        """Worlds are formed at this store from now on."""
        if url != self._store:
            self._store = url
            for held in self._held.values():
                self._publish(held)

    def overran(self, timer: OverrunTimer) -> None:
        """A process of this host, likely a worker, did not end in time what it had set itself a timer for."""
        held = next((held for held in self._held.values() if held.runs(timer.pid)), None)
        if held is None:
            logger.info("process %d is no worker of this agent, so it is not ended: %s", timer.pid, timer)
        elif timer.signum:
            held.overran(str(timer), timer.signum, self._options.shutdown_s)

    def introduction(self) -> actions.HostReport:
        """Return what a coordinator must know of this host's workers."""
        now = time.monotonic()
        there = {local_rank: held for local_rank, held in self._held.items() if not held.given_up}
        reports = (
            actions.WorkerReport(
                worker=held.id,
                local_rank=local_rank,
                assignment=held.assignment,
                succeeded=held.returncode == 0,
                uses_multiworld=held.uses_multiworld,
                worlds=tuple(sorted(held.worlds)),
                restart_ages_s=tuple(now - at for at in self._restarted.get(local_rank, ())),
                stopping=held.ordered and held.returncode is None,
                ended=held.returncode is not None,
            )
            for local_rank, held in there.items()
        )
        serving = self._masters.current
        master = None if serving is None else actions.Master(serving.generation, serving.address, serving.port)
        ages_s = {held.id: now - held.began_at for held in there.values()}
        return actions.HostReport(workers=tuple(reports), master=master, ages_s=ages_s)

    def repeat(self) -> None:
        """Tell a coordinator what it may not have heard of the workers just introduced."""
        for held in [held for held in self._held.values() if not held.given_up]:
            if held.uses_multiworld:
                self._report(actions.Greeted(worker=held.id))
            for world in held.worlds:
                self._report(actions.InWorld(worker=held.id, world=world, left=False))
            if held.returncode is not None:
                self._report_exit(held)
        self._trainings.repeat()
        if self._remote is not None:
            self._report(actions.RemoteTold(news=self._remote))

    def fence(self, then: Callable[[], None], *, forgets: bool = False) -> None:
        """End all workers at once: others may be started in their places. ``then`` is called when none is left.

        ``forgets``: those that have ended well count no more either.
        """
        for held in self._held.values():
            if held.returncode != 0 or forgets:
                held.given_up = True
                held.kill("the host was cut off from the others")
        self._when_idle.append(then)
        self._check_idle()

    @property
    def held(self) -> list[LocalWorker]:
        """The workers of this host, also those that have ended and were not replaced. From any thread."""
        return list(self._held.values())

    @property
    def running(self) -> list[str]:
        """The ids of the workers that run, or are about to."""
        return [held.id for held in self._held.values() if held.returncode is None and not held.given_up]

    @property
    def pids(self) -> dict[str, int]:
        """The processes of the workers that run."""
        return {
            held.id: held.process.pid
            for held in self._held.values()
            if held.returncode is None and held.process is not None
        }

    @property
    def num_running(self) -> int:
        return sum(held.returncode is None for held in self._held.values())

    def close(self) -> None:
        """Kill what is left. On the progress thread, or after it has stopped."""
        self._closed = True
        for held in (*self._held.values(), *self._replaced):
            held.kill("the agent ends")
        self._port.close()
        self._masters.close()
        self._starter.close()

    # ---- workers

    def _start(self, worker_id: str, assignment: Assignment) -> None:
        before = self._held.get(assignment.local_rank)
        if before is not None:
            self._port.forget(before.id)
            if before.returncode is None:
                self._replaced.add(before)
                before.given_up = True
                before.kill("another is started in its place")
        restarted = self._restarted.setdefault(assignment.local_rank, [])
        del restarted[assignment.restarts :]  # it may have been without ranks meanwhile, and begin anew
        restarted += [time.monotonic()] * (assignment.restarts - len(restarted))
        held = LocalWorker(
            self._loop, worker_id, assignment, on_exit=self._exited, agent_was_away=self._look_at_the_clock
        )
        self._held[assignment.local_rank] = held
        self._publish(held)
        self._starter.start(held)
        self._metrics.worker_started(assignment.restarts)

    def _reassign(self, worker_id: str, assignment: Assignment) -> None:
        held = self._find(worker_id)
        if held is not None:
            held.assign(assignment)
            self._publish(held)

    def _regroup(self, membership: Membership) -> None:
        for held in self._held.values():
            if held.returncode is None and not held.given_up and not held.ordered:
                held.assign(membership.renewed(held.assignment, self._options.role))
                self._publish(held)

    def _stop(self, order: actions.Stop) -> None:
        for held in [each for each in self._held.values() if each.id in order.workers]:
            held.is_quiet = order.quiet
            held.stop(order.signum, order.grace_s)

    def _exited(self, held: LocalWorker) -> None:
        self._port.forget(held.id)
        if not held.given_up:
            self._report_exit(held)
        if held.returncode and not held.ordered:
            self._metrics.worker_failed()
        if held.ordered and held.returncode and self._held.get(held.assignment.local_rank) is held:
            del self._held[held.assignment.local_rank]  # nobody needs to hear of it again
        self._check_idle()

    def _report_exit(self, held: LocalWorker) -> None:
        assert held.returncode is not None
        self._report(
            actions.Exited(
                worker=held.id,
                returncode=held.returncode,
                failure=held.told_failure,
                ordered=held.ordered,
                clock_us=now_us(),
            )
        )

    def _check_idle(self) -> None:
        given_up = {rank: held for rank, held in self._held.items() if held.given_up}
        self._replaced = {held for held in self._replaced if held.returncode is None}
        if self._replaced or any(held.returncode is None for held in given_up.values()):
            return
        for rank in given_up:
            del self._held[rank]
            self._restarted.pop(rank, None)
        waiting, self._when_idle = self._when_idle, []
        for then in waiting:
            then()

    def _find(self, worker_id: str) -> LocalWorker | None:
        return next((held for held in self._held.values() if held.id == worker_id), None)

    def _publish(self, held: LocalWorker) -> None:
        if held.returncode is not None:
            return
        assignment = held.assignment
        place = Place(
            job=job_name(self._options.run_id),
            store=self._store,
            rank=assignment.rank,
            world_size=assignment.world_size,
            local_rank=assignment.local_rank,
            generation=assignment.generation,
            restarts=assignment.restarts,
        )
        self._port.publish(held.id, place)

    def _look(self) -> None:
        """Look whether a worker is stopped, sleeps in the kernel, or makes no progress, for too long."""
        if self._closed:
            return
        self._loop.call_later(self._look_every_s, self._look)
        self._look_at_the_clock()
        now = time.monotonic()
        late_s, self._looked_at = now - self._looked_at - self._look_every_s, now
        for held in list(self._held.values()):
            if late_s > self._look_every_s:
                held.forgive(late_s, now)
            held.look(
                now,
                lease_s=self._options.lease_s,
                progress_s=self._options.progress_timeout_s,
                uninterruptible_s=self._options.uninterruptible_s,
            )
        self._starter.look(now)

    def _look_at_the_clock(self) -> float:
        """Return for how long this agent was away just now, or a moment ago."""
        now = time.monotonic()
        away_s = self._absence.looked(now)
        if away_s:
            self._away, self._back_at = away_s, now
        return self._away if now - self._back_at < JUST_NOW_S else 0.0

    # ---- what workers say

    def _greeted(self, worker_id: str) -> None:
        held = self._find(worker_id)
        if held is not None and not held.uses_multiworld:
            held.uses_multiworld = True
            self._report(actions.Greeted(worker=worker_id))

    def _news(self, worker_id: str, news: News) -> None:
        held = self._find(worker_id)
        if held is None:
            return
        if isinstance(news, Progressed):
            held.progressed_at = time.monotonic()
            return
        if isinstance(news, RemoteNodes):
            self._remote = news
            self._report(actions.RemoteTold(news=news))
            return
        if isinstance(news, Trained | TrainingFault | TrainingPipelines):
            self._trainings.take(news)
            return
        if isinstance(news, Broke):
            return  # a broken world is formed again, by the same members
        left = isinstance(news, Left)
        if left:
            held.worlds.discard(news.name)
        else:
            held.worlds.add(news.name)
        self._report(actions.InWorld(worker=worker_id, world=news.name, left=left))

    # ---- the store of plain programs

    def _leads(self, master: MasterStore) -> bool:
        """Whether workers come to that store through the door at which agents meet."""
        door = self._door()
        if door is None or self._options.rdzv_backend != "static":
            return False
        first = self._options.rdzv_endpoint.partition(",")[0].strip()
        host, port = split_endpoint(first, STATIC_PORT)
        if not port:  # any, so wherever it is
            return False
        master.address, master.port = host, port  # where workers expect it
        return True

    def _serving(self, master: MasterStore) -> None:
        door = self._door()
        if door is not None:
            door.store = master.inside
        self._report(actions.MasterOpened(generation=master.generation, address=master.address, port=master.port))
