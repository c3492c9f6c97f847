"""What is scored is what is served: every interface to a model returns the answers of its evaluation.

An interface is a function from a run, examples and an empty folder to ``Answer.as_dict`` by question id. Add
new ones to ``INTERFACES``, and to ``ODDS_TOLERANCE`` if their arithmetic is not that of torch. Snippets of
docs/python.md, from_the_pipeline.md and integrations.md run as printed.
"""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from line_answers import read_lines, write_lines
from starlette.testclient import TestClient

import qa_arch
from qa_arch.cli.main import main
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.files import write_json
from qa_arch.records import read_questions, read_record
from qa_arch.serving import ServiceOptions, lines
from qa_arch.serving.app import create_app
from qa_arch.types import Example

Answers = Mapping[str, Mapping[str, Any]]
Interface = Callable[[Path, Sequence[Example], Path, pytest.MonkeyPatch], Answers]


def by_python(run, examples, folder, patch) -> Answers:
    reader = qa_arch.load(run)
    answers = reader([e.question for e in examples], [e.context for e in examples])
    return {e.id: answer.as_dict() for e, answer in zip(examples, answers, strict=True)}


def by_ask(run, examples, folder, patch) -> Answers:
    typed_lines = []
    for number, example in enumerate(examples):
        (folder / f"{number}.txt").write_bytes(example.context.encode())
        typed_lines += [f"/file {folder / f'{number}.txt'}", example.question]
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(typed_lines).encode()))
    patch.setattr("sys.stdin", stdin)
    patch.setattr("sys.stdout", output := io.StringIO())
    assert main(["ask", str(run), "--context", "none", "--json"]) == 0
    answers = read_lines(output.getvalue())
    assert [answer["question"] for answer in answers] == [e.question for e in examples]
    return {e.id: answer for e, answer in zip(examples, answers, strict=True)}


def by_json_lines(run, examples, folder, patch) -> Answers:
    patch.setattr(lines, "PART_LINES", 17)
    rows = [{"id": e.id, "question": e.question, "context": e.context} for e in examples]
    data, out = write_lines(folder / "data.jsonl", rows), folder / "out.jsonl"
    assert main(["predict", str(run), "--data", str(data), "--out", str(out)]) == 0
    return {row["id"]: row for row in read_lines(out)}


def by_rest(run, examples, folder, patch) -> Answers:
    app = create_app({"model": qa_arch.load(run)}, ServiceOptions())
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 5000)) as client:
        queries = [{"question": e.question, "context": e.context} for e in examples]
        answers = []
        for begin in range(0, len(queries), 16):
            reply = client.post("/v1/answer", json={"queries": queries[begin : begin + 16]})
            assert reply.status_code == 200, reply.text
            answers += reply.json()["answers"]
    return {e.id: answer for e, answer in zip(examples, answers, strict=True)}


def by_exported_checkpoint(run, examples, folder, patch) -> Answers:
    """Through the transformers class, with the run's windows and null threshold, which a checkpoint lacks."""
    assert main(["export", str(run), "--to", "hf", "--out", str(folder / "checkpoint")]) == 0
    windows = read_record(run).config["features"]
    reader = qa_arch.load(folder / "checkpoint", settings={"features": windows})
    threshold = qa_arch.load(run).null_threshold
    pairs = [(e.question, e.context) for e in examples]
    answers = reader.stream(pairs, null_threshold=threshold)
    return {e.id: answer.as_dict() for e, answer in zip(examples, answers, strict=True)}


def by_graph(run, examples, folder, patch) -> Answers:
    assert main(["export", str(run), "--to", "onnx", "--out", str(folder / "graph")]) == 0
    return by_python(folder / "graph", examples, folder, patch)


INTERFACES: dict[str, Interface] = {
    "python": by_python,
    "ask --json": by_ask,
    "predict, JSON lines": by_json_lines,
    "REST": by_rest,
    "exported checkpoint": by_exported_checkpoint,
    "ONNX": by_graph,
}
ODDS_TOLERANCE: dict[str, float] = {"exported checkpoint": 1e-4, "ONNX": 3e-4}
"""Largest difference of null odds from the evaluation, where it is not 1e-4."""


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory) -> Path:
    """A run trained in seconds, with its evaluation."""
    small = ("model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null")
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", *small, f"runs_dir={runs}", "trainer.progress=false"]) == 0
    (folder,) = (runs / "debug").glob("bert-*")
    return folder


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "interface", [pytest.param(name, marks=[pytest.mark.slow] * ("ONNX" in name)) for name in INTERFACES]
)
def test_answers_match_the_evaluation(trained_run, tmp_path, monkeypatch, interface, count):
    scored = json.loads((trained_run / "predictions.json").read_text(encoding="utf-8"))
    # Answered questions first: after so little training there are few.
    examples = sorted(synthetic.named("dev").examples, key=lambda example: not scored[example.id])[:count]
    with monkeypatch.context() as patch:
        answers = INTERFACES[interface](trained_run, examples, tmp_path, patch)
    names = ("id", "start", "end", "null_odds")
    rows = zip(*(read_questions(trained_run)[name] for name in names), strict=True)
    best = {id_: values for id_, *values in rows}
    threshold = read_record(trained_run).threshold
    assert threshold is not None
    # Other arithmetic may decide differently where the odds are close to the threshold.
    near = {
        id_
        for id_, (*_, odds) in best.items()
        if abs(odds - threshold.value) <= ODDS_TOLERANCE.get(interface, -1.0)
    }
    texts = {example.id: scored[example.id] for example in examples if example.id not in near}
    assert len(texts) > 0.9 * count
    assert 0 < sum(map(bool, texts.values())) < count
    assert {id_: answer["text"] for id_, answer in answers.items() if id_ not in near} == texts
    for example in examples:
        answer, (start, end, odds) = answers[example.id], best[example.id]
        assert answer["null_odds"] == pytest.approx(odds, abs=ODDS_TOLERANCE.get(interface, 1e-4))
        span = answer["spans"][0]  # the best, "no answer" or not
        assert (span["start"], span["end"], span["text"]) == (start, end, example.context[start:end])
        if answer["text"]:
            assert (answer["start"], answer["end"]) == (start, end)
    assert {answer["null_threshold"] for answer in answers.values()} == {threshold.value}


DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippets(page: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize(("page", "count"), [("python", 6), ("from_the_pipeline", 4)])
def test_snippets_run(page, count, span_run, question_set, tmp_path, monkeypatch, capsys):
    (tmp_path / "RUN").symlink_to(span_run)
    (tmp_path / "experiments").symlink_to(DOCS.parent / "experiments")
    write_json(tmp_path / "dev.json", write(question_set))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = snippets(page)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, f"docs/{page}.md", "exec"), names)
    assert capsys.readouterr().out
    if page == "from_the_pipeline":
        assert set(names["predictions"]) == {example.id for example in question_set.examples}
        assert names["scores"]["f1"] == pytest.approx(100 * 2 / 3)
        assert len(names["best"]) == len(names["result"].spans) == 3


@pytest.mark.parametrize(("number", "package"), [(0, "haystack"), (1, "mlflow")])
def test_adapters_return_the_readers_answers(number, package, span_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    pytest.importorskip(package)
    copytree(span_run, tmp_path / "RUN")  # mlflow follows no link
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "docs"}
    exec(compile(snippets("integrations")[number], "docs/integrations.md", "exec"), names)
    qa = qa_arch.load("RUN")
    if package == "mlflow":
        frame = names["frame"]
        answers = qa(list(frame["question"]), list(frame["context"]))
        predicted = names["model"].predict(frame)
        assert list(predicted["answer"]) == [answer.text for answer in answers]
        assert list(predicted["confidence"]) == pytest.approx([answer.confidence for answer in answers])
        return
    answer, spans = qa("Who designed Lambseport Tower?", names["texts"], top_k=3), names["result"]["answers"]
    assert [span.data for span in spans] == [None] * (not answer) + [span.text for span in answer.spans]
    for span in spans[not answer :]:
        assert span.document.content[span.document_offset.start : span.document_offset.end] == span.data
    reader = names["QaArchReader"]("RUN")
    assert reader.run("Who?", [names["Document"](content=" ")]) == {"answers": []}


def test_docs_list_every_option():
    from qa_arch.qa.reader import Options

    for page in ("python", "from_the_pipeline"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        assert all(f"`{name}`" in text for name in Options.__annotations__), page
