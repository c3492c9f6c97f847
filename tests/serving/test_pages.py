"""Every snippet of docs/python.md, from_the_pipeline.md and integrations.md runs as printed."""

import re
from pathlib import Path
from shutil import copytree

import pytest

import qa_arch
from qa_arch.data.squad import write
from qa_arch.files import write_json

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
