"""The suite goes red for every fault of ``faults/``, and is green without."""

from __future__ import annotations

from dataclasses import replace

import mutations
import pytest

FAULTS = mutations.FAULTS


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy to plant faults in, whose tests pass as it is."""
    copy = mutations.Checkout(tmp_path_factory.mktemp("mutations"))
    sound = copy.baseline(copy.tests(FAULTS))
    assert sound.verdict == "survived", sound.output
    return copy


@pytest.mark.slow
@pytest.mark.timeout(0)  # every run has limits of its own
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(checkout, fault):
    result = checkout.outcome(fault)
    assert result.verdict == "caught", f"{fault.name}: {result.verdict}\n{result.output}"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_what_counts_as_caught(tmp_path):
    """Neither a change that means nothing nor one that keeps the tests from being read."""
    copy = mutations.Checkout(tmp_path)
    fault = mutations.Fault(
        name="nothing",
        at="normalise",
        old='" ".join(_w)',
        new='" ".join(_w)',
        test="test_squad_scores",
    )
    assert copy.outcome(fault).verdict == "survived"
    broken = replace(fault, at="squad:ARTICLES", old="ARTICLES = _a", new="import rere")
    assert copy.outcome(broken).verdict == "broken"
    with pytest.raises(
        mutations.StaleFaultError, match=r"0 times in normalise \(qa_arch/metrics/squad\.py\)"
    ):
        copy.outcome(replace(fault, old="no_such_function(___)", new=""))
