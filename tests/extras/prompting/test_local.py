"""Causal models: answers, likelihoods and null odds, held against full forward passes without a cache."""

from __future__ import annotations

import re
from dataclasses import astuple, replace

import pytest
import torch

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.prompting import local, prompts
from qa_arch.extras.prompting.local import LocalModel, load
from qa_arch.extras.prompting.prompts import messages

both_kinds = pytest.mark.parametrize("model_folder", ["plain", "chat"], indirect=True)


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    monkeypatch.setattr(local, "MAX_TOKENS", 5)


@pytest.fixture
def examples(question_sets):
    """Three questions about passages of different lengths."""
    made = question_sets["dev"].examples[:3]
    return [replace(e, context=e.context[: 40 + 30 * number]) for number, e in enumerate(made)]


@pytest.fixture
def turns(examples, question_sets):
    shot = replace(question_sets["train"].examples[0], context="Few words.")
    return [messages(example, [shot]) for example in examples]


class Plain:
    """Likelihoods by one full forward pass each."""

    def __init__(self, own: LocalModel) -> None:
        self.own = own

    def next(self, ids):
        with torch.inference_mode():
            return self.own.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)

    def end(self, ids):
        return self.next(ids)[self.own.end_ids].exp().sum().log().item()

    def score(self, prompt, tokens):
        """log P of the tokens and the end behind them."""
        steps = (self.next([*prompt, *tokens[:n]])[token].item() for n, token in enumerate(tokens))
        return sum(steps) + self.end([*prompt, *tokens])

    def greedy(self, prompt, banned):
        tokens = []
        while len(tokens) < local.MAX_TOKENS:
            predicted = self.next([*prompt, *tokens]).clone()
            if not tokens:
                predicted[banned] = -torch.inf
            if all(token in self.own.blank_ids for token in tokens):
                predicted[self.own.end_ids] = -torch.inf
            token = predicted.argmax().item()
            if token in self.own.end_ids:
                break
            tokens.append(token)
        return tokens


def prompt_ids(own, turns):
    return own.tokenizer.encode(own.prompt(turns), add_special_tokens=not own.tokenizer.chat_template)


@both_kinds
def test_the_exact_prompt(model_folder, turns):
    own = load(str(model_folder), "generate", "cpu")
    first, answer, last = (turn["content"] for turn in turns[0])
    plain = f"{first}\n\nAnswer: {answer}\n\n\n{last}\n\nAnswer:"
    chat = f"<user>{first}<eos><assistant>Answer: {answer}<eos><user>{last}<eos><assistant>Answer:"
    assert own.prompt(turns[0]) == (chat if own.tokenizer.chat_template else plain)


@both_kinds
def test_greedy_answers_and_their_null_odds_are_those_of_a_plain_loop(model_folder, examples, turns):
    own = load(str(model_folder), "generate", "cpu")
    own.blank_ids = [*own.blank_ids, *range(200)]
    plain = Plain(own)
    for example, each, reply in zip(examples, turns, own.answer(examples, turns), strict=True):
        ids = prompt_ids(own, each)
        tokens = plain.greedy(ids, [])
        assert reply.text == own.tokenizer.decode(tokens, skip_special_tokens=True).strip(), example.id
        null = own.tokenizer.encode(" unanswerable", add_special_tokens=False)
        assert reply.null_odds == pytest.approx(plain.score(ids, null) - plain.score(ids, tokens), abs=1e-3)
        assert (reply.prompt_tokens, reply.answer_tokens) == (len(ids), len(tokens) + 1)


def test_a_model_that_abstains_answers_at_other_thresholds(model_folder, examples, turns, monkeypatch):
    before = load(str(model_folder), "generate", "cpu")
    text = before.answer(examples[:2], turns[:2])[1].text
    for module in (local, prompts):
        monkeypatch.setattr(module, "UNANSWERABLE", re.sub(r"\W.*", "", text).casefold() or text.casefold())
    own = LocalModel(before.model, before.tokenizer)
    plain, reply = Plain(own), own.answer(examples[:2], turns[:2])[1]
    ids = prompt_ids(own, turns[1])
    tokens = plain.greedy(ids, own.null_start_ids)
    assert reply.text == own.tokenizer.decode(tokens, skip_special_tokens=True).strip() != text
    assert reply.null_odds == pytest.approx(
        plain.score(ids, own.null_ids) - plain.score(ids, tokens), abs=1e-3
    )


def test_the_likeliest_span_is_that_of_a_search_over_all(model_folder, examples, turns, monkeypatch):
    monkeypatch.setattr(local, "STARTS", 8)
    example, each = examples[0], turns[0]
    context = example.context[:34].rpartition(" ")[0]
    example = replace(example, context=context)
    own = load(str(model_folder), "spans", "cpu")
    (reply,) = own.answer([example], [each])
    plain, ids = Plain(own), prompt_ids(own, each)
    ends = [m.end() for m in re.finditer(r"\w+", context)]
    spans = [
        context[m.start() : end] for m in re.finditer(r"\w+", context) for end in ends if end > m.start()
    ]
    tokens = {span: own.tokenizer.encode(f" {span}", add_special_tokens=False) for span in spans}
    tokens = {span: ids_ for span, ids_ in tokens.items() if len(ids_) <= local.MAX_TOKENS}
    scored = own._spans_from(context, torch.zeros(len(own.tokenizer)))
    assert {span for _, ending in scored for span in ending.values()} == tokens.keys()
    scores = {span: plain.score(ids, ids_) for span, ids_ in tokens.items()}
    text, best = max(scores.items(), key=lambda item: item[1])
    assert reply.text == text
    assert reply.null_odds == pytest.approx(plain.score(ids, own.null_ids) - best, abs=1e-3)


@pytest.mark.parametrize("reading", ["generate", "spans"])
def test_a_batch_answers_as_single_prompts_do(model_folder, examples, turns, reading):
    own = load(str(model_folder), reading, "cpu")
    together = own.answer(examples, turns)
    for example, each, reply in zip(examples, turns, together, strict=True):
        (alone,) = own.answer([example], [each])
        assert astuple(alone) == pytest.approx(astuple(reply), abs=1e-3)
        assert reading == "generate" or reply.text in example.context


def test_what_cannot_be_read_is_refused(model_folder, examples, turns, tmp_path, monkeypatch):
    own = load(str(model_folder), "generate", "cpu")
    monkeypatch.setattr(own.model.config, "max_position_embeddings", 50)
    with pytest.raises(ConfigError, match="the model reads at most 50; lower --shots"):
        own.answer(examples, turns)
    (tmp_path / "x.gguf").write_bytes(b"no model")
    with pytest.raises(UnavailableError, match=r"x\.gguf: cannot be opened"):
        load(str(tmp_path / "x.gguf"), "generate", "cpu")
