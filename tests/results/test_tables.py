"""Tables of runs: which runs are a system, columns and notes, and cells and widths in every format."""

import csv
import io
import re
import sys
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from qa_arch import manifest
from qa_arch.config import schema
from qa_arch.errors import RunError
from qa_arch.metrics.abstention import auroc, reliability
from qa_arch.models.checkpoint_files import CHECKPOINT
from qa_arch.provenance import code_hash, own_versions
from qa_arch.records import CHECKPOINTS, InitialWeights, RunRecord, SplitFacts, find_runs
from qa_arch.results import columns, systems
from qa_arch.results.columns import COLUMNS, Column, by_measure, runs_table, select_columns
from qa_arch.results.compare import expected_best, expected_best_table
from qa_arch.results.systems import (
    find_system,
    group_by_system,
    load_questions,
    require_distinct_seeds,
    require_same_measure,
    systems_hash,
    two_systems,
)
from qa_arch.results.tables import (
    BORDER,
    RULE,
    Table,
    fill,
    fit,
    latex,
    markdown,
    number,
    print_table,
    render,
    text,
)


def test_note_names_the_calibration_set_that_heuristics_are_fitted_on(make_record):
    """They have one row, whatever the runs below were calibrated on."""
    first, other = make_record("bert"), make_record("proposed")
    sets = {"calibration": SplitFacts(fingerprint="other")}
    note = "heuristics: fitted on the calibration set of a; other runs have other sets"
    for data, expected in ((other.data, False), ({**other.data, **sets}, True)):
        runs = [(Path("a"), first), (Path("b"), replace(other, data=data)), (Path("c"), first)]
        assert (note in runs_table(runs).notes) == expected


def test_note_names_systems_by_the_fit_of_their_thresholds(make_record):
    """By the labels that a table has for them, as they may share a model."""
    runs = []
    for folder, lr, prior in (("a", 1e-4, None), ("b", 1e-3, 0.5)):
        threshold = {"value": 0.25, "fitted_on": "calibration", "prior": prior}
        runs.append((Path(folder), make_record("bert", config={"optim": {"lr": lr}}, threshold=threshold)))
    note = "fitted on calibration; of bert lr=0.001 on calibration, its unanswerable questions counted as 50%"
    assert f"null threshold {note}" in runs_table(runs).notes


@pytest.fixture
def made(make_record):
    """``made((model, seed, config changes), ...)``: records with their folders."""

    def make(*specs):
        records = []
        for index, (model, seed, config) in enumerate(specs):
            base = {"seed": seed, "runs_dir": f"/r{index}", "model": {"name": model}, "optim": {"lr": 1e-4}}
            records.append((Path(f"r{index}"), make_record(model, seed=seed, config=base | config)))
        return records

    return make


def test_runs_of_a_system_differ_only_in_seed_and_paths(made):
    same = made(("bert", 1, {}), ("bert", 2, {"logger": {"name": "wandb"}, "data": {"dev": "/elsewhere"}}))
    (group,) = group_by_system(same)
    assert group.label == "bert"
    assert [record.seed for _, record in group.runs] == [1, 2]
    a, b = two_systems(same[:1], same[1:])
    assert (a.label, b.label) == ("bert seed=1", "bert seed=2")


def labels_of(records) -> list[tuple[str, int]]:
    """The systems by their labels, and the number of their runs."""
    return [(system.label, len(system.runs)) for system in group_by_system(records)]


def test_labels_name_the_differing_settings(made):
    lr, both = {"optim": {"lr": 5e-05}}, {"optim": {"lr": 5e-05, "warmup": 0.1}}
    runs = made(("bert", 1, {}), ("bert", 1, lr), ("bert", 2, {}), ("roberta", 1, both))
    assert labels_of(runs) == [("bert lr=0.0001", 2), ("bert lr=5e-05", 1), ("roberta", 1)]
    one_setting = labels_of(made(("bert", 1, {}), ("bert", 1, both)))
    assert one_setting == [("bert lr=0.0001", 1), ("bert lr=5e-05", 1)], "one setting is enough"
    usual, warm = {"optim": {"lr": 1e-4, "warmup": 0.0}}, {"optim": {"lr": 5e-05, "warmup": 0.1}}
    other = {"optim": {"lr": 5e-05, "warmup": 0.0}}
    specs = [("bert", 1, config) for config in (usual, usual | {"trainer": {"epochs": 9}}, other, warm)]
    labels = [label for label, _ in labels_of(made(*specs))]
    assert labels == ["bert lr=0.0001", "bert epochs=9", "bert lr=5e-05", "bert warmup=0.1"]
    pointer = {"_target_": "qa_arch.nn.pointer.PointerHead", "width": 8, "dropout": 0.1}
    heads = [{"_target_": "qa_arch.nn.heads.LinearHead"}]
    heads += [pointer | {"bidirectional": bidirectional} for bidirectional in (False, True)]
    labels = labels_of(made(*(("bert", 1, {"model": {"name": "bert", "head": head}}) for head in heads)))
    expected = ["bert head=LinearHead", "bert bidirectional=False", "bert bidirectional=True"]
    assert [label for label, _ in labels] == expected, "settings that a system does not have are left out"


def test_labels_omit_the_most_common_value(made):
    settings = {"lr": 1e-4, "warmup": 0.1}, {"lr": 2e-4, "warmup": 0.1}, {"lr": 1e-4, "warmup": 0.0}
    specs = [("bert", seed, {"optim": optim}) for optim in settings for seed in (1, 2)]
    assert labels_of(made(*specs)) == [("bert", 2), ("bert lr=0.0002", 2), ("bert warmup=0", 2)]


def test_run_that_read_no_data_belongs_to_its_system(made):
    """Different training data, however, is another system."""
    narrow, wide = {"encoder": {"width": 16}}, {"encoder": {"width": 64}}
    (_, ok), (_, dead), (_, seed) = made(("bert", 1, narrow), ("bert", 1, wide), ("bert", 2, narrow))
    unread = [(Path("b"), replace(dead, data={}, scores={})), (Path("c"), replace(seed, data={}, scores={}))]
    assert labels_of([(Path("a"), ok), *unread]) == [("bert width=16", 2), ("bert width=64", 1)]
    data = [{"train": SplitFacts(fingerprint=letter * 10)} for letter in "ab"]
    runs = [(Path(str(i)), replace(ok, scores={}, data=splits)) for i, splits in enumerate(data)]
    assert labels_of(runs) == [("bert train (hash)=aaaaaaaa", 1), ("bert train (hash)=bbbbbbbb", 1)]


def test_record_without_a_newer_setting_joins_the_default_system(made):
    """A setting added later has a default, the value old runs were made with."""
    new = {"trainer": {"epochs": 2, "select": "f1"}, "distillation": {"temperature": 1.0}}
    old, other = {"trainer": {"epochs": 2}}, {"trainer": {"epochs": 2, "select": "loss"}}
    runs = made(("bert", 1, new), ("bert", 2, old), ("bert", 3, other))
    assert labels_of(runs) == [("bert select=f1", 2), ("bert select=loss", 1)]


def test_equal_and_empty_settings_do_not_divide_a_system(made):
    """``two_systems`` averages them, and two systems of one label would be mistaken for each other. Word
    vectors count by the name of their file, and only if used."""
    settings = [{"model": {"name": "bert"} | more} for more in ({"drop": 1}, {"drop": 1.0, "mask": None})]
    same = made(*(("bert", seed, config) for seed, config in enumerate(settings)))
    assert labels_of(same) == [("bert", 2)]
    unlike = [(1, 1), (1.0, 2), (5, 1)]
    several = [{"drop": drop} | dict.fromkeys(("width", "depth", "heads"), size) for drop, size in unlike]
    assert len(set(labels_of(made(*(("bert", 1, {"optim": config}) for config in several))))) == 3
    paths = ("/a/glove.6B.50d.txt", "/b/glove.6B.50d.txt", "/a/glove.840B.300d.txt")
    for use, sizes in ((True, [2, 1]), (False, [3])):
        specs = [("bert", n, {"glove": {"use": use, "path": path}}) for n, path in enumerate(paths)]
        assert [size for _, size in labels_of(made(*specs))] == sizes


def test_find_system_takes_a_label_or_an_unambiguous_model(made):
    warm, cold = {"optim": {"warmup": 0.1}}, {"optim": {"warmup": 0.0}}
    groups = group_by_system(made(("bert", 1, warm), ("bert", 1, cold), ("roberta", 1, {})))
    assert [find_system(groups, group.label) for group in groups] == groups
    assert find_system(groups[1:], "bert") is groups[1]
    with pytest.raises(RunError, match=r"of 2 systems \(bert warmup=0.1; bert warmup=0\)"):
        find_system(groups, "bert")
    many = group_by_system(made(*((f"m{n}", 1, {}) for n in range(9))))
    with pytest.raises(RunError, match=r"'none' \(known: m0; m1; m2; m3; m4; m5; and 3 more\)$"):
        find_system(many, "none")


def test_runs_that_may_not_be_averaged_are_refused_by_name(made):
    single = made(("bert", 1, {}))
    with pytest.raises(RunError, match=r"B: .*more than the seed \(optim.lr: 0.0001 / 5e-05"):
        two_systems(single, made(("bert", 1, {}), ("bert", 2, {"optim": {"lr": 5e-05}})))
    (repeating,) = group_by_system(made(("bert", 3, {}), ("bert", 3, {})))
    with pytest.raises(RunError, match=r"bert: seed 3 occurs twice \(r0, r1\)"):
        require_distinct_seeds(repeating)
    (_, old), (_, new) = made(("bert", 1, {}), ("bert", 2, {}))
    points = new.scores["dev"]
    points["calibrated"] = replace(points["calibrated"], metric_version="2")
    with pytest.raises(RunError, match="metric 2"):
        require_same_measure([(Path("old"), old), (Path("new"), new)], "dev")


def test_ensembles_are_of_a_system_if_their_members_are(made, monkeypatch):
    """In any order and of any seeds; their own config is that of one member. Without a hash, by the members
    as written. A graph in int8 is a system of its own."""
    (_, one), (_, two), (_, faster) = made(("m", 1, {}), ("m", 2, {}), ("m", 1, {"optim": {"lr": 5e-05}}))
    graph, stranger = replace(one, precision="int8"), replace(one, members=("a (1)", "b (2)"))
    runs = []
    for n, pair in enumerate([(one, faster), (faster, two), (one, two), (graph, faster)]):
        members = (f"a ({n})", f"b ({n})")
        record = replace(one, seed=n, members=members, members_hash=systems_hash(pair))
        runs.append((Path(f"e{n}"), record))
    assert [size for _, size in labels_of(runs)] == [2, 1, 1]
    older = [(folder, replace(record, members_hash=None)) for folder, record in runs[:2]]
    assert labels_of(older) == [("m members=a (0) + b (0)", 1), ("m members=a (1) + b (1)", 1)]
    decoded = [(Path(f"d{n}"), replace(one, seed=n, members=(f"a ({n})",))) for n in (1, 2)]
    assert labels_of(decoded) == [("m", 2)]
    half = replace(two, precision="bf16")
    singles = [(Path(str(n)), record) for n, record in enumerate((one, graph, half))]
    assert labels_of(singles) == [("m", 2), ("m precision=int8", 1)]
    (sharing,) = group_by_system([(Path("e"), stranger), (Path("f"), replace(stranger, seed=2))])
    with pytest.raises(RunError, match=r"m: member a \(1\) occurs twice \(e, f\)"):
        require_distinct_seeds(sharing)
    before = systems_hash([one])
    monkeypatch.setattr(systems, "defaults", lambda: schema.defaults() | {"optim.new": 0})
    assert systems_hash([one]) == before, "a new setting at its default changes it"


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


def test_columns_from_question_rows_match_the_metrics(runs):
    folder, _ = runs
    records = find_runs([folder])
    table = runs_table(records, columns=("model", "f1", "auroc", "ece", "ece_fitted"))
    rows = [row for row in table.rows if "run" in row]
    for (path, record), row in zip(records, rows, strict=True):
        questions = load_questions(path, record)
        expected = {
            "auroc": 100 * auroc(-questions.null_odds, questions.answerable),
            "ece": reliability(questions.probability, questions.span_exact > 0).ece,
            "ece_fitted": reliability(questions.confidence, questions.exact > 0).ece,
        }
        assert {key: row[key] for key in expected} == pytest.approx(expected)
    assert "auroc" not in table.rows[0], "a heuristic has no question rows"
    assert "auroc" not in runs_table(records).rows[-1], "rows are read only if a column needs them"


def test_ece_is_unknown_without_probabilities(make_run, question_set):
    folder = make_run("a", question_set(), keep_spans=False)
    row = runs_table(find_runs([folder]), columns=("model", "ece", "ece_fitted")).rows[-1]
    assert row["ece"] is row["ece_fitted"] is None


def test_column_of_an_extra_that_is_taken_or_cannot_be_loaded_is_named_and_left_out(monkeypatch, caplog):
    taken = SimpleNamespace(COLUMNS=[Column("f1", "F1"), Column("f9", "F9")])
    monkeypatch.setitem(sys.modules, "mine.columns", taken)
    monkeypatch.setattr(manifest, "BROKEN", [])
    extras = [SimpleNamespace(columns=name) for name in ("nothing_here.columns", "mine.columns", None)]
    monkeypatch.setattr(columns, "extras", lambda: extras)
    known, *_ = columns._all_columns()
    assert (known["f1"], known["f9"]) == (COLUMNS["f1"], taken.COLUMNS[1])
    missing, other = caplog.messages
    assert "nothing_here.columns: cannot be loaded (ModuleNotFoundError: No module named" in missing
    assert "mine.columns: column 'f1' already exists; it is left out" in other


def test_other_code_of_a_package_of_the_user_is_recorded_and_noted(make_record, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "near_by" / "model.py"
    source.parent.mkdir()
    runs, hashes = [], []
    for seed, code in enumerate(("a = 1", "a = 1", "a = 2")):
        source.write_text(code)
        settings = {
            "model": {"_target_": "near_by.model.Near"},
            "logger": {"_target_": "pytorch_lightning.loggers.CSVLogger"},
        }
        versions = own_versions(settings)
        assert [*versions] == ["near_by"]
        hashes.append(code_hash(settings))
        runs.append((Path(f"run-{seed}"), make_record("near", seed=seed, versions=versions)))
    assert (hashes[0] == hashes[1], len({*hashes, code_hash({})})) == (True, 3)
    assert not any("near_by" in note for note in runs_table(runs[:2]).notes)
    (note,) = (note for note in runs_table(runs).notes if "near_by" in note)
    assert re.fullmatch(r"code of the runs differs, by version of near_by: \w{10} \(2\), \w{10} \(1\)", note)


def test_status_replaces_a_missing_score():
    row = {"exact": None, "f1": None, "status": "oom"}
    assert [COLUMNS[key].text(row) for key in ("exact", "f1")] == ["OOM", "–"]
    assert COLUMNS["exact"].text({"exact": 61.04, "status": "ok"}) == "61.0"


def grouped(records) -> tuple[list[str], dict[str, list[str]]]:
    """The runs of each table, and its notes by its first run."""
    groups = by_measure([(Path(f"run{index}"), record) for index, record in enumerate(records)])
    names = [" ".join(sorted(folder.name for folder, _ in group)) for group in groups]
    return sorted(names), {group[0][0].name: runs_table(group).notes for group in groups}


def test_runs_are_grouped_by_what_was_measured(make_record):
    records = [
        make_record(exact=None, status="oom"),
        make_record(data="d1"),
        make_record(data="d2"),
        make_record(data="d1", model="proposed"),
        make_record(data="d1", name="other"),
        make_record(data="d1", split="calibration"),
        replace(make_record(exact=None, status="oom"), data={}),  # died before it read its data
    ]
    assert grouped(records)[0] == ["run0 run1 run3 run6", "run2", "run4", "run5"]


def test_downloaded_checkpoint_is_in_every_table_of_its_set(make_record):
    hub = {"name": CHECKPOINTS, "config": {"model": {"_target_": CHECKPOINT}}}
    hub["threshold"] = {"value": 0.0, "fitted_on": "nothing"}
    names, notes = grouped(
        [
            make_record(data="d1"),
            make_record(data="d1", name="other"),
            make_record("hub", data="d1", **hub),
            make_record("other", data="d2", **hub),
        ]
    )
    assert names == ["run0 run2", "run1 run2", "run3"]
    assert "null threshold fitted on calibration; of hub on nothing" in notes["run0"]
    assert "null threshold fitted on nothing" in notes["run3"]
    assert any(note.startswith("hub: downloaded; ") for note in notes["run1"])


def test_models_are_compared_up_to_the_smaller_budget(make_record, tmp_path):
    """By the mean of the best of each draw of so many trials."""
    scores = [61.0, 48.5, 48.5, 57.0]
    for trials in (1, 2, 4):
        mean = fmean(map(max, product(scores, repeat=trials)))
        assert expected_best(scores, trials) == pytest.approx(mean)

    def trial(model, exact, seed):
        return tmp_path / f"{model}{seed}", make_record(model, exact, split="calibration", seed=seed)

    runs = [trial("bert", exact, seed) for seed, exact in enumerate((50.0, 52.0, None))]
    runs += [trial("proposed", exact, seed) for seed, exact in enumerate((40.0, 60.0, 44.0))]
    bert, proposed = expected_best_table(runs).rows
    assert bert == {"model": "bert", "trials": 2, "best_1": 53.0, "best_2": pytest.approx(53.5)}
    assert proposed["trials"] == 3
    assert proposed["best_2"] == pytest.approx(2 + (60 * 5 + 44 * 3 + 40) / 9)
    with pytest.raises(RunError, match="no run was scored on calibration"):
        expected_best_table(runs[2:3])
    elsewhere = make_record("bert", 50.0, split="calibration", data="d2")
    with pytest.raises(RunError, match="scores on different sets"):
        expected_best_table([*runs, (tmp_path / "other", elsewhere)])


def test_special_characters_are_escaped():
    columns = [text("name", "x\n|y"), number("f1", "F1")]
    odd = Table("a | b\n# c_", columns, [{"name": "p\n|q", "f1": -1.2}], ["m\nn"])
    assert markdown(odd).splitlines() == [
        "## a | b # c_",
        "",
        r"| x \|y | F1 |",
        "|---|---:|",
        r"| p \|q | -1.2 |",
        "",
        "- m n",
    ]
    assert r"\caption{a \textbar{} b \# c\_}" in latex(odd)
    assert "\nx \\textbar{}y & F1" in latex(odd)
    assert "q & $-$1.2 " in latex(odd)  # LaTeX would set a hyphen
    assert "1e-4 on 2026-11-28, $-$0.5" in latex(Table("1e-4 on 2026-11-28, -0.5", [], []))
    stars = [{"name": "[2] ''x"}, {"name": "*"}]  # bare, they would be an option of the end of the row before
    page = latex(Table("t", [text("name", "[1]")], stars))
    assert all(line in page for line in ("{[}1] \\\\\n", "{[}2] '{}'x \\\\\n", "{*} \\\\\n"))


def test_fill_replaces_only_the_text_between_markers() -> None:
    first, second = (Table("T", select_columns(["model"]), [{"model": name}]) for name in ("one", "two"))
    page = (
        "# x\n<!-- table: demo -->\n{}<!-- end -->\n| old |\n"
        "<!-- table: other -->\nkept\n<!-- end -->\n<!-- table: demo 2 -->\n{}<!-- end -->\n"
    )
    filled = fill(page.format("old\n", ""), "demo", [first, second])
    assert filled == page.format(*(f"\n| model |\n|---|\n| {name} |\n\n" for name in ("one", "two")))
    assert fill(filled, "demo", [first, second]) == filled


@pytest.mark.parametrize("prefix", ["=", "-", "\r"])
def test_csv_cells_are_never_formulas(prefix):
    name = f"{prefix}cmd|'/c calc'!A1"
    table = Table(name, [], [{"m": name, "f1": -1.2, "s": "-1e-5"}])
    (row,) = csv.DictReader(io.StringIO(render([table], "csv"), ""))
    shown = "'" + name.replace("\r", " ")
    assert row == {"table": shown, "m": shown, "f1": "-1.2", "s": "-1e-5"}


def test_columns_are_dropped_by_weight_and_from_the_right():
    columns = [
        text("name", "question"),
        number("f1", "F1"),
        number("seeds", "seeds", weight=-1),
        number("delta", "ΔF1", weight=1),
        number("seconds", "training seconds"),
    ]
    cells = [[column.heading for column in columns], ["bert", "61.2", "3", "+1.20", "12,345.6"]]
    dropped = [fit(columns, cells, width)[2] for width in range(40, 0, -1)]
    assert [left_out for left_out, _ in groupby(dropped) if left_out] == [
        ["seeds"],
        ["seeds", "training seconds"],
        ["F1", "seeds", "training seconds"],
        ["F1", "seeds", "ΔF1", "training seconds"],
    ]
    row = {"name": "Who built the old bridge at Lowmere?", "f1": 61.2, "seconds": 12345.6}
    table = Table("t", columns, [row], ["a note"])
    lines = render([table], "text", 30).splitlines()
    assert max(map(cell_len, lines)) <= 30
    assert "not shown in 30 characters: seeds" in " ".join(" ".join(lines).split())
    assert "not shown" not in render([table], "text") + render([table], "text", 130)
    assert sum("61.2" in line for line in lines) == 1
    words = " ".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert words == row["name"], "words wrap, numbers do not"


WORDS = st.text("ab c水", max_size=30)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(-2, 2), WORDS), min_size=1, max_size=8),
    st.integers(20, 150),
)
def test_table_fits_the_width(columns, width):
    specs = [
        (text if left else number)(str(index), f"c{index}", weight=weight)
        for index, (left, weight, _) in enumerate(columns)
    ]
    cells = [[column.heading for column in specs], [cell for _, _, cell in columns]]
    places, widths, _ = fit(specs, cells, width)
    assert places[0] == 0
    assert BORDER + sum(column + RULE for column in widths) <= width or len(places) == 1
    for index, column_width in zip(places, widths, strict=True):
        assert specs[index].left or column_width >= cell_len(cells[1][index])


def test_text_is_neither_truncated_nor_wrapped(capsys):
    columns = [*select_columns(["model", "exact"]), text("markup", "[/x]")]
    row = {"model": "m" * 200, "exact": 1.0, "markup": "[/x]"}
    long = Table("[/x]", columns, [row], ["n" * 200])
    print_table(long)
    for page in (capsys.readouterr().out, render([long], "text")):
        assert "m" * 200 in page
        assert "n" * 200 in page
        assert page.count("[/x]") == 3
        assert "\x1b" not in page
