"""How a host process works: whom for, under which name, what it imports and what it starts by itself."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.endpoints.addresses import is_address
from ...wire.endpoints.token import check_token
from ..graces import GRACE_S
from .order import Order


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """``address``: where the controller listens. ``token``: what both prove; not empty. Raises ValueError.

    ``name``: of this host; stages may be bound to it. ``own_address``: at which its members can be reached; empty: the
    one from which it reaches the controller. ``preload``: modules that are imported before the first fork, so that
    members have them at once; one that fails is only warned of. ``members`` are started by the host process itself.
    ``log_dir``: where each member gets a log file; empty: there are none. ``grace_s``: how long members may finish.
    ``paths``: what ``sys.path`` is to be; empty: what it is. ``owner_pid``: all ends when that process does; 0: nobody.
    """

    address: tuple[str, int]
    token: str
    name: str
    own_address: str = ""
    preload: tuple[str, ...] = ()
    members: tuple[Order, ...] = ()
    log_dir: str = ""
    grace_s: float = GRACE_S
    paths: tuple[str, ...] = ()
    owner_pid: int = 0

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise ValueError(f"a host needs a name of printable characters, got {self.name!r}")
        check_token(self.token, "the token of the deployment")
        if not 0 < self.address[1] < 65536:
            raise ValueError(f"the controller's port must lie between 1 and 65535, got {self.address[1]}")
        if self.own_address and not is_address(self.own_address):
            raise ValueError(f"--address {self.own_address}: expected a numeric address of this host, as 10.0.0.2")
        if not 0 <= self.grace_s <= 86400:
            raise ValueError(f"grace_s must lie between 0 and 86400 seconds, got {self.grace_s!r}")
