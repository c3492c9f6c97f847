"""Which kernel runs, and the check that proves it: with stub checks, and in Triton's interpreter."""

import json
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from qa_arch.errors import UnavailableError
from qa_arch.extras.kernels import autograd
from qa_arch.extras.kernels import proof as kernels
from qa_arch.extras.kernels.proof import recorded_verdict

FACTS = {"source": "abc", "gpu": "made up", "hidden": 5}
PASSES = """print('compiling'); print('{"passed": true, "reason": ""}')"""


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_pass_is_recorded_for_its_gpu_source_and_width(tmp_path):
    assert recorded_verdict(FACTS, program(PASSES), folder=tmp_path) == ""
    assert recorded_verdict(FACTS, ["/no/such/program"], folder=tmp_path) == ""
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text()) == {**FACTS, "passed": True, "reason": ""}
    for key in FACTS:
        assert recorded_verdict({**FACTS, key: "other"}, ["/no/such/program"], folder=tmp_path)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (program("""print('{"passed": false, "reason": "states differ"}')"""), "states differ"),
        (program("import os; os.abort()"), "exit code -6"),
        (program("raise RuntimeError('no such instruction')"), "code 1: RuntimeError: no such instruction"),
        (program(""), "exit code 0: no output"),
        (["/no/such/program"], "could not start"),
    ],
    ids=["unequal", "crash", "error", "silent", "missing"],
)
def test_every_kind_of_failed_check_is_recorded(tmp_path, command, reason):
    for attempt in (command, program(PASSES)):
        verdict = recorded_verdict(FACTS, attempt, folder=tmp_path)
        assert reason in verdict
        assert re.search(r"recorded in .*json; delete it to check again", verdict)
    (path,) = tmp_path.glob("*.json")
    path.write_text('{"passed": tr')  # a damaged record is ignored
    assert recorded_verdict(FACTS, program(PASSES), folder=tmp_path) == ""
    path.unlink()
    (tmp_path / "file").write_text("")
    verdict = recorded_verdict(FACTS, program(PASSES), folder=tmp_path / "file" / "kernels")
    assert "cannot be recorded" in verdict, "and so the kernel does not run"


@pytest.mark.slow
def test_hanging_check_is_killed_with_its_children(tmp_path):
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    started = time.monotonic()
    verdict = recorded_verdict(FACTS, program(code), limit=3, folder=tmp_path / "kernels")
    assert "took more than 3 seconds" in verdict
    assert time.monotonic() - started < 30
    status = Path(f"/proc/{(tmp_path / 'child').read_text()}/status")
    deadline = time.monotonic() + 10  # on a busy machine a killed process ends a little later
    while time.monotonic() < deadline and status.exists() and "zombie" not in status.read_text():
        time.sleep(0.05)
    assert not status.exists() or "zombie" in status.read_text()


def test_source_hash_covers_every_kernel(tmp_path, monkeypatch):
    own, loop = tmp_path / "kernels", tmp_path / "match_lstm.py"
    shutil.copytree(Path(kernels.__file__).parent, own)
    shutil.copy(kernels.match_lstm.__file__, loop)
    hashes = [kernels.source_hash()]
    monkeypatch.setattr(kernels, "__file__", str(own / "proof.py"))
    monkeypatch.setattr(kernels.match_lstm, "__file__", str(loop))
    for path in (own / "autograd.py", own / "kernels.py", loop):
        assert kernels.source_hash() == hashes[-1]
        path.write_text(path.read_text() + "#")
        hashes.append(kernels.source_hash())
    assert len(set(hashes)) == 4


def uses_fused(kernel: str, *, hidden: int = 5, training: bool = True) -> bool:
    return kernels.recurrence(kernel, torch.zeros(1), hidden, training=training) is not None


def test_without_a_gpu_nothing_is_checked(monkeypatch):
    monkeypatch.setattr(kernels, "recorded_verdict", lambda *_: pytest.fail("checked"))
    assert not uses_fused("auto")
    assert not uses_fused("fused", training=False)
    with pytest.raises(UnavailableError, match="CUDA device of compute capability"):
        uses_fused("fused")


def test_setting_and_verdict_decide_which_kernel_runs(monkeypatch):
    verdicts = iter([""] * 2 + ["states differ"] * 3)
    monkeypatch.setattr(kernels, "supports", lambda _: True)
    monkeypatch.setattr(kernels, "_verdict_on_gpu", lambda *_: next(verdicts))
    assert [uses_fused(kernel) for kernel in ("auto", "plain", "fused", "auto")] == [True, False, True, False]
    assert not uses_fused("fused", training=False)  # inference falls back to the plain loop
    with pytest.raises(UnavailableError, match=r"model\.kernel=fused: .*states differ.*model\.kernel=auto"):
        uses_fused("fused")


def test_fallback_to_the_plain_loop_is_logged_once_with_its_reason(monkeypatch, caplog):
    checks = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "made up")
    monkeypatch.setattr(kernels.metadata, "version", lambda _: "3.6")
    monkeypatch.setattr(kernels, "supports", lambda _: True)
    monkeypatch.setattr(kernels, "recorded_verdict", lambda *given: checks.append(given) or "states differ")
    for _ in range(3):
        assert not uses_fused("auto", hidden=12345)  # a width that no other test uses
    assert caplog.messages == ["match-LSTM: using the plain loop instead of the fused kernel: states differ"]
    ((facts, command),) = checks
    assert (facts["capability"], facts["torch"]) == ("9.0", torch.__version__)
    precision = torch.get_float32_matmul_precision()
    assert command[-4:] == ["qa_arch.extras.kernels.proof", "cpu", "12345", precision]


@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        (None, ""),
        (lambda states: states * float("nan"), "states differs by nan"),
        (lambda states: states.detach() + (states - states.detach()) * 1.01, "gradient of inputs differs by"),
    ],
    ids=["correct", "states", "gradients"],
)
def test_check_names_what_differs(monkeypatch, corrupt, reason):
    triton = pytest.importorskip("triton", reason="the kernels need Triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("Triton compiles in this process")
    monkeypatch.setattr(kernels, "SIZES", ({"steps": 2, "B": 2, "Q": 3},))
    fused = autograd.recur_fused
    if corrupt:
        monkeypatch.setattr(autograd, "recur_fused", lambda *arguments: corrupt(fused(*arguments)))
    verdict = kernels.check("cpu", 4, torch.get_float32_matmul_precision())
    assert verdict == "" if corrupt is None else reason in verdict
    assert ("(fp32, steps=2, B=2, Q=3)" in verdict) == bool(corrupt)


@pytest.mark.slow
def test_one_rank_checks_for_all(tmp_path):
    log = tmp_path / "log"
    code = f"import time; open({str(log)!r}, 'a').write('x'); time.sleep(2.5); {PASSES}"
    verdicts: list[str] = []

    def rank() -> None:
        verdicts.append(recorded_verdict(FACTS, program(code), folder=tmp_path / "kernels"))

    ranks = [threading.Thread(target=rank) for _ in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(60)
    assert verdicts == [""] * 3
    assert log.read_text() == "x"


@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.001, False)])
def test_check_allows_for_rounding_in_wide_layers(monkeypatch, factor, passed):
    monkeypatch.setattr(kernels, "SIZES", ({"steps": 9, "B": 4, "Q": 8},))
    monkeypatch.setattr(kernels, "EXACT", 1e-7)  # less than the plain loop itself loses in fp32

    def recurrence(*arguments):
        return factor * kernels.match_lstm.recur_reference(
            *(x.float() if x.is_floating_point() else x for x in arguments)
        )

    monkeypatch.setattr(autograd, "recur_fused", recurrence)
    assert (kernels.check("cpu", 64, "highest") == "") == passed
