"""Does the gain over the plain span head change with the larger encoder? A difference of differences.

    python experiments/answer/encoders.py

Reads the committed records of ``answer`` and ``answer/mpnet``; prints for each measure how much larger a
model's gain over ``bert`` is with all-mpnet-base-v2 than with MiniLM, with its 95% interval over articles,
seeds and calibration articles. p is corrected for the two models (Holm).
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.metrics.significance import Effect, holm
from qa_arch.records import DEV, find_runs
from qa_arch.results.samples import MEASURES, MeasureName, Samples, samples_of
from qa_arch.results.systems import System

HERE = Path(__file__).parent
ENCODERS = {"MiniLM": "records", "MPNet": "mpnet/records"}
MODELS = ("proposed", "ablation_together")


def load_samples() -> Samples:
    """Runs of both encoders, labelled ``MODEL ENCODER``."""
    systems = []
    for encoder, place in ENCODERS.items():
        runs = find_runs([HERE / place])
        for model in ("bert", *MODELS):
            model_runs = tuple(run for run in runs if run[1].model == model)
            systems.append(System(f"{model} {encoder}", model_runs))
    return samples_of(systems, DEV)


def gain(samples: Samples, model: str, measure: MeasureName) -> Effect:
    """Gain of ``model`` over ``bert`` with MPNet, minus that with MiniLM."""
    signs = {"bert MiniLM": 1, f"{model} MiniLM": -1, "bert MPNet": -1, f"{model} MPNet": 1}
    return samples.contrast(signs, measure)


def main() -> None:
    samples = load_samples()
    for measure, name in MEASURES.items():
        effects = [gain(samples, model, measure) for model in MODELS]
        for model, difference, p in zip(MODELS, effects, holm([e.p for e in effects]), strict=True):
            low, high = difference.interval
            print(
                f"{name}, {model}: {difference.delta:+.2f} ({low:+.2f} .. {high:+.2f}), p {difference.p:.4f},"
                f" Holm {p:.4f}"
            )


if __name__ == "__main__":
    main()
