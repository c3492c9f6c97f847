"""The model folder of a run: safetensors, plain JSON and the tokenizer's own files; no pickle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from qa_arch.config.files import replacing_folder, write_json, write_with
from qa_arch.errors import RunError
from qa_arch.features.glove import WordVectors
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.encoder_factory import quiet_loading
from qa_arch.nn.word_encoder import AnyEncoder, encoder_from
from qa_arch.results.record import PRETRAINED, RECORD

WEIGHTS, ENCODER, TOKENIZER, VECTORS = "model.safetensors", "encoder.json", "tokenizer", "vectors"
CLASSIFIER = "types"
"""The folder of the classifier of questions whose classes a model reads, in the model's folder."""


def save_encoder(folder: Path, encoder: AnyEncoder) -> None:
    """The encoder's architecture."""
    write_json(folder / ENCODER, encoder.describe())


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """The tokenizer in its own files."""
    with replacing_folder(folder / TOKENIZER) as path:
        tokenizer.save_pretrained(path)


def save_pretrained(folder: Path, encoder: Encoder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Encoder and tokenizer in a folder that transformers opens: what ``encoder.name=RUN`` starts from."""
    with replacing_folder(folder / PRETRAINED) as path, quiet_loading():
        encoder.backbone.save_pretrained(path)
        tokenizer.save_pretrained(path)


def save_vectors(folder: Path, vectors: WordVectors) -> None:
    """The words and their vectors, as ``load_vectors`` finds them."""
    with replacing_folder(folder / VECTORS) as path:
        vectors.save(path)


def save_run(folder: Path, run: Path, *, model: str) -> None:
    """A copy of ``run`` that can be loaded: its record and its folder ``model``."""
    with replacing_folder(folder) as path:
        shutil.copyfile(run / RECORD, path / RECORD)
        shutil.copytree(run / model, path / model)


def save_weights(folder: Path, model: nn.Module) -> None:
    """The weights alone, written whole or not at all."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    write_with(folder / WEIGHTS, lambda path: _save_tensors(tensors, path))


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # a full disk is no OSError to it
        raise OSError(str(error)) from error


def load_weights(folder: Path, model: nn.Module) -> None:
    """Load what ``save_weights`` wrote into ``model``; RunError where it does not fit."""
    path = folder / WEIGHTS
    try:
        model.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path}: cannot be read ({error}); the run has no saved model, train it again"
        ) from error
    except RuntimeError as error:
        raise RunError(
            f"{path}: does not fit the run's config: {str(error).splitlines()[-1].strip()}"
        ) from error


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer as it was when the run was made; nothing is downloaded or executed."""
    path = folder / TOKENIZER
    if not (path / "tokenizer.json").is_file():
        raise RunError(f"{path}: holds no tokenizer.json; the run is incomplete, train it again")
    return PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)


def load_encoder(folder: Path) -> AnyEncoder:
    """The encoder's architecture with random weights."""
    return encoder_from(_json(folder / ENCODER))


def load_vectors(folder: Path) -> WordVectors | None:
    path = folder / VECTORS
    return WordVectors.load(path) if path.is_dir() else None


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); the run is incomplete, train it again") from error
