"""Run the commands on trained runs of README and docs/comparing.md, on runs that take seconds."""

import json
import re
import shutil
from pathlib import Path

import pytest
from pages import commands

from qa_arch.cli.main import COMMANDS, main
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.files import write_json

ROOT = Path(__file__).resolve().parents[2]

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMPARING = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
PROGRAM = r"```python\n(import qa_arch\n.*?)```"
RUN_COMMANDS = {"ask", "predict", "evaluate", "adopt", "tables", "compare", "show", "report"} & set(COMMANDS)
TRAININGS = ("train model=bert experiment=squad2", "train model=proposed experiment=squad2")
QUICK = ("debug=fast", "name=squad2", "trainer.progress=false")


@pytest.fixture
def placeholders(tmp_path, monkeypatch, feature_cache) -> dict[str, str]:
    """Placeholder -> value, after the first two trainings of the README (in runs/squad2)."""
    monkeypatch.chdir(tmp_path)
    sets = {split: synthetic.generate(4, 3, 1, split) for split in ("train", "calibration", "dev")}
    for split, questions in sets.items():
        write_json(f"{split}-v2.0.json", write(questions))
    data = [f"data.{split}={split}-v2.0.json" for split in sets]
    for prefix in TRAININGS:
        call = next(call for call in commands(README) if " ".join(call).startswith(prefix))
        assert main([*call, *QUICK, *data, f"features.cache_dir={feature_cache}"]) == 0
    (bert,), (proposed,) = (list(Path("runs/squad2").glob(f"{name}-*")) for name in ("bert", "proposed"))
    dev, calibration = sets["dev"], sets["calibration"]
    write_json("answers.json", {e.id: e.answers[0].text if e.answers else "" for e in dev.examples})
    write_json("na_prob.json", {e.id: float(not e.answers) for e in dev.examples})
    for split, questions in (("dev", dev), ("calibration", calibration)):
        lines = [
            {"id": e.id, "text": e.context.split()[0], "null_odds": float(not e.answerable)}
            for e in questions.examples
        ]
        Path(f"{split}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    copies = [str(shutil.copytree(proposed, name)) for name in ("second", "third")]
    ids = (example.id for example in dev.examples)
    return {"RUN": str(proposed), "RUN_A": str(bert), "RUN_B": str(proposed)} | dict(
        zip(("RUN2", "RUN3", "ID1", "ID2"), (*copies, *ids), strict=False)
    )


def test_commands_on_trained_runs_work(placeholders, capsys):
    calls = [call for call in commands(README) + commands(COMPARING) if call[0] in RUN_COMMANDS]
    assert {call[0] for call in calls} == RUN_COMMANDS
    outputs = {}
    for call in calls:
        capsys.readouterr()
        assert main([placeholders.get(word, word) for word in call]) == 0, (call, capsys.readouterr().err)
        outputs[call[0]] = capsys.readouterr().out
    scores = json.loads(Path("ENSEMBLE/run.json").read_text())["scores"]["dev"]
    assert scores["calibrated"]["metrics"]["total"] == 60
    assert len(json.loads(Path("predictions/predictions.json").read_text())) == 60
    assert "<html" in Path("report.html").read_text(encoding="utf-8")[:200].lower()
    assert "proposed" in outputs["tables"]
    assert outputs["compare"].count("bert") >= 2

    (program,) = re.findall(PROGRAM, README, flags=re.DOTALL)
    names: dict = {}
    exec(program.replace("runs/demo", "runs/squad2"), names)
    assert len(capsys.readouterr().out.splitlines()) == 2  # one answer per question


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_first_question_is_answered_as_printed(tmp_path, monkeypatch, capsys):
    """Answered by the demo model, trained as in `make demo`."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "model=proposed", "experiment=demo", "trainer.progress=false"]) == 0
    (program,) = re.findall(PROGRAM, README, flags=re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    capsys.readouterr()
    exec(program, {})
    assert capsys.readouterr().out == printed
