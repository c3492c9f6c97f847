"""Uploads to a local server that implements the Hub's protocol."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.system import hub


class Hub(BaseHTTPRequestHandler):
    """Accepts repositories of ``me`` and records every request."""

    requests: list

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append((self.path, self.headers["Authorization"], content))
        code, answer = 200, {}
        if self.path == "/api/repos/create":
            repository = json.loads(content)
            answer = {"url": f"https://huggingface.co/{repository['organization']}/{repository['name']}"}
            code = 200 if repository["organization"] == "me" else 403
        elif self.path.endswith("/preupload/main"):
            files = [file["path"] for file in json.loads(content)["files"]]
            answer = {
                "files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
            }
        elif self.path.endswith("/commit/main"):
            answer = {
                "commitUrl": "https://huggingface.co/me/model/commit/1",
                "commitOid": "1",
                "success": True,
            }
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def requests(monkeypatch):
    """Requests received by a local hub that replaces the real one."""
    Hub.requests = []
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub._is_reachable.cache_clear()
    yield Hub.requests
    hub._is_reachable.cache_clear()
    server.shutdown()
    server.server_close()


def test_model_in_a_cache_below_the_home_folder_is_found(tmp_path, monkeypatch):
    (snapshot := tmp_path / "hub/models--me--model/snapshots/1").mkdir(parents=True)
    (snapshot / "config.json").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", "~/hub")
    assert hub.cached("models", "me/model")
    assert not hub.cached("models", "me/other")


def test_folder_is_uploaded_in_one_commit(requests, tmp_path):
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper/vocab.txt").write_text("word\n")
    hub.require_upload("me/model")
    assert hub.upload(tmp_path, "me/model", private=True) == "https://huggingface.co/me/model/commit/1"
    created, *_, committed = requests
    assert created[0] == "/api/repos/create"
    assert created[1] == "Bearer hf_secret"
    repository = json.loads(created[2])
    # Which key depends on the version of huggingface_hub.
    assert repository.get("visibility") == "private" or repository.get("private") is True
    lines = [json.loads(line) for line in committed[2].splitlines()]
    assert {line["value"]["path"] for line in lines if line["key"] == "file"} == {
        "config.json",
        "deeper/vocab.txt",
    }


def test_refused_upload_is_a_one_line_error_with_a_remedy(requests, tmp_path):
    with pytest.raises(UnavailableError) as error:
        hub.upload(tmp_path, "they/model", private=False)
    assert f"hf upload they/model {tmp_path}" in str(error.value)
    assert "403" in str(error.value)
    assert "\n" not in str(error.value)


def test_impossible_upload_is_refused_before_any_request(requests, monkeypatch):
    with pytest.raises(ConfigError, match="--push"):
        hub.require_upload("a/b/c")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UnavailableError, match="hf auth login"):
        hub.require_upload("me/model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnavailableError, match="HF_HUB_OFFLINE is set"):
        hub.require_upload("me/model")
    hub.require_upload("me/model", dry=True)
    assert not requests


QUIET = """
import qa_arch
from huggingface_hub.constants import HF_HUB_DISABLE_TELEMETRY
from transformers.modeling_utils import is_env_variable_true
from wandb.env import error_reporting_enabled
not_converted = is_env_variable_true("DISABLE_SAFETENSORS_CONVERSION")
print(HF_HUB_DISABLE_TELEMETRY, not_converted, error_reporting_enabled())
"""


@pytest.mark.parametrize(("set_by_user", "expected"), [("", "True True False"), ("0", "False False False")])
def test_libraries_report_nothing_to_their_makers(set_by_user, expected):
    """As the libraries themselves read the environment, which a user may set."""
    names = ("DISABLE_SAFETENSORS_CONVERSION", "HF_HUB_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= dict.fromkeys(names, set_by_user) if set_by_user else {}
    command = [sys.executable, "-c", QUIET]
    assert subprocess.check_output(command, env=environment, text=True).strip() == expected
