"""Who is named as slow, and who wrongly: simulated on machines that vary, so that rare alarms can be counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from multiworld.bench.report import Bound, Line
from multiworld.training.health.slow_ranks import Slow, SlowRanks
from multiworld.training.health.step_times import Own

from .noisy_machine import TWICE_AS_SLOW, NoisyMachine, RecordedMachine

__all__ = ["alarms"]

WARM_UP, WITHIN = 30, 20
SIZES = (2, 4, 8)
SETTINGS: Mapping[str, tuple[float, float]] = {
    "quiet": (0.1, 0.0),
    "noisy": (0.25, 0.0),
    "noisy, cores shared now and then": (0.25, 0.01),
}
"""``sigma`` and ``bursts`` of a ``NoisyMachine``. Recorded ranks had a sigma of 0.11 to 0.19."""
Steps = Iterable[Mapping[str, Own]]


@dataclass(frozen=True)
class Count:
    """Alarms without a slow rank in ``quiet`` steps; of ``slow`` ranks those ``missed``, or with another part."""

    alarms: int = 0
    quiet: int = 0
    missed: int = 0
    slow: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.alarms + other.alarms,
            self.quiet + other.quiet,
            self.missed + other.missed,
            self.slow + other.slow,
        )


def alarms(num_steps: int, num_slow: int, seed: int) -> list[Line]:
    """Count in so many steps, and of so many slow ranks for each part, at each setting and number of ranks."""
    lines = []
    with ProcessPoolExecutor() as pool:
        for name, (sigma, bursts) in SETTINGS.items():
            for size in SIZES:
                make = partial(NoisyMachine, size, sigma=sigma, bursts=bursts)
                asked = [pool.submit(_quiet, make, seed, num_steps)]
                asked += [pool.submit(_slow, make, seed, part, num_slow) for part in TWICE_AS_SLOW]
                lines += _lines(f"{name}, {size} ranks", sum((each.result() for each in asked), Count()))
        lines += _lines(
            "recorded, 8 ranks on 2 cores", sum(pool.map(_of_recorded, range(RecordedMachine.num)), Count())
        )
    return lines


def _quiet(make: Callable[[int], NoisyMachine], seed: int, num_steps: int) -> Count:
    machine = make(seed)
    return Count(alarms=len(_named(SlowRanks(), (machine.step() for _ in range(num_steps)))), quiet=num_steps)


def _slow(make: Callable[[int], NoisyMachine], seed: int, part: str, num_slow: int) -> Count:
    missed = 0
    for number in range(num_slow):
        machine, ranks = make(seed + 1 + number), SlowRanks()
        _named(ranks, (machine.step() for _ in range(WARM_UP)))
        missed += ("0", part) not in _named(ranks, (machine.step(0, **TWICE_AS_SLOW[part]) for _ in range(WITHIN)))
    return Count(missed=missed, slow=num_slow)


def _of_recorded(rank: int) -> Count:
    """Let a rank become slow at each moment of the record."""
    missed = slow = 0
    for part in TWICE_AS_SLOW:
        for start in range(RecordedMachine.num_steps):
            machine, ranks = RecordedMachine(start), SlowRanks()
            _named(ranks, (machine.step() for _ in range(WARM_UP)))
            missed += (str(rank), part) not in _named(ranks, (machine.step(rank, part) for _ in range(WITHIN)))
            slow += 1
    quiet, machine = (RecordedMachine.num_steps if rank == 0 else 0), RecordedMachine()
    return Count(len(_named(SlowRanks(), (machine.step() for _ in range(quiet)))), quiet, missed, slow)


def _named(ranks: SlowRanks, steps: Steps) -> list[tuple[str, str]]:
    """Return the members that were named, and their parts."""
    found = [each for owns in steps for each in ranks.heard(owns)]
    return [(each.member, each.part) for each in found if isinstance(each, Slow)]


def _lines(name: str, count: Count) -> list[Line]:
    found = [
        Line(
            name=f"false alarms in 1,000 steps: {name}",
            unit="",
            value=1000 * count.alarms / count.quiet,
            bound=Bound.at_most(0.999),
            details={"steps": float(count.quiet)},
        ),
        Line(
            name=f"named with its part within 20 steps: {name}",
            unit="%",
            value=100 * (1 - count.missed / count.slow),
            bound=Bound(at="least", limit=99.9),
            details={"slow ranks": float(count.slow), "missed": float(count.missed)},
        ),
    ]
    print(f"  {name}: {count.alarms} alarms in {count.quiet} steps; {count.missed} of {count.slow} missed", flush=True)
    return found
