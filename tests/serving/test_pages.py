"""docs/python.md and docs/from_the_pipeline.md: every snippet of ours runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qa_arch.config.files import write_json
from qa_arch.data.squad import write

DOCS = Path(__file__).resolve().parents[2] / "docs"


def snippets(page: str, kind: str = "") -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```python{kind}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize(("page", "count"), [("python", 5), ("from_the_pipeline", 4)])
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


def test_every_option_is_in_the_tables():
    from qa_arch.serving.reader import Options

    for page in ("python", "from_the_pipeline"):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        assert all(f"`{name}`" in text for name in Options.__annotations__), page
