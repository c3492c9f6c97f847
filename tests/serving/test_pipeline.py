"""The pipeline on small models: answers recorded from transformers 4.57.6, forms of a call and errors."""

import pytest
import torch
import transformers.pipelines
from checkpoints import make_checkpoint
from transformers import AutoModel, AutoModelForQuestionAnswering, AutoTokenizer, BertModel

from qa_arch import load, patch_transformers, pipeline
from qa_arch.errors import ConfigError, RunError, UnavailableError

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
        ("bert", {"align_to_words": False}, TOP_3[0]),
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
        ("albert", {}, answer(0.003782300162129104, 0, 49)),
        ("splinter", {}, answer(0.006967347580939531, 76, 98)),
    ],
)
def test_answers_equal_transformers_4(folder, family, options, expected):
    qa = pipeline(TASK, model=str(folder / family), device=-1)
    assert qa(question=QUESTION, context=TEXT, **options) == expected
    # Options given to pipeline() are the defaults of a call.
    assert pipeline(TASK, folder / family, device=-1, **options)(QUESTION, TEXT) == expected


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


def test_equivalent_forms_of_a_call(folder, qa):
    """As transformers 4 takes them: None is the default of every option; ``topk``; a data set."""
    pair, single = {"question": QUESTION, "context": TEXT}, TOP_3[0]
    forms = (qa(pair), qa([pair]), qa(data=pair), qa(X=[pair]), qa(question=[QUESTION], context=TEXT))
    for same in (*forms, qa(QUESTION, TEXT, max_question_len=1, padding=True, batch_size=8)):
        assert same == single
    both = qa(question=[QUESTION, "Why?"], context=TEXT)
    why = {"question": "Why?", "context": TEXT}
    assert both == qa(question=[QUESTION, "Why?"], context=[TEXT, TEXT]) == qa(pair, why)
    assert both == qa(iter([pair, why])) == qa({"question": [QUESTION, "Why?"], "context": [TEXT, TEXT]})
    assert both[0] == single
    assert qa([]) == []
    pairs = type("Pairs", (torch.utils.data.Dataset, list), {})([pair])  # as DataLoader takes it
    assert qa(pair for _ in range(1)) == qa(pairs) == [single]
    none = dict.fromkeys(("top_k", "topk", "max_answer_len", "align_to_words", "handle_impossible_answer"))
    assert pipeline(TASK, folder / "bert", device="cpu", **none)(QUESTION, TEXT, **none) == single
    assert qa(QUESTION, TEXT, topk=3) == qa(QUESTION, TEXT, topk=1, top_k=3) == TOP_3
    assert pipeline(TASK, folder / "bert", device="cpu", topk=3)(QUESTION, TEXT, topk=None) == TOP_3
    assert (qa.task, qa.device) == (TASK, torch.device("cpu"))


def test_options_without_effect_are_reported(folder, qa):
    with pytest.warns(UserWarning, match=r"^torch_dtype: has no effect here"):
        pipeline(TASK, folder / "bert", device="cpu", torch_dtype=torch.float16)
    with pytest.warns(UserWarning, match=r"^revision: has no effect here"):  # a folder has none
        pipeline(TASK, folder / "bert", device="cpu", revision="main")
    with pytest.warns(UserWarning, match=r"^top_kk: has no effect here"):
        qa(QUESTION, TEXT, top_kk=3, batch_size=8)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((), {"question": "Who?", "context": [TEXT, TEXT]}, "give question= and context="),
        ((), {"question": "Who?"}, "give question= and context="),
        (("Who?",), {}, "give question= and context="),
        ((), {"question": None, "context": TEXT}, ""),
        (({"question": "Who?", "context": ""},), {}, ""),
        (("Who?", TEXT), {"top_k": 0}, ""),
        (("Who?", TEXT), {"max_seq_len": 24, "doc_stride": 20}, ""),
    ],
)
def test_invalid_calls_raise(qa, arguments, options, error):
    with pytest.raises(ValueError, match=f"^{error}"):
        qa(*arguments, **options)
    with pytest.raises(KeyError):
        qa({"question": "Who?"})


def test_model_object(folder):
    model = AutoModelForQuestionAnswering.from_pretrained(folder / "bert").train()
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    for given in (tokenizer, str(folder / "bert")):
        qa = pipeline(TASK, model=model, tokenizer=given, device=-1)
        assert qa(QUESTION, TEXT) == TOP_3[0]
    for arguments in ((model,), (BertModel(model.config), tokenizer)):
        with pytest.raises(ConfigError, match=r"must be a \.\.\.ForQuestionAnswering, and needs tokenizer="):
            pipeline(TASK, *arguments)


def test_cuda_build_of_torch_without_a_gpu_answers_on_the_cpu(folder, monkeypatch):
    def current_accelerator(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert pipeline(model=folder / "bert").model.device == torch.device("cpu")


@pytest.mark.parametrize("device", ["nowhere", "meta", ["cpu"]])
def test_device_that_cannot_be_used_is_named(folder, device):
    for read in (
        lambda **options: pipeline(TASK, **options),
        lambda model, device: load(model, device=device),
    ):
        with pytest.raises(UnavailableError, match=r"^device .*: cannot be used .*; use cpu"):
            read(model=folder / "bert", device=device)


def test_invalid_tasks_and_checkpoints_raise(folder, tmp_path, caplog):
    with pytest.raises(KeyError, match=r"'summarization' is not .* transformers\.pipeline"):
        pipeline("summarization", folder / "bert")
    make_checkpoint("bert", tmp_path / "bare", [TEXT], model_class=AutoModel)
    with pytest.raises(ConfigError, match="no trained span head"):
        pipeline(TASK, tmp_path / "bare")
    (tmp_path / "run.json").touch()
    with pytest.raises(RunError, match="is a run, not a checkpoint; qa-arch export"):
        pipeline(TASK, tmp_path)
    with pytest.raises(UnavailableError, match="distilbert-base-cased-distilled-squad"):
        pipeline(TASK)  # whose default is that of transformers 4
    assert "no model was given: distilbert/distilbert-base-cased-distilled-squad" in caplog.text


def test_code_that_calls_transformers_gets_the_pipeline(folder, monkeypatch):
    for owner in (transformers, transformers.pipelines):
        for name in ("pipeline", "QuestionAnsweringPipeline"):
            monkeypatch.setattr(owner, name, getattr(owner, name, None), raising=False)
    patch_transformers()
    from transformers import QuestionAnsweringPipeline, pipeline

    qa = pipeline("question-answering", model=str(folder / "bert"))
    assert isinstance(qa, QuestionAnsweringPipeline)
    assert sorted(qa(question="Who?", context="Mira")) == ["answer", "end", "score", "start"]
    assert type(pipeline(task="fill-mask", model=str(folder / "bert"))).__name__ == "FillMaskPipeline"
