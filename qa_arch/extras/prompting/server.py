"""Language models on a server with an OpenAI-compatible chat completions API."""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn
from urllib.parse import urlsplit

from qa_arch.config.files import parse_json
from qa_arch.data.answer_files import UNANSWERABLE, is_null
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.prompting.local import MAX_TOKENS
from qa_arch.extras.prompting.prompts import FORCED, Messages, Reply, question_turn
from qa_arch.types.text import Example

KEY = "QA_ARCH_API_KEY"
"""Environment variable with the API key, which is sent to that URL only."""
TIMEOUT, ATTEMPTS, MAX_BYTES = 120, 6, 2**22
"""Seconds per request; attempts before giving up; size limit of a response."""
log = logging.getLogger(__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the key elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ServerModel:
    """A model by its name on a server; ``answer`` sends the requests of a batch concurrently."""

    parameters = None
    identity = ""

    def __init__(self, url: str, model: str) -> None:
        if urlsplit(url).scheme not in ("http", "https") or "@" in urlsplit(url).netloc:
            raise ConfigError(f"--url: give an address such as http://localhost:8000/v1, its key in {KEY}")
        self.url, self.model = f"{url.rstrip('/')}/chat/completions", model
        self.has_logprobs = True
        self.empty: list[str] = []
        """Finish reasons of replies without text."""
        self.opener = urllib.request.build_opener(_NoRedirect)

    def prompt(self, turns: Messages) -> str:
        """Messages exactly as sent."""
        return json.dumps(turns, ensure_ascii=False, indent=1)

    def answer(self, examples: Sequence[Example], prompts: Sequence[Messages]) -> list[Reply]:
        """Answer ``examples``, given their prompts.

        If the server answers "unanswerable" with null odds, it is asked again without that option, for the
        answer at other null thresholds.
        """
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self._answer, examples, prompts))

    def _answer(self, example: Example, turns: Messages) -> Reply:
        reply = self._complete(turns)
        if not is_null(reply.text):
            return reply
        if reply.null_odds is None:
            return Reply("", None, reply.prompt_tokens, reply.answer_tokens)
        forced = self._complete([*turns[:-1], question_turn(example, FORCED)])
        return Reply(
            "" if is_null(forced.text) else forced.text,
            reply.null_odds,
            _sum(reply.prompt_tokens, forced.prompt_tokens),
            _sum(reply.answer_tokens, forced.answer_tokens),
        )

    def _complete(self, turns: Messages) -> Reply:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": turns,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        if self.has_logprobs:
            try:
                return self._reply(self._post({**body, "logprobs": True, "top_logprobs": 20}))
            except _RefusedError as error:
                log.warning("%s; retrying without log-probabilities, so there are no null odds", error)
                self.has_logprobs = False
        return self._reply(self._post(body))

    def _reply(self, response: Any) -> Reply:
        try:
            choice, usage = response["choices"][0], response.get("usage") or {}
            if not (text := choice["message"]["content"] or ""):
                self.empty.append(str(choice.get("finish_reason")))
            first = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
            odds = null_odds({str(item["token"]): float(item["logprob"]) for item in first})
            counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
            tokens = [None if count is None else int(count) for count in counts]
            return Reply(str(text).strip(), odds, *tokens)
        except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError) as error:
            raise UnavailableError(
                f"{self.url}: its response is not a chat completion ({error!r}); check --url, which should"
                " end in /v1"
            ) from None

    def _post(self, body: Mapping[str, Any]) -> Any:
        """Send a request, retrying transient failures with exponential backoff. Raises UnavailableError."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        for attempt in range(ATTEMPTS):
            wait, problem = 2.0**attempt, ""
            try:
                with self.opener.open(request, timeout=TIMEOUT) as response:
                    return parse_json(response.read(MAX_BYTES))
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"HTTP {error.code} {error.reason}: {error.read(300).decode(errors='replace')}"
                if error.code == 400 and "logprobs" in body:
                    raise _RefusedError(f"{self.url}: {problem}") from None
                if error.code not in (408, 409, 429) and error.code < 500:
                    self._give_up(f"{problem}; check --model, --url and {KEY}")
                after = error.headers.get("Retry-After") or ""
                wait = min(float(after), 60.0) if after.isdigit() else wait
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            except ValueError as error:
                self._give_up(f"its response is not JSON ({error})")
            if attempt + 1 < ATTEMPTS:
                time.sleep(wait)
        self._give_up(f"{problem} ({ATTEMPTS} attempts); answers are kept, repeat the command to continue")

    def _give_up(self, problem: str) -> NoReturn:
        raise UnavailableError(f"{self.url}: {problem}") from None


class _RefusedError(Exception):
    """The server rejects requests for log-probabilities."""


def _sum(first: int | None, second: int | None) -> int | None:
    """None if either request has no token count."""
    return None if first is None or second is None else first + second


def null_odds(first: Mapping[str, float]) -> float | None:
    """log P("unanswerable") - log P(answer), estimated from the top log-probabilities of the first token.

    Tokens that can begin "unanswerable" count for it, and quotes and spaces, which can begin either, do not
    count; a side without any token gets the lowest probability in the list as an upper bound. None without
    log-probabilities.
    """
    if not first:
        return None
    null, answer = [min(first.values())], [min(first.values())]
    for token, logprob in first.items():
        if word := token.strip(" \n\"'*ĠĊ▁").casefold():
            (null if UNANSWERABLE.startswith(word) else answer).append(logprob)
    return max(null) - max(answer)
