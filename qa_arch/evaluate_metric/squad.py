"""The SQuAD evaluation of ``qa_arch.metrics`` as a metric of the ``evaluate`` library.

``evaluate.load`` parses the import lines of this file, so every line imports a single name.
"""

from __future__ import annotations

import datasets
import evaluate
from qa_arch.errors import DataError
from qa_arch.metrics.squad import METRIC_VERSION
from qa_arch.metrics.squad import aggregate
from qa_arch.metrics.squad import score_questions
from qa_arch.types.text import Example
from qa_arch.types.text import Gold
from qa_arch.types.text import Protocol
from qa_arch.types.text import QuestionSet

_DESCRIPTION = """\
Exact match and F1 of extracted answers, equal to the official SQuAD 1.1 and 2.0 evaluations to the
last bit; with token precision and recall, and scores of the decision to answer.
"""

_CITATION = """\
@inproceedings{rajpurkar2016squad,
  title = {{SQuAD}: 100,000+ Questions for Machine Comprehension of Text},
  author = {Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle = {EMNLP}, year = {2016}
}
@inproceedings{rajpurkar2018know,
  title = {Know What You Don't Know: Unanswerable Questions for {SQuAD}},
  author = {Rajpurkar, Pranav and Jia, Robin and Liang, Percy},
  booktitle = {ACL}, year = {2018}
}
"""

_INPUTS = """\
The configuration (second argument of evaluate.load) is "2.0" (default), "2.0-texts" or "1.1".
predictions: one {"id": str, "prediction_text": str, "no_answer_probability": float} per question;
    the empty text is "no answer". "2.0-texts" and "1.1" take them without the probability.
references: one {"id": str, "answers": {"text": [str], "answer_start": [int]}} per question; empty
    lists where the question has no answer.
no_answer_threshold: None (default) takes every text as it is; the probabilities then serve
    best_exact, best_f1 and pr_*_ap alone. With a number, a probability above it makes the answer
    "no answer" whatever the text says. (The `squad_v2` metric of the hub defaults to 1.0, which no
    probability exceeds: the same as None here.)
Ids must be unique and the same in both; the order does not matter.
"""

_CONFIGURATIONS: dict[str, Protocol] = {"default": "2.0", "2.0": "2.0", "2.0-texts": "2.0", "1.1": "1.1"}


class Squad(evaluate.Metric):
    """Metric ``compute(predictions=..., references=..., no_answer_threshold=None)``; see ``_INPUTS``."""

    def _info(self):
        if self.config_name not in _CONFIGURATIONS:
            raise DataError(f'the configuration is {self.config_name!r}; give "2.0", "2.0-texts" or "1.1"')
        prediction = {"id": datasets.Value("string"), "prediction_text": datasets.Value("string")}
        if self.config_name in ("default", "2.0"):
            prediction["no_answer_probability"] = datasets.Value("float64")
        answers = {
            "text": datasets.Sequence(datasets.Value("string")),
            "answer_start": datasets.Sequence(datasets.Value("int32")),
        }
        reference = {"id": datasets.Value("string"), "answers": answers}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": prediction, "references": reference}),
            reference_urls=["https://rajpurkar.github.io/SQuAD-explorer/"],
        )

    def _compute(self, predictions, references, no_answer_threshold=None):
        protocol = _CONFIGURATIONS[self.config_name]
        _check_ids([row["id"] for row in references], [row["id"] for row in predictions])
        questions = QuestionSet("references", tuple(map(_example, references)), protocol, fingerprint="")
        scored = score_questions(questions, {row["id"]: row["prediction_text"] for row in predictions})
        probabilities = None
        if self.config_name in ("default", "2.0"):
            probabilities = {row["id"]: row["no_answer_probability"] for row in predictions}
        elif no_answer_threshold is not None:
            raise DataError('no_answer_threshold needs the probabilities of configuration "2.0"')
        threshold = float("inf") if no_answer_threshold is None else no_answer_threshold
        scores = aggregate(scored, protocol, null_scores=probabilities, threshold=threshold)
        return scores.flat() | {"metric_version": METRIC_VERSION}


def _example(reference):
    answers = reference["answers"]
    golds = tuple(map(Gold, answers["text"], answers["answer_start"]))
    return Example(id=reference["id"], question="", context="", answers=golds)


def _check_ids(expected, predicted):
    for name, ids in (("references", expected), ("predictions", predicted)):
        if len(set(ids)) < len(ids):
            twice = next(id_ for id_ in ids if ids.count(id_) > 1)
            raise DataError(f"{name}: the id {twice} occurs twice; each question is scored once")
    if unpaired := sorted(set(expected) ^ set(predicted)):
        raise DataError(
            f"{len(unpaired)} ids are not in both predictions and references, such as {unpaired[0]}"
        )
