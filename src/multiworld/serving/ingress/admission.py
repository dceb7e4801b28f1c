"""How much a gateway takes in, as its user says. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Admission:
    """How much a gateway takes in before it says that it is overloaded, and how long it remembers answers.

    ``max_open`` requests and ``max_bytes`` of inputs may be open, and none is taken in while the first of those that no
    replica has room for has waited for more than ``max_wait_s``, unless that looks as if it will pass (``Patience``).
    Answers of requests whose id a client chose are kept for ``keep_s``, up to ``keep_bytes`` in all.
    """

    max_open: float = 1024
    max_bytes: float = 512 << 20
    max_wait_s: float = 0.5
    keep_s: float = 60.0
    keep_bytes: float = 64 << 20

    def __post_init__(self) -> None:
        for name in ("max_open", "max_bytes", "max_wait_s", "keep_s", "keep_bytes"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{name} must be a number from 0, got {value!r}")
