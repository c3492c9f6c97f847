"""The Hugging Face hub: whether it is reachable, what is in the local caches, and uploads.

Only uploads import its client, which takes a second and, without a network, retries for a minute.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from qa_arch.errors import ConfigError, UnavailableError, first_line

CLIENTS = {"huggingface_hub", "hf_xet", "httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio"}
"""Libraries whose errors ``transfers`` converts."""
SECONDS = 2.0
"""Timeout after which the hub counts as unreachable."""


def offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


def state() -> str:
    """Reason why the hub cannot be used; empty if it can."""
    return "HF_HUB_OFFLINE is set" if offline() else "" if _is_reachable() else "the hub does not answer"


def cached(kind: Literal["models", "datasets"], name: str) -> bool:
    """Whether a model or data set of the hub is in the local cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"
    home = Path(os.environ.get("HF_HOME") or home).expanduser()
    if kind == "models":
        folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
        return any(folder.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    return any(folder.glob(f"{name.replace('/', '___')}/*"))


@contextmanager
def transfers() -> Iterator[None]:
    """Raise OSError for the errors of the hub's clients that are none, such as those of a broken transfer."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] not in CLIENTS:
            raise
        raise OSError(first_line(error)) from error


def require_upload(repository: str, *, dry: bool = False) -> None:
    """Raise ConfigError for an invalid repository name and, unless ``dry``, UnavailableError if the hub does
    not answer or nobody is logged in."""
    from huggingface_hub import get_token
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except ValueError as error:
        raise ConfigError(f"--push: {error}") from None
    if not dry and (problem := state()):
        raise UnavailableError(f"--push {repository}: {problem}; --dry-run needs no network")
    if not dry and get_token() is None:
        raise UnavailableError(f"--push {repository}: not logged in; hf auth login, or set HF_TOKEN")


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """Upload a folder in one commit, creating the repository if needed; returns the URL of the commit.

    Raises UnavailableError if the hub refuses it.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload a model of qa-arch"
        )
    except Exception as error:  # the class depends on the library's HTTP client
        reason = first_line(error)
        raise UnavailableError(
            f"--push {repository}: {reason}; the folder is complete: hf upload {repository} {folder}"
        ) from error
    return str(commit.commit_url)


@cache
def _is_reachable() -> bool:
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    answered: list[bool] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            urllib.request.urlopen(request, timeout=SECONDS).close()
        except urllib.error.HTTPError:
            pass  # an error status is an answer too
        except (OSError, ValueError):
            return
        answered.append(True)

    # In a thread, because name resolution has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return bool(answered)
