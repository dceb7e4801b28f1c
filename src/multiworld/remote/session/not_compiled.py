"""Why a node runs functions of ``remote.compile`` operator by operator, although it was to compile them."""

from __future__ import annotations

import logging

from ..protocol.messages import NotCompiled

logger = logging.getLogger(__name__)


class CompileProblems:
    """Of one node. Any thread."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._logged: set[str] = set()

    def heard(self, said: NotCompiled) -> None:
        """Log the problem, unless it was logged before: each function of a model may have it."""
        if said.problem in self._logged:
            return
        self._logged.add(said.problem)
        logger.warning(
            "node %d runs a function of remote.compile operator by operator: it could not compile it: %s",
            self._node,
            said.problem,
        )
