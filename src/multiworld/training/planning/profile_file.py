"""A profile as text in a file: JSON with a version, and with the key of the measurement that made it. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NoReturn

from ..errors import ProfileFileError, ProfileMismatchError
from .json_fields import Fields, told
from .profile import LayerCost, Profile

FORMAT = "multiworld profile"
VERSION = 1
KEYS = frozenset({"format", "version", "model", "key", "micro_batch", "latency_s", "bytes_per_s", "layers", "sharded"})


@dataclass(frozen=True, kw_only=True)
class ProfileKey:
    """What a measurement holds for. ``model_digest``: of structure and configuration; ``shapes``: of the example."""

    model_digest: str
    shapes: str
    device: str
    torch_version: str

    def differences(self, wanted: ProfileKey) -> tuple[str, ...]:
        """Return where this key is not the one that is wanted, one sentence each."""
        names = {
            "model_digest": "model (digest)",
            "shapes": "shapes",
            "device": "device",
            "torch_version": "version of torch",
        }
        return tuple(
            f"its {name} is {getattr(self, field)!r}, and {getattr(wanted, field)!r} is wanted"
            for field, name in names.items()
            if getattr(self, field) != getattr(wanted, field)
        )


KEY_NAMES = tuple(each.name for each in fields(ProfileKey))
LAYER_NAMES = tuple(each.name for each in fields(LayerCost))
BYTES = frozenset(name for name in LAYER_NAMES if name.endswith("_bytes"))


@dataclass(frozen=True, kw_only=True)
class StoredProfile:
    """What a file holds. ``key``: None for a profile that nobody measured."""

    source: str
    profile: Profile
    key: ProfileKey | None

    def fitting(self, wanted: ProfileKey, model: str) -> Profile:
        """Return the profile if it was measured for this. Raises ProfileMismatchError, which says what differs."""
        if self.key is None:
            found: tuple[str, ...] = ("nobody measured it, it has no key",)
        else:
            found = self.key.differences(wanted)
        if found and self.profile.model != model:
            found = (f"its model is {self.profile.model!r}, and {model!r} is wanted", *found)
        if found:
            raise ProfileMismatchError(self.source, found)
        return self.profile


def profile_text(profile: Profile, key: ProfileKey | None = None) -> str:
    """Return the text of a file, with a line for each layer."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "model": profile.model,
        "key": None if key is None else {name: getattr(key, name) for name in KEY_NAMES},
        "micro_batch": profile.micro_batch,
        "latency_s": profile.latency_s,
        "bytes_per_s": None if math.isinf(profile.bytes_per_s) else profile.bytes_per_s,
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    sharded = [
        f"    {json.dumps(str(devices))}: {_layers_text(layers, '    ')}" for devices, layers in profile.sharded.items()
    ]
    inside = "{\n" + ",\n".join(sharded) + "\n  }" if sharded else "{}"
    return "\n".join(
        ["{", *lines, f'  "layers": {_layers_text(profile.layers, "  ")},', f'  "sharded": {inside}', "}", ""]
    )


def _layers_text(layers: Sequence[LayerCost], indent: str) -> str:
    rows = [
        f"{indent}  {json.dumps({name: getattr(each, name) for name in LAYER_NAMES if _is_said(each, name)})}"
        for each in layers
    ]
    return "[\n" + ",\n".join(rows) + f"\n{indent}]"


def _is_said(layer: LayerCost, name: str) -> bool:
    return name in ("name", "forward_s", "backward_s") or bool(getattr(layer, name))


def read_profile(source: str, text: str) -> StoredProfile:
    """Return what a file holds. Raises ProfileFileError, which says where the text is wrong."""

    def no_number(constant: str) -> NoReturn:
        raise ProfileFileError(source, "", f"{constant} is no number that a profile may have")

    try:
        value = json.loads(text, parse_constant=no_number)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ProfileFileError(source, place, f"this is not JSON: {error.msg}") from None
    except RecursionError:
        raise ProfileFileError(source, "", "this is not a profile: brackets are nested too deeply") from None
    except ValueError:  # int() takes no more than some thousand digits
        raise ProfileFileError(source, "", "a number has too many digits") from None
    reader = _Layers(source)
    top = reader.mapping(value, "")
    found = top.get("format")
    if found != FORMAT:
        raise reader.problem("format", f"this is not a profile: expected {FORMAT!r}, found {told(found)}")
    version = reader.count(top, "version", "")
    if version > VERSION:
        raise reader.problem(
            "version", f"a later release wrote this: it is {version}, and this release reads up to {VERSION}"
        )
    reader.only(top, KEYS, "")
    name = reader.text(top, "model", "")
    sharded = reader.mapping(top.get("sharded", {}), "sharded")
    layers = reader.layers(top.get("layers"), "layers")
    profile = Profile(
        model=name,
        micro_batch=reader.count(top, "micro_batch", ""),
        layers=layers,
        sharded={reader.devices(key): reader.same_layers(value, key, layers) for key, value in sharded.items()},
        latency_s=reader.number(top, "latency_s", "", 0.0),
        bytes_per_s=_rate(reader, top),
    )
    if sum(each.work_s for each in profile.layers) <= 0.0:
        raise reader.problem("layers", "no layer takes any time")
    key = top.get("key")
    return StoredProfile(source=source, profile=profile, key=None if key is None else _key(reader, key))


def _key(reader: _Layers, value: object) -> ProfileKey:
    found = reader.mapping(value, "key")
    reader.only(found, frozenset(KEY_NAMES), "key.")
    return ProfileKey(**{name: reader.text(found, name, "key.") for name in KEY_NAMES})


def _rate(reader: _Layers, top: Mapping[str, object]) -> float:
    if top.get("bytes_per_s") is None:
        return math.inf
    rate = reader.number(top, "bytes_per_s", "")
    if rate <= 0.0:
        raise reader.problem("bytes_per_s", f"is {rate:g}: give more than 0, or null for no limit")
    return rate


class _Layers(Fields):
    """Takes the layers out, too."""

    def devices(self, key: str) -> int:
        devices = int(key) if key.isascii() and key.isdigit() and len(key) < 7 else 0
        if devices < 2 or devices & (devices - 1):
            raise self.problem(f"sharded[{json.dumps(key)}]", "expected a number of devices: 2, 4, 8, ...")
        return devices

    def layers(self, value: object, path: str) -> tuple[LayerCost, ...]:
        if not isinstance(value, list) or not value:
            raise self.problem(path, f"expected a list of layers, found {told(value)}")
        return tuple(self._layer(each, f"{path}[{index}]") for index, each in enumerate(value))

    def same_layers(self, value: object, key: str, layers: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
        """Return the layers as measured on several devices."""
        path = f"sharded[{json.dumps(key)}]"
        found = self.layers(value, path)
        if [each.name for each in found] != [each.name for each in layers]:
            raise self.problem(path, 'these are not the layers of "layers", by their names')
        return found

    def _layer(self, value: object, path: str) -> LayerCost:
        found, place = self.mapping(value, path), f"{path}."
        self.only(found, frozenset(LAYER_NAMES), place)
        forward_s, backward_s = (self.number(found, name, place) for name in ("forward_s", "backward_s"))
        weights_s = self.number(found, "weight_backward_s", place, 0.0)
        if weights_s > backward_s:
            raise self.problem(
                f"{place}weight_backward_s", f"is {weights_s:g}, a part of backward_s, which is {backward_s:g}"
            )
        return LayerCost(
            name=self.text(found, "name", place),
            forward_s=forward_s,
            backward_s=backward_s,
            weight_backward_s=weights_s,
            **{name: self._bytes(found, name, place) for name in BYTES},
        )

    def _bytes(self, value: Mapping[str, object], name: str, place: str) -> int:
        size = self.number(value, name, place, 0.0)
        if size != int(size):
            raise self.problem(f"{place}{name}", f"expected a whole number of bytes, found {size:g}")
        return int(size)
