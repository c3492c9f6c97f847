"""docs/serving.md: its calls are answered, and the tests named in its table exist."""

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
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
