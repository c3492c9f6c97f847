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
def running():
    """``with running(request_seconds) as (process, address)``: the service in a subprocess."""

    @contextmanager
    def start(*options, **environment):
        environ = {**os.environ, **environment}
        command = [sys.executable, str(PROGRAM), *map(str, options)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        ) as process:
            try:
                url = process.stdout.readline().strip()
                assert url, process.stderr.read()
                yield process, url
            finally:
                if process.poll() is None:
                    process.kill()

    return start


@pytest.fixture(scope="module")
def address(running):
    """Address of a service that runs for the module."""
    with running() as (_, url):
        yield url
