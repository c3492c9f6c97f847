"""The service in a subprocess: slow and disconnecting clients, and a shutdown that loses no answer."""

import json
import resource
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import httpx2
import pytest

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
