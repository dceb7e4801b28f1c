"""Imports what cutting and planning need as they begin: the launcher's fork server does so once for all workers.

torch imports much of it when it follows its first model, which takes a process a second or more. What is not installed
is left out: the program is told when it asks for a pipeline.
"""

from __future__ import annotations

import contextlib
import importlib

MODULES = (
    "multiworld.training.pipeline.opening",
    "torch.export._trace",
    "torch._export.passes.replace_autocast_with_hop_pass",
    "torch._export.passes.replace_set_grad_with_hop_pass",
    "sympy.tensor.tensor",
)

for _name in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
