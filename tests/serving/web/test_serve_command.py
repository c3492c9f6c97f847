"""``qa-arch serve`` with trained runs: the answers of the Python API, and errors at startup."""

import argparse
import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx2
import pytest

from qa_arch.cli import serve as command
from qa_arch.errors import UnavailableError
from qa_arch.manifest import module_of
from qa_arch.qa.loading import load
from qa_arch.serving.guard import bind


@pytest.fixture(scope="module")
def runs(span_run, sequence_run, question_set):
    """Runs of a BERT and of a match-LSTM, which shows attention, and questions."""
    return (span_run, sequence_run), question_set.examples


@contextmanager
def served(*arguments, **environment):
    """``qa-arch serve`` in a subprocess: the process, the lines printed until it is ready, its address."""
    program = [sys.executable, "-m", "qa_arch.cli.main", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment or None) as process:
        try:
            lines = []
            while not (lines and lines[-1].startswith("http://")):
                line = process.stdout.readline()
                assert line, lines
                lines.append(line.strip())
            yield process, lines, lines[-1].split()[0]
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
def test_service_answers_match_the_python_api(runs, tmp_path):
    folders, examples = runs
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with served(*folders, "--token-file", secret, "--device", "cpu") as (process, lines, address):
        assert lines[:2] == ["span", "sequence"]
        assert address.startswith("http://127.0.0.1:")
        assert httpx2.get(f"{address}/v1/models").status_code == 401
        with httpx2.Client(headers={"Authorization": "Bearer s3cret"}, timeout=60) as client:
            models = client.get(f"{address}/v1/models").json()["models"]
            assert [(model["name"], model["attention"]) for model in models] == [
                ("span", False),
                ("sequence", module_of("attention") is not None),
            ]
            for folder in folders:
                body = {"question": examples[0].question, "context": examples[0].context, "top_k": 3}
                reply = client.post(f"{address}/v1/answer", json={**body, "model": folder.name})
                direct = load(folder, device="cpu")(**body)
                assert reply.json()["answers"] == [json.loads(json.dumps(direct.as_dict()))]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0


def test_missing_extra_names_the_install_command(runs, qa_arch, monkeypatch):
    (bert, _), _ = runs
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith("qa_arch.serving")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, error = qa_arch("serve", bert)
    assert (code, "pip install -e '.[serve]'" in error) == (6, True)


@pytest.mark.parametrize("host", ["no.such.host.invalid", ".local", "a" * 70])
def test_host_that_cannot_be_bound_is_named(host):
    with pytest.raises(UnavailableError, match=f"^{re.escape(host)}, port 0: cannot be bound"):
        bind(host, 0)


def test_token_is_not_a_command_line_argument(monkeypatch, tmp_path):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert not [action for action in parser._actions if "--token" in action.option_strings]
    monkeypatch.setenv("QA_ARCH_TOKEN", "from the environment")
    assert command.read_token(None) == "from the environment"
    monkeypatch.delenv("QA_ARCH_TOKEN")
    assert command.read_token(None) is None
