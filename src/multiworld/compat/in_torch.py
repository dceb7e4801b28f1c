"""The names that multiworld 0.0.x put into ``torch.distributed`` by a patch, on the user's own call."""

from __future__ import annotations

import sys
import types

import torch.distributed

from ..errors import BrokenWorldException
from .communicator import WorldCommunicator
from .manager import WorldManager

MODULES: dict[str, dict[str, object]] = {
    "world_manager": {"WorldManager": WorldManager},
    "world_communicator": {"WorldCommunicator": WorldCommunicator, "BrokenWorldException": BrokenWorldException},
}


def install_in_torch() -> None:
    """Let ``torch.distributed.WorldManager`` be ours, for programs that were written for multiworld 0.0.x.

    The modules ``torch.distributed.world_manager`` and ``world_communicator``, which its patch added, can be imported
    afterwards. It holds for this process alone, changes nothing that PyTorch has, and no file. May be called again.
    Raises RuntimeError if this PyTorch carries the patch: install PyTorch afresh then.
    """
    present = getattr(torch.distributed, "WorldManager", WorldManager)
    if present is not WorldManager:
        raise RuntimeError(
            f"this PyTorch has a WorldManager of its own ({present.__module__}): it carries the patch of multiworld "
            "0.x. Install PyTorch afresh: pip install --force-reinstall torch"
        )
    torch.distributed.WorldManager = WorldManager  # type: ignore[attr-defined]
    for name, contents in MODULES.items():
        path = f"torch.distributed.{name}"
        module = types.ModuleType(path, __doc__)
        vars(module).update(contents)
        sys.modules[path] = module
        setattr(torch.distributed, name, module)
