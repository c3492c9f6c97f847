"""The service in this process and in a subprocess."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from service import models
from starlette.testclient import TestClient

from qa_arch.serving import ServiceOptions
from qa_arch.serving.app import create_app

PROGRAM = Path(__file__).parents[2] / "service.py"


@pytest.fixture
def service():
    """``service(**options)`` -> a test client of the service, with its readers as ``client.readers``."""
    clients = []

    def start(readers=None, **options):
        readers = readers or models()
        app = create_app(readers, ServiceOptions(**options))
        client = TestClient(app, base_url="http://localhost", client=("127.0.0.1", 5000))
        client.__enter__()
        client.readers = readers
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """``with running(request_seconds) as (process, address, log)``: the service in a subprocess."""

    @contextmanager
    def start(*options, **environment):
        log = tmp_path_factory.mktemp("service") / "log"
        command = [sys.executable, str(PROGRAM), *map(str, options)]
        environ = {**os.environ, **environment}
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ
            ) as process,
        ):
            try:
                url = process.stdout.readline().strip()
                assert url, log.read_text()
                yield process, url, log
            finally:
                process.kill()

    return start


@pytest.fixture(scope="module")
def server(running):
    """A service that runs for the module: (process, address, log)."""
    with running() as started:
        yield started


@pytest.fixture
def address(server):
    return server[1]
