"""The suite catches every fault of ``faults/``, and passes without any."""

from dataclasses import replace

import mutations
import pytest
from faults import FAULTS


@pytest.fixture(scope="module")
def checkout(request, tmp_path_factory):
    """A copy of the checkout to plant faults in; the tests of the selected faults pass without any."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    selected = [params["fault"] for params in calls if "fault" in params]
    copy = mutations.Checkout(tmp_path_factory.mktemp("mutations"))
    sound = copy.baseline(copy.tests(selected))
    assert sound.verdict == "survived", sound.output
    return copy


@pytest.mark.slow
@pytest.mark.timeout(0)  # each pytest run has its own limits
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_caught(checkout, fault):
    result = checkout.outcome(fault)
    if result.verdict == "skipped":
        pytest.skip(f"{fault.name}: its tests cannot run on this machine")
    assert result.verdict == "caught", f"{fault.name}: {result.verdict}\n{result.output}"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_unchanged_and_broken_code_do_not_count_as_caught(tmp_path):
    copy = mutations.Checkout(tmp_path)
    fault = mutations.Fault(
        name="no change",
        at="squad:normalise",
        old='" ".join(words)',
        new='(" ".join(words))',
        test="test_squad",
    )
    assert copy.outcome(fault).verdict == "survived"
    broken = replace(fault, at="squad:ARTICLES", old="ARTICLES =", new="import no_such_module;")
    assert copy.outcome(broken).verdict == "broken"
    with pytest.raises(mutations.StaleFaultError, match="0 times in squad:normalise"):
        copy.outcome(replace(fault, old="no_such_function(text)"))
