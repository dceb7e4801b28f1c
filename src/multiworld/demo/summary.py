"""Sum up a run of the main job: from the record of what happened to the report that is judged. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .report import DETECTION_SLACK_S, FaultReport, Report, Throughput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .answers import Checker
    from .faults import PlannedFault
    from .ledger import RequestLedger
    from .options import Options
    from .record import Record

__all__ = ["summarize"]


def summarize(
    options: Options,
    plan: Sequence[PlannedFault],
    record: Record,
    ledger: RequestLedger,
    checker: Checker | None,
    load: tuple[float, float] | None,
    *,
    error: str,
) -> Report:
    """Return the report. ``load`` is when the measured load began and ended, None if the run ended before that."""
    images_of = (lambda request: 0) if checker is None else checker.images_in
    return Report(
        seed=options.seed,
        backend=options.backend,
        seconds=options.seconds,
        images_sent=sum(map(images_of, range(ledger.num_sent))),
        images_answered=0 if checker is None else checker.num_images,
        requests_sent=ledger.num_sent,
        requests_answered=len(record.deliveries),
        requests_lost=ledger.num_sent - len(record.deliveries),
        requests_duplicated=sum(count - 1 for count in record.deliveries.values()),
        requests_replayed=record.num_replayed,
        requests_replayed_by_front=ledger.num_replayed,
        second_answers_discarded=ledger.num_discarded,
        accuracy=0.0 if checker is None else checker.accuracy,
        accuracy_single_process=0.0 if checker is None else checker.accuracy_single_process,
        predictions_different=0 if checker is None else checker.num_different,
        max_logit_difference=0.0 if checker is None else checker.max_logit_difference,
        faults=tuple(_fault_reports(options, plan, record)),
        faults_planned=len(plan),
        worlds_broken_without_reason=tuple(
            f"{broken.process}: {broken.world} (generation {broken.generation}): {broken.error}"
            for broken in record.broken_without_reason
        ),
        throughput=_throughput(record, load),
        error=error,
    )


def _fault_reports(options: Options, plan: Sequence[PlannedFault], record: Record) -> Iterator[FaultReport]:
    plans = iter(plan)  # a run that ended early injected fewer
    for fault in record.faults:
        planned = next(plans) if fault.planned else None
        freezes = planned is not None and planned.kind == "freeze"
        limit_s = DETECTION_SLACK_S + (options.lease_s if freezes else 0.0)
        yield FaultReport(
            name=fault.kind,
            detection_s=fault.detection_s,
            detection_limit_s=None if planned is None else limit_s,
            full_strength_s=fault.recovery_s,
            errors=dict(fault.errors),
            must_be_fenced=freezes,
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
