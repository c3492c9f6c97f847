"""The Hugging Face hub: whether it answers, what is on it and in the local caches, and uploads.

Its client, whose import takes a second, is imported only to ask the hub.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from qa_arch.errors import ConfigError, UnavailableError, first_line

log = logging.getLogger(__name__)
Kind = Literal["models", "datasets"]
Result = TypeVar("Result")
TIMEOUT, SECONDS = "QA_ARCH_HUB_TIMEOUT", 2.0
"""Environment variable with the seconds after which the hub counts as unreachable, and their default."""
WAITS = (1.0, 4.0)
"""Seconds before the second and the third attempt of a transfer that broke off."""
CLIENTS = {"huggingface_hub", "hf_xet", "httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio"}
"""Libraries whose errors may be no OSError."""
UNANSWERED = "On"
"""Value of HF_HUB_OFFLINE that ``go_offline`` sets, which tells it from a user's; clients accept any case."""
LOG_IN = "set HF_TOKEN, or run hf auth login"


def offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "TRUE", "YES", "ON"}


def state() -> str:
    """Reason why the hub cannot be used; empty if it can."""
    if os.environ.get("HF_HUB_OFFLINE") == UNANSWERED:
        return "the hub did not answer before; a new process asks it again"
    return "HF_HUB_OFFLINE is set" if offline() else _silence()


def go_offline() -> None:
    """Make the clients of this process and of those that it starts read their caches only."""
    from huggingface_hub import constants

    if not offline():
        os.environ["HF_HUB_OFFLINE"] = UNANSWERED
    constants.HF_HUB_OFFLINE = True  # read from the environment when it was imported, as is that of datasets
    if "datasets" in sys.modules:
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def split_revision(name: str) -> tuple[str, str | None]:
    """(id, revision) of ``OWNER/NAME@REVISION``; a folder's name is not divided."""
    match = re.fullmatch(r"([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)", name)
    return (match[1], match[2]) if match and not Path(name).exists() else (name, None)


def cached(kind: Kind, name: str, revision: str | None = None) -> bool:
    """Whether a model or a prepared data set of the hub is in the local cache.

    Without ``revision`` of a model: in ``main``, of a data set: in any, as their libraries read them offline.
    """
    if kind == "datasets":
        return prepared(name, revision=revision) is not None
    commit = commit_of(kind, name, revision)
    folder = _downloads() / f"models--{name.replace('/', '--')}/snapshots"
    return commit is not None and (folder / commit / "config.json").is_file()


def on_this_machine(source: str) -> bool:
    """Whether a model needs no download: a folder, or an id, with or without ``@REVISION``, in the cache."""
    return Path(source).is_dir() or cached("models", *split_revision(source))


def commit_of(kind: Kind, name: str, revision: str | None) -> str | None:
    """Commit of a branch, tag or commit (default: main) when it was last downloaded; None if it never was."""
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision  # a commit names itself
    file = _downloads() / f"{kind}--{name.replace('/', '--')}/refs/{revision or 'main'}"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def prepared(name: str, config: str = "", revision: str | None = None) -> Path | None:
    """Folder of a data set that ``datasets`` prepared before, in this revision if one but main is given."""
    root = Path(os.environ.get("HF_DATASETS_CACHE") or _home() / "datasets")
    commit = commit_of("datasets", name, revision) if revision not in (None, "main") else "*"
    # datasets writes SomeName as some_name.
    wanted = name.replace("/", "___").replace("_", "").lower()
    sets = [path for path in root.glob("*___*") if path.name.replace("_", "").lower() == wanted]
    pattern = "*" if commit == "*" else f"{config or '*'}/*/{commit}"
    return next((path for folder in sets if commit for path in folder.glob(pattern)), None)


def missing(kind: Kind, name: str, revision: str | None = None) -> str:
    """Reason why a repository cannot be read, with a remedy; empty if it can. One HEAD request, repeated
    if it breaks off."""
    from huggingface_hub import errors, get_hf_file_metadata, get_token, hf_hub_url

    file = "config.json" if kind == "models" else "README.md"
    url = hf_hub_url(name, file, repo_type=kind[:-1], revision=revision)
    try:
        retried(lambda: get_hf_file_metadata(url, token=get_token(), timeout=_seconds()))
    # A subclass of RepositoryNotFoundError, so it comes first.
    except errors.GatedRepoError:
        page = url.partition("/resolve/")[0]
        return f"access to {name} is restricted; ask for it at {page}, then {LOG_IN}"
    except errors.RevisionNotFoundError:
        return f"{name} has no revision '{revision}'; name a branch, a tag or a commit"
    except errors.RepositoryNotFoundError:
        return f"{name} is not on the hub, or private; check the spelling, or {LOG_IN}"
    except errors.EntryNotFoundError:  # the repository is there, without this file
        return ""
    except ConnectionError as error:
        return f"{name} cannot be reached ({error}); try again later"
    except errors.HfHubHTTPError as error:
        reason = error.response.reason_phrase
        return f"the hub refuses {name} ({error.response.status_code} {reason}); {LOG_IN} with a valid token"
    except Exception as error:
        return f"{name} cannot be reached ({first_line(error)}); try again later"
    return ""


def closed_data_set(name: str, revision: str | None, error: Exception) -> str:
    """``missing`` of a data set if that is why ``datasets`` raised ``error``, else empty."""
    from datasets.exceptions import DatasetNotFoundError

    return missing("datasets", name, revision or None) if isinstance(error, DatasetNotFoundError) else ""


def retried(read: Callable[[], Result]) -> Result:
    """Result of ``read``, which is repeated if a transfer breaks off or the hub fails.

    Raises ConnectionError if the last attempt fails so too, and OSError for other errors of its clients.
    """
    for wait in (*WAITS, None):
        try:
            with _silent_client():
                return read()
        except Exception as error:
            if not (cause := interruption(error)):
                if isinstance(error, OSError) or type(error).__module__.partition(".")[0] not in CLIENTS:
                    raise
                raise OSError(first_line(error)) from error
            if wait is None:
                raise ConnectionError(cause) from error
            log.warning("hub: %s; trying again", cause)
            time.sleep(wait)
    raise AssertionError  # the last attempt returns or raises


@contextmanager
def _silent_client() -> Iterator[None]:
    """Silence the client's reports of its own retries, several for each of ours."""
    client = logging.getLogger("huggingface_hub")
    level = client.level
    client.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        client.setLevel(level)


def interruption(error: BaseException) -> str:
    """What interrupted a transfer (a broken connection, a failing or busy server); empty for other errors.

    Clients wrap it in errors of their own: the whole chain is searched.
    """
    current: BaseException | None = error
    while current is not None:
        # By name: the client's HTTP library is httpx or a successor of it.
        if any(base.__name__ == "TransportError" for base in type(current).__mro__):
            return f"{type(current).__name__}: {first_line(current)}"
        status = getattr(getattr(current, "response", None), "status_code", 0)
        if _is_busy(status):
            return f"the hub answers {status}"
        current = current.__cause__ or current.__context__
    return ""


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

    hub, created = HfApi(), False
    try:
        if not hub.repo_exists(repository):
            hub.create_repo(repository, private=private)
            created = True
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload a model of qa-arch"
        )
    except Exception as error:  # the class depends on the library's HTTP client
        reason = interruption(error) or first_line(error)
        if created:  # else an empty repository stays behind
            with suppress(Exception):
                hub.delete_repo(repository)
        raise UnavailableError(
            f"--push {repository}: {reason}; the folder is complete: hf upload {repository} {folder}"
        ) from error
    return str(commit.commit_url)


@cache
def _silence() -> str:
    """Reason why the hub does not answer its clients; empty if it does."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    answers: list[str] = []

    def ask() -> None:
        try:
            status = get_session().head(constants.ENDPOINT, timeout=_seconds()).status_code
        except Exception:
            return
        answers.append(f"the hub answers {status}" if _is_busy(status) else "")

    # In a thread, because name resolution has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_seconds())
    return answers[0] if answers else "the hub does not answer"


def _is_busy(status: Any) -> bool:
    """Whether an HTTP status means that the request may succeed later."""
    return isinstance(status, int) and (status == 429 or status >= 500)


def _seconds() -> float:
    text = os.environ.get(TIMEOUT, "")
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{TIMEOUT}: {text!r} is not a number of seconds; unset it, or give one above 0")
    return seconds


def _home() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"
    return Path(os.environ.get("HF_HOME") or home).expanduser()


def _downloads() -> Path:
    return Path(os.environ.get("HF_HUB_CACHE") or _home() / "hub").expanduser()
