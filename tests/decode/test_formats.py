"""The official files, and parity of the grid with the common script."""

from __future__ import annotations

import json

import numpy as np
import pytest
from decode.worlds import make_world, rank_world
from kills import check_recovery, killed_at_each_step, killed_at_sizes

from qa_arch.spans.files import FINITE, nbest, null_odds, predictions, write_parts
from qa_arch.spans.ranking import Ranking
from qa_arch.types.text import Example

INF = float("inf")


def post_process(contexts, features, starts, ends, n_best, limit, threshold):
    """(texts, n-best lists, null odds), one each per context.

    What the SQuAD script in wide use does after prediction, in lists and loops, from its published
    behaviour. ``features[q]`` lists (row of the logits, offsets); offsets hold None outside the context, and
    the null's logits stand at position 0.
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
        expected_kept = sorted(result, key=lambda entry: entry["score"], reverse=True)[:n_best]
        if not any(entry["offsets"] == (0, 0) for entry in expected_kept):
            expected_kept.append(null)
        scores = np.array([entry["score"] for entry in expected_kept])
        weights = np.exp(scores - scores.max())
        for entry, probability in zip(expected_kept, weights / weights.sum(), strict=True):
            begin, stop = entry["offsets"]
            entry["text"], entry["probability"] = context[begin:stop], float(probability)
        best = next((entry for entry in expected_kept if entry["text"]), None)
        gap = null["score"] - best["start_logit"] - best["end_logit"] if best else np.inf
        texts.append("" if gap > threshold else best["text"])
        keys = ("text", "probability", "start_logit", "end_logit")
        nbests.append([{key: _plain(entry[key]) for key in keys} for entry in expected_kept])
        odds.append(float(gap))
    return texts, nbests, odds


def _entry(offsets, start, end):
    return {"offsets": offsets, "score": start + end, "start_logit": start, "end_logit": end}


def _plain(value):
    return value if isinstance(value, str) else float(value)


def by_the_script(made, n_best, limit, threshold):
    questions, table, logits = made
    start, end = logits.start.numpy().copy(), logits.end.numpy().copy()
    start[:, 0], end[:, 0] = logits.null_start, logits.null_end
    features: list[list] = [[] for _ in questions.examples]
    for row, (q, token, at) in enumerate(
        zip(table.example, table.token_start, table.context_at, strict=True)
    ):
        here = slice(token, token + start.shape[1] - at)
        pairs = zip(table.char_start[here].tolist(), table.char_end[here].tolist(), strict=True)
        features[q].append((row, [None] * at + list(pairs)))
    return post_process(
        [e.context for e in questions.examples], features, start, end, n_best, limit, threshold
    )


@pytest.mark.parametrize(("n_best", "limit"), [(20, 30), (5, 4), (2, 1), (400, 30)])
def test_the_grid_is_that_of_the_common_script(n_best, limit):
    made = make_world([1, 2, 3, 1] * 8, tokens=25, words=60, seed=n_best)
    ranking = rank_world(made, "grid", n_best=n_best, max_answer_tokens=limit)
    answered = ranking.best_predictions
    margin = float(np.median(ranking.null_odds[ranking.best >= 0])) + 1e-3
    texts, lists, odds = by_the_script(made, n_best, limit, margin)
    assert list(predictions(ranking, margin).values()) == texts
    assert 0 < sum(text == "" for text in texts) < len(texts)
    np.testing.assert_allclose([a.null_odds for a in answered], odds, atol=1e-5)
    for ours, theirs in zip(dict(nbest(ranking)).values(), lists, strict=True):
        assert [c["text"] for c in ours] == [c["text"] for c in theirs]
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine == pytest.approx({**expected, "text": mine["text"]}, abs=1e-6)


def test_the_files(tmp_path):
    ranking = rank_world(make_world([1, 2, 1]), n_best=3)
    answered = ranking.predictions()
    margin = sorted(a.null_odds for a in answered)[1]
    write_parts(tmp_path / "run", [ranking], margin)
    names = ("predictions", "nbest_predictions", "null_odds")
    texts, lists, odds = (json.loads((tmp_path / "run" / f"{n}.json").read_text()) for n in names)
    assert texts == {a.id: a.text(margin) for a in answered}
    assert sum(text == "" for text in texts.values()) == 1
    assert odds == {a.id: a.null_odds for a in answered}
    for a in answered:
        assert [c["text"] for c in lists[a.id]] == [c.text for c in a.candidates]
        assert [c["probability"] for c in lists[a.id]] == [c.probability for c in a.candidates]
        assert [c["start_logit"] + c["end_logit"] for c in lists[a.id]] == pytest.approx(
            [c.score for c in a.candidates]
        )
    assert len(list((tmp_path / "run").iterdir())) == 3


def test_files_whose_writing_was_killed_are_made_whole_by_the_same_call(tmp_path):
    ranking = rank_world(make_world([1, 2, 1]), n_best=3)
    target = tmp_path / "answers"

    def work():
        write_parts(target, [ranking], 0.0)

    old = {"predictions.json": b"{}", "null_odds.json": b"{}", "nbest_predictions.json": b"{}"}
    assert check_recovery(killed_at_each_step(work, target), target, work, old) >= 15
    assert check_recovery(killed_at_sizes(work, [0, 300, 600]), target, work, old) == 3


def test_infinite_odds_are_written_as_numbers_and_joined_texts_as_they_are():
    examples = [Example(id_, "who", "Ada and Bob") for id_ in "abcd"]
    actual, zero = np.ones(8), np.zeros(8, np.int64)
    start, end = zero.copy(), zero.copy()
    start[2], end[2], start[4], end[4], start[6], end[6] = 8, 11, 0, 3, -1, -1
    ranking = Ranking(
        examples,
        np.arange(0, 9, 2),
        start,
        end,
        *(actual.astype(np.float32),) * 2,
        actual / 2,
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
