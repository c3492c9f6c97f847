"""First steps of a user: install the wheel, ask ``doctor``, run what README and docs/comparing.md print."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from pages import ROOT, commands

import qa_arch
from qa_arch import hub
from qa_arch.cli.main import COMMANDS, main
from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.files import write_json


@pytest.mark.slow
def test_wheel_contains_configs_and_baselines(tmp_path):
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run([sys.executable, "-m", "pip", *build], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    site = tmp_path / "site"
    configs = {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
    assert {path.relative_to(site / "qa_arch/conf") for path in (site / "qa_arch/conf").rglob("*")} >= configs
    information = f"qa_arch-{qa_arch.__version__}.dist-info"
    assert {path.name for path in site.iterdir()} == {"qa_arch", "baselines", information}
    metadata = email.message_from_string((site / information / "METADATA").read_text(encoding="utf-8"))
    assert (metadata["Author"], metadata["License-Expression"]) == ("qa_arch developers", "MIT")
    assert len(metadata.get_all("Project-URL")) >= 2
    for file in (f"{information}/licenses/LICENSE", "baselines/transformer.py", "qa_arch/py.typed"):
        assert (site / file).is_file()
    for grid, printed in (([], "TransformerSpan"), (["-m", "model=bert,proposed"], "model=proposed")):
        command = [sys.executable, "-m", "qa_arch", "train", *grid, "glove=none", "debug=fast", "--dry-run"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=site, env={"PYTHONPATH": str(site)}
        )
        assert (done.returncode, printed in done.stdout) == (0, True), done.stderr


@pytest.fixture
def empty_hub_cache(monkeypatch, tmp_path):
    for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub._silence.cache_clear()
    yield
    hub._silence.cache_clear()


@pytest.fixture
def doctor(empty_hub_cache, qa_arch):
    """``doctor()`` -> exit code and the checks by name."""

    def call():
        code, out, _ = qa_arch("doctor", "--json")
        return code, {check["name"]: check for check in json.loads(out)["checks"]}

    return call


def test_this_environment_passes_in_few_lines(doctor, qa_arch):
    code, checks = doctor()
    assert code == 0
    assert {"python", "cpu", "conf", "baselines", "hydra plugins"} <= set(checks)
    assert (checks["torch"]["ok"], checks["torch"]["found"]) == (True, metadata.version("torch"))
    assert "pytest" not in checks  # only in an extra
    assert all(check["remedy"] for check in checks.values() if not check["ok"])
    assert "HF_HUB_OFFLINE is set" in checks["encoder bert-base-uncased"]["found"]
    *lines, verdict = qa_arch("doctor")[1].splitlines()
    (packages,) = (line for line in lines if "hydra-core" in line)
    assert f"torch {metadata.version('torch')}" in packages
    (encoders,) = (line for line in lines if "albert-base-v2" in line)
    assert encoders.startswith("absent   encoder albert-base-v2, encoder bert-base-uncased, ")
    assert verdict == "qa-arch works here; what is absent is needed only by a run that names it"


@pytest.mark.usefixtures("empty_hub_cache")
def test_unsupported_version_is_reported(qa_arch, monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "transformers" else real(name))
    code, out, _ = qa_arch("doctor")
    assert code == 6
    assert "PROBLEM  transformers: 0.1, not >=" in out
    assert "-> pip install 'transformers>=" in out
    assert out.splitlines()[-1] == "qa-arch does not work here; repair transformers"


@pytest.mark.slow
@pytest.mark.usefixtures("empty_hub_cache")
def test_broken_hydra_plugin_and_shadowing_package_are_reported(tmp_path):
    for name, body in {
        "hydra_plugins/hydra_ax_sweeper": "raise ValueError('mutable default')",
        "baselines": "",
    }.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(body)
    command = [sys.executable, "-m", "qa_arch.cli.main", "doctor", "--json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 6
    assert "mutable default" in checks["hydra_plugins.hydra_ax_sweeper"]["found"]
    assert checks["hydra_plugins.hydra_ax_sweeper"]["remedy"] == "pip uninstall hydra-ax-sweeper"
    assert checks["baselines"]["found"] == str(tmp_path / "baselines")


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
    sets = {split: synthetic.generate(2, 3, 1, split) for split in ("train", "calibration", "dev")}
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
    assert scores["calibrated"]["metrics"]["total"] == 30
    assert len(json.loads(Path("predictions/predictions.json").read_text())) == 30
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
