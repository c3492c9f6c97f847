"""Helpers of the contract tests of all tasks."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from omegaconf import OmegaConf

from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import Config
from qa_arch.contract import Subject
from qa_arch.qa import task

FOLDERS = config_folders()
ALL = {
    name: next(file for folder in FOLDERS if (file := folder / "model" / f"{name}.yaml").is_file())
    for name in groups(FOLDERS)["model"]
}


def models_of(tasks: Collection[str]) -> list[str]:
    """The choices of ``model`` whose task is one of ``tasks``."""
    return [name for name, path in ALL.items() if OmegaConf.load(path).get("task") in tasks]


class LazyCases(dict[str, Any]):
    """Cases, each built on first use from the same random state."""

    def __init__(self, build: Callable[[str], Any]) -> None:
        super().__init__()
        self.build = build

    def __missing__(self, case: str) -> Any:
        torch.manual_seed(0)
        self[case] = self.build(case)
        return self[case]


def build_subjects(
    configure: Callable[[str], Config],
    subject: type[Subject] = Subject,
    assemble: Callable[[Config], Any] = task.new_parts,
) -> LazyCases:
    """Subjects of all cases, with the config of ``configure(case)``."""

    def build(case: str) -> Subject:
        config = configure(case)
        return subject(config, assemble(config))

    return LazyCases(build)


def require_same_step(
    subjects: LazyCases, cases: Iterable[str], step: Any, batch: Callable[[Subject, int], Any]
) -> None:
    """Step all ``cases`` once on two ranks, rank R on ``batch(subject, R)``, and require equal results."""
    models = []
    for case in cases:
        subject = subjects[case]
        batches = [batch(subject, rank) for rank in range(2)]
        labelled = [(inputs, inputs.labels) for inputs in batches]
        models.append((case, subject.model, subject.parts.loss, labelled))
    first, second = step(models)
    assert first == second
    assert set(first) == set(cases)


def every_other_row(subject: Subject, rank: int) -> Any:
    rows = range(len(subject.parts.tables["train"]))
    return subject.batch(rows=list(rows[rank::2]))


def title(check: Callable[..., None]) -> str:
    """Name of a check, as a test id."""
    return check.__name__
