"""The official prediction files, and parity of the grid search with the common SQuAD script."""

import json

import numpy as np
import pytest
from qa.synthetic_windows import make_windows, rank_windows

from qa_arch.qa.files import FINITE, nbest, null_odds, predictions, write_parts
from qa_arch.qa.ranking import Ranking
from qa_arch.types import Example

INF = float("inf")


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
    for row, (q, token, at) in enumerate(
        zip(table.example, table.token_start, table.context_at, strict=True)
    ):
        columns = slice(token, token + start.shape[1] - at)
        pairs = zip(table.char_start[columns].tolist(), table.char_end[columns].tolist(), strict=True)
        features[q].append((row, [None] * at + list(pairs)))
    return post_process(
        [e.context for e in questions.examples], features, start, end, n_best, limit, threshold
    )


@pytest.mark.parametrize(("n_best", "limit"), [(20, 30), (5, 4), (2, 1), (400, 30)])
def test_grid_search_matches_the_common_script(n_best, limit):
    synthetic = make_windows([1, 2, 3, 1] * 8, tokens=25, words=60, seed=n_best)
    ranking = rank_windows(synthetic, "grid", n_best=n_best, max_answer_tokens=limit)
    answers = ranking.best_predictions
    margin = float(np.median(ranking.null_odds[ranking.best >= 0])) + 1e-3
    texts, lists, odds = script_answers(synthetic, n_best, limit, margin)
    assert list(predictions(ranking, margin).values()) == texts
    assert 0 < sum(text == "" for text in texts) < len(texts)
    np.testing.assert_allclose([a.null_odds for a in answers], odds, atol=1e-5)
    for ours, theirs in zip(dict(nbest(ranking)).values(), lists, strict=True):
        assert [c["text"] for c in ours] == [c["text"] for c in theirs]
        for mine, expected in zip(ours, theirs, strict=True):
            assert mine == pytest.approx({**expected, "text": mine["text"]}, abs=1e-6)


def test_prediction_files(tmp_path):
    ranking = rank_windows(make_windows([1, 2, 1]), n_best=3)
    answers = ranking.predictions()
    margin = sorted(a.null_odds for a in answers)[1]
    write_parts(tmp_path / "run", [ranking], margin)
    names = ("predictions", "nbest_predictions", "null_odds")
    texts, lists, odds = (json.loads((tmp_path / "run" / f"{n}.json").read_text()) for n in names)
    assert texts == {a.id: a.text(margin) for a in answers}
    assert sum(text == "" for text in texts.values()) == 1
    assert odds == {a.id: a.null_odds for a in answers}
    for a in answers:
        assert [c["text"] for c in lists[a.id]] == [c.text for c in a.candidates]
        assert [c["probability"] for c in lists[a.id]] == [c.probability for c in a.candidates]
        assert [c["start_logit"] + c["end_logit"] for c in lists[a.id]] == pytest.approx(
            [c.score for c in a.candidates]
        )
    assert len(list((tmp_path / "run").iterdir())) == 3


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
