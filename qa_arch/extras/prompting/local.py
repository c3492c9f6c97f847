"""Causal language models of transformers: greedy answers or the most likely span, and their null odds.

Axes: ``B`` prompts, ``T`` tokens of the longest prompt, ``N`` tokens of a continuation, ``V`` vocabulary. The
key-value cache of the left-padded prompts is computed once and shared by all continuations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from qa_arch.config.files import file_hash, files_hash
from qa_arch.data.answer_files import UNANSWERABLE, is_null
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.prompting.prompts import Messages, Reply
from qa_arch.records import RECORD
from qa_arch.types.text import Example

ANSWER = "Answer:"
"""Start of the reply that the model continues; without it small models begin with a sentence."""
MAX_TOKENS = 16
"""Maximum answer length."""
STARTS = 8
"""Number of words from which spans are scored: those with the most likely first tokens."""
Reading = Literal["generate", "spans"]


@dataclass(frozen=True)
class _State:
    """Model state after a prefix, with its prediction of the next token."""

    cache: Any
    mask: Tensor
    """Shape (B, T): True for real tokens."""
    next: Tensor
    """Shape (B, V): log-probabilities."""

    def select(self, rows: Tensor) -> _State:
        """Copy of these rows, in this order; continuing the copy leaves the original unchanged."""
        cache = deepcopy(self.cache)
        cache.batch_select_indices(rows)
        return _State(cache, self.mask[rows], self.next[rows])


class LocalModel:
    """A causal language model with its tokenizer; ``answer`` processes a batch of prompts."""

    def __init__(self, model: Any, tokenizer: Any, reading: Reading = "generate", identity: str = "") -> None:
        self.model, self.tokenizer, self.reading, self.identity = model.eval(), tokenizer, reading, identity
        self.parameters = sum(weights.numel() for weights in model.parameters())
        self.null_ids = self._tokens(f" {UNANSWERABLE}")
        words = {number: token.strip("ĠĊ▁ ").casefold() for token, number in tokenizer.get_vocab().items()}
        self.blank_ids = [number for number, word in words.items() if not word]
        self.null_start_ids = [n for n, word in words.items() if word and UNANSWERABLE.startswith(word)]
        stops = getattr(model.generation_config, "eos_token_id", None) or []
        newline = self._tokens("\n")
        ends = {*(stops if isinstance(stops, list) else [stops]), tokenizer.eos_token_id}
        self.end_ids = sorted((ends | {*(newline if len(newline) == 1 else [])}) - {None})
        if not self.end_ids:
            raise ConfigError("--model: its tokenizer has neither an end-of-text nor a newline token")

    def prompt(self, turns: Messages) -> str:
        """Exact text of a prompt; answers of shots begin with ``ANSWER``, as the reply does."""
        turns = [
            {**turn, "content": f"{ANSWER} {turn['content']}"} if turn["role"] == "assistant" else turn
            for turn in turns
        ]
        if not self.tokenizer.chat_template:
            gaps = {"user": "\n\n", "assistant": "\n\n\n"}
            return "".join(turn["content"] + gaps[turn["role"]] for turn in turns) + ANSWER
        options = {"add_generation_prompt": True, "enable_thinking": False}
        return self.tokenizer.apply_chat_template(turns, tokenize=False, **options) + ANSWER

    def answer(self, examples: Sequence[Example], prompts: Sequence[Messages]) -> list[Reply]:
        """Answer ``examples``, given their prompts; replies do not depend on the batch."""
        chat = bool(self.tokenizer.chat_template)
        ids = [self._tokens(self.prompt(turns), special=not chat) for turns in prompts]
        longest = max(map(len, ids)) + MAX_TOKENS
        if longest > (limit := getattr(self.model.config, "max_position_embeddings", longest)):
            raise ConfigError(
                f"prompt and answer have {longest} tokens, the model reads at most {limit}; lower --shots or"
                " leave out the longest passages"
            )
        with torch.inference_mode():
            state = self._read_prompts(ids)
            rows = torch.arange(len(ids), device=state.mask.device)
            total, end = self._score(state.select(rows), self._tensor([self.null_ids] * len(ids)))
            if self.reading == "spans":
                texts, score, tokens = self._spans(state, examples)
            else:
                texts, score, tokens = self._generate(state.select(rows), [])
                if abstained := [row for row, text in enumerate(texts) if is_null(text)]:
                    again = state.select(self._tensor(abstained))
                    forced = self._generate(again, self.null_start_ids)
                    for row, text, value, count in zip(abstained, *forced, strict=True):
                        texts[row], score[row], tokens[row] = text, value, tokens[row] + count
        odds = (total[:, -1] + end[:, -1] - score).tolist()
        texts = ["" if is_null(text) else text for text in texts]
        columns = zip(texts, odds, map(len, ids), tokens, strict=True)
        return [Reply(*column) for column in columns]

    def _read_prompts(self, ids: Sequence[list[int]]) -> _State:
        """Process the prompts, left-padded; their common prefix is processed once."""
        B = len(ids)
        shared = commonprefix(ids)[: min(map(len, ids)) - 1] if B > 1 else []  # noqa: RUF071 (tokens)
        cache = None
        if shared:
            cache = self.model(self._tensor([shared]), use_cache=True, logits_to_keep=1).past_key_values
            cache.batch_repeat_interleave(B)
        T = max(map(len, ids))
        padded = self._tensor([[self.end_ids[0]] * (T - len(row)) + row[len(shared) :] for row in ids])
        mask = self._tensor(
            [[1] * len(shared) + [0] * (T - len(r)) + [1] * (len(r) - len(shared)) for r in ids]
        )
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, len(shared) :]
        return self._forward(padded, mask, positions, cache, keep=1)[0]

    def _forward(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any, keep: int
    ) -> tuple[_State, Tensor]:
        """State after ``tokens``, and the predictions at the last ``keep`` of them, shape (B, keep, V)."""
        out = self.model(
            tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        predicted = out.logits.float().log_softmax(-1)
        return _State(out.past_key_values, mask, predicted[:, -1]), predicted

    def _continue(self, state: _State, tokens: Tensor) -> tuple[_State, Tensor]:
        """State after further tokens of shape (B, N), and the prediction after each of them."""
        N = tokens.shape[1]
        positions = state.mask.sum(1, keepdim=True) + torch.arange(N, device=tokens.device)
        mask = torch.cat([state.mask, torch.ones_like(tokens)], 1)
        return self._forward(tokens, mask, positions, state.cache, keep=N)

    def _score(self, state: _State, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Log P of the first n tokens after the prompts, and of ending the answer there, both (B, N)."""
        _, after = self._continue(state, tokens)
        before = torch.cat([state.next[:, None], after[:, :-1]], 1)
        return before.gather(-1, tokens[..., None])[..., 0].cumsum(1), self._end(after)

    def _end(self, predicted: Tensor) -> Tensor:
        """Log P that the answer ends here."""
        return predicted[..., self.end_ids].logsumexp(-1)

    def _generate(self, state: _State, banned: list[int]) -> tuple[list[str], Tensor, list[int]]:
        """Greedy answers that do not begin with the ``banned`` tokens, their log P, and their token counts.

        Answers are cut at ``MAX_TOKENS``.
        """
        B = len(state.next)
        done = started = torch.zeros(B, dtype=torch.bool, device=state.next.device)
        score = torch.zeros(B, device=state.next.device)
        generated: list[Tensor] = []
        for step in range(MAX_TOKENS + 1):
            choice = state.next.index_fill(1, self._tensor(self.end_ids), -torch.inf)
            choice = torch.where(started[:, None], state.next, choice)  # answers are never blank
            if step == 0:
                choice = choice.index_fill(1, self._tensor(banned), -torch.inf)
            token = choice.argmax(-1)
            started = started | ~torch.isin(token, self._tensor(self.blank_ids))
            ends = torch.isin(token, self._tensor(self.end_ids)) | (step == MAX_TOKENS)
            gain = torch.where(ends, self._end(state.next), state.next.gather(1, token[:, None])[:, 0])
            score = score + gain.masked_fill(done, 0)
            done = done | ends
            if done.all():
                break
            generated.append(token.masked_fill(done, -1))
            state, _ = self._continue(state, token[:, None])
        rows = [[t for t in row if t >= 0] for row in torch.stack(generated, 1).tolist()]
        texts = [self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows]
        return texts, score, [len(row) + 1 for row in rows]

    def _spans(self, state: _State, examples: Sequence[Example]) -> tuple[list[str], Tensor, list[int]]:
        """Most likely span of each passage, its log P, and the number of tokens scored.

        Candidates are spans of at most ``MAX_TOKENS`` tokens that begin at the ``STARTS`` likeliest words.
        """
        spans = [self._spans_from(e.context, row) for e, row in zip(examples, state.next, strict=True)]
        width = max(len(tokens) for passage in spans for tokens, _ in passage)
        padding = [self.end_ids[0]] * width
        tokens = self._tensor([(t + padding)[:width] for passage in spans for t, _ in passage])
        rows = torch.arange(len(examples), device=tokens.device).repeat_interleave(STARTS)
        total, end = self._score(state.select(rows), tokens)
        ranked = (total + end).reshape(len(examples), STARTS * width)
        texts, best = [], []
        for passage, scores in zip(spans, ranked, strict=True):
            candidates = {
                row * width + n: text for row, (_, ending) in enumerate(passage) for n, text in ending.items()
            }
            i = max(candidates, key=lambda i: scores[i].item(), default=None)
            texts.append("" if i is None else candidates[i])
            best.append(scores.new_tensor(-torch.inf) if i is None else scores[i])
        return texts, torch.stack(best), [sum(len(t) for t, _ in passage) for passage in spans]

    def _spans_from(self, context: str, predicted: Tensor) -> list[tuple[list[int], dict[int, str]]]:
        """For each of ``STARTS`` words, the tokens from it on and, by number of tokens, the spans that end
        with a word. If there are fewer words, the last is repeated."""
        starts = [match.start() for match in re.finditer(r"\w+", context)] or [0]
        texts = [context[start : start + 8 * MAX_TOKENS] for start in starts]
        encoded = self.tokenizer(
            [f" {text}" for text in texts], add_special_tokens=False, return_offsets_mapping=True
        )
        first = predicted[[row[0] for row in encoded["input_ids"]]]
        order = first.argsort(descending=True, stable=True)[:STARTS].tolist()
        chosen = []
        for row in order + order[-1:] * (STARTS - len(order)):
            tokens, ending = encoded["input_ids"][row][:MAX_TOKENS], {}
            for n, (_, end) in enumerate(encoded["offset_mapping"][row][: len(tokens)]):
                span = texts[row][: end - 1]  # without the space before it
                after = context[starts[row] + len(span) :][:1]
                if span and span[-1].isalnum() and not after.isalnum():
                    ending[n] = span
            chosen.append((tokens, ending))
        return chosen

    def _tokens(self, text: str, special: bool = False) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=special)

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.model.device)


def load(source: str, reading: Reading, device: str | None = None) -> LocalModel:
    """Load a model from a folder, the hub, or a GGUF file (``FOLDER/FILE.gguf``, ``OWNER/NAME/FILE.gguf``).

    fp32 on a CPU, else bf16. Raises UnavailableError if transformers cannot load it.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    path, options = source, {}
    if source.endswith(".gguf"):
        path, _, options["gguf_file"] = source.rpartition("/")
    path = path or "."
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **options).to(device)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if (Path(path) / RECORD).is_file():
            reason = "a run of qa-arch is not a causal language model of transformers"
        raise UnavailableError(
            f"--model {source}: cannot be opened ({reason}); give a folder, OWNER/NAME or a GGUF file (needs"
            " pip install 'qa-arch[prompting]')"
        ) from error
    return LocalModel(model, tokenizer, reading, _identity(Path(source), model))


def _identity(path: Path, model: Any) -> str:
    """Hash of a file or of the files in a folder; for a hub model its commit."""
    if path.is_file():
        return file_hash(path)
    if path.is_dir():
        return files_hash(path, [file for file in path.iterdir() if file.is_file()])
    return str(getattr(model.config, "_commit_hash", None))
