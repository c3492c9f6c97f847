"""Each planted fault still finds its place: one that does not would be noticed only by the slow run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from faults import FAULTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_can_be_planted(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    assert fault.new != fault.old


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_tests_that_must_notice_exist(fault):
    for test in fault.tests:
        file, *names = test.split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"^(def|class|    def) {name.split('[')[0]}\b", text, re.MULTILINE), (
                f"{file} has no {name}"
            )


def test_no_two_faults_are_alike():
    assert not [name for name, times in Counter(fault.name for fault in FAULTS).items() if times > 1]
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)
