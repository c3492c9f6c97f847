"""Pre-training runs of seconds on a handful of stories, one per objective."""

from collections.abc import Callable
from pathlib import Path

import pytest
from models.conftest import tiny_encoder  # noqa: F401
from system.conftest import online  # noqa: F401

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.training.run import train

NAMES = ("Tarn", "Mira", "Bell", "Ada", "Otto", "Quill", "Sten", "Yara")
STORIES = [
    f"{name} keeps {n} bees. On day {n} it rains in Lomm. {name} sells honey to {NAMES[n - 1]} every year."
    for n, name in enumerate(NAMES)
]
FAST = [
    *("debug=fast", "data=corpus", "encoder.initializer_range=0.15", "optim.lr=3e-3"),
    *("features.max_length=32", "features.max_question=16", "features.stride=8", "features.cache_dir=null"),
    *("trainer.max_steps=-1", "trainer.epochs=2", "trainer.progress=false"),
]


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> list[str]:
    """Overrides for a pre-training run of seconds."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train.txt").write_text("\n\n".join(STORIES))
    (folder / "held.txt").write_text("\n\n".join(STORIES[::3]))
    return [*FAST, f"data.train={folder}/train.txt", f"data.calibration={folder}/held.txt"]


@pytest.fixture(scope="session")
def configure(settings) -> Callable[..., Config]:
    def build(*overrides: str, model: str = "mlm") -> Config:
        return validate(compose([f"model=pretrain/{model}", *settings, *overrides]))

    return build


@pytest.fixture(scope="session")
def run_of(configure, tmp_path_factory) -> Callable[[str], Path]:
    """``run_of(objective)``: folder of a finished run, trained on first use."""
    runs: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("pretrained")

    def get(objective: str) -> Path:
        if objective not in runs:
            runs[objective] = folder / objective
            train(configure(model=objective), folder=runs[objective])
        return runs[objective]

    return get


@pytest.fixture(scope="session")
def fine_tuning(few_questions) -> Callable[..., Config]:
    """``fine_tuning(run)``: config of a span model on the encoder of a pre-training run."""

    def build(pretrained: Path | str, *overrides: str) -> Config:
        base = ["model=bert", "debug=fast", "trainer.max_steps=2"]
        encoder = ["encoder.init=pretrained", f"encoder.name={pretrained}"]
        sizes = [f"encoder.{key}=null" for key in ("layers", "width", "heads", "vocabulary")]
        windows = ["features.max_length=32", "features.max_question=8", "features.stride=4"]
        return validate(compose([*base, *encoder, *sizes, *windows, *few_questions, *overrides]))

    return build


@pytest.fixture(scope="session")
def spans(run_of, fine_tuning, tmp_path_factory) -> Path:
    """Folder of a span run initialised from the masked language model."""
    folder = tmp_path_factory.mktemp("spans") / "run"
    train(fine_tuning(run_of("mlm")), folder=folder)
    return folder
