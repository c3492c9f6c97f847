"""Which engine reads a run: torch, or ONNX Runtime where a graph of ``qa-arch export`` lies beside it."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from qa_arch.config.checkpoints import is_checkpoint
from qa_arch.config.identity import files_hash
from qa_arch.errors import ConfigError, QaArchError, RunError, UnavailableError
from qa_arch.models.onnx_model import DESCRIPTION, read_description
from qa_arch.nn.precision import Precision
from qa_arch.results.record import MODEL, ONNX
from qa_arch.types.records import RunRecord

Engine = Literal["auto", "torch", "onnx"]
"""``auto`` takes the graph beside a run where it gives torch's answers in less time: on a CPU, in fp32."""
log = logging.getLogger(__name__)


def source_of(folder: Path, record: RunRecord) -> str:
    """What identifies the model of a run: the hash of its files, of a downloaded checkpoint the revision."""
    if is_checkpoint(record.config) and not record.members:
        return str(record.setting("model", "revision"))
    model = folder / MODEL
    return files_hash(model, (path for path in model.rglob("*") if path.is_file()))


def require_graph(folder: Path, record: RunRecord, *, device: torch.device, precision: Precision) -> None:
    """Raise a QaArchError unless the graph beside the run in ``folder`` can read in place of its weights.

    RunError where there is none, or it was made of other weights or in int8; ConfigError for a device or a
    precision that is not the graph's; UnavailableError without ONNX Runtime.
    """
    graph = folder / ONNX
    anew = f"qa-arch export {folder} --to onnx makes it"
    if not (graph / DESCRIPTION).is_file():
        raise RunError(f"{graph}: there is no graph of the run; {anew}")
    if device.type != "cpu":
        raise ConfigError(f"{graph}: a graph reads on the CPU, and {device} is wanted (--device cpu)")
    if precision != "fp32":
        raise ConfigError(f"{graph}: the graph is in fp32, and {precision} is wanted (--precision fp32)")
    if find_spec("onnxruntime") is None:
        raise UnavailableError(f"{graph}: ONNX Runtime is not installed (pip install 'qa-arch[onnx]')")
    description = read_description(graph)
    if description.precision != "fp32":
        raise RunError(f"{graph}: is in {description.precision}, beside a run it has to be in fp32; {anew}")
    if description.source != source_of(folder, record):
        raise RunError(f"{graph}: was made of other weights than the run has now; {anew} anew")


def report_fallback(error: QaArchError) -> None:
    """Log why torch reads although a graph lies there: as a warning where something is wrong with it."""
    log.log(logging.WARNING if isinstance(error, RunError) else logging.INFO, "%s; torch reads", error)
