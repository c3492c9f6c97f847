"""``qa-arch pretrain`` and other commands on pre-training runs: what is written and printed, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kills import contents
from pages import commands

from qa_arch.config.files import write_json
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.extras.pretraining.vocabularies import KINDS
from qa_arch.records import read_record
from qa_arch.spans.loading import load_predictor

OBJECTIVES = ("mlm", "mlm_nsp", "mlm_sop", "causal", "mlm_spans")


# Tokenizers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [f"Keeper {n} of lock {n * 7} paid {n % 13} crowns at the quay.\n\n" for n in range(300)]
    path.write_text("".join(lines) * 2)
    return path


@pytest.fixture
def tokenizer_folder(qa_arch, text_file, tmp_path):
    arguments = ["--vocabulary", 300, "--out", tmp_path / "ours"]
    code, _, error = qa_arch("pretrain", "tokenizer", text_file, *arguments)
    assert code == 0, error
    return tmp_path / "ours"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_is_written_with_what_it_was_trained_on(qa_arch, text_file, tmp_path, kind):
    size = 100 if kind == "unigram" else 300
    for name in "ab":
        code, out, error = qa_arch(
            "pretrain", "tokenizer", text_file, "--kind", kind, "--vocabulary", size, "--out", tmp_path / name
        )
        assert (code, error) == (0, "")
        assert f"{name}: {kind}, {size} pieces, from 600 documents (0.0 MB) in " in out
    assert kind == "unigram" or contents(tmp_path / "a") == contents(tmp_path / "b")
    record = json.loads((tmp_path / "a" / "trained_on.json").read_text())
    assert (record["documents"], record["corpus"]) == (600, str(text_file))
    assert len(record["fingerprint"]) == 64
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_several_corpora_and_settings(qa_arch, text_file, tmp_path):
    write_json(tmp_path / "set.json", write(synthetic.named("dev")))
    out = tmp_path / "new" / "tokenizer"
    sources = [text_file, f"squad:{tmp_path}/set.json"]
    settings = ["--vocabulary", 250, "--no-lowercase", "--characters", 60]
    assert qa_arch("pretrain", "tokenizer", *sources, *settings, "--out", out)[0] == 0
    record = json.loads((out / "trained_on.json").read_text())
    assert (record["lowercase"], record["characters"], record["vocabulary"]) == (False, 60, 250)
    assert record["documents"] > 600
    assert "Keeper" in (out / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.txt"], 4, "missing.txt: no such file or folder"),
        (["blank.txt"], 4, "blank.txt: holds no text"),
        (["text.txt", "--vocabulary", 10**6], 2, "1,000,000 is more than this corpus allows: "),
        (["text.txt", "--out", "empty"], 2, "--out empty: exists and was not changed; name a new folder"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    qa_arch, text_file, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(text_file.read_bytes())
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    result = qa_arch("pretrain", "tokenizer", "--vocabulary", 200, "--out", "out", *arguments)
    assert (result[0], message in result[2]) == (code, True), result
    assert contents(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_the_commands_of_the_docs_do_what_they_say(qa_arch, text_file, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "extras" / "pretraining.md").read_text(encoding="utf-8")
    calls = [call for call in commands(page) if call[1] in ("tokenizer", "compare-tokenizers")]
    assert [call[1] for call in calls] == ["tokenizer", "tokenizer", "compare-tokenizers"]
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_bytes(text_file.read_bytes())
    for split in ("train-v2.0", "calibration", "dev-v2.0"):
        write_json(f"{split}.json", write(synthetic.generate(9, seed=len(split))))
    # The files are small, and minilm may not be installed.
    stand_ins = {"8000": "250", "minilm": "./minilm"}
    Path("minilm").symlink_to("TOKENIZER")
    for call in calls:
        code, out, error = qa_arch(*(stand_ins.get(word, word) for word in call))
        assert code == 0, error
    assert "│ UNIGRAM" in out


def test_tokenizers_are_compared_in_a_table(qa_arch, tokenizer_folder, text_file, tmp_path):
    other = tmp_path / "other"
    qa_arch("pretrain", "tokenizer", text_file, "--vocabulary", 400, "--out", other)
    code, out, error = qa_arch("pretrain", "compare-tokenizers", tokenizer_folder, other, "--text", text_file)
    assert (code, error) == (0, "")
    flat = " ".join(out.split())
    assert "│ ours │ 300 │" in flat
    assert "│ other │ 400 │" in flat
    assert f"{text_file}: 600 documents, " in out.replace("\n", "")
    code, _, error = qa_arch("pretrain", "compare-tokenizers", "missing/folder")
    assert (code, "no tokenizer for 'missing/folder'" in error) == (6, True)


# Asking ------------------------------------------------------------------------------------------


def test_masked_tokens_are_listed_with_probabilities(qa_arch, run_of):
    run = run_of("mlm")
    code, out, err = qa_arch("pretrain", "ask", run, "Tarn [MASK] nine [MASK].", "--top-k", "3")
    assert code == 0, err
    lines = out.splitlines()
    assert [lines[0], lines[4]] == ["[MASK] 1", "[MASK] 2"]
    assert len(lines) == 8
    predictor = load_predictor(run)
    first, second = predictor.fill("Tarn [MASK] nine [MASK].", 10**6)
    assert sum(chance for _, chance in first) == pytest.approx(1, abs=1e-4)
    assert first == sorted(first, key=lambda guess: -guess[1])
    inputs = predictor.tokenizer("Tarn [MASK] nine [MASK].", return_tensors="pt")
    hidden = predictor.model.encoder.backbone(**inputs)[0][:, [-3]]  # before the full stop and [SEP]
    with torch.inference_mode():
        scores = predictor.model.scores(hidden)[0, 0].softmax(-1)
    token, chance = second[0]
    assert chance == pytest.approx(float(scores.max()), rel=1e-4)
    assert token == predictor.tokenizer.convert_ids_to_tokens(int(scores.argmax()))


@pytest.mark.parametrize(
    ("run", "text", "code", "message"),
    [
        ("mlm", "Tarn keeps bees.", 2, "no [MASK]"),
        ("mlm", "bees " * 60 + "[MASK]", 2, "shorten it"),
        ("causal", "Tarn keeps [MASK].", 5, "is of task causal_lm"),
        ("spans", "Tarn keeps [MASK].", 5, "was not pre-trained"),
    ],
)
def test_what_cannot_be_asked_is_refused(qa_arch, run_of, spans, run, text, code, message):
    actual, _, err = qa_arch("pretrain", "ask", spans if run == "spans" else run_of(run), text)
    assert actual == code, err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


# Other commands ----------------------------------------------------------------------------------


def test_the_table_has_the_scores_of_each_objective_apart(qa_arch, run_of):
    (folder,) = {run_of(name).parent for name in OBJECTIVES}
    code, out, err = qa_arch("tables", folder, "--format", "json")
    assert code == 0, err
    tables = json.loads(out)
    assert sorted(row["model"] for table in tables for row in table["rows"]) == sorted(OBJECTIVES)
    assert len(tables) == len(OBJECTIVES), "perplexities of other predictions do not compare"
    for table in tables:
        (row,) = table["rows"]
        assert row["split"] == "calibration"
        assert row["perplexity"] > 1
        assert 0 <= row["token_accuracy"] <= 100
        assert row["bits_per_byte"] > 0
        assert ("sentence_f1" in row) == (row["model"] in ("mlm_nsp", "mlm_sop"))
        assert "f1" not in row


def test_another_corpus_is_scored_and_added_to_the_record(qa_arch, run_of, tmp_path):
    (tmp_path / "other.txt").write_text("Quill keeps bees.\n\nIt rains in Lomm.")
    run = run_of("causal")
    code, out, err = qa_arch("evaluate", "--json", "--run", run, "--data", tmp_path / "other.txt")
    assert code == 0, err
    point = json.loads(out)["tokens"]
    assert point["perplexity"] == read_record(run).scores["other.txt"]["tokens"].metric("perplexity")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", "RUN", "--question", "Who?", "--context", "Ada."], "was pre-trained on a corpus"),
        (["export", "RUN", "--to", "hf", "--out", "OUT"], "was pre-trained on a corpus"),
        (["compare", "RUN", "RUN", "--split", "calibration"], "answers no questions"),
        (["evaluate", "--run", "RUN"], "data.dev"),
        (["evaluate", "--run", "RUN", "--decode", "greedy", "--record", "OUT"], "only spans are searched"),
        (["train", "model=bert", "debug=fast", "encoder.name=RUN"], "encoder.init=pretrained"),
        (["train", "model=bert", "encoder.name=SPANS", "data=demo"], "not a pre-training run"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_where_answers_are_wanted_it_is_refused(qa_arch, run_of, spans, tmp_path, arguments, message):
    named = {"RUN": str(run_of("mlm")), "SPANS": str(spans), "OUT": str(tmp_path / "out")}
    for name, place in named.items():
        arguments = [word.replace(name, place) for word in arguments]
    extra = [f"runs_dir={tmp_path}", "logger=none"] if arguments[0] == "train" else []
    code, _, err = qa_arch(*arguments, *extra)
    assert code in (2, 4, 5), err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


@pytest.mark.parametrize("name", ["mlm_nsp", "mlm_spans"])
def test_parameters_are_counted_and_a_dry_run_checks(qa_arch, name, settings):
    code, out, err = qa_arch("params", f"model=pretrain/{name}", *settings, "--json")
    assert code == 0, err
    counts = json.loads(out)
    assert counts["total"] == sum(counts["blocks"].values())
    assert {"encoder", "tokens"} <= set(counts["blocks"])
    assert qa_arch("train", f"model=pretrain/{name}", *settings, "--dry-run")[0] == 0


@pytest.mark.slow
def test_a_sweep_over_objectives_is_planned(qa_arch, settings, tmp_path):
    swept = ["model=pretrain/mlm,pretrain/causal", "seed=1,2"]
    code, out, err = qa_arch("train", "-m", *swept, *settings, f"runs_dir={tmp_path}", "--dry-run")
    assert code == 0, err
    assert out.count("pretrain_mlm-seed") == out.count("pretrain_causal-seed") == 2
