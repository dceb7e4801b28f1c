"""Which work on a device has to be done before a tensor may be touched, and copies that respect it.

An operation begins after what the caller's stream held when it was called, though it is launched later, on another
thread and another stream. So the caller's tensors are replaced by fresh aliases, and for each an event is kept that was
recorded on that stream.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..base import Payload
from ..payload.tensors import as_bytes

logger = logging.getLogger(__name__)

READY_S = 0.008  # how long a copy that somebody waits for may wait for the caller's stream


class StreamOrder:
    """The events of one channel on one device; they live as long as the aliases. Any thread.

    Buffers and copies have a stream of their own, where nothing of the user's is queued.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._lock = threading.Lock()
        self._events: Any = WeakTensorKeyDictionary()
        self._own: Any = None

    def now(self) -> Any:
        """Return an event behind all that the calling thread's stream holds."""
        event = self._cuda.Event()
        event.record(self._cuda.current_stream(self._device))
        return event

    def after_now(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return aliases that may be touched after what the calling thread's stream holds at present."""
        event = self.now()
        aliases = [tensor.detach() for tensor in tensors]
        with self._lock:
            for alias in aliases:
                self._events[alias] = event
        return aliases

    def payload_after_now(self, payload: Payload) -> Payload:
        """As ``after_now``, in the structure of the payload."""
        if isinstance(payload, Tensor):
            return self.after_now([payload])[0]
        if isinstance(payload, dict):
            return dict(zip(payload, self.after_now(list(payload.values())), strict=True))
        return self.after_now(payload)

    def events(self, tensors: list[Tensor]) -> list[Any]:
        """Return what has to be over before these aliases are touched, each event once."""
        with self._lock:
            found = [self._events.get(tensor) for tensor in tensors]
        return list({id(event): event for event in found if event is not None}.values())

    def allocate(self, size_bytes: int) -> Tensor:
        """Return ``[size_bytes]`` uint8 on the device, to be touched after the last user of that memory."""
        own = self._stream()
        with self._cuda.stream(own):
            buffer = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
            event = self._cuda.Event()
            event.record(own)
        with self._lock:
            self._events[buffer] = event
        return buffer

    def fill(self, target: Tensor, source: Tensor) -> None:
        """Copy the bytes of one tensor into another of the same size; returns when that is done."""
        own = self._stream()
        with self._cuda.stream(own), torch.inference_mode():  # which may write into tensors that were made in it
            for event in self.events([target, source]):
                own.wait_event(event)
            as_bytes(target).copy_(as_bytes(source))
            own.synchronize()

    def copy(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """Return finished copies; None if the tensors are not ready within milliseconds, or there is no memory."""
        at = time.monotonic() + READY_S
        for event in self.events(tensors):
            while not event.query():
                if time.monotonic() > at:
                    return None
                time.sleep(READY_S / 16)
        own = self._stream()
        try:
            with self._cuda.stream(own):
                copies = [tensor.clone() for tensor in tensors]
                own.synchronize()
        except RuntimeError as error:
            logger.warning("%s: no copy of a cancelled operation's tensors: %s", self._device, error)
            return None
        return copies

    def keep_for(self, stream: Any, payload: Payload) -> None:
        """Let the memory of a received payload not be used again before that stream is done with it."""
        tensors = [payload] if isinstance(payload, Tensor) else payload
        for tensor in tensors.values() if isinstance(tensors, dict) else tensors:
            if tensor.nbytes:
                tensor.record_stream(stream)

    def current_stream(self) -> Any:
        return self._cuda.current_stream(self._device)

    def _stream(self) -> Any:
        with self._lock:
            if self._own is None:
                self._own = self._cuda.Stream(self._device)
            return self._own
