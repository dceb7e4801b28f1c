"""Which channel a backend and a device lead to, and what is said when there is none."""

from __future__ import annotations

import pytest
import torch

from multiworld.channel import registry
from multiworld.channel.auto import AutoChannel
from multiworld.channel.base import ChannelSupport
from multiworld.channel.nccl.channel import NcclChannel
from multiworld.channel.registry import available, channel_names, find_channel
from multiworld.channel.tcp import TcpChannel
from multiworld.world.joining.join_request import check_request

CUDA = torch.device("cuda", 0)


class WorkingNccl(NcclChannel):
    """As on a machine with GPUs."""

    @classmethod
    def support(cls) -> ChannelSupport:
        return ChannelSupport(cls.name, True)


class AbsentNccl(NcclChannel):
    """As on a machine without."""

    @classmethod
    def support(cls) -> ChannelSupport:
        return ChannelSupport(cls.name, False, "there is no CUDA device")


def test_auto_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.OURS, "nccl", WorkingNccl)
    assert find_channel("auto", torch.device("cpu")) is AutoChannel
    assert find_channel("auto", CUDA) is WorkingNccl
    assert find_channel("nccl", CUDA) is WorkingNccl


@pytest.mark.parametrize("name", ["auto", "nccl"])
def test_nccl_where_it_cannot_work_is_refused_with_the_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.OURS, "nccl", AbsentNccl)
    with pytest.raises(ValueError, match=f"backend '{name}' cannot move tensors on cuda:0 here: there is no CUDA"):
        find_channel(name, CUDA)


@pytest.mark.parametrize(("name", "device"), [("nccl", "cpu"), ("tcp", "cuda"), ("gloo", "meta")])
def test_a_device_that_a_channel_does_not_serve_is_refused(name: str, device: str) -> None:
    with pytest.raises(ValueError, match=f"backend '{name}' moves tensors on"):
        find_channel(name, torch.device(device))


def test_an_unknown_backend_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="expected one of auto, shm, tcp, authenticated, gloo, mpi, nccl"):
        find_channel("pigeon", torch.device("cpu"))


def test_a_class_that_is_not_registered_goes_by_its_place() -> None:
    assert find_channel("multiworld.channel.tcp:TcpChannel", torch.device("cpu")) is TcpChannel
    for place in ("no.such.module:Channel", "multiworld.channel.tcp:NoChannel", ":TcpChannel"):
        with pytest.raises(ValueError, match=f"backend '{place}' cannot be imported"):
            find_channel(place, torch.device("cpu"))
    with pytest.raises(TypeError, match="not a DataChannel class"):
        find_channel("multiworld.channel.tcp:StreamMesh", torch.device("cpu"))


def test_every_channel_says_whether_it_works() -> None:
    assert {"auto", *channel_names()} == set(available())
    support = available()["nccl"]
    assert support.works == (support.reason == "")


def test_nccl_without_a_device_means_a_cuda_device() -> None:
    request = check_request("w", 0, 1, "tcp://127.0.0.1:1", "nccl", 1.0, None, False)
    assert request.device.type == "cuda"
    assert request.device.index is not None


def test_a_cuda_device_without_an_index_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    request = check_request("w", 0, 1, "tcp://127.0.0.1:1", "nccl", 1.0, "cuda", False)
    assert request.device == torch.device("cuda", 3)
