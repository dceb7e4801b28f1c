"""Sum up a run of the main job: from the record of what happened to the report that is judged. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .report import DETECTION_SLACK_S, FaultReport, Report, Throughput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .answers import Checker
    from .faults import PlannedFault
    from .ledger import RequestLedger
    from .options import Options
    from .record import Record


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
