"""Prompting through a chat-completions server: a local stub that can fail like real ones."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.prompting import server
from qa_arch.extras.prompting.prompts import FORCED, TEMPLATE, messages
from qa_arch.extras.prompting.server import ServerModel, null_odds
from qa_arch.records import read_record
from qa_arch.types.text import Example

EXAMPLES = [Example("a", "Who?", "Ada came."), Example("b", "When?", "Ada came.")]
PROMPTS = [messages(example, []) for example in EXAMPLES]
TEXT = {"message": {"content": "x"}}


class Handler(BaseHTTPRequestHandler):
    """Answers "Ada" to "Who?", else "unanswerable", after the statuses or bodies in ``failures``."""

    failures: list
    requests: list

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, self.headers.get("Authorization"), body))
        status, answer, headers = 200, completion(body), {}
        if self.failures:
            status = self.failures.pop(0)
            if isinstance(status, dict):
                status, answer = 200, status
            elif status == 302:
                headers = {"Location": f"http://localhost:{self.server.server_port}/v1/chat/completions"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(content), "Retry-After": "0", **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def completion(body):
    question = body["messages"][-1]["content"]
    null = "Who?" not in question and "unanswerable" in question
    choice = {"message": {"content": "Unanswerable." if null else " Ada"}}
    if body.get("logprobs"):
        tokens = {"un": -0.25, "Ada": -1.5} if null else {"Ada": -0.5, "x": -3.0, "Un": -2.0}
        top = [{"token": token, "logprob": value} for token, value in tokens.items()]
        choice["logprobs"] = {"content": [{"top_logprobs": top}]}
    return {"choices": [choice], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}


@pytest.fixture
def stub(monkeypatch):
    """The stub's address; retries do not wait."""
    Handler.failures, Handler.requests = [], []
    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    monkeypatch.setattr(server.time, "sleep", lambda _: None)
    monkeypatch.delenv(server.KEY, raising=False)
    yield f"http://127.0.0.1:{served.server_port}/v1"
    served.shutdown()
    served.server_close()


def test_answers_null_odds_and_second_request_after_abstention(stub, monkeypatch):
    monkeypatch.setenv(server.KEY, "secret")
    ada, none = ServerModel(stub, "m").answer(EXAMPLES, PROMPTS)
    assert (ada.text, ada.null_odds, ada.prompt_tokens, ada.answer_tokens) == ("Ada", -1.5, 40, 2)
    assert (none.text, none.null_odds, none.prompt_tokens, none.answer_tokens) == ("Ada", 1.25, 80, 4)
    paths, keys, bodies = zip(*Handler.requests, strict=True)
    assert (set(paths), set(keys)) == ({"/v1/chat/completions"}, {"Bearer secret"})
    assert all(body["temperature"] == 0 and body["model"] == "m" for body in bodies)
    sent = sorted(body["messages"][-1]["content"] for body in bodies)
    expected = [
        template.format(passage=e.context, question=e.question)
        for e, template in ((EXAMPLES[0], TEMPLATE), (EXAMPLES[1], TEMPLATE), (EXAMPLES[1], FORCED))
    ]
    assert sent == sorted(expected)


def test_server_without_log_probabilities_gives_no_null_odds(stub, caplog):
    Handler.failures = [400]
    model = ServerModel(stub, "m")
    replies = [*model.answer(EXAMPLES[:1], PROMPTS[:1]), *model.answer(EXAMPLES[1:], PROMPTS[1:])]
    assert [(reply.text, reply.null_odds) for reply in replies] == [("Ada", None), ("", None)]
    assert ["logprobs" in body for _, _, body in Handler.requests] == [True, False, False]
    assert "so there are no null odds" in caplog.text


@pytest.mark.parametrize("usage", [{}, {"usage": {"prompt_tokens": 40}}])
def test_server_without_token_counts_gives_no_cost_in_tokens(stub, files, tmp_path, qa_arch, usage):
    Handler.failures = [{"choices": [{"message": {"content": "Unanswerable"}}], **usage}] * 99
    options = ("--data", files["dev"], "--name", "m", "--folder", tmp_path / "p", "--price", 1)
    code, out, err = qa_arch("prompt", "--model", "m", "--url", stub, *options)
    assert (code, "tokens unknown (the server reports no token counts)" in out) == (0, True), err
    (run,) = (path for path in (tmp_path / "p").iterdir() if path.is_dir())
    costs = {key for key in read_record(run).facts("dev").extra if key.endswith("per_1000_answers")}
    assert costs == {"seconds_per_1000_answers"}


def test_empty_replies_are_counted(stub, files, tmp_path, qa_arch, caplog):
    Handler.failures = [{"choices": [{"message": {"content": None}, "finish_reason": "length"}]}] * 2
    options = ("--data", files["dev"], "--name", "m", "--folder", tmp_path / "p")
    assert qa_arch("prompt", "--model", "m", "--url", stub, *options)[0] == 0
    assert "2 empty replies, counted as no answer (finish reason: length)" in caplog.text


def test_transient_errors_are_retried(stub):
    Handler.failures = [503, 429, 500]
    (reply,) = ServerModel(stub, "m").answer(EXAMPLES[:1], PROMPTS[:1])
    assert (reply.text, len(Handler.requests)) == ("Ada", 4)


@pytest.mark.parametrize(
    ("failures", "message", "requests"),
    [
        ([500] * 9, r"HTTP 500 .*\(6 attempts\); answers are kept", 6),
        ([401], "HTTP 401 .*check --model, --url and QA_ARCH_API_KEY", 1),
        ([302], "HTTP 302", 1),  # the key is not sent elsewhere
        ([{"choices": []}], "is not a chat completion", 1),
        ([{"choices": [TEXT], "usage": {"prompt_tokens": math.inf}}], "is not a chat completion", 1),
        ([{"choices": [TEXT | {"logprobs": {"content": ["x"]}}]}], "is not a chat completion", 1),
    ],
)
def test_permanent_errors_are_reported(stub, failures, message, requests):
    Handler.failures = failures
    with pytest.raises(UnavailableError, match=message):
        ServerModel(stub, "m").answer(EXAMPLES[:1], PROMPTS[:1])
    assert len(Handler.requests) == requests


def test_urls_with_credentials_or_other_schemes_are_refused():
    for url in ("file:///etc", "https://me:secret@x/v1"):
        with pytest.raises(ConfigError, match="its key in QA_ARCH_API_KEY") as error:
            ServerModel(url, "m")
        assert "secret" not in str(error.value)


def test_null_odds_of_the_first_token():
    assert null_odds({}) is None
    assert null_odds({"Una": -1.0, "Ada": -2.0, " un": -3.0}) == 1.0
    assert null_odds({"Ada": -0.5, "x": -4.0}) == -3.5  # at most as probable as the last one listed
    assert null_odds({'"': -0.1, "un": -2.5, "Ada": -4.5}) == 2.0  # either answer may be quoted
    assert null_odds({" ": -0.1, '"': -2.5}) == 0.0
    assert math.isfinite(null_odds({"un": -0.1}))
