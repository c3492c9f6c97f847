"""Classes named by a config: a head inside a model, with its own settings."""

from __future__ import annotations

import re

import pytest

from qa_arch.cli.compose import compose
from qa_arch.config.schema import validate
from qa_arch.errors import ConfigError
from qa_arch.models.check import check_model


def section(*overrides: str) -> dict:
    return validate(compose(list(overrides))).model


@pytest.mark.parametrize("model", ["proposed", "bert"])
@pytest.mark.parametrize("head", ["boundary", "bi_boundary", "linear"])
def test_every_head_works_with_every_model_that_takes_one(model, head):
    assert check_model(section(f"model={model}", f"head={head}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+model.head.hiden=3"], "unknown setting 'model.head.hiden' (did you mean 'model.head.hidden'?)"),
        (["model.head.hidden=0"], "model.head.hidden: 0 is out of range, it must be >= 1"),
        (["+model.head.in_dim=3"], "unknown setting 'model.head.in_dim'"),
        (["~model.head.hidden"], "model.head: PointerHead also needs hidden"),
        (["model.head._target_=os.system"], "model.head._target_: 'os.system' is outside qa_arch"),
        (
            ["model.head._target_=qa_arch.nn.heads.Verifier"],
            "model.head._target_: Verifier does not take in_dim, sentinel",
        ),
    ],
)
def test_invalid_head_is_reported_before_a_model_is_built(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_model(section("model=proposed", *overrides))


def test_head_of_another_package_needs_trust(tmp_path, monkeypatch):
    (tmp_path / "others.py").write_text(
        "class Head:\n    def __init__(self, in_dim, sentinel, *, depth: int = 1): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = {**section("model=bert"), "head": {"_target_": "others.Head", "depth": 2}}
    with pytest.raises(ConfigError, match="add --trust others"):
        check_model(model)
    assert check_model(model, ("qa_arch", "baselines", "others"))
    with pytest.raises(ConfigError, match=re.escape("model.head.depth: expected an integer")):
        check_model({**model, "head": {"_target_": "others.Head", "depth": "x"}}, ("baselines", "others"))
