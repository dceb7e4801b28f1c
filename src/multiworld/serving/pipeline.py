"""A pipeline as a user describes it, and how it is brought up from a user's own process."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..channel.base import Payload
from ..model.signature import Signature
from ..model.user_main import is_replaying_main
from ..store.base import StoreURL
from ..wire.endpoints.token import check_token, warn_of_weakness
from ..world.liveness import DEFAULT_LEASE_S, check_lease
from ..world.manager import WorldManager
from .blueprint import Blueprint, PipelineOptions
from .config import NAME, PipelineFile
from .control.controller import Controller
from .control.lines import AttachedLine
from .control.operations import Operations
from .control.requests import answer
from .control.scaling import ScalingPolicy
from .control.spec import DeploymentSpec
from .deployment import Deployment
from .errors import DeploymentError
from .flow.routing import make_policy
from .graces import STOP_S
from .graph import GATEWAY, Graph, Stage
from .hosts.owner.kept_host import KeptHost
from .hosts.owner.start import HostHandle, start_host
from .ingress.admission import Admission
from .ingress.ingress import Ingress
from .locked_folder import works_folder
from .member.member import GatewayMember, place_of
from .tracing import Tracing
from .tracing.tracer import Tracer
from .work_signature import signature_of

if TYPE_CHECKING:
    from .generation.loop import GenerationOptions

READY_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Several hosts: this one, unless ``local`` is False, and those whose host processes dial ``address``.

    ``address``: numeric, at which the controller and the store of the worlds listen; it must be one that the others
    reach, and port 0 picks a free one. ``token``: what all prove, long and random; None: one that is drawn, which is of
    use on one host only. ``num_hosts``: so many are waited for before replicas are placed. On another host
    ``python -m multiworld.serving.hosts ADDRESS:PORT`` joins, with the token in ``MULTIWORLD_TOKEN``.
    """

    address: tuple[str, int] = ("127.0.0.1", 0)
    token: str | None = None
    num_hosts: int = 1
    local: bool = True

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token, "Cluster(token=)")
            warn_of_weakness(self.token, "Cluster(token=)")


class Pipeline:
    """Stages, and how requests move between them. Immutable: it may be deployed any number of times.

    ``policy``: how a replica is chosen (``shortest-queue``, ``round-robin``, ``random``, ``power-of-two``,
    ``sticky``). ``lease_s``: how long a silent process is waited for. ``autoscaling``: how the number of replicas
    follows the load, within each stage's bounds; None: it does not. ``preload``: modules that the host process imports
    before it starts replicas. ``generation``: the stages keep state per sequence, and ``multiworld serve`` answers
    through a ``generation.Generator`` with these arguments. ``backend``: the channel of the edges' worlds.

    Raises ValueError or TypeError for what cannot be a pipeline.
    """

    def __init__(
        self,
        stages: Iterable[Stage],
        *,
        name: str = "pipeline",
        policy: str = "shortest-queue",
        lease_s: float = DEFAULT_LEASE_S,
        timeout_s: float | None = 60.0,
        admission: Admission | None = None,
        autoscaling: ScalingPolicy | None = None,
        preload: Sequence[str] = (),
        generation: GenerationOptions | None = None,
        backend: str = "auto",
    ) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"a pipeline's name has up to 63 letters, digits, '_', '.' and '-' only, got {name!r}")
        self.graph = Graph(stages)
        make_policy(policy, lambda _: 0)
        check_lease(lease_s)
        self.name, self.policy, self.lease_s, self.timeout_s = name, policy, lease_s, timeout_s
        self.admission = Admission() if admission is None else admission
        self.autoscaling, self.preload, self.backend = autoscaling, tuple(preload), backend
        if generation is not None and policy != "sticky":
            raise ValueError(f'a pipeline that generates needs policy="sticky", got {policy!r}')
        self.generation: GenerationOptions | None = None if generation is None else {**generation}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {' '.join(self.graph.order)}>"

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(self.graph)

    @property
    def signature(self) -> Signature | None:
        """What it takes and gives, as far as its stages say or show; None: nothing is known."""
        return signature_of(self.graph)

    @classmethod
    def from_file(cls, described: PipelineFile) -> Pipeline:
        """Return the pipeline that a file describes; a model that is to be cut is cut now."""
        admission = Admission() if described.max_inflight is None else Admission(max_open=described.max_inflight)
        return cls(
            described.build(),
            name=described.name,
            policy=described.policy,
            lease_s=described.lease_s,
            admission=admission,
            autoscaling=described.autoscaling,
            preload=described.preload,
        )

    @classmethod
    def from_module(
        cls, module: nn.Module, example: Payload, num_stages: int, *, name: str = "pipeline", **options: Any
    ) -> Pipeline:
        """Cut a model into stages of equal cost, as measured with ``example``, and return them as a pipeline.

        The model stays as it is; what is served is a copy in evaluation mode. ``options``: as of ``Pipeline``. Raises
        ValueError with the reason if it cannot be cut so often, or cannot be served in parts; TypeError for what is no
        module, or an example that it cannot take.
        """
        from .cutting import stages_of

        return cls(stages_of(module, example, num_stages), name=name, **options)

    def altered(
        self, *, stages: Iterable[Stage] | None = None, name: str | None = None, lease_s: float | None = None
    ) -> Pipeline:
        """Return the same with other stages, under another name, or with another lease."""
        return Pipeline(
            self.stages if stages is None else stages,
            name=self.name if name is None else name,
            policy=self.policy,
            lease_s=self.lease_s if lease_s is None else lease_s,
            timeout_s=self.timeout_s,
            admission=self.admission,
            autoscaling=self.autoscaling,
            preload=self.preload,
            generation=self.generation,
            backend=self.backend,
        )

    def blueprint(self, *, in_main: bool = True) -> Blueprint:
        """Return what the processes of a deployment need to know. ``in_main``: works may be of ``__main__``."""
        signature = self.signature
        options: PipelineOptions = {
            "signature": None if signature is None else signature.to_json(),
            "policy": self.policy,
            "backend": self.backend,
            "timeout_s": self.timeout_s,
            "admission": asdict(self.admission),
            "generation": self.generation,
        }
        return Blueprint.of(self.name, self.stages, options, in_main=in_main)

    @asynccontextmanager
    async def deploy(
        self, cluster: Cluster | None = None, *, ready_s: float = READY_S, tracing: Tracing | None = None
    ) -> AsyncIterator[Deployment]:
        """Bring the pipeline up and take it down at the end of the block; everything ends with this process too.

        ``tracing``: where the spans of traced requests go; None: nothing is traced.

        Under ``if __name__ == "__main__":`` in a script: replicas import it to find the stages' works. Raises
        DeploymentError if it is not ready within ``ready_s``.
        """
        if is_replaying_main():
            raise DeploymentError(
                "the script that deploys a pipeline is imported by the replicas, to find the stages' works: "
                "deploy under 'if __name__ == \"__main__\":'"
            )
        cluster = Cluster() if cluster is None else cluster
        with works_folder() as folder:
            await asyncio.to_thread(self.blueprint().write, folder)
            spec, lease_s = self._spec(cluster, folder), self.lease_s
            async with (
                WorldManager(job=spec.job, token=spec.token, lease_s=lease_s, host=cluster.address[0]) as manager,
                self._traced(tracing) as tracer,
                self._brought_up(spec, manager, cluster, ready_s, tracer) as deployment,
            ):
                yield deployment

    @asynccontextmanager
    async def _brought_up(
        self, spec: DeploymentSpec, manager: WorldManager, cluster: Cluster, ready_s: float, tracer: Tracer | None
    ) -> AsyncIterator[Deployment]:
        controller = Controller(spec, manager=manager, answer=answer, keeps_state=False)
        await controller.start()
        host: KeptHost | None = None
        try:
            async with self._ingress(manager, controller, cluster) as ingress:
                ingress.tracer, ingress.pipeline = tracer, self.name
                try:
                    if cluster.local:
                        host = KeptHost(
                            partial(
                                start_host,
                                controller.address,
                                spec.token,
                                own_address=cluster.address[0],
                                preload=self.preload,
                            )
                        )
                        await host.handle.wait_ready(ready_s)
                    await _wait_complete(controller.operations, None if host is None else host.handle, ready_s)
                    if host is not None:
                        host.keep()
                    yield Deployment(self.name, controller, ingress, self.signature)
                finally:
                    if host is not None:
                        host.release()
                    await controller.stop(STOP_S)
        finally:
            await controller.aclose()
            if host is not None:
                host.abort()

    @asynccontextmanager
    async def _traced(self, tracing: Tracing | None) -> AsyncIterator[Tracer | None]:
        if tracing is None:
            yield None
            return
        from .tracing.exporter import OpenTelemetryTracer  # an optional dependency

        tracer = OpenTelemetryTracer(tracing, service=self.name)
        try:
            yield tracer
        finally:
            await asyncio.to_thread(tracer.close)

    def _spec(self, cluster: Cluster, folder: Path) -> DeploymentSpec:
        return DeploymentSpec(
            name=self.name,
            job=f"serving-{os.getpid()}-{secrets.token_hex(4)}",
            token=secrets.token_hex(16) if cluster.token is None else cluster.token,
            folder=folder,
            graph=self.graph,
            store=str(StoreURL("tcp", cluster.address[0], 0)),
            address=cluster.address,
            lease_s=self.lease_s,
            hosts=cluster.num_hosts,
            scaling=self.autoscaling,
            backend=self.backend,
        )

    @asynccontextmanager
    async def _ingress(self, manager: WorldManager, controller: Controller, cluster: Cluster) -> AsyncIterator[Ingress]:
        place = place_of(f"{GATEWAY}-1", self.graph, controller.store, self.policy, self.backend)
        ingress = Ingress(manager, place, admission=self.admission, default_timeout_s=self.timeout_s)
        member = GatewayMember(manager, place, ingress, host=cluster.address[0])
        line = controller.attach(place.member, member.obey)
        member.line = line
        line.tell(member.hello())
        parting = asyncio.create_task(_part(member, line))
        try:
            yield ingress
        finally:
            parting.cancel()
            member.stop()
            await ingress.aclose()


async def _wait_complete(operations: Operations, host: HostHandle | None, ready_s: float) -> None:
    """Wait for all replicas, and not in vain: without a host process of ours, none comes."""
    waiting = asyncio.ensure_future(operations.wait_complete(ready_s))
    tasks = [waiting] if host is None else [waiting, asyncio.ensure_future(host.wait_ended())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if host is not None and not waiting.done():
            reason = f"the host process {host.pid} ended with {host.returncode} before all replicas were up"
            raise DeploymentError(reason)
        await waiting
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _part(member: GatewayMember, line: AttachedLine) -> None:
    """Tell the controller when the member has left, as it was told to."""
    await member.left.wait()
    line.close()
