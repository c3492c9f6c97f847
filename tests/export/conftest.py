"""Untrained predictors of every family and of parts that are hard to trace."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
import torch
from contract import LazyCases
from families import EXTRA_FAMILIES
from shapes import unchecked_shapes

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.contract import write_vectors
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.files import write_json
from qa_arch.provenance import new_record
from qa_arch.qa import task
from qa_arch.qa.reader import Reader
from qa_arch.records import Threshold

CASES = {
    **{family: (family, []) for family in ("bert", "roberta", "distilbert", "albert", *EXTRA_FAMILIES)},
    "linear": ("bert", ["head=linear"]),
    "proposed": ("proposed", ["glove=file", "model.no_answer=both"]),
    "suffix_prefix": ("ablation/suffix_prefix", []),
    "boundary": ("match_lstm/boundary", ["glove=file"]),
    "sequence": ("match_lstm/sequence", ["glove=file"]),
}


@pytest.fixture(autouse=True)
def _traceable() -> Iterator[None]:
    """Disable shape checks, which expect ints where a trace has symbols, and silence the trace's log."""
    trace = logging.getLogger("torch.__trace")
    trace.setLevel(logging.CRITICAL)
    with unchecked_shapes():
        yield
    trace.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def predictors(tmp_path_factory) -> dict[str, Reader]:
    """Every case, built on first use, with weights large enough for scores to differ."""
    folder = tmp_path_factory.mktemp("data")
    sets = {split: generate(articles, 3, 1, split) for split, articles in (("train", 2), ("calibration", 1))}
    for split, questions in sets.items():
        write_json(folder / f"{split}.json", write(questions))
    examples = [example for questions in sets.values() for example in questions.examples]
    write_vectors(folder / "glove.txt", (text for e in examples for text in (e.context, e.question)))
    shared = [
        *("debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null", "data.dev=null"),
        *("features.max_length=64", "features.max_question=24", f"glove.path={folder}/glove.txt"),
        *(f"data.{split}={folder}/{split}.json" for split in sets),
    ]

    def build(case: str) -> Reader:
        name, overrides = CASES[case]
        small = ["model.hidden=12"] if "hidden" in compose([f"model={name}"])["model"] else []
        config = validate(compose([f"model={name}", *shared, *small, *overrides]))
        threshold = Threshold(value=0.0, fitted_on="nothing")
        record = new_record(asdict(config), status="ok", threshold=threshold)
        predictor = task.predictor(config, task.new_parts(config), record)
        for name, parameter in predictor.model.named_parameters():
            if not name.startswith("encoder."):
                parameter.data.normal_(0.0, 0.4)
        return predictor

    return LazyCases(build)


@pytest.fixture(scope="session")
def copied() -> Callable[[Reader], Reader]:
    """A copy that tests may change, of a reader, which refuses to be copied."""

    def copy(reader: Reader) -> Reader:
        other = object.__new__(Reader)
        vars(other).update(vars(reader))
        return other

    return copy


@pytest.fixture(scope="session")
def exported(predictors, tmp_path_factory) -> Callable:
    """``exported(case)``: folder of the case's ONNX export, written once."""
    from qa_arch.export.onnx import export_onnx

    folders = tmp_path_factory.mktemp("onnx")

    def export(case: str):
        if not (folders / case).is_dir():
            export_onnx(predictors[case], folders / case)
        return folders / case

    return export


@pytest.fixture(scope="session")
def windows() -> Callable:
    """``windows(B, T)``: random windows of question, context and padding, the first row the longest."""

    def build(B: int, T: int, *, segments: bool, vectors: bool):
        from qa_arch.tensors import Batch

        torch.manual_seed(B * T)
        position = torch.arange(T).expand(B, T)
        length = torch.linspace(5, T, B).long().flip(0)[:, None]
        question, context = (position >= 1) & (position < 2), (position >= 3) & (position < length - 1)
        text = question | context
        return Batch(
            index=torch.arange(B),
            ids=torch.randint(5, 40, (B, T)) * (position < length),
            mask=position < length,
            segments=(context.long() if segments else None),
            question=question,
            context=context,
            word=torch.where(text, position // 2, -1),
            overlap=text & (position % 3 == 0),
            vector=(position % 4) * text if vectors else None,
        )

    return build
