"""The service in a subprocess: ``qa-arch serve``, slow and disconnecting clients, a lossless shutdown."""

import argparse
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

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


HEAD = "POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def ask(address, question):
    body = {"question": question, "context": "By the mill."}
    return httpx2.post(f"{address}/v1/answer", json=body, timeout=30)


def connect(address):
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=30)


def receive_all(client) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def post(client, question):
    body = json.dumps({"question": question, "context": "By the mill."}).encode()
    client.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def metric(address, name) -> float:
    """Metric of the first model; 0 before its first value."""
    lines = httpx2.get(f"{address}/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(f'qa_arch_{name}{{model="first"}}')
    )


def test_request_over_http_and_response_headers(address):
    response = ask(address, "mill")
    assert response.json()["answers"][0]["start"] == 7
    assert "server" not in response.headers


@pytest.mark.slow
def test_slow_clients_are_refused_and_block_nobody(running):
    with running(1.0) as (_, address):
        slow = [connect(address) for _ in range(20)]
        for client in slow[:10]:
            client.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())  # never completed
        started, answered = time.perf_counter(), threading.Event()

        def drip():
            while not answered.wait(0.1):
                slow[0].sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        assert ask(address, "mill").status_code == 200
        first = slow[0].recv(65536)
        answered.set()
        thread.join()
        assert first.startswith(b"HTTP/1.1 503 ")
        assert receive_all(slow[1]).startswith(b"HTTP/1.1 503 "), "and the connection is closed"
        assert time.perf_counter() - started < 15
        for client in slow:
            client.close()


def test_request_for_a_websocket_is_answered_and_not_logged(running):
    with running() as (process, address):
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
        assert httpx2.get(f"{address}/healthz", headers=upgrade).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[1] == ""


@pytest.mark.parametrize("recovers", [True, False])
def test_exhausted_connections_are_logged_once(running, recovers):
    with running() as (process, address):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (48, 48))
        idle = [connect(address) for _ in range(100)]
        time.sleep(2.5 if recovers else 0.3)  # asyncio tries again every second
        if recovers:
            for client in idle:
                client.close()
            time.sleep(1.5)
            assert ask(address, "mill").status_code == 200
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=30)[1]
    assert log == "no more connections can be opened (Too many open files); raise the limit: ulimit -n\n"


@pytest.mark.slow
def test_answer_that_is_not_read_times_out_and_is_not_logged(running):
    with running(4) as (process, address), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((urlsplit(address).hostname, urlsplit(address).port))
        word = "\x01" * 90_000  # six times as long in JSON
        body = json.dumps({"question": word, "context": word}).encode()
        client.settimeout(2)
        with suppress(OSError):  # it reads no more requests either
            for _ in range(12):  # more answers than the kernel's buffers hold
                client.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(6)  # until the answer that is not read times out
        client.close()
        assert ask(address, "mill").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[1] == ""


def test_non_http_request_gets_400(address):
    with connect(address) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert receive_all(client).startswith(b"HTTP/1.1 400 ")


def test_work_of_a_disconnected_client_is_dropped(address):
    first = connect(address)
    post(first, "wait 1.5 mill")
    time.sleep(0.3)
    others = [connect(address) for _ in range(5)]
    for client in others:
        post(client, "wait 60 mill")
    wait_until(lambda: metric(address, "queue_length") == 6)
    for client in others:
        client.close()
    wait_until(lambda: metric(address, "queue_length") == 1)
    assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert ask(address, "mill").status_code == 200
    first.close()


def test_event_loop_is_free_while_a_model_answers(address):
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(ask, address, "wait 3 mill")
        time.sleep(0.3)
        for _ in range(5):
            assert httpx2.get(f"{address}/healthz").json() == {"status": "ok"}
        assert not pending.done()
        assert pending.result().status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_shutdown_finishes_pending_requests(running, number):
    with running() as (process, address), ThreadPoolExecutor() as pool:
        pending = [pool.submit(ask, address, "wait 0.8 mill") for _ in range(3)]
        wait_until(lambda: metric(address, "queue_length") == 3)
        process.send_signal(number)
        time.sleep(0.3)
        with pytest.raises(httpx2.ConnectError):
            ask(address, "mill")
        assert [future.result().status_code for future in pending] == [200] * 3
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_second_signal_stops_at_once(running):
    with running() as (process, address), ThreadPoolExecutor() as pool:
        pending = pool.submit(ask, address, "wait 4 mill")
        wait_until(lambda: metric(address, "queue_length") == 1)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert pending.exception(timeout=20) or pending.result().status_code >= 500
        process.wait(timeout=20)


def wait_until(condition) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("timed out")
