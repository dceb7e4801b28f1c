"""Keeps profiles in files, so that a model is measured once on each kind of device."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from ...model.layers import LayeredModel
from ..errors import ProfileError
from ..planning.profile import Profile
from ..planning.profile_file import ProfileKey, profile_text, read_profile
from .keys import key_of
from .measuring import ADAMW_STATES, Loss, measure_layers

logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return the user's folder for profiles: ``$XDG_CACHE_HOME/multiworld/profiles``, by default below ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "multiworld" / "profiles"


def cached_profile(
    layered: LayeredModel,
    batch: Any,
    *,
    folder: Path | None = None,
    loss: Loss | None = None,
    optimizer_states: int = ADAMW_STATES,
) -> Profile:
    """Return the profile from the folder, or measure and keep it there; see ``measure_layers``.

    ``folder``: by default that of the user. A damaged file, or one of another measurement, is measured anew with a
    warning. Several processes may do this at once: each writes a file of its own and renames it. A folder that cannot
    be written costs no more than a warning.
    """
    inputs = layered.inputs_of(batch)
    named = "" if loss is None else getattr(loss, "__qualname__", type(loss).__qualname__)
    key = key_of(layered, inputs, optimizer_states=optimizer_states, loss=named)
    path = (folder or default_folder()) / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"
    found = _read(path, key, layered.name)
    if found is not None:
        return found
    profile = measure_layers(layered, batch, loss=loss, optimizer_states=optimizer_states)
    _write(path, profile_text(profile, key))
    return profile


def _read(path: Path, key: ProfileKey, model: str) -> Profile | None:
    try:
        return read_profile(str(path), path.read_text(encoding="utf-8")).fitting(key, model)
    except FileNotFoundError:
        return None
    except (ProfileError, OSError, ValueError) as error:  # ValueError: the text is not UTF-8, or a profile of nothing
        logger.warning("the profile in the cache is measured anew: %s", error)
        return None


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.stem}-", suffix=".new", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        logger.warning("the profile is not kept, for %s cannot be written: %s", path, error)
