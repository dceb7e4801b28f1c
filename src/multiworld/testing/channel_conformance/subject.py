"""What is examined, and how hard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch

from ...channel.base import DataChannel
from ...channel.registry import available, find_channel
from ..crew import Launch, launch_workers
from ..mpi_launcher import MpiLauncher, why_no_jobs


@dataclass(frozen=True)
class Subject:
    """A channel, and how members of worlds on it are made.

    What the channel cannot do it says itself: ``DataChannel.can_move``, ``can_reduce``, ``cancel_costs_world``.
    """

    backend: str
    """The name of an installed channel, or ``"package.module:Class"``."""
    _: KW_ONLY
    device: str = "cpu"
    """Where tensors lie; ``"cuda:{member}"`` gives each member a device of its own."""
    world_sizes: Sequence[int] = (1, 2, 3, 4, 5)
    """The sizes of worlds to try. The largest is the number of processes that run."""
    lease_s: float = 0.6
    """For how long a member may be stopped before its worlds give it up."""
    skip: Mapping[str, str] = field(default_factory=dict)
    """Checks that cannot hold on this channel, and why not."""
    kill_ends_all: str = ""
    """Why a killed member takes all others with it, if it does, as it may be a launcher's way: then no check kills."""
    launch: Launch | None = None
    """How the processes are started; by default as workers, and for ``mpi`` as processes of one MPI job."""

    def __post_init__(self) -> None:
        if not self.world_sizes or min(self.world_sizes) < 1:
            raise ValueError(f"world_sizes is {self.world_sizes!r}; it must hold at least one size, and none below 1")

    @property
    def num_members(self) -> int:
        return max(self.world_sizes)

    def device_of(self, member: int) -> torch.device:
        return torch.device(self.device.format(member=member))

    def launcher(self, num_kills: int) -> Launch:
        """Return how the processes are started, of which so many will be killed and replaced."""
        if self.launch is not None:
            return self.launch
        return MpiLauncher(num_kills) if self.backend == "mpi" else launch_workers

    def why_not(self) -> str:
        """Return why it cannot be examined on this machine; empty if it can."""
        if self.backend == "mpi" and self.launch is None:
            return why_no_jobs()
        support = available().get(self.backend) or self.channel().support()
        return "" if support.works else support.reason

    def channel(self) -> type[DataChannel]:
        """Return the class. Raises ``ValueError`` or ``TypeError``, as ``join`` would."""
        return find_channel(self.backend, self.device_of(0))


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How hard a channel is examined. The default is for every run of its tests; more finds what is rare."""

    seed: int = 1
    """Sizes, moments and victims follow from it."""
    num_kills: int = 2
    """How often a member is killed amid operations of every kind."""
    num_moments: int = 12
    """At how many random moments operations are given up."""
    check_timeout_s: float = 20.0
    """What has not ended by then hangs. ``MULTIWORLD_TEST_TIMEOUT_SCALE`` scales it."""

    def __post_init__(self) -> None:
        for name in ("num_kills", "num_moments", "check_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
