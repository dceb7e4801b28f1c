"""What may reach for the memory of a remote tensor: run in a process of its own, where a crash is seen.

``python -m tests.unit.remote.tensor.memory_programs NAME...`` prints what came of each as a line of JSON.
"""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import multiprocessing.reduction
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.dlpack

from ..fake_node import FakeNode

Program = Callable[[Any], Any]
_torch: Final[Any] = torch  # with what its stubs leave out


def _typed(tensor: Any) -> Any:
    return _torch.storage.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=torch.float32, _internal=True)


def _jit(tensor: Any) -> Any:
    return torch.jit.trace(lambda x: x * 2, (torch.ones(4),))(tensor).tolist()  # type: ignore[no-untyped-call]


def _swapped(tensor: Any) -> Any:
    other = torch.zeros(4)
    torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
    return [tensor.tolist(), other.tolist()]


def _queued(tensor: Any) -> Any:
    queue = multiprocessing.get_context("fork").SimpleQueue()
    queue.put(tensor)
    return queue.get().tolist()


def _into(tensor: Any) -> Any:
    array = np.zeros(4, dtype=np.float32)
    np.copyto(array, tensor)
    return array.tolist()


def _written(tensor: Any) -> None:
    with tempfile.TemporaryFile() as file:
        tensor.untyped_storage()._write_file(file, True, True, 4)


REFUSED: Final[dict[str, Program]] = {
    "dlpack": lambda t: _torch.utils.dlpack.to_dlpack(t),
    "dlpack to read": lambda t: _torch.utils.dlpack.from_dlpack(torch._C._to_dlpack(t)).sum(),
    "from_dlpack": lambda t: _torch.from_dlpack(t),
    "numpy.from_dlpack": lambda t: np.from_dlpack(t),
    "set_ storage": lambda t: torch.zeros(4).set_(t.untyped_storage()),
    "set_ part of a storage": lambda t: torch.zeros(4).set_(t.untyped_storage(), 0, (4,), (1,)),
    "set_ typed storage": lambda t: torch.zeros(4).set_(_typed(t)),
    "set_ tensor": lambda t: torch.zeros(4).set_(t),
    "set_ part of a tensor": lambda t: torch.zeros(4).set_(t, 0, (4,), (1,)),
    "remote set_ storage": lambda t: t.set_(torch.zeros(4).untyped_storage()),
    "remote set_ part": lambda t: t.set_(torch.zeros(4).untyped_storage(), 0, (4,), (1,)),
    "remote set_ its own": lambda t: t.set_(t.untyped_storage()),
    "remote set_ part of its own": lambda t: t.set_(t.untyped_storage(), 0, (2,), (1,)),
    "new from a storage": lambda t: t.new(torch.zeros(4).untyped_storage()),
    "Tensor of a storage": lambda t: torch.Tensor(t.untyped_storage()),
    "FloatTensor of a storage": lambda t: torch.FloatTensor(t.untyped_storage()),
    "local data": lambda t: setattr(torch.zeros(4), "data", t),
    "storage": lambda t: t.storage(),
    "storage: data_ptr": lambda t: t.untyped_storage().data_ptr(),
    "storage: tolist": lambda t: t.untyped_storage().tolist(),
    "storage: list": lambda t: list(t.untyped_storage()),
    "storage: index": lambda t: t.untyped_storage()[0],
    "storage: set an index": lambda t: t.untyped_storage().__setitem__(0, 1),
    "storage: fill_": lambda t: t.untyped_storage().fill_(0),
    "storage: copy_": lambda t: t.untyped_storage().copy_(torch.zeros(4).untyped_storage()),
    "storage: copy_ to a local one": lambda t: torch.zeros(4).untyped_storage().copy_(t.untyped_storage()),
    "storage: clone": lambda t: t.untyped_storage().clone(),
    "storage: cpu": lambda t: t.untyped_storage().cpu(),
    "storage: pin_memory": lambda t: t.untyped_storage().pin_memory(),
    "storage: share_memory_": lambda t: t.untyped_storage().share_memory_(),
    "storage: _share_fd_cpu_": lambda t: t.untyped_storage()._share_fd_cpu_(),
    "storage: _share_filename_cpu_": lambda t: t.untyped_storage()._share_filename_cpu_(),
    "storage: resize_": lambda t: t.untyped_storage().resize_(64),
    "storage: byteswap": lambda t: t.untyped_storage().byteswap(torch.float32),
    "storage: float": lambda t: t.untyped_storage().float(),
    "storage: _write_file": _written,
    "storage: pickle": lambda t: pickle.dumps(t.untyped_storage()),
    "storage: pickle for a queue": lambda t: multiprocessing.reduction.ForkingPickler.dumps(t.untyped_storage()),
    "storage: deepcopy": lambda t: copy.deepcopy(t.untyped_storage()),
    "storage: save": lambda t: torch.save(t.untyped_storage(), io.BytesIO()),
    "typed storage: tolist": lambda t: _typed(t).tolist(),
    "typed storage: pickle": lambda t: pickle.dumps(_typed(t)),
    "frombuffer": lambda t: torch.frombuffer(t, dtype=torch.float32),
    "memoryview": lambda t: memoryview(t),
    "numpy": lambda t: t.numpy(),
    "numpy.asarray": lambda t: np.asarray(t),
    "numpy.frombuffer": lambda t: np.frombuffer(t, dtype=np.float32),
    "numpy ufunc": lambda t: np.sin(t),
    "numpy ufunc out=": lambda t: np.add(np.ones(4), 1, out=t),
    "numpy.copyto": _into,
    "data_ptr": lambda t: t.data_ptr(),
    "const_data_ptr": lambda t: t.const_data_ptr(),
    "pin_memory": lambda t: t.pin_memory(),
    "share_memory_": lambda t: t.share_memory_(),
    "apply_": lambda t: t.apply_(lambda each: each),
    "map_": lambda t: torch.ones(4).map_(t, lambda one, other: one),
    "as_strided_ beyond": lambda t: t.as_strided_((100,), (1,)),
    "compile": lambda t: torch.compile(lambda x: x * 2, backend="aot_eager")(t),
    "quantize": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "broadcast": lambda t: _torch.distributed.broadcast(t, 0),
    "all_gather": lambda t: _torch.distributed.all_gather([torch.zeros(4)], t),
    "scatter": lambda t: _torch.distributed.scatter(torch.zeros(4), [t]),
}
"""Each raises an error."""

WORKS: Final[dict[str, tuple[Program, Any]]] = {
    "storage: nbytes": (lambda t: t.untyped_storage().nbytes(), 16),
    "storage: is the same": (lambda t: t.untyped_storage() is t.untyped_storage(), True),
    "storage: after resize_": (lambda t: t.resize_(8).untyped_storage().nbytes(), 32),
    "as_strided_": (lambda t: t.as_strided_((2, 2), (2, 1)).tolist(), [[0.0, 1.0], [2.0, 3.0]]),
    "set_ remote": (lambda t: t.set_(t + 1).tolist(), [1.0, 2.0, 3.0, 4.0]),
    "numpy by force": (lambda t: t.numpy(force=True).tolist(), [0.0, 1.0, 2.0, 3.0]),
    "numpy operator": (lambda t: np.add(t, 1).tolist(), [1.0, 2.0, 3.0, 4.0]),
    "numpy scalar": (lambda t: (np.float32(2) * t).tolist(), [0.0, 2.0, 4.0, 6.0]),
    "pickle": (lambda t: pickle.loads(pickle.dumps(t)).tolist(), [0.0, 1.0, 2.0, 3.0]),
    "queue": (_queued, [0.0, 1.0, 2.0, 3.0]),
    "swap_tensors": (_swapped, [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]]),
    "jit.trace": (_jit, [0.0, 2.0, 4.0, 6.0]),
    "torch.tensor": (lambda t: torch.tensor(t).tolist(), [0.0, 1.0, 2.0, 3.0]),
    "torch.tensor of a list": (lambda t: torch.tensor([t[1], t[2]]).tolist(), [1.0, 2.0]),
    "torch.tensor of whole numbers": (lambda t: torch.tensor([t[1].long(), 5]).tolist(), [1, 5]),
    "asarray": (lambda t: torch.asarray(t).tolist(), [0.0, 1.0, 2.0, 3.0]),
    "compile eager": (lambda t: torch.compile(lambda x: x * 2, backend="eager")(t).tolist(), [0.0, 2.0, 4.0, 6.0]),
    "new": (lambda t: [list(t.new(2, 3).shape), t.new([1.0]).tolist(), t.new().numel()], [[2, 3], [1.0], 0]),
    "new of a tensor": (lambda t: t.new(t + 1).tolist(), [1.0, 2.0, 3.0, 4.0]),
    "numbers": (lambda t: [bool(t[0]), int(t[2]), float(t[3]), [5, 6][t[1].long()]], [False, 2, 3.0, 6]),
}
"""Each returns that of a tensor that holds 0, 1, 2, 3."""


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    programs = {**REFUSED, **{name: program for name, (program, _) in WORKS.items()}}
    _torch.distributed.init_process_group("gloo", store=_torch.distributed.HashStore(), rank=0, world_size=1)
    with FakeNode() as fake:
        for name in names:
            tensor = fake.node.send(torch.arange(4.0))
            kind, value = "", None
            try:
                value = programs[name](tensor)
            except Exception as error:
                kind = type(error).__name__
            shown = value if isinstance(value, (bool, int, list)) else None
            print(json.dumps([name, kind, shown]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
