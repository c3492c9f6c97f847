"""Means, intervals and tests: numbers in a row, text where the row is drawn."""

from __future__ import annotations

from qa_arch.metrics.significance import Effect, Interval
from qa_arch.results.comparison import Drawn

Figures = dict[str, float | None]

_PLACES = 6
"""Decimals kept: more than anyone reads, fewer than processors that add in another order differ in."""


def mean_figures(key: str, mean: float, sd: float | None) -> Figures:
    return {f"{key}_mean": round(mean, _PLACES), f"{key}_sd": None if sd is None else round(sd, _PLACES)}


def interval_figures(key: str, interval: Interval) -> Figures:
    """The ends of a 95% interval."""
    return {f"{key}_95_{end}": round(value, _PLACES) for end, value in interval._asdict().items()}


def effect_figures(found: Effect, p_holm: float | None) -> Figures:
    tests = {"p": found.p_bootstrap, "p_holm": p_holm, "p_these_runs": found.p_randomisation}
    return {
        "delta": round(found.delta, _PLACES),
        **interval_figures("delta", found.interval),
        **{name: None if p is None else round(p, _PLACES) for name, p in tests.items()},
    }


def drawn_mean(key: str) -> Drawn:
    return Drawn((f"{key}_mean", f"{key}_sd"), _spread)


def drawn_interval(key: str) -> Drawn:
    return Drawn((f"{key}_95_low", f"{key}_95_high"), _span)


def _spread(mean: float, sd: float | None) -> str:
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def _span(low: float, high: float) -> str:
    return f"{low:.2f} .. {high:.2f}"


def _p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


EFFECT = {
    "delta": Drawn(("delta",), lambda delta: f"{delta:+.2f}"),
    "delta_interval": Drawn(
        ("delta_95_low", "delta_95_high"), lambda low, high: f"{low:+.2f} .. {high:+.2f}"
    ),
    **{name: Drawn((name,), _p_value) for name in ("p", "p_holm", "p_these_runs")},
}
"""How the columns of ``effect_figures`` are drawn."""
