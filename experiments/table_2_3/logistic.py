"""Non-neural rows of Table 2.3: random guess and logistic regression.

    python experiments/table_2_3/logistic.py --train train-v1.1.part.json --dev dev-v1.1.json \
        --runs runs/table_2_3 [--final]

Trains on ``--train`` without the held-out articles, as ``data=part1`` does, and chooses penalty and number of
passes on the held-out articles. ``--final`` then scores on ``--dev`` and logs the access. Every row becomes a
run folder with an ordinary record, which ``qa-arch tables`` reads.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from baselines.candidates import coverage, guess
from baselines.logistic import Settings, SpanLogistic
from qa_arch import provenance
from qa_arch.data.splits import hold_out, require_disjoint
from qa_arch.data.squad import read
from qa_arch.errors import QaArchError
from qa_arch.files import write_json
from qa_arch.provenance import EXPERIMENTS, dev_access, log_dev_access
from qa_arch.qa.files import ALWAYS_ANSWER, operating_points, question_rows
from qa_arch.records import (
    Device,
    Epoch,
    Parameters,
    RunRecord,
    Seconds,
    SplitFacts,
    Threshold,
    write_questions,
    write_record,
)
from qa_arch.types import Prediction, QuestionSet

NAME = "table_2_3"
LOGISTIC, RANDOM = "logistic-regression", "random-guess"
log = logging.getLogger(__name__)
Sets = dict[str, QuestionSet]


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        sets = load(args)
        for record, answers in (random_guess(args, sets), logistic_regression(args, sets)):
            finish(Path(args.runs), record, sets, answers, final=args.final)
    except QaArchError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Random guess and logistic regression on SQuAD 1.1.")
    add = parser.add_argument
    add("--train", required=True, metavar="T", help="SQuAD 1.1 JSON to train on")
    add("--dev", required=True, metavar="D", help="SQuAD 1.1 JSON; only read with --final")
    add(
        "--runs",
        default="runs/table_2_3",
        metavar="R",
        help="folder for the run folders (default: %(default)s)",
    )
    add("--final", action="store_true", help="score on dev, and log the access")
    add("--hold-out", type=int, default=4, metavar="N", help="articles held out of training (default: 4)")
    add("--split-seed", type=int, default=13, help="seed for choosing them (default: 13)")
    add("--l2", type=float, nargs="+", default=list(Settings.l2), help="penalties to choose from")
    add("--passes", type=int, default=Settings.passes, help="maximum number of passes over the training data")
    add("--seed", type=int, default=Settings.seed, help="seed of the passage order and of random guess")
    return parser


def load(args: argparse.Namespace) -> Sets:
    """Train, calibration and, with ``--final``, dev; no two share an article."""
    train, calibration = hold_out(read(args.train, name="train"), args.hold_out, args.split_seed)
    sets = {"train": train, "calibration": calibration}
    if args.final:
        sets["dev"] = read(args.dev, name="dev")
    require_disjoint(**sets)
    return sets


def random_guess(args: argparse.Namespace, sets: Sets) -> tuple[RunRecord, dict[str, list[Prediction]]]:
    """Record and answers of random guess: a uniformly random candidate per question."""
    record = _record(args, sets, {"task": "span", "name": RANDOM, "max_words": Settings.max_words})
    return record, {split: guess(sets[split], args.seed) for split in ("calibration", "dev") if split in sets}


def logistic_regression(
    args: argparse.Namespace, sets: Sets
) -> tuple[RunRecord, dict[str, list[Prediction]]]:
    """Record and answers of logistic regression, with the penalty and passes of best calibration F1."""
    settings = Settings(l2=tuple(args.l2), passes=args.passes, seed=args.seed)
    record = _record(args, sets, {"task": "span", "name": LOGISTIC, **asdict(settings)})
    model = SpanLogistic(settings)
    passes: list[dict[str, Any]] = []

    def on_pass(values: dict[str, Any]) -> None:
        passes.append(values)
        loss, f1 = ([round(value, 2) for value in values[key]] for key in ("loss", "calibration_f1_by_l2"))
        log.info("pass %d: by penalty %s, loss %s, calibration F1 %s", values["pass"], settings.l2, loss, f1)

    started = time.perf_counter()
    chosen = model.choose(sets["train"], sets["calibration"], on_pass)
    fit = round(sum(values["train_seconds"] for values in passes), 3)
    seconds = Seconds(fit=fit, fit_with_validation=round(time.perf_counter() - started, 3))
    passes[chosen.number - 1]["chosen_l2"] = settings.l2[chosen.column]
    for values in passes:  # the curve of a single model, as in every record
        values["calibration_f1"] = values["calibration_f1_by_l2"][chosen.column]
    answers = {"calibration": chosen.answers}
    started = time.perf_counter()
    if "dev" in sets:
        answers["dev"] = model.predict(sets["dev"], chosen.column)
    record = replace(
        record,
        epochs=tuple(map(Epoch.from_flat, passes)),
        best_epoch=chosen.number - 1,
        parameters=Parameters(total=int((model.weight[:, chosen.column] != 0).sum())),
        seconds=replace(seconds, predict=round(time.perf_counter() - started, 3)),
    )
    return record, answers


def finish(
    runs: Path, record: RunRecord, sets: Sets, answers: dict[str, list[Prediction]], *, final: bool
) -> None:
    """Log the access to dev, then score and write the run folder."""
    folder = runs / f"{record.model}-s{record.seed}-{record.run_hash[:8]}"
    if final:
        access = dev_access(folder.name, record.run_hash, sets["dev"])
        log_dev_access(EXPERIMENTS / NAME, access)
    scores = {split: operating_points(sets[split], own, ALWAYS_ANSWER) for split, own in answers.items()}
    for split, points in scores.items():
        point = points["forced"]
        print(f"{record.model} {split}: EM {point.exact:.2f} F1 {point.f1:.2f}")
    last = "dev" if final else "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "predictions.json", {answer.id: answer.text(ALWAYS_ANSWER) for answer in answers[last]}
    )
    rows = {last: write_questions(folder, question_rows(sets[last], answers[last], ALWAYS_ANSWER))}
    write_record(folder, replace(record, scores=scores, rows=rows))
    print(folder)


def _record(args: argparse.Namespace, sets: Sets, model: dict[str, Any]) -> RunRecord:
    data = {
        "train": args.train,
        "dev": args.dev,
        "hold_out_articles": args.hold_out,
        "split_seed": args.split_seed,
        "open_dev": False,
    }
    config = {"name": NAME, "seed": args.seed, "data": data, "model": model}
    # Dev is not hashed: a run keeps its name whether or not dev was opened.
    trained = {split: sets[split].fingerprint for split in ("train", "calibration")}
    return provenance.new_record(
        config,
        trained,
        status="ok",
        data={split: _facts(questions, split) for split, questions in sets.items()},
        device=Device(kind="cpu", name=provenance.processor(), cores=os.cpu_count(), threads=1),
        threshold=Threshold(value=None, fitted_on="nothing"),
    )


def _facts(questions: QuestionSet, split: str) -> SplitFacts:
    """Facts of a split for the record, including the share of questions whose gold answer is a candidate."""
    return SplitFacts(
        name=questions.name,
        fingerprint=questions.fingerprint,
        protocol=questions.protocol,
        questions=len(questions),
        unanswerable=0,
        titles=tuple(sorted(questions.titles)) if split != "dev" else (),
        skipped=len(questions.skipped),
        details={"candidate_coverage": round(coverage(questions), 4)},
    )


if __name__ == "__main__":
    sys.exit(main())
