"""Decide which member speaks for the training: it prints the progress line and tells the launcher. Pure.

The first member of each generation speaks. Members keep their order, and newcomers stand behind them (see
``agreement``), so it has been there longest and has seen all that is to be told; of those that came together it is the
one with the lowest rank. All members have the same generation, so exactly one of them speaks.
"""

from __future__ import annotations

from ..events import MembershipChanged


def is_leading(change: MembershipChanged) -> bool:
    """Return whether the member that published this event speaks from now on."""
    return change.members[:1] == (change.member,)
