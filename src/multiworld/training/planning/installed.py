"""Say what planning needs and does not find. Import this first: it needs nothing."""

from __future__ import annotations

from ...extras import TRAINING, install_extra, missing_modules
from ..errors import SetupError


def check_installed() -> None:
    """Raises SetupError with the names of missing packages, and how to install them."""
    missing = missing_modules(TRAINING)
    if missing:
        raise SetupError(f"plans of pipelines need {', '.join(missing)}: {install_extra('training')}")
