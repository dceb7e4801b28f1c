"""This process's replica: its mesh for FSDP2 or tensor parallelism, and how its processes act as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import JoinTimeoutError, WorldBrokenError, WorldClosedError
from ...wire.messages import decode, encode, message
from ...world.world import World
from ..engine.facts import Facts
from ..engine.gathering import gather
from ..errors import ReplicaBrokenError, SetupError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FormWorld = Callable[[str, int, int], World]
"""Joins the world of that name as that rank of so many. Blocks."""


@message("heard_facts")
@dataclass(frozen=True, kw_only=True)
class HeardFacts:
    """What one process of a replica has heard of all members, for those of its replica that have not."""

    facts: tuple[Facts, ...] = ()


class Replica:
    """``job.replica``. ``index``: which replica; ``rank``: this process's shard of it; ``size``: how many it has.

    Its world stands as long as all its processes live. What happens to other replicas does not break it.
    When one of its processes ends, the others raise ReplicaBrokenError; the launcher starts all of them again, and
    they come back as one.
    """

    def __init__(self, job: str, rank: int, size: int, form: FormWorld) -> None:
        """``rank``: the launcher's."""
        self.size = size
        self.index, self.rank = divmod(rank, size)
        self._name, self._form = f"{job}.replica-{self.index}", form
        self._world: World | None = None

    def __repr__(self) -> str:
        return f"<Replica {self.index}: process {self.rank} of {self.size}>"

    @property
    def world(self) -> World:
        """The world of its processes. The first use forms it: blocks until all of them are there.

        Raises SetupError if they do not come.
        """
        if self._world is None:
            try:
                self._world = self._form(self._name, self.rank, self.size)
            except JoinTimeoutError as error:
                raise SetupError(
                    f"replica {self.index} has {self.size} processes, and not all of them came: {error}. Start all of "
                    "them, or raise join_timeout_s"
                ) from error
        return self._world

    def device_mesh(
        self, dim_names: str | Sequence[str] | None = None, *, shape: Sequence[int] | None = None
    ) -> DeviceMesh:
        """Return the processes of this replica as a mesh: ``fully_shard(model, mesh=job.replica.device_mesh())``.

        With ``shape`` it has several dimensions, for FSDP2 with tensor parallelism; then all of them must call it.
        """
        return self.world.device_mesh(dim_names, shape=shape)

    def part(self, batch: Any) -> Any:
        """Return this process's rows of a micro-batch: for FSDP2, whose processes compute different rows.

        Under tensor parallelism all of them take the whole micro-batch instead. Tensors are cut along their first
        dimension, inside of tuples, lists and dicts too. Raises ValueError if the rows cannot be dealt evenly: FSDP2
        takes the mean over processes, which would not be the mean over rows.
        """
        if self.size == 1:
            return batch
        if isinstance(batch, Tensor):
            if len(batch) % self.size:
                raise ValueError(
                    f"a micro-batch of {len(batch)} rows cannot be dealt to {self.size} processes of a replica: "
                    f"choose a micro_batch that {self.size} divides"
                )
            return batch[self.rank :: self.size]
        if isinstance(batch, Mapping):
            return {key: self.part(value) for key, value in batch.items()}
        if isinstance(batch, (list, tuple)):
            parts = [self.part(value) for value in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        return batch

    # ---- its processes act as one

    def agree_on_id(self, own: str) -> str:
        """Return the id of this replica in this life: that of its first process."""
        return own if self.size == 1 else self._gather(own.encode())[0].decode()

    def as_one(self, call: Callable[[], list[Facts]]) -> list[Facts]:
        """Return what ``call`` gives, here or, if it raises a world's error here, in another process of the replica.

        Every process of the replica must come here. Otherwise one could go on to a collective inside of the replica
        that another one, which was told of a loss in time, never enters.
        """
        if self.size == 1:
            return call()
        facts: list[Facts] | None = None
        error: WorldBrokenError | WorldClosedError | None = None
        try:
            facts = call()
        except (WorldBrokenError, WorldClosedError) as raised:
            error = raised
        told = [] if facts is None else [encode(HeardFacts(facts=tuple(facts)))]
        heard = [each for each in self._gather(b"".join(told)) if each]
        if facts is not None:
            return facts
        if not heard:
            assert error is not None
            raise error
        return list(decode(HeardFacts, heard[0]).facts)

    def all_true(self, flag: bool) -> bool:
        """Return whether it is True in all processes of the replica. All must call it."""
        return flag if self.size == 1 else all(each == b"1" for each in self._gather(b"1" if flag else b"0"))

    def has_settled(self, number: int, *, is_well: bool) -> bool:
        """Return whether all processes of the replica have come to generation ``number``, and all are well there.

        False: this one has to look for the next generation. One that is ahead waits here for the others.
        """
        while self.size > 1:
            said = [tuple(map(int, each.split())) for each in self._gather(f"{number} {int(is_well)}".encode())]
            newest = max(each for each, _ in said)
            if all(each == newest for each, _ in said):
                return all(well for _, well in said)
            if number < newest:
                return False
        return is_well

    def check(self, error: BaseException | None = None) -> None:
        """Raise ReplicaBrokenError if a process of this replica was lost. ``error``: what the program got, if any."""
        if self.size > 1 and self._world is not None and self._world.error is not None:
            raise ReplicaBrokenError(self.index, self.rank, str(self._world.error)) from (error or self._world.error)

    @property
    def failure(self) -> str:
        """Why this replica is broken; empty if it is not."""
        return "" if self.size == 1 or self._world is None else str(self._world.error or "")

    def close(self, *, gracefully: bool) -> None:
        world, self._world = self._world, None
        if world is not None:
            if gracefully and world.error is None:
                world.blocking.leave(1.0)
            else:
                world.abort()

    def _gather(self, content: bytes) -> list[bytes]:
        """Return what each process of the replica has given. Raises ReplicaBrokenError."""
        try:
            return gather(self.world, content)
        except (WorldBrokenError, WorldClosedError) as error:
            self.check(error)
            raise
