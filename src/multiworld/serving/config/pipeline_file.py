"""What a file says about a pipeline: the format of our own files, and the values that every format ends in.

============================  ==========================================================================================
key                           value (default)
============================  ==========================================================================================
``name``                      of the pipeline, and of the model in URLs (the file's name)
``stages``                    a list; either this or ``cut``
``stages[].name``             required; letters, digits, ``_`` and ``.``
``stages[].model``            required; ``package.module:attribute``: a module, a callable or a class
``stages[].inputs``           names of stages, or ``input``, the request (the stage before it)
``stages[].replicas``         how many at first (1)
``stages[].min_replicas``,
``stages[].max_replicas``     bounds of the autoscaler (``replicas``; 1 as the lower one if there is an upper one)
``stages[].batch``            rows at once, or keys ``max_size`` and ``max_wait_s`` (one request at a time, until that
                              is tuned); ``false``: requests cannot be concatenated
``stages[].device``           ``cpu``, ``cuda:0``, ... (``cpu``)
``stages[].hosts``            the only hosts for it, a list (any)
``stages[].idempotent``       whether a request may be executed again after a loss (true)
``stages[].canary``           ``false``, or ``package.module:attribute``: what a new replica is tried with, or what
                              returns that; a tuple for several inputs (a recent request, when weights are updated)
``cut``                       a model that is cut into stages of equal cost when it is deployed
``cut.model``                 required; ``package.module:attribute``, or the name of a Hugging Face model
``cut.example``               ``package.module:attribute``: a request's payload, or what returns one (made up for
                              Hugging Face models)
``cut.stages``                required; how many
``cut.replicas``              one number, or one per stage (1)
``cut.batch``, ``cut.device``,
``cut.min_replicas``,
``cut.max_replicas``          as above, for all of them
``policy``                    ``shortest-queue``, ``round-robin``, ``random``, ``power-of-two``, ``sticky``
                              (``shortest-queue``)
``lease_s``                   after how long a silent process counts as lost (2)
``gateways``                  how many processes take requests (1)
``preload``                   modules that are imported before replicas are started, a list
``gateway``                   the fields of ``GatewayOptions``: ``host``, ``port``, ``max_body_bytes``, ...
``autoscaling``               ``false``, or the fields of ``ScalingPolicy``: ``target_utilization``, ``drain_s``, ...
                              (its defaults)
============================  ==========================================================================================

Names of modules are looked up in the file's folder first. Nothing of them is imported before the pipeline is deployed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...model.signature import Signature
from ...world.liveness import DEFAULT_LEASE_S, LEASE_RANGE, is_lease
from ..control.scaling import ScalingPolicy
from ..errors import CanaryFailedError
from ..flow.routing import POLICIES
from ..gateway.options import DEFAULT_PORT, GatewayOptions
from ..graph import Batch, Graph, Stage
from .document import Document
from .problems import ConfigError, Problems, did_you_mean
from .sections import Section

if TYPE_CHECKING:
    from .models import Resolver

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
ATTRIBUTE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, kw_only=True)
class CutPlan:
    """A whole model and into how many stages it is to be cut. ``devices`` and ``hosts``: of each stage."""

    model: str
    num_stages: int
    example: str | None = None
    replicas: tuple[int, ...] = ()
    min_replicas: int | None = None
    max_replicas: int | None = None
    batch: Batch | Literal[False] | None = None
    devices: tuple[str, ...] = ()
    hosts: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.num_stages < 1:
            raise ValueError(f"expected 1 or more stages, got {self.num_stages}")
        for name in ("replicas", "devices", "hosts"):
            values = getattr(self, name)
            if values and len(values) != self.num_stages:
                raise ValueError(f"{name} has {len(values)} entries for {self.num_stages} stages")

    def stages(
        self,
        works: Sequence[Any],
        batches: Sequence[Batch | Literal[False] | None],
        signatures: Sequence[Signature | None] = (),
    ) -> list[Stage]:
        """Return the stages, with the parts of the model as their works."""
        return [
            Stage(
                f"part{number}",
                work,
                replicas=self.replicas[number] if self.replicas else 1,
                min_replicas=self.min_replicas,
                max_replicas=self.max_replicas,
                batch=batches[number],
                device=self.devices[number] if self.devices else "cpu",
                hosts=self.hosts[number] if self.hosts else (),
                signature=signatures[number] if signatures else None,
            )
            for number, work in enumerate(works)
        ]


@dataclass(frozen=True, kw_only=True)
class PipelineFile:
    """A pipeline as a file describes it. ``warnings``: what the file asks for and does not get, a sentence each."""

    path: str
    name: str
    stages: tuple[Stage, ...] = ()
    cut: CutPlan | None = None
    policy: str = "shortest-queue"
    lease_s: float = DEFAULT_LEASE_S
    gateways: int = 1
    preload: tuple[str, ...] = ()
    gateway: GatewayOptions = field(default_factory=lambda: GatewayOptions(port=DEFAULT_PORT))
    autoscaling: ScalingPolicy | None = field(default_factory=ScalingPolicy)
    max_inflight: int | None = None
    """How many requests the gateways take at once; None: as many as the stages have credit for."""
    canaries: Mapping[str, str] = field(default_factory=dict)
    """Where the canaries of stages are found that have one."""
    warnings: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Where modules that the file names are looked up first."""
        return os.path.dirname(os.path.abspath(self.path))

    def build(self, resolve: Resolver | None = None) -> list[Stage]:
        """Return the stages, with their canaries; a model to be cut is made, measured and cut, by this process and now.

        ``resolve`` finds the model and an example by name (default: ``resolve_model``). Raises ConfigError for what
        cannot be found, ValueError for a model that cannot be cut.
        """
        if self.cut is None:
            return [self._with_canary(stage) for stage in self.stages]
        from ..cutting import batch_of, cut_parts  # only here: it needs torch.fx and torch.export, which import slowly
        from .models import resolve_model

        module, example = (resolve or resolve_model)(self.cut.model, self.cut.example, self.folder)
        try:
            parts = cut_parts(module, example, self.cut.num_stages, by_rows=bool(self.cut.batch))
        except TypeError as error:
            raise ConfigError(
                self.path, [f" model {self.cut.model!r}, example {self.cut.example!r}: {error}"]
            ) from error
        return self.cut.stages(
            [part.module for part in parts],
            [batch_of(part, self.cut.batch) for part in parts],
            [part.signature for part in parts],
        )

    def _with_canary(self, stage: Stage) -> Stage:
        name = self.canaries.get(stage.name)
        if name is None:
            return stage
        from ..replica.canary import given_inputs  # only here: a file can be read without torch's channels
        from .models import resolve_example

        stage = replace(stage, canary=resolve_example(name, self.folder))
        try:
            given_inputs(stage)
        except CanaryFailedError as error:
            raise ConfigError(self.path, [f" stage {stage.name!r}: {name}: {error.difference}"]) from None
        return stage


def read_pipeline(document: Document) -> PipelineFile:
    """Return what a file of our own format says. Raises ConfigError with all that is wrong with it."""
    problems = Problems(document.source, document.lines)
    section = Section(document.value, (), problems)
    stem = os.path.splitext(os.path.basename(document.source))[0]
    name = section.take("name", str, re.sub(r"[^\w.-]", "-", stem) or "pipeline")
    if not NAME.fullmatch(name):
        section.problem("name", f"{name!r}: expected a letter or digit, and up to 62 letters, digits, '_', '.' or '-'")
    policy = section.take("policy", str, "shortest-queue")
    if policy not in POLICIES:
        section.problem("policy", f"unknown policy {policy!r}, {did_you_mean(policy, POLICIES)}")
    lease_s, gateways = section.take("lease_s", float, DEFAULT_LEASE_S), section.take("gateways", int, 1)
    if not is_lease(lease_s):
        section.problem("lease_s", f"expected {LEASE_RANGE}, got {lease_s}")
    if not 1 <= gateways <= 64:
        section.problem("gateways", f"expected 1 to 64, got {gateways}")
    preload = tuple(section.take("preload", list[str], []))
    gateway, autoscaling = _gateway(section), _autoscaling(section)
    canaries: dict[str, str] = {}
    stages, cut = _stages(section, canaries), _cut(section)
    section.finish()
    problems.raise_any()
    return PipelineFile(
        path=document.source, name=name, stages=stages, cut=cut, policy=policy, lease_s=float(lease_s),
        gateways=gateways, preload=preload, gateway=gateway, autoscaling=autoscaling,
        canaries=canaries,
    )  # fmt: skip


def _gateway(section: Section) -> GatewayOptions:
    sub = section.sub("gateway")
    made = None if sub is None else sub.make(GatewayOptions)
    if sub is None or made is None:
        return GatewayOptions(port=DEFAULT_PORT)
    return made if sub.raw("port") is not None else replace(made, port=DEFAULT_PORT)


def _autoscaling(section: Section) -> ScalingPolicy | None:
    value = section.raw("autoscaling")
    if value is False:
        return None
    sub = None if value in (None, True) else section.sub("autoscaling")
    return (sub.make(ScalingPolicy) if sub is not None else None) or ScalingPolicy()


def _stages(section: Section, canaries: dict[str, str]) -> tuple[Stage, ...]:
    if ("stages" in section) == ("cut" in section):
        section.problem(None, "expected either 'stages' or 'cut', a model to be cut into stages")
    subs = section.subs("stages")
    stages = [stage for sub in subs if (stage := _stage(sub, canaries)) is not None]
    if "stages" in section and len(stages) == len(subs):
        try:
            Graph(stages)
        except ValueError as error:
            section.problem("stages", str(error))
    return tuple(stages)


def _stage(section: Section, canaries: dict[str, str]) -> Stage | None:
    name = section.need("name", str, "")
    model = _attribute(section, "model", required=True)
    inputs = section.take("inputs", list[str])
    given = {
        "replicas": section.take("replicas", int, 1),
        "min_replicas": section.take("min_replicas", int),
        "max_replicas": section.take("max_replicas", int),
        "batch": _batch(section),
        "device": section.take("device", str, "cpu"),
        "hosts": tuple(section.take("hosts", list[str], [])),
        "idempotent": section.take("idempotent", bool, True),
    }
    canary = _canary(section)
    if isinstance(canary, str):
        canaries[name] = canary
    else:
        given["canary"] = canary
    section.finish()
    if not name or not model:
        return None
    return section.build(Stage, name, model, inputs=None if inputs is None else tuple(inputs), **given)


def _cut(section: Section) -> CutPlan | None:
    sub = section.sub("cut")
    if sub is None:
        return None
    model, num_stages = sub.need("model", str, ""), sub.need("stages", int, 1)
    if num_stages < 1:
        sub.problem("stages", f"expected 1 or more, got {num_stages}")
    if ":" in model:
        _attribute(sub, "model", required=True)
    replicas = sub.take("replicas", int | list[int], 1)
    plan = {
        "example": _attribute(sub, "example", required=":" in model),
        "replicas": tuple(replicas) if isinstance(replicas, list) else (replicas,) * num_stages,
        "min_replicas": sub.take("min_replicas", int),
        "max_replicas": sub.take("max_replicas", int),
        "batch": _batch(sub),
        "devices": (sub.take("device", str, "cpu"),) * num_stages,
    }
    sub.finish()
    cut = sub.build(CutPlan, model=model, num_stages=num_stages, **plan) if model and num_stages >= 1 else None
    if cut is not None:
        sub.build(_Checked, cut)
    return cut


class _Checked:
    """Makes the stages of a plan without their works, so that wrong bounds show before the model is made."""

    def __init__(self, plan: CutPlan) -> None:
        plan.stages(["not.made:yet"] * plan.num_stages, [plan.batch] * plan.num_stages)


def _batch(section: Section) -> Batch | Literal[False] | None:
    value = section.raw("batch")
    if value is None or value is False:
        return value
    if _is_count(value):
        return section.build(Batch, max_size=value)
    sub = section.sub("batch")
    return None if sub is None else sub.make(Batch)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _attribute(section: Section, key: str, *, required: bool) -> str | None:
    value: str | None = section.need(key, str, None) if required else section.take(key, str)
    if value is not None and not ATTRIBUTE.fullmatch(value):
        section.problem(key, f"expected 'package.module:attribute', got {value!r}")
        return None
    return value


def _canary(section: Section) -> str | bool | None:
    """Return where it is found, False for none at all, None for whatever there is."""
    value = section.raw("canary")
    if value is None or value is False or (isinstance(value, str) and ATTRIBUTE.fullmatch(value)):
        return value
    section.problem("canary", f"expected false or 'package.module:attribute', got {value!r}")
    return None
