"""The times that tests of faults allow: those promised, with room for a machine that is busy with other things."""

from __future__ import annotations

from .deadlines import scaled

KILL_S = scaled(1.0)
"""From SIGKILL until every survivor knows. Promised: 0.25 s for 99 of 100."""

PENDING_S = scaled(0.25)
"""From knowing until every pending operation has raised. Promised: 0.05 s."""

STOP_S = scaled(1.0)
"""From the end of the lease until a stopped peer is known as such. Promised: 0.25 s."""

CUT_S = scaled(4.0)
"""From a cut network until both sides know, with default settings. Promised: 2.5 s."""

CANCEL_S = scaled(0.25)
"""How late ``wait_for`` may return, and a deadline may be. Promised: 0.05 s."""

STALL_S = scaled(0.2)
"""For how long the event loop may stand still meanwhile. Promised: 0.02 s."""
