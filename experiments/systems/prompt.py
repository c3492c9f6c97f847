"""Answer a question set with a causal language model: JSON lines of id, text and null odds.

    python experiments/systems/prompt.py MODEL data/systems/dev_150.json runs/smollm2/dev_150.jsonl

MODEL is a folder, an id of the hub, or FOLDER/FILE.gguf, which needs pip install gguf accelerate. Answers are
decoded greedily; one that occurs in the passage becomes that span. Null odds are log P("unanswerable") -
log P(answer), both including the end of the answer. If the model answers "unanswerable", the text is its best
answer without that choice, so that a threshold can be fitted.
"""

from __future__ import annotations

import argparse
import json
import re
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from qa_arch.data.sources import open_passages
from qa_arch.files import write_atomic

NULL = "unanswerable"
PROMPT = (
    "Passage: {passage}\n\nQuestion: {question}\n\nAnswer with the shortest span of the passage that answers"
    f' the question, word for word, or with "{NULL}" if the passage does not answer it.'
)
ANSWER = "Answer:"
"""Start of the reply that the model continues; without it small models begin with a sentence."""
MAX_TOKENS = 16


class Model:
    """A causal language model that answers one question at a time; ``V`` is the size of its vocabulary."""

    def __init__(self, source: str) -> None:
        path, options = source, {}
        if source.endswith(".gguf"):
            path, _, options["gguf_file"] = source.rpartition("/")
        self.tokenizer = AutoTokenizer.from_pretrained(path or ".", **options)
        loaded = AutoModelForCausalLM.from_pretrained(path or ".", dtype=torch.float32, **options)
        self.model = loaded.eval()
        words = {id_: token.strip("ĠĊ▁ ").casefold() for token, id_ in self.tokenizer.get_vocab().items()}
        self.blank = {id_ for id_, word in words.items() if not word}
        self.null_starts = [id_ for id_, word in words.items() if word and NULL.startswith(word)]
        stops = self.model.generation_config.eos_token_id
        newline = self._ids("\n")
        ends = {*(stops if isinstance(stops, list) else [stops]), self.tokenizer.eos_token_id}
        self.ends = sorted((ends | {*(newline if len(newline) == 1 else [])}) - {None})

    @torch.inference_mode()
    def answer(self, passage: str, question: str) -> tuple[str, float]:
        """Answer and null odds."""
        content = PROMPT.format(passage=passage, question=question)
        prompt, chat = f"{content}\n\n{ANSWER}", bool(self.tokenizer.chat_template)
        if chat:
            turns = [{"role": "user", "content": content}]
            options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
            prompt = self.tokenizer.apply_chat_template(turns, **options) + ANSWER
        cache, predicted = self._read(self._ids(prompt, special=not chat))
        text, score = self._generate(deepcopy(cache), predicted[-1], [])
        if is_null(text):
            text, score = self._generate(deepcopy(cache), predicted[-1], self.null_starts)
        null = self._ids(f" {NULL}")
        _, after = self._read(null, cache)
        before = torch.cat([predicted[-1:], after])
        null_score = sum(before[n, id_] for n, id_ in enumerate(null)) + self._end(after[-1])
        return "" if is_null(text) else as_span(text, passage), float(null_score - score)

    def _read(self, ids: list[int], cache: Any = None) -> tuple[Any, Tensor]:
        """State after ``ids``, and the log-probabilities of what follows each of them, shape (N, V)."""
        out = self.model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
        return out.past_key_values, out.logits[0].float().log_softmax(-1)

    def _generate(self, cache: Any, predicted: Tensor, banned: list[int]) -> tuple[str, Tensor]:
        """Greedy answer that is not blank and does not begin with a ``banned`` token, and its log P."""
        ids, score = [], torch.tensor(0.0)
        while True:
            choice = predicted.clone()
            if self.blank.issuperset(ids):
                choice[self.ends] = -torch.inf
            if not ids:
                choice[banned] = -torch.inf
            token = int(choice.argmax())
            if token in self.ends or len(ids) == MAX_TOKENS:
                text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
                return text, score + self._end(predicted)
            ids, score = [*ids, token], score + predicted[token]
            cache, following = self._read([token], cache)
            predicted = following[-1]

    def _end(self, predicted: Tensor) -> Tensor:
        return predicted[self.ends].logsumexp(-1)

    def _ids(self, text: str, special: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=special))


def is_null(text: str) -> bool:
    return text.strip(" \t\n\"'.*").casefold().startswith(NULL)


def as_span(text: str, passage: str) -> str:
    """Span of the passage that equals a reply up to case, quotes and a full stop; else its first line."""
    line = next(iter(text.strip().splitlines()), "")
    for attempt in (line, line.strip(" \"'*"), line.strip(" \"'*.")):
        exact = re.escape(attempt)
        if attempt and (match := re.search(exact, passage) or re.search(exact, passage, re.IGNORECASE)):
            return match[0]
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("model", "data", "out"):
        parser.add_argument(name)
    args = parser.parse_args()
    model, lines = Model(args.model), []
    for example in open_passages(args.data, use="scoring").examples:
        text, null_odds = model.answer(example.context, example.question)
        lines.append(json.dumps({"id": example.id, "text": text, "null_odds": null_odds}))
    write_atomic(args.out, "".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
