"""The conformance suite: every guarantee of a ``DataChannel`` as a check that any implementation can run.

With pytest::

    from multiworld.testing.channel_conformance import ChannelConformance, Subject

    class TestMyChannel(ChannelConformance):
        subject = Subject("mychannel")

Without: ``python -m multiworld.testing.channel_conformance mychannel``.
"""

from .catalogue import Check, ConformanceError
from .checks import CHECKS
from .examiner import Examiner
from .subject import Effort, Subject
from .suite import ChannelConformance

__all__ = ["CHECKS", "ChannelConformance", "Check", "ConformanceError", "Effort", "Examiner", "Subject"]
