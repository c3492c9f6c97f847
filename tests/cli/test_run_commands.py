"""``predict`` and ``evaluate --run``: both reproduce the recorded scores of a run."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kills import contents

from qa_arch import evaluation, files, hub, load
from qa_arch.adopt import _combined
from qa_arch.config.schema import validate
from qa_arch.data import synthetic
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import held_out
from qa_arch.data.squad import write
from qa_arch.errors import ConfigError, RunError
from qa_arch.files import holder, write_json
from qa_arch.models.checkpoint_files import run_config
from qa_arch.provenance import DEV_ACCESS_LOG, read_dev_accesses
from qa_arch.records import (
    Confidence,
    Parent,
    SplitFacts,
    Threshold,
    questions_folder,
    read_questions,
    read_record,
    read_scored,
    write_record,
)
from qa_arch.types import question_word

OFFICIAL = ("exact", "f1", "total", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")


def flat(points):
    """Points as printed by commands."""
    return {name: point.flat() for name, point in points.items()}


@pytest.fixture(scope="session")
def dev_file(tmp_path_factory):
    return write_json(tmp_path_factory.mktemp("data") / "dev.json", write(synthetic.named("dev")))


def test_predict_then_evaluate_gives_the_recorded_scores(qa_arch, trained, dev_file, tmp_path, read_json):
    assert qa_arch("predict", trained, "--data", dev_file, "--out", tmp_path)[0] == 0
    assert read_json(tmp_path / "predictions.json") == read_json(trained / "predictions.json")
    code, out, _ = qa_arch("evaluate", "--data", dev_file, "--predictions", tmp_path / "predictions.json")
    recorded = read_record(trained).scores["dev"]["calibrated"].flat()
    assert code == 0
    assert {k: json.loads(out)[k] for k in OFFICIAL} == {k: recorded[k] for k in OFFICIAL}


@pytest.mark.parametrize("labelled", [True, False])
def test_predict_always_answers_squad_1_1_unless_given_a_threshold(
    qa_arch, run_folder, tmp_path, read_json, labelled
):
    """Without any label a set is of neither version, and the run's own threshold holds, as in JSON lines."""
    answerable = [example for example in synthetic.named("dev").examples if example.answerable][:9]
    content = write(question_set("dev", answerable, "1.1"))
    for qa in (q for a in content["data"] for p in a["paragraphs"] for q in p["qas"] if not labelled):
        del qa["answers"]
    data = write_json(tmp_path / "dev.json", content)
    low = Threshold(value=-1e6, fitted_on="nothing")
    write_record(run_folder, replace(read_record(run_folder), threshold=low))
    for options, answers in ((), labelled), (("--null-threshold=-1e6",), False):
        out = tmp_path / f"out{len(options)}"
        assert qa_arch("predict", run_folder, "--data", data, "--out", out, *options)[0] == 0
        predictions = read_json(out / "predictions.json")
        assert {bool(text) for text in predictions.values()} == {answers}


def test_predictions_of_another_call_are_replaced_only_on_request(qa_arch, trained, dev_file, tmp_path):
    command = ("predict", trained, "--data", dev_file, "--out", tmp_path / "out")
    assert qa_arch(*command)[0] == 0
    before = contents(tmp_path / "out")
    code, _, err = qa_arch(*command, "--null-threshold=-inf")
    assert (code, "out: holds predictions already; --if-exists replace" in err) == (5, True), err
    assert contents(tmp_path / "out") == before
    assert qa_arch(*command, "--null-threshold=-inf", "--if-exists", "replace")[0] == 0
    assert contents(tmp_path / "out") != before


def test_graph_is_not_exported_again(qa_arch, trained, tmp_path, monkeypatch):
    reader = load(trained, device="cpu")
    reader.library = "onnx + torch"
    monkeypatch.setattr("qa_arch.qa.loading.load", lambda *_, **options: reader)
    code, _, err = qa_arch("export", trained, "--to", "onnx", "--out", tmp_path / "out")
    assert (code, "is a graph, or holds one; export the runs that were trained" in err) == (2, True), err


def test_question_rows_hold_question_words_and_no_text(trained):
    examples = {example.id: example for example in synthetic.named("dev").examples}
    rows = read_questions(trained)
    assert rows["word"] == [question_word(examples[id_].question) for id_ in rows["id"]]
    pairs = {(article, examples[id_].title) for id_, article in zip(rows["id"], rows["article"], strict=True)}
    assert len(pairs) == len(set(rows["article"])) == len({e.title for e in examples.values()}) > 1
    questions = {example.question for example in examples.values()}
    assert not questions & {str(value) for values in rows.values() for value in values}


def test_evaluate_run_prints_a_table_with_the_fitted_threshold_first(qa_arch, run_folder):
    code, out, err = qa_arch("evaluate", "--run", run_folder, "--null-threshold", "0.5")
    assert code == 0, err
    rows = [line for line in out.splitlines() if "dev" in line]
    assert "calibrated" in rows[0]
    assert f"{read_record(run_folder).scores['dev']['calibrated'].f1:.1f}" in rows[0]
    assert len(rows) == len(read_record(run_folder).scores["dev"]) == 5


def test_a_threshold_that_is_infinite_is_null_in_json(qa_arch, run_folder, tmp_path):
    path = tmp_path / "scores.json"
    evaluate = ["evaluate", "--run", run_folder, "--null-threshold", "inf", "--json", "--out", path]
    code, out, err = qa_arch(*evaluate)
    assert code == 0, err
    assert (json.loads(out)["given"]["threshold"], path.read_text()) == (None, out)


def test_closed_dev_set_is_scored_only_with_final(
    qa_arch, trained, closed_run, tmp_path, dev_file, read_json, monkeypatch
):
    log = tmp_path / "experiments" / "debug" / DEV_ACCESS_LOG
    for arguments in ((), ("--data", dev_file)):
        code, _, err = qa_arch("evaluate", "--run", closed_run, *arguments)
        assert (code, "--final" in err) == (2, True)
    code, _, err = qa_arch("adopt", closed_run, "--calibration", dev_file, "--folder", "opened")
    assert (code, "dev set that the run holds out" in err) == (4, True), err
    assert [path.exists() for path in (log, Path("opened"))] == [False, False]
    assert "dev" not in read_record(closed_run).scores

    log.parent.mkdir(parents=True)
    code, _, err = qa_arch("evaluate", "--run", closed_run, "--final")
    assert (code, "--final: no experiment debug in" in err) == (2, True), "that it is here does not matter"
    final = ("evaluate", "--run", closed_run, "--final", "--experiments", log.parents[1])
    code, out, _ = qa_arch(*final, "--json", "--out", tmp_path / "scores.json")
    first, opened = read_record(trained), read_record(closed_run)
    assert code == 0
    assert json.loads(out) == read_json(tmp_path / "scores.json") == flat(opened.scores["dev"])
    assert (opened.scores, opened.data, opened.references) == (first.scores, first.data, first.references)
    assert read_json(closed_run / "predictions.json") == read_json(trained / "predictions.json")
    assert read_questions(closed_run) == read_questions(trained)

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert qa_arch(*final)[0] == 0
    (first, second) = read_dev_accesses(log.parent)
    assert read_record(closed_run).dev_accesses == (first, second)
    assert first.run == second.run == closed_run.name
    assert (first.config_hash, first.data) == (opened.run_hash, "synthetic-dev")
    assert first.fingerprint == opened.data["dev"].fingerprint
    greedy = tmp_path / "greedy"
    assert qa_arch("adopt", closed_run, "--decode", "greedy", "--folder", greedy)[0] == 0
    assert read_record(greedy).dev_accesses == (), "those of its model"


def test_closed_dev_set_is_known_by_the_record(qa_arch, closed_run, dev_file, tmp_path, read_json):
    """Not by the file that is now where the config says."""
    record = read_record(closed_run)
    write_json(tmp_path / "other.json", write(synthetic.generate(1, 7, 1, "dev")))
    config = record.config | {"data": record.config["data"] | {"dev": "other.json"}}
    write_record(closed_run, replace(record, config=config, held_out=held_out(validate(record.config).data)))
    content = read_json(dev_file)
    part = write_json(tmp_path / "part.json", {**content, "data": content["data"][-1:]})
    for article in content["data"]:
        del article["title"]
    bare = write_json(tmp_path / "bare.json", content)
    before = read_record(closed_run)
    assert qa_arch("export", closed_run, "--to", "hf", "--out", "exported")[0] == 0
    assert not before.trained_titles & set(Path("exported/qa_arch.json").read_text().split('"'))
    for file in (part, bare):
        for run in (closed_run, "exported"):
            code, _, err = qa_arch("evaluate", "--run", run, "--data", file)
            assert (code, "holds its dev set out" in err) == (2, True), err
            code, _, err = qa_arch("adopt", run, "--calibration", file, "--folder", "opened")
            assert (code, "dev set that the run holds out" in err) == (4, True), err
    code, _, err = qa_arch("evaluate", "--run", closed_run, "--final")
    assert (code, "other.json is not the run's dev set" in err) == (4, True), err
    assert read_record(closed_run) == before
    assert qa_arch("evaluate", "--run", closed_run, "--data", "other.json")[0] == 0
    assert list(read_record(closed_run).scores) == ["calibration", "other"]


@pytest.mark.usefixtures("own_folder")
def test_threshold_is_not_fitted_on_training_articles(qa_arch, run_folder):
    exported, twin = "exported", shutil.copytree(run_folder, "twin")
    assert qa_arch("export", run_folder, "--to", "hf", "--out", exported)[0] == 0
    for sources in ([run_folder], [run_folder, twin], [exported]):
        command = ("adopt", *sources, "--folder", "fitted", "--calibration")
        code, _, err = qa_arch(*command, "synthetic:train")
        assert (code, "the run's training data share" in err) == (4, True), err
    assert qa_arch(*command, "synthetic:calibration")[0] == 0, "on which the run was only calibrated"
    code, _, err = qa_arch("evaluate", "--run", exported, "--data", "synthetic:train")
    assert (code, "with the run's training and calibration data" in err) == (4, True), err


def test_scores_of_dev_are_not_replaced_by_those_of_another_file(qa_arch, run_folder, tmp_path):
    record = read_record(run_folder)
    more = write_json(tmp_path / "more.json", write(synthetic.generate(1, 7, 1, "dev")))
    config = record.config | {"data": record.config["data"] | {"dev": str(more)}}
    write_record(run_folder, replace(record, config=config))
    before = (run_folder / "run.json").read_bytes()
    code, _, err = qa_arch("evaluate", "--run", run_folder)
    message = f"{more} is not the run's dev set (hashes {record.fingerprint('dev')[:8]} and"
    assert (code, message in err) == (4, True), err
    assert (run_folder / "run.json").read_bytes() == before
    assert qa_arch("evaluate", "--run", run_folder, "--data", more)[0] == 0
    after = read_record(run_folder)
    assert (after.scores["dev"], list(after.scores)[-1]) == (record.scores["dev"], "more")


def test_training_articles_are_only_scored_with_allow_overlap(qa_arch, run_folder):
    before = read_record(run_folder)
    calibration = ("evaluate", "--json", "--run", run_folder, "--data", "synthetic:calibration")
    code, _, err = qa_arch(*calibration)
    assert (code, "shares 40 articles" in err) == (4, True)
    scores, after = json.loads(qa_arch(*calibration, "--allow-overlap")[1]), read_record(run_folder)
    assert all(len(point["overlap"]) == 40 for point in scores.values())
    assert flat(after.scores["synthetic-calibration"]) == scores
    assert {name: after.data[name] for name in before.data} == before.data
    assert {name: after.scores[name] for name in before.scores} == before.scores
    assert scores["calibrated"]["f1"] == before.scores["calibration"]["calibrated"].f1


def test_sets_of_the_same_name_are_recorded_separately(qa_arch, run_folder, tmp_path, caplog):
    sets = {seed: write(synthetic.generate(1, seed, 1, "dev")) for seed in (7, 8)}
    for seed, content in sets.items():
        file = write_json(tmp_path / str(seed) / "test.json", content)
        for _ in range(2):  # scoring a set again overwrites its scores
            code, out, err = qa_arch("evaluate", "--json", "--run", run_folder, "--data", file)
            assert code == 0, err
        record = read_record(run_folder)
        split = list(record.scores)[-1]
        assert flat(record.scores[split]) == json.loads(out)
    assert list(record.scores)[-2:] == ["test", f"test-{record.fingerprint(split)[:8]}"]
    assert f"recorded as {split}" in caplog.text
    first, second = (read_questions(run_folder / "sets" / name)["id"] for name in ("test", split))
    assert not set(first) & set(second)

    # The heuristics cannot be fitted again, but the set is the same.
    assert split in record.references
    other = replace(record.data["calibration"], fingerprint="0" * 64)
    write_record(run_folder, replace(record, data={**record.data, "calibration": other}))
    qa_arch("evaluate", "--run", run_folder, "--data", file)
    assert read_record(run_folder).references == record.references


def test_sets_scored_at_once_are_both_recorded(qa_arch, run_folder, tmp_path, monkeypatch):
    """The second command runs as a whole while the first is scoring, on a file of the same name."""
    files = [
        write_json(tmp_path / str(seed) / "a.json", write(synthetic.generate(1, seed, 1, "dev")))
        for seed in (7, 8)
    ]
    reference_scores, others = evaluation.reference_scores, iter(files[1:])

    def interrupted(*arguments):
        for file in others:
            assert qa_arch("evaluate", "--run", run_folder, "--data", file)[0] == 0
        return reference_scores(*arguments)

    monkeypatch.setattr(evaluation, "reference_scores", interrupted)
    assert qa_arch("evaluate", "--run", run_folder, "--data", files[0])[0] == 0
    record = read_scored(run_folder)
    ids = {frozenset(read_questions(questions_folder(run_folder, split))["id"]) for split in record.scores}
    assert len(ids) == len(record.scores) == 4
    assert {len(rows) for rows in ids} == {record.facts(split).questions for split in record.scores}


@pytest.mark.parametrize("renamed", [False, True], ids=["trained again", "renamed"])
def test_scores_of_a_run_that_is_gone_are_not_recorded(qa_arch, run_folder, tmp_path, monkeypatch, renamed):
    read_set = evaluation.read_set
    record = replace(read_record(run_folder), created="2031-01-01T00:00:00+00:00")

    def replaced(*arguments, **options):
        if renamed:
            run_folder.rename(tmp_path / "elsewhere")
        else:
            write_record(run_folder, record)
        return read_set(*arguments, **options)

    monkeypatch.setattr(evaluation, "read_set", replaced)
    files = sorted(run_folder.rglob("*"))
    code, _, err = qa_arch("evaluate", "--run", run_folder, "--data", "synthetic:dev")
    assert (code, "is no longer the run that was scored" in err) == (5, True), err
    assert run_folder.exists() is not renamed
    assert renamed or (sorted(run_folder.rglob("*")), read_scored(run_folder)) == (files, record)


WRITERS = {
    "evaluate": ("evaluate --run RUN --data synthetic:dev", "RUN"),
    "decode": ("adopt RUN --decode greedy --folder OUT", "OUT"),
    "suite": ("suite OUT.yaml RUN", "RUN"),
    "adopt": ("adopt --predictions RUN/predictions.json --data synthetic:dev --name x --folder OUT", "OUT"),
    "export": ("export RUN --to hf --out OUT", "OUT"),
    "publish": ("tables RUN --publish OUT", "OUT/NAME"),
    "predict": ("predict RUN --data synthetic:dev --out OUT", "OUT"),
}
"""Command that changes a folder, and the folder."""


@pytest.mark.parametrize("name", WRITERS)
def test_folder_is_locked_while_a_command_changes_it(qa_arch, run_folder, tmp_path, monkeypatch, name):
    """Else two commands at once would each lose, or mix, what the other has written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path.parent))  # for published paths
    words = {"RUN": run_folder.name, "OUT": "out", "NAME": run_folder.name}
    command, place = (re.sub("RUN|OUT|NAME", lambda word: words[word[0]], text) for text in WRITERS[name])
    questions = write_json(tmp_path / "new.json", write(synthetic.generate(2, 7, 1, "dev")))
    write_json(tmp_path / "out.yaml", {"sets": {"new": {"data": str(questions)}}})
    out, create, locked = Path(place).absolute(), files._create_locked, []

    def noted(target, *, folder):
        if out in (target.absolute(), *target.absolute().parents):
            holders = holder(out), holder(out.parent, f".{out.name}.lock")
            locked.append((target.name, any(holders)))
        return create(target, folder=folder)

    monkeypatch.setattr(files, "_create_locked", noted)
    code, _, err = qa_arch(*command.split())
    assert code == 0, err
    assert locked
    assert all(held for _, held in locked), locked


@pytest.fixture
def misplaced(tmp_path):
    """``misplaced(part, faulty=False)``: file of a part of the synthetic set with an answer that is not in
    its passage, which can be scored; ``faulty``: and a question that cannot be."""

    def written(part: str, *, faulty: bool = False) -> str:
        content = write(synthetic.named(part))
        questions = [q for a in content["data"] for p in a["paragraphs"] for q in p["qas"]]
        next(q for q in questions if q["answers"])["answers"][0]["text"] = "nowhere in it"
        if faulty:
            questions[-1]["question"] = 7
        return str(write_json(tmp_path / f"{part}{faulty}.json", content))

    return written


@pytest.mark.parametrize("open_dev", [True, False])
def test_run_that_skips_faulty_records_is_scored_on_all_of_another_set(trained, misplaced, caplog, open_dev):
    """Its own dev set stays the one that training has read. What is left out is listed."""
    dev, other, whole = misplaced("dev"), misplaced("calibration"), len(synthetic.named("calibration"))
    record = replace(read_record(trained), data={})
    data = record.config["data"] | {"on_error": "skip", "dev": dev, "open_dev": open_dev}
    skipped = open_passages(dev, on_error="skip", use="scoring")
    if open_dev:
        record = replace(record, data={"dev": SplitFacts.of(skipped)})

    def opened(source, *, final=False, **options):
        config = run_config(record.config | {"data": data})
        return evaluation.open_set(record, config, [source], evaluation.Permission(final=final), **options)

    assert len(opened(other).questions) == whole
    assert f"left out: {other}" not in caplog.text
    assert len(opened(other, on_error="skip").questions) == whole - 1
    faulty = misplaced("calibration", faulty=True)
    assert len(opened(faulty).questions) == whole - 2
    assert [caplog.text.count(f"left out: {file}") for file in (other, faulty)] == [1, 2]
    own = opened(dev, final=not open_dev)
    assert (own.split, own.questions.fingerprint) == ("dev", skipped.fingerprint)


def test_training_questions_are_scored_without_changing_dev(qa_arch, run_folder):
    before = read_record(run_folder)
    code, out, _ = qa_arch("evaluate", "--json", "--run", run_folder, "--train")
    after = read_record(run_folder)
    assert (code, json.loads(out)) == (0, flat(after.scores["train"]))
    assert after.scores["train"]["calibrated"].metrics["total"] == before.data["train"].questions
    assert len(read_questions(run_folder / "sets" / "train")["id"]) == before.data["train"].questions
    assert after.data == before.data
    assert {name: after.scores[name] for name in before.scores} == before.scores
    other = replace(before.data["train"], fingerprint="0" * 64)
    write_record(run_folder, replace(before, data={**before.data, "train": other}))
    code, _, err = qa_arch("evaluate", "--run", run_folder, "--train")
    assert (code, "no longer the data that the run was trained on" in err) == (4, True)
    assert "train" not in read_record(run_folder).scores


def test_ensemble_becomes_a_run_that_is_scored_like_any(qa_arch, trained, tmp_path):
    twin, out = shutil.copytree(trained, tmp_path / "twin"), tmp_path / "both"
    member = replace(
        read_record(twin),
        threshold=Threshold(value=2.0, fitted_on="nothing"),
        confidence=Confidence(method="temperature", value=3.0, fitted_on="calibration"),
        peak_memory_mb=7.0,
    )
    write_record(twin, member)
    code, _, err = qa_arch("adopt", twin, trained, "--folder", out)
    assert (code, set(read_record(out).scores)) == (0, set()), err
    code, out_text, err = qa_arch("evaluate", "--json", "--run", out)
    assert code == 0, err
    first, ensemble = read_record(trained), read_record(out)
    assert ensemble.scores["dev"]["calibrated"].threshold == ensemble.null_threshold
    assert ensemble.null_threshold == pytest.approx((first.null_threshold + 2) / 2)
    assert ensemble.temperature == pytest.approx((first.temperature + 3) / 2)
    assert ensemble.threshold.fitted_on == "calibration and nothing"
    assert (ensemble.weights_bytes, ensemble.peak_memory_mb) == (2 * first.weights_bytes, None)
    assert ensemble.parameters.total == 2 * first.parameters.total
    assert json.loads(out_text) == flat(ensemble.scores["dev"])
    assert ensemble.model == "bert-ensemble-2"
    assert list(ensemble.members) == [f"{run.name} ({first.run_hash[:8]})" for run in (twin, trained)]
    assert ensemble.point("dev", "forced").f1 == pytest.approx(first.point("dev", "forced").f1, abs=0.5)
    assert set(ensemble.scores) == {"dev"}
    reader, pairs = load(out, device="cpu"), [("Who wrote it?", "Ada Stone wrote it.")]
    assert (reader.null_threshold, reader.temperature) == (ensemble.null_threshold, ensemble.temperature)
    assert reader.predict(pairs) == load([twin, trained], device="cpu").predict(pairs)
    listed = (out / "members.json").read_text()
    for content in ("null", json.dumps(json.loads(listed)[:1])):
        (out / "members.json").write_text(content)
        with pytest.raises(RunError, match=r"members\.json: does not list the members .* adopt its runs"):
            load(out, device="cpu", trust=["mine"])
    (out / "members.json").write_text(listed)
    write_record(twin, replace(member, created="2031-01-01T00:00:00+00:00"))
    code, _, err = qa_arch("evaluate", "--run", out)
    assert (code, "is no longer the run that was adopted" in err) == (5, True), err
    assert "holds the record of bert-ensemble-2" in qa_arch("adopt", twin, trained, "--folder", out)[2]


@pytest.fixture
def ensemble_of(trained, tmp_path):
    """``ensemble_of(**members)``: the record of an ensemble of ``trained`` as changed for each, by name."""

    def combined(**members):
        for name, (changes, data) in members.items():
            record = read_record(trained)
            config = {**record.config, "name": name, "data": {**record.config["data"], **data}}
            write_record(tmp_path / name, replace(record, config=config, **changes))
        return _combined([str(tmp_path / name) for name in members], None, None, None)

    return combined


def test_ensemble_is_named_after_all_models_and_knows_the_systems_of_its_members(ensemble_of):
    """Whatever seeds they have, and whatever else they were scored on."""
    members = {"a": ({}, {}), "b": ({"model": "other"}, {})}
    ensemble = ensemble_of(**members)
    assert ensemble.model == "bert+other-ensemble-2"
    seeds = {"c": ({"model": "other", "seed": 99, "data": {}, "scores": {}}, {}), "d": ({"seed": 98}, {})}
    data = {split: facts for split, facts in ensemble.data.items() if split != "dev"}
    seeds["c"][0]["data"] = data
    assert ensemble_of(**seeds).members_hash == ensemble.members_hash
    assert ensemble_of(a=members["a"], d=seeds["d"]).members_hash != ensemble.members_hash


def test_ensemble_has_the_training_articles_and_precisions_of_all_members(ensemble_of):
    """In any order."""
    child = {"parent": Parent(run="p", run_hash="h", titles=("Seen",)), "precision": "bf16"}, {}
    members = {"a": child, "b": ({"precision": "fp32"}, {})}
    for names in ("ab", "ba"):
        ensemble = ensemble_of(**{name: members[name] for name in names})
        assert ("Seen" in ensemble.trained_titles, ensemble.precision) == (True, "bf16 + fp32")


def test_ensemble_keeps_the_dev_set_closed_that_a_member_holds_out(ensemble_of):
    """In any order, and no other member may hold out another set."""
    members = {"open": ({}, {"dev": "synthetic:train"}), "closed": ({}, {"open_dev": False})}
    for names in (["open", "closed"], ["closed", "open"]):
        config = ensemble_of(**{name: members[name] for name in names}).config
        assert (config["name"], config["data"]["open_dev"]) == ("closed", False)
    with pytest.raises(ConfigError, match=r"other: holds out another dev set \(a\.json\) than another run"):
        ensemble_of(**members, other=({}, {"open_dev": False, "dev": "a.json"}))
    one, two = (({"held_out": SplitFacts(fingerprint=hash_)}, {"open_dev": False}) for hash_ in "ab")
    assert ensemble_of(**members, one=one).held_out.fingerprint == "a"
    with pytest.raises(ConfigError, match="two: holds out another dev set"):
        ensemble_of(**members, one=one, two=two)


def test_other_decoding_becomes_a_run_of_its_own(qa_arch, trained, run_folder, tmp_path, read_json):
    out = tmp_path / "greedy"
    before = (run_folder / "run.json").read_bytes()
    arguments = ("adopt", run_folder, "--decode", "greedy", "--folder", out)
    assert qa_arch(*arguments)[0] == 0
    record = read_json(out / "run.json")
    assert record["config"]["decode"]["search"] == "greedy"
    assert record["model"] == "bert-greedy"
    assert record["run_hash"] != read_json(run_folder / "run.json")["run_hash"]
    assert (run_folder / "run.json").read_bytes() == before
    assert qa_arch("evaluate", "--run", out)[0] == 0
    scored = (out / "run.json").read_bytes()
    assert qa_arch(*arguments)[0] == 0, "repeating it keeps the scores"
    code, _, err = qa_arch(*arguments, "--name", "other")
    assert (code, "is called bert-greedy, not other; leave out --name" in err) == (5, True), err
    assert (out / "run.json").read_bytes() == scored
    answers = ("--predictions", run_folder / "predictions.json", "--data", "synthetic:dev")
    for source in ((run_folder, "--decode", "greedy"), answers):
        code, _, err = qa_arch("adopt", *source, "--name", "two\nlines", "--folder", out.with_name("odd"))
        assert (code, r"name: 'two\nlines' must be one line without" in err) == (2, True), err
        assert not out.with_name("odd").exists()
    code, _, err = qa_arch("adopt", run_folder, "--decode", "grid", "--folder", out)
    assert (code, "holds the record of bert-greedy with other" in err) == (5, True)


@pytest.fixture
def more_questions(tmp_path):
    """File of a calibration set with a question that is none."""
    more = write(synthetic.generate(2, 9, 2, "dev"))
    more["data"][0]["paragraphs"][0]["qas"][0]["question"] = 7
    return write_json(tmp_path / "more.json", more)


def test_other_calibration_becomes_a_run_of_its_own(qa_arch, run_folder, more_questions, tmp_path, caplog):
    out, options = tmp_path / "again", ("--calibration", more_questions, "--on-error", "skip")
    assert qa_arch("adopt", run_folder, *options, "--folder", out)[0] == 0
    assert caplog.text.count("left out: ") == caplog.text.count(", question: is ") == 1
    record, first = read_record(out), read_record(run_folder)
    assert (record.model, record.threshold.fitted_on) == ("bert-recalibrated", "calibration")
    assert record.scores["calibration"]["calibrated"].threshold == record.null_threshold
    assert record.null_threshold == load(out).null_threshold != first.null_threshold
    assert record.trained_titles > first.trained_titles, "scored on neither calibration set"
    assert record.facts("calibration").questions == len(open_passages(more_questions, on_error="skip"))
    code, _, err = qa_arch("adopt", out, run_folder, "--folder", tmp_path / "nested")
    assert (code, "was itself adopted from" in err) == (2, True)


def test_other_calibration_is_read_as_the_sets_of_the_run_or_as_options_say(
    qa_arch, run_folder, more_questions, tmp_path
):
    record = read_record(run_folder)
    data = record.config["data"] | {"language": "de", "on_error": "skip"}
    write_record(run_folder, replace(record, config=record.config | {"data": data}))
    command = ("adopt", run_folder, "--calibration", more_questions, "--folder")
    for options, language in (((), "de"), (("--language", "en"), "en")):
        assert qa_arch(*command, tmp_path / language, *options)[0] == 0
        read_as = read_record(tmp_path / language).config["data"]
        assert (read_as["language"], read_as["on_error"]) == (language, "skip")
    code, _, err = qa_arch(*command, tmp_path / "raise", "--on-error", "raise")
    assert (code, ", question: is " in err) == (4, True)


def test_set_without_unanswerable_questions_takes_no_threshold_and_no_split_name(
    qa_arch, run_folder, tmp_path
):
    mixed = synthetic.generate(2, 5, 1, "dev")
    spans = question_set("s", [example for example in mixed.examples if example.answers], "1.1")
    file = write_json(tmp_path / "train.json", write(spans))
    code, _, err = qa_arch("evaluate", "--run", run_folder, "--data", file, "--null-threshold", "1")
    assert (code, "has no unanswerable questions (1.1)" in err) == (2, True)
    record = read_record(run_folder)
    write_record(run_folder, replace(record, threshold=replace(record.threshold, value=-99.0)))
    assert qa_arch("evaluate", "--run", run_folder, "--data", file)[0] == 0
    record = read_record(run_folder)
    assert set(record.scores) == {"calibration", "dev", "train-set"}
    # Rows and files have the scores of the record, in which "no answer" is never given.
    folder = questions_folder(run_folder, "train-set")
    files = ("--predictions", folder / "predictions.json", "--data", file)
    rescored = json.loads(qa_arch("evaluate", *files)[1])
    f1 = record.compared_point("train-set").f1
    assert f1 > 0
    assert 100 * np.mean(read_questions(folder)["f1"]) == pytest.approx(f1)
    assert rescored["f1"] == pytest.approx(f1)


def test_changed_calibration_set_leaves_no_fitted_threshold(qa_arch, run_folder, tmp_path, caplog):
    record = read_record(run_folder)
    other = replace(record.data["calibration"], fingerprint="0" * 64)
    write_record(run_folder, replace(record, data={**record.data, "calibration": other}))
    assert qa_arch("adopt", run_folder, "--decode", "greedy", "--folder", tmp_path / "greedy")[0] == 0
    assert "the calibration set is not the run's own" in caplog.text
    greedy = read_record(tmp_path / "greedy")
    assert greedy.threshold == Threshold(value=0.0, fitted_on="nothing")
    assert (greedy.confidence, greedy.answerability) == (None, None)


def test_dry_run_lists_files_to_upload(trained, tmp_path, qa_arch, monkeypatch):
    monkeypatch.setattr(hub, "upload", lambda *_, **__: pytest.fail("uploaded"))
    options = ("--to", "hf", "--out", tmp_path / "hf", "--push", "me/model", "--dry-run")
    code, out, err = qa_arch("export", trained, *options)
    assert (code, err.strip()) == (0, "")
    assert re.search(r"MB  model\.safetensors\n", out)
    assert "| dev | calibrated |" in (tmp_path / "hf" / "README.md").read_text()
    assert out.splitlines()[-1] == "dry run: --push would upload these to me/model"


def test_evaluate_killed_before_its_predictions_leaves_rows_that_are_refused(
    run_folder, qa_arch, monkeypatch
):
    record = read_record(run_folder)
    write_record(run_folder, replace(record, threshold=replace(record.threshold, value=-1e6)))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "write_parts", killed)
        qa_arch("evaluate", "--run", run_folder)
    code, _, err = qa_arch("show", run_folder)
    assert (code, "are not the rows that the scores" in err) == (5, True)
    assert [qa_arch(*words, run_folder)[0] for words in (["evaluate", "--run"], ["show"])] == [0, 0]
