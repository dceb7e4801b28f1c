"""Judge a run of the main job: what it measured, what had to hold, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import Checker
    from .faults import PlannedFault
    from .ledger import RequestLedger
    from .options import Options
    from .record import Record


DETECTION_SLACK_S = 1.0
"""How late, after the signal (a killed process) or the lease (a stopped one), a detection fails the run.

The guarantee is 0.25 s for 99 of 100, which a run with a handful of faults cannot judge (``multiworld bench detect``
does), least of all on a machine that is busy with other things.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the final table; ``holds`` is None when nothing is demanded of the value."""

    name: str
    value: str
    holds: bool | None = None


@dataclass(frozen=True, kw_only=True)
class FaultReport:
    """One fault; times in seconds from the signal. ``errors`` maps each neighbor to the error it got.

    Of one that somebody else caused nobody knows when that was: it has no ``detection_limit_s``, and its times begin
    with the first that was heard of it. ``fenced_by``: the signal that ended one that had only been stopped.
    """

    name: str
    detection_s: float | None
    detection_limit_s: float | None
    full_strength_s: float | None
    errors: dict[str, str]
    must_be_fenced: bool
    fenced_by: str

    @property
    def detected_in_time(self) -> bool:
        """Whether the controller and every neighbor knew within the limit."""
        if self.detection_limit_s is None:
            return True
        return self.detection_s is not None and self.detection_s <= self.detection_limit_s

    @property
    def is_planned(self) -> bool:
        """Whether the run itself injected it."""
        return self.detection_limit_s is not None


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Images a second: before the first fault, from each fault to full strength, and after the last one."""

    before: float | None
    during: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ``--json`` writes. Counts of requests are micro-batches; ``error`` says why a run ended early."""

    seed: int
    backend: str
    seconds: float
    images_sent: int
    images_answered: int
    requests_sent: int
    requests_answered: int
    requests_lost: int
    requests_duplicated: int
    requests_replayed: int
    requests_replayed_by_front: int
    second_answers_discarded: int
    accuracy: float
    accuracy_single_process: float
    predictions_different: int
    max_logit_difference: float
    faults: tuple[FaultReport, ...]
    faults_planned: int
    worlds_broken_without_reason: tuple[str, ...]
    throughput: Throughput
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether everything that the main job promises held."""
        return not self.error and all(row.holds is not False for row in self.rows())

    def rows(self) -> list[Row]:
        return [*self._answer_rows(), *self._fault_rows(), *self._throughput_rows()]

    def as_json(self) -> dict[str, Any]:
        """Return plain dicts and lists."""
        return {"holds": self.holds, **asdict(self)}

    def _answer_rows(self) -> Iterator[Row]:
        lost, duplicated, different = self.requests_lost, self.requests_duplicated, self.predictions_different
        yield Row(name="images sent", value=f"{self.images_sent:,} in {self.requests_sent:,} micro-batches")
        answered = self.images_answered
        yield Row(name="images answered", value=f"{answered:,}", holds=answered == self.images_sent and answered > 0)
        yield Row(name="lost", value=str(lost), holds=lost == 0)
        yield Row(name="duplicated", value=str(duplicated), holds=duplicated == 0)
        yield Row(name="replayed on another replica", value=f"{self.requests_replayed:,}")
        yield Row(name="replayed from the start", value=f"{self.requests_replayed_by_front:,}")
        yield Row(name="second answers discarded", value=f"{self.second_answers_discarded:,}")
        same = self.accuracy == self.accuracy_single_process
        yield Row(name="accuracy", value=f"{self.accuracy:.4f}")
        yield Row(name="accuracy in a single process", value=f"{self.accuracy_single_process:.4f}", holds=same)
        yield Row(name="predictions different from it", value=str(different), holds=different == 0)
        yield Row(name="largest difference of a logit", value=f"{self.max_logit_difference:g}")

    def _fault_rows(self) -> Iterator[Row]:
        for fault in self.faults:
            if fault.detection_limit_s is not None:
                limit = f"(limit {fault.detection_limit_s:g} s)"
                detected = f"{_seconds(fault.detection_s)} {limit} as {', '.join(sorted(set(fault.errors.values())))}"
                yield Row(name=f"{fault.name}: detected after", value=detected, holds=fault.detected_in_time)
            recovered = _seconds(fault.full_strength_s)
            holds = fault.full_strength_s is not None
            yield Row(name=f"{fault.name}: full strength after", value=recovered, holds=holds)
            if fault.must_be_fenced:
                value = fault.fenced_by or "it may go on"
                yield Row(name=f"{fault.name}: fenced off by", value=value, holds=bool(fault.fenced_by))
        if self.faults_planned:
            num_injected = sum(fault.is_planned for fault in self.faults)
            all_done = num_injected == self.faults_planned
            yield Row(name="faults injected", value=f"{num_injected} of {self.faults_planned}", holds=all_done)
        broken = self.worlds_broken_without_reason
        value = "; ".join([str(len(broken)), *broken])
        yield Row(name="worlds broken without reason", value=value, holds=not broken)

    def _throughput_rows(self) -> Iterator[Row]:
        has_faults = bool(self.faults_planned or self.faults)
        names = ("before", "during", "after") if has_faults else ("before",)
        for name in names:
            rate: float | None = getattr(self.throughput, name)
            title = f"images/s {name} the faults" if has_faults else "images/s"
            yield Row(name=title, value="-" if rate is None else f"{rate:,.0f}")


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3f} s"


def summarize(
    options: Options,
    plan: Sequence[PlannedFault],
    record: Record,
    ledger: RequestLedger,
    checker: Checker | None,
    load: tuple[float, float] | None,
    requests: Mapping[str, int],
    *,
    error: str,
) -> Report:
    """Return the report.

    ``load`` is when the measured load began and ended, None if the run ended before that; ``requests`` is what the
    deployment counted of them.
    """
    images_of = (lambda request: 0) if checker is None else checker.images_in
    return Report(
        seed=options.seed,
        backend=options.backend,
        seconds=options.seconds,
        images_sent=sum(map(images_of, range(ledger.num_sent))),
        images_answered=0 if checker is None else checker.num_images,
        requests_sent=ledger.num_sent,
        requests_answered=ledger.num_answered,
        requests_lost=ledger.num_open,
        requests_duplicated=ledger.num_duplicated,
        requests_replayed=requests.get("answers_replayed", 0),
        requests_replayed_by_front=requests.get("retried", 0),
        second_answers_discarded=requests.get("repeated", 0),
        accuracy=0.0 if checker is None else checker.accuracy,
        accuracy_single_process=0.0 if checker is None else checker.accuracy_single_process,
        predictions_different=0 if checker is None else checker.num_different,
        max_logit_difference=0.0 if checker is None else checker.max_logit_difference,
        faults=tuple(_fault_reports(options, record)),
        faults_planned=len(plan),
        worlds_broken_without_reason=tuple(record.broken_without_reason),
        throughput=_throughput(record, load),
        error=error,
    )


def _fault_reports(options: Options, record: Record) -> Iterator[FaultReport]:
    for fault in record.faults:
        limit_s = DETECTION_SLACK_S + (options.lease_s if fault.freezes else 0.0)
        yield FaultReport(
            name=fault.name,
            detection_s=fault.detection_s,
            detection_limit_s=limit_s if fault.planned else None,
            full_strength_s=fault.recovery_s,
            errors=dict(fault.errors),
            must_be_fenced=fault.freezes,
            fenced_by=fault.fenced_by,
        )


def _throughput(record: Record, load: tuple[float, float] | None) -> Throughput:
    if load is None:
        return Throughput(before=None, during=None, after=None)
    begin, end = load
    if not record.faults:
        return Throughput(before=record.images_per_second([(begin, end)]), during=None, after=None)
    hurt = [(fault.at, end if fault.full_strength_at is None else fault.full_strength_at) for fault in record.faults]
    return Throughput(
        before=record.images_per_second([(begin, min(at for at, _ in hurt))]),
        during=record.images_per_second(hurt),
        after=record.images_per_second([(max(until for _, until in hurt), end)]),
    )
