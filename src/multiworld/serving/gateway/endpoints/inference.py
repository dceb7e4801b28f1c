"""The endpoints that ask the pipeline: ``/infer``, ``/generate`` and KServe's."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from ....observe.event_stream import CONTENT_TYPE
from ...ingress.answers import Asked
from ...ingress.versions import shown
from ..error_body import HttpError
from ..formats.elements import check_finite, num_bytes_of
from ..formats.json_writing import TensorWriter
from ..formats.kserve import HEADER_LENGTH, answer_question, parse_question
from ..formats.registry import Format, accepted_format, decode, encode, reading, sent_format
from ..http.exchange import JSON, Answer, Exchange
from ..http.request_head import RequestHead, read_head
from ..http_metrics import HttpCounts
from ..options import GatewayOptions
from ..served import Payload, Report, Served, can_report, can_stream, signature_of
from .sse import close, first_event, remaining_events

BINARY = "application/octet-stream"
WEIGHTS = "weights"
"""Which version of each stage's weights an answer is of."""
FINISH_REASON = "finish_reason"
"""Why a generation ended."""
HEADERS = {WEIGHTS: "multiworld-weights", FINISH_REASON: "multiworld-finish-reason"}


class Inference:
    """Answers requests with what ``served`` makes of them. ``refused``: how its errors are answered."""

    def __init__(
        self, served: Served, options: GatewayOptions, counts: HttpCounts, *, refused: Callable[[Exception], HttpError]
    ) -> None:
        self._served, self._options, self._counts, self._refused = served, options, counts, refused
        self._signature = signature_of(served)

    async def infer(self, exchange: Exchange) -> Answer:
        """``POST /infer``: one payload in, one out, in the formats that the head says."""
        form = sent_format(exchange.headers)
        answered = accepted_format(exchange.headers, form)
        asked = self._asked(exchange)
        payload = await self._payload(exchange, form)
        result, told = await self._ask(exchange, payload, asked)
        pieces, headers = await encode(answered, result, self._writer(exchange), exchange.budget)
        return Answer(200, answered.content_type, pieces, {**headers, **told})

    async def generate(self, exchange: Exchange) -> Answer:
        """``POST /generate``: one payload in, a series of them out."""
        served = self._served
        if not can_stream(served):
            raise HttpError(501, f"{served.name!r} does not stream its answers; use /infer")
        form, asked = sent_format(exchange.headers), self._asked(exchange)
        payload = await self._payload(exchange, form)
        exchange.begin_watch()
        arguments = self._arguments(asked)
        stream, writers = served.stream(payload, **arguments), functools.partial(self._writer, exchange)
        try:
            first = await first_event(stream, writers)
        except BaseException:
            await close(stream)
            raise
        events = remaining_events(first, stream, writers, self._refused, lambda: _told(arguments))
        return Answer(200, CONTENT_TYPE, headers={"cache-control": "no-cache"}, events=events)

    async def kserve(self, exchange: Exchange, version: str) -> Answer:
        """``POST /v2/models/…/infer``."""
        content_type = exchange.headers.get("content-type", "").partition(";")[0].strip().lower() or JSON
        if content_type not in (JSON, BINARY):
            raise HttpError(415, f"content type {content_type!r:.80} is not served; {JSON} is")
        asked = self._asked(exchange)
        max_json_bytes = self._max_bytes(is_text=True)
        is_text = HEADER_LENGTH not in exchange.headers
        body = await exchange.body.read(max_json_bytes if is_text else self._max_bytes(is_text=False))
        with reading("request of KServe's protocol"):
            question = await parse_question(
                body, exchange.headers, max_json_bytes=max_json_bytes, budget=exchange.budget, signature=self._signature
            )
            await exchange.budget.apart(num_bytes_of(question.payload), self._check, question.payload)
        if question.timeout_s is not None:
            asked = asked.within(question.timeout_s)
        result, told = await self._ask(exchange, question.payload, asked)
        writer = self._writer(exchange)
        pieces, header_length = await answer_question(
            question,
            result,
            writer,
            exchange.budget,
            model=self._served.name,
            version=version,
            signature=self._signature,
        )
        if not header_length:
            return Answer(200, JSON, pieces, told)
        return Answer(200, BINARY, pieces, {HEADER_LENGTH: str(header_length), **told})

    def _asked(self, exchange: Exchange) -> RequestHead:
        asked = read_head(exchange.headers, self._options.default_timeout_s)
        exchange.request_id = asked.request_id
        return asked

    async def _payload(self, exchange: Exchange, form: Format) -> Payload:
        body = await exchange.body.read(self._max_bytes(is_text=form.is_text))
        return await decode(form, body, exchange.headers, exchange.budget, check=self._check)

    def _arguments(self, asked: RequestHead) -> Asked:
        """Return what is asked besides the payload, with a report of what can tell one."""
        arguments = Asked(timeout_s=asked.timeout_s, key=asked.key)
        if asked.is_chosen:
            arguments["request_id"] = asked.request_id
        if can_report(self._served):
            arguments["report"] = Report(traceparent=asked.traceparent, request_id=asked.request_id)
        return arguments

    def _writer(self, exchange: Exchange) -> TensorWriter:
        """Return what writes the next answer, or event: what the one before it took is free again."""
        exchange.budget.close()
        return TensorWriter(exchange.budget, self._options.max_json_answer_bytes)

    def _max_bytes(self, *, is_text: bool) -> int:
        options = self._options
        return min(options.max_body_bytes, options.max_json_bytes) if is_text else options.max_body_bytes

    def _check(self, payload: Payload) -> None:
        if self._options.nan_policy == "refuse":
            check_finite(payload)

    async def _ask(self, exchange: Exchange, payload: Payload, asked: RequestHead) -> tuple[Payload, dict[str, str]]:
        """Return the result, and what the answer's head tells of its way."""
        exchange.begin_watch()
        arguments, began = self._arguments(asked), time.perf_counter()
        try:
            result = await self._served.infer(payload, **arguments)
            return result, {HEADERS[name]: value for name, value in _told(arguments).items()}
        finally:
            self._counts.took(time.perf_counter() - began)


def _told(arguments: Asked) -> dict[str, str]:
    """Return what is known of an answer's way, once it is there."""
    report = arguments.get("report")
    if report is None:
        return {}
    told = {WEIGHTS: shown(report.versions), FINISH_REASON: report.finish_reason}
    return {name: value for name, value in told.items() if value}
