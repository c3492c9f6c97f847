"""The faults that ``mutations.py`` plants: small mistakes that raise no error.

Each fault names the test that should catch it, so that a test file that has become ineffective shows even if
another test catches the fault by chance. The place is a qualified name rather than a file (``planting.py``),
so that faults survive moved code. Formatting is off in the tables, to keep code beside its replacement, or
above it if both do not fit on a line. The faults of an extra are in ``tests/extras/NAME/faults.py``.
"""

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
