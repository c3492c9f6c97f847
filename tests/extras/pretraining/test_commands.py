"""``qa-arch pretrain`` and other commands on pre-training runs: what is written and printed, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kills import contents
from pages import commands
from transformers import BertConfig, BertForMaskedLM, BertModel

from qa_arch.config.files import write_json
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.extras.pretraining.vocabularies import KINDS, SENTENCES
from qa_arch.features import tokenizers
from qa_arch.records import read_record

OBJECTIVES = ("mlm", "mlm_nsp", "mlm_sop", "causal", "denoising")


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


def test_tokenizers_are_compared_within_80_columns(qa_arch, tokenizer_folder, text_file, tmp_path):
    long = tmp_path / "a-rather-long-name-wordpiece"
    qa_arch("pretrain", "tokenizer", text_file, "--vocabulary", 400, "--out", long)
    code, out, error = qa_arch("pretrain", "compare-tokenizers", tokenizer_folder, long)
    assert (code, error) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    flat = " ".join(out.split())
    assert "│ ours │ 300 │" in flat
    assert "a-rather-long-n… │ 400 │" in flat
    for sentence in SENTENCES:
        assert sentence in flat
    assert flat.count("ours (") == len(SENTENCES)


def test_figures_as_json(qa_arch, tokenizer_folder, text_file):
    arguments = ["--text", text_file, "--sentence", "Keeper 12 paid.", "--json"]
    code, out, _ = qa_arch("pretrain", "compare-tokenizers", tokenizer_folder, *arguments)
    assert code == 0
    printed = json.loads(out)
    assert printed["text"] == str(text_file)
    assert printed["tokenizers"]["ours"]["documents"] == 600
    assert printed["tokenizers"]["ours"]["shared_with"] == {"ours": 1}
    assert printed["examples"] == [
        {"sentence": "Keeper 12 paid.", "pieces": {"ours": ["keeper", "12", "paid", "."]}}
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing/folder"], 6, "no tokenizer for 'missing/folder'"),
        (["OURS", "OURS"], 2, "is named twice; name different ones"),
    ],
)
def test_a_wrong_comparison_is_refused(qa_arch, tokenizer_folder, arguments, code, message):
    named = [tokenizer_folder if word == "OURS" else word for word in arguments]
    result = qa_arch("pretrain", "compare-tokenizers", *named)
    assert (result[0], message in result[2]) == (code, True), result


# Asking ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """``checkpoint(head)``: a folder of transformers, with or without its head for masked tokens."""

    def save(head: bool) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        tokenizer = tokenizers.build("wordpiece", ["Tarn keeps nine bees in Lomm."], 120)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        torch.manual_seed(0)
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes)
        (BertForMaskedLM if head else BertModel)(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


def test_masked_tokens_are_listed_with_probabilities(qa_arch, run_of):
    code, out, err = qa_arch("pretrain", "ask", run_of("mlm"), "Tarn [MASK] nine [MASK].", "--top-k", "3")
    assert code == 0, err
    lines = out.splitlines()
    assert [lines[0], lines[4]] == ["[MASK] 1", "[MASK] 2"]
    assert len(lines) == 8
    code, out, _ = qa_arch("pretrain", "ask", run_of("mlm_nsp"), "Tarn [MASK] nine.", "--json")
    chances = [guess["probability"] for guess in json.loads(out)["masks"][0]]
    assert len(chances) == 5
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) < 1


def test_a_checkpoint_of_transformers_is_asked_by_its_own_class(qa_arch, checkpoint):
    folder = checkpoint(head=True)
    text = "Tarn keeps [MASK] bees."
    code, out, err = qa_arch("pretrain", "ask", folder, text, "--json", "--top-k", "200")
    assert code == 0, err
    (guesses,) = json.loads(out)["masks"]
    assert sum(guess["probability"] for guess in guesses) == pytest.approx(1, abs=1e-4)
    tokenizer = tokenizers.build("wordpiece", ["Tarn keeps nine bees in Lomm."], 120)
    inputs = tokenizer(text, return_tensors="pt")
    place = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    with torch.inference_mode():
        expected = BertForMaskedLM.from_pretrained(folder).eval()(**inputs).logits[0, place].softmax(-1)
    assert guesses[0]["probability"] == pytest.approx(float(expected.max()), rel=1e-5)
    assert guesses[0]["token"] == tokenizer.decode([int(expected.argmax())])


def test_whether_a_sentence_follows(qa_arch, run_of):
    arguments = ["pretrain", "ask", run_of("mlm_sop"), "Tarn keeps bees.", "--next", "It rains."]
    code, out, err = qa_arch(*arguments, "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["follows"] < 1
    assert qa_arch(*arguments)[1].startswith("follows with probability 0.")


@pytest.mark.parametrize(
    ("name", "key", "beams"), [("causal", "continuation", "1"), ("denoising", "repaired", "3")]
)
def test_a_text_is_written(qa_arch, run_of, name, key, beams):
    arguments = ["pretrain", "ask", run_of(name), "Tarn keeps [MASK]", "--beams", beams, "--json"]
    code, out, err = qa_arch(*arguments, "--max-tokens", "6")
    assert code == 0, err
    written = json.loads(out)[key]
    assert written["log_prob"] < 0
    assert "[" not in written["text"], "a special token"
    assert qa_arch(*arguments[:-1])[1].startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["RUN:mlm", "Tarn keeps bees."], 2, "no [MASK]"),
        (["RUN:mlm", "bees " * 60 + "[MASK]"], 2, "shorten it"),
        (["RUN:denoising", "bees " * 60], 2, "shorten it"),
        (["RUN:mlm", "Tarn.", "--next", "It rains."], 5, "mlm_nsp or mlm_sop"),
        (["HEAD", "Tarn.", "--next", "It rains."], 2, "only runs with NSP or SOP"),
        (["HEAD", "bees " * 60 + "[MASK]"], 2, "the model reads 16"),
        (["BARE", "Tarn keeps [MASK]."], 2, "no trained head of masked language modelling"),
        (["SPANS", "Tarn keeps [MASK]."], 5, "was not pre-trained"),
    ],
)
def test_what_cannot_be_asked_is_refused(qa_arch, run_of, checkpoint, spans, arguments, code, message):
    source = arguments[0]
    if source.startswith("RUN:"):
        source = run_of(source.removeprefix("RUN:"))
    elif source in ("HEAD", "BARE"):
        source = checkpoint(head=source == "HEAD")
    elif source == "SPANS":
        source = spans
    actual, _, err = qa_arch("pretrain", "ask", source, *arguments[1:])
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
    code, out, err = qa_arch("evaluate", "--run", run, "--data", tmp_path / "other.txt")
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


@pytest.mark.parametrize("name", ["mlm_nsp", "denoising"])
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
