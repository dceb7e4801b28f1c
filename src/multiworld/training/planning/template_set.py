"""What instances and reconfigurations ask of templates; ``templates.Templates`` is one."""

from __future__ import annotations

from typing import Protocol

from .arrays import Floats
from .nodes import Node
from .profile import Profile
from .template import Template


class TemplateSet(Protocol):
    """``smallest``: how many nodes hold the model, and the first of ``sizes``, which ascend."""

    @property
    def profile(self) -> Profile: ...

    @property
    def node(self) -> Node: ...

    @property
    def smallest(self) -> int: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...

    def template(self, size: int) -> Template:
        """Return the one of so many nodes, which is one of ``sizes``."""

    def iterations_s(self, size: int, up_to: int) -> Floats:
        """Return what steps with 0, 1, ..., ``up_to`` micro-batches take (at least these), ascending."""
