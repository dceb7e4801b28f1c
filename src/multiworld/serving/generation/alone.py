"""Answers with the stages of a pipeline in this process, one after the other: what a deployment must be equal to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...channel.base import Payload
from ..ingress.answers import Asked
from .stage import GenerationStage

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Alone:
    """For a ``Generator`` that needs no other process: tests, and comparison."""

    name = "alone"

    def __init__(self, stages: Iterable[GenerationStage]) -> None:
        self.stages = [stage.eval() for stage in stages]

    async def infer(self, payload: Payload, **asked: Unpack[Asked]) -> Payload:
        """Answer one request at once."""
        for stage in self.stages:
            payload = stage.forward(payload)
        return payload
