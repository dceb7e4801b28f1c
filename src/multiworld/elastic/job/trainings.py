"""What a coordinator knows of the trainings in its job: how each stands, its loss curve and its faults. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...observe.curve import Curve, CurveMean, CurvePoint
from ...wire.messages import Json
from ...world.launcher.news import Trained, TrainingFault, TrainingNews, TrainingPipelines
from ...world.launcher.pipelines import pipelines_text, sizes_of
from .actions import Record

MAX_TRAININGS = 16
MAX_FAULTS = 50  # of each training
MAX_POINTS = 300
CHANGED, RECOVERED = "training changed", "training recovered"
"""The kinds of events that a fault becomes: when it is known, and when the next step was committed."""


@dataclass(frozen=True, kw_only=True)
class FaultStatus:
    """A change of a training's membership. ``took_s``: None until the next step was committed. ``at``: Unix time."""

    key: str
    kind: str
    step: int
    generation: int
    replicas: int
    text: str
    at: float
    took_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    redone: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """How a training stands. ``at``: when it was told, in Unix time. ``faults``: the last ones, the newest last.

    ``value``: None where nothing is recorded, or it is no finite number (``is_finite``). ``num_faults``: by kind.
    ``pipelines``: None where the training has replicas; else ``replicas`` counts processes.
    """

    name: str
    at: float
    step: int
    total: int | None
    generation: int
    replicas: int
    value_name: str
    value: float | None
    is_finite: bool
    samples_per_s: float | None
    goodput: float
    left_s: float | None
    ended: bool
    reason: str
    num_faults: Mapping[str, int]
    faults: tuple[FaultStatus, ...]
    pipelines: TrainingPipelines | None = None


@dataclass(frozen=True, kw_only=True)
class KnownTraining:
    """All that a coordinator knows of a training, for the next one. ``means`` and ``point``: of its loss curve."""

    name: str
    last: Trained | None
    at: float
    means: tuple[CurveMean, ...]
    point: CurvePoint | None
    faults: tuple[FaultStatus, ...]
    num_faults: Mapping[str, int]
    pipelines: TrainingPipelines | None = None


class _Training:
    def __init__(self) -> None:
        self.last: Trained | None = None
        self.at = 0.0
        self.curve = Curve(MAX_POINTS)
        self.faults: dict[str, FaultStatus] = {}
        self.num_faults: dict[str, int] = {}
        self.pipelines: TrainingPipelines | None = None

    @classmethod
    def resumed(cls, known: KnownTraining) -> _Training:
        training = cls()
        training.last, training.at = known.last, known.at
        training.curve = Curve(MAX_POINTS, means=known.means, last=known.point)
        training.faults = {each.key: each for each in known.faults}
        training.num_faults = dict(known.num_faults)
        training.pipelines = known.pipelines
        return training

    def known(self, name: str) -> KnownTraining:
        return KnownTraining(
            name=name,
            last=self.last,
            at=self.at,
            means=self.curve.means,
            point=self.curve.last,
            faults=tuple(self.faults.values()),
            num_faults=dict(self.num_faults),
            pipelines=self.pipelines,
        )


class Trainings:
    """``is_recorded(kind, key)``: whether the job's events have a fault, told to this coordinator or one before it.

    ``known``: what the coordinator before knew.
    """

    def __init__(
        self,
        is_recorded: Callable[[str, str], bool] = lambda kind, key: False,
        *,
        known: Iterable[KnownTraining] = (),
    ) -> None:
        self._is_recorded = is_recorded
        self._trainings = {each.name: _Training.resumed(each) for each in known}

    @property
    def known(self) -> tuple[KnownTraining, ...]:
        """All that is known, for the next coordinator."""
        return tuple(each.known(name) for name, each in self._trainings.items())

    def take(self, news: TrainingNews, *, at: float, is_repeated: bool = False) -> list[Record]:
        """Take in what a worker said; return what is to be recorded of it. ``at``: now, in Unix time.

        ``is_repeated``: it was told to the coordinator before, and may be older than what is known.
        """
        training = self._trainings.setdefault(news.name, _Training())
        for oldest in list(self._trainings)[:-MAX_TRAININGS]:
            del self._trainings[oldest]
        if isinstance(news, Trained):
            if not is_repeated or training.last is None or news.step > training.last.step:
                self._stands(training, news, at)
            return []
        if isinstance(news, TrainingPipelines):
            if not is_repeated or training.pipelines is None or news.generation > training.pipelines.generation:
                training.pipelines = news
            return []
        return self._changed(training, news, at)

    def status(self) -> tuple[TrainingStatus, ...]:
        """Return how each training stands that has committed a step."""
        return tuple(
            TrainingStatus(
                name=name,
                at=round(each.at, 3),
                step=each.last.step,
                total=each.last.total,
                generation=each.last.generation,
                replicas=each.last.replicas,
                value_name=each.last.value_name,
                value=each.last.value,
                is_finite=each.last.is_finite,
                samples_per_s=each.last.samples_per_s,
                goodput=each.last.goodput,
                left_s=each.last.left_s,
                ended=each.last.ended,
                reason=each.last.reason,
                num_faults=dict(each.num_faults),
                faults=tuple(each.faults.values()),
                pipelines=each.pipelines,
            )
            for name, each in self._trainings.items()
            if each.last is not None
        )

    def curves(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """Return the points of each training's loss curve."""
        return {name: tuple(each.curve.points) for name, each in self._trainings.items()}

    @staticmethod
    def _stands(training: _Training, news: Trained, at: float) -> None:
        training.last, training.at = news, at
        if news.value is not None:
            training.curve.add(news.step, news.value)

    def _changed(self, training: _Training, news: TrainingFault, at: float) -> list[Record]:
        known = training.faults.get(news.key)
        if known is not None and (news.took_s is None or known.took_s is not None):
            return []
        if known is None:
            training.num_faults[news.change] = training.num_faults.get(news.change, 0) + 1
        training.faults[news.key] = FaultStatus(
            key=news.key,
            kind=news.change,
            step=news.step,
            generation=news.generation,
            replicas=news.replicas,
            text=news.text,
            at=round(at if known is None else known.at, 3),
            took_s=news.took_s,
            phases=dict(news.phases),
            redone=news.redone,
        )
        for oldest in list(training.faults)[:-MAX_FAULTS]:
            del training.faults[oldest]
        kind = CHANGED if news.took_s is None else RECOVERED
        key = f"{news.name}:{news.key}"
        return [] if self._is_recorded(kind, key) else [_record(kind, key, news, training.pipelines)]


def _record(kind: str, key: str, news: TrainingFault, pipelines: TrainingPipelines | None) -> Record:
    fields: dict[str, Json] = {
        "key": key,
        "training": news.name,
        "step": news.step,
        "replicas": news.replicas,
        "change": news.change,
    }
    if news.took_s is None:
        text = f"training {news.name}, step {news.step}: {news.text}; {_go_on(news.replicas, pipelines)}"
    else:
        told = ", ".join(f"{name} {1000 * took_s:.0f} ms" for name, took_s in news.phases.items())
        text = f"training {news.name}, step {news.step}: committed {1000 * news.took_s:.0f} ms after {news.text}"
        text += f" ({told})" if told else ""
        fields |= {"took_s": news.took_s, "phases": dict(news.phases), "redone": news.redone}
    return Record(kind=kind, text=text, fields=fields)


def _go_on(replicas: int, pipelines: TrainingPipelines | None) -> str:
    noun = "replica" if pipelines is None else "process"
    if replicas == 1:
        return f"1 {noun} goes on"
    told = f"{replicas} {noun}{'s' if pipelines is None else 'es'} go on"
    return told if pipelines is None else f"{told} as {pipelines_text(sizes_of(pipelines.pipelines))}"
