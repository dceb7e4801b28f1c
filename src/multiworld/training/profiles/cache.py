"""Keeps profiles in files, so that a model is measured once on each kind of device."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ...model.layers import LayeredModel
from ..errors import ProfileError
from ..planning.profile import Profile
from ..planning.profile_file import ProfileKey, profile_text, read_profile
from .keys import key_of
from .measuring import ADAMW_STATES, Loss, measure_layers
from .turns import one_at_a_time

logger = logging.getLogger(__name__)

AGAIN_S = 0.2
"""How long a profile that was kept is measured once more, at most, but for one run of each layer."""
LONGEST_S = 1.0
"""Of one micro-batch: models that take longer are not measured again, as their training would begin much later."""
FRESH_S = 60.0
"""A profile that was measured so shortly ago is taken as it is: by the processes that begin together, above all."""


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
    device: torch.device | None = None,
    again: bool = True,
) -> Profile:
    """Return the profile from the folder, or measure and keep it there; see ``measure_layers``.

    ``folder``: by default that of the user. A profile in it is measured once more, for a short time, and the shorter
    times are kept: it may have been measured while the machine was busy, and then one measurement would make bad cuts
    for ever. ``again=False``: take it as it is, as a process does that others wait for.

    One process of this user measures at a time, the others of this host take what it has kept. A damaged file, or one
    of another measurement, is measured anew with a warning. A file is written under another name and renamed. A folder
    that cannot be written costs no more than a warning.
    """
    device = layered.home if device is None else device
    inputs = layered.inputs_of(batch, device)
    named = "" if loss is None else getattr(loss, "__qualname__", type(loss).__qualname__)
    key = key_of(layered, inputs, optimizer_states=optimizer_states, loss=named)
    folder = folder or default_folder()
    path = folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"
    with one_at_a_time(folder):
        found = _read(path, key, layered.name)
        if found is not None and not (again and _is_worth_it(found, path)):
            return found
        limit_s = math.inf if found is None else AGAIN_S
        profile = measure_layers(
            layered, batch, loss=loss, optimizer_states=optimizer_states, device=device, limit_s=limit_s
        )
        if found is not None:
            profile = found.shortest(profile)
        _write(path, profile_text(profile, key))
    return profile


def _is_worth_it(found: Profile, path: Path) -> bool:
    try:
        age_s = abs(time.time() - path.stat().st_mtime)
    except OSError:  # removed meanwhile
        return False
    return age_s >= FRESH_S and sum(each.work_s for each in found.layers) <= LONGEST_S


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
