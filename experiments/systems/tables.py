"""Any system, any test set: trained models, published answers, another program's model and a prompted one.

Filled by: the commands of README.md; then qa-arch tables runs/systems runs/adopted --publish
experiments/systems/records
"""

from __future__ import annotations

from pathlib import Path

from qa_arch.records import DEV, recorded
from qa_arch.results.suite import SuiteSet, suite_tables
from qa_arch.results.systems import group_by_system
from qa_arch.results.tables import Table

BASELINE = "plain"
SETS = {
    DEV: DEV,
    "dev_answerable": "dev, answerable",
    "dev_150": "dev, 150",
    "amazon_150": "Amazon, 150",
    "german": "German",
    "spanish": "Spanish",
}
"""Split name in the records of trained runs -> name shown in tables."""


def tables(folder: Path) -> list[Table]:
    runs = [(folder / place, record) for place, record in recorded(folder, "**")]
    trained = next((record for _, record in runs if not record.adopted), None)
    if trained is None:
        return []
    sets = [SuiteSet(name, trained.facts(split)) for split, name in SETS.items()]
    return suite_tables(group_by_system(runs), sets, BASELINE, title="Systems on sets")
