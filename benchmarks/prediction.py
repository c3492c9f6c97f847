"""Bulk prediction end to end: from questions in memory to answers, MiniLM with a random span head.

The peers are the question-answering pipeline of transformers 4.57 and haystack's extractive reader, each in
its own process, with the same weights, at its best batch size.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import BertForQuestionAnswering

from baselines.transformer import TransformerSpan
from benchmarks import haystack_peer, inputs, peer_env, pipeline_peer, rows
from benchmarks.targets import Measure, Measurement, cost, speedup
from benchmarks.timing import Timed, alternate, in_turn, median_time, once
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.metrics.abstention import best_texts
from qa_arch.nn.encoder_configs import resolve
from qa_arch.nn.precision import Precision, cast_weights, mixed
from qa_arch.provenance import new_record
from qa_arch.qa.loading import load_predictor
from qa_arch.qa.reader import Reader
from qa_arch.records import Threshold
from qa_arch.tensors import Batch
from qa_arch.types import QuestionSet

QUESTIONS, ROUNDS = 48, 3
BATCH = 16
Ask = Callable[[int, int], dict[str, Any]]
"""Function (batch size, number of questions) -> reply of a running peer."""


@dataclass(frozen=True)
class Peer:
    """A library that answers the same questions with the same weights."""

    environment: peer_env.PeerEnvironment
    script: str
    """Run by the environment's interpreter."""
    batches: tuple[int, ...] = (1, 8, 32)
    """Batch sizes to try."""


PIPELINE = Peer(peer_env.TRANSFORMERS_4, pipeline_peer.__file__)
HAYSTACK = Peer(peer_env.HAYSTACK, haystack_peer.__file__, batches=(16,))
"""Its batches hold windows of a single question."""


def compare_with_peer(
    quick: bool, *, peer: Peer, precision: Precision = "fp32", engine: str = "torch"
) -> Measurement:
    """Compare speed and answers, never abstaining on either side; ``engine``: torch or onnx."""
    questions = sample_of_dev(quick)
    with tempfile.TemporaryDirectory() as folder, _run_peer(peer, Path(folder), questions) as ask:
        predictor = (
            onnx_predictor(Path(folder) / "graph", precision)
            if engine == "onnx"
            else build_predictor(precision)
        )
        batch = best_batch(peer, ask, len(questions) // 3, quick)
        texts = texts_of(predictor, questions)
        reply = ask(batch, BATCH)

        def time_peer() -> Timed:
            nonlocal reply
            reply = ask(batch, len(questions))
            return Timed(reply["wall"], reply["cpu"])

        time_ours = partial(once, partial(texts_of, predictor, questions))
        pairs = in_turn(time_ours, time_peer, 1 if quick else ROUNDS)
    rates = [f"{len(questions) / median_time(side).wall:.1f}" for side in (pairs.ours, pairs.theirs)]
    note = (
        f"{len(questions)} questions, {rates[0]} a second; peer {rates[1]} at batch {batch},"
        f" {_equal_texts(texts, reply['texts'])} of the texts are the peer's"
    )
    return speedup(pairs, note)


def best_batch(peer: Peer, ask: Ask, sample: int, quick: bool) -> int:
    """The peer's fastest batch size; measured once, for all rows that it is the peer of."""
    name, machine = f"batch-of-{peer.environment.name}", rows.describe_machine()
    batch = rows.saved(name, machine, quick)
    if batch is None:
        ask(1, sample)
        batch = min(peer.batches, key=lambda batch: ask(batch, sample)["wall"])
        rows.save(name, batch, machine, quick)
    return batch


def compare_with_forward(quick: bool) -> Measurement:
    """Whole prediction against its forward passes: the overhead of features, decoding and ranking."""
    questions, predictor = sample_of_dev(quick), build_predictor("fp32")
    passes = forward_passes(predictor, questions)
    pairs = alternate(lambda: texts_of(predictor, questions), passes, 1 if quick else ROUNDS)
    return cost(pairs, f"{len(questions)} questions, batches of {BATCH}")


def sample_of_dev(quick: bool) -> QuestionSet:
    return inputs.spread(24 if quick else QUESTIONS, quick)


def forward_passes(predictor: Reader, questions: QuestionSet) -> Callable[[], None]:
    """Function that only runs the model on the batches that ``read`` makes of ``questions``."""
    batches: list[Batch] = []
    recorder = predictor.model.register_forward_pre_hook(lambda model, inputs: batches.append(inputs[0]))
    texts_of(predictor, questions)
    recorder.remove()

    def run() -> None:
        with torch.inference_mode(), mixed(predictor.precision, "cpu"):
            for batch in batches:
                predictor.model(batch)

    return run


def build_predictor(precision: Precision) -> Reader:
    """MiniLM with a seeded random head, as ``qa_arch.load`` would build it."""
    config = validate(compose(["model=bert", "encoder=minilm", "glove=none", "logger=none"]))
    model = cast_weights(build_model(), precision)
    record = new_record(asdict(config), status="ok", threshold=Threshold(value=0.0, fitted_on="nothing"))
    options: Any = {"segments": True, "precision": precision, "record": record}
    return Reader(model, inputs.tokenizer(), None, config, **options)


def onnx_predictor(folder: Path, precision: Precision) -> Reader:
    """The same model, exported to ``folder`` and run by ONNX Runtime."""
    from qa_arch.export.onnx import export_onnx

    sample = inputs.spread(20, quick=True)
    export_onnx(build_predictor("fp32"), folder, precision=precision, questions=sample)
    return load_predictor(folder)


def build_model() -> TransformerSpan:
    torch.manual_seed(inputs.SEED)
    model = TransformerSpan(inputs.encoder(init="pretrained", name="minilm"))
    torch.nn.init.normal_(model.span.weight, std=0.5)  # spreads scores like a trained head
    return model


def texts_of(predictor: Reader, questions: QuestionSet) -> list[str]:
    """Best span of each question, with features prepared from scratch."""
    ranking = predictor.rank(questions, batch_size=BATCH)
    return list(best_texts(ranking.best_predictions).values())


@contextmanager
def _run_peer(peer: Peer, folder: Path, questions: QuestionSet) -> Iterator[Ask]:
    """``ask(batch size, number of questions)`` of a running peer with our weights."""
    model = build_model()
    peer_model = BertForQuestionAnswering.from_pretrained(resolve("minilm"))
    peer_model.qa_outputs.load_state_dict(model.span.state_dict())
    peer_model.save_pretrained(folder / "model")
    inputs.tokenizer().save_pretrained(folder / "model")
    entries = [{"question": e.question, "context": e.context} for e in questions.examples]
    path = folder / "questions.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    command = [str(peer.environment.python()), peer.script, str(folder / "model"), str(path)]
    # The process of a row keeps scripts' own folders out of sys.path; the peer's script imports a neighbour.
    environment = os.environ | {"PYTHONPATH": str(Path(peer.script).parent)}
    with subprocess.Popen(
        [*command, str(torch.get_num_threads())],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def ask(batch: int, count: int) -> dict:
            print(batch, count, file=process.stdin, flush=True)
            return json.loads(_line(process))

        _line(process)
        yield ask
        process.stdin.close()  # type: ignore[union-attr]


def _line(process: subprocess.Popen) -> str:
    line = process.stdout.readline()  # type: ignore[union-attr]
    if not line:
        raise RuntimeError(f"the peer's process ended with {process.wait()}")
    return line


def _equal_texts(texts: list[str], peer_texts: list[str]) -> str:
    return f"{100 * sum(a == b for a, b in zip(texts, peer_texts, strict=True)) / len(texts):.1f}%"


ROWS: dict[str, Measure] = {
    **{
        f"predict-{precision}": partial(compare_with_peer, peer=PIPELINE, precision=precision)
        for precision in ("fp32", "bf16")
    },
    "predict-haystack": partial(compare_with_peer, peer=HAYSTACK),
    **{
        f"predict-onnx-{precision}": partial(
            compare_with_peer, peer=PIPELINE, precision=precision, engine="onnx"
        )
        for precision in ("fp32", "int8")
    },
    "predict-floor": compare_with_forward,
}
