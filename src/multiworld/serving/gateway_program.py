"""The process of one gateway: HTTP on one side, the pipeline's worlds on the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..channel.base import Payload
from ..model.signature import Signature
from ..observe.prometheus import to_json
from ..wire.endpoints.bracketed import bracketed
from ..wire.endpoints.token import weakness_is_told
from ..wire.messages import Json
from ..world.manager import WorldManager
from .blueprint import Blueprint
from .errors import DeploymentError
from .gateway import Gateway, GatewayOptions, Metric, Served
from .gateway.ending import Ending
from .gateway.fleet_metrics import FleetMetrics
from .generation import Generator
from .ingress.admission import Admission
from .ingress.answers import Asked
from .ingress.ingress import Ingress
from .ingress.metrics import request_metrics
from .member.arguments import MemberArguments
from .member.control_line import ControlLine
from .member.exit_status import IN_VAIN
from .member.files import MemberFiles
from .member.member import GatewayMember, place_of
from .page import PREFIX, ControllerSource, PageApp, Recorder
from .tracing import Tracing

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .tracing.exporter import OpenTelemetryTracer

logger = logging.getLogger(__name__)

LAST_WORDS_S = 1.0
STOP_S = 7.0  # after 10 the process is killed, and what is interrupted is to be answered before
READY_POLL_S = 0.1


def main(arguments: Mapping[str, Json]) -> None:
    """Run until told to leave, or SIGTERM.

    ``arguments``: of ``GatewayArguments``. Raises MessageError for others. Ends with the status IN_VAIN where what
    traces need is not installed.
    """
    given = GatewayArguments.of(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if given.tracing is not None:
        _check_traces(given.member)
    torch.set_grad_enabled(False)
    weakness_is_told(given.token)  # to the one that chose it
    files = MemberFiles(Path(given.folder), given.controller, given.token)
    asyncio.run(_run(given, files.blueprint()))


@dataclass(frozen=True, kw_only=True)
class TraceArguments:
    """The fields of ``Tracing`` that another process can be told."""

    url: str
    ratio: float


@dataclass(frozen=True, kw_only=True)
class GatewayArguments(MemberArguments):
    http: GatewayOptions
    tracing: TraceArguments | None = None


class GatewayService:
    """What the HTTP side sees of the pipeline."""

    reports = True

    def __init__(self, name: str, member: GatewayMember, signature: Signature | None) -> None:
        self._name, self._member, self._ingress = name, member, member.ingress
        self.signature = signature

    @property
    def name(self) -> str:
        return self._name

    async def infer(self, payload: Payload, **asked: Unpack[Asked]) -> Payload:
        return await self._ingress.infer(payload, **asked)

    def readiness(self) -> tuple[bool, str]:
        """What the controller said last, unless what is seen from here is worse."""
        stages = self._ingress.node.place.graph.stages
        for stage, in_flight in self._ingress.node.in_flight.items():
            if not in_flight.num_live and stages[stage].fewest:  # else it may sleep: a request wakes it
                return False, f"stage {stage!r} has no replica that this gateway reaches"
        return self._member.ready, self._member.why

    def status(self) -> Mapping[str, object]:
        return {
            "name": self._name,
            "gateway": self._ingress.member,
            "requests": vars(self._ingress.statistics()),
            "stages": {stage: asdict(counts) for stage, counts in self._ingress.node.statistics().items()},
        }

    def metrics(self) -> Mapping[str, Metric | float]:
        """Counts and latencies of this gateway's requests."""
        return request_metrics(self._ingress.statistics())


class _LastWords:
    """Says how many open requests the end of a gateway waits for, and what has become of them."""

    def __init__(self, http: Gateway) -> None:
        self._http = http
        self._ending: Ending | None = None

    def begin(self) -> None:
        """Idempotent: a gateway may be told to end after it was told to drain."""
        if self._ending is None:
            self._ending = self._http.ending()
            logger.warning("ending: %s", self._ending.beginning())

    def end(self) -> None:
        said = "" if self._ending is None else self._ending.end()
        if said:
            logger.warning("%s", said)


def _check_traces(member: str) -> None:
    from .tracing.exporter import check_installed  # an optional dependency

    try:
        check_installed()
    except DeploymentError as error:
        logger.error("%s: %s", member, error)
        raise SystemExit(IN_VAIN) from None


async def _run(given: GatewayArguments, blueprint: Blueprint) -> None:
    manager = WorldManager(job=given.job, token=given.token, lease_s=given.lease_s, host=given.host)
    options = blueprint.options
    async with manager:
        policy, backend = options["policy"], options.get("backend", "auto")
        place = place_of(given.member, blueprint.graph, given.store, policy, backend)
        ingress = Ingress(
            manager, place, admission=Admission(**options.get("admission", {})), default_timeout_s=options["timeout_s"]
        )
        tracer = _tracer(given.tracing, blueprint.name)
        ingress.tracer, ingress.pipeline = tracer, blueprint.name
        member = GatewayMember(manager, place, ingress, host=given.host or "")
        line = ControlLine(manager, place.member, place.store, hello=member.hello, on_order=member.obey)
        member.line = line
        running = asyncio.ensure_future(line.run())
        recorder = Recorder(ControllerSource(given.controller, given.token))
        page = PageApp(recorder, token=given.token, sites=given.http.site_rule())
        signature = options.get("signature")
        service: Served = GatewayService(
            blueprint.name, member, None if signature is None else Signature.from_json(signature)
        )
        generation = options.get("generation")
        generator = None if generation is None else Generator(service, **generation)
        if generator is not None:
            member.drain_first = generator.drain
        scraped = ControllerSource(given.controller, given.token)  # one question at a time on each
        fleet = FleetMetrics(place.member, scraped.gateway_metrics)
        http = Gateway(generator or service, given.http, mounts={PREFIX: page}, gather=fleet.gather)
        member.metrics = lambda: to_json(http.families())
        last_words = _LastWords(http)
        member.on_ending = last_words.begin
        recorder.start()
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        announcing = asyncio.ensure_future(_announce(blueprint.name, member, await http.start()))
        try:
            await _first(stopping.wait(), member.left.wait())
            last_words.begin()
            await recorder.aclose()  # whoever follows the page would be waited for
            await http.stop(STOP_S)
            last_words.end()
            if generator is not None:
                await generator.aclose()
            await line.flush(LAST_WORDS_S)
        finally:
            for task in (announcing, running):
                task.cancel()
            await recorder.aclose()
            scraped.close()
            member.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await ingress.aclose()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)


def _tracer(chosen: TraceArguments | None, service: str) -> OpenTelemetryTracer | None:
    if chosen is None:
        return None
    from .tracing.exporter import OpenTelemetryTracer  # an optional dependency

    return OpenTelemetryTracer(Tracing(url=chosen.url, ratio=chosen.ratio), service=service)


async def _first(*work: Any) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _announce(name: str, member: GatewayMember, address: tuple[str, int]) -> None:
    """Say once where the pipeline answers, when it does."""
    while not member.ready:  # noqa: ASYNC110 - told a moment later does no harm
        await asyncio.sleep(READY_POLL_S)
    logger.warning(
        "%s answers at http://%s:%d (how to ask: /docs, how it stands: /page)", name, bracketed(address[0]), address[1]
    )
