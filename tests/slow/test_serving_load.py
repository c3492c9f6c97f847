"""64 clients for a minute get only answers and 429s for a full queue, and the event loop stays responsive."""

from statistics import median

import pytest

from benchmarks.serving import measure, service
from benchmarks.targets import MINILM

SECONDS = 60


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("queue", [128, 24])
def test_a_minute_of_load(queue):
    if not MINILM.is_met():
        pytest.skip(f"needs {MINILM.what}")
    with service(batch=16, queue=queue, small=True) as address:
        load = measure(address, clients=64, seconds=SECONDS)
    assert load.statuses.keys() == ({200} if queue == 128 else {200, 429})
    assert load.rate > 20
    assert median(load.health) < 0.25
    assert max(load.health) < 5
