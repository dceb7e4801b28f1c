"""The ports that several commands and functions take unless they are given another one. Pure."""

from typing import Final

NODES_PORT: Final = 29500
"""Where a node of remote tensors waits for masters, as the static rendezvous of torchrun."""
