"""A span model as an ONNX graph, run by ONNX Runtime on the CPU in place of its torch module.

A folder of ``qa-arch export --to onnx`` holds the graph, its description and, like the model folder of a run,
tokenizer and word vectors. The graph's inputs are fields of ``Batch``, its outputs those of the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from qa_arch.config.check import from_mapping
from qa_arch.errors import BRIEF, ConfigError, RunError, UnavailableError, first_line, install
from qa_arch.files import read_json
from qa_arch.tensors import Batch, Logits, SpanLogits, StepLogits

DESCRIPTION = "export.json"
INPUTS = ("ids", "mask", "segments", "question", "context", "word", "overlap", "vector")
"""Fields of ``Batch`` that a graph may read."""
UNUSABLE = "cannot be run ({}); export the run again"
BOUNDARIES = ("start", "end", "null_start", "null_end")
OUTPUTS = (BOUNDARIES, (*BOUNDARIES, "verifier"), ("token", "stop"))
"""Possible outputs: boundaries or steps. ``verifier`` is multiplied by its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCheck:
    """Comparison of a graph with the torch model that it was exported from, on the same questions."""

    data: str
    questions: int
    windows: int
    largest_difference: float
    """Largest absolute difference of two logits."""
    same_answers: int
    """Questions with the same answer at the null threshold."""
    torch_scores: Mapping[str, float]
    """EM and F1 (percent) on these questions."""
    onnx_scores: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Contents of ``export.json``."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segments: bool
    """Whether question and context have distinct segment ids."""
    precision: Literal["fp32", "int8"]
    opset: int
    versions: Mapping[str, str]
    check: ExportCheck | None = None
    """None before the check."""


class OnnxModel(nn.Module):
    """An ONNX graph as a span model without parameters; uses as many threads as torch.

    Raises RunError if the file is missing or damaged, UnavailableError if ONNX Runtime is not installed.
    Loading tries out whether its outputs are logits (``Reader.try_out``).
    """

    def __init__(self, path: Path, description: Description) -> None:
        super().__init__()
        self.path, self.description = path, description
        self.session = _session(path)

    def forward(self, batch: Batch) -> Logits:
        for name in self.description.inputs:
            if getattr(batch, name) is None:
                place = self.path.with_name(DESCRIPTION)
                raise RunError(
                    f"{place}: inputs: the batches of this model have no '{name}'; export the run again"
                )
        # A torch model in the same ensemble may be on a GPU.
        feeds = {name: getattr(batch, name).cpu().numpy() for name in self.description.inputs}
        try:
            values = self.session.run(self.description.outputs, feeds)
        except Exception as error:  # as for loading
            raise RunError(f"{self.path}: {UNUSABLE.format(first_line(error, BRIEF))}") from error
        logits: Any = {
            name: torch.from_numpy(value).to(batch.ids.device)
            for name, value in zip(self.description.outputs, values, strict=True)
        }
        return StepLogits(**logits) if "token" in logits else SpanLogits(**logits)


def read_description(folder: Path) -> Description:
    """Read ``export.json``. Raises RunError naming the field if it is invalid."""
    path = folder / DESCRIPTION
    try:
        description = from_mapping(Description, read_json(path, "export the run again"))
    except ConfigError as error:
        raise RunError(f"{path}: cannot be read ({error}); export the run again") from error
    if unknown := [name for name in description.inputs if name not in INPUTS]:
        raise RunError(f"{path}: inputs: '{unknown[0]}' is not a field of a batch; export the run again")
    if description.outputs not in OUTPUTS:
        outputs = ", ".join(description.outputs)
        raise RunError(f"{path}: outputs: {outputs} are not the logits of a span model; export the run again")
    return description


def _session(path: Path) -> Any:
    """Start ONNX Runtime with as many threads as torch."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UnavailableError(f"{path}: needs ONNX Runtime ({error}); {install('onnx')}") from error
    if not path.is_file():
        raise RunError(f"{path}: missing; the export is incomplete, export the run again")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors alone
    options.enable_mem_pattern = False  # one plan per batch shape: 40% more memory, no gain in speed
    # Without VNNI the sum of two products of bytes can saturate; this makes it exact, where needed.
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a different class for every kind of damage
        raise RunError(f"{path}: {UNUSABLE.format(first_line(error, BRIEF))}") from error
