"""Every request gets an answer, or an error in JSON with its remedy; docs/serving.md says the same."""

import asyncio
import json
import logging
import math
import random
import re
import shlex
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fastapi import FastAPI
from pages import ROOT
from service import RuleReader, models
from starlette.testclient import TestClient

from qa_arch.errors import ConfigError
from qa_arch.manifest import module_of
from qa_arch.serving import ServiceOptions
from qa_arch.serving import app as app_module
from qa_arch.serving.app import create_app

PASSAGE = "The mill at Lowmere burnt in 1871. A bridge was built beside the mill."
JSON = {"Content-Type": "application/json"}
with_attention = pytest.mark.skipif(module_of("attention") is None, reason="no extra shows attention")


def ask(client, question="Where is the mill?", context=PASSAGE, **fields):
    return client.post("/v1/answer", json={"question": question, "context": context, **fields})


def error_of(response, status):
    """The error of a response, which must have this status and the form of all errors."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert error.keys() - {"id"} == {"message", "field", "remedy"}
    assert error["message"]
    assert error["remedy"]
    return error


def test_valid_question(service):
    client = service()
    response = ask(client, top_k=2)
    assert response.status_code == 200
    assert response.json()["model"] == "first"
    (answer,) = response.json()["answers"]
    assert (answer["text"], answer["start"], answer["end"], answer["document"]) == ("mill", 4, 8, 0)
    assert [span["start"] for span in answer["spans"]] == [4, 65]
    direct = client.readers["first"]("Where is the mill?", PASSAGE, top_k=2)
    assert answer == json.loads(json.dumps(direct.as_dict()))
    body = {"question": "mill?", "documents": ["Nothing.", "", "By the dam, a mill."]}
    (answer,) = client.post("/v1/answer", json=body).json()["answers"]
    assert (answer["document"], answer["start"]) == (2, 14)
    queries = [{"question": word, "context": PASSAGE} for word in ("mill", "bridge", "dam")]
    response = client.post("/v1/answer", json={"queries": queries, "model": "second"})
    assert [answer["text"] for answer in response.json()["answers"]] == ["mill", "bridge", ""]


def test_passage_without_an_answer(service):
    client = service()
    (answer,) = ask(client, question="Where is the dam?", top_k=3).json()["answers"]
    assert (answer["text"], answer["start"], answer["document"], answer["null_odds"]) == ("", None, None, 5.0)
    assert answer["no_answer_probability"] == answer["confidence"] > 0.5
    assert len(answer["spans"]) == 2
    (forced,) = ask(client, question="Where is the dam?", null_threshold=1e9).json()["answers"]
    assert forced["text"] == "The"


def test_model_is_chosen_by_name(service):
    client = service()
    models = client.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["first", "second"]
    for model in models:
        example = client.post("/v1/answer", json={**model["example"], "model": model["name"]})
        assert example.json()["model"] == model["name"]
    assert [len(client.readers[name].batches) for name in ("first", "second")] == [1, 1]
    for name in ("third", "../first", "/etc/passwd", ""):
        error = error_of(ask(client, model=name), 404)
        assert (error["field"], error["remedy"]) == ("model", "choose from: first, second")


@pytest.mark.parametrize(
    ("train", "word"),
    [
        (["synthetic:train"], "Kelldale"),
        ("synthetic_reviews.json", "lighthouse"),
        ("v1:elsewhere.json", "lighthouse"),
    ],
)
def test_example_follows_what_the_training_data_is(service, train, word):
    reader = RuleReader()
    reader.config = replace(reader.config, data=replace(reader.config.data, train=train))
    (model,) = service({"model": reader}).get("/v1/models").json()["models"]
    assert word in model["example"]["question"]


def test_very_large_input(service):
    client = service(max_characters=200_000)
    (answer,) = ask(client, context="word " * 20_000 + "mill").json()["answers"]
    assert answer["start"] == 100_000
    assert ask(client, question="very " * 20_000 + "mill").json()["answers"][0]["text"] == "mill"
    error = error_of(ask(client, context="w" * 200_000), 413)
    assert error["message"] == "200,018 characters of text"
    queries = [{"question": "q", "context": "w" * 70_000}] * 3
    error_of(client.post("/v1/answer", json={"queries": queries}), 413)
    assert len(client.readers["first"].batches) == 2


@pytest.mark.parametrize("declared", [True, False])
def test_huge_body_is_not_read_to_its_end(service, declared):
    client, sent = service(max_characters=1000), []

    def body():
        for _ in range(1000):
            sent.append(4096)
            yield b" " * 4096

    content = b" " * 100_000 if declared else body()
    response = client.post("/v1/answer", content=content, headers=JSON)
    assert "71,536 bytes" in error_of(response, 413)["message"]
    assert response.headers["connection"] == "close"


EVIL = "</p><script>alert(1)</script> <b>mill</b>"


@pytest.mark.parametrize(
    "context", ["‏הטחנה mill נשרפה‎", "a\x00b\x00 mill", "👩‍🚀 𝔸 mill 👍🏽", "e\u0301 mill", EVIL]
)
def test_offsets_count_characters_of_any_script(service, context):
    response = ask(service(), context=context)
    (answer,) = response.json()["answers"]
    assert context[answer["start"] : answer["end"]] == answer["text"] == "mill"
    assert response.headers["content-type"] == "application/json"


QUERY = {"question": "a", "context": "b"}
REFUSED = [
    (b"", 400, None, "invalid JSON"),
    (b"\xff\xfe\x00", 400, None, "cannot be parsed"),
    (b'{"question": "a", "context": "b", "question": "c"}', 400, None, "'question' occurs twice"),
    (rb'{"queries": [{"\ud800": 1, "\ud800": 2}]}', 400, None, r"'\ud800' occurs twice"),
    (b"[" * 100_000, 400, None, "cannot be parsed"),
    (b'{"top_k": ' + b"9" * 5000 + b"}", 400, None, "cannot be parsed"),
    (rb'{"question": "\ud800", "context": "a"}', 400, "question", "surrogate"),
    (rb'{"queries": [{"question": "a", "context": "b\ud83d"}]}', 400, "queries[0].context", "surrogate"),
    ({"question": " \n", "context": PASSAGE}, 422, "question", "is empty"),
    ({"question": "Who?", "documents": ["", " "]}, 422, "documents", "no text to read"),
    ({"queries": [{"question": "Who?", "context": " "}]}, 422, "queries[0].context", "no text to read"),
    ({}, 422, "question", "required"),
    (None, 422, None, "must be an object with the fields of a query"),
    ({"question": "a"}, 422, None, "give either context"),
    ({**QUERY, "top_k": "3"}, 422, "top_k", "'3' is out of range"),
    ({**QUERY, "top_k": 101}, 422, "top_k", "less than or equal to 100"),
    ({**QUERY, "null_threshold": math.nan}, 422, "null_threshold", "finite number"),
    ({**QUERY, "null_threshold": 10**400}, 422, "null_threshold", "must be a"),
    ({"queries": []}, 422, "queries", "there is no query"),
    ({"queries": [QUERY], "top_k": 3}, 422, "top_k", "unknown field"),
    ({"queries": [QUERY, {"question": "a", "contxt": "b"}]}, 422, "queries[1].contxt", "unknown field"),
    # Before validation: thousands of wrong values would each have an error of their own.
    ({"queries": [1] * 3000}, 422, "queries", "3,000 queries"),
    ({"queries": [{"question": "a", "documents": [1] * 3000}]}, 422, "documents", "3,000 documents"),
    (dict.fromkeys(map(str, range(3000)), 1), 422, None, "3,000 fields in an object"),
]
"""(body, as bytes or as a value for JSON; status, field and part of the message of the error)."""


@pytest.mark.parametrize(("body", "status", "field", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused_body(service, body, status, field, message):
    client = service()
    content = body if isinstance(body, bytes) else json.dumps(body)
    error = error_of(client.post("/v1/answer", content=content, headers=JSON), status)
    assert (error["field"], message in error["message"]) == (field, True), error
    assert client.readers["first"].batches == []
    known = "leave it out (did you mean 'context'?)"
    assert field != "queries[1].contxt" or error["remedy"] == known
    assert ask(client).status_code == 200


QUERY_FIELDS = "context, distinct, documents, max_answer_tokens, null_threshold, question, top_k"


@pytest.mark.parametrize(
    ("path", "body", "known"),
    [
        ("answer", QUERY | {"9": 1}, QUERY_FIELDS.replace("max_answer_tokens", "max_answer_tokens, model")),
        ("answer", {"queries": [QUERY | {"9": 1}]}, QUERY_FIELDS),
        ("answer", {"queries": [QUERY], "9": 1}, "model, queries"),
        ("attention", {**QUERY, "9": 1}, "context, model, question"),
    ],
)
def test_unknown_field_is_told_those_allowed_in_its_place(service, path, body, known):
    error = error_of(service().post(f"/v1/{path}", json=body), 422)
    assert (error["message"], error["remedy"]) == ("unknown field", f"leave it out (known: {known})")


def test_bodies_are_validated_off_the_event_loop(service, monkeypatch):
    loops, read_body = [], app_module._read_body

    def recorded(*arguments):
        loops.append(asyncio._get_running_loop())
        return read_body(*arguments)

    monkeypatch.setattr(app_module, "_read_body", recorded)
    assert ask(service()).status_code == 200
    assert loops == [None]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_wrong_content_type(service, kind):
    headers = {"Content-Type": kind} if kind else {}
    error = error_of(service().post("/v1/answer", content=b"{}", headers=headers), 415)
    assert "application/json" in error["remedy"]


def test_unknown_paths_and_methods(service):
    client = service()
    error_of(client.get("/v2/answer"), 404)
    error_of(client.post("/v1/answer/", json={}, follow_redirects=False), 404)
    error_of(client.get("/page/../guard.py"), 404)
    error_of(client.get("/page/%2e%2e/guard.py"), 404)
    response = client.get("/v1/answer")
    assert "POST" in response.headers["allow"]
    error_of(response, 405)
    error_of(client.delete("/v1/models"), 405)
    assert [client.head(path).status_code for path in ("/healthz", "/metrics")] == [200, 200]


def test_failing_query_does_not_fail_its_batch(service, caplog):
    client = service()
    with caplog.at_level(logging.ERROR), ThreadPoolExecutor() as pool:
        first = pool.submit(ask, client, "wait 0.5 mill")
        time.sleep(0.1)
        responses = list(pool.map(lambda question: ask(client, question), ["boom", "mill", "bridge"]))
    assert first.result().status_code == 200
    assert {"boom", "mill", "bridge"} in map(set, client.readers["first"].batches)
    error = error_of(responses[0], 500)
    assert "broken" not in responses[0].text
    assert error["id"] in caplog.text
    assert "the model is broken" in caplog.text
    assert [response.json()["answers"][0]["text"] for response in responses[1:]] == ["mill", "bridge"]
    assert ask(client).status_code == 200


def test_full_queue_gets_429(service):
    client = service(max_queue=4, max_batch=1)
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda _: ask(client, "wait 0.1 mill"), range(16)))
    busy = [response for response in responses if response.status_code != 200]
    assert 4 <= len(responses) - len(busy) < 16
    assert error_of(busy[0], 429)["message"] == "the queue of first is full (4 of 4)"
    assert {(response.status_code, response.headers["retry-after"]) for response in busy} == {(429, "1")}
    assert ask(client).status_code == 200


def test_queries_share_batches_within_limits(service):
    client = service(max_batch=4, max_characters=200)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(ask, client, "wait 0.3 mill")
        time.sleep(0.1)
        list(pool.map(lambda _: ask(client), range(8)))
    assert first.result().status_code == 200
    sizes = [len(batch) for batch in client.readers["first"].batches]
    assert sum(sizes) == 9
    assert max(sizes) == 2  # of 88 characters each
    assert client.readers["first"].threads.isdisjoint({"MainThread", "asyncio"})


def test_slow_answer_times_out(service):
    client = service(request_seconds=0.1)
    response = ask(client, "wait 0.5 mill")
    assert "0.1 s" in error_of(response, 503)["message"]
    assert response.headers["retry-after"] == "1"
    assert ask(client).status_code in (200, 503)


def test_token_is_required(service):
    for other in ("", "ключ", "a\nb"):
        with pytest.raises(ConfigError, match="token"):
            ServiceOptions(token=other)
    client = service(token="s3cret")
    for value in (None, "Bearer wrong", "s3cret", "Bearer é"):
        headers = {} if value is None else {"Authorization": value.encode()}
        for path in ("/v1/models", "/metrics"):
            assert error_of(client.get(path, headers=headers), 401)
    assert client.post("/v1/answer", json={}).status_code == 401
    assert client.get("/healthz").status_code == 200
    client.headers["Authorization"] = "Bearer s3cret"
    assert client.get("/v1/models").status_code == 200
    assert ask(client).status_code == 200


@pytest.mark.parametrize("root", ["/qa", "/page"])
def test_token_is_required_by_a_mounted_app(root):
    """Also where a prefix was taken off its path, as Ray Serve and uvicorn's ``root_path`` leave it."""
    app = create_app(models(), ServiceOptions(token="s3cret"))
    outer = FastAPI()
    outer.mount(root, app)
    for client in (TestClient(outer), TestClient(app, root_path=root)):
        client.base_url = "http://localhost"
        for path in ("/v1/models", "/metrics", "/nowhere", "/v1/docs", "/page"):
            error_of(client.get(f"{root}{path}"), 401)
        error_of(client.post(f"{root}/v1/answer", json={}), 401)
        for path in ("/", "/docs", "/page/app.js", "/page/style.css", "/openapi.json", "/healthz"):
            assert client.get(f"{root}{path}").status_code == 200, path
        for path in ("/page/nothing.js", "/page/..%2fapp.py"):
            assert client.get(f"{root}{path}").status_code == 404, path
        authorization = {"Authorization": "Bearer s3cret"}
        assert client.get(f"{root}/v1/models", headers=authorization).status_code == 200


def test_host_header_must_be_allowed(service):
    client = service()
    for host in ("localhost:8000", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", ""):
        assert client.get("/healthz", headers={"Host": host}).status_code == 400
    assert service(allowed_hosts=()).get("/healthz", headers={"Host": "any"}).status_code == 200


def test_headers_of_every_response(service):
    """Including the preflight of another site, which gets no permission to send JSON."""
    client = service(token="s")
    foreign = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    paths = ("/", "/docs", "/page/app.js", "/v1/models", "/nowhere", "/healthz")
    for response in [*map(client.get, paths), client.options("/v1/answer", headers=foreign)]:
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers


def test_metrics(service):
    client = service()
    ask(client), ask(client, "dam"), ask(client, model="none"), client.get("/secret/path")
    client.post("/v1/answer", content=b"{}")  # refused before the router sees it
    lines = client.get("/metrics").text.splitlines()
    assert {
        'qa_arch_request_seconds_count{path="/v1/answer",status="200"} 2.0',
        'qa_arch_request_seconds_count{path="/v1/answer",status="404"} 1.0',
        'qa_arch_request_seconds_count{path="/v1/answer",status="415"} 1.0',
        'qa_arch_request_seconds_count{path="other",status="404"} 1.0',
        'qa_arch_answers_total{answered="yes",model="first"} 1.0',
        'qa_arch_answers_total{answered="no",model="first"} 1.0',
        'qa_arch_queue_length{model="first"} 0.0',
    } <= set(lines)
    assert service().get("/metrics").text.count("/v1/answer") == 0


@with_attention
def test_attention(service):
    client = service()
    body = {"question": "Which mill?", "context": "The mill burnt."}
    response = client.post("/v1/attention", json=body)
    assert response.json()["question"] == [[0, 5], [6, 10], [10, 11]]
    assert response.json()["weights"][1][1] == pytest.approx(0.9, abs=1e-3)
    error = error_of(client.post("/v1/attention", json={**body, "model": "second"}), 422)
    assert (error["field"], error["remedy"]) == ("model", "choose from: first")


@with_attention
def test_timed_out_attention_keeps_its_queue_slot(service):
    """Its thread works on after the timeout and must count towards the limit until it ends."""
    client = service(max_queue=2, request_seconds=0.2)
    reader, finish, started = client.readers["first"], threading.Event(), []
    reader.attention = lambda *texts: started.append(texts) or finish.wait(30)
    body = {"question": "mill?", "context": PASSAGE}
    with ThreadPoolExecutor() as pool:
        responses = [
            response
            for _ in range(2)
            for response in pool.map(lambda _: client.post("/v1/attention", json=body), range(6))
        ]
    assert {response.status_code for response in responses} == {429, 503}
    assert len(started) == 1
    assert 'qa_arch_queue_length{model="first"} 1.0' in client.get("/metrics").text
    finish.set()
    for _ in range(100):
        if 'qa_arch_queue_length{model="first"} 0.0' in client.get("/metrics").text:
            return
        time.sleep(0.02)
    pytest.fail("the slot was never released")


def test_mounted_app_without_lifespan():
    """Nothing runs its lifespan, and here each request has its own event loop."""
    outer = FastAPI()
    outer.mount("/qa", create_app({"only": RuleReader()}))
    client = TestClient(outer, base_url="http://localhost/qa")
    assert [ask(client).status_code for _ in range(2)] == [200, 200]
    assert 'qa_arch_queue_length{model="only"} 0.0' in client.get("/metrics").text


PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
CALLS = [shlex.split(call) for call in re.findall(r"^curl .*?'$", PAGE, flags=re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("call", CALLS, ids=len)
def test_curl_calls_are_answered(service, call):
    body = json.loads(call[call.index("-d") + 1])
    path = call[2].removeprefix("localhost:8000")
    assert call[call.index("-H") + 1] == "Content-Type: application/json"
    if "model" in body:
        body["model"] = "second"
    response = service().post(path, json=body)
    assert response.status_code == 200, response.text
    assert len(response.json()["answers"]) == len(body.get("queries", [body]))


def test_page_documents_the_schema(service):
    schema = service().get("/openapi.json").json()
    for path in schema["paths"]:
        assert path in PAGE
    for name in ("SingleBody", "BatchBody"):
        for field in schema["components"]["schemas"][name]["properties"]:
            assert f"`{field}`" in PAGE


def test_tests_named_on_the_page_exist():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert not [name for name in named if f"def {name}(" not in tests]


@pytest.mark.slow
def test_hundreds_of_hostile_requests(service):
    """Each is answered or refused with a well-formed error, and the service goes on answering."""
    rng, seen = random.Random(2026), Counter()
    client = service()
    valid = {"question": "Where is the mill?", "context": PASSAGE, "top_k": 2, "null_threshold": 0.5}
    keys = (*valid, "model", "documents", "queries", "other")
    values = (None, True, -1, 10**30, 1e308, "", "\ud800", "a\x00b", "\u202e" * 99, [], {}, [[]], [valid])
    kinds = (*["application/json"] * 6, "text/plain", "a/b; c=\x7f")
    paths = ("/v1/answer", "/v1/answer", "/v1/attention", "/v1//answer", "/%00", "/v1/answer?x=%ff")
    for _ in range(700):
        body = bytearray(json.dumps(valid | {rng.choice(keys): rng.choice(values)}).encode())
        for _ in range(rng.choice([0, 0, 0, 1, 5])):
            body[rng.randrange(len(body))] = rng.randrange(256)
        response = client.request(
            rng.choice(["POST"] * 6 + ["GET", "PUT", "OPTIONS"]),
            rng.choice(paths),
            content=bytes(body[: rng.choice([None, None, None, 40])]),
            headers={"Content-Type": rng.choice(kinds)},
        )
        seen[response.status_code] += 1
        if response.status_code != 200:
            error_of(response, response.status_code)
    assert ask(client).status_code == 200
    assert seen[200]
    assert {400, 405, 415, 422} <= seen.keys() <= {200, 400, 404, 405, 413, 415, 422}
