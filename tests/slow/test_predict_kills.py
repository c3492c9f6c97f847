"""``predict`` to JSON lines, killed at random moments and repeated, writes the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from line_answers import write_lines

from qa_arch.cli.main import main
from qa_arch.data import synthetic
from qa_arch.system import lifeline

KILLS = 12
SEED = 2026
SMALL = ("model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not lifeline.LINUX, reason="kills processes")
def test_killed_prediction_writes_the_same_bytes_when_repeated(tmp_path):
    assert main(["train", *SMALL, f"runs_dir={tmp_path}", "trainer.progress=false"]) == 0
    (run,) = (tmp_path / "debug").glob("bert-*")
    examples = synthetic.named("dev").examples
    lines = [{"id": n, "question": e.question, "context": e.context} for n, e in enumerate(examples * 8)]
    data = write_lines(tmp_path / "data.jsonl", lines)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "qa_arch.cli.main", "predict", str(run), "--data", str(data), "--out"]
    assert subprocess.run([*command, str(tmp_path / "expected.jsonl")], env=environment).returncode == 0
    expected = (tmp_path / "expected.jsonl").read_bytes()
    assert expected.count(b"\n") == len(lines)
    rng, kills, calls = random.Random(SEED), 0, 0
    while kills < KILLS:
        calls += 1
        out = tmp_path / f"killed-{calls}.jsonl"
        partial = tmp_path / f"{out.name}.partial"
        while not out.exists():
            process = subprocess.Popen([*command, str(out)], env=environment)
            if kills < KILLS:
                # Three of four kills come soon after the file has grown, the others anywhere (often imports).
                size = partial.stat().st_size if partial.exists() else 0
                if rng.random() < 0.75:
                    while process.poll() is None and (not partial.exists() or partial.stat().st_size <= size):
                        time.sleep(0.002)
                    time.sleep(rng.uniform(0, 0.3))
                else:
                    time.sleep(rng.uniform(0, 3))
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    size = partial.stat().st_size if partial.exists() else 0
                    print(f"kill {kills}, call {calls}: {size} of {len(expected)} bytes", flush=True)
            assert process.wait() in (0, -signal.SIGKILL)
        assert out.read_bytes() == expected
        assert not partial.exists()
