"""``m8d-post-setup``: what patched PyTorch for multiworld 0.0.x, so that scripts which still call it go on."""

from __future__ import annotations

import sys
from collections.abc import Sequence

TEXT = """\
multiworld needs no patch to PyTorch: nothing was changed. You can leave this step out.
If this PyTorch was patched for multiworld 0.0.x or 0.2.x, install it afresh: pip install --force-reinstall torch
Programs that use torch.distributed.WorldManager call multiworld.install_in_torch() first.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Say so for every file, and return 0."""
    sys.stdout.write(TEXT)
    return 0
