"""Turns the spans of traced requests into those of OpenTelemetry's SDK, with a provider of its own: nothing global."""

from __future__ import annotations

import importlib
import logging
import random
import threading
from collections.abc import Mapping
from typing import Any

from ...extras import install_extra
from ..errors import DeploymentError
from .settings import Tracing
from .spans import Journey, Span, spans_of
from .traceparent import Parent, is_traced, parse_traceparent

logger = logging.getLogger(__name__)

NS = 1e9
FLUSH_S = 3.0
SDK = "opentelemetry.sdk.trace"
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def check_installed(*, exports: bool = True) -> None:
    """Raise DeploymentError if the extra ``tracing`` is not installed. ``exports``: the exporter for a URL too."""
    try:
        for name in (SDK, EXPORTER) if exports else (SDK,):
            importlib.import_module(name)
    except ImportError as error:
        raise DeploymentError(f"traces need the extra 'tracing': {install_extra('tracing')} ({error})") from None


class OpenTelemetryTracer:
    """A thread of the SDK sends spans in batches; what a collector that is away cannot be sent is dropped.

    Raises DeploymentError if the extra ``tracing`` is not installed.
    """

    def __init__(self, settings: Tracing, *, service: str) -> None:
        """``service``: the name under which all spans are filed."""
        check_installed(exports=settings.exporter is None)
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._api: Any = trace
        self._ratio = settings.ratio
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        self._exporter = _exporter(settings)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("multiworld.serving")

    def begin(self, traceparent: str) -> tuple[Parent | None] | None:
        parent = parse_traceparent(traceparent) if traceparent else None
        return (parent,) if is_traced(parent, self._ratio, random.random()) else None

    def finish(self, context: tuple[Parent | None], journey: Journey) -> None:
        try:
            self._finish(context, journey)
        except Exception:  # a trace is not worth an answer
            logger.exception("request %s could not be traced", journey.request_id)

    def _finish(self, context: tuple[Parent | None], journey: Journey) -> None:
        root, below = spans_of(journey)
        whole = self._start(root, self._around(context[0]), self._api.SpanKind.SERVER)
        inside = self._api.set_span_in_context(whole)
        for span in below:
            self._end(self._start(span, inside, self._api.SpanKind.INTERNAL), span)
        self._end(whole, root)

    def close(self) -> None:
        """Send what is left, within a few seconds; blocks."""
        flushing = threading.Thread(target=self._provider.force_flush, daemon=True)  # it knows no time limit
        flushing.start()
        flushing.join(FLUSH_S)
        if flushing.is_alive():
            self._exporter.shutdown()  # else it would try again for ten seconds a batch
        self._provider.shutdown()

    def _around(self, parent: Parent | None) -> Any:
        from opentelemetry.context import Context

        if parent is None:
            return Context()  # and not whatever the program itself traces just now
        api = self._api
        remote = api.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=api.TraceFlags(1))
        return api.set_span_in_context(api.NonRecordingSpan(remote), Context())

    def _start(self, span: Span, context: Any, kind: Any) -> Any:
        attributes: Mapping[str, Any] = span.attributes
        return self._tracer.start_span(
            span.name, context=context, kind=kind, attributes=attributes, start_time=_ns(span.began)
        )

    def _end(self, started: Any, span: Span) -> None:
        for event in span.events:
            started.add_event(event.name, event.attributes, timestamp=_ns(event.at))
        if span.error:
            started.set_status(self._api.Status(self._api.StatusCode.ERROR, span.error))
        started.end(end_time=_ns(span.ended))


def _exporter(settings: Tracing) -> Any:
    if settings.exporter is not None:
        return settings.exporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=settings.traces_url)


def _ns(at: float) -> int:
    return int(at * NS)
