"""The faults that ``mutations.py`` plants: small mistakes of the kind that leave everything running.

Each names the test that a developer would expect to notice, so that a test file that has lost its teeth
shows even where another would have caught the fault by chance. A fault names its place by a qualified name
of the code, not by file (``planting.py``), and what it replaces by a pattern (``patterns.py``), so that
neither a move nor the new name of a variable loses it. ruff leaves the tables as they are: each pattern
stands above its replacement. Those of an extra lie beside its tests, ``tests/extras/NAME/faults.py``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from faults import answers, data, network, runs, serving, training

FAULTS = (
    *data.FAULTS,
    *network.FAULTS,
    *answers.FAULTS,
    *training.FAULTS,
    *runs.FAULTS,
    *serving.FAULTS,
    *(
        fault
        for path in sorted((Path(__file__).parents[1] / "extras").glob("*/faults.py"))
        for fault in import_module(f"extras.{path.parent.name}.faults").FAULTS
    ),
)
