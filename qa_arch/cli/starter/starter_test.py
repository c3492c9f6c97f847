"""The model satisfies the contract: shapes, masks, padding, gradients, saving, learning."""

from pathlib import Path

from qa_arch.cli.main import main

FOLDER = str(Path(__file__).parents[1])
"""The folder with model/ and the package."""


def test_starter_model_satisfies_the_contract() -> None:
    options = ["--config-dir", FOLDER, "--trust", "starter_model"]
    assert main(["check-model", "model=starter_model", *options]) == 0
