"""Settings of models that rank: in trials, and in records of before there were references."""

from __future__ import annotations

import pytest

from qa_arch.cli.compose import compose
from qa_arch.config.retired import upgrade
from qa_arch.config.schema import validate


@pytest.mark.parametrize(("model", "group"), [("qa_lstm/c", "candidates"), ("question_types", "classes")])
def test_models_that_rank_have_the_references_of_their_task(model, group):
    """They always stood beside these models, while the config named those of spans."""
    today = compose([f"model={model}"])
    old = {**today, "references": compose(["model=bert"])["references"]}
    assert validate(old) == validate(today)
    assert validate(today).references == compose(["model=bert", f"references={group}"])["references"]
    chosen = {"mine": {"_target_": "qa_arch.extras.selection.rankers.RandomOrder", "seed": 3}}
    for named in (chosen, old["references"] | chosen):
        assert upgrade({**today, "references": named})["references"] == named


def test_a_model_may_have_settings_of_its_own_in_a_trial():
    for model, trial, learned in [
        ("question_types", ["debug=fast"], True),
        ("question_types", [], False),
        ("qa_lstm/h", ["debug=fast"], True),
    ]:
        assert compose([f"model={model}", *trial])["model"]["train_vectors"] == learned
