"""Puts the names that transformers 5 removed back into it, for code that cannot be changed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from qa_arch.extras.compat import pipeline, squad, squad_metrics

PROCESSORS = (
    "SquadExample",
    "SquadFeatures",
    "SquadV1Processor",
    "SquadV2Processor",
    "squad_convert_examples_to_features",
)
"""Names of the ``squad`` module that transformers 4 also exported itself."""


def restore() -> None:
    """Restore the removed modules, classes and functions, and the task of ``transformers.pipeline``.

    Call it before the first import of a package that uses them.
    """
    import transformers.pipelines  # replaces transformers in sys.modules when it is first imported

    library: Any = transformers
    for package, name, module in (
        ("metrics", "squad_metrics", squad_metrics),
        ("processors", "squad", squad),
    ):
        path = f"transformers.data.{package}"
        parent = sys.modules.setdefault(path, ModuleType(path))
        sys.modules[f"{path}.{name}"] = module
        setattr(library.data, package, parent)
        setattr(parent, name, module)
    for owner in (library, library.data.processors):
        for name in PROCESSORS:
            setattr(owner, name, getattr(squad, name))
    for owner in (library, library.pipelines):
        owner.QuestionAnsweringPipeline = pipeline.QuestionAnsweringPipeline
        owner.pipeline = pipeline.with_question_answering(owner.pipeline)
