"""``benchmarks.engines``: order of the engines, results, and the table in docs/export.md."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from shapes import unchecked_shapes

from benchmarks import engines
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.results.tables import fill_between, markdown
from qa_arch.training.run import train

ROOT = Path(__file__).resolve().parents[2]


def test_engines_alternate_in_rotating_order():
    calls: list[str] = []
    loaded = {
        engine: SimpleNamespace(rank=lambda questions, table, engine=engine: calls.append(str(engine)))
        for engine in engines.ENGINES[:3]
    }
    seconds = engines._alternate(loaded, "questions", "table", 2)
    first, second, third = map(str, engines.ENGINES[:3])
    assert calls == [first, second, third, second, third, first]
    assert {engine: len(times) for engine, times in seconds.items()} == dict.fromkeys(loaded, 2)


def test_page_shows_the_table_of_the_results():
    results = json.loads((ROOT / "benchmarks/results/engines.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/export.md").read_text(encoding="utf-8")
    table = markdown(engines.table_of(results), titled=False)
    assert table.count("\n| torch") == 2
    assert fill_between(page, engines.MARK, table) == page


@pytest.mark.slow
def test_command_measures_a_run(tmp_path, capsys):
    small = ("model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null")
    train(
        validate(compose([*small, "features.max_length=64", "features.max_question=24"])),
        folder=tmp_path / "run",
    )
    page = Path(shutil.copy(ROOT / "docs/export.md", tmp_path))
    files = ["--page", str(page), "--json", str(tmp_path / "engines.json")]
    arguments = [str(tmp_path / "run"), "--data", "synthetic:dev", "--questions", "30", "--rounds", "1"]
    with unchecked_shapes():
        assert engines.main([*arguments, *files]) == 0
    results = json.loads((tmp_path / "engines.json").read_text())
    rows = {row["engine"]: row for row in results["rows"]}
    assert list(rows) == [str(engine) for engine in engines.ENGINES]
    assert rows["torch fp32"]["ratio"] == 1.0
    assert rows["onnx fp32"]["same_answers"] == rows["onnx fp32"]["same_spans"] == 100.0
    assert all(row["memory_mb"] > 50 for row in results["rows"])
    assert capsys.readouterr().out.strip() in page.read_text()
