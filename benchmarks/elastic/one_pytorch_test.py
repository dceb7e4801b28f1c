"""Run one of PyTorch's launcher tests in this process, as it stands or with our launcher in the place of torchrun."""

from __future__ import annotations

import importlib
import sys
import unittest
from pathlib import Path

import torch.distributed.launch
import torch.distributed.run

import multiworld.launch
import multiworld.run

from .pytorch_tests import FAILED, NOT_LOADED, OURS, PASSED, SKIPPED


def main(side: str, path: Path, name: str) -> int:
    """Run test ``name`` (``Class.method``) of the file; return how it ended, as an exit status."""
    if side == OURS:  # what the tests call: they start torchrun in no other way
        torch.distributed.run.main = multiworld.run.main
        torch.distributed.launch.main = multiworld.launch.main
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except ImportError as error:
        print(f"{path.name} cannot be imported: {error}", file=sys.stderr)
        return NOT_LOADED
    sys.argv[1:] = []
    test = unittest.defaultTestLoader.loadTestsFromName(name, module)
    result = unittest.TextTestRunner(verbosity=2).run(test)
    if result.testsRun != 1 or not result.wasSuccessful():
        return FAILED
    return SKIPPED if result.skipped else PASSED


if __name__ == "__main__":
    _, side, file, name = sys.argv
    sys.exit(main(side, Path(file), name))
