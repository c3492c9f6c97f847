"""An exported folder loads in plain transformers, tokenizer and model card included."""

import contextlib
import copy
import io
import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch
from broken_records import changed
from families import EXTRA_FAMILIES
from huggingface_hub import ModelCard
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from qa_arch.contract import logits_of
from qa_arch.data.question_sets import question_set
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError
from qa_arch.export.huggingface import _data_lines, _front_matter, export_hf, library_logits
from qa_arch.features.batches import Collator
from qa_arch.qa.loading import load
from qa_arch.records import Confidence, Point, RunRecord, SplitFacts, Threshold
from qa_arch.types import Example

SHORT = ("Who sang?", "Ada sang.")


@pytest.fixture(scope="session")
def folders(predictors, tmp_path_factory):
    """``folders(case)``: folder of the case's export, written once."""
    parent = tmp_path_factory.mktemp("hf")

    def export(case):
        if not (parent / case).is_dir():
            export_hf(predictors[case], parent / case)
        return parent / case

    return export


@pytest.mark.parametrize("case", ["bert", "roberta", "distilbert", "albert", "linear"])
def test_transformers_model_gives_our_logits(case, predictors, folders):
    """And its tokenizer builds our windows."""
    predictor, folder = predictors[case], folders(case)
    assert {path.name for path in folder.iterdir()} == {
        *("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"),
        *("README.md", "qa_arch.json"),
    }
    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    batch = Collator(predictor.table(generate(1, 5), cache=False), labels=False)([0, 5, 9])
    ours = logits_of(predictor.model, batch)
    with torch.inference_mode():
        start, end = library_logits(model, batch)
    torch.testing.assert_close(start[batch.context], ours.start[batch.context], rtol=0, atol=1e-5)
    torch.testing.assert_close(end[batch.context], ours.end[batch.context], rtol=0, atol=1e-5)
    torch.testing.assert_close(start[:, 0] + end[:, 0], ours.null, rtol=0, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(*SHORT, return_tensors="pt")
    short = question_set("short", [Example(id="0", question=SHORT[0], context=SHORT[1])], "2.0")
    window = Collator(predictor.table(short, cache=False), labels=False)([0])
    assert encoded["input_ids"].tolist() == window.ids.tolist()
    assert ("token_type_ids" in encoded) == predictor.segments
    if predictor.segments:
        assert encoded["token_type_ids"].tolist() == window.segments.tolist()
        assert set(window.segments[0].tolist()) == {0, 1}
    assert tokenizer.model_max_length == 64
    assert len(tokenizer(" ".join(SHORT * 40))["input_ids"]) > 64  # no truncation by default


def test_exported_tokenizer_sets_segment_ids(predictors, copied, tmp_path):
    """ALBERT's tokenizer in transformers gives 0 for question and context alike."""
    own = predictors["bert"].tokenizer
    predictor = copied(predictors["bert"])
    predictor.tokenizer = copy.deepcopy(own)
    backend = predictor.tokenizer.backend_tokenizer
    names = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", special_tokens=names
    )
    assert not any(predictor.tokenizer(*SHORT)["token_type_ids"])
    export_hf(predictor, tmp_path / "out")
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    for name in ("token_type_ids", "input_ids"):
        assert exported(*SHORT)[name] == own(*SHORT)[name]
    assert exported(SHORT[0])["input_ids"] == own(SHORT[0])["input_ids"]


@pytest.mark.parametrize("case", ["proposed", *EXTRA_FAMILIES[:1]])
def test_other_models_are_referred_to_onnx(case, predictors, tmp_path):
    with pytest.raises(ConfigError, match="qa-arch export --to onnx takes any span model"):
        export_hf(predictors[case], tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_model_with_another_head_is_refused(predictors, tmp_path, monkeypatch):
    model = predictors["bert"].model

    class Doubled(type(model)):
        def forward(self, batch):
            logits = super().forward(batch)
            return replace(logits, start=2 * logits.start)

    monkeypatch.setattr(model, "__class__", Doubled)
    with pytest.raises(ConfigError, match="is not just an encoder of the library"):
        export_hf(predictors["bert"], tmp_path / "out")


@pytest.fixture(scope="module")
def card(predictors, copied, tmp_path_factory):
    """Card of a predictor with a record, in its own folder."""
    metrics = {"exact": 61.25, "f1": 64.5, "HasAns_f1": 70.0, "NoAns_f1": 59.0}
    point = Point(protocol="2.0", metric_version="1", threshold=0.25, metrics=metrics)
    record = RunRecord(
        **{"status": "ok", "name": "demo", "seed": 13, "config": {}, "commit": "abcdef0123456789"},
        **{"settings_hash": "0" * 64, "run_hash": "0" * 64},
        model="bert\n# <b>mine</b>",
        data={"train": SplitFacts(name="part\n<i>", protocol="2.0", questions=1200, unanswerable=400)},
        threshold=Threshold(value=0.25, fitted_on="calibration"),
        confidence=Confidence(method="temperature", value=2.0, fitted_on="calibration"),
        scores={"dev": {"calibrated": point}},
    )
    predictor, folder = copied(predictors["bert"]), tmp_path_factory.mktemp("card") / "card"
    predictor.record, predictor.null_threshold = record, 0.25
    export_hf(predictor, folder)
    return folder / "README.md"


def test_card_shows_the_record(card):
    text = card.read_text()
    for words in (
        "| dev | calibrated | 0.25 | 2.0 | 61.25 | 64.50 | 70.00 | 59.00 |",
        "**0.2500** (fitted on calibration)",
        "train: part &lt;i&gt; (SQuAD 2.0), 1,200 questions, 400 of them unanswerable",
        "\n# bert # &lt;b&gt;mine&lt;/b&gt;\n",
        *("commit abcdef0123", "seed 13", "CC BY-SA 4.0", "licence of these weights is unknown"),
    ):
        assert words in text
    data = ModelCard.load(card).data
    exact, f1 = data.eval_results
    assert (exact.metric_type, exact.metric_value, f1.metric_value) == ("exact_match", 61.25, 64.5)
    assert f1.metric_args == {"protocol": "SQuAD 2.0", "null_threshold": 0.25}
    assert f1.dataset_split == "dev"
    assert data.pipeline_tag == "question-answering"
    assert data.model_name == "bert\n# <b>mine</b>"


def test_card_states_the_licence_of_generated_questions_alone(predictors):
    """And names a set on the hub."""
    config, record = predictors["bert"].config, predictors["bert"].record

    def trained_on(train):
        return replace(config, data=replace(config.data, train=train))

    for train, words in (("synthetic:train", "free to use"), ("v1:elsewhere.json", "If these are SQuAD's")):
        (line,) = _data_lines(trained_on(train), {})
        assert words in line
    assert _front_matter(trained_on("hub:some/set:train"), record, None).datasets == ["some/set"]


def test_card_example_for_transformers_runs(card):
    _, plain = re.findall(r"```python\n(.*?)```", card.read_text(), flags=re.DOTALL)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(plain.replace("FOLDER", str(card.parent)).replace("<= 0.25", '<= float("inf")'), {})
    answer = output.getvalue().strip("\n")
    assert answer
    assert answer in plain


def test_loaded_export_keeps_threshold_and_settings(card, predictors, tmp_path):
    config = predictors["bert"].config
    same = {"features": {"stride": config.features.stride, "cache_dir": "elsewhere"}}
    for qa in (load(card.parent), load(card.parent, settings=same)):
        assert qa.null_threshold == 0.25
        assert qa.config.decode == config.decode
        assert qa.config.features.max_length == config.features.max_length
        assert qa.record.threshold.fitted_on == "calibration"
    note = shutil.copytree(card.parent, tmp_path / "copy") / "qa_arch.json"
    note.write_text(note.read_text().replace('"stride"', '"strid"'))
    with pytest.raises(
        ConfigError, match=r"qa_arch\.json: unknown setting 'features\.strid' .*; export the mod"
    ):
        load(note.parent)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        (("threshold", "value"), math.nan, r"threshold\.value: expected a number, got nan"),
        (("features", "max_length"), 10**9, r"features\.max_length: 1000000000 is more than the"),
        (("features", "stride"), 500, r"features\.stride: 500 leaves no step"),
        (("data", "../up"), {}, r"data: '\.\./up' cannot be the name of a folder"),
    ],
)
def test_settings_that_would_spoil_a_record_are_refused(card, tmp_path, field, value, fault):
    """Else the first score would leave a record that no command reads."""
    path = shutil.copytree(card.parent, tmp_path / "copy") / "qa_arch.json"
    path.write_text(json.dumps(changed(json.loads(path.read_text()), field, value)))
    with pytest.raises(ConfigError, match=rf"qa_arch\.json: {fault}"):
        load(path.parent)


@pytest.mark.parametrize("changes", [{"decode": {"search": "greedy"}}, {"features": {"stride": 8}}])
def test_exported_threshold_is_that_of_its_windows_and_decoding(card, changes):
    qa = load(card.parent, settings=changes)
    assert (qa.null_threshold, qa.record.threshold.fitted_on, qa.record.confidence) == (0.0, "nothing", None)
