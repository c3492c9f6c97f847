"""Sequences decoded from step logits: greedy tokens, their text, and windows merged by question."""

import math

import numpy as np
import pytest
import torch

from qa_arch.qa.files import nbest
from qa_arch.qa.search import SequenceCandidates, best_sequences, rank_sequences
from qa_arch.tensors import StepLogits
from qa_arch.types import Example

CONTEXT = "Mira  paints, red boats."
STARTS, ENDS = np.array([0, 6, 12, 14, 18, 23, 0]), np.array([4, 12, 13, 17, 23, 24, 0])  # last: no token


def greedy(token: list[list[float]], stop: list[float]) -> tuple[list[int], float, float]:
    """Greedy decoding of one window, from probabilities written out: (tokens, log-probability, null)."""
    tokens, total = [], 0.0
    for step, (scores, end) in enumerate(zip(token, stop, strict=True)):
        weights = [math.exp(score) for score in (*scores, end)]
        log = [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]
        options = log[:-1] if step == 0 else log
        best = max(range(len(options)), key=options.__getitem__)
        if step == 0:
            null = log[-1]
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
    examples = [Example(str(q), "Who?", CONTEXT) for q in range(questions)]
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
        ([3, 4], "red boats", 14, 23),
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


def test_sequence_in_two_windows_counts_once():
    """With its best score, like a span; the same tokens for another question are another answer."""
    result = sequences(([3, 4], -1.5, -3.0), ([1, 2], -1.0, -4.0), ([3, 4], -2.0, -9.0))
    answer, other = ranked(result, [0, 0, 1], origin=[0, 2, 0], questions=2).predictions()
    assert [candidate.text for candidate in answer.candidates] == ["red boats", ""]
    assert (answer.best.score, other.best.score) == (-1.0, -2.0)
