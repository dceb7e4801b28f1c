"""What all ways to reach nodes have in common."""

from __future__ import annotations

from dataclasses import dataclass

from ..backends import bulk_backend
from ..protocol.calls import DeclaredCall


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of ``remote.connect``. ``token``: None for that of the environment."""

    token: str | None
    backend: str
    allow: tuple[str, ...]
    num_threads: int
    lease_s: float
    calls: tuple[DeclaredCall, ...] = ()

    @property
    def bulk_backend(self) -> str:
        """The channel between the master and its nodes."""
        return bulk_backend(self.backend)
