"""Does the gain over the plain span head change with the larger encoder? A difference of differences.

    python experiments/answer/encoders.py

Reads the committed records of ``answer`` and ``answer/mpnet``; prints for each measure how much larger a
model's gain over ``bert`` is with all-mpnet-base-v2 than with MiniLM, with its 95% interval over articles,
seeds and calibration articles. p is corrected for the two models (Holm).
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.records import DEV, find_runs
from qa_arch.results.effects import MEASURES, Samples, effects, samples_of
from qa_arch.results.systems import System

HERE = Path(__file__).parent
ENCODERS = {"MiniLM": "records", "MPNet": "mpnet/records"}
MODELS = ("proposed", "ablation_together")
GAINS = {
    model: {"bert MiniLM": 1, f"{model} MiniLM": -1, "bert MPNet": -1, f"{model} MPNet": 1}
    for model in MODELS
}
"""Gain of a model over ``bert`` with MPNet, minus that with MiniLM."""


def load_samples() -> Samples:
    """Runs of both encoders, labelled ``MODEL ENCODER``."""
    systems = []
    for encoder, place in ENCODERS.items():
        runs = find_runs([HERE / place])
        for model in ("bert", *MODELS):
            model_runs = tuple(run for run in runs if run[1].model == model)
            systems.append(System(f"{model} {encoder}", model_runs))
    return samples_of(systems, DEV)


def main() -> None:
    samples = load_samples()
    for measure, name in MEASURES.items():
        for row in effects(samples, GAINS, measure):
            low, high = row.effect.interval
            print(
                f"{name}, {row.name}: {row.effect.delta:+.2f} ({low:+.2f} to {high:+.2f}),"
                f" p {row.effect.p:.4f}, Holm {row.p:.4f}"
            )


if __name__ == "__main__":
    main()
