"""``transformers.data.metrics.squad_metrics`` of transformers 4: same names, arguments and exact values.

Scores are those of ``metrics.squad``; as in transformers 4, questions without a prediction still count among
the unanswerable ones when thresholds are fitted.

Source: transformers 4.57.6, data/metrics/squad_metrics.py, after the official script of SQuAD 2.0
(Rajpurkar et al. 2018).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import accumulate, chain, product
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers.decoders import WordPiece

from qa_arch.config.files import write_atomic
from qa_arch.metrics.squad import best_overlap, normalise

if TYPE_CHECKING:  # compute_f1 needs no torch
    from qa_arch.extras.compat.squad import SquadExample, SquadFeatures, SquadResult

NO_SCORE = 1000000
"""Upper bound of null scores: that of a question without windows."""
Texts = Mapping[str, str]
"""Question id -> predicted text."""
Scores = Mapping[str, float]
"""Question id -> score (0 to 1) or null odds."""
Flags = Mapping[str, bool]
"""Question id -> whether it is answerable."""
Means = dict[str, Any]
"""Rates in percent and numbers of questions."""

normalize_answer = normalise


def get_tokens(s: str | None) -> list[str]:
    """Normalised words of an answer; empty for "no answer" ("" or None)."""
    return normalise(s).split() if s else []


def compute_exact(a_gold: str, a_pred: str) -> int:
    """1 if the normalised answers are equal, else 0."""
    return int(normalise(a_gold) == normalise(a_pred))


def compute_f1(a_gold: str | None, a_pred: str | None) -> float:
    """Word F1 of two answers, 0 to 1; 1 if both are empty."""
    gold, predicted = (" ".join(get_tokens(answer)) for answer in (a_gold, a_pred))
    return best_overlap(predicted, [gold], "2.0").f1


def get_raw_scores(
    examples: Iterable[SquadExample], preds: Texts
) -> tuple[dict[str, float], dict[str, float]]:
    """Exact match and F1 against the best gold, by question id; prints ids without a prediction."""
    exact_scores: dict[str, float] = {}
    f1_scores: dict[str, float] = {}
    for example in examples:
        id_ = example.qas_id
        if id_ not in preds:
            print(f"Missing prediction for {id_}")
            continue
        golds = [gold for answer in example.answers if (gold := normalise(answer["text"]))] or [""]
        overlap = best_overlap(normalise(preds[id_]), golds, "2.0")
        exact_scores[id_], f1_scores[id_] = overlap.exact, overlap.f1
    return exact_scores, f1_scores


def apply_no_ans_threshold(
    scores: Scores, na_probs: Scores, qid_to_has_ans: Flags, na_prob_thresh: float
) -> dict[str, float]:
    """``scores``, abstaining where the null score exceeds ``na_prob_thresh``; KeyError if one is missing."""
    return {
        id_: float(not qid_to_has_ans[id_]) if na_probs[id_] > na_prob_thresh else score
        for id_, score in scores.items()
    }


def make_eval_dict(exact_scores: Scores, f1_scores: Scores, qid_list: Sequence[str] | None = None) -> Means:
    """Means in percent and the number of questions, over ``qid_list`` or, if empty, over all.

    Raises KeyError for an id without a score, ZeroDivisionError without scores.
    """
    ids = qid_list or exact_scores
    exact, f1 = (100.0 * sum(scores[id_] for id_ in ids) / len(ids) for scores in (exact_scores, f1_scores))
    return {"exact": exact, "f1": f1, "total": len(ids)}


def merge_eval(main_eval: Means, new_eval: Means, prefix: str) -> None:
    """Add the values of ``new_eval`` to ``main_eval`` as ``PREFIX_KEY``."""
    main_eval.update({f"{prefix}_{key}": value for key, value in new_eval.items()})


def find_best_thresh(
    preds: Texts, scores: Scores, na_probs: Scores, qid_to_has_ans: Flags
) -> tuple[float, float]:
    """Highest mean score (percent) over all null thresholds, and the first threshold that reaches it."""
    ranked = [id_ for id_ in sorted(na_probs, key=na_probs.__getitem__) if id_ in scores]
    gains = (scores[id_] if qid_to_has_ans[id_] else -bool(preds[id_]) for id_ in ranked)
    abstaining = sum(not has_answer for has_answer in qid_to_has_ans.values())
    thresholds = chain([0.0], (na_probs[id_] for id_ in ranked))
    best, threshold = max(
        zip(accumulate(gains, initial=abstaining), thresholds, strict=True), key=itemgetter(0)
    )
    return 100.0 * best / len(scores), threshold


def find_best_thresh_v2(
    preds: Texts, scores: Scores, na_probs: Scores, qid_to_has_ans: Flags
) -> tuple[float, float, float]:
    """``find_best_thresh``, plus the mean score of the answerable questions, 0 to 1."""
    answerable = [id_ for id_ in sorted(na_probs, key=na_probs.__getitem__) if qid_to_has_ans[id_]]
    total = reduce(add, (scores[id_] for id_ in answerable if id_ in scores), 0.0)
    return *find_best_thresh(preds, scores, na_probs, qid_to_has_ans), total / len(answerable)


def find_all_best_thresh(
    main_eval: Means, preds: Texts, exact_raw: Scores, f1_raw: Scores, na_probs: Scores, qid_to_has_ans: Flags
) -> None:
    """Add ``best_exact``, ``best_f1`` and their thresholds to ``main_eval``."""
    for key, raw in (("exact", exact_raw), ("f1", f1_raw)):
        best, threshold = find_best_thresh(preds, raw, na_probs, qid_to_has_ans)
        main_eval |= {f"best_{key}": best, f"best_{key}_thresh": threshold}


def find_all_best_thresh_v2(
    main_eval: Means, preds: Texts, exact_raw: Scores, f1_raw: Scores, na_probs: Scores, qid_to_has_ans: Flags
) -> None:
    """``find_all_best_thresh``, plus ``has_ans_exact`` and ``has_ans_f1`` (0 to 1)."""
    find_all_best_thresh(main_eval, preds, exact_raw, f1_raw, na_probs, qid_to_has_ans)
    for key, raw in (("exact", exact_raw), ("f1", f1_raw)):
        main_eval[f"has_ans_{key}"] = find_best_thresh_v2(preds, raw, na_probs, qid_to_has_ans)[2]


def squad_evaluate(
    examples: Iterable[SquadExample],
    preds: Texts,
    no_answer_probs: Scores | None = None,
    no_answer_probability_threshold: float = 1.0,
) -> Means:
    """All scores (percent) of the predictions ``preds``; a null score above the threshold means "no answer".

    The best thresholds are fitted on the scored questions themselves: upper bounds, not results.
    """
    examples = list(examples)
    answerable = {example.qas_id: bool(example.answers) for example in examples}
    if no_answer_probs is None:
        no_answer_probs = dict.fromkeys(preds, 0.0)
    raw = get_raw_scores(examples, preds)
    exact, f1 = (
        apply_no_ans_threshold(scores, no_answer_probs, answerable, no_answer_probability_threshold)
        for scores in raw
    )
    evaluation = make_eval_dict(exact, f1)
    for prefix, kind in (("HasAns", True), ("NoAns", False)):
        if ids := [id_ for id_, has_answer in answerable.items() if has_answer is kind]:
            merge_eval(evaluation, make_eval_dict(exact, f1, ids), prefix)
    if no_answer_probs:
        find_all_best_thresh(evaluation, preds, *raw, no_answer_probs, answerable)
    return evaluation


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """Project ``pred_text``, joined from word pieces, back onto ``orig_text``: "steve smith" on "Steve
    Smith's" gives "Steve Smith". Returns ``orig_text`` if the characters cannot be aligned."""
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

    tokenised = " ".join(BasicTokenizer(do_lower_case=do_lower_case).tokenize(orig_text))
    start = tokenised.find(pred_text)
    original = [offset for offset, character in enumerate(orig_text) if character != " "]
    visible = [offset for offset, character in enumerate(tokenised) if character != " "]
    if start < 0 or len(original) != len(visible):
        return orig_text
    original_of = dict(zip(visible, original, strict=True))
    first, last = original_of.get(start), original_of.get(start + len(pred_text) - 1)
    return orig_text if first is None or last is None else orig_text[first : last + 1]


def _get_best_indexes(logits: Sequence[float], n_best_size: int) -> list[int]:
    """Indices of the highest logits, best first; the lower index first on ties."""
    return sorted(range(len(logits)), key=logits.__getitem__, reverse=True)[: max(n_best_size, 0)]


def _compute_softmax(scores: Sequence[float]) -> list[float]:
    """Softmax of the logits ``scores``."""
    if not scores:
        return []
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = reduce(add, powers)
    return [power / total for power in powers]


class _Span(NamedTuple):
    """Tokens ``start`` to ``end`` of a window as an answer; 0 to 0 means "no answer"."""

    start_logit: float
    end_logit: float
    window: Any = None
    """Its ``SquadFeatures``."""
    start: int = 0
    end: int = 0

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def compute_predictions_logits(
    all_examples: Iterable[SquadExample],
    all_features: Iterable[SquadFeatures],
    all_results: Iterable[SquadResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str | None,
    output_nbest_file: str | None,
    output_null_log_odds_file: str | None,
    verbose_logging: bool,
    version_2_with_negative: bool,
    null_score_diff_threshold: float,
    tokenizer: Any,
) -> dict[str, str]:
    """Question id -> answer, "" for none; also written as JSON, with n-best candidates and null odds.

    ``max_answer_length`` is in tokens. Only named files are written, each atomically, the null odds only with
    ``version_2_with_negative``. ``verbose_logging`` has no effect. Raises KeyError for a window without a
    result, QaArchError for a file that cannot be written.
    """
    windows_of = defaultdict(list)
    for feature in all_features:
        windows_of[feature.example_index].append(feature)
    result_of = {result.unique_id: result for result in all_results}
    texts, candidates, odds = {}, {}, {}
    for number, example in enumerate(all_examples):
        windows = [(window, result_of[window.unique_id]) for window in windows_of[number]]
        spans = [span for window in windows for span in _spans(*window, n_best_size, max_answer_length)]
        null_score, null = _null(windows)
        if version_2_with_negative:
            spans.append(null)
        spans.sort(key=lambda span: span.score, reverse=True)
        texts_and_spans = _distinct_texts(spans, example.doc_tokens, tokenizer, do_lower_case, n_best_size)
        if version_2_with_negative and all(text for text, _ in texts_and_spans):
            texts_and_spans.append(("", null))
        if len(texts_and_spans) == (1 if version_2_with_negative else 0):  # there is no span
            texts_and_spans.insert(0, ("empty", _Span(0.0, 0.0)))
        probabilities = _compute_softmax([span.score for _, span in texts_and_spans])
        candidates[example.qas_id] = [
            {"text": text, "probability": p, "start_logit": span.start_logit, "end_logit": span.end_logit}
            for (text, span), p in zip(texts_and_spans, probabilities, strict=True)
        ]
        text, best = next(pair for pair in texts_and_spans if pair[0] or not version_2_with_negative)
        if version_2_with_negative:
            odds[example.qas_id] = null_score - best.start_logit - best.end_logit
            text = "" if odds[example.qas_id] > null_score_diff_threshold else text
        texts[example.qas_id] = text
    files = {output_prediction_file: texts, output_nbest_file: candidates}
    if version_2_with_negative:
        files[output_null_log_odds_file] = odds
    for path, content in files.items():
        if path:
            write_atomic(path, json.dumps(content, indent=4) + "\n")
    return texts


def compute_predictions_log_probs(*_: Any, **__: Any) -> dict[str, str]:
    """Exists so that scripts can import it; raises NotImplementedError."""
    raise NotImplementedError("beam heads (XLNet, XLM) are not supported: use compute_predictions_logits")


def _spans(window: SquadFeatures, result: SquadResult, n_best: int, longest: int) -> Iterator[_Span]:
    """Pairs of the best starts and ends inside the text, in order, of at most ``longest`` tokens."""
    starts, ends = (
        [t for t in _get_best_indexes(logits, n_best) if t in window.token_to_orig_map]
        for logits in (result.start_logits, result.end_logits)
    )
    for start, end in product(starts, ends):
        if start <= end < start + longest and window.token_is_max_context.get(start):
            yield _Span(result.start_logits[start], result.end_logits[end], window, start, end)


def _null(windows: Iterable[tuple[SquadFeatures, SquadResult]]) -> tuple[float, _Span]:
    """The lowest score of "no answer" over windows, and its span."""
    spans = (_Span(result.start_logits[0], result.end_logits[0]) for _, result in windows)
    return min(chain([(NO_SCORE, _Span(0, 0))], ((span.score, span) for span in spans)), key=itemgetter(0))


def _distinct_texts(
    spans: Iterable[_Span], words: Sequence[str], tokenizer: Any, lower_case: bool, n_best: int
) -> list[tuple[str, _Span]]:
    """The first ``n_best`` spans with different texts, as (text, span); ``words`` are the example's."""
    pairs: list[tuple[str, _Span]] = []
    seen = set()
    for span in spans:
        if len(pairs) >= n_best:
            break
        text = ""
        if span.start:
            window = span.window
            pieces = window.tokens[span.start : span.end + 1]
            first, last = window.token_to_orig_map[span.start], window.token_to_orig_map[span.end]
            plain = " ".join(_joined(pieces, tokenizer).split())
            text = get_final_text(plain, " ".join(words[first : last + 1]), lower_case)
            if text in seen:
                continue
        seen.add(text)
        pairs.append((text, span))
    return pairs


def _joined(pieces: list[str], tokenizer: Any) -> str:
    """Text of ``pieces``; for WordPiece with the spaces around punctuation that fast tokenizers remove."""
    if isinstance(tokenizer.backend_tokenizer.decoder, WordPiece):
        return " ".join(pieces).replace(" ##", "")
    return tokenizer.convert_tokens_to_string(pieces)
