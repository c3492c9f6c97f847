"""Pre-training runs that other runs start from: ``encoder.name=RUN``. No torch here."""

from __future__ import annotations

import shlex
from glob import glob, has_magic
from pathlib import Path

from qa_arch.config.schema import recipe_of
from qa_arch.errors import ConfigError
from qa_arch.provenance import identify, inputs_of
from qa_arch.records import MODEL, PRETRAINED, RECORD, EncoderRun, RunRecord, read_record

_TRANSFORMERS = "config.json"
"""A folder with this file is a transformers checkpoint, even with a record beside it."""


def pretrained_run(name: str) -> tuple[Path, RunRecord] | None:
    """Folder and record of the pre-training run that ``encoder.name`` names, by folder or by a glob with a
    single match; None if it names something else, such as a hub id or a checkpoint's folder.

    Raises ConfigError, with the remedy, for a run that is not finished, answers questions or has no weights.
    """
    folder = Path(name)
    if has_magic(name) and not folder.exists():
        folder = _only_match(name)
    if not (folder / RECORD).is_file() or (folder / _TRANSFORMERS).is_file():
        return None
    record, word = read_record(folder), shlex.quote(str(folder))
    recipe = recipe_of(record.config.get("model", {}))
    if recipe is None or not recipe.encoder:
        task = record.setting("model", "task")
        raise ConfigError(
            f"encoder.name: {folder} is a run of task {task}, not a pre-training run; name one, or the"
            f" encoder that this run started from ({record.setting('encoder', 'name') or 'a random one'})"
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
    """Record entry for the pre-training run that ``encoder.name`` names, if it names one."""
    if name is None or (run := pretrained_run(name)) is None:
        return None
    _, record = run
    inputs = inputs_of({split: facts.fingerprint for split, facts in record.data.items()})
    return EncoderRun(
        model=record.model,
        seed=record.seed,
        run_hash=record.run_hash,
        system=identify({**record.config, "seed": None}, inputs).run_hash,
    )


def _only_match(pattern: str) -> Path:
    matches = [Path(match) for match in sorted(glob(pattern)) if (Path(match) / RECORD).is_file()]  # noqa: PTH207
    if len(matches) != 1:
        listed = ": " + ", ".join(map(str, matches[:3])) if matches else ""
        raise ConfigError(
            f"encoder.name: {pattern} matches {len(matches)} runs{listed}; name a single pre-training run"
        )
    return matches[0]
