"""An exported folder loads in plain transformers, tokenizer and model card included."""

import contextlib
import copy
import io
import re
import shutil
from dataclasses import replace

import pytest
import torch
from families import EXTRA_FAMILIES
from huggingface_hub import ModelCard
from safetensors import safe_open
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

FAMILIES = ["bert", "roberta", "distilbert", "albert", "linear"]
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


@pytest.mark.parametrize("case", FAMILIES)
def test_transformers_model_gives_our_logits(case, predictors, folders):
    predictor = predictors[case]
    model = AutoModelForQuestionAnswering.from_pretrained(folders(case))
    table = predictor.table(generate(1, 5), cache=False)
    batch = Collator(table, labels=False)([0, 5, 9])
    ours = logits_of(predictor.model, batch)
    with torch.inference_mode():
        start, end = library_logits(model, batch)
    torch.testing.assert_close(start[batch.context], ours.start[batch.context], rtol=0, atol=1e-5)
    torch.testing.assert_close(end[batch.context], ours.end[batch.context], rtol=0, atol=1e-5)
    torch.testing.assert_close(start[:, 0] + end[:, 0], ours.null, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", FAMILIES)
def test_exported_tokenizer_builds_our_windows(case, predictors, folders):
    predictor = predictors[case]
    tokenizer = AutoTokenizer.from_pretrained(folders(case))
    encoded = tokenizer(*SHORT, return_tensors="pt")
    short = question_set("short", [Example(id="0", question=SHORT[0], context=SHORT[1])], "2.0")
    table = predictor.table(short, cache=False)
    batch = Collator(table, labels=False)([0])
    assert encoded["input_ids"].tolist() == batch.ids.tolist()
    assert ("token_type_ids" in encoded) == predictor.segments
    if predictor.segments:
        assert encoded["token_type_ids"].tolist() == batch.segments.tolist()
        assert set(batch.segments[0].tolist()) == {0, 1}
    assert tokenizer.model_max_length == 64
    assert len(tokenizer(" ".join(SHORT * 40))["input_ids"]) > 64  # no truncation by default


def test_exported_tokenizer_sets_segment_ids(predictors, copied, tmp_path):
    """ALBERT's tokenizer in transformers gives 0 for question and context alike."""
    predictor = copied(predictors["bert"])
    predictor.tokenizer = copy.deepcopy(predictor.tokenizer)
    backend = predictor.tokenizer.backend_tokenizer
    names = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0", special_tokens=names
    )
    export_hf(predictor, tmp_path / "out")
    exported, expected = (
        AutoTokenizer.from_pretrained(tmp_path / "out")(*SHORT),
        predictors["bert"].tokenizer(*SHORT),
    )
    assert not any(predictor.tokenizer(*SHORT)["token_type_ids"])
    assert exported["token_type_ids"] == expected["token_type_ids"]
    assert exported["input_ids"] == expected["input_ids"]
    single = AutoTokenizer.from_pretrained(tmp_path / "out")(SHORT[0])
    assert single["input_ids"] == predictors["bert"].tokenizer(SHORT[0])["input_ids"]


def test_export_writes_safetensors_only(folders):
    names = {path.name for path in folders("bert").iterdir()}
    assert names == {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "qa_arch.json",
    }
    with safe_open(folders("bert") / "model.safetensors", "pt") as file:
        assert "qa_outputs.weight" in file.keys()  # noqa: SIM118  not a mapping


@pytest.mark.parametrize("case", ["proposed", "boundary", *EXTRA_FAMILIES])
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
    point = Point(
        protocol="2.0",
        metric_version="1",
        threshold=0.25,
        metrics={"exact": 61.25, "f1": 64.5, "HasAns_f1": 70.0, "NoAns_f1": 59.0},
    )
    record = RunRecord(
        status="ok",
        name="demo",
        model="bert\n# <b>mine</b>",
        seed=13,
        config={},
        settings_hash="0" * 64,
        run_hash="0" * 64,
        commit="abcdef0123456789",
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
    assert "| dev | calibrated | 0.25 | 2.0 | 61.25 | 64.50 | 70.00 | 59.00 |" in text
    assert "**0.2500** (fitted on calibration)" in text
    assert "train: part &lt;i&gt; (SQuAD 2.0), 1,200 questions, 400 of them unanswerable" in text
    assert "commit abcdef0123" in text
    assert "\n# bert # &lt;b&gt;mine&lt;/b&gt;\n" in text
    for words in (
        "CC BY-SA 4.0",
        "licence of these weights is unknown",
        "Intended use and limits",
        "seed 13",
    ):
        assert words in text


def test_card_metadata_has_the_scores(card):
    data = ModelCard.load(card).data
    exact, f1 = data.eval_results
    assert (exact.metric_type, exact.metric_value, f1.metric_value) == ("exact_match", 61.25, 64.5)
    assert f1.metric_args == {"protocol": "SQuAD 2.0", "null_threshold": 0.25}
    assert f1.dataset_split == "dev"
    assert data.pipeline_tag == "question-answering"
    assert data.model_name == "bert\n# <b>mine</b>"


def test_card_names_the_hub_set(predictors):
    config, record = predictors["bert"].config, predictors["bert"].record
    config = replace(config, data=replace(config.data, train="hub:some/set:train"))
    assert _front_matter(config, record, None).datasets == ["some/set"]


def test_card_states_the_licence_of_generated_questions_alone(predictors):
    config = predictors["bert"].config
    for train, words in (("synthetic:train", "free to use"), ("v1:elsewhere.json", "If these are SQuAD's")):
        (line,) = _data_lines(replace(config, data=replace(config.data, train=train)), {})
        assert words in line


def test_card_example_for_transformers_runs(card):
    _, plain = re.findall(r"```python\n(.*?)```", card.read_text(), flags=re.DOTALL)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(plain.replace("FOLDER", str(card.parent)).replace("<= 0.25", '<= float("inf")'), {})
    answer = output.getvalue().strip("\n")
    assert answer
    assert answer in plain


def test_loaded_export_keeps_threshold_and_settings(card, predictors):
    qa, config = load(card.parent), predictors["bert"].config
    assert qa.null_threshold == 0.25
    assert qa.config.decode == config.decode
    assert qa.config.features.max_length == config.features.max_length
    assert qa.record.threshold.fitted_on == "calibration"


@pytest.mark.parametrize(
    "changes",
    [{"decode": {"search": "greedy"}}, {"decode": {"max_answer_tokens": 5}}, {"features": {"stride": 8}}],
)
def test_exported_threshold_is_that_of_its_windows_and_decoding(card, changes):
    qa = load(card.parent, settings=changes)
    assert (qa.null_threshold, qa.record.threshold.fitted_on, qa.record.confidence) == (0.0, "nothing", None)


def test_settings_that_change_nothing_keep_the_exported_threshold(card, predictors):
    same = {"features": {"stride": predictors["bert"].config.features.stride, "cache_dir": "elsewhere"}}
    assert load(card.parent, settings=same).record.threshold.fitted_on == "calibration"


def test_invalid_settings_file_is_named(card, tmp_path):
    note = shutil.copytree(card.parent, tmp_path / "copy") / "qa_arch.json"
    note.write_text(note.read_text().replace('"stride"', '"strid"'))
    with pytest.raises(ConfigError, match=r"qa_arch\.json"):
        load(note.parent)
