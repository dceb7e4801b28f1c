"""The suite as a class of tests, one for each check, that pytest collects from its subclasses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .catalogue import Check
from .checks import CHECKS
from .examiner import Examiner
from .subject import Effort, Subject


class ChannelConformance:
    """Subclass it with a name that begins with ``Test``, and say what is to be examined.

    The tests of a class share their processes, which the first of them starts. A test can be overridden, and
    ``Subject(skip={...})`` leaves checks out.
    """

    subject: ClassVar[Subject]
    effort: ClassVar[Effort] = Effort()
    examiner: ClassVar[Examiner]

    @classmethod
    def setup_class(cls) -> None:
        cls.examiner = Examiner(cls.subject, cls.effort)

    @classmethod
    def teardown_class(cls) -> None:
        cls.examiner.close()


def _test_of(check: Check) -> Callable[[Any], None]:
    def test(self: ChannelConformance) -> None:
        self.examiner.run(check.name)

    test.__name__ = test.__qualname__ = f"test_{check.name}"
    test.__doc__ = check.promise
    return test


for _check in CHECKS.values():
    setattr(ChannelConformance, f"test_{_check.name}", _test_of(_check))
