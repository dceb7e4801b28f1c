"""``remote.use_device_name()``: take PyTorch's one free device type for remote tensors, under the name ``remote``."""

from __future__ import annotations

import threading

import torch
from torch.utils import backend_registration

from ..errors import DeviceNameError
from ..session.open_connections import all_present
from ..tensor.naming import NAME, DeviceName
from . import creation
from .backend import Backend
from .loading import register_loading

_UNNAMED = "privateuseone"
_lock = threading.Lock()  # one thread takes the name
_libraries: list[torch.library.Library] = []  # kernels last as long as their library


def use_device_name() -> None:
    """From here on ``"remote:N"`` is a device in this process, wherever PyTorch takes one: node N.

    N is a node of the open connection: from here on there may be one at a time. Again: nothing. Raises DeviceNameError
    if several are open, or if another backend has the place; all else of remote tensors works without the name:
    ``nodes[1].load(model)``, ``nodes[1].send(tensor)``.
    """
    with _lock:
        if DeviceName.in_use:
            return
        if len(all_present()) > 1:
            raise DeviceNameError(
                "several connections are open, and the name can mean the nodes of one. Close the others"
            )
        _take()
        DeviceName.in_use = True


def _take() -> None:
    owner = torch._C._get_privateuse1_backend_name()
    if owner != _UNNAMED:
        raise DeviceNameError(f"PyTorch has place for one name, and the backend {owner!r} has it")
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty.memory_format", "PrivateUse1"):
        raise DeviceNameError("PyTorch has place for one name, and a backend without a name has it")
    if hasattr(torch, NAME):
        raise DeviceNameError(f"there is a module torch.{NAME} already")
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        raise DeviceNameError(f"PyTorch {torch.__version__} has no device types that are written in Python")
    setup(NAME, Backend())
    library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    library.fallback(creation.call, dispatch_key="PrivateUse1")  # type: ignore[no-untyped-call]
    # PyTorch finds no fallback for an operand of ours: torch.tensor copies into one, and needs a kernel of its own.
    copies = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    copies.impl("copy_", creation.copy_, "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.extend((library, copies))
    register_loading()
