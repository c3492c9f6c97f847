"""Grouping runs into systems, labels of systems, and runs that are never averaged."""

from dataclasses import replace
from pathlib import Path

import pytest

from qa_arch.errors import RunError
from qa_arch.records import InitialWeights, RunRecord, SplitFacts
from qa_arch.results.systems import (
    find_system,
    group_by_system,
    require_distinct_seeds,
    require_same_measure,
    two_systems,
)


@pytest.fixture
def runs(make_record):
    """``runs((model, seed, config changes), ...)``: records with their folders."""

    def make(*specs):
        records = []
        for index, (model, seed, config) in enumerate(specs):
            base = {"seed": seed, "runs_dir": f"/r{index}", "model": {"name": model}, "optim": {"lr": 1e-4}}
            records.append((Path(f"r{index}"), make_record(model, seed=seed, config=base | config)))
        return records

    return make


def test_runs_of_a_system_differ_only_in_seed_and_paths(runs):
    same = runs(("bert", 1, {}), ("bert", 2, {"logger": {"name": "wandb"}, "data": {"dev": "/elsewhere"}}))
    (group,) = group_by_system(same)
    assert group.label == "bert"
    assert [record.seed for _, record in group.runs] == [1, 2]
    a, b = two_systems(same[:1], same[1:])
    assert (a.label, b.label) == ("bert seed=1", "bert seed=2")


def test_labels_name_the_differing_settings(runs):
    lr, both = {"optim": {"lr": 5e-05}}, {"optim": {"lr": 5e-05, "warmup": 0.1}}
    groups = group_by_system(runs(("bert", 1, {}), ("bert", 1, lr), ("bert", 2, {}), ("roberta", 1, both)))
    assert [group.label for group in groups] == ["bert lr=0.0001", "bert lr=5e-05", "roberta"]
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    (plain, twice) = group_by_system(runs(("bert", 1, {}), ("bert", 1, both)))
    assert (plain.label, twice.label) == ("bert lr=0.0001", "bert lr=5e-05"), "one setting is enough"
    usual, warm = {"optim": {"lr": 1e-4, "warmup": 0.0}}, {"optim": {"lr": 5e-05, "warmup": 0.1}}
    other = {"optim": {"lr": 5e-05, "warmup": 0.0}}
    specs = [("bert", 1, config) for config in (usual, usual | {"trainer": {"epochs": 9}}, other, warm)]
    labels = [group.label for group in group_by_system(runs(*specs))]
    assert labels == ["bert lr=0.0001", "bert epochs=9", "bert lr=5e-05", "bert warmup=0.1"]


def test_labels_omit_the_most_common_value(runs):
    plain = {"optim": {"lr": 1e-4, "warmup": 0.1}}
    faster = {"optim": {"lr": 2e-4, "warmup": 0.1}}
    cold = {"optim": {"lr": 1e-4, "warmup": 0.0}}
    specs = [("bert", seed, config) for config in (plain, faster, cold) for seed in (1, 2)]
    labels = [group.label for group in group_by_system(runs(*specs))]
    assert labels == ["bert", "bert lr=0.0002", "bert warmup=0"]


def test_labels_omit_settings_that_a_system_does_not_have(runs):
    pointer = {"_target_": "qa_arch.nn.pointer.PointerHead", "width": 8, "dropout": 0.1}
    heads = [{"_target_": "qa_arch.nn.heads.LinearHead"}]
    heads += [pointer | {"bidirectional": bidirectional} for bidirectional in (False, True)]
    groups = group_by_system(runs(*(("bert", 1, {"model": {"name": "bert", "head": h}}) for h in heads)))
    labels = [group.label for group in groups]
    assert labels == ["bert head=LinearHead", "bert bidirectional=False", "bert bidirectional=True"]


def test_different_training_data_is_another_system(make_record):
    plain = make_record(scores={})
    data = [{"train": SplitFacts(fingerprint=letter * 10)} for letter in "ab"]
    groups = group_by_system([(Path(str(i)), replace(plain, data=splits)) for i, splits in enumerate(data)])
    labels = [group.label for group in groups]
    assert labels == ["bert train (hash)=aaaaaaaa", "bert train (hash)=bbbbbbbb"]


def test_run_that_read_no_data_belongs_to_its_system(runs):
    narrow, wide = {"encoder": {"width": 16}}, {"encoder": {"width": 64}}
    (_, ok), (_, dead), (_, seed) = runs(("bert", 1, narrow), ("bert", 1, wide), ("bert", 2, narrow))
    unread = [(Path("b"), replace(dead, data={}, scores={})), (Path("c"), replace(seed, data={}, scores={}))]
    groups = group_by_system([(Path("a"), ok), *unread])
    assert [group.label for group in groups] == ["bert width=16", "bert width=64"]
    assert [len(group.runs) for group in groups] == [2, 1]


def test_record_without_a_newer_setting_joins_the_default_system(runs):
    """A setting added later has a default, the value old runs were made with."""
    new = {"trainer": {"epochs": 2, "select": "f1"}, "distillation": {"temperature": 1.0}}
    old = {"trainer": {"epochs": 2}}
    other = {"trainer": {"epochs": 2, "select": "loss"}}
    groups = group_by_system(runs(("bert", 1, new), ("bert", 2, old), ("bert", 3, other)))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("bert select=f1", 2),
        ("bert select=loss", 1),
    ]


def test_equal_and_empty_settings_do_not_divide_a_system(runs):
    """``two_systems`` averages them, and two systems of one label would be mistaken for each other."""
    settings = [{"model": {"name": "bert"} | more} for more in ({"drop": 1}, {"drop": 1.0, "mask": None})]
    same = runs(*(("bert", seed, config) for seed, config in enumerate(settings)))
    assert [len(system.runs) for system in group_by_system(same)] == [2]
    unlike = [(1, 1), (1.0, 2), (5, 1)]
    several = [{"drop": drop} | dict.fromkeys(("width", "depth", "heads"), size) for drop, size in unlike]
    systems = group_by_system(runs(*(("bert", 1, {"optim": config}) for config in several)))
    assert len({system.label for system in systems}) == 3


def test_word_vectors_count_by_file_name_and_only_if_used(runs):
    paths = ("/a/glove.6B.50d.txt", "/b/glove.6B.50d.txt", "/a/glove.840B.300d.txt")
    specs = [("proposed", n, {"glove": {"use": True, "path": path}}) for n, path in enumerate(paths)]
    assert [len(group.runs) for group in group_by_system(runs(*specs))] == [2, 1]
    unused = [("bert", n, {"glove": {"use": False, "path": path}}) for n, path in enumerate(paths)]
    assert [len(group.runs) for group in group_by_system(runs(*unused))] == [3]


def test_runs_of_several_systems_are_refused_by_name(runs):
    single = runs(("bert", 1, {}))
    with pytest.raises(RunError, match=r"B: .*more than the seed \(optim.lr: 0.0001 / 5e-05"):
        two_systems(single, runs(("bert", 1, {}), ("bert", 2, {"optim": {"lr": 5e-05}})))
    (repeating,) = group_by_system(runs(("bert", 3, {}), ("bert", 3, {})))
    with pytest.raises(RunError, match=r"bert: seed 3 occurs twice \(r0, r1\)"):
        require_distinct_seeds(repeating)


def test_different_metric_versions_are_refused(make_record):
    old, new = make_record(), make_record()
    points = new.scores["dev"]
    points["calibrated"] = replace(points["calibrated"], metric_version="2")
    with pytest.raises(RunError, match="metric 2"):
        require_same_measure([(Path("old"), old), (Path("new"), new)], "dev")


def test_find_system_takes_a_label_or_an_unambiguous_model(runs):
    warm, cold = {"optim": {"warmup": 0.1}}, {"optim": {"warmup": 0.0}}
    groups = group_by_system(runs(("bert", 1, warm), ("bert", 1, cold), ("roberta", 1, {})))
    assert [find_system(groups, group.label) for group in groups] == groups
    assert find_system(groups[1:], "bert") is groups[1]
    with pytest.raises(RunError, match=r"of 2 systems \(bert warmup=0.1; bert warmup=0\)"):
        find_system(groups, "bert")
    many = group_by_system(runs(*((f"m{n}", 1, {}) for n in range(9))))
    with pytest.raises(RunError, match=r"'none' \(known: m0; m1; m2; m3; m4; m5; and 3 more\)$"):
        find_system(many, "none")


def test_systems_with_other_initial_weights_differ():
    """A record without the hash of its encoder's weights belongs to the others if they agree."""

    def run(seed: int, weights: str | None) -> tuple[Path, RunRecord]:
        config = {"encoder": {"name": "some/encoder", "init": "pretrained"}}
        initial = InitialWeights(weights=weights) if weights else None
        about = {"name": "n", "model": "bert", "config": config, "settings_hash": "c", "run_hash": "c"}
        return Path(f"r{seed}"), RunRecord(status="ok", seed=seed, initial=initial, **about)

    older, first, second = run(1, None), run(2, "a" * 64), run(3, "b" * 64)
    assert [len(system.runs) for system in group_by_system([older, first])] == [2]
    assert [len(system.runs) for system in group_by_system([first, second])] == [1, 1]
    assert [len(system.runs) for system in group_by_system([older, first, second])] == [1, 1, 1]
    with pytest.raises(RunError, match=r"encoder.name \(hash\): aaaaaaaa / bbbbbbbb"):
        two_systems([first, second], [older])
