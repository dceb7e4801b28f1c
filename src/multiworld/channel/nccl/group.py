"""One NCCL process group: built without the default group and without what could kill the process, and ended in time.

PyTorch guards every NCCL group with threads of its own. Its watchdog and its heartbeat monitor end the *process* when a
communicator fails, a collective takes too long, or the interpreter lock is held too long. Here a world breaks instead,
and the process is the user's. What they do is read from the environment when a group is constructed, and there is no
option for it: with ``TORCH_NCCL_BLOCKING_WAIT`` neither thread is made. (It also lets ``Work.wait`` block, but nobody
calls that here.) So ``without_watchdog`` sets it for the microseconds of the constructor and restores it; groups
that the user makes are guarded as ever. See ``docs/decisions/007-nccl.md``.

A kernel that was ended by an abort looks like one that is done. So nothing is believed that is seen
after the group was closed: whoever has looked at a work looks at that next, before anybody is told.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed

from .cuda_queue import CudaQueue

logger = logging.getLogger(__name__)
c10d: Any = torch.distributed  # whose NCCL part exists only in builds for CUDA
cuda: Any = torch.cuda  # whose annotations are incomplete

FOREVER = timedelta(days=365)  # a world decides who is alive; no timeout of a process group does
CALL_GRACE_S = 0.5  # a call of the group that is under way is over before this, unless it waits for a lost peer
_CONSTRUCTION = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",  # each of ours has one direction only: it must
}
_environment_lock = threading.Lock()

Start = Callable[[Any], Any]
"""Call a method of the process group; return the work."""
OnOver = Callable[[Exception | None], None]


@contextmanager
def without_watchdog() -> Iterator[None]:
    """Let NCCL groups that are constructed meanwhile have no threads; the environment is as before afterwards."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in _CONSTRUCTION}
        os.environ.update(_CONSTRUCTION)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def make_process_group(store: Any, rank: int, size: int, label: str) -> Any:
    """Construct a group; it connects in ``eager_connect_single_device``."""
    options: Any = c10d.ProcessGroupNCCL.Options()
    options._timeout = FOREVER
    options.group_name = label
    # The other mode would let the launching thread, and with it every world of the device, wait for one connection,
    # in a way that no abort ends.
    options.config.blocking = 1
    with without_watchdog():
        return c10d.ProcessGroupNCCL(store, rank, size, options)


def failure_of(work: Any) -> Exception | None:
    """Return what NCCL found wrong when the work was last asked whether it is complete.

    The future result is completed by nothing but a failure, as there is no watchdog. ``exception`` is deprecated, says
    so on standard error, and may be unable to convert what it returns: it is asked only for the words.
    """
    if not work.get_future_result().done():
        return None
    try:
        error = work.exception()
    except (TypeError, RuntimeError) as raised:
        error = raised
    return RuntimeError(str(error) if error is not None else "NCCL reported an error of the communicator")


class LaunchStream:
    """The CUDA stream on which the operations of one group are launched."""

    def __init__(self, device: torch.device) -> None:
        self._stream = cuda.Stream(device)

    def issue(self, after: Sequence[Any], start: Callable[[], Any]) -> tuple[Any, Any]:
        """Start behind the events; return the work, and an event that is over when it is."""
        with cuda.stream(self._stream), torch.inference_mode():  # PyTorch copies into the caller's lists itself
            for event in after:
                self._stream.wait_event(event)
            work = start()
            work.get_future().wait()  # complete already: this only orders the stream behind the kernel
            end = cuda.Event()
            end.record(self._stream)
        return work, end


class NcclGroup:
    """A process group of one world, and its end. All methods but ``connect`` and ``abort`` return at once."""

    def __init__(
        self,
        label: str,
        rank: int,
        size: int,
        device: torch.device,
        queue: CudaQueue,
        *,
        make: Callable[[Any, int, int, str], Any] = make_process_group,
        make_stream: Callable[[torch.device], Any] = LaunchStream,
    ) -> None:
        self._label, self._rank, self._size, self._device = label, rank, size, device
        self._queue, self._make, self._make_stream = queue, make, make_stream
        self._lock = threading.Lock()  # held while the group is called: an abort waits a moment for that
        self._group: Any = None
        self._stream: Any = None
        self._closed = False

    @property
    def exists(self) -> bool:
        return self._group is not None

    def connect(self, store: Any) -> None:
        """Connect to all ranks, bound to the device. Blocks, without a limit of its own: on a thread of its own."""
        if self._closed:
            raise RuntimeError(f"{self._label}: closed")
        group = self._make(store, self._rank, self._size, self._label)
        self._group = group
        group.bound_device_id = self._device
        group.eager_connect_single_device(self._device)
        self._stream = self._make_stream(self._device)
        if self._closed:  # whoever aborted it may have found nothing yet that could be aborted
            group.abort()
            self._group = None
            raise RuntimeError(f"{self._label}: closed while it connected")

    def launch(self, after: Sequence[Any], start: Start, on_over: OnOver) -> bool:
        """Launch on the device's thread, behind the events, in the order of the calls.

        ``on_over`` is called on another thread, when the device is done: with None, or with what went wrong. Never once
        the group is closed; then it is over when ``abort`` has returned. False: it will not be launched.
        """
        return not self._closed and self._queue.launch(partial(self._launch, after, start, on_over))

    def close(self) -> None:
        """Launch nothing more, and let nothing end well any more."""
        self._closed = True

    def abort(self) -> None:
        """End all kernels. Blocks as long as NCCL likes: on a thread of its own, after ``close``."""
        if self._lock.acquire(timeout=CALL_GRACE_S):  # no launch enters after this
            self._lock.release()
        group = self._group
        if group is not None:
            group.abort()

    def drop(self) -> None:
        """Give the process group back, after ``abort`` has returned."""
        self._group = self._stream = None

    def _launch(self, after: Sequence[Any], start: Start, on_over: OnOver) -> None:
        failure: Exception | None = None
        with self._lock:
            if self._closed:
                return
            try:
                work, end = self._stream.issue(after, partial(start, self._group))
            except Exception as error:  # whatever the library raises belongs to this operation
                failure = RuntimeError(str(error))
        if failure is None:
            self._queue.watch(partial(self._check, work, end, on_over))
        elif not self._closed:
            on_over(failure)

    def _check(self, work: Any, end: Any, on_over: OnOver) -> bool:
        """Look whether a work is over, then whether that may be believed, and only then tell it."""
        if self._closed:
            return True
        if not self._lock.acquire(blocking=False):  # a launch that waits for a peer must not hold up other worlds
            return False
        try:
            over, failure = _look(work, end)
        finally:
            self._lock.release()
        if self._closed:  # read after the look: what an abort ended was seen to be over only once this was set
            return True
        if over:
            on_over(failure)
        return over


def _look(work: Any, end: Any) -> tuple[bool, Exception | None]:
    """Return whether the work is over, and what went wrong."""
    try:
        if not work.is_completed():
            return False, None
        failure = failure_of(work)
        # A failed work counts as complete while its kernel still runs; a good one needs its own evidence.
        return failure is not None or bool(end.query()), failure
    except Exception as error:  # the device itself may have failed
        return True, RuntimeError(str(error))


def abort_all(groups: Sequence[NcclGroup], held: object, deadline_s: float) -> bool:
    """Abort closed groups, all at once; False unless all have come to an end before the deadline.

    One after the other would not do: freeing the memory of one communicator may wait for the kernels of another. And
    ``ncclGroupStart`` around the aborts counts only on the thread that calls it, while PyTorch aborts on threads of
    its own. So each has its thread. One that does not come back is left alone; it keeps ``held``, what its kernels may
    still touch.
    """
    ended: list[NcclGroup] = []
    existing = [group for group in groups if group.exists]
    threads = [
        threading.Thread(target=_abort, args=(group, ended, held), name="nccl-abort", daemon=True) for group in existing
    ]
    for thread, group in zip(threads, existing, strict=True):
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending and starts no thread any more
            _abort(group, ended, held)
    at = time.monotonic() + deadline_s
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join(max(0.0, at - time.monotonic()))
    return len(ended) == len(existing)


def _abort(group: NcclGroup, ended: list[NcclGroup], held: object) -> None:
    try:
        group.abort()
    except Exception:  # its kernels may run on; the caller hears of it
        logger.exception("aborting an NCCL process group failed")
        return
    ended.append(group)
