"""The file in which a controller keeps what its successor must know: always whole, for this user only."""

from __future__ import annotations

from pathlib import Path

from ...errors import MessageError
from ...wire.messages import decode, encode
from ..whole_file import whole_file
from .fleet.saved import SavedFleet


class StateFile:
    """Written whenever something in it changed, before that is acted upon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = b""
        self._removed = False

    def read(self) -> SavedFleet | None:
        """Return what was written last; None if nothing was. Raises ValueError for a file that is not ours."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode(SavedFleet, data)
        except MessageError as error:
            raise ValueError(f"{self.path} does not hold a controller's state: {error}") from None

    def write(self, state: SavedFleet) -> None:
        """Replace the file at once, if that changes anything. Raises OSError."""
        data = encode(state)
        if data == self._last or self._removed:
            return
        with whole_file(self.path) as file:
            file.write(data)
        self._last = data

    def remove(self) -> None:
        """The deployment has ended; there is nothing to take over."""
        self._removed = True
        self.path.unlink(missing_ok=True)
