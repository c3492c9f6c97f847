"""Pre-training runs from the command line: trained, asked, listed, and refused where answers are wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

from qa_arch.cli.main import main
from qa_arch.features import tokenizers
from qa_arch.results.record import read_record

OBJECTIVES = ("mlm", "mlm_nsp", "mlm_sop", "causal", "denoising")
STORIES = [
    f"{name} keeps {n} bees. On day {n} it rains in Lomm. {name} sells honey to {friend}."
    for n, (name, friend) in enumerate([("Tarn", "Mira"), ("Bell", "Ada"), ("Otto", "Quill")])
]
FAST = [
    "debug=fast",
    "data=corpus",
    "trainer.max_steps=-1",
    "trainer.progress=false",
    "features.max_length=32",
    "features.max_question=16",
    "features.stride=8",
    "features.cache_dir=null",
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> list[str]:
    path = tmp_path_factory.mktemp("corpus") / "stories.txt"
    path.write_text("\n\n".join(STORIES))
    return [f"data.train={path}", f"data.calibration={path}"]


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory, corpus) -> Path:
    """A folder with a finished run of every objective."""
    runs = tmp_path_factory.mktemp("pretrained")
    for name in OBJECTIVES:
        layers = ["model.layers=1"] if name == "denoising" else []
        settings = [*FAST, *corpus, *layers, f"runs_dir={runs}"]
        assert main(["train", f"model=pretrain/{name}", *settings]) == 0
    return runs / "debug"


@pytest.fixture(scope="session")
def run_of(pretrained):
    def folder(name: str) -> Path:
        (match,) = pretrained.glob(f"{name}-s13-*")
        return match

    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """``checkpoint(head)``: a folder of transformers, with or without its head for masked tokens."""

    def save(head: bool) -> Path:
        folder = tmp_path_factory.mktemp("checkpoint")
        tokenizer = tokenizers.build("wordpiece", STORIES, 120)
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
    answer = json.loads(out)
    chances = [guess["probability"] for guess in answer["masks"][0]]
    assert len(chances) == 5
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) < 1


def test_a_checkpoint_of_transformers_is_asked_by_its_own_class(qa_arch, checkpoint):
    folder = checkpoint(head=True)
    code, out, err = qa_arch("pretrain", "ask", folder, "Tarn keeps [MASK] bees.", "--json", "--top-k", "200")
    assert code == 0, err
    (guesses,) = json.loads(out)["masks"]
    assert sum(guess["probability"] for guess in guesses) == pytest.approx(1, abs=1e-4)
    tokenizer = tokenizers.build("wordpiece", STORIES, 120)
    model = BertForMaskedLM.from_pretrained(folder).eval()
    inputs = tokenizer("Tarn keeps [MASK] bees.", return_tensors="pt")
    place = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    with torch.inference_mode():
        expected = model(**inputs).logits[0, place].softmax(-1)
    assert guesses[0]["probability"] == pytest.approx(float(expected.max()), rel=1e-5)
    assert guesses[0]["token"] == tokenizer.decode([int(expected.argmax())])


@pytest.mark.parametrize("name", ["mlm_nsp", "mlm_sop"])
def test_whether_a_sentence_follows(qa_arch, run_of, name):
    arguments = ["pretrain", "ask", run_of(name), "Tarn keeps bees.", "--next", "It rains."]
    code, out, err = qa_arch(*arguments, "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["follows"] < 1
    assert qa_arch(*arguments)[1].startswith("follows with probability 0.")


@pytest.mark.parametrize(("name", "key"), [("causal", "continuation"), ("denoising", "repaired")])
@pytest.mark.parametrize("beams", ["1", "3"])
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
        (["RUN:mlm", "  "], 2, "text is empty"),
        (["RUN:mlm", "bees " * 60 + "[MASK]"], 2, "shorten it"),
        (["RUN:causal", "bees " * 60], 2, "shorten it"),
        (["RUN:denoising", "bees " * 60], 2, "shorten it"),
        (["RUN:mlm", "[MASK]", "--top-k", "0"], 2, "--top-k"),
        (["RUN:mlm", "Tarn.", "--next", "It rains."], 5, "mlm_nsp or mlm_sop"),
        (["RUN:causal", "Tarn.", "--next", "It rains."], 5, "mlm_nsp or mlm_sop"),
        (["HEAD", "Tarn.", "--next", "It rains."], 2, "only runs with NSP or SOP"),
        (["HEAD", "bees " * 60 + "[MASK]"], 2, "the model reads 16"),
        (["BARE", "Tarn keeps [MASK]."], 2, "no trained head of masked language modelling"),
        (["SPANS", "Tarn keeps [MASK]."], 5, "was not pre-trained"),
        (["nowhere", "Tarn keeps [MASK]."], 5, "nowhere"),
    ],
)
def test_what_cannot_be_asked_is_refused(qa_arch, run_of, checkpoint, trained, arguments, code, message):
    source = arguments[0]
    places = {"HEAD": lambda: checkpoint(head=True), "BARE": lambda: checkpoint(head=False)}
    if source.startswith("RUN:"):
        source = run_of(source.removeprefix("RUN:"))
    elif source == "SPANS":
        source = trained
    elif source in places:
        source = places[source]()
    actual, _, err = qa_arch("pretrain", "ask", source, *arguments[1:])
    assert actual == code, err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


def test_the_table_has_the_scores_of_each_objective_apart(qa_arch, pretrained):
    code, out, err = qa_arch("tables", pretrained, "--format", "json")
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
    assert "perplexity" in qa_arch("tables", pretrained, "--format", "markdown")[1]


def test_a_run_is_shown(qa_arch, run_of):
    code, out, err = qa_arch("show", run_of("mlm_nsp"), "--split", "calibration")
    assert code == 0, err
    for part in ("perplexity", "token accuracy", "NSP/SOP F1", "3 documents", "calibration loss"):
        assert part in out
    assert "SQuAD" not in out
    summary = json.loads(qa_arch("show", run_of("mlm_nsp"), "--json")[1])
    assert summary["scores"][0]["perplexity"] > 1
    assert summary["errors"] is None


def test_another_corpus_is_scored_and_added_to_the_record(qa_arch, run_of, tmp_path):
    (tmp_path / "other.txt").write_text("\n\n".join(STORIES[::-1]))
    run = run_of("causal")
    code, out, err = qa_arch("evaluate", "--run", run, "--data", tmp_path / "other.txt")
    assert code == 0, err
    point = json.loads(out)["tokens"]
    assert point["perplexity"] == read_record(run).scores["other.txt"]["tokens"].metric("perplexity")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ask", "RUN", "--question", "Who?", "--context", "Ada."], "was pre-trained on a corpus"),
        (["predict", "RUN", "--data", "synthetic:dev", "--out", "OUT"], "was pre-trained on a corpus"),
        (["export", "RUN", "--to", "hf", "--out", "OUT"], "was pre-trained on a corpus"),
        (["types", "RUN", "--data", "synthetic:dev", "--out", "OUT"], "was pre-trained"),
        (["compare", "RUN", "RUN", "--split", "calibration"], "answers no questions"),
        (["compare", "RUN", "--baseline", "mlm", "--split", "calibration"], "answers no questions"),
        (["evaluate", "--run", "RUN"], "data.dev"),
        (["evaluate", "--run", "RUN", "--data", "synthetic:dev", "--margin", "1"], "no null threshold"),
        (["evaluate", "--run", "RUN", "--decode", "greedy", "--record", "OUT"], "only spans are searched"),
        (["plan", "model=pretrain/mlm", "debug=fast"], "not masked_lm"),
        (["train", "model=bert", "debug=fast", "encoder.name=RUN"], "encoder.init=pretrained"),
        (["train", "model=bert", "encoder.name=SPANS", "data=demo"], "not a pre-training run"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_where_answers_are_wanted_it_is_refused(qa_arch, run_of, trained, tmp_path, arguments, message):
    named = {"RUN": str(run_of("mlm")), "SPANS": str(trained), "OUT": str(tmp_path / "out")}
    for name, place in named.items():
        arguments = [word.replace(name, place) for word in arguments]
    extra = [f"runs_dir={tmp_path}", "logger=none"] if arguments[0] == "train" else []
    code, _, err = qa_arch(*arguments, *extra)
    assert code in (2, 4, 5), err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_parameters_are_counted_and_a_dry_run_checks(qa_arch, name, corpus):
    code, out, err = qa_arch("params", f"model=pretrain/{name}", *FAST, *corpus, "--json")
    assert code == 0, err
    counts = json.loads(out)
    assert counts["total"] == sum(counts["blocks"].values())
    assert {"encoder", "tokens"} <= set(counts["blocks"])
    assert qa_arch("train", f"model=pretrain/{name}", *FAST, *corpus, "--dry-run")[0] == 0


def test_a_sweep_over_objectives_is_planned(qa_arch, corpus, tmp_path):
    swept = ["model=pretrain/mlm,pretrain/causal", "seed=1,2"]
    code, out, err = qa_arch("train", "-m", *swept, *FAST, *corpus, f"runs_dir={tmp_path}", "--dry-run")
    assert code == 0, err
    assert out.count("pretrain_mlm-seed") == out.count("pretrain_causal-seed") == 2
