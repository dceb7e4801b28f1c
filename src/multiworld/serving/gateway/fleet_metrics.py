"""What a scrape of one gateway shows: the metrics of all gateways, as the connection may lead to any of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...errors import MultiworldError
from ...observe.prometheus import Family, from_json, joined
from ..control.client.questions import MetricsTold

logger = logging.getLogger(__name__)

ASK_S = 1.0


class FleetMetrics:
    """Joins the metrics of a gateway with those that others told the controller. ``ask``: its request "metrics"."""

    def __init__(self, gateway: str, ask: Callable[[], Awaitable[MetricsTold]]) -> None:
        self._gateway, self._ask = gateway, ask
        self._lock = asyncio.Lock()  # one question at a time: each answer keeps its connection for the next one

    async def gather(self, own: list[Family]) -> list[Family]:
        """Return all families, with the label ``gateway``.

        Of several gateways all are as the controller knows them, the scraped one included: else its counters would run
        backwards when the next scrape leads to another one. If the controller does not answer in time, its own are
        left, as they are now: after that the controller may know older ones for a moment.
        """
        mine = [family.labelled("gateway", self._gateway) for family in own]
        try:
            told = (await asyncio.wait_for(self._ask_alone(), ASK_S)).gateways
            known = {
                name: [family.labelled("gateway", name) for family in from_json(families)]
                for name, families in sorted(told.items())
            }
        except (asyncio.TimeoutError, MultiworldError, OSError, LookupError, TypeError, ValueError) as error:
            logger.info("%s shows its own metrics alone: %r", self._gateway, error)
            return mine
        if not known.keys() - {self._gateway}:
            return mine
        return joined(({self._gateway: mine} | known).values())

    async def _ask_alone(self) -> MetricsTold:
        async with self._lock:
            return await self._ask()
