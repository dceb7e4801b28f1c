"""The traces of Oobleck's published setting, from the same source as its rates (see ``published``). Pure data."""

from __future__ import annotations

import re

from .published import FEWEST, MOST
from .trace import JOIN, LOSS, Event, Trace, trace_of

CREATION_S = 45.0
"""A node of a trace can be used so long after it was added."""
MINUTE = re.compile(r"(\d+)(?:\+(\d+))?(?:-(\d+))?")
"""Of a trace of spot instances: ``54+1-1``."""
BETWEEN_LOSSES_S = {"6 h": 21600.0, "3 h": 10800.0, "1 h": 3600.0, "30 min": 1800.0, "10 min": 601.2}
"""One of 30 nodes is lost each time, 15 in all; the last loss is the end of the trace."""

GCP = """\
8+15 9+1-1 10+13 12+1 15+1 24-4 26-2 28-1 29+1 30+1 44-1 50-2 66-1 71-1 119-1 120-1 123+1-1 124+1 126+1 127+1-1
148+1-1 151+1-1 152+1 158-1 164+1-1 166+1-1 192-1 194-1 196-2 198+1-1 200-1 202+1 206+1 210+1 212+1-1 214+1
216+1 222+1-1 225+1-1 232-1 235+3 239+1 246-1 256+1 264-2 265+1 292-1 310-1 313+1-1 324-1 326-1 332+1 336+1
337+2 360-1 362+1 363+1-1 364+1-1 378-1 381+1 395-1 400+1 404+1-1 406+1 410+1 412+1-1 413+1-1 421+1-1 425+1
460+1 465-1 485-1 488+1 497-1 499+1 503-1 505+1-1 511+1-1 522+1-1 526+1 547-1 549+1-1 553-1 557+1 565-1 569+1
571+1-1 583-1 584+1 607-1 610-1 612+1 616+1 621-2 626+1-1 638-1 642-2 644-1 646-1
"""
"""Spot instances (a2-highgpu-1g), scaled to 30: minute, nodes added, nodes removed."""
EC2 = """\
0+20 1+1 3+2 5+1 6+1 7+1 11+1 13+1 24+1 25+1 34-3 43+3 51-5 53-2 54+1-1 55-1 57-2 59-2 61+4 65+1 67+1 69+1 70+2
71+3 77-1 79-2 80+1 81+1 83+1 85-3 87+1-1 89-2 90+1 96+1 97+3 105-1 107-1 121+1 122+1 140-1 141-4 142+1-1 143-2
150+3 153+1 154+1-1 160+2 161+1 164-1 167+1 168-1 171+1 178-5 182-2 190+2 192+1-1 193+1-1 199+4 201+1 218-2
219+1 230-1 234+2 235-3 236-2 237-2 241+2 245-2 256+2 261-1 262+1 265-1 267-1 269-2 277+2 278+4 279+1-1 280+3
283-5 284+1 285-1 294+2 295+2 296+1 299-1 300+1 305-2 309+2 338-3 340-2 342+1-1 346-2 348+1-1 351+1 352+1 354-3
356-1 357+1 363+1 366+5 367+2 374-1 376+1 382-3 395+1 399+2 402-1 404-4 406-3 408-2 416+2 420+1 424-1 431+5
435+3 443-1 449-3 451-1 455-2 463-1 467-1 469-1 489+1 491+1 492+1 495+1-1 496+1 500-3 502-2 504-2 506-1 508-1
511+1 512+1 514-1 515+1 519+1-1 521+3 524+1 527-2 529-1 537+1 543+1 545-1 547-1 549-1 559+1 562+1 563+1 567+1
573-1 576+1 585-1 587-1 591+1-1 594+1-1 595+1 607-1 611-1 613-1 680-2 682+1-1
"""
"""Spot instances (P3), scaled to 30. A node that was removed when it was added is left out."""


TRACES = (*BETWEEN_LOSSES_S, "GCP", "EC2")
"""Their names."""


def published_traces() -> tuple[Trace, ...]:
    """Return the five traces of losses at equal intervals, and the two of spot instances."""
    return (
        *(_losses(name, every_s) for name, every_s in BETWEEN_LOSSES_S.items()),
        _spot("GCP", GCP),
        _spot("EC2", EC2),
    )


def _losses(name: str, every_s: float) -> Trace:
    nodes = [f"node{number}" for number in range(1, MOST + 1)]
    events = [Event(at_s=CREATION_S, kind=JOIN, node=node) for node in nodes]
    events += [Event(at_s=every_s * (at + 1), kind=LOSS, node=node) for at, node in enumerate(nodes[:FEWEST])]
    return trace_of(name, events)


def _spot(name: str, text: str) -> Trace:
    """Return the trace of a text of minutes. Which node is removed makes no difference here: the oldest is."""
    events: list[Event] = []
    there: list[str] = []
    number = minute = 0
    for found in MINUTE.finditer(text):
        minute, added, removed = (int(each or 0) for each in found.groups())
        events += [Event(at_s=60.0 * minute, kind=LOSS, node=there.pop(0)) for _ in range(removed)]
        there += (new := [f"node{number + each}" for each in range(1, added + 1)])
        events += [Event(at_s=60.0 * minute + CREATION_S, kind=JOIN, node=node) for node in new]
        number += added
    return trace_of(name, events, end_s=60.0 * minute)
