"""Every name against transformers 4.57.6 itself, which a benchmark's environment holds."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.peer_env import TRANSFORMERS_4
from benchmarks.targets import NotMeasuredError
from extras.compat import old_and_new
from extras.compat.cases import write_cases
from transformers import AutoTokenizer

from qa_arch.extras.compat import squad, squad_metrics
from qa_arch.extras.compat.pipeline import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SCALE = 4


def tokenizer(family: str, folder: Path):
    return AutoTokenizer.from_pretrained(folder / family)


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[dict, dict, dict]:
    """Cases, values of transformers 4 and ours, all as they come back from JSON."""
    try:
        interpreter = TRANSFORMERS_4.python()
    except NotMeasuredError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("compat")
    cases = write_cases(folder, SCALE)
    file = folder / "cases.json"
    file.write_text(json.dumps(cases), encoding="utf-8")
    command = [interpreter, old_and_new.__file__, file, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    old = json.loads((folder / "old.json").read_text(encoding="utf-8"))
    names = SimpleNamespace(
        version="new", squad_metrics=squad_metrics, squad=squad, tokenizer=tokenizer, pipeline=pipeline
    )
    return cases, old, json.loads(json.dumps(old_and_new.values(json.loads(json.dumps(cases)), folder, names)))


@pytest.mark.parametrize("kind", [kind for kind in old_and_new.KINDS if kind not in ("answers", "processors")])
def test_values_are_equal(both, kind):
    cases, old, new = (values[kind] for values in both)
    assert len(old) == len(new) == len(cases) > 50
    # As text: an int is no float, and the order of keys is part of the value.
    different = [row for row in zip(cases, old, new, strict=True) if json.dumps(row[1]) != json.dumps(row[2])]
    print(f"{kind}: {len(cases)} cases, {len(different)} differ, {sum(type(v) is str for v in old)} raise or text")
    assert not different, different[0]
