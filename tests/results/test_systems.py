"""Which runs are seeds of one system, what systems are called, and what is never averaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch.errors import RunError
from qa_arch.records import SplitFacts
from qa_arch.results.systems import find_system, group_by_system, require_same_measure, two_systems


@pytest.fixture
def runs(make_record):
    """``runs((model, seed, changes of the config), ...)``."""

    def make(*given):
        made = []
        for number, (model, seed, config) in enumerate(given):
            full = {"seed": seed, "runs_dir": f"/r{number}", "model": {"name": model}, "optim": {"lr": 1e-4}}
            made.append((Path(f"r{number}"), make_record(model, seed=seed, config=full | config)))
        return made

    return make


def test_only_seed_and_places_may_differ(runs):
    same = runs(("bert", 1, {}), ("bert", 2, {"logger": {"name": "wandb"}, "data": {"dev": "/elsewhere"}}))
    (group,) = group_by_system(same)
    assert group.label == "bert"
    assert [record.seed for _, record in group.runs] == [1, 2]
    a, b = two_systems(same[:1], same[1:])
    assert (a.label, b.label) == ("bert seed=1", "bert seed=2")


def test_labels_say_what_tells_namesakes_apart(runs):
    lr, both = {"optim": {"lr": 5e-05}}, {"optim": {"lr": 5e-05, "warmup": 0.1}}
    found = group_by_system(runs(("bert", 1, {}), ("bert", 1, lr), ("bert", 2, {}), ("roberta", 1, both)))
    assert [group.label for group in found] == ["bert lr=0.0001", "bert lr=5e-05", "roberta"]
    assert [len(group.runs) for group in found] == [2, 1, 1]


def test_what_most_namesakes_share_is_not_told(runs):
    plain = {"optim": {"lr": 1e-4, "warmup": 0.1}}
    faster = {"optim": {"lr": 2e-4, "warmup": 0.1}}
    cold = {"optim": {"lr": 1e-4, "warmup": 0.0}}
    given = [("bert", seed, config) for config in (plain, faster, cold) for seed in (1, 2)]
    labels = [group.label for group in group_by_system(runs(*given))]
    assert labels == ["bert", "bert lr=0.0002", "bert warmup=0"]


def test_other_training_data_is_another_system(make_record):
    plain = make_record(scores={})
    data = [{"train": SplitFacts(fingerprint=print_ * 10)} for print_ in "ab"]
    found = group_by_system([(Path(str(i)), replace(plain, data=one)) for i, one in enumerate(data)])
    labels = [group.label for group in found]
    assert labels == ["bert train (hash)=aaaaaaaa", "bert train (hash)=bbbbbbbb"]


def test_a_record_from_before_a_setting_is_of_the_same_system(runs):
    """A setting that came later has a default, and an old run was made as that says."""
    new = {"trainer": {"epochs": 2, "select": "f1"}, "selection": {"negatives": 50}}
    old = {"trainer": {"epochs": 2}}
    other = {"trainer": {"epochs": 2, "select": "loss"}}
    found = group_by_system(runs(("bert", 1, new), ("bert", 2, old), ("bert", 3, other)))
    assert [(group.label, len(group.runs)) for group in found] == [
        ("bert select=f1", 2),
        ("bert select=loss", 1),
    ]


def test_other_word_vectors_are_another_system_wherever_they_lie(runs):
    paths = ("/a/glove.6B.50d.txt", "/b/glove.6B.50d.txt", "/a/glove.840B.300d.txt")
    given = [("proposed", n, {"glove": {"use": True, "path": path}}) for n, path in enumerate(paths)]
    assert [len(group.runs) for group in group_by_system(runs(*given))] == [2, 1]
    unused = [("bert", n, {"glove": {"use": False, "path": path}}) for n, path in enumerate(paths)]
    assert [len(group.runs) for group in group_by_system(runs(*unused))] == [3]


def test_what_is_no_single_system_is_refused_by_name(runs):
    one = runs(("bert", 1, {}))
    with pytest.raises(RunError, match=r"B: .*more than the seed \(optim.lr: 0.0001 / 5e-05"):
        two_systems(one, runs(("bert", 1, {}), ("bert", 2, {"optim": {"lr": 5e-05}})))
    with pytest.raises(RunError, match=r"B: seed 3 occurs twice \(r0, r1\)"):
        two_systems(one, runs(("bert", 3, {}), ("bert", 3, {})))


def test_another_version_of_the_metric_is_refused(make_record):
    old, new = make_record(), make_record()
    points = new.scores["dev"]
    points["calibrated"] = replace(points["calibrated"], metric_version="2")
    with pytest.raises(RunError, match="metric 2"):
        require_same_measure([(Path("old"), old), (Path("new"), new)], "dev")


def test_a_system_is_found_by_its_label_or_by_a_model_that_is_alone(runs):
    warm, cold = {"optim": {"warmup": 0.1}}, {"optim": {"warmup": 0.0}}
    groups = group_by_system(runs(("bert", 1, warm), ("bert", 1, cold), ("roberta", 1, {})))
    assert [find_system(groups, group.label) for group in groups] == groups
    assert find_system(groups[1:], "bert") is groups[1]
    with pytest.raises(RunError, match=r"of 2 systems \(bert warmup=0.1; bert warmup=0\)"):
        find_system(groups, "bert")
    many = group_by_system(runs(*((f"m{n}", 1, {}) for n in range(9))))
    with pytest.raises(RunError, match=r"'none' \(known: m0; m1; m2; m3; m4; m5; and 3 more\)$"):
        find_system(many, "none")
