"""What identifies a run: hashes of settings, inputs and code, versions, and the run that its encoder is of.

Also which runs of an experiment may be scored on its held-out dev set, and which were:

- ``experiments/NAME/registered.json`` is written before they are trained, with hashes of the settings of each
  planned run, of the sets and of the code. ``qa-arch evaluate --final`` scores no other run of that
  experiment, and none that was trained, or would be scored, by other code. Hashes are compared as stored.
- ``experiments/NAME/dev_openings.jsonl`` has one JSON object per access, and is append-only.

No torch here.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import glob, has_magic
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from qa_arch.config.check import from_mapping
from qa_arch.config.find import conf_folder
from qa_arch.config.machine import within
from qa_arch.config.schema import defaults, recipe_of
from qa_arch.config.target import CALLBACKS, TRUSTED
from qa_arch.data import sources
from qa_arch.data.files import content_hash
from qa_arch.errors import ConfigError, DataError, RunError
from qa_arch.files import files_hash, parse_json, read_json
from qa_arch.manifest import from_extras
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MODEL,
    PRETRAINED,
    RECORD,
    TRAIN,
    DevAccess,
    EncoderRun,
    Parent,
    RunRecord,
    TeacherFacts,
    read_record,
)

NEUTRAL = (
    "runs_dir",
    "name",
    "logger",
    "features.cache_dir",
    "model.kernel",
    "trainer.workers",
    "trainer.progress",
    "trainer.checkpoint_minutes",
    "trainer.eval_batch_size",
    "trainer.log_every",
    "trainer.profiler",
    "trainer.detect_anomaly",
    "trainer.inference_mode",
)
"""Settings that do not affect results: where a run is stored and how it is displayed."""
PLACES = (
    *("data.train", "data.calibration", "data.dev"),
    *("glove.path", "glove.name", "distillation.teacher", "init_from"),
)
"""Locations of input files, in place of which ``run_hash`` has the hashes of their content."""
GLOVE, ENCODER, TEACHER, PARENT = "glove", "encoder", "teacher", "parent"
"""Inputs of a run besides its sets: word vectors, the pre-training run or the folder of its encoder, the
teacher, and the run whose model it started from."""

PACKAGES = (
    *("qa-arch", "torch", "transformers", "tokenizers", "datasets"),
    *("pytorch-lightning", "hydra-core", "wandb", "numpy", "pyarrow"),
)

EXPERIMENTS = Path("experiments")
"""Folder in the root of a checkout; one subfolder per experiment."""
DEV_ACCESS_LOG = "dev_openings.jsonl"
_NAMED = 4
"""Maximum number of accesses listed one by one below a table; more are counted by day."""


class Identity(NamedTuple):
    """Hex SHA-256 of a config, and of config and inputs."""

    settings_hash: str
    run_hash: str


def identify(config: Mapping[str, Any], inputs: Mapping[str, str] | None = None) -> Identity:
    """What identifies a run of ``config``, the same on every machine; None: its inputs are not known yet.

    ``NEUTRAL`` settings do not count, nor those at their default, so that a new setting changes no hash.
    Where the inputs lie counts for ``settings_hash``, their content for ``run_hash``. A record keeps both.
    """
    values = {key: value for key, value in flat(config) if not within(key, NEUTRAL)}
    own = {key: value for key, value in values.items() if (key, value) not in defaults().items()}
    settings_hash = json_hash({key: _portable(value) for key, value in own.items()})
    if inputs is None:
        return Identity(settings_hash, settings_hash)
    # A hub id stays a setting: only a run or a folder has a hash in its place.
    read = (*PLACES, "encoder.name") if ENCODER in inputs else PLACES
    content = {key: value for key, value in own.items() if not within(key, read)}
    return Identity(settings_hash, json_hash([content, dict(inputs)]))


def inputs_of(
    sets: Mapping[str, str | None],
    vectors: str | None = None,
    encoder: EncoderRun | None = None,
    teacher: TeacherFacts | None = None,
    parent: Parent | None = None,
) -> dict[str, str]:
    """Input -> hash of its content, of those that a run has; ``sets`` and ``vectors`` are fingerprints."""
    others = {
        GLOVE: vectors,
        ENCODER: None if encoder is None else encoder.run_hash,
        TEACHER: None if teacher is None else teacher.fingerprint,
        PARENT: None if parent is None else parent.run_hash,
    }
    # ``system_hash`` gives all in ``sets``.
    return {name: hash_ for name, hash_ in {**others, **sets}.items() if hash_ is not None}


def json_hash(value: Any) -> str:
    """Hex SHA-256 of a value's JSON, whatever the order of its keys."""
    return sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted setting and its value."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _portable(value: Any) -> Any:
    """A setting with paths relative to the data folder or the working folder, where they are below it."""
    if isinstance(value, list):
        return [_portable(item) for item in value]
    with suppress(DataError):  # outside both: as it is
        return sources.portable(value) if isinstance(value, str) else value
    return value


def now() -> str:
    """UTC, to the second, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> tuple[str | None, bool | None]:
    """The checkout's commit and whether it has uncommitted changes, apart from logs of dev accesses, which
    ``evaluate --final`` writes between runs; (None, None) outside a checkout."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        completed = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=20
        )
        return completed.stdout.strip()

    try:
        # An installed package may lie within the checkout of something else.
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return None, None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", f":(exclude)*{DEV_ACCESS_LOG}")
        return git("rev-parse", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None, None


def code_hash(config: Mapping[str, Any]) -> str:
    """Hex SHA-256 over the code that trains and scores runs of ``config``: qa_arch, baselines, conf, and the
    modules of the user's packages that it names (``own_packages``)."""
    total = sha256()
    for folder in (Path(__file__).resolve().parent, *_places("baselines"), conf_folder()):
        files = [path for path in folder.rglob("*") if path.suffix in (".py", ".yaml")]
        total.update(files_hash(folder, files).encode())
    for place in chain(*own_packages(config).values()):
        total.update(files_hash(place, _modules(place)).encode())
    return total.hexdigest()


def own_packages(config: Mapping[str, Any]) -> dict[str, list[Path]]:
    """Packages of the user that a config names, but for loggers: name -> folders or file, none if missing."""
    # In the text of the config, as classes may be nested at any depth.
    named = re.findall(r"'_target_': '(\w+)\.", str({**config, "logger": None}))
    return {name: _places(name) for name in sorted({*named} - {*TRUSTED, CALLBACKS.partition(".")[0]})}


def _places(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(it) for it in spec.submodule_search_locations or [str(spec.origin)]] if spec else []


def _modules(place: Path) -> list[Path]:
    return sorted(path for path in (place, *place.rglob("*.py")) if path.is_file())


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Installed versions of the packages that can change a score, and of ``more`` packages."""
    installed = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def own_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """Versions of ``own_packages``, or hashes of code that is not installed."""
    versions = {}
    for name, places in own_packages(config).items():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            code = b"\0".join(path.read_bytes() for place in places for path in _modules(place))
            versions[name] = sha256(code).hexdigest()[:10]
    return versions


def new_record(
    config: Mapping[str, Any], inputs: Mapping[str, str] | None = None, **fields: Any
) -> RunRecord:
    """Record of a run of ``config`` that is made now, with this code and these packages.

    ``inputs`` are those of ``identify``, ``fields`` further fields of the record. Sections of extras that the
    config does not state are left out: the run can be read without these extras.
    """
    head, dirty = commit()
    unused = {name for name in from_extras("sections") if config.get(name) is None}
    config = {key: value for key, value in config.items() if key not in unused}
    return RunRecord(
        name=config["name"],
        model=str(config["model"].get("name") or config["model"]["_target_"]),
        seed=config["seed"],
        config=config,
        **identify(config, inputs)._asdict(),
        commit=head,
        dirty=dirty,
        code=code_hash(config),
        created=now(),
        versions=versions() | own_versions(config),
        **fields,
    )


def processor() -> str:
    """Processor name as reported by the operating system."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def dev_access(run: str, run_hash: str, questions: Any) -> DevAccess:
    """Record of the access to ``questions`` that is about to be made."""
    return DevAccess(
        date=now(),
        commit=commit()[0],
        config_hash=run_hash,
        run=run,
        data=questions.name,
        fingerprint=questions.fingerprint,
    )


def experiment_folders(name: str, given: str | Path | None = None) -> list[Path]:
    """Folders of the experiment in ``given`` and in the checkout of this package, wherever a command is run.

    Raises ConfigError if neither has it.
    """
    own = Path(__file__).resolve().parents[1] / EXPERIMENTS
    places = [own] if given is None else [Path(given), own]
    folders = [place / name for place in places if (place / name).is_dir()]
    if not folders:
        raise ConfigError(
            f"--final: no experiment {name} in {' or '.join(map(str, places))}, so nothing says which of its"
            f" runs are registered; name the folder that has it with --experiments DIR, or make DIR/{name}"
        )
    return folders


def log_dev_access(folder: str | Path, access: DevAccess) -> Path:
    """Append one line to the folder's log in a single write, so that lines of two processes never mix."""
    path = Path(folder) / DEV_ACCESS_LOG
    line = (json.dumps(asdict(access), ensure_ascii=False) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())  # on the disk before the set is scored
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); the set was not opened") from error
    return path


def read_dev_accesses(folder: str | Path) -> tuple[DevAccess, ...]:
    """The accesses in file order, empty if there is no file. RunError names an unreadable line."""
    path = Path(folder) / DEV_ACCESS_LOG
    if not path.is_file():
        return ()
    accesses = []
    lines = path.read_bytes().splitlines()  # those of a text would also end at U+2028
    for number, line in enumerate(lines, start=1):
        try:
            accesses.append(from_mapping(DevAccess, parse_json(line)))
        except (ValueError, ConfigError) as error:
            raise RunError(
                f"{path}: line {number} is not a dev access ({error}); restore the file"
            ) from error
    return tuple(accesses)


def dev_access_note(experiment: str | Path, fingerprints: Collection[str | None]) -> str | None:
    """Table note on how often the sets were opened, by which runs, and how often by other experiments.

    ``experiment`` is its folder, next to those of the other experiments; None if it opened no set.
    """
    folder = Path(experiment)

    def accesses(place: Path) -> list[DevAccess]:
        return [access for access in read_dev_accesses(place) if access.fingerprint in fingerprints]

    def times(count: int) -> str:
        return "once" if count == 1 else f"{count} times"

    if not (here := accesses(folder)):
        return None
    known = [(access, access.date[:10], (access.commit or "none")[:7]) for access in here]
    entries = [
        f"{access.run} on {date} (commit {commit}, config {access.config_hash[:8]})"
        for access, date, commit in known
    ]
    # Many accesses are counted by day, as the note has to stay readable.
    if len(here) > _NAMED:
        days = Counter((date, commit) for _, date, commit in known)
        entries = [f"{times(count)} on {date} (commit {commit})" for (date, commit), count in days.items()]
    others = sorted(log.parent for log in folder.parent.glob(f"*/{DEV_ACCESS_LOG}"))
    counts = {other.name: len(accesses(other)) for other in others if other != folder}
    elsewhere = ", ".join(f"{times(count)} for {name}" for name, count in counts.items() if count)
    more = f"; the same set was scored {elsewhere}" if elsewhere else ""
    return f"dev was scored {times(len(here))}: {', '.join(entries)}{more}"


_TRANSFORMERS = "config.json"
"""A folder with this file is a transformers checkpoint, even with a record beside it."""


def pretrained_run(name: str) -> tuple[Path, RunRecord] | None:
    """Folder and record of the pre-training run that ``encoder.name`` names, by folder or by a glob with a
    single match; None if it names something else, such as a hub id or a checkpoint's folder.

    Raises ConfigError, with the remedy, for a run that is not finished, answers questions or has no weights.
    """
    folder = Path(name)
    if has_magic(name) and not folder.exists():  # a folder's name may have brackets
        folder = _only_match(name)
    if not (folder / RECORD).is_file() or (folder / _TRANSFORMERS).is_file():
        return None
    record, word = read_record(folder), shlex.quote(str(folder))
    recipe = recipe_of(record.config.get("model", {}))
    if recipe is None or not recipe.encoder:
        task, is_random = record.setting("model", "task"), record.setting("encoder", "init") == "random"
        own = None if is_random else record.setting("encoder", "name")
        raise ConfigError(
            f"encoder.name: {folder} is a run of task {task}, not a pre-training run; name one, or the"
            f" encoder that this run started from ({own or 'a random one'})"
        )
    if record.status != "ok":
        raise ConfigError(
            f"encoder.name: {folder} is not finished (status '{record.status}'); resume it first:"
            f" qa-arch train --config-from {word} --folder {word} --if-exists resume"
        )
    if not (folder / MODEL / PRETRAINED).is_dir():
        raise ConfigError(
            f"encoder.name: {folder} has no weights (no folder {MODEL}/{PRETRAINED}); published runs"
            f" never have; train it again: qa-arch train --config-from {word} --folder RUN"
        )
    return folder, record


def encoder_folder(name: str) -> Path | None:
    """Folder of encoder and tokenizer in the run that ``encoder.name`` names; see ``pretrained_run``."""
    run = pretrained_run(name)
    return None if run is None else run[0] / MODEL / PRETRAINED


def encoder_run(name: str | None) -> EncoderRun | None:
    """Record entry for the pre-training run or the local folder that ``encoder.name`` names, if any."""
    if name is None:
        return None
    if (run := pretrained_run(name)) is None:
        if not (folder := Path(name)).is_dir():
            return None
        files = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
        content = json_hash({path.name: content_hash(path) for path in files})
        return EncoderRun(model=folder.resolve().name, run_hash=content, system=content)
    _, record = run
    return EncoderRun(
        model=record.model, seed=record.seed, run_hash=record.run_hash, system=system_hash(record)
    )


def system_hash(record: RunRecord) -> str:
    """What identifies a run but for its seed, and for the seeds of what it started from."""
    inputs = {split: record.fingerprint(split) for split in (TRAIN, CALIBRATION)}  # whatever it is scored on
    for name, source in ((ENCODER, record.encoder), (PARENT, record.parent)):
        inputs[name] = None if source is None else source.system
    return identify({**record.config, "seed": None}, inputs_of(inputs)).run_hash


def _only_match(pattern: str) -> Path:
    matches = [Path(match) for match in sorted(glob(pattern)) if (Path(match) / RECORD).is_file()]  # noqa: PTH207
    if len(matches) != 1:
        listed = ": " + ", ".join(map(str, matches[:3])) if matches else ""
        raise ConfigError(
            f"encoder.name: {pattern} matches {len(matches)} runs{listed}; name a single pre-training run"
        )
    return matches[0]


REGISTERED = "registered.json"


@dataclass(frozen=True, kw_only=True)
class Registration:
    date: str
    """UTC, ISO 8601."""
    commit: str | None
    sets: dict[str, dict[str, Any]]
    """Split -> name, number of questions, fingerprint."""
    runs: dict[str, dict[str, str]]
    """Name of an arm -> seed -> the run's ``settings_hash``."""
    code: str | None = None
    """Hash of the code that trains and scores (``provenance.code_hash``); None in the first registrations."""
    own: dict[str, str] = field(default_factory=dict)
    """That of each arm which names packages of the user."""


def read_registration(folder: Path) -> Registration | None:
    """Read the registration of the experiment in ``folder``, if any; RunError for a damaged file."""
    path = folder / REGISTERED
    if not path.is_file():
        return None
    try:
        return from_mapping(Registration, read_json(path, "restore the file"))
    except ConfigError as error:
        raise RunError(f"{path}: not a registration ({error}); restore the file") from error


def require_registered(folder: Path, record: RunRecord, dev: str | None) -> None:
    """Raise ConfigError if the experiment in ``folder`` has a registration, but not of this run and code.

    ``dev`` is the fingerprint of the set to score. The message says what differs.
    """
    registration = read_registration(folder)
    if registration is None:
        return
    read = {TRAIN: record.fingerprint(TRAIN), CALIBRATION: record.fingerprint(CALIBRATION), DEV: dev}
    pinned_sets = {split: facts.get("fingerprint") for split, facts in registration.sets.items()}
    others = [split for split in {**pinned_sets, **read} if pinned_sets.get(split) != read.get(split)]
    arm = next((arm for arm, by in registration.runs.items() if record.settings_hash in by.values()), None)
    if not others and arm is not None:
        pinned, own = registration.own.get(arm, registration.code), ", ".join(own_packages(record.config))
        for code, does in ((record.code, "was trained by"), (code_hash(record.config), "would be scored by")):
            if pinned not in (None, code):
                raise ConfigError(
                    f"--final: the run {does} other code than {folder / REGISTERED} pins; train and score in"
                    f" a checkout of commit {registration.commit}{own and f', with {own} as registered'}"
                )
        return
    what = f"other data: {' and '.join(others)}" if others else "other settings or another seed"
    raise ConfigError(
        f"--final: the run is not registered in {folder / REGISTERED} ({what}); give it another name= to make"
        " it an experiment of its own, or repeat the registered one in a checkout of commit"
        f" {registration.commit}"
    )
