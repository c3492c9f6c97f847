"""The model folder of a run: safetensors, plain JSON and the tokenizer's own files; no pickle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from qa_arch.config.files import read_json, replacing, replacing_folder, write_json
from qa_arch.errors import BRIEF, QaArchError, RunError, first_line
from qa_arch.features.vectors import WordVectors
from qa_arch.nn.encoder import AnyEncoder, Encoder, encoder_from, not_finite
from qa_arch.nn.encoder_factory import quiet_loading
from qa_arch.nn.weight_files import WEIGHTS
from qa_arch.records import PRETRAINED, TOKENIZER, VECTORS

ENCODER = "encoder.json"


def save_encoder(folder: Path, encoder: AnyEncoder) -> None:
    """Save the architecture for ``load_encoder``."""
    write_json(folder / ENCODER, encoder.describe())


def save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with replacing_folder(folder / TOKENIZER) as path:
        tokenizer.save_pretrained(path)


def save_pretrained(folder: Path, encoder: Encoder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save encoder and tokenizer as transformers does, for ``encoder.name=RUN`` to start from."""
    with replacing_folder(folder / PRETRAINED) as path, quiet_loading():
        encoder.backbone.save_pretrained(path)
        tokenizer.save_pretrained(path)


def save_vectors(folder: Path, vectors: WordVectors) -> None:
    with replacing_folder(folder / VECTORS) as path:
        vectors.save(path)


def save_weights(folder: Path, model: nn.Module) -> None:
    save_state(folder, model.state_dict())


def save_state(folder: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Save weights atomically for ``load_weights``, into a folder that exists; tied weights are stored under
    each name."""
    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        # safetensors refuses shared storage.
        tensors[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    with replacing(folder / WEIGHTS, parents=False) as path:
        save_file(tensors, path)


def count_nonzero(folder: Path, names: Iterable[str]) -> int:
    """Number of nonzero entries in the saved weights ``names``."""
    state = load_file(folder / WEIGHTS)
    return sum(int(state[name].count_nonzero()) for name in names)


def load_weights(folder: Path, model: nn.Module) -> None:
    """Load what ``save_weights`` wrote into ``model``. Raises RunError if it does not fit."""
    path = folder / WEIGHTS
    if not path.is_file():  # reading a pipe could wait for ever
        raise RunError(f"{path}: is missing; the run has no saved model, train it again")
    with _damaged(path):
        state = load_file(path)
    try:
        for name, own in model.state_dict().items():
            if name in state and state[name].dtype != own.dtype:  # which load_state_dict would convert
                raise RuntimeError(f"{name} holds {state[name].dtype}, not {own.dtype}")
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise RunError(f"{path}: does not fit the run's config: {reason}") from error
    if wrong := not_finite(model):
        raise RunError(f"{path}: is damaged ({wrong} is not finite); copy it again, or train the run again")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the run was trained with; nothing is downloaded or executed."""
    path = folder / TOKENIZER
    if not (path / "tokenizer.json").is_file():
        raise RunError(f"{path}: holds no tokenizer.json; the run is incomplete, train it again")
    with _damaged(path / "tokenizer.json"):
        return PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)


def load_encoder(folder: Path) -> AnyEncoder:
    """Build the encoder's architecture with random weights."""
    description = read_json(folder / ENCODER, "the run is incomplete, train it again")
    with _damaged(folder / ENCODER):
        return encoder_from(description)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Turn any exception into a RunError that names ``path``: libraries raise many for a damaged file."""
    try:
        yield
    except QaArchError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error, BRIEF)}"
        raise RunError(f"{path}: is damaged ({reason}); copy it again, or train the run again") from error


def load_vectors(folder: Path) -> WordVectors | None:
    path = folder / VECTORS
    return WordVectors.load(path) if path.is_dir() else None
