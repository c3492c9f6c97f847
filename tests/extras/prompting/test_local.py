"""Causal models: answers, likelihoods and null odds, compared with full forward passes without a cache."""

import re
from dataclasses import astuple, replace

import pytest
import torch

from qa_arch.data import answer_files
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.prompting import local
from qa_arch.extras.prompting.local import LocalModel, load
from qa_arch.extras.prompting.prompts import messages

both_kinds = pytest.mark.parametrize("model_folder", ["plain", "chat"], indirect=True)


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    monkeypatch.setattr(local, "MAX_TOKENS", 5)


@pytest.fixture
def examples(question_sets):
    """Three questions about passages of different lengths."""
    first = question_sets["dev"].examples[:3]
    return [replace(e, context=e.context[: 40 + 30 * number]) for number, e in enumerate(first)]


@pytest.fixture
def conversations(examples, question_sets):
    """The messages of every example's prompt, with one shot."""
    shot = replace(question_sets["train"].examples[0], context="Few words.")
    return [messages(example, [shot]) for example in examples]


class Reference:
    """Likelihoods by one full forward pass per token."""

    def __init__(self, lm: LocalModel) -> None:
        self.lm = lm

    def next(self, ids):
        with torch.inference_mode():
            return self.lm.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)

    def end(self, ids):
        return self.next(ids)[self.lm.end_ids].exp().sum().log().item()

    def score(self, prompt, tokens):
        """Log-probability of the tokens followed by the end."""
        steps = (self.next([*prompt, *tokens[:n]])[token].item() for n, token in enumerate(tokens))
        return sum(steps) + self.end([*prompt, *tokens])

    def greedy(self, prompt, banned):
        tokens = []
        while len(tokens) < local.MAX_TOKENS:
            predicted = self.next([*prompt, *tokens]).clone()
            if not tokens:
                predicted[banned] = -torch.inf
            if all(token in self.lm.blank_ids for token in tokens):
                predicted[self.lm.end_ids] = -torch.inf
            token = predicted.argmax().item()
            if token in self.lm.end_ids:
                break
            tokens.append(token)
        return tokens


def prompt_ids(lm, turns):
    return lm.tokenizer.encode(lm.prompt(turns), add_special_tokens=not lm.tokenizer.chat_template)


@both_kinds
def test_exact_prompt(model_folder, conversations):
    lm = load(str(model_folder), "generate", "cpu")
    first, answer, last = (turn["content"] for turn in conversations[0])
    plain = f"{first}\n\nAnswer: {answer}\n\n\n{last}\n\nAnswer:"
    chat = f"<user>{first}<eos><assistant>Answer: {answer}<eos><user>{last}<eos><assistant>Answer:"
    assert lm.prompt(conversations[0]) == (chat if lm.tokenizer.chat_template else plain)


@both_kinds
def test_greedy_answers_and_null_odds_match_the_reference(model_folder, examples, conversations):
    lm = load(str(model_folder), "generate", "cpu")
    lm.blank_ids = [*lm.blank_ids, *range(200)]
    reference = Reference(lm)
    for example, turns, reply in zip(
        examples, conversations, lm.answer(examples, conversations), strict=True
    ):
        ids = prompt_ids(lm, turns)
        tokens = reference.greedy(ids, [])
        assert reply.text == lm.tokenizer.decode(tokens, skip_special_tokens=True).strip(), example.id
        null = lm.tokenizer.encode(" unanswerable", add_special_tokens=False)
        assert reply.null_odds == pytest.approx(
            reference.score(ids, null) - reference.score(ids, tokens), abs=1e-3
        )
        assert (reply.prompt_tokens, reply.answer_tokens) == (len(ids), len(tokens) + 1)


def test_abstaining_model_still_gives_an_answer_and_null_odds(
    model_folder, examples, conversations, monkeypatch
):
    before = load(str(model_folder), "generate", "cpu")
    text = before.answer(examples[:2], conversations[:2])[1].text
    for module in (local, answer_files):
        monkeypatch.setattr(module, "UNANSWERABLE", re.sub(r"\W.*", "", text).casefold() or text.casefold())
    lm = LocalModel(before.model, before.tokenizer)
    reference, reply = Reference(lm), lm.answer(examples[:2], conversations[:2])[1]
    ids = prompt_ids(lm, conversations[1])
    tokens = reference.greedy(ids, lm.null_start_ids)
    assert reply.text == lm.tokenizer.decode(tokens, skip_special_tokens=True).strip() != text
    assert reply.null_odds == pytest.approx(
        reference.score(ids, lm.null_ids) - reference.score(ids, tokens), abs=1e-3
    )


def test_likeliest_span_matches_an_exhaustive_search(model_folder, examples, conversations, monkeypatch):
    monkeypatch.setattr(local, "STARTS", 8)
    example, turns = examples[0], conversations[0]
    context = example.context[:34].rpartition(" ")[0]
    example = replace(example, context=context)
    lm = load(str(model_folder), "spans", "cpu")
    (reply,) = lm.answer([example], [turns])
    reference, ids = Reference(lm), prompt_ids(lm, turns)
    ends = [m.end() for m in re.finditer(r"\w+", context)]
    spans = [
        context[m.start() : end] for m in re.finditer(r"\w+", context) for end in ends if end > m.start()
    ]
    tokens = {span: lm.tokenizer.encode(f" {span}", add_special_tokens=False) for span in spans}
    tokens = {span: ids_ for span, ids_ in tokens.items() if len(ids_) <= local.MAX_TOKENS}
    scored = lm._spans_from(context, torch.zeros(len(lm.tokenizer)))
    assert {span for _, ending in scored for span in ending.values()} == tokens.keys()
    scores = {span: reference.score(ids, ids_) for span, ids_ in tokens.items()}
    text, best = max(scores.items(), key=lambda item: item[1])
    assert reply.text == text
    assert reply.null_odds == pytest.approx(reference.score(ids, lm.null_ids) - best, abs=1e-3)


@pytest.mark.parametrize("reading", ["generate", "spans"])
def test_batched_prompts_are_answered_as_single_ones(model_folder, examples, conversations, reading):
    lm = load(str(model_folder), reading, "cpu")
    together = lm.answer(examples, conversations)
    for example, turns, reply in zip(examples, conversations, together, strict=True):
        (alone,) = lm.answer([example], [turns])
        assert astuple(alone) == pytest.approx(astuple(reply), abs=1e-3)
        assert reading == "generate" or reply.text in example.context


def test_long_prompts_and_unreadable_models_are_refused(
    model_folder, examples, conversations, tmp_path, monkeypatch
):
    lm = load(str(model_folder), "generate", "cpu")
    monkeypatch.setattr(lm.model.config, "max_position_embeddings", 50)
    with pytest.raises(ConfigError, match="the model reads at most 50; lower --shots"):
        lm.answer(examples, conversations)
    (tmp_path / "x.gguf").write_bytes(b"no model")
    with pytest.raises(UnavailableError, match=r"x\.gguf: cannot be opened"):
        load(str(tmp_path / "x.gguf"), "generate", "cpu")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UnavailableError, match="a run of qa-arch is not a causal language model"):
        load(str(tmp_path), "generate", "cpu")
