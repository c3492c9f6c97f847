"""``qa-arch pretrain`` and other commands on pre-training runs; figures of how tokenizers split a text."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from extras.pretraining.conftest import OBJECTIVES
from kills import contents
from transformers import AutoTokenizer

from qa_arch.cli.runs import next_steps
from qa_arch.extras.pretraining import commands, recipe
from qa_arch.extras.pretraining.commands import KINDS, figures
from qa_arch.extras.pretraining.corpus import Corpus
from qa_arch.features import tokenizers
from qa_arch.qa.loading import load_predictor
from qa_arch.records import read_record

# Tokenizers

TEXTS = [f"Keeper {n} of lock {n * 7} naïvely paid {n % 13} crowns at the quay." for n in range(40)]


@pytest.fixture(scope="module")
def families():
    return {
        name: tokenizers.build(name, TEXTS, 400) for name in ("wordpiece", "byte_bpe", "unigram", "words")
    }


def test_figures_of_a_hand_made_tokenizer():
    tokenizer = tokenizers.wordpiece(["the", "keep", "##er", "##s", "paid", ".", "!"])
    actual = figures(tokenizer, ["The keepers paid.", "The crab paid!", "the."])
    assert actual == {
        "vocabulary": 12,
        "documents": 3,
        "words": 10,
        "tokens": 12,
        "tokens_per_word": 1.2,
        "unsplit": 90,  # all but keepers
        "unknown": 10,  # crab
        "p50": 6,
        "p95": 8,
        "longest": 8,
    }


def test_unknown_words_are_counted_once_and_never_for_bytes(families):
    text = ["寿司 the 🦀🦀 quay"]
    assert figures(families["byte_bpe"], text)["unknown"] == 0
    for name in ("wordpiece", "unigram", "words"):  # 🦀🦀: two words, one piece for WordPiece
        assert figures(families[name], text)["unknown"] == 60


def test_word_inside_a_larger_piece_is_not_split():
    tokenizer = tokenizers.build("byte_bpe", ["it's " * 50], 300)
    assert tokenizer.tokenize("it's") == ["it", "'s"]
    actual = figures(tokenizer, ["it's"])  # three words: it, ', s
    assert (actual["words"], actual["tokens"], actual["unsplit"]) == (3, 2, 100)


def test_chunk_size_and_truncation_do_not_change_figures(families, monkeypatch):
    expected = {name: figures(tokenizer, TEXTS) for name, tokenizer in families.items()}
    monkeypatch.setattr(commands, "CHUNK", 7)
    for tokenizer in families.values():
        tokenizer.backend_tokenizer.enable_truncation(5)
    assert {name: figures(tokenizer, iter(TEXTS)) for name, tokenizer in families.items()} == expected


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [f"Keeper {n} of lock {n * 7} paid {n % 13} crowns at the quay.\n\n" for n in range(300)]
    path.write_text("".join(lines) * 2)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_is_written_with_its_training_record(qa_arch, text_file, tmp_path, kind):
    for name in "ab":
        options = ["--kind", kind, "--vocabulary", 300, "--out", tmp_path / name]
        code, out, error = qa_arch("pretrain", "tokenizer", text_file, "squad:synthetic:dev", *options)
        assert (code, error) == (0, "")
        assert f"{name}: {kind}, " in out
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    record = json.loads((tmp_path / "a" / "trained_on.json").read_text())
    assert record["corpus"] == f"{text_file} + squad:synthetic:dev"
    assert record["documents"] > 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert 250 < len(tokenizer) == record["vocabulary"] <= 300
    assert tokenizer.unk_token_id not in tokenizer("Keeper 7 paid.")["input_ids"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["text.txt", "--vocabulary", -5], 2, "--vocabulary -5: must be at least 1"),
        (["missing.txt"], 4, "missing.txt: no such file or folder"),
        (["blank.txt"], 4, "blank.txt: holds no text"),
        (["text.txt", "--out", "empty"], 2, "--out empty: exists and was not changed; name a new folder"),
    ],
)
def test_refused_tokenizer_command_writes_nothing(
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


def test_compare_tokenizers_prints_a_table(qa_arch, text_file, tmp_path, monkeypatch):
    for name, size in (("ours", 300), ("other", 200)):
        arguments = [text_file, "--vocabulary", size, "--out", tmp_path / name]
        assert qa_arch("pretrain", "tokenizer", *arguments)[0] == 0
    monkeypatch.chdir(tmp_path)
    compare = ["pretrain", "compare-tokenizers", "ours", "other", "--text", text_file]
    code, out, error = qa_arch(*compare)
    assert (code, error) == (0, "")
    assert f"{text_file}: 600 documents, 7,200 words" in out
    code, out, _ = qa_arch(*compare, "--json")
    rows = json.loads(out)[0]["rows"]
    assert [row["tokenizer"] for row in rows] == ["ours", "other"]
    assert rows[0]["vocabulary"] > rows[1]["vocabulary"]
    assert rows[0]["tokens_per_word"] < rows[1]["tokens_per_word"]
    assert qa_arch(*compare, "--format", "csv")[1].count("\n") == 3
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, error = qa_arch("pretrain", "compare-tokenizers", "missing/folder")
    assert (code, "TOKENIZER missing/folder: no such folder" in error) == (6, True)


# pretrain ask


def test_ask_lists_masked_tokens_with_probabilities(qa_arch, run_of):
    run, text = run_of("mlm"), "Tarn [MASK] nine [MASK]."
    code, out, error = qa_arch("pretrain", "ask", run, text, "--top-k", "3", "--json")
    assert code == 0, error
    (table,) = json.loads(out)
    assert [row["place"] for row in table["rows"]] == [1, 1, 1, 2, 2, 2]
    predictor = load_predictor(run)
    first, second = predictor.fill(text, 10**6)
    shown = [(row["token"], row["probability"]) for row in table["rows"]]
    assert shown == [*first[:3], *second[:3]]
    assert sum(probability for _, probability in first) == pytest.approx(1, abs=1e-4)
    assert first == sorted(first, key=lambda guess: -guess[1])
    inputs = predictor.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        hidden = predictor.model.encoder.backbone(**inputs)[0][:, [-3]]  # before the full stop and [SEP]
        scores = predictor.model.scores(hidden)[0, 0].softmax(-1)
    assert second[0][1] == pytest.approx(float(scores.max()), rel=1e-4)
    assert second[0][0] == predictor.tokenizer.convert_ids_to_tokens(int(scores.argmax()))


def test_causal_model_predicts_the_token_after_a_text(run_of, qa_arch):
    run = run_of("causal")
    code, out, error = qa_arch("pretrain", "ask", run, "Tarn keeps", "--top-k", "2")
    assert (code, out.count("│     1 │")) == (0, 2), error
    predictor = load_predictor(run)
    (guesses,) = predictor.fill("Tarn keeps", 10**6)
    table = predictor.table(Corpus("c", "c", "f", lambda: iter(["Tarn keeps bees"])), cache=False)
    batch = recipe.collator(predictor.config, table)([0])
    last = len(predictor.tokenizer("Tarn keeps", add_special_tokens=False)["input_ids"])
    with torch.inference_mode():
        scores = predictor.model(batch).tokens[0, last].softmax(-1)
    assert guesses[0][1] == pytest.approx(float(scores.max()), rel=1e-4)


def test_denoising_model_restores_a_text(run_of, qa_arch):
    run, text = run_of("denoising"), "Tarn keeps [MASK]. On day 3 it"
    code, out, error = qa_arch("pretrain", "ask", run, text, "--top-k", "3", "--json")
    assert code == 0, error
    rows, predictor = json.loads(out)[0]["rows"], load_predictor(run)
    (texts,) = predictor.write(predictor.batch(text), 3)
    assert [row["text"] for row in rows] == [predictor.decode(one.ids) for one in texts]
    assert [row["perplexity"] for row in rows] == pytest.approx([math.exp(-one.score) for one in texts])
    best, batch = texts[0], predictor.batch(text)
    targets = torch.tensor([best.ids])
    prefix = torch.tensor([[predictor.tokenizer.cls_token_id, *best.ids[:-1]]])
    batch = replace(batch, prefix=prefix, targets=targets, counted=targets > 0, positions=None)
    with torch.inference_mode():
        logits = predictor.model(batch).tokens[0].log_softmax(-1)
    log_p = logits.gather(1, torch.tensor(best.ids)[:, None]).mean()
    assert best.score == pytest.approx(log_p.item(), rel=1e-4)


def test_attention_of_the_decoder_is_inspected(run_of, spans, qa_arch, tmp_path):
    pytest.importorskip("qa_arch.extras.inspection", reason="the page is of another extra")
    run, text, page = run_of("denoising"), "Tarn keeps [MASK]. It rains.", tmp_path / "page.html"
    given = ["inspect", run, "--context", text]
    code, out, error = qa_arch(*given, "--layer", "all", "--head", "all", "--json", "--html", page)
    assert code == 0, error
    predictor, maps = load_predictor(run), json.loads(out)["attention"]
    config = predictor.model.decoder.blocks[0].attention
    names = [
        f"{n} {kind}" for n in range(1, len(predictor.model.decoder.blocks) + 1) for kind in ("self", "cross")
    ]
    assert [(one["layer"], one["head"]) for one in maps] == [
        (name, head) for name in names for head in range(1, config.heads + 1)
    ]
    ((best,),) = predictor.write(predictor.batch(text))
    read = predictor.batch(text).ids[0].tolist()
    to_pieces = predictor.tokenizer.convert_ids_to_tokens
    for one in maps:
        weights = np.array(one["weights"])
        is_self = one["layer"].endswith("self")
        assert [unit["text"] for unit in one["rows"]] == to_pieces(best.ids)
        columns = ["(start)", *to_pieces(best.ids[:-1])] if is_self else to_pieces(read)
        assert [unit["text"] for unit in one["columns"]] == columns
        assert weights.sum(1) == pytest.approx(np.ones(len(best.ids)), abs=1e-4)
        assert not is_self or not np.triu(weights, 1).any()
    assert "1 cross" in page.read_text()
    code, out, error = qa_arch(*given)
    assert (code, "cross, mean of" in out, "written: " in out) == (0, True, True), error
    code, _, error = qa_arch(*given, "--window", "3")
    assert (code, "--window is for questions" in error) == (2, True)
    for other, message in ((spans, "give a question"), (run_of("mlm"), "has no decoder")):
        assert qa_arch("inspect", other, "--context", text)[0] == 2
        assert message in qa_arch("inspect", other, "--context", text)[2]


@pytest.mark.parametrize(
    ("run", "text", "code", "message"),
    [
        ("mlm", "Tarn keeps bees.", 2, "the text has no [MASK]: put it where a token is missing"),
        ("mlm", "bees " * 60 + "[MASK]", 2, "tokens and the model reads 32: shorten it"),
        ("mlm", "caf\udce9 [MASK]", 4, "a text contains a lone surrogate after 'caf'"),
        ("causal", "Tarn keeps [MASK].", 2, "the text has a [MASK]: the model predicts what follows"),
        ("spans", "Tarn keeps [MASK].", 5, "was not pre-trained on a corpus; name a run of model=pretrain"),
    ],
)
def test_ask_refuses_unusable_texts_and_runs(qa_arch, run_of, spans, run, text, code, message):
    actual, _, error = qa_arch("pretrain", "ask", spans if run == "spans" else run_of(run), text)
    assert actual == code, error
    assert message in error
    assert len([line for line in error.splitlines() if line.startswith("qa-arch:")]) == 1


# Other commands


def test_each_objective_has_its_own_table(qa_arch, run_of):
    (folder,) = {run_of(name).parent for name in OBJECTIVES}
    code, out, err = qa_arch("tables", folder, "--format", "json")
    assert code == 0, err
    tables = json.loads(out)
    assert sorted(row["model"] for table in tables for row in table["rows"]) == sorted(OBJECTIVES)
    assert len(tables) == len(OBJECTIVES), "perplexities of different objectives are not comparable"
    for table in tables:
        (row,) = table["rows"]
        assert row["split"] == "calibration"
        assert row["perplexity"] > 1
        assert 0 <= row["token_accuracy"] <= 100
        assert row["bits_per_byte"] > 0
        assert ("sentence_f1" in row) == (row["model"] in ("mlm_nsp", "mlm_sop"))
        assert "f1" not in row


def test_evaluate_adds_another_corpus_to_the_record(qa_arch, run_of, tmp_path):
    (tmp_path / "other.txt").write_text("Quill keeps bees.\n\nIt rains in Lomm.")
    run = run_of("causal")
    code, out, err = qa_arch("pretrain", "evaluate", "--json", run, "--data", tmp_path / "other.txt")
    assert code == 0, err
    point = json.loads(out)["tokens"]
    assert point["perplexity"] == read_record(run).scores["other.txt"]["tokens"].metric("perplexity")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", "RUN", "--question", "Who?", "--context", "Ada."], "was pre-trained on a corpus"),
        (["export", "RUN", "--to", "hf", "--out", "OUT"], "was pre-trained on a corpus"),
        (["compare", "RUN", "COPY", "--split", "calibration"], "finds no spans"),
        (["pretrain", "evaluate", "RUN"], "data.dev"),
        (["pretrain", "evaluate", "SPANS"], "finds spans; score it with qa-arch evaluate --run"),
        (["evaluate", "--run", "RUN", "--data", "demo.json"], "score it: qa-arch pretrain evaluate"),
        (["train", "model=bert", "debug=fast", "encoder.name=RUN"], "encoder.init=pretrained"),
        (["train", "model=bert", "encoder.name=SPANS", "data=demo"], "not a pre-training run"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_commands_on_answers_refuse_pretraining_runs(qa_arch, run_of, spans, tmp_path, arguments, message):
    named = {"RUN": str(run_of("mlm")), "SPANS": str(spans), "OUT": str(tmp_path / "out")}
    if "COPY" in arguments:
        named["COPY"] = str(shutil.copytree(named["RUN"], tmp_path / "copy"))
    for name, path in named.items():
        arguments = [word.replace(name, path) for word in arguments]
    extra = [f"runs_dir={tmp_path}", "logger=none"] if arguments[0] == "train" else []
    code, _, err = qa_arch(*arguments, *extra)
    assert code in (2, 4, 5), err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


def test_next_steps_do_not_suggest_ask(run_of):
    run = run_of("mlm")
    assert [command.split()[1] for command in next_steps([(run, read_record(run))])] == ["show"]


def test_params_and_dry_run(qa_arch, settings):
    code, out, err = qa_arch("params", "model=pretrain/mlm_nsp", *settings, "--json")
    assert code == 0, err
    counts = json.loads(out)
    assert counts["total"] == sum(counts["blocks"].values())
    assert {"encoder", "tokens"} <= set(counts["blocks"])
    assert qa_arch("train", "model=pretrain/mlm_nsp", *settings, "--dry-run")[0] == 0
