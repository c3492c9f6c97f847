"""Records as a run leaves them, with scores made up."""

from __future__ import annotations

import pytest

from qa_arch.results.record import RunRecord


def points(exact: float, protocol: str) -> dict:
    if protocol == "1.1":
        scores = {"exact_match": exact, "f1": exact + 5, "threshold": None}
        return {"never_null": scores | {"protocol": protocol, "metric_version": "1"}}
    made = {}
    for name, shift in {"margin_0": -1, "calibrated": 0, "oracle": 1, "never_null": -20}.items():
        made[name] = {
            "exact": exact + shift,
            "f1": exact + shift + 2,
            "HasAns_exact": exact + shift + 10,
            "HasAns_f1": exact + shift + 14,
            "NoAns_exact": exact + shift - 10,
            "NoAns_f1": exact + shift - 10,
            "threshold": 0.25,
            "protocol": protocol,
            "metric_version": "1",
        }
    return made


@pytest.fixture
def make_record():
    """``make_record(model, exact, **changes)``: a finished run scored on dev, or without scores."""

    def make(model="bert", exact=60.0, *, data="d1", protocol="2.0", split="dev", **changes) -> RunRecord:
        plain = {"exact": 50.0, "f1": 50.0, "HasAns_f1": 0.0, "NoAns_f1": 100.0, "protocol": protocol}
        about = {"name": "made-up", "fingerprint": data, "protocol": protocol, "questions": 1200}
        given = {
            "status": "ok",
            "name": "trial",
            "model": model,
            "seed": 13,
            "config": {},
            "config_hash": "c0ffee00" + "0" * 56,
            "data": {"train": {"fingerprint": "t"}, split: about | {"unanswerable": 600}},
            "parameters": {"total": 1234567},
            "seconds": {"fit": 61.25, "predict": 3.5},
            "margin": {"value": 0.25, "fitted_on": "calibration"},
            "scores": {} if exact is None else {split: points(exact, protocol)},
            "references": {split: {"always-no-answer": plain}},
        }
        return RunRecord(**(given | changes))

    return make
