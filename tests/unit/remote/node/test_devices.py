"""Which devices a node has, and what it says to a call on another one."""

from __future__ import annotations

import pytest
import torch

from multiworld.remote.node import devices
from multiworld.remote.node.devices import NoSuchDeviceError, check_devices
from multiworld.remote.protocol.specs import Spec
from multiworld.remote.protocol.template import Template


def template(told: torch.device | None, device: str) -> Template:
    kwargs = {} if told is None else {"device": told}
    return Template(
        operator="aten.ones.default", args=([2],), kwargs=kwargs, outputs=(Spec((2,), (1,), 0, torch.float32, device),)
    )


def test_this_process_has_a_cpu() -> None:
    assert devices.devices()[0] == "cpu"
    assert len(devices.devices()) == 1 + torch.cuda.device_count()


@pytest.mark.parametrize(("told", "device"), [("cpu", "cpu"), (None, "cpu"), ("meta", "meta"), ("cuda", "cuda:0")])
def test_a_device_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, told: str | None, device: str) -> None:
    monkeypatch.setattr(devices, "devices", lambda: ("cpu", "cuda:0"))
    check_devices(template(None if told is None else torch.device(told), device))


@pytest.mark.parametrize(("told", "device"), [("cuda:1", "cuda:1"), (None, "cuda:1")])
def test_one_that_is_not_there_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, told: str | None, device: str
) -> None:
    monkeypatch.setattr(devices, "devices", lambda: ("cpu", "cuda:0"))
    with pytest.raises(NoSuchDeviceError, match="the node has no device cuda:1; its devices: cpu, cuda:0"):
        check_devices(template(None if told is None else torch.device(told), device))
