"""Every name against transformers 4.57.6 itself, from the benchmarks' peer environment."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from extras.compat import old_and_new
from extras.compat.cases import write_cases
from transformers import AutoTokenizer

from benchmarks.peer_env import TRANSFORMERS_4
from benchmarks.targets import NotMeasuredError
from qa_arch.extras.compat import squad, squad_metrics
from qa_arch.extras.compat.pipeline import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SCALE = 4
ERRORS = ("Error", "Exception")


def tokenizer(family: str, folder: Path):
    return AutoTokenizer.from_pretrained(folder / family)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[dict, dict, dict]:
    """Cases, results of transformers 4, and ours, all after a round trip through JSON."""
    try:
        interpreter = TRANSFORMERS_4.python()
    except NotMeasuredError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("compat")
    cases = write_cases(folder, SCALE)
    file = folder / "cases.json"
    file.write_text(json.dumps(cases), encoding="utf-8")
    command = [interpreter, old_and_new.__file__, file, folder]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr[-4000:]
    old = json.loads((folder / "old.json").read_text(encoding="utf-8"))
    names = SimpleNamespace(
        version="new", squad_metrics=squad_metrics, squad=squad, tokenizer=tokenizer, pipeline=pipeline
    )
    cases = json.loads(file.read_text(encoding="utf-8"))
    return cases, old, json.loads(json.dumps(old_and_new.results(cases, folder, names)))


@pytest.mark.parametrize("kind", old_and_new.KINDS)
def test_results_equal_transformers_4(compared, kind):
    cases, old, new = (by_kind[kind] for by_kind in compared)
    assert len(old) == len(new) == len(cases) >= 100
    # As text: an int differs from a float, and the order of keys counts.
    texts = [(case, *map(json.dumps, results)) for case, *results in zip(cases, old, new, strict=True)]
    different = [(case, old_text, new_text) for case, old_text, new_text in texts if old_text != new_text]
    raised = Counter(result for result in old if isinstance(result, str) and result.endswith(ERRORS))
    print(f"{kind}: {len(cases)} cases, {len(different)} differ; raised {dict(raised)}")
    assert not different, different[0]
    assert sum(raised.values()) < len(cases) / 2
