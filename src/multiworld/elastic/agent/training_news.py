"""An agent's part in what its workers tell of trainings: all faults are passed on at once, of steps only the newest."""

from __future__ import annotations

from collections.abc import Callable

from ...wire.progress.thread import ProgressThread
from ...world.launcher.news import Trained, TrainingFault, TrainingPipelines
from ...world.launcher.news import TrainingNews as News
from ..job.actions import TrainingTold

PERIOD_S = 0.5
MAX_NAMES = 16
MAX_FAULTS = 20  # that a coordinator which takes over is told again


class TrainingNews:
    """Progress thread only. However many workers speak, the coordinator hears of each training twice a second."""

    def __init__(self, loop: ProgressThread, report: Callable[[TrainingTold], None]) -> None:
        self._loop, self._report = loop, report
        self._latest: dict[str, Trained] = {}
        self._due: set[str] = set()  # the trainings that have news since the last report
        self._is_waiting = False
        self._faults: dict[tuple[str, str], TrainingFault] = {}
        self._pipelines: dict[str, TrainingPipelines] = {}

    def take(self, news: News) -> None:
        """A worker of this host says it."""
        if isinstance(news, TrainingFault):
            self._fault(news)
            return
        if isinstance(news, TrainingPipelines):
            self._formed(news)
            return
        if news.name not in self._latest and len(self._latest) >= MAX_NAMES:
            del self._latest[next(iter(self._latest))]
        self._latest[news.name] = news
        self._due.add(news.name)
        if not self._is_waiting:
            self._tell()

    def repeat(self) -> None:
        """Another coordinator may not have heard of it."""
        for formed in self._pipelines.values():
            self._report(TrainingTold(news=formed, is_repeated=True))
        for fault in self._faults.values():
            self._report(TrainingTold(news=fault, is_repeated=True))
        for news in self._latest.values():
            self._report(TrainingTold(news=news, is_repeated=True))

    def _fault(self, fault: TrainingFault) -> None:
        known = self._faults.get((fault.name, fault.key))
        if known == fault or (known is not None and fault.took_s is None):
            return  # several members tell it where the one that speaks for them was lost
        self._faults[fault.name, fault.key] = fault
        for oldest in list(self._faults)[:-MAX_FAULTS]:
            del self._faults[oldest]
        self._report(TrainingTold(news=fault))

    def _formed(self, pipelines: TrainingPipelines) -> None:
        self._pipelines[pipelines.name] = pipelines
        for oldest in list(self._pipelines)[:-MAX_NAMES]:
            del self._pipelines[oldest]
        self._report(TrainingTold(news=pipelines))

    def _tell(self) -> None:
        self._is_waiting = bool(self._due)
        if not self._due:
            return
        due, self._due = self._due, set()
        for name in due:
            if name in self._latest:
                self._report(TrainingTold(news=self._latest[name]))
        self._loop.call_later(PERIOD_S, self._tell)
