"""Score the published predictions of the original ensemble: a row of Table 2.3 without training.

    python experiments/table_2_3/rescored.py --dev dev-v1.1.json \
        --predictions match_lstm_boundary_ensemble_v1.1_dev.json --record runs/table_2_3/rescored

The predictions are those that the authors submitted to the SQuAD leaderboard. The result is an ordinary
record, which ``qa-arch tables`` reads; it names no training set, because none is stated with the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from qa_arch.config.identity import config_hash
from qa_arch.data.squad import read
from qa_arch.errors import DataError, QaArchError
from qa_arch.metrics.prediction_files import read_predictions
from qa_arch.metrics.squad import METRIC_VERSION, aggregate, missing_ids, score_questions
from qa_arch.records import NEVER_NULL, Point, RunRecord, SplitFacts, Threshold, write_record
from qa_arch.results import provenance
from qa_arch.types.text import QuestionSet

NAME, MODEL = "table_2_3", "published-predictions"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score a published SQuAD 1.1 prediction file into a record.")
    parser.add_argument("--dev", required=True, metavar="D", help="SQuAD 1.1 JSON")
    parser.add_argument("--predictions", required=True, metavar="P", help="question id -> answer text")
    parser.add_argument("--record", required=True, metavar="R", help="folder of the record")
    args = parser.parse_args(argv)
    try:
        record = rescored(read(args.dev, name="dev"), Path(args.predictions))
        write_record(args.record, record)
    except QaArchError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return error.exit_code
    point = record.scores["dev"][NEVER_NULL]
    print(f"EM {point.exact:.2f} F1 {point.f1:.2f}: {args.record}")
    return 0


def rescored(questions: QuestionSet, path: Path) -> RunRecord:
    """Record of the predictions in ``path``; DataError for a question without a prediction."""
    texts = read_predictions(path).values
    if missing := missing_ids(questions, texts):
        raise DataError(f"{path}: {len(missing)} questions have no prediction, the first is {missing[0]}")
    scores = aggregate(score_questions(questions, texts, "1.1"), "1.1")
    config = {"name": NAME, "model": {"task": "span", "name": MODEL}, "predictions": path.name}
    commit, dirty = provenance.commit()
    dev = SplitFacts(
        name=questions.name,
        fingerprint=questions.fingerprint,
        protocol="1.1",
        questions=len(questions),
        unanswerable=0,
    )
    point = Point(protocol="1.1", metric_version=METRIC_VERSION, metrics=scores.flat())
    return RunRecord(
        status="ok",
        name=NAME,
        model=MODEL,
        seed=0,
        config=config,
        config_hash=config_hash(config),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        data={"dev": dev},
        versions=provenance.versions(),
        threshold=Threshold(value=None, fitted_on="nothing"),
        scores={"dev": {NEVER_NULL: point}},
    )


if __name__ == "__main__":
    sys.exit(main())
