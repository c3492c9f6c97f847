"""The Hugging Face hub: whether it answers, and what of it is in the local caches. None of its clients is
imported: they take seconds, and without a network they retry for a minute."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import Literal

SECONDS = 2.0
"""After which the hub counts as unreachable."""


def offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


def state() -> str:
    """Why the hub cannot be used, for messages; empty where it answers."""
    return "HF_HUB_OFFLINE is set" if offline() else "" if _answers() else "the hub does not answer"


def cached(kind: Literal["models", "datasets"], name: str) -> bool:
    """Whether a model or a data set of the hub was downloaded before."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"
    home = Path(os.environ.get("HF_HOME") or home).expanduser()
    if kind == "models":
        folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        return any(folder.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    return any(folder.glob(f"{name.replace('/', '___')}/*"))


@cache
def _answers() -> bool:
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    answered: list[bool] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            urllib.request.urlopen(request, timeout=SECONDS).close()
        except urllib.error.HTTPError:
            pass  # that is an answer too
        except (OSError, ValueError):
            return
        answered.append(True)

    # In a thread, because name resolution has no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return bool(answered)
