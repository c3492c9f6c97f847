"""The SQuAD 2.0 scores of qa_arch as a metric of the library ``evaluate``, which loads this folder by path.

``evaluate.load(FOLDER)`` compares English answers, ``evaluate.load(FOLDER, "de")`` answers in another
language, as MLQA's evaluation does.
"""

from math import isnan

import datasets
import evaluate

from qa_arch.errors import DataError
from qa_arch.metrics.squad import ENGLISH, LANGUAGES, OFFICIAL_THRESHOLD, require_unique, score
from qa_arch.types import Example, Gold, QuestionSet

DESCRIPTION = "The official SQuAD 2.0 scores, token precision and recall, and scores of abstaining."
CITATION = "Rajpurkar, Jia and Liang: Know What You Don't Know: Unanswerable Questions for SQuAD. ACL 2018."
INPUTS = """
Args:
    predictions: dicts of ``id``, ``prediction_text`` ("" for no answer) and ``no_answer_probability``.
    references: dicts of ``id`` and ``answers``, a dict of the lists ``text`` and ``answer_start``; empty
        lists if the question has no answer.
    no_answer_threshold: probability above which an answer counts as "no answer" (default 1, which none
        exceeds).
"""


class QaArchSquadV2(evaluate.Metric):
    """Inputs as of the metric ``squad_v2``; its scores, exactly, and those of ``qa-arch evaluate``."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", *LANGUAGES):
            raise ValueError(f"{self.config_name} is not a language of this metric: {', '.join(LANGUAGES)}")
        text, number = datasets.Value("string"), datasets.Value("float64")
        answers = {
            "text": datasets.Sequence(text),
            "answer_start": datasets.Sequence(datasets.Value("int32")),
        }
        inputs = {
            "predictions": {"id": text, "prediction_text": text, "no_answer_probability": number},
            "references": {"id": text, "answers": answers},
        }
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(inputs),
        )

    def _compute(self, predictions, references, no_answer_threshold=OFFICIAL_THRESHOLD):
        # As in the metric squad_v2, an answer is its text alone, wherever it starts.
        examples = tuple(
            Example(row["id"], "", "", answers=tuple(Gold(text, -1) for text in row["answers"]["text"]))
            for row in references
        )
        language = ENGLISH if self.config_name == "default" else self.config_name
        questions = QuestionSet("", examples, "2.0", language=language)
        require_unique(row["id"] for row in predictions)
        texts = {row["id"]: row["prediction_text"] for row in predictions}
        odds = {row["id"]: row["no_answer_probability"] for row in predictions}
        for id_, value in odds.items():
            if value is None or isnan(value):
                raise DataError(f"question {id_}: the no-answer probability is not a number; give one")
        if isnan(threshold := float(no_answer_threshold)):  # which no probability exceeds
            raise DataError("no_answer_threshold: is not a number; give one, or leave it out")
        return score(questions, texts, null_scores=odds, threshold=threshold).flat()
