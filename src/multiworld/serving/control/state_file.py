"""The file in which a controller keeps what its successor must know: always whole, for this user only."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ...errors import MessageError
from ...wire.messages import from_json, to_json
from .fleet.saved import SavedFleet


class StateFile:
    """Written whenever something in it changed, before that is acted upon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = ""
        self._removed = False

    def read(self) -> SavedFleet | None:
        """Return what was written last; None if nothing was. Raises ValueError for a file that is not ours."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        try:
            return from_json(SavedFleet, json.loads(text))
        except MessageError as error:
            raise ValueError(f"{self.path} does not hold a controller's state: {error}") from None

    def write(self, state: SavedFleet) -> None:
        """Replace the file at once, if that changes anything. Raises OSError."""
        text = json.dumps(to_json(state), separators=(",", ":"))
        if text == self._last or self._removed:
            return
        fresh = self.path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        fresh.replace(self.path)
        self._last = text

    def remove(self) -> None:
        """The deployment has ended; there is nothing to take over."""
        self._removed = True
        self.path.unlink(missing_ok=True)
