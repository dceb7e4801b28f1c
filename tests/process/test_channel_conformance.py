"""Every channel keeps every promise: ours, and the one that the documentation shows how to write."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import ClassVar

import torch

from multiworld.testing import Resources, check_returned, measure
from multiworld.testing.channel_conformance import ChannelConformance, Subject
from tests.examples.test_docs import ROOT, code_blocks

NUM_DEVICES = torch.cuda.device_count()
FEW = (1, 2, 3)  # of those whose streams are examined with more members under another name
CHANNELS = {
    "Shm": Subject("shm"),
    "Auto": Subject("auto", world_sizes=FEW),
    "Tcp": Subject("tcp"),
    "Gloo": Subject("gloo", world_sizes=FEW),
    "Nccl": Subject("nccl", device="cuda:{member}", world_sizes=range(1, max(2, min(NUM_DEVICES, 5)) + 1)),
    "Mpi": Subject("mpi", world_sizes=FEW),
    "Documented": Subject("unix", world_sizes=FEW),
}
ENTRY_POINT = "[multiworld.channels]\nunix = unix_channel:UnixChannel\n"


class Conformance(ChannelConformance):
    """The suite, and the check that it leaves nothing behind itself."""

    before: ClassVar[Resources]
    installed: ClassVar[tempfile.TemporaryDirectory[str]]

    @classmethod
    def setup_class(cls) -> None:
        cls.before = measure()
        cls.installed = tempfile.TemporaryDirectory()
        install_documented_channel(Path(cls.installed.name))
        sys.path.append(cls.installed.name)
        super().setup_class()

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        sys.path.remove(cls.installed.name)
        cls.installed.cleanup()
        check_returned(cls.before)


def install_documented_channel(folder: Path) -> None:
    """Do what pip does with the package of somebody who has written the channel of the documentation."""
    (code,) = (code for title, code in code_blocks(ROOT / "docs/channels.md") if title == "unix_channel.py")
    (folder / "unix_channel.py").write_text(code)
    information = folder / "unix_channel-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: unix_channel\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINT)


for name, subject in CHANNELS.items():
    globals()[f"Test{name}"] = type(f"Test{name}", (Conformance,), {"subject": subject})
