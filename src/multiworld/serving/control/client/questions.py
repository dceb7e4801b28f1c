"""What commands, pages and members ask a controller, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....wire.messages import Json, MessageSet, message
from ...hosts.logs.recent_lines import LinesTold
from ..history import EventRecord
from ..status import ControllerStatus

WAIT_S = 60.0


@message("status")
@dataclass(frozen=True, kw_only=True)
class StatusOf:
    """Answered by ``StatusTold``."""


@dataclass(frozen=True, kw_only=True)
class StatusTold:
    status: ControllerStatus


@message("metrics")
@dataclass(frozen=True, kw_only=True)
class MetricsOf:
    """Answered by ``MetricsTold``."""


@dataclass(frozen=True, kw_only=True)
class MetricsTold:
    """What each gateway told last."""

    gateways: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class Done:
    """It was done, or has begun where nobody waits."""


@message("scale")
@dataclass(frozen=True, kw_only=True)
class ScaleStage:
    """Answered by ``Done``, within ``timeout_s``; at once without ``wait``."""

    stage: str
    replicas: int
    force: bool = False
    wait: bool = True
    timeout_s: float = WAIT_S


@message("drain")
@dataclass(frozen=True, kw_only=True)
class DrainReplica:
    """Answered by ``Done``."""

    replica: str
    scale_down: bool = False
    wait: bool = True
    timeout_s: float = WAIT_S


@message("update")
@dataclass(frozen=True, kw_only=True)
class UpdateStage:
    """``weights``: the file in which they lie. Answered by ``Updated``."""

    stage: str
    weights: str
    parallel: bool = False
    settle_s: float = 1.0
    wait: bool = True
    timeout_s: float = WAIT_S


@dataclass(frozen=True, kw_only=True)
class Updated:
    version: int


@message("tune")
@dataclass(frozen=True, kw_only=True)
class TuneStage:
    """None: as it is. Answered by ``Done``."""

    stage: str
    batch_max_size: int | None = None
    batch_max_wait_s: float | None = None


@message("events")
@dataclass(frozen=True, kw_only=True)
class EventsSince:
    """Those with higher numbers. Answered by ``EventsTold``."""

    since: int = 0


@dataclass(frozen=True, kw_only=True)
class EventsTold:
    events: tuple[EventRecord, ...]


@message("logs")
@dataclass(frozen=True, kw_only=True)
class LinesOfMembers:
    """``of``: a member, a stage, or all. See ``Controller.lines``. Answered by ``MembersLines``."""

    of: str = ""
    since: Mapping[str, int] = field(default_factory=dict)
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class MembersLines:
    members: Mapping[str, LinesTold]


@message("files")
@dataclass(frozen=True, kw_only=True)
class ListFiles:
    """Of the deployment. Answered by ``FilesFound``."""


@dataclass(frozen=True, kw_only=True)
class FilesFound:
    """The size of each in bytes."""

    files: Mapping[str, int]


@message("file")
@dataclass(frozen=True, kw_only=True)
class ReadFile:
    """Answered by ``FilePiece``."""

    name: str
    offset: int


@dataclass(frozen=True, kw_only=True)
class FilePiece:
    """Empty at the end of the file."""

    piece: bytes


@message("stop")
@dataclass(frozen=True, kw_only=True)
class StopAll:
    """End the deployment. Answered by ``Done``."""


ControllerQuestion = (
    StatusOf
    | MetricsOf
    | ScaleStage
    | DrainReplica
    | UpdateStage
    | TuneStage
    | EventsSince
    | LinesOfMembers
    | ListFiles
    | ReadFile
    | StopAll
)
CONTROLLER_QUESTIONS: MessageSet[ControllerQuestion] = MessageSet(
    "questions to a controller", ControllerQuestion, tag="ask"
)

ControllerAnswer = Done | EventsTold | FilePiece | FilesFound | MembersLines | MetricsTold | StatusTold | Updated
