"""``qa-arch inspect``: the model's own probabilities by layer, head, token and window."""

import json
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import make_checkpoint

from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.inspection.reading import inspect_question
from qa_arch.qa.loading import load_predictor
from qa_arch.types import Example

words_only = pytest.mark.parametrize("proposed", ["words"], indirect=True)
QUESTION, CONTEXT = "  Who built the mill?", "Ada Stone built the mill in 1821. " * 3


@pytest.fixture(scope="module")
def inspected(proposed):
    """The inspection of the longest passage, with its predictor and example."""
    folder, config, _ = proposed
    predictor = load_predictor(folder, device="cpu")
    examples = open_passages(config.data.dev).examples
    example = max(examples, key=lambda example: len(example.context))
    return inspect_question(predictor, example), predictor, example


def test_token_offsets_match_the_texts(inspected):
    inspection, _, example = inspected
    for layer in inspection.layers:
        assert layer.weights.sum(-1) == pytest.approx(np.ones(layer.weights.shape[:2]), abs=1e-3)
        for unit in (*layer.rows, *layer.columns):
            text = {"question": example.question, "passage": example.context}.get(unit.part)
            assert text is None or (unit.text == text[unit.start : unit.end] and unit.text.strip())
    parts = [unit.part for unit in inspection.layers[0].rows]
    sections = [part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1]]
    assert sections == ["special", "question", "special", "passage", "special"]
    assert inspection.layers[-1].columns[-1].text == "(nothing)"


def test_window_holds_the_answer_unless_another_is_requested(inspected):
    inspection, predictor, example = inspected
    (best,) = predictor.predict([(example.question, example.context)])
    assert inspection.windows == best.windows > 1
    assert inspection.first <= best.best.start
    assert best.best.end <= inspection.last
    windows = [inspect_question(predictor, example, window=n + 1) for n in range(inspection.windows)]
    assert [item.window for item in windows] == list(range(1, inspection.windows + 1))
    firsts = [item.first for item in windows]
    assert firsts == sorted(set(firsts))
    for item in windows:
        for layer in item.layers:
            passage = [unit for unit in layer.rows if unit.part == "passage"]
            assert (passage[0].start, passage[-1].end) == (item.first, item.last)
    with pytest.raises(ConfigError, match=f"--window: 99 is out of range.*in {inspection.windows}"):
        inspect_question(predictor, example, window=99)
    for blank in ({"question": " "}, {"context": "\n"}):
        with pytest.raises(ConfigError, match="blank"):
            inspect_question(predictor, replace(example, **blank))


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_encoder_checkpoints_can_be_inspected(family, tmp_path):
    folder = make_checkpoint(family, tmp_path / family, [CONTEXT, QUESTION])
    inspection = inspect_question(load_predictor(folder, device="cpu"), Example("0", QUESTION, CONTEXT))
    assert [layer.name for layer in inspection.layers] == ["1", "2"]
    for layer in inspection.layers:
        assert layer.weights.shape == (2, len(layer.rows), len(layer.columns))
        question = [unit for unit in layer.rows if unit.part == "question"]
        assert "".join(unit.text for unit in question).startswith("Who")
        assert QUESTION[question[0].start :].startswith("Who")


@words_only
def test_command_prints_tables_and_json_and_writes_the_page(proposed, tmp_path, qa_arch):
    folder, _, _ = proposed
    arguments = ("inspect", folder, "--question", QUESTION, "--context", CONTEXT)
    code, out, err = qa_arch(*arguments)
    assert code == 0, err
    for words in ("layer 3, mean of 2 heads", "attends to", "not why it answers"):
        assert words in out
    code, out, _ = qa_arch(*arguments, "--layer", "all", "--head", "all")
    assert "match" in out
    assert "backward" in out
    code, out, _ = qa_arch(*arguments, "--layer", "2", "--head", "1", "--json")
    value = json.loads(out)
    assert [(item["layer"], item["head"]) for item in value["attention"]] == [(2, 1)]
    assert np.array(value["attention"][0]["weights"]).sum(-1) == pytest.approx(1, abs=1e-3)
    files = ("--html", tmp_path / "a.html")
    code, out, err = qa_arch(*arguments, *files, "--layer", "match", "--head", "forward", "--window", "1")
    assert (code, out) == (0, "")
    assert "window 1 of" in err
    assert "match-LSTM, forward" in (tmp_path / "a.html").read_text(encoding="utf-8")


@words_only
def test_question_is_given_by_id_or_by_text(proposed, qa_arch):
    folder, config, _ = proposed
    example = open_passages(config.data.dev).examples[2]
    code, out, _ = qa_arch("inspect", folder, "--data", config.data.dev, "--id", example.id, "--json")
    assert (code, json.loads(out)["question"]) == (0, example.question)
    code, _, err = qa_arch("inspect", folder, "--data", config.data.dev, "--id", "nobody")
    assert (code, "no question nobody" in err) == (DataError.exit_code, True)
    for arguments in ((), ("--question", "Who?"), ("--question", "Who?", "--context", "Ada.", "--id", "x")):
        code, _, err = qa_arch("inspect", folder, *arguments)
        assert (code, "--data SOURCE --id ID" in err) == (ConfigError.exit_code, True)
