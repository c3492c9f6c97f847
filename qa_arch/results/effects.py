"""Means, intervals and tests: numbers in a row, and the columns that show them."""

from __future__ import annotations

from collections.abc import Mapping

from qa_arch.metrics.significance import Effect, Interval, Unit
from qa_arch.results.columns import Column, number

_PLACES = 6
"""Decimals kept: more than anyone reads, fewer than processors that add in another order differ in."""
Figures = dict[str, float | None]

TESTS: Mapping[Unit, str] = {
    "question": (
        "p: bootstrap over questions and seeds; p, these runs: approximate randomisation over questions,"
        " scores averaged over seeds"
    ),
    "article": "p: bootstrap over articles and seeds, Student's t for few of either",
}
"""What the p-values of a table are."""
P_VALUES: Mapping[Unit, tuple[str, ...]] = {"question": ("p", "p_these_runs"), "article": ("p",)}
"""The p-values of a table; that of these very runs stands beside the other, never alone."""
UNITS: Mapping[Unit, str] = {"question": "questions", "article": "articles"}
SINGLE_RUN = "a system with one run: interval and p are about that run, as nothing tells how its seeds differ"


def mean_figures(key: str, mean: float, sd: float | None) -> Figures:
    return {f"{key}_mean": round(mean, _PLACES), f"{key}_sd": None if sd is None else round(sd, _PLACES)}


def interval_figures(key: str, interval: Interval) -> Figures:
    """The ends of a 95% interval."""
    return {f"{key}_95_{end}": round(value, _PLACES) for end, value in interval._asdict().items()}


def effect_figures(effect: Effect, p_holm: float | None) -> Figures:
    tests = {"p": effect.p_bootstrap, "p_holm": p_holm, "p_these_runs": effect.p_randomisation}
    return {
        "delta": round(effect.delta, _PLACES),
        **interval_figures("delta", effect.interval),
        **{name: None if p is None else round(p, _PLACES) for name, p in tests.items()},
    }


def mean_column(key: str, heading: str, *, weight: int = 0) -> Column:
    """A mean, with its standard deviation over seeds where there are several."""
    return number(key, heading, _spread, (f"{key}_mean", f"{key}_sd"), weight=weight)


def interval_column(key: str) -> Column:
    ends = _ends(key)
    return number(
        f"{key}_interval", "95% interval", lambda low, high: f"{low:.2f} .. {high:.2f}", ends, weight=-1
    )


def delta_columns(heading: str) -> list[Column]:
    """A difference and its interval, which a narrow terminal shows before what they are the difference of."""
    ends = _ends("delta")
    return [
        number("delta", heading, lambda delta: f"{delta:+.2f}", weight=2),
        number(
            "delta_interval", "95% interval", lambda low, high: f"{low:+.2f} .. {high:+.2f}", ends, weight=2
        ),
    ]


def p_columns(*keys: str) -> list[Column]:
    """p-values by the keys of ``effect_figures``."""
    shown = {"p": ("p", 1), "p_holm": ("p, Holm", 2), "p_these_runs": ("p, these runs", -1)}
    return [number(key, shown[key][0], _p_value, weight=shown[key][1]) for key in keys]


def _ends(key: str) -> tuple[str, str]:
    return f"{key}_95_low", f"{key}_95_high"


def _spread(mean: float, sd: float | None) -> str:
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
