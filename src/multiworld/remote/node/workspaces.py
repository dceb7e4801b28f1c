"""Operators that keep a workspace for their backward: the node keeps it, and the master never looks into it."""

from __future__ import annotations

from typing import Any, Final

import torch

from .operators import Operator

WORKSPACES: Final = {"aten.mkldnn_rnn_layer.default": 3}
"""The place of the workspace among the results. Its size is known only to oneDNN."""


def with_workspace(operator: Operator) -> Operator:
    """Return the operator as it runs where gradients are wanted: oneDNN makes a workspace only there."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return operator(*args, **kwargs)

    return call
