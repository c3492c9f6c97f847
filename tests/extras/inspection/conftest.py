"""Tiny runs of the proposed model to inspect."""

import pytest

from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.training.run import train


@pytest.fixture(scope="session", params=["pieces", "words"])
def proposed(request, few_questions, tmp_path_factory):
    """Folder, config and matching of a run with short windows, so that passages need several."""
    small = [
        "model=proposed",
        "debug=fast",
        "glove=none",
        "features.cache_dir=null",
        "model.hidden=12",
        "encoder.layers=3",
    ]
    lengths = ["features.max_length=40", "features.stride=4", "features.max_question=20"]
    matching = f"model.matching={request.param}"
    config = validate(compose([*small, *lengths, *few_questions, matching]))
    folder = tmp_path_factory.mktemp("proposed")
    train(config, folder=folder)
    return folder, config, request.param
