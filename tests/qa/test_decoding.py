"""From logits to answers and their files: span search, ranking of windows, sequences."""

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_arch.errors import RunError
from qa_arch.qa.decoding import SequenceCandidates, best_sequences, best_spans, rank_sequences
from qa_arch.qa.files import FINITE, nbest, null_odds, predictions
from qa_arch.qa.ranking import Ranking, SpanCandidates, char_spans, rank
from qa_arch.tensors import SpanLogits, StepLogits
from qa_arch.types import Example, QuestionSet


def make_logits(start, end, null_start=None, null_end=None, **more) -> SpanLogits:
    start, end = torch.as_tensor(start).float(), torch.as_tensor(end).float()
    nulls = (
        torch.zeros(len(start)) if n is None else torch.as_tensor(n).float() for n in (null_start, null_end)
    )
    return SpanLogits(start, end, *nulls, **more)


def make_windows(sizes, tokens=12, before=3, words=40, seed=0):
    """Questions, table and logits of windows; question q has ``sizes[q]`` overlapping ones.

    A window has ``before`` positions outside the context, then ``tokens`` tokens of the passage.
    """
    contexts = [" ".join(f"{chr(97 + q % 26)}{w}" for w in range(words)) for q in range(len(sizes))]
    examples = tuple(Example(f"q{q}", "what", context) for q, context in enumerate(contexts))
    spans = [match.span() for context in contexts for match in re.finditer(r"\S+", context)]
    step = tokens // 2
    example = np.repeat(np.arange(len(sizes)), sizes)
    nth = np.concatenate([np.arange(size) for size in sizes])
    table = SimpleNamespace(
        example=example,
        token_start=example * words + nth * step,
        context_at=np.full(len(example), before),
        char_start=np.array([s for s, _ in spans] + [0]),
        char_end=np.array([e for _, e in spans] + [0]),
    )
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, len(example), before + tokens, generator=generator) * 2
    logits[:, :, :before] = -torch.inf
    null = torch.randn(2, len(example), generator=generator)
    return QuestionSet("synthetic", examples, "2.0"), table, make_logits(*logits, *null)


def rank_windows(windows, *, n_best, max_answer_tokens) -> Ranking:
    """Search the windows of ``make_windows`` by grid, and rank them."""
    questions, table, logits = windows
    result = best_spans(logits, search="grid", n_best=n_best, max_answer_tokens=max_answer_tokens)
    origin = table.token_start - table.context_at
    start, end = char_spans(result, origin, table.char_start, table.char_end)
    return rank(
        result,
        questions.examples,
        window=np.arange(len(table.example)),
        example=table.example,
        char_start=start,
        char_end=end,
        expected=np.bincount(table.example, minlength=len(questions)),
        n_best=n_best,
        dedupe=False,
    )


INF = float("inf")
few_values = st.sampled_from([-INF, -2.0, -0.5, 0.0, 0.25, 0.5, 3.0])  # many ties
any_values = st.floats(-50, 50, width=32) | st.just(-INF)


def listed(result: SpanCandidates, row: int = 0) -> list[tuple[int, int]]:
    filled = result.score[row] > -INF
    return list(zip(result.start[row][filled].tolist(), result.end[row][filled].tolist(), strict=True))


def all_pairs(start, end, limit):
    """Every valid pair, best first; ties by start, then by length."""
    start, end = np.float32(start), np.float32(end)
    pairs = [
        (-(start[s] + end[e]), s, e)
        for s, e in itertools.product(range(len(start)), repeat=2)
        if 0 <= e - s < limit and start[s] + end[e] > -INF
    ]
    return [(s, e) for _, s, e in sorted(pairs)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda T: st.lists(
            st.tuples(*[st.lists(v, min_size=T, max_size=T) for v in (few_values | any_values,) * 2]),
            min_size=1,
            max_size=3,
        )
    ),
    limit=st.integers(1, 11),
    k=st.integers(1, 30),
)
def test_band_is_exact(rows, limit, k):
    start, end = (torch.tensor(list(x)) for x in zip(*rows, strict=True))
    zero = torch.zeros(len(rows))
    result = best_spans(SpanLogits(start, end, zero, zero), max_answer_tokens=limit, n_best=k)
    assert result.start.shape == (len(rows), k)
    for row, (s, e) in enumerate(rows):
        assert listed(result, row) == all_pairs(s, e, limit)[:k]


@pytest.mark.parametrize("search", ["band", "grid", "greedy"])
@pytest.mark.parametrize(("limit", "expected"), [(4, (2, 5)), (3, (2, 3))])
def test_length_limit_counts_tokens(search, limit, expected):
    """The best pair, tokens 2 to 5, has 4 tokens: a limit of 4 allows it, 3 does not."""
    start, end = torch.full((2, 1, 8), -9.0)
    start[0, 2], end[0, 5], end[0, 3] = 5.0, 5.0, 2.0
    result = best_spans(make_logits(start, end), search=search, max_answer_tokens=limit)
    assert listed(result)[0] == expected


def test_greedy_keeps_the_best_start():
    """Joint search prefers (0, 1); greedy takes start 3, the best on its own."""
    start, end = torch.tensor([[4.0, 0, 0, 5, 0]]), torch.tensor([[0.0, 9, 0, 1, 2]])
    assert listed(best_spans(make_logits(start, end)))[0] == (0, 1)
    result = best_spans(make_logits(start, end), search="greedy", n_best=7)
    assert listed(result) == [(3, 4)]


@pytest.mark.parametrize(
    ("null_start", "null_end", "expected"),
    [
        (-5.0, -5.0, [(0, 3), (1, 3)]),
        (2.75, -5.0, [(0, 3), (0, 2)]),
        (-5.0, 2.75, [(0, 3), (1, 3)]),
        (2.5, -5.0, [(0, 3), (1, 3)]),
    ],
)
def test_null_takes_a_slot_in_the_grid(null_start, null_end, expected):
    """With n_best=2, a null above the second start (or end) takes its slot; an equal one does not."""
    start, end = torch.tensor([[3.0, 2.5, 1, 0]]), torch.tensor([[0.0, 1, 2, 3]])
    result = best_spans(make_logits(start, end, [null_start], [null_end]), search="grid", n_best=2)
    assert listed(result) == expected


@pytest.mark.parametrize("search", ["band", "grid", "greedy"])
def test_nan_is_never_chosen(search):
    start, end = torch.zeros(2, 2, 5)
    start[0, 2], end[0, 3], start[1] = float("nan"), INF, float("nan")
    result = best_spans(make_logits(start, end), search=search)
    assert all(s != 2 and e != 3 for s, e in listed(result, 0))
    assert listed(result, 0)
    assert listed(result, 1) == []
    assert result.invalid.tolist() == [2, 5]


def test_null_comes_from_the_logits():
    zero, nulls = torch.zeros(2, 3), ([1.0, 2.0], [0.5, -4.0])
    logits = make_logits(zero, zero, *nulls, verifier=torch.tensor([3.0, 8.0]), verifier_weight=0.5)
    np.testing.assert_allclose(best_spans(logits).null, logits.null)
    assert best_spans(make_logits(zero, zero, [float("nan"), 1.0])).null.tolist() == [INF, 1.0]


def questions(count=1) -> QuestionSet:
    examples = (Example(f"id{q}", "who", "Ada met  Bob in Rome") for q in range(count))
    return QuestionSet("two", tuple(examples), "2.0")


def spans(*windows, null) -> tuple[SpanCandidates, np.ndarray, np.ndarray]:
    """Candidates and offsets of windows, each a list of (character start, end, score)."""
    K = max(map(len, windows))
    padded = [[*window, *[(0, 0, -INF)] * (K - len(window))] for window in windows]
    start, end, score = np.moveaxis(np.array(padded, dtype=np.float64), 2, 0)
    half = (score / 2).astype(np.float32)
    nulls = np.array(null, dtype=np.float32) / 2
    tokens = np.zeros(score.shape, np.int32)
    return SpanCandidates(tokens, tokens, half, half, nulls, nulls, nulls), start.astype(int), end.astype(int)


def ranked_answers(requested, example, result, start, end, window=None, expected=None, **options):
    """Answers of ``rank``; by default the windows come in order and none is missing."""
    window = np.arange(len(example)) if window is None else window
    expected = np.bincount(example, minlength=len(requested)) if expected is None else expected
    columns = {"window": window, "example": example, "char_start": start, "char_end": end}
    return rank(result, requested.examples, **columns, expected=expected, **options).predictions()


def test_two_windows_by_hand():
    """Two windows: the second has the better span and the lower null."""
    result, start, end = spans([(0, 3, 4.0), (16, 20, 1.0)], [(9, 12, 5.0)], null=[3.0, 2.0])
    (answer,) = ranked_answers(questions(), np.array([0, 0]), result, start, end)
    assert (answer.id, answer.windows, answer.null_odds) == ("id0", 2, 2.0 - 5.0)
    assert (answer.best.text, answer.best.start, answer.best.end, answer.best.score) == ("Bob", 9, 12, 5.0)
    assert [c.text for c in answer.candidates] == ["Bob", "Ada", "", "Rome"]
    total = sum(math.exp(s) for s in (5, 4, 2, 1))
    for candidate, score in zip(answer.candidates, (5, 4, 2, 1), strict=True):
        assert candidate.probability == pytest.approx(math.exp(score) / total)
    assert answer.text(-3.0) == "Bob"  # only odds above the threshold mean no answer
    assert answer.text(-3.0001) == ""


@pytest.mark.parametrize(
    ("null", "n_best", "expected"),
    [
        (0.0, 2, ["Ada", "met", ""]),
        (3.5, 2, ["Ada", ""]),
        (4.0, 9, ["Ada", "", "met", "Rome"]),  # a span wins a tie
        (9.0, 1, ["", "Ada"]),
    ],
)
def test_null_is_appended_if_not_among_the_n_best(null, n_best, expected):
    result, start, end = spans([(0, 3, 4.0), (4, 7, 3.0), (16, 20, 1.0)], null=[null])
    (answer,) = ranked_answers(questions(), np.array([0]), result, start, end, n_best=n_best)
    assert [c.text for c in answer.candidates] == expected
    assert answer.best.text == "Ada"


def test_spans_shared_by_windows_are_kept_once_with_their_best_score():
    """Spans that share one boundary are different answers."""
    result, start, end = spans([(0, 3, 1.0), (4, 7, 0.5), (0, 7, 0.2)], [(0, 3, 2.0)], null=[0.0, 0.0])
    (once,) = ranked_answers(questions(), np.array([0, 0]), result, start, end)
    expected = [("Ada", 2.0), ("met", 0.5), ("Ada met", pytest.approx(0.2)), ("", 0.0)]
    assert [(c.text, c.score) for c in once.candidates] == expected
    (twice,) = ranked_answers(questions(), np.array([0, 0]), result, start, end, dedupe=False)
    assert [c.text for c in twice.candidates] == ["Ada", "Ada", "met", "Ada met", ""]


@pytest.mark.parametrize("null", [0.0, -INF, INF])
def test_windows_without_spans_have_no_answer(null):
    result, start, end = spans([(0, 0, -INF)], [(3, 3, 7.0)], null=[null, null])
    (answer,) = ranked_answers(questions(), np.array([0, 0]), result, start, end)
    assert answer.best is None
    assert answer.null_odds == INF
    assert answer.text(1e30) == ""
    assert [(c.text, c.probability) for c in answer.candidates] == [("", 1.0)]


def test_missing_windows_are_named():
    result, start, end = spans([(0, 3, 1.0)], null=[0.0])
    with pytest.raises(RunError, match=r"2 of 3 questions .*\(id0, id2\)"):
        ranked_answers(questions(3), np.array([1]), result, start, end, expected=np.array([1, 1, 2]))
    result, start, end = spans([(0, 3, 1.0)], [(0, 3, 1.0)], [(0, 3, 1.0)], null=[0.0] * 3)
    example, window = np.array([0, 1, 1]), np.array([0, 4, 4])
    with pytest.raises(RunError, match=r"1 of 2 questions .*\(id1\)"):  # read twice
        ranked_answers(questions(2), example, result, start, end, window)


BOATS = "Mira  paints, red boats."
STARTS, ENDS = np.array([0, 6, 12, 14, 18, 23, 0]), np.array([4, 12, 13, 17, 23, 24, 0])  # last: no token


def greedy(token: list[list[float]], stop: list[float]) -> tuple[list[int], float, float]:
    """Greedy decoding of one window, from probabilities written out: (tokens, log-probability, null)."""
    tokens, total, null = [], 0.0, 0.0
    for step, (scores, end) in enumerate(zip(token, stop, strict=True)):
        weights = [math.exp(score) for score in (*scores, end)]
        log = [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]
        null = null if step else log[-1]
        options = log if step else log[:-1]
        best = max(range(len(options)), key=options.__getitem__)
        total += log[best]
        if best == len(log) - 1:
            break
        tokens.append(best)
    return tokens, total, null


def test_tokens_scores_and_null_match_greedy_decoding():
    torch.manual_seed(0)
    token, stop = torch.randn(40, 4, 5), torch.randn(40, 4) + 0.7
    token[:, :, 0] = -torch.inf
    result = best_sequences(StepLogits(token, stop))
    lengths = set()
    for n in range(40):
        tokens, score, null = greedy(token[n].tolist(), stop[n].tolist())
        assert [t for t in result.tokens[n].tolist() if t >= 0] == tokens
        assert (result.tokens[n, len(tokens) :] == -1).all()
        assert result.score[n] == pytest.approx(score, abs=1e-5)
        assert result.null[n] == pytest.approx(null, abs=1e-5)
        lengths.add(len(tokens))
    assert lengths >= {1, 2, 4}  # stopped at once, later and never


def sequences(*rows: tuple[list[int], float, float]) -> SequenceCandidates:
    tokens = [[*chosen, *[-1] * (4 - len(chosen))] for chosen, _, _ in rows]
    return SequenceCandidates(
        np.array(tokens, np.int32),
        *(np.array(x, np.float32) for x in zip(*(r[1:] for r in rows), strict=True)),
    )


def ranked(result, example, origin=None, questions=1):
    examples = [Example(str(q), "Who?", BOATS) for q in range(questions)]
    return rank_sequences(
        result,
        examples,
        np.zeros(len(result), np.int64) if origin is None else np.array(origin),
        STARTS,
        ENDS,
        window=np.arange(len(result)),
        example=np.array(example),
        expected=np.bincount(example, minlength=questions),
    )


@pytest.mark.parametrize(
    ("chosen", "text", "start", "end"),
    [
        ([0, 1, 2], "Mira  paints,", 0, 13),  # one span, with the spaces of the passage
        ([4, 3], "boats red", -1, -1),
        ([0, 3, 4], "Mira red boats", -1, -1),
        ([3, 3], "red red", -1, -1),
        ([5], ".", 23, 24),
    ],
)
def test_text_has_the_chosen_tokens_in_order(chosen, text, start, end):
    ranking = ranked(sequences((chosen, -1.0, -3.0)), [0])
    (answer,) = ranking.predictions()
    assert (answer.best.text, answer.best.start, answer.best.end) == (text, start, end)
    assert answer.null_odds == pytest.approx(-2.0)
    assert [entry["text"] for entry in dict(nbest(ranking))["0"]] == [text, ""]


def test_windows_are_merged_by_question():
    """Best sequence and lowest null over the windows, in the token columns of the passage."""
    result = sequences(([2], -2.0, -0.5), ([0, 1], -1.0, -4.0), ([1], -0.5, -9.0), ([0], -math.inf, 0.0))
    actual, expected = ranked(result, [0, 0, 1, 1], origin=[0, 3, 0, 3], questions=2).predictions()
    assert (actual.best.text, actual.windows) == ("red boats", 2)
    assert actual.null_odds == pytest.approx(-4.0 + 1.0)
    assert [candidate.text for candidate in actual.candidates] == ["red boats", ",", ""]
    assert (expected.best.text, expected.null_odds) == ("paints", pytest.approx(-8.5))
    # A sequence in two windows counts once, with its best score; for another question it is another answer.
    result = sequences(([3, 4], -1.5, -3.0), ([1, 2], -1.0, -4.0), ([3, 4], -2.0, -9.0))
    answer, other = ranked(result, [0, 0, 1], origin=[0, 2, 0], questions=2).predictions()
    assert [candidate.text for candidate in answer.candidates] == ["red boats", ""]
    assert (answer.best.score, other.best.score) == (-1.0, -2.0)


def post_process(contexts, features, starts, ends, n_best, limit, threshold):
    """Post-processing of the widely used SQuAD script in plain loops, from its published behaviour.

    Returns (texts, n-best lists, null odds), one of each per context. ``features[q]`` lists (row of the
    logits, offsets); offsets are None outside the context, and position 0 has the null logits.
    """
    texts, nbests, odds = [], [], []
    for context, windows in zip(contexts, features, strict=True):
        result, null = [], None
        for row, offsets in windows:
            start, end = starts[row], ends[row]
            if null is None or start[0] + end[0] < null["score"]:
                null = _entry((0, 0), start[0], end[0])
            best_starts = np.argsort(start)[: -n_best - 1 : -1].tolist()
            best_ends = np.argsort(end)[: -n_best - 1 : -1].tolist()
            for s in best_starts:
                for e in best_ends:
                    if offsets[s] is None or offsets[e] is None or e < s or e - s + 1 > limit:
                        continue
                    result.append(_entry((offsets[s][0], offsets[e][1]), start[s], end[e]))
        result.append(null)
        top = sorted(result, key=lambda entry: entry["score"], reverse=True)[:n_best]
        if not any(entry["offsets"] == (0, 0) for entry in top):
            top.append(null)
        scores = np.array([entry["score"] for entry in top])
        weights = np.exp(scores - scores.max())
        for entry, probability in zip(top, weights / weights.sum(), strict=True):
            begin, stop = entry["offsets"]
            entry["text"], entry["probability"] = context[begin:stop], float(probability)
        best = next((entry for entry in top if entry["text"]), None)
        gap = null["score"] - best["start_logit"] - best["end_logit"] if best else np.inf
        texts.append("" if gap > threshold else best["text"])
        keys = ("probability", "start_logit", "end_logit")
        nbests.append([{"text": entry["text"]} | {key: float(entry[key]) for key in keys} for entry in top])
        odds.append(float(gap))
    return texts, nbests, odds


def _entry(offsets, start, end):
    return {"offsets": offsets, "score": start + end, "start_logit": start, "end_logit": end}


def script_answers(synthetic, n_best, limit, threshold):
    questions, table, logits = synthetic
    start, end = logits.start.numpy().copy(), logits.end.numpy().copy()
    start[:, 0], end[:, 0] = logits.null_start, logits.null_end
    features: list[list] = [[] for _ in questions.examples]
    rows = zip(table.example, table.token_start, table.context_at, strict=True)
    for row, (q, token, at) in enumerate(rows):
        columns = slice(token, token + start.shape[1] - at)
        pairs = zip(table.char_start[columns].tolist(), table.char_end[columns].tolist(), strict=True)
        features[q].append((row, [None] * at + list(pairs)))
    contexts = [example.context for example in questions.examples]
    return post_process(contexts, features, start, end, n_best, limit, threshold)


@pytest.mark.parametrize(("n_best", "limit"), [(20, 30), (5, 4), (2, 1), (150, 30)])
def test_grid_search_matches_the_common_script(n_best, limit):
    synthetic = make_windows([1, 2, 3, 1] * 8, tokens=25, words=60, seed=n_best)
    ranking = rank_windows(synthetic, n_best=n_best, max_answer_tokens=limit)
    margin = float(np.median(ranking.null_odds[ranking.best >= 0])) + 1e-3
    texts, lists, odds = script_answers(synthetic, n_best, limit, margin)
    assert list(predictions(ranking, margin).values()) == texts
    assert 0 < sum(text == "" for text in texts) < len(texts)
    np.testing.assert_allclose([a.null_odds for a in ranking.best_predictions], odds, atol=1e-5)
    for ours, theirs in zip(dict(nbest(ranking)).values(), lists, strict=True):
        assert [c["text"] for c in ours] == [c["text"] for c in theirs]
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine == pytest.approx({**expected, "text": mine["text"]}, abs=1e-6)


def test_infinite_odds_become_finite_and_joined_texts_stay():
    examples = [Example(id_, "who", "Ada and Bob") for id_ in "abcd"]
    ones = np.ones(8)
    start, end = np.zeros((2, 8), np.int64)
    start[2], end[2], start[4], end[4], start[6], end[6] = 8, 11, 0, 3, -1, -1
    ranking = Ranking(
        examples,
        np.arange(0, 9, 2),
        start,
        end,
        *(ones.astype(np.float32),) * 2,
        ones / 2,
        np.array([-1, 2, 4, 6]),
        np.array([INF, -INF, -0.5, -1.0]),
        np.ones(4, np.int64),
        {6: "Ada Bob"},
    )
    assert null_odds(ranking) == {"a": FINITE, "b": -FINITE, "c": -0.5, "d": -1.0}
    assert predictions(ranking, -1.0) == {"a": "", "b": "Bob", "c": "", "d": "Ada Bob"}
    assert predictions(ranking, INF) == {"a": "", "b": "Bob", "c": "Ada", "d": "Ada Bob"}
    assert [a.text(-1.0) for a in ranking.predictions()] == list(predictions(ranking, -1.0).values())
    assert [entries[0]["text"] for entries in dict(nbest(ranking)).values()] == ["", "Bob", "Ada", "Ada Bob"]


def test_tied_logits_give_the_same_spans_alone_and_in_a_batch():
    """bfloat16 logits have many ties: their order must not depend on the batch."""
    generator = torch.Generator().manual_seed(2)
    start, end = (torch.randn(2, 16, 60, generator=generator) * 2).round() / 2
    for search in ("band", "grid"):
        batch = best_spans(make_logits(start, end), search=search)
        for row in range(16):
            alone = best_spans(make_logits(start[row : row + 1], end[row : row + 1]), search=search)
            assert listed(alone) == listed(batch, row)
