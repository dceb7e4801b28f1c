"""What a caller of ``join`` asks for, checked before anything happens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...errors import JoinRefusedError
from ...store.base import parse_store_url
from ..launcher.launched import Place
from ..operations.arguments import check_seconds
from ..world import World


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """What the caller of ``join`` asked for, checked. What is None comes from the launcher, as it is at each try.

    ``is_inner``: the world is a part of something that tells of losses in its own words, and with its own ranks.
    """

    name: str
    rank: int | None
    world_size: int | None
    store_url: str | None
    backend: str
    device: torch.device
    timeout_s: float
    serve_store: bool = False
    min_generation: int = 1
    is_inner: bool = False

    @property
    def follows_launcher(self) -> bool:
        return self.follows_membership or self.store_url is None

    @property
    def follows_membership(self) -> bool:
        return self.rank is None or self.world_size is None

    def check_complete(self) -> None:
        """Raise TypeError for what the caller left out: outside of the launcher nobody else gives it."""
        given = {"rank": self.rank, "world_size": self.world_size, "store": self.store_url}
        if missing := [name for name, value in given.items() if value is None]:
            raise TypeError(
                f"join() needs {' and '.join(missing)}: only a process that `multiworld run` started may leave out "
                "rank, world_size and store"
            )


@dataclass(frozen=True, kw_only=True)
class JoinTarget:
    """What one try to form the world goes by.

    ``membership``: the job's generation, if the launcher gave the rank or the size. Only members of the same one meet.
    """

    rank: int
    world_size: int
    store_url: str
    membership: int | None = None


def target_of(request: JoinRequest, place: Place | None) -> JoinTarget | None:
    """Return what to go by at a place of the launcher's; None if that has no store now, and the request names none.

    Raises JoinRefusedError if what was asked for does not fit the place.
    """
    rank, world_size, store_url = request.rank, request.world_size, request.store_url
    if place is not None:
        rank = place.rank if rank is None else rank
        world_size = place.world_size if world_size is None else world_size
        store_url = place.store if store_url is None else store_url
    if rank is None or world_size is None or not store_url:
        return None
    if not 0 <= rank < world_size:
        raise JoinRefusedError(
            request.name,
            f"rank {rank} is out of range for world_size={world_size}, of which one was given here and one is the "
            "launcher's; give both, or neither",
        )
    membership = place.generation if place is not None and request.follows_membership else None
    return JoinTarget(rank=rank, world_size=world_size, store_url=store_url, membership=membership)


def check_request(
    name: str,
    rank: int | None,
    world_size: int | None,
    store: str | None,
    backend: str,
    timeout_s: float,
    device: torch.device | str | None,
    serve_store: bool,
) -> JoinRequest:
    """Return the request; raises ValueError or TypeError for what can be seen to be wrong here."""
    if not isinstance(name, str) or not name or "/" in name or len(name) > 200:
        raise ValueError(f"name={name!r}: expected a world's name, 1 to 200 characters without '/'")
    for label, value in (("rank", rank), ("world_size", world_size)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"{label} must be an int, got {value!r}")
    if world_size is not None and world_size < 1:
        raise ValueError(f"world_size={world_size}: expected at least 1")
    if rank is not None and rank < 0:
        raise ValueError(f"rank={rank} is out of range: ranks begin with 0")
    if rank is not None and world_size is not None and not rank < world_size:
        raise ValueError(f"rank={rank} is out of range: a world of {world_size} has ranks 0 to {world_size - 1}")
    check_seconds(timeout_s, "timeout_s")
    _check_store(store, serve_store)
    return JoinRequest(
        name=name,
        rank=rank,
        world_size=world_size,
        store_url=store,
        backend=backend,
        device=_with_index(torch.device(device)) if device is not None else _default_device(backend),
        timeout_s=timeout_s,
        serve_store=serve_store,
    )


def _check_store(store: str | None, serve_store: bool) -> None:
    if store is None:
        if serve_store:
            raise ValueError("serve_store=True needs store=: the launcher's own store is served by its agents")
    elif parse_store_url(store).port == 0:
        raise ValueError(
            f"store={store!r}: port 0 names no store; serve one with WorldManager.serve_store, and pass on the URL "
            "that it returns"
        )


def _default_device(backend: str) -> torch.device:
    if backend == "nccl":
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return torch.device("cpu")


def _with_index(device: torch.device) -> torch.device:
    """Return which device ``"cuda"`` means for this thread at this moment."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def after(request: JoinRequest, old: World) -> JoinRequest:
    """The next generation must come after the one that this process was in, also on a fresh store."""
    return replace(request, min_generation=max(request.min_generation, old.generation + 1))
