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
from contextlib import suppress
from urllib.parse import urlsplit

import httpx2
import pytest

from qa_arch.cli import serve as command
from qa_arch.errors import UnavailableError
from qa_arch.manifest import module_of
from qa_arch.qa.loading import load
from qa_arch.serving.guard import bind

HEAD = "POST /v1/answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.slow
def test_service_answers_match_the_python_api(span_run, sequence_run, question_set, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    program = [sys.executable, "-m", "qa_arch.cli.main", "serve", span_run, sequence_run]
    options = ["--token-file", tmp_path / "token", "--device", "cpu", "--port", "0"]
    with subprocess.Popen(list(map(str, program + options)), stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline().strip() for _ in range(3)]
        assert lines[:2] == ["span", "sequence"]
        address = lines[2].split()[0]
        assert address.startswith("http://127.0.0.1:")
        assert httpx2.get(f"{address}/v1/models").status_code == 401
        with httpx2.Client(headers={"Authorization": "Bearer s3cret"}, timeout=60) as client:
            models = client.get(f"{address}/v1/models").json()["models"]
            assert [(model["name"], model["attention"]) for model in models] == [
                ("span", False),
                ("sequence", module_of("attention") is not None),
            ]
            example = question_set.examples[0]
            body = {"question": example.question, "context": example.context, "top_k": 3}
            for folder in (span_run, sequence_run):
                reply = client.post(f"{address}/v1/answer", json={**body, "model": folder.name})
                direct = load(folder, device="cpu")(**body)
                assert reply.json()["answers"] == [json.loads(json.dumps(direct.as_dict()))]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_missing_extra_names_the_install_command(span_run, qa_arch, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith("qa_arch.serving")]:
        monkeypatch.delitem(sys.modules, name)
    code, _, error = qa_arch("serve", span_run)
    assert (code, "pip install -e '.[serve]'" in error) == (6, True)


@pytest.mark.parametrize("host", ["no.such.host.invalid", ".local", "a" * 70])
def test_host_that_cannot_be_bound_is_named(host):
    with pytest.raises(UnavailableError, match=f"^{re.escape(host)}, port 0: cannot be bound"):
        bind(host, 0)


def test_token_is_not_a_command_line_argument(monkeypatch):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert not [action for action in parser._actions if "--token" in action.option_strings]
    monkeypatch.setenv("QA_ARCH_TOKEN", "from the environment")
    assert command.read_token(None) == "from the environment"
    monkeypatch.delenv("QA_ARCH_TOKEN")
    assert command.read_token(None) is None


def ask(address, question):
    body = {"question": question, "context": "By the mill."}
    return httpx2.post(f"{address}/v1/answer", json=body, timeout=30)


def connect(address):
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=30)


def receive_all(client) -> bytes:
    """Everything until the server closes the connection."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def queue_length(address) -> float:
    """That of the first model; 0 before its first value."""
    lines = httpx2.get(f"{address}/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith('qa_arch_queue_length{model="first"}')
    )


def wait_for_queue(address, length) -> None:
    for _ in range(200):
        if queue_length(address) == length:
            return
        time.sleep(0.05)
    raise AssertionError("timed out")


def test_requests_over_http(server):
    """A request for a websocket is answered and not logged; what is not HTTP gets 400."""
    _, address, log = server
    response = ask(address, "mill")
    assert response.json()["answers"][0]["start"] == 7
    assert "server" not in response.headers
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert httpx2.get(f"{address}/healthz", headers=upgrade).status_code == 200
    with connect(address) as client:
        client.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert receive_all(client).startswith(b"HTTP/1.1 400 ")
    assert log.read_text() == ""


@pytest.mark.slow
def test_slow_clients_are_refused_and_block_nobody(running):
    with running(1.0) as (_, address, _):
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


@pytest.mark.slow
def test_answer_that_is_not_read_times_out_and_is_not_logged(running):
    with running(4) as (process, address, log), socket.socket() as client:
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
        process.wait(timeout=30)
        assert log.read_text() == ""


def test_work_of_a_disconnected_client_is_dropped(server):
    """While the model works on another question: the event loop is free to see the clients leave."""
    _, address, _ = server
    with ThreadPoolExecutor() as pool:
        pending = pool.submit(ask, address, "wait 4 mill")  # for longer than all below takes
        wait_for_queue(address, 1)
        clients = [connect(address) for _ in range(5)]
        body = json.dumps({"question": "wait 60 mill", "context": "By the mill."}).encode()
        for client in clients:
            client.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for_queue(address, 6)
        assert httpx2.get(f"{address}/healthz").json() == {"status": "ok"}
        for client in clients:
            client.close()
        wait_for_queue(address, 1)
        assert pending.result().status_code == 200
    assert ask(address, "mill").status_code == 200


def require_closed(address):
    """Fail unless the server soon accepts no more connections, as after a first signal."""
    with suppress(httpx2.TransportError):
        for _ in range(100):
            httpx2.get(f"{address}/healthz")
            time.sleep(0.02)
        pytest.fail("connections are still accepted")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_shutdown_finishes_pending_requests(running, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("started by nohup, which the server respects")
    with running() as (process, address, log), ThreadPoolExecutor() as pool:
        pending = [pool.submit(ask, address, "wait 0.8 mill") for _ in range(3)]
        wait_for_queue(address, 3)
        process.send_signal(number)
        require_closed(address)
        assert [future.result().status_code for future in pending] == [200] * 3
        assert process.wait(timeout=20) == 0
        assert log.read_text() == ""


@pytest.mark.slow
def test_second_signal_stops_at_once(running):
    with running() as (process, address, _), ThreadPoolExecutor() as pool:
        pending = pool.submit(ask, address, "wait 4 mill")
        wait_for_queue(address, 1)
        process.send_signal(signal.SIGTERM)
        require_closed(address)
        process.send_signal(signal.SIGTERM)
        assert pending.exception(timeout=20) or pending.result().status_code >= 500
        process.wait(timeout=20)


def test_exhausted_connections_are_logged_once(server):
    """Even if the service is stopped then. This ends the service of the module, so it comes last."""
    process, address, log = server
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (48, 48))
    clients = [connect(address) for _ in range(100)]
    time.sleep(1.5)  # asyncio tries again every second
    for client in clients:
        client.close()
    assert ask(address, "mill").status_code == 200
    clients = [connect(address) for _ in range(100)]
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    expected = "no more connections can be opened (Too many open files); raise the limit: ulimit -n\n"
    assert log.read_text() == expected
    for client in clients:
        client.close()
