"""Compare the settings of a loader with those of a state that it is to go on from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHOWN: Final = 60


def check_settings(own: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Raise ValueError that names each difference: with other settings, a step would have other samples."""
    names = [name for name in {**own, **given} if own.get(name) != given.get(name)]
    if names:
        differences = "; ".join(f"{name} was {_short(given.get(name))}, now {_short(own.get(name))}" for name in names)
        raise ValueError(
            f"the data does not fit the state to go on from: {differences}. Steps would have other samples, so some "
            "would come twice and others never: take the settings of before"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
