"""Fingerprints in all committed records are those of the sets that their configs name."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from scripts import load

from qa_arch.config.schema import Data, validate
from qa_arch.data.sources import local
from qa_arch.data.splits import load_splits
from qa_arch.errors import ConfigError
from qa_arch.records import DEV, TRAIN, read_record

ROOT = Path(__file__).parents[2]


def here(text: str, folder: Path) -> str:
    """A data section's JSON with its sources below QA_ARCH_DATA, and level 3 in files of ``folder``."""
    text = re.sub(r"synthetic:(\w+):L3", rf"{folder}/\1.json", text)
    return local(text.replace('"data/', '"$QA_ARCH_DATA/'))


def recorded(folder: Path, *, generated: bool) -> Iterator[tuple[Data, dict[str, str]]]:
    """Data of every span model's record, with its fingerprints by split."""
    for path in sorted((ROOT / "experiments").rglob("run.json")):
        record = read_record(path.parent)
        facts = {split: str(record.fingerprint(split)) for split in record.data}
        try:
            text = json.dumps(record.config.get("data"))
            config = validate({**record.config, "data": json.loads(here(text, folder))})
        except ConfigError:
            continue  # not a training run
        spans = TRAIN in facts and record.finds_spans
        if spans and ("synthetic:" in text) == generated:
            yield replace(config.data, open_dev=DEV in facts), facts


def check(folder: Path, *, generated: bool, before: Mapping[str, str] = MappingProxyType({})) -> set[str]:
    """Compare all; returns the fingerprints of the training sets.

    ``before``: those that the runs of a registered experiment keep, as they were registered with them.
    """
    read: dict[str, dict[str, str]] = {}
    for data, facts in recorded(folder, generated=generated):
        if str(data) not in read:
            read[str(data)] = {split: item.fingerprint for split, item in load_splits(data).items()}
        sets = read[str(data)]
        assert {split: before.get(facts[split], facts[split]) for split in sets} == sets, data
    return {sets[TRAIN] for sets in read.values()}


def test_generated_sets(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["level3.py", "--out", str(tmp_path)])
    load("synthetic/level3.py").main()
    assert len(check(tmp_path, generated=True)) >= 4


@pytest.mark.data
def test_real_sets(real_data, tmp_path, monkeypatch):
    """With the sets that two experiments derive."""
    for folder in real_data.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path))
    for name, out in (("decision/split.py", "swapped"), ("systems/sample.py", "systems")):
        monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path / out)])
        load(name).main()
    assert len(check(tmp_path, generated=False, before=load("migrate_records.py").SETS)) >= 7
