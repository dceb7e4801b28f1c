"""Oobleck's published setting: throughput for each number of nodes, failures, constants and results. Pure data.

Source: the simulator in the branch ``sosp23-artifact`` of github.com/SymbioticLab/Oobleck (SOSP'23, arXiv 2309.08125),
folder ``tools/simulator``, read and run in November 2026. 30 nodes; the rates are what the authors' simulator is fed
with. Those of the three GPT-3 models at 26 to 29 nodes are exactly proportional to the number of nodes, so nobody
measured them. 0 means that the model does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

FEWEST, MOST = 15, 30
"""For these numbers of nodes a rate is known."""


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """``rates``: samples a second at 15 to 30 nodes. ``oobleck_s``: Oobleck's reconfiguration, as assumed there.

    ``parameters`` is not in the artifact: the sizes that these models' own papers give.
    """

    name: str
    samples_per_step: int
    oobleck_s: float
    parameters: float
    rates: tuple[float, ...]

    def rate(self, num_nodes: int) -> float:
        """Return the rate with so many nodes; more than 30 are no faster, and fewer than 15 cannot train."""
        return 0.0 if num_nodes < FEWEST else self.rates[min(num_nodes, MOST) - FEWEST]


MODELS = (
    PublishedModel(
        name="BERT-large",
        samples_per_step=8192,
        oobleck_s=2.0,
        parameters=340e6,
        rates=(
            192.304776,
            214.8045205,
            209.2082907,
            228.0545262,
            243.5568988,
            261.6788898,
            260.3144683,
            285.8442276,
            278.5264442,
            304.4540075,
            307.2134406,
            329.1392983,
            327.7784909,
            328.35419,
            362.2151579,
            368.2457947,
        ),
    ),
    PublishedModel(
        name="GPT-2",
        samples_per_step=1024,
        oobleck_s=2.0,
        parameters=345e6,
        rates=(
            55.9161269,
            62.74772262,
            63.01561583,
            66.7500461,
            71.58697434,
            76.71496194,
            76.94978926,
            83.33064533,
            83.40446265,
            90.52226774,
            91.01817697,
            99.47997185,
            100.0745098,
            98.83702293,
            109.6700319,
            110.006361,
        ),
    ),
    PublishedModel(
        name="GPT-3 medium",
        samples_per_step=819,
        oobleck_s=3.0,
        parameters=350e6,
        rates=(
            19.10313139,
            20.86545671,
            21.57654709,
            23.0340881,
            23.82505659,
            25.68850493,
            26.68489205,
            27.77451984,
            28.96443398,
            30.24118675,
            31.66581788,
            33.33923024,
            34.62150832,
            35.90378641,
            37.18606449,
            38.46834258,
        ),
    ),
    PublishedModel(
        name="GPT-3 2.7b",
        samples_per_step=512,
        oobleck_s=6.0,
        parameters=2.7e9,
        rates=(
            5.130663366,
            5.630621249,
            5.630658991,
            6.115063714,
            6.105000318,
            6.797312924,
            6.704817778,
            7.052828884,
            7.435358417,
            7.512265791,
            7.627088295,
            7.985733985,
            8.2928776,
            8.600021215,
            8.90716483,
            9.214308445,
        ),
    ),
    PublishedModel(
        name="GPT-3 6.7b",
        samples_per_step=1024,
        oobleck_s=10.0,
        parameters=6.7e9,
        rates=(
            0.0,
            3.530908551,
            3.283996229,
            3.593275995,
            3.71233106,
            4.15443025,
            4.010855553,
            3.947198754,
            4.185194343,
            4.329925297,
            4.808826127,
            4.773412918,
            4.957005722,
            5.140598527,
            5.324191332,
            5.507784136,
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """Mean samples a second, as the authors' simulator prints them. Bamboo does not fit the GPT-3 models: 0."""

    oobleck: float
    varuna: float
    bamboo: float


RESULTS: dict[tuple[str, str], PublishedResult] = {
    (trace, model): PublishedResult(oobleck=oobleck, varuna=varuna, bamboo=bamboo)
    for trace, rows in {
        "6 h": (
            (287.1014, 260.1128, 77.0378),
            (85.588, 86.5119, 17.4665),
            (29.3046, 29.5039, 0.0),
            (7.2902, 7.2704, 0.0),
            (4.3292, 4.145, 0.0),
        ),
        "3 h": (
            (286.9136, 256.467, 77.0056),
            (85.56, 86.151, 17.4603),
            (29.2809, 29.409, 0.0),
            (7.2775, 7.1151, 0.0),
            (4.3076, 3.9634, 0.0),
        ),
        "1 h": (
            (286.2802, 246.031, 75.5993),
            (85.4201, 85.1707, 17.1269),
            (29.2051, 28.4929, 0.0),
            (7.2286, 6.5361, 0.0),
            (4.2227, 2.6885, 0.0),
        ),
        "30 min": (
            (285.1513, 232.8473, 75.4586),
            (85.2254, 83.4285, 17.1584),
            (29.1139, 27.9334, 0.0),
            (7.1802, 5.8265, 0.0),
            (4.112, 1.0556, 0.0),
        ),
        "10 min": (
            (282.1083, 173.5206, 69.8366),
            (84.8068, 76.394, 16.0101),
            (28.6998, 20.1894, 0.0),
            (6.8899, 1.7568, 0.0),
            (3.5461, 0.2551, 0.0),
        ),
        "GCP": (
            (243.6847, 215.7375, 68.0283),
            (73.0579, 74.2919, 15.441),
            (24.5989, 24.6039, 0.0),
            (6.1254, 0.9149, 0.0),
            (2.9183, 0.0, 0.0),
        ),
        "EC2": (
            (221.4038, 187.6863, 63.6167),
            (66.8279, 64.5493, 14.2967),
            (22.4898, 21.794, 0.0),
            (5.4175, 0.5974, 0.0),
            (2.6775, 0.0, 0.0),
        ),
    }.items()
    for model, (oobleck, varuna, bamboo) in zip((each.name for each in MODELS), rows, strict=True)
}
"""By trace and model."""
