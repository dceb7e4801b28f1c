"""Decide where the processes of a program meet, and which of them this one is. Pure: the environment is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..wire.endpoints.bracketed import bracketed

ENV = "env://"
TCP = "tcp://"


@dataclass(frozen=True, kw_only=True)
class Place:
    """``store``: the URL at which all meet. What is None comes from the launcher, as it is at each try."""

    store: str | None
    rank: int | None
    world_size: int | None

    @property
    def serves_store(self) -> bool:
        return self.store is not None and self.rank == 0


LAUNCHED = Place(store=None, rank=None, world_size=None)


def find_place(
    init_method: str, rank: int | None, world_size: int | None, environ: Mapping[str, str], *, is_launched: bool = False
) -> Place:
    """Return the place; what is given as an argument goes before the environment, which only ``env://`` reads.

    ``is_launched``: by ``multiworld run`` or ``exec``, which give ``env://`` store, rank and size, also those after a
    restart. Raises ValueError that says what is missing.
    """
    if not isinstance(init_method, str) or not init_method.startswith((ENV, TCP)):
        raise ValueError(f"init_method={init_method!r}: expected 'env://' or 'tcp://HOST:PORT'")
    if init_method.startswith(TCP):
        for name, value in (("rank", rank), ("world_size", world_size)):
            if value is None:
                raise ValueError(f"init_method={init_method!r} needs {name}=: only 'env://' reads the environment")
        assert rank is not None
        assert world_size is not None
        return Place(store=init_method, rank=rank, world_size=world_size)
    if init_method != ENV:
        raise ValueError(
            f"init_method={init_method!r}: nothing follows 'env://'; pass rank= and world_size= themselves"
        )
    if is_launched:
        return _of_launcher(rank, world_size, environ)
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ValueError(
            "torchrun's own store listens at MASTER_ADDR:MASTER_PORT, and it is not ours: pass init_method="
            "'tcp://HOST:PORT' with another port of that host, and rank= and world_size= from RANK and WORLD_SIZE"
        )
    host, port = _text("MASTER_ADDR", environ), _number("MASTER_PORT", environ)
    return Place(
        store=f"tcp://{bracketed(host)}:{port}",
        rank=_number("RANK", environ) if rank is None else rank,
        world_size=_number("WORLD_SIZE", environ) if world_size is None else world_size,
    )


def _of_launcher(rank: int | None, world_size: int | None, environ: Mapping[str, str]) -> Place:
    """Accept rank and size that a program read from the environment itself; others would be another place."""
    for name, variable, given in (("rank", "RANK", rank), ("world_size", "WORLD_SIZE", world_size)):
        if given is not None and str(given) != environ.get(variable, str(given)):
            raise ValueError(
                f"{name}={given}, but the launcher gave this process {variable}={environ[variable]}: leave it out, or "
                "pass init_method='tcp://HOST:PORT' for a group of your own"
            )
    return LAUNCHED


def _text(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "")
    if not value:
        raise ValueError(
            f"init_method='env://' reads {name} from the environment, where it is not set; set it, or pass "
            "init_method='tcp://HOST:PORT', rank= and world_size="
        )
    return value


def _number(name: str, environ: Mapping[str, str]) -> int:
    value = _text(name, environ)
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} in the environment is not a number") from None
