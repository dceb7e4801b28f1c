"""What the program of a member is started with, in the order to a host process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...wire.messages import Json, from_json

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class MemberArguments:
    """``folder``: of the deployment; where it is not, files are asked of the controller, at ``controller``.

    ``host``: the numeric address of this machine.
    """

    member: str
    folder: str
    job: str
    token: str
    store: str
    lease_s: float
    controller: tuple[str, int]
    stage: str = ""
    host: str | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Json]) -> Self:
        """Read what came with the order. Raises MessageError, which names the field that is wrong."""
        return from_json(cls, arguments)
