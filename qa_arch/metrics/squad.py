"""SQuAD 1.1 and 2.0 evaluation, bit-for-bit equal to the official scripts; rules for other languages.

Floats are equal because sums run in file order over the same expressions. Every question is normalised and
scored once; all other figures derive from its score. Both versions normalise alike: lower case, no
punctuation, no articles (Rajpurkar et al. 2016, section 6.1; Rajpurkar et al. 2018, section 5.1). They differ
if the normalised text is empty: two empty answers match in 2.0 and have F1 0 in 1.1.

Other languages follow the official MLQA evaluation (Lewis et al. 2020, section 4): lower-case, then strip
punctuation (Unicode category P and ASCII symbols), then articles; in Chinese every Han character is its own
token. English keeps non-ASCII punctuation, as SQuAD's rules do. Not in MLQA: Japanese, Korean and Thai, where
every character is a token, as in the official evaluation of KorQuAD 1.0 (Lim et al. 2019), whose rules Korean
follows exactly.
"""

from __future__ import annotations

import logging
import re
import string
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from math import inf, isnan
from operator import add, itemgetter
from typing import Any, NamedTuple, get_args

from qa_arch.errors import DataError
from qa_arch.process import gc_disabled
from qa_arch.types import Language, Protocol, QuestionSet

log = logging.getLogger(__name__)
ENGLISH = "en"
_warned: set[str] = set()
"""Fingerprints of sets that were reported."""
METRIC_VERSION = "1.0"
"""Bumped whenever the score of the same predictions could change."""
OFFICIAL_THRESHOLD = 1.0
"""Default null threshold of the official script: no probability lies above it."""
NEARLY_ALL = 0.98
"""Share of "no answer" above which a system has probably not learned, or not been read, to answer."""
ARTICLES = frozenset(("a", "an", "the"))

_DROP_ARTICLES = re.compile(r"\b(?:a|an|the)\b").sub
# Every ASCII character has an entry, because a missing entry costs an exception.
_DROP_PUNCTUATION = {ord(c): None if c in string.punctuation else c for c in map(chr, range(128))}
_LOWER_BYTES = bytes(range(256)).lower()
_PUNCTUATION_BYTES = string.punctuation.encode()


class Overlap(NamedTuple):
    """Exact match and token overlap of a prediction with one gold answer, each in 0..1.

    ``f1`` is an int (0 or 1) where the official scripts give an int: from Python 3.12 on, ``sum``
    rounds ints and floats differently, and the totals must be exactly equal.
    """

    exact: int
    f1: float
    precision: float
    recall: float


PERFECT = Overlap(1, 1.0, 1.0, 1.0)
NONE = Overlap(0, 0, 0, 0)
_BOTH_EMPTY: dict[Protocol, Overlap] = {"2.0": Overlap(1, 1, 1, 1), "1.1": Overlap(1, 0, 0, 0)}


def normalise(text: str) -> str:
    """``text`` in lower case, without punctuation and articles, words separated by single spaces."""
    if text.isascii() and text.isprintable():
        # Only letters, digits and spaces remain, so an article is always a whole word.
        words = text.encode().translate(_LOWER_BYTES, _PUNCTUATION_BYTES).decode().split()
        if not ARTICLES.isdisjoint(words):
            words = [word for word in words if word not in ARTICLES]
    else:
        # Dashes, typographic quotes and control characters remain and may be next to an article.
        words = _DROP_ARTICLES(" ", text.lower().translate(_DROP_PUNCTUATION)).split()
    return " ".join(words)


def best_overlap(predicted: str, golds: Sequence[str], protocol: Protocol) -> Overlap:
    """Overlap of ``predicted`` with the gold answer of highest F1 (the first on a tie).

    Both must be normalised; tokens are compared as multisets. Without golds all values are 0.
    """
    if predicted in golds:  # no other gold answer can score higher
        return PERFECT if predicted else _BOTH_EMPTY[protocol]
    tokens = predicted.split()
    distinct = set(tokens)
    best = NONE
    for gold in golds:
        gold_tokens = gold.split()
        common = distinct.intersection(gold_tokens)
        if not common:
            continue
        if len(distinct) == len(tokens):  # no repeated token, as usual: counted faster
            overlap = len(common)
        else:
            overlap = sum(min(tokens.count(token), gold_tokens.count(token)) for token in common)
        precision = overlap / len(tokens)
        recall = overlap / len(gold_tokens)
        f1 = (2 * precision * recall) / (precision + recall)  # rounds as in the official scripts
        if f1 > best.f1:
            best = Overlap(0, f1, precision, recall)
    return best


@dataclass(frozen=True, slots=True)
class Scores:
    """All scores of one set of predictions at one null threshold, rates in percent."""

    protocol: Protocol
    threshold: float
    """Null threshold: a null score above it means "no answer"."""
    official: Mapping[str, Any]
    """The keys of the official evaluation in its order and with its exact values."""
    more: Mapping[str, Any]
    """Mean token precision and recall against the gold answer of highest F1, and the confusion matrix of
    answering and abstaining with its rates, "answered" being positive (thesis 3.1-3.4)."""

    @property
    def exact(self) -> float:
        return self.official["exact_match" if self.protocol == "1.1" else "exact"]

    @property
    def f1(self) -> float:
        return self.official["f1"]

    def flat(self) -> dict[str, Any]:
        """``official``, followed by ``more``."""
        return {**self.official, **self.more}


class QuestionScore(NamedTuple):
    """Scores of one question, each in 0..1.

    A named tuple because creating frozen dataclasses would take a quarter of the scoring time.
    """

    id: str
    exact: int
    f1: float
    precision: float
    recall: float
    """Precision and recall are those of the gold answer of highest F1."""
    answerable: bool
    abstained: bool
    """Whether the prediction is the empty string. (Articles or punctuation alone are an answer.)"""
    kind: str | None = None


@gc_disabled()
def score_questions(
    questions: QuestionSet, predictions: Mapping[str, str], protocol: Protocol | None = None
) -> tuple[QuestionScore, ...]:
    """Score every question that has a prediction, in file order, by the rules of the set's language.

    ``predictions`` maps ids to answer texts, "" for no answer; unknown ids are ignored. ``protocol`` defaults
    to that of ``questions``. Raises DataError for a question without answers under protocol 1.1.
    """
    protocol = protocol or questions.protocol
    if questions.language == ENGLISH:
        _warn_about_script(questions)
    normal = Normalised(questions.language)
    scored = []
    for example in questions.examples:
        text = predictions.get(example.id)
        if text is None:
            continue
        golds = [normal[gold.text] for gold in example.answers]
        if protocol == "2.0":
            # Gold answers of only articles and punctuation do not count; if none remain, "" is right.
            golds = [gold for gold in golds if gold] or [""]
        elif not golds:
            raise DataError(f"question {example.id}: has no answer, which protocol 1.1 cannot score; use 2.0")
        exact, f1, precision, recall = best_overlap(normal[text], golds, protocol)
        scored.append(
            QuestionScore(
                example.id, exact, f1, precision, recall, bool(example.answers), not text, example.kind
            )
        )
    return tuple(scored)


def _warn_about_script(questions: QuestionSet) -> None:
    """Log, once per set, if English rules compare answers that white space does not separate into words."""
    answered = (example for example in questions.examples if example.answers)
    first = islice(answered, 100)
    code = by_characters(f"{example.question} {example.answers[0].text}" for example in first)
    if code and questions.fingerprint not in _warned:
        _warned.add(questions.fingerprint)
        log.warning(
            "%s: answers look like language %s, and English rules compare what spaces separate; add"
            " --language %s (data.language=%s) to compare characters",
            *(questions.name, code, code, code),
        )


class Normalised(dict[str, str]):
    """Cache: text -> normalised text in a language. Most gold and predicted texts occur several times."""

    def __init__(self, language: str = ENGLISH) -> None:
        self._normalise = normalise if language == ENGLISH else normaliser(language)

    def __missing__(self, text: str) -> str:
        normal = self[text] = self._normalise(text)
        return normal


def aggregate(
    scored: Sequence[QuestionScore],
    protocol: Protocol,
    *,
    null_scores: Mapping[str, float] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
    missing: int = 0,
) -> Scores:
    """Aggregate question scores as the official evaluation does.

    Args:
        null_scores: id -> no-answer probability or null odds, for every scored question. Above
            ``threshold`` they mean "no answer" (NaN never does; with ``math.inf`` nothing does). They also
            give the best thresholds and average precisions of 2.0.
        missing: number of questions without a prediction. They count as 0 in 1.1; 2.0 leaves them out of
            every mean (where the official script fails).

    Raises DataError without scores, or if a question has no null score.
    """
    total = len(scored) + (missing if protocol == "1.1" else 0)
    if not total:
        raise DataError("no prediction belongs to any of the questions; do predictions and data match?")
    final = scored if null_scores is None else apply_threshold(scored, null_scores, threshold)
    mean = _mean_11 if protocol == "1.1" else _mean_20
    exact, f1 = mean((s.exact for s in final), total), mean((s.f1 for s in final), total)
    # Keys and their order are those of the official scripts, 1.1 and 2.0.
    official: dict[str, Any] = {"exact_match": exact, "f1": f1}
    if protocol == "2.0":
        official = {"exact": exact, "f1": f1, "total": total}
        split = ([s for s in final if s.answerable], [s for s in final if not s.answerable])
        for prefix, part in zip(("HasAns", "NoAns"), split, strict=True):
            if part:
                official[f"{prefix}_exact"] = mean((s.exact for s in part), len(part))
                official[f"{prefix}_f1"] = mean((s.f1 for s in part), len(part))
                official[f"{prefix}_total"] = len(part)
        if null_scores is not None:
            # Before the threshold is applied: each metric chooses its own.
            official |= _rank_metrics(scored, null_scores)
    more = {
        "token_precision": mean((s.precision for s in final), total),
        "token_recall": mean((s.recall for s in final), total),
        **_answering(final, total - len(final)),
    }
    return Scores(protocol, threshold, official, more)


def score(
    questions: QuestionSet,
    predictions: Mapping[str, str],
    *,
    null_scores: Mapping[str, float] | None = None,
    threshold: float = OFFICIAL_THRESHOLD,
) -> Scores:
    """Scores of predictions that must cover every question (arguments as in ``aggregate``).

    Raises DataError naming the questions without a prediction: a mean over fewer questions would be mistaken
    for the score of the set. An id that occurs twice, which the official script counts once, is refused, too.
    """
    require_unique(example.id for example in questions.examples)
    require_predictions(questions, predictions)
    scored = score_questions(questions, predictions)
    return aggregate(scored, questions.protocol, null_scores=null_scores, threshold=threshold)


def final_texts(
    questions: QuestionSet,
    texts: Mapping[str, str],
    null_scores: Mapping[str, float],
    threshold: float,
) -> dict[str, str]:
    """Texts at the threshold: "" for null scores above it and, in 1.1, for questions without a text."""
    final = {id_: "" if null_scores.get(id_, threshold) > threshold else text for id_, text in texts.items()}
    missing = missing_ids(questions, texts) if questions.protocol == "1.1" else []
    return {**dict.fromkeys(missing, ""), **final}


def missing_ids(questions: QuestionSet, predictions: Mapping[str, object]) -> list[str]:
    """Ids of the questions without a prediction, in file order."""
    return [example.id for example in questions.examples if example.id not in predictions]


def require_unique(ids: Iterable[str]) -> None:
    """Raise DataError for an id that occurs twice."""
    seen: set[str] = set()
    for id_ in ids:
        if id_ in seen:
            raise DataError(f"question {id_}: occurs twice; give each question its own id")
        seen.add(id_)


def require_predictions(questions: QuestionSet, predictions: Mapping[str, object]) -> None:
    """Raise DataError naming the first questions without a prediction, or one that is not a text."""
    if absent := missing_ids(questions, predictions):
        named = ", ".join(absent[:5])
        raise DataError(f"{len(absent)} of {len(questions)} questions have no prediction: {named}")
    for example in questions.examples:
        if not isinstance(value := predictions[example.id], str):
            raise DataError(f"question {example.id}: predicted is {value!r}; give a text, '' for no answer")


def _mean_20(values: Iterable[float], total: int) -> float:
    return 100.0 * sum(values) / total


def _mean_11(values: Iterable[float], total: int) -> float:
    # Sequential addition as in the 1.1 script: from Python 3.12 on, sum() rounds differently.
    return 100.0 * reduce(add, values, 0) / total


def apply_threshold(
    scored: Sequence[QuestionScore], null_scores: Mapping[str, float], threshold: float
) -> list[QuestionScore]:
    """Scores in which every null score above ``threshold`` is an abstention."""
    final = []
    for s in scored:
        if null_scores.get(s.id) is None:
            raise DataError(f"question {s.id}: has a prediction but no no-answer score; give one for each")
        if null_scores[s.id] > threshold:
            right = float(not s.answerable)  # a float, as in the official script
            s = QuestionScore(s.id, int(right), right, right, right, s.answerable, True, s.kind)
        final.append(s)
    return final


def _answering(scored: Sequence[QuestionScore], missing: int) -> dict[str, float]:
    """Confusion matrix of answering, "answered" being positive, and its rates, 0 for an empty denominator.

    A question without a prediction counts as abstained. The accuracy is also known as "AvNA".
    """

    def percent(part: int, total: int) -> float:
        return 100.0 * part / total if total else 0.0

    answerable = sum(s.answerable for s in scored)
    answered = sum(not s.abstained for s in scored)
    right = sum(s.answerable and not s.abstained for s in scored)
    wrong, silent = answered - right, answerable - right + missing
    rightly_silent = len(scored) - answerable - wrong
    return {
        "answerable_precision": percent(right, answered),
        "answerable_recall": percent(right, right + silent),
        "answerable_f1": percent(2 * right, 2 * right + wrong + silent),
        "answerable_accuracy": percent(right + rightly_silent, len(scored) + missing),
        "answered_answerable": right,
        "answered_unanswerable": wrong,
        "abstained_answerable": silent,
        "abstained_unanswerable": rightly_silent,
    }


def _rank_metrics(scored: Sequence[QuestionScore], null_scores: Mapping[str, float]) -> dict[str, float]:
    """Best scores at thresholds fitted on the scored questions themselves (upper bounds, not results), and
    average precisions of the predicted texts, most likely answerable first.

    Ties keep the order of the probability file, as in the official script, whose best threshold depends on
    that order. NaN counts as minus infinity: it is above no threshold.
    """
    by_id = {s.id: s for s in scored}
    pairs = [(id_, -inf if isnan(odds) else odds) for id_, odds in null_scores.items() if id_ in by_id]
    # A stable sort: ties keep the order of the file.
    pairs.sort(key=itemgetter(1))
    ranked, probabilities = [by_id[id_] for id_, _ in pairs], [probability for _, probability in pairs]
    exact, f1 = [s.exact for s in ranked], [s.f1 for s in ranked]
    answerable, abstained = [s.answerable for s in ranked], [s.abstained for s in ranked]
    values: dict[str, float] = {}
    for key, question_scores in (("exact", exact), ("f1", f1)):
        best = best_threshold(question_scores, answerable, abstained, probabilities)
        values[f"best_{key}"], values[f"best_{key}_thresh"] = best
    if any(answerable):
        for key, question_scores in (("exact", exact), ("f1", f1), ("oracle", list(map(float, answerable)))):
            values[f"pr_{key}_ap"] = average_precision(question_scores, answerable, probabilities)
    return values


def abstention_warning(answerable: Collection[bool], abstained: Collection[bool]) -> str | None:
    """Text if nearly all answers, but not the gold answers, are "no answer"; else None.

    Half of a balanced set then counts as right, whatever was learned, or read from a file.
    """
    total, silent, unanswerable = len(answerable), sum(abstained), len(answerable) - sum(answerable)
    if silent <= NEARLY_ALL * total or unanswerable > NEARLY_ALL * total:
        return None
    return (
        f'{silent / total:.1%} of the answers are "no answer", which is right for'
        f" {unanswerable / total:.1%} of the questions"
    )


def best_threshold(
    values: Sequence[float],
    answerable: Sequence[bool],
    abstained: Sequence[bool],
    probabilities: Sequence[float],
) -> tuple[float, float]:
    """Highest mean score (percent) over all thresholds, and its threshold; questions sorted by null score.

    Starts from abstaining everywhere and answers one more question at a time; the best cut may lie within a
    group of equal probabilities, which no threshold can realise: the official figure is an oracle.
    """
    # ``find_best_thresh`` of the official script, whose threshold is 0.0 if abstaining is best.
    score: float = len(answerable) - sum(answerable)
    best, threshold = score, 0.0
    for value, has_answer, no_answer, probability in zip(
        values, answerable, abstained, probabilities, strict=True
    ):
        if has_answer:
            score += value
        elif not no_answer:  # an empty text is right before and after
            score -= 1
        if score > best:
            best, threshold = score, probability
    return 100.0 * best / len(values), threshold


def average_precision(
    values: Sequence[float], answerable: Sequence[bool], probabilities: Sequence[float]
) -> float:
    """Area under the precision-recall curve in percent, over thresholds between distinct null scores.

    A true positive counts by its score; at least one question must be answerable.
    """
    # The area of ``make_precision_recall_eval`` of the official script.
    positives = float(sum(answerable))
    last = len(values) - 1
    true_positive = area = recall_before = 0.0
    for i, value in enumerate(values):
        if answerable[i]:
            true_positive += value
        if i == last or probabilities[i] != probabilities[i + 1]:
            recall = true_positive / positives
            area += true_positive / (i + 1) * (recall - recall_before)
            recall_before = recall
    return 100.0 * area


# Languages other than English ----------------------------------------------------------------------

_ARTICLES: Mapping[str, str] = {
    "ar": "ال",  # anywhere, even inside words, as in the official script
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "hi": "",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "zh": "",
    # Not in MLQA: languages without articles, treated like Hindi.
    "ru": "",
    "tr": "",
    **dict.fromkeys(("ja", "ko", "th"), ""),
}
"""Article pattern of each language; empty if it has none."""
LANGUAGES: tuple[Language, ...] = get_args(Language)
_HAN = re.compile("([\u4e00-\u9fa5])")  # the range of MLQA's script
BY_CHARACTER = ("ja", "ko", "th")
_KORQUAD = str.maketrans(dict.fromkeys(string.punctuation) | dict.fromkeys("'\"《》<>〈〉()‘’", " "))
_SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),  # kana; in Japanese text Han characters are never alone
    "ko": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
    "zh": _HAN,
}
"""Language -> its script. White space does not separate its words, or words are not what is compared."""


class _Punctuation(dict[int, int | None]):
    """``str.translate`` table that drops punctuation, filled lazily."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        drops = character in string.punctuation or unicodedata.category(character).startswith("P")
        self[code] = None if drops else code
        return self[code]


def normaliser(language: str) -> Callable[[str], str]:
    """Return the function that normalises an answer to space-separated tokens; any language but English."""
    articles = re.compile(_ARTICLES[language] or r"(?!)")  # (?!) matches nothing
    table = _KORQUAD if language == "ko" else _Punctuation()

    def normalise(text: str) -> str:
        plain = articles.sub(" ", text.lower().translate(table))
        if language in BY_CHARACTER:  # two spaces where words end, which matter to exact match only
            return "  ".join(map(" ".join, plain.split()))
        if language == "zh":
            plain = _HAN.sub(r" \1 ", plain)
        return " ".join(plain.split())

    return normalise


def by_characters(texts: Iterable[str]) -> str | None:
    """Language compared by characters whose script occurs in more than half of ``texts``; None for others."""
    texts = list(texts)
    counts = {code: sum(map(bool, map(script.search, texts))) for code, script in _SCRIPTS.items()}
    return next((code for code, count in counts.items() if 2 * count > len(texts)), None)
