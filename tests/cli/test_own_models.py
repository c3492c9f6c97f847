"""User models outside the repository: created, checked against the contract, errors reported by line."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from pages import BLOCK, ROOT, commands

from qa_arch.cli import own_models
from qa_arch.cli.main import main
from qa_arch.cli.own_models import explain
from qa_arch.config.compose import compose
from qa_arch.config.find import use_config_dir
from qa_arch.config.schema import validate
from qa_arch.config.target import TRUSTED
from qa_arch.contract import CHECKS, ContractError, Subject, trial_settings
from qa_arch.qa import task
from qa_arch.training.module import OutputError

pytestmark = pytest.mark.usefixtures("own_folder")


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def options(name: str) -> list[str]:
    return ["--config-dir", "mine", "--trust", name]


def test_new_model_satisfies_the_contract_and_trains(tmp_path, quick, capsys, qa_arch, caplog):
    assert qa_arch("new-model", "other", "--into", "mine")[0] == 0
    code, printed, _ = qa_arch("new-model", "gated_span", "--into", "mine")
    assert code == 0
    assert files(tmp_path / "mine") == [
        *("gated_span/__init__.py", "gated_span/model.py", "model/gated_span.yaml", "model/other.yaml"),
        *("other/__init__.py", "other/model.py", "tests/test_gated_span.py", "tests/test_other.py"),
    ]
    own = options("gated_span")
    assert f"qa-arch train model=gated_span experiment=demo debug=fast {' '.join(own)}" in printed
    code, trained, _ = qa_arch("train", "model=gated_span", *quick, *own)
    assert (code, " --trust gated_span" in trained.splitlines()[-1]) == (0, True), "the next step is printed"
    assert "padding changes the scores" not in caplog.text
    run = str(next(Path("runs").glob("*/gated_span-s13-*/run.json")).parent)
    sys.path.remove(str(tmp_path / "mine"))
    for module in [module for module in sys.modules if module.startswith("gated_span")]:
        del sys.modules[module]
    assert qa_arch("ask", run, "--question", "Who?", "--context", "Ada did.", *own)[0] == 0
    written = runpy.run_path("mine/tests/test_gated_span.py")
    written["test_gated_span_satisfies_the_contract"]()
    out = capsys.readouterr().out
    assert len(re.findall(r"^ok    ", out, re.MULTILINE)) == 8
    assert "8 of 8 checks passed" in out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../up", "not a package name"),
        ("bert", "one of qa_arch's own"),
        ("model", "for configs or tests"),
        ("torch", "already exists"),
    ],
)
def test_unusable_model_name_is_refused(tmp_path, name, reason, qa_arch):
    code, _, err = qa_arch("new-model", name, "--into", "mine")
    assert (code, reason in err) == (2, True), err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("taken", ["gated/x.py", "gated.py", "model/gated.yaml"])
def test_existing_files_are_not_changed(tmp_path, taken, qa_arch):
    path = tmp_path / "mine" / taken
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    code, _, err = qa_arch("new-model", "gated", "--into", "mine")
    assert (code, "already exists and was not changed" in err) == (1, True), err
    assert files(tmp_path / "mine") == [taken]


def plant(name: str, *changes: tuple[str, str]) -> Path:
    """Write a new model into ``mine``, replace ``changes`` in its code and return the file."""
    own_models.write_model(name, Path("mine"))
    path = Path("mine") / name / "model.py"
    source = path.read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path.write_text(source)
    return path


def subject(name: str, folder: Path) -> Subject:
    config_dir = use_config_dir("mine", [name])
    config = validate(compose([*trial_settings(folder), f"model={name}"], config_dir))
    trusted = (*TRUSTED, name)
    torch.manual_seed(0)
    return Subject(config, task.new_parts(config, trusted), trusted)


LEAK = ("masked_softmax(self.query(tokens)[..., 0], batch.question)", "self.query(tokens)[..., 0].softmax(1)")
SHIFT = "        self.{} = nn.Parameter(torch.zeros(hidden))\n"
MISTAKES = {
    "undefined": (
        "output_has_its_shape",
        [("torch.tanh(mixed)", "torch.tanh(mixed) * 0 / 0")],
        r"model\.py:\d+: \w+\.forward: SpanLogits.start is NaN in .* divisions by zero",
    ),
    "mixing": ("same_alone_and_padded", [LEAK], "differs by .* depends on padding"),
    "cut": (
        "gradients_reach_all_parameters",
        [("torch.tanh(mixed)", "torch.tanh(mixed) * 0")],
        r"the gradient of (\S+) is zero: .* constant to all scores, .* --without-effect \1",
    ),
    "shared": (
        "gradients_reach_all_parameters",
        [
            ("        self.dropout = ", f"{SHIFT.format('one')}{SHIFT.format('two')}        self.dropout = "),
            ("torch.tanh(mixed)", "torch.tanh(mixed + torch.stack([self.one, self.two]).sum(0))"),
        ],
        "the gradients of one and two are one memory",
    ),
    "forgetful": (
        "saved_weights_load",
        [
            ("        self.dropout = ", "        self.factor = torch.rand(hidden)\n        self.dropout = "),
            ("torch.tanh(mixed)", "torch.tanh(mixed) * self.factor"),
        ],
        "neither a parameter nor a buffer",
    ),
    "dull": (
        "learns_four_questions",
        [("torch.tanh(mixed)", "torch.tanh(mixed) * 1e-7")],
        "after 150 steps on 4 questions",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_contract_catches_mistakes(tmp_path, mistake):
    check, changes, message = MISTAKES[mistake]
    plant(f"own_{mistake}", *changes)
    checks = {check.__name__: check for check in CHECKS}
    with pytest.raises((ContractError, OutputError), match=message):
        checks[check](subject(f"own_{mistake}", tmp_path))


def test_training_warns_of_scores_that_depend_on_padding(quick, caplog, qa_arch):
    plant("own_padding", LEAK)
    assert qa_arch("train", "model=own_padding", *quick, *options("own_padding"))[0] == 0
    warned = [message for message in caplog.messages if message.startswith("padding changes the scores")]
    assert len(warned) == 1


def test_failed_check_is_reported_and_the_others_go_on(qa_arch):
    plant("own_open", ("fill(start, batch.context)", "start"))
    code, out, _ = qa_arch("check-model", "model=own_open", "model.dropout=0", *options("own_open"))
    assert code == 1
    failed = r"^FAIL  Scores are finite on the context.*\n      start is finite at \d+ tokens"
    assert re.search(failed, out, re.MULTILINE)
    assert "ok    Saved and loaded" in out


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("bad/model.py", "import torch\ndef f(:\n", r"bad/model\.py:2: invalid syntax"),
        (
            "bad/model.py",
            "from torch import nn\nclass Bad(nn.Module):\n    def __init__(self, enc): ...\n",
            r"an argument named encoder \(mine/bad/model\.py:3\)",
        ),
        ("model/bad.yaml", "task: span\n\tname: bad\n", r"bad\.yaml: is not valid YAML: line 2"),
    ],
)
def test_syntax_error_in_a_file_of_the_user_is_located(quick, qa_arch, file, text, message):
    own_models.write_model("bad", Path("mine"))
    Path("mine", file).write_text(text)
    code, _, err = qa_arch("train", "model=bad", *quick, *options("bad"))
    assert code == 2
    assert re.search(message, err)


PARTS = """\
from qa_arch.nn.heads import LinearHead, SpanScores
from qa_arch.nn.losses import SpanLoss


class Wide(LinearHead):
    def forward(self, context, mask, nothing=None):
        return SpanScores(*(scores[..., None] for scores in super().forward(context, mask, nothing)))


class Few(LinearHead):
    def forward(self, context, mask):
        return super().forward(context, mask)


class Short:
    tasks = ("span",)

    def __call__(self, logits):
        return logits.start[:, 0]


class Mean(SpanLoss):
    def __call__(self, logits, labels):
        return super().__call__(logits, labels).mean()
"""


@pytest.mark.parametrize(
    ("setting", "name", "message"),
    [
        ("head", "Wide", r":6: Wide\.forward: .*SpanScores\.start of the head is \(\d+, \d+, 1\), expected"),
        ("head", "Few", r":11: Few\.forward: TypeError: .* takes 3 positional arguments but 4"),
        ("loss", "Short", r"Short\.__call__\(\) takes 2 positional arguments but 3"),
        ("loss", "Mean", r"mine/parts/own.py:23: Mean returns \(\), expected \(B,\) = \(4,\)"),
    ],
)
def test_error_of_an_own_head_or_loss_names_it(quick, qa_arch, setting, name, message):
    own_models.write_model("parts", Path("mine"))
    Path("mine/parts/own.py").write_text(PARTS)
    Path("mine", setting).mkdir()
    package = "# @package model.head\n" if setting == "head" else ""
    Path("mine", setting, "own.yaml").write_text(f"{package}_target_: parts.own.{name}\n")
    code, _, err = qa_arch("train", *quick, "model=bert", f"{setting}=own", *options("parts"))
    assert code == 1
    assert re.search(message, err.splitlines()[-1]), err


TOKENS = ("torch.cat([tokens, question, tokens * question], dim=-1)", "tokens")
COLUMN = ("start=fill(start, batch.context)", "start=fill(start, batch.context)[..., None]")


MATRIX = r"mixed = self\.mix\(tokens\): RuntimeError: mat1.* \(tokens is \(\d+, \d+, 16\)\)"
SHAPE = r"SpanLogits.start is \(\d+, \d+, 1\), expected \(B, T\) = \(\d+, \d+\)"


@pytest.mark.parametrize(
    ("name", "change", "line", "message"),
    [("own_narrow", TOKENS, "self.mix(tokens)", MATRIX), ("column", COLUMN, "def forward", SHAPE)],
    ids=["error", "output"],
)
def test_mistake_in_an_own_model_is_located(quick, qa_arch, name, change, line, message):
    path = plant(name, change)
    number = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if line in text)
    for command in (["train", *quick], ["check-model"]):
        code, out, err = qa_arch(*command, f"model={name}", *options(name))
        shown = err.splitlines()[-1] if command[0] == "train" else out
        assert (code, f"{path}:{number}: " in shown, "report" in shown) == (1, True, False), shown
        assert re.search(message, shown), shown


def test_only_errors_in_trusted_code_are_explained():
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        fail()
    assert explain(raised.value, ()) is None
    assert explain(raised.value, ["elsewhere"]) is None
    assert "ValueError: no" in str(explain(raised.value, [__name__.split(".")[0]]))


PAGE = (ROOT / "docs" / "your_model.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_worked_example_runs(quick, capsys):
    calls = commands(PAGE)
    assert main(calls[0]) == 0
    sources = [block for block in BLOCK.findall(PAGE) if block.startswith("# mine/")]
    assert len(sources) == 4
    for block in sources:
        first, _, text = block.partition("\n")
        path = Path(first.removeprefix("# "))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (checked,) = (call for call in calls if call[0] == "check-model" and "loss=near" in call)
    assert main(checked) == 0, capsys.readouterr().out
    assert "8 of 8 checks passed" in capsys.readouterr().out
    own = [call for call in calls if call[0] == "train" and "--trust" in call]
    (trained,) = (call for call in own if "-m" not in call)
    assert main([*trained, *quick[1:], "loss=near"]) == 0
    (swept,) = (call for call in own if "-m" in call)
    single_seed = ["seed=1" if word == "seed=1,2,3" else word for word in swept]
    capsys.readouterr()
    assert main([*single_seed, "--dry-run", "sweep.folder=sweep"]) == 0
    assert capsys.readouterr().out.count(" run ") == 4
