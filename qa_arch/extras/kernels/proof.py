"""Select the implementation of the match-LSTM recurrence: the fused kernel runs only where it was verified.

``model.kernel`` is ``auto``, ``plain`` or ``fused``. Verified means: on this GPU model, with this source,
these versions and this width, the kernel reproduced states and gradients of the plain loop on a small batch.
A separate process checks this once, under a time limit, so that no run hangs or crashes with it:
``python -m qa_arch.extras.kernels.proof DEVICE HIDDEN PRECISION`` prints as its last line ``{"passed": true,
"reason": ""}``, or false with the first difference. The verdict is recorded in a small file under
``$XDG_CACHE_HOME/qa_arch/kernels``; here it is the reason why the kernel may not run, "" if it may.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qa_arch.errors import RunError, UnavailableError
from qa_arch.files import hold, write_json
from qa_arch.nn import match_lstm  # which imports this module: its functions are looked up when called
from qa_arch.nn.masking import reversal
from qa_arch.nn.match_lstm import Kernel
from qa_arch.process import module_command, start

NEEDS = "it needs Triton, a CUDA device of compute capability 8.0 or above, and fp32 or lower precision"
TIMEOUT = 240.0
"""Seconds allowed for a check; most of the time is compilation."""
SIZES = ({"steps": 9, "B": 18, "Q": 35}, {"steps": 2, "B": 1, "Q": 1})
"""Several groups of rows and blocks of question units; and the smallest possible batch."""
EXACT, TF32, BF16 = 1e-5, 1e-2, 2**-7
"""Tolerances relative to the largest entry: fp32, TF32 products, gradients in bf16."""
UNIT = 2.0**-24
"""Unit roundoff of fp32: a sum of ``width`` products may lose ``width`` times as much (Higham 2002, section
3.1), which exceeds ``EXACT`` for widths of 168 and above."""
log = logging.getLogger(__name__)


def recurrence(
    kernel: Kernel, inputs: Tensor, hidden: int, *, training: bool
) -> Callable[..., Tensor] | None:
    """The fused recurrence of width ``hidden`` for ``inputs``, or None to run the plain loop.

    ``auto`` uses the kernel if it was verified, ``plain`` never. ``fused`` raises UnavailableError in
    training if it cannot run; in inference it falls back to the plain loop.
    """
    if kernel == "plain":
        return None
    verdict, precision = NEEDS, torch.get_float32_matmul_precision()
    if supports(inputs):  # as a decorator, disable() would take a second at import: it loads the compiler
        verdict = torch.compiler.disable(_verdict_on_gpu)(inputs.device, hidden, precision)
    if verdict and kernel == "fused" and training:
        raise UnavailableError(
            f"model.kernel=fused: cannot run here ({verdict}); use model.kernel=auto or plain"
        )
    if verdict:
        return None
    from qa_arch.extras.kernels.autograd import recur_fused

    return recur_fused


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
def _verdict_on_gpu(device: torch.device, hidden: int, precision: str) -> str:
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
    verdict = recorded_verdict(facts, module_command(__name__, str(device), str(hidden), precision))
    if verdict:
        log.warning("match-LSTM: using the plain loop instead of the fused kernel: %s", verdict)
    return verdict


def source_hash() -> str:
    """Hex SHA-256 of the kernel's source: every module of this folder, and the reference loop."""
    parts = [*sorted(Path(__file__).parent.glob("*.py")), Path(match_lstm.__file__)]
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()


def recorded_verdict(
    facts: Mapping[str, Any], command: Sequence[str], *, limit: float = TIMEOUT, folder: Path | None = None
) -> str:
    """Return the recorded verdict for ``facts``; if there is none, run ``command`` and record its verdict.

    Of several ranks, one runs the check and the others wait for its record.
    """
    folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qa_arch/kernels"
    path = folder / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]}.json"
    try:
        with hold(folder, "check", file=path.name, patience=2 * limit):
            verdict = _parse_verdict(path.read_text("utf-8")) if path.exists() else None
            if verdict is None:
                verdict = _run_check(command, limit)
                write_json(path, {**facts, "passed": not verdict, "reason": verdict})
    except (OSError, RunError) as error:
        return f"its check cannot be recorded: {error}"
    return verdict and f"{verdict} (recorded in {path}; delete it to check again)"


def _parse_verdict(text: str) -> str | None:
    try:
        fields = json.loads(text)
        return "" if fields["passed"] is True else str(fields["reason"] or "it failed")
    except (ValueError, KeyError, TypeError):
        return None


def _run_check(command: Sequence[str], limit: float) -> str:
    """Run the check in its own process group; any outcome, even a crash, is a verdict."""
    with tempfile.TemporaryFile() as output:
        options: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            process = start(command, start_new_session=True, **options)
        except OSError as error:
            return f"its check could not start ({error.strerror or error})"
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"its check took more than {limit:g} seconds"
        finally:  # a process that hangs in the driver is not waited for
            with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(5)
        output.seek(0)
        *_, last = ["no output", *output.read().decode("utf-8", "replace").strip().splitlines()]
    verdict = _parse_verdict(last)
    if code or verdict is None:
        return f"its check returned no verdict, exit code {code}: {last}"
    return verdict


# The check ----------------------------------------------------------------------------------------


def example(
    dtype: torch.dtype = torch.float64,
    steps: int = 4,
    B: int = 3,
    Q: int = 3,
    width: int = 5,
    scale: float = 1.0,
    device: str | torch.device = "cpu",
) -> list[Tensor]:
    """Random arguments of the recurrence: windows of all lengths, question masks with gaps."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        x = std * torch.randn(*shape, dtype=torch.float64, generator=generator)
        return x.to(device, dtype).requires_grad_()

    lengths = 1 + torch.arange(B) * steps // B
    mask = torch.rand(B, Q, generator=generator) < 0.7
    mask[:, -1] = True
    return [
        draw(steps, B, 5 * width, std=scale),
        reversal(torch.arange(steps) < lengths[:, None]).T.to(device),
        draw(B, Q, width, std=scale),
        draw(B, Q, 4 * width),
        mask.to(device),
        draw(width),
        draw(1),
        draw(5 * width, width, std=width**-0.5),
    ]


def in_bf16(arguments: Sequence[Tensor]) -> list[Tensor]:
    """The arguments as under autocast, which computes inputs, keys and values."""
    return [x.detach().bfloat16().requires_grad_() if n in (0, 2, 3) else x for n, x in enumerate(arguments)]


def states_and_gradients(recur: Callable[..., Tensor], arguments: Sequence[Tensor]) -> dict[str, Tensor]:
    """States, and gradients of all differentiable arguments for fixed random weights on the states."""
    states = recur(*arguments)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(states.shape, dtype=torch.float64, generator=generator).to(states)
    differentiable = [x for x in arguments if x.requires_grad]
    gradients = torch.autograd.grad((states * weights).sum(), differentiable)
    names = [f"gradient of {name}" for name in ("inputs", "keys", "values", "score", "bias", "state")]
    return {"states": states.detach(), **dict(zip(names, gradients, strict=True))}


def difference(arguments: Sequence[Tensor], tolerance: float, gradient_tolerance: float) -> str:
    """First state or gradient that differs from the plain loop in float64, relative to the largest entry if
    that is above 1; empty if none does."""
    from qa_arch.extras.kernels.autograd import recur_fused

    wide = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in arguments]
    fused, exact = (
        states_and_gradients(recur_fused, arguments),
        states_and_gradients(match_lstm.recur_reference, wide),
    )
    for name, expected in exact.items():
        error = (fused[name].double() - expected).abs().max() / expected.abs().max().clamp(min=1)
        limit = tolerance if name == "states" else gradient_tolerance
        if not error <= limit:  # also catches NaN
            return f"{name} differs by {error:.1e}, more than {limit:.0e}"
    return ""


def check(device: str, hidden: int, precision: str) -> str:
    """First difference of the kernels at this width, in fp32 and with bf16 inputs; empty if there is none."""
    torch.set_float32_matmul_precision(precision)
    tolerance = max(EXACT, hidden * UNIT) if precision == "highest" else TF32
    for sizes in SIZES:
        arguments = example(torch.float32, **sizes, width=hidden, device=device)
        shape = ", ".join(f"{key}={value}" for key, value in sizes.items())
        if reason := difference(arguments, tolerance, tolerance):
            return f"{reason} (fp32, {shape})"
        if reason := difference(in_bf16(arguments), tolerance, max(tolerance, BF16)):
            return f"{reason} (bf16, {shape})"
    return ""


if __name__ == "__main__":
    verdict = check(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    print(json.dumps({"passed": not verdict, "reason": verdict}))
