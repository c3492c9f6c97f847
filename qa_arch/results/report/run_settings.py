"""Every setting of every run, for the page of a run and for what two runs differ in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.results.record import Runs
from qa_arch.results.systems import fingerprints, whole_config


def run_settings(runs: Runs) -> dict[str, Any]:
    """``all``: setting -> value where every run has the same; ``own``: the others, run by run.

    Values are texts. Beside the settings stand the hashes of the data and the versions of the packages.
    """
    of_runs = [
        {key: _text(value) for key, value in whole_config(record).items()}
        | fingerprints(record)
        | {f"version of {name}": version for name, version in record.versions.items()}
        for _, record in runs
    ]
    return _shared(of_runs)


def _shared(of_runs: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    first = of_runs[0] if of_runs else {}
    same = {key: value for key, value in first.items() if all(own.get(key) == value for own in of_runs)}
    own = [{key: value for key, value in values.items() if key not in same} for values in of_runs]
    return {"all": same, "own": own}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
