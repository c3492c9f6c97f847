"""Select the implementation of the match-LSTM recurrence: the fused kernel runs only where it was verified.

``model.kernel`` is ``auto``, ``plain`` or ``fused``. Verified means: on this GPU model, with this source,
these versions and this width, the kernel reproduced states and gradients of the plain loop on a small batch.
A separate process checks this once, under a time limit, so that no run hangs or crashes with it, and records
the verdict in a small file under ``$XDG_CACHE_HOME/qa_arch/kernels``.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qa_arch.config.files import write_json
from qa_arch.errors import UnavailableError
from qa_arch.nn import recurrence as loops
from qa_arch.nn.recurrence import Kernel
from qa_arch.system.lifeline import module_command, start

CHECK = "qa_arch.extras.kernels.fused.kernel_check"
TIMEOUT = 240.0
"""Seconds allowed for a check; most of the time is compilation."""
log = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """Whether the kernel may run, and the reason if not."""

    passed: bool
    reason: str = ""


def recurrence(
    kernel: Kernel, inputs: Tensor, hidden: int, *, training: bool
) -> Callable[..., Tensor] | None:
    """The fused recurrence of width ``hidden`` for ``inputs``, or None to run the plain loop.

    ``auto`` uses the kernel if it was verified, ``plain`` never. ``fused`` raises UnavailableError in
    training if it cannot run; in inference it falls back to the plain loop.
    """
    if kernel == "plain":
        return None
    needs = "it needs Triton, a CUDA device of compute capability 8.0 or above, and fp32 or lower precision"
    precision = torch.get_float32_matmul_precision()
    verdict = Verdict(False, needs)
    if supports(inputs):  # as a decorator, disable() would take a second at import: it loads the compiler
        verdict = torch.compiler.disable(_verdict_on_gpu)(inputs.device, hidden, precision)
    if verdict.passed:
        from qa_arch.extras.kernels.fused.autograd import recur_fused

        return recur_fused
    if kernel == "fused" and training:
        raise UnavailableError(
            f"model.kernel=fused: cannot run here ({verdict.reason}); use model.kernel=auto or plain"
        )
    return None


def supports(inputs: Tensor) -> bool:
    """Whether the kernels support this tensor: CUDA (Ampere or later), at most fp32, Triton installed."""
    return (
        inputs.is_cuda
        and inputs.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(inputs.device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


@cache
def _verdict_on_gpu(device: torch.device, hidden: int, precision: str) -> Verdict:
    """Verdict for this GPU, cached per process; logs a warning if the kernel may not run."""
    major, minor = torch.cuda.get_device_capability(device)
    facts = {
        "source": source_hash(),
        "gpu": torch.cuda.get_device_name(device),
        "capability": f"{major}.{minor}",
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "precision": precision,
        "hidden": hidden,
    }
    verdict = recorded_verdict(facts, module_command(CHECK, str(device), str(hidden), precision))
    if not verdict.passed:
        log.warning("match-LSTM: using the plain loop instead of the fused kernel: %s", verdict.reason)
    return verdict


def source_hash() -> str:
    """Hex SHA-256 of the kernel's source: every module of ``fused/``, and the reference loop."""
    parts = [*sorted((Path(__file__).parent / "fused").glob("*.py")), Path(loops.__file__)]
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()


def recorded_verdict(
    facts: Mapping[str, Any],
    command: Sequence[str],
    *,
    limit: float = TIMEOUT,
    folder: Path | None = None,
) -> Verdict:
    """Return the recorded verdict for ``facts``; if there is none, run ``command`` and record its verdict.

    Of several ranks, one runs the check and the others wait for its record. ``command`` prints a JSON object
    with ``passed`` and ``reason`` as its last line.
    """
    folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qa_arch/kernels"
    path = folder / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            recorded = _parse_verdict(path.read_text("utf-8")) if path.exists() else None
            if recorded is None:
                recorded = _run_check(command, limit)
                write_json(path, {**facts, **recorded._asdict()})
    except OSError as error:
        return Verdict(False, f"its check cannot be recorded: {error}")
    if recorded.passed:
        return recorded
    return Verdict(False, f"{recorded.reason} (recorded in {path}; delete it to check again)")


def _parse_verdict(text: str) -> Verdict | None:
    try:
        fields = json.loads(text)
        return Verdict(fields["passed"] is True, str(fields["reason"]))
    except (ValueError, KeyError, TypeError):
        return None


def _run_check(command: Sequence[str], limit: float) -> Verdict:
    """Run the check in its own process group; any outcome, even a crash, is a verdict."""
    with tempfile.TemporaryFile() as output:
        options: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            process = start(command, start_new_session=True, **options)
        except OSError as error:
            return Verdict(False, f"its check could not start ({error.strerror or error})")
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return Verdict(False, f"its check took more than {limit:g} seconds")
        finally:  # a process that hangs in the driver is not waited for
            with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    last = lines[-1] if lines else "no output"
    verdict = _parse_verdict(last)
    if code or verdict is None:
        return Verdict(False, f"its check returned no verdict, exit code {code}: {last}")
    return verdict
