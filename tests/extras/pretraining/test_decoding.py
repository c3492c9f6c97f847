"""Greedy decoding and beam search against the same search a sequence at a time."""

from __future__ import annotations

import math

import pytest
import torch

from qa_arch.extras.pretraining.transformer import Hypothesis, beam_search

END, START = 0, 1


class RandomModel:
    """Fixed random scores for each row and prefix; notes what it is given to read."""

    def __init__(self, vocabulary: int, seed: int = 0, rows: tuple[int, ...] = (0,)) -> None:
        self.vocabulary, self.seed, self.rows = vocabulary, seed, rows
        self.prefixes: list[tuple[int, ...]] = []

    def scores(self, row: int, prefix: tuple[int, ...]) -> torch.Tensor:
        number = hash((self.seed, row, prefix)) % 2**31
        return 2.0 * torch.randn(self.vocabulary, generator=torch.Generator().manual_seed(number))

    def __call__(self, ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        read = [tuple(prefix) for prefix in ids.tolist()]
        self.prefixes += read
        rows = [self.rows[r] for r in row.tolist()]
        return torch.stack([self.scores(r, p) for r, p in zip(rows, read, strict=True)])


def greedy(model, prompt: torch.Tensor, *, alpha: float = 0.6, max_length: int) -> list[Hypothesis]:
    """A single beam."""
    found = beam_search(model, prompt, end=END, max_length=max_length, beams=1, alpha=alpha)
    return [only for [only] in found]


def prompts(rows: int = 1) -> torch.Tensor:
    return torch.full((rows, 1), START)


def penalty(length: int, alpha: float) -> float:
    """Wu et al. 2016, eq. 14."""
    return (5 + length) ** alpha / (5 + 1) ** alpha


def test_the_penalty_decides_between_short_and_long():
    def score(length: int, alpha: float) -> float:
        return Hypothesis(tuple(range(length)), True, -1.0).score(alpha)

    assert score(0, 0.6) == score(4, 0.0) == -1.0
    assert score(5, 1.0) == pytest.approx(-6 / 11)
    assert Hypothesis((2, 2, 2, 2, 2, 2), False, -1.0).score(1.0) == score(5, 1.0)

    def model(ids, row):
        """END at once with probability 0.55, or three times 2 and then END."""
        following = (
            torch.tensor([0.55, 0.0, 0.45])
            if ids.shape[1] == 1
            else torch.eye(3)[[2, 2, 0][ids.shape[1] - 2]]
        )
        return following.log().expand(len(ids), 3)

    def best(alpha: float) -> tuple[int, ...]:
        return beam_search(model, prompts(), end=END, max_length=5, beams=2, alpha=alpha)[0][0].ids

    assert best(0.0) == ()
    assert best(1.0) == (2, 2, 2)


def by_lists(model: RandomModel, max_length: int, beams: int) -> list[tuple[tuple[int, ...], bool, float]]:
    """The same search, a sequence at a time: each that ends leaves a place less to the others."""
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[tuple[tuple[int, ...], bool, float]] = []
    for _ in range(max_length):
        longer = [
            ((*ids, token), total + score)
            for ids, total in alive
            for token, score in enumerate(model.scores(0, (START, *ids)).log_softmax(-1).tolist())
        ]
        best = sorted(longer, key=lambda item: -item[1])[: beams - len(ended)]
        ended += [(ids[:-1], True, total) for ids, total in best if ids[-1] == END]
        alive = [(ids, total) for ids, total in best if ids[-1] != END]
    return ended + [(ids, False, total) for ids, total in alive]


@pytest.mark.parametrize("beams", [1, 3, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_finds_what_a_search_by_lists_finds(seed, beams):
    model = RandomModel(5, seed)
    [actual] = beam_search(model, prompts(), end=END, max_length=6, beams=beams, alpha=0.6)
    expected = by_lists(model, 6, beams)
    expected.sort(key=lambda h: -h[2] / penalty(len(h[0]) + h[1], 0.6))
    assert [(h.ids, h.finished) for h in actual] == [(ids, done) for ids, done, _ in expected]
    assert [h.score(0.6) for h in actual] == sorted((h.score(0.6) for h in actual), reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_a_single_beam_takes_the_best_token_at_each_step(alpha):
    model = RandomModel(4, 3)
    [written] = greedy(model, prompts(), alpha=alpha, max_length=6)
    prefix, total = (START,), 0.0
    for token in (*written.ids, *[END] * written.finished):
        log_probs = model.scores(0, prefix).log_softmax(-1)
        assert token == log_probs.argmax()
        prefix, total = (*prefix, token), total + log_probs[token].item()
    assert written.log_prob == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_is_decoded_as_its_rows_alone(beams):
    rows = tuple(range(12))
    together = beam_search(RandomModel(5, rows=rows), prompts(12), end=END, max_length=5, beams=beams)
    alone = [
        beam_search(RandomModel(5, rows=(r,)), prompts(), end=END, max_length=5, beams=beams)[0] for r in rows
    ]
    assert together == alone
    assert len({hypotheses[0].ids for hypotheses in together}) > 6


@pytest.mark.parametrize("beams", [1, 4])
def test_what_has_ended_is_read_no_further(beams):
    model = RandomModel(4, rows=tuple(range(20)))
    found = beam_search(model, prompts(20), end=END, max_length=8, beams=beams)
    written = [hypothesis for row in found for hypothesis in row]
    assert not any(END in h.ids for h in written)
    assert not any(END in prefix for prefix in model.prefixes)
    assert any(h.finished and len(h.ids) < 3 for h in written)


def test_more_beams_than_sequences_leave_places_empty():
    """Of two tokens only END can come first; an impossible token is never written."""

    def model(ids, row):
        return torch.tensor([[0.0, -math.inf]]).expand(len(ids), 2)

    [[only]] = beam_search(model, prompts(), end=END, max_length=5, beams=4)
    assert only == Hypothesis((), True, 0.0)
    assert greedy(model, prompts(), max_length=5) == [only]


def test_prompts_are_continued():
    prompt = torch.tensor([[START, 3, 2], [START, 2, 2]])
    model = RandomModel(4, rows=(0, 0))
    written = greedy(model, prompt, max_length=3)
    assert set(model.prefixes[:2]) == {(1, 3, 2), (1, 2, 2)}
    for row, hypothesis in zip(prompt.tolist(), written, strict=True):
        read = [p for p in model.prefixes if list(p[:3]) == row]
        assert max(read, key=len)[3:] == hypothesis.ids[: len(max(read, key=len)) - 3]
        assert len(hypothesis.ids) <= 3
