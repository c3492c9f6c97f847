"""The wheel contains configs and baselines and works outside a checkout."""

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import qa_arch

ROOT = Path(__file__).resolve().parents[2]


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
    assert (site / information / "licenses" / "LICENSE").is_file()
    assert (site / "baselines" / "transformer.py").is_file()
    assert (site / "qa_arch" / "py.typed").is_file()
    program = (
        "import sys; from qa_arch.cli.main import main; sys.exit(main(['train', 'debug=fast', '--dry-run']))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=site, env={"PYTHONPATH": str(site)})
    assert done.returncode == 0, done.stderr
    assert "TransformerSpan" in done.stdout
    grid = program.replace("['train',", "['train', '-m', 'model=bert,proposed', 'glove=none',")
    done = subprocess.run(
        [*command[:-1], grid], capture_output=True, text=True, cwd=site, env={"PYTHONPATH": str(site)}
    )
    assert done.returncode == 0, done.stderr
    assert "model=proposed" in done.stdout
