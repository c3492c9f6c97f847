"""The pipeline on small models: answers recorded from transformers 4.57.6, arguments and errors."""

from __future__ import annotations

import re
import string
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers.pipelines
from checkpoints import make_checkpoint
from torch.utils.data import StackDataset
from transformers import AutoModel, AutoModelForQuestionAnswering, AutoTokenizer, BertModel

from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.extras.compat.pipeline import PROCESSORS, pipeline
from qa_arch.extras.compat.squad import SquadExample

TASK = "question-answering"
QUESTION = "Who keeps bees?"
TEXT = (
    "Mira Stone paints red boats in Velmora's harbour. Old Tarn keeps thirty-two bees, and nobody knows why."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models whose weights are sine waves, equal under every version of torch."""
    root = tmp_path_factory.mktemp("waves")
    for family in ("bert", "roberta", "albert", "splinter"):
        make_checkpoint(family, root / family, [TEXT, QUESTION], max_position_embeddings=162)
        model = AutoModelForQuestionAnswering.from_pretrained(root / family)
        with torch.no_grad():
            for n, parameter in enumerate(model.parameters()):
                wave = torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) * (n + 1))
                parameter.copy_(wave.reshape(parameter.shape))
        model.save_pretrained(root / family)
    return root


@pytest.fixture
def qa(folder):
    return pipeline(TASK, folder / "bert", device="cpu")


def answer(score: float, start: int, end: int) -> dict:
    return {"score": pytest.approx(score, rel=1e-4), "start": start, "end": end, "answer": TEXT[start:end]}


TOP_3 = [
    answer(0.0018648315453901887, 48, 72),
    answer(0.0018478066194802523, 39, 72),
    answer(0.0018459424609318376, 41, 72),
]


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("bert", {}, TOP_3[0]),
        ("bert", {"align_to_words": False}, TOP_3[0]),
        ("bert", {"top_k": 3}, TOP_3),
        ("bert", {"top_k": 3, "handle_impossible_answer": True}, TOP_3),
        (
            "bert",
            {"max_seq_len": 24, "doc_stride": 4, "top_k": 2},
            [answer(0.00804303027689457, 59, 80), answer(0.007866717875003815, 59, 72)],
        ),
        ("bert", {"max_answer_len": 1}, answer(0.001763150910846889, 71, 72)),
        (
            "roberta",
            {"top_k": 2},
            [answer(0.0020784540101885796, 22, 49), answer(0.001083454699255526, 11, 49)],
        ),
        (
            "roberta",
            {"align_to_words": False, "max_seq_len": 32, "doc_stride": 8},
            answer(0.003222608007490635, 96, 103),
        ),
        ("albert", {"top_k": 2}, [answer(0.003782300162129104, 0, 49), answer(0.0019222836708649993, 0, 17)]),
        (
            "splinter",
            {"top_k": 2},
            [answer(0.006967347580939531, 76, 98), answer(0.006347200367599726, 76, 92)],
        ),
    ],
)
def test_answers_equal_transformers_4(folder, family, options, expected):
    qa = pipeline(TASK, model=str(folder / family), device=-1)
    assert qa(question=QUESTION, context=TEXT, **options) == expected
    # Options given to pipeline() are the defaults of a call.
    assert pipeline(TASK, folder / family, device=-1, **options)(QUESTION, TEXT) == expected


def test_left_padding(qa):
    qa.tokenizer.padding_side = "left"
    assert qa(question=QUESTION, context=TEXT) == answer(0.002567774965427816, 0, 0)


def test_left_padded_batches(tmp_path):
    qa = pipeline(TASK, make_checkpoint("deberta-v2", tmp_path / "deberta", [TEXT]), device="cpu")
    qa.tokenizer.padding_side = "left"  # positions are relative: padding does not move them
    options = {"top_k": 5, "max_seq_len": 48, "doc_stride": 4}
    alone = qa(QUESTION, TEXT, **options)
    for batched in qa([{"question": QUESTION, "context": TEXT}] * 2, batch_size=5, **options):
        assert [{**row, "score": pytest.approx(row["score"], rel=1e-4)} for row in alone] == batched


def test_no_answer_score_is_the_lowest_of_all_windows(qa):
    options = {"max_seq_len": 24, "doc_stride": 4, "top_k": 1000}
    rows = qa(QUESTION, TEXT, handle_impossible_answer=True, **options)
    null = next(row for row in rows if not row["answer"] and row["score"])
    assert null == {"score": null["score"], "start": 0, "end": 0, "answer": ""}
    assert null["score"] < rows[0]["score"]
    assert not any(row["score"] for row in qa(QUESTION, TEXT, **options) if not row["answer"])


def test_answers_equal_up_to_case_are_merged(qa):
    rows = qa("Who?", "Bees. bees BEES", top_k=50, max_answer_len=1)
    assert [row["answer"].lower() for row in rows].count("bees") == 1


@pytest.mark.parametrize("size", [2, 3, 64])
def test_windows_of_several_questions_share_batches(qa, size):
    pairs = [{"question": QUESTION, "context": text} for text in (TEXT, TEXT * 3, "Mira", TEXT[:50])]
    settings = {"max_seq_len": 24, "doc_stride": 4, "top_k": 3}
    alone = qa(pairs, **settings)
    assert len(alone) == 4
    for rows, batched in zip(alone, qa(pairs, batch_size=size, **settings), strict=True):
        rows, batched = ([rows] if isinstance(rows, dict) else rows for rows in (rows, batched))
        assert [{**row, "score": pytest.approx(row["score"], rel=1e-4)} for row in rows] == batched


def test_equivalent_forms_of_a_call(qa):
    single = qa(question=QUESTION, context=TEXT)
    pair = {"question": QUESTION, "context": TEXT}
    example = SquadExample(None, QUESTION, TEXT, None, None, None)
    for same in (qa(pair), qa([pair]), qa(example), qa(question=[QUESTION], context=TEXT), qa(iter([pair]))):
        assert same == single
    both = qa(question=[QUESTION, "Why?"], context=TEXT)
    assert both == qa(question=[QUESTION, "Why?"], context=[TEXT, TEXT])
    assert both == qa(pair, {"question": "Why?", "context": TEXT})
    assert both[0] == single
    assert qa([]) == []
    for count in (1, 2):
        pairs = StackDataset(question=[QUESTION, "Why?"][:count], context=[TEXT] * count)
        assert qa(pairs) == qa(pairs[row] for row in range(count)) == both[:count]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (({"question": "Who?"},), {}, KeyError),
        (({"question": "Who?", "context": ""},), {}, ValueError),
        (({"question": None, "context": TEXT},), {}, ValueError),
        ((["Who?"],), {}, ValueError),
        ((3,), {}, ValueError),
        ((), {}, ValueError),
        ((), {"question": "Who?", "context": [TEXT]}, ValueError),
        ((), {"question": ["Who?"], "context": [TEXT, TEXT]}, ValueError),
        (("Who?", TEXT), {"top_k": 0}, ValueError),
        (("Who?", TEXT), {"max_answer_len": 0}, ValueError),
        (("Who?", TEXT), {"max_seq_len": 24, "doc_stride": 25}, ValueError),
        (("Who?", TEXT), {"max_seq_len": 24, "doc_stride": 20}, ValueError),
        (("Who?", TEXT), {"trust_remote_code": True}, ValueError),
        (("Who?", TEXT), {"topp": 3}, TypeError),
    ],
)
def test_invalid_calls_raise(qa, arguments, options, error):
    with pytest.raises(error):
        qa(*arguments, **options)


def test_deprecated_arguments(qa):
    with pytest.warns(UserWarning, match="use top_k"):
        assert qa(QUESTION, TEXT, topk=3) == TOP_3
    assert qa(QUESTION, TEXT, max_question_len=1, padding=True, num_workers=2, top_k=None) == TOP_3[0]
    assert qa.task == TASK


def test_model_object(folder):
    model = AutoModelForQuestionAnswering.from_pretrained(folder / "bert").train()
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    for tokenizer_or_path in (tokenizer, str(folder / "bert")):
        qa = pipeline(TASK, model, None, tokenizer_or_path, device=torch.device("cpu"), framework="pt")
        assert qa(QUESTION, TEXT) == TOP_3[0]
        assert qa.device == torch.device("cpu")
    with pytest.raises(ValueError, match="pass tokenizer="):
        pipeline(TASK, model)
    bare = BertModel(model.config)
    with pytest.raises(ConfigError, match="BertModel: has no span head"):
        pipeline(TASK, bare, tokenizer=tokenizer)


def test_options_of_loading_are_refused(folder):
    for option in ({"torch_dtype": "auto"}, {"device_map": "auto"}, {"config": object()}):
        with pytest.raises(
            ValueError, match=f"{next(iter(option))}: is not supported; load the model with it"
        ):
            pipeline(TASK, folder / "bert", **option)
    with pytest.raises(TypeError, match="no argument 'top'"):
        pipeline(TASK, folder / "bert", top=3)


def test_tokenizer_of_another_model_is_refused(folder, tmp_path):
    make_checkpoint("bert", tmp_path / "other", [f"{TEXT} {string.printable}"])
    qa = pipeline(TASK, folder / "bert", tokenizer=tmp_path / "other")
    with pytest.raises(ConfigError, match="token embeddings, but its tokenizer produces id"):
        qa(QUESTION, string.printable)


def test_cuda_build_of_torch_without_a_gpu_answers_on_the_cpu(folder, monkeypatch):
    def current_accelerator(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert pipeline(TASK, folder / "bert").device == torch.device("cpu")


def test_model_with_a_device_map_stays_where_it_is(folder, monkeypatch):
    model = AutoModelForQuestionAnswering.from_pretrained(folder / "bert")
    model.hf_device_map = {"": "cpu"}
    monkeypatch.setattr(model, "to", None)
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    assert pipeline(TASK, model, tokenizer=tokenizer).device == torch.device("cpu")
    with pytest.raises(ValueError, match="leave device out"):
        pipeline(TASK, model, tokenizer=tokenizer, device="cpu")


def test_invalid_tasks_and_checkpoints_raise(folder, tmp_path):
    with pytest.raises(KeyError, match=r"'summarization' is not .* transformers\.pipeline"):
        pipeline("summarization", folder / "bert")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"run of qa_arch; open it with qa_arch\.load\("):
        pipeline(TASK, tmp_path)
    make_checkpoint("bert", tmp_path / "bare", [TEXT], model_class=AutoModel)
    with pytest.raises(ConfigError, match="no trained span head"):
        pipeline(TASK, tmp_path / "bare")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((folder / "bert/config.json").read_text())
    (pickled / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(UnavailableError, match="are not loaded"):
        pipeline(TASK, pickled)


def test_docs_snippet_restores_the_old_names(folder, monkeypatch):
    for name in ("metrics", "metrics.squad_metrics", "processors", "processors.squad"):
        # Set first, so that it is restored at teardown.
        monkeypatch.setitem(sys.modules, f"transformers.data.{name}", None)
        del sys.modules[f"transformers.data.{name}"]
    for owner, name in product(
        (transformers, transformers.pipelines), ("pipeline", "QuestionAnsweringPipeline")
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name, None), raising=False)
    for name in PROCESSORS:
        monkeypatch.setattr(transformers, name, None, raising=False)
    page = (Path(__file__).parents[3] / "docs/extras/compat.md").read_text(encoding="utf-8")
    imports, patch = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(imports.partition("\n\n")[0] + "\n" + patch, {})
    import transformers.data.metrics.squad_metrics as metrics
    from transformers import SquadV2Processor, pipeline, squad_convert_examples_to_features
    from transformers.data.metrics import squad_metrics
    from transformers.data.processors.squad import squad_convert_examples_to_features as same

    assert metrics is squad_metrics
    assert same is squad_convert_examples_to_features
    assert transformers.data.metrics.squad_metrics.compute_f1("the mill", "mill") == 1
    assert SquadV2Processor.dev_file == "dev-v2.0.json"
    old = transformers.pipelines.pipeline(TASK, str(folder / "bert"))
    assert isinstance(old, transformers.QuestionAnsweringPipeline)
    qa = pipeline("question-answering", model=str(folder / "bert"))
    assert sorted(qa(question="Who?", context="Mira")) == ["answer", "end", "score", "start"]
    assert type(pipeline(task="fill-mask", model=str(folder / "bert"))).__name__ == "FillMaskPipeline"
