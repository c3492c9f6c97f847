"""Every fault can be planted, at its place and nowhere else, and its tests catch it (slow)."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import mutations
import pytest
from faults import FAULTS
from planting import Fault, Sources, StaleFaultError

ROOT = Path(__file__).parents[1]


def test_every_fault_can_be_planted_and_has_its_test():
    problems = mutations.stale_faults(Sources(ROOT), FAULTS)
    assert not problems, "\n".join(problems)


def test_faults_are_distinct():
    assert not [name for name, times in Counter(fault.name for fault in FAULTS).items() if times > 1]
    assert len({(fault.at, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


@pytest.fixture
def package(tmp_path):
    """A small checkout."""
    for folder in ("qa_arch/data", "baselines", "tests/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "qa_arch/data/splits.py").write_text(
        "SEED = 3\n\n\ndef hold_out(titles, n):\n    rest = sorted(\n        titles[n:],\n    )\n"
        "    return rest\n\n\nclass Reader:\n    def add(self, a, b):\n        return a - b\n"
    )
    (tmp_path / "tests/data/test_splits.py").write_text("def test_rest():\n    pass\n")
    return tmp_path


REST = Fault(name="rest", at="hold_out", old="sorted(titles[n:])", new="titles[n:]", test="test_splits")
ADD = Fault(name="add", at="Reader.add", old="a - b", new="b - a", test="test_rest")


def test_code_is_replaced_in_any_layout_and_any_file(package):
    path, planted = Sources(package).plant(REST)
    assert (path.name, "    rest = titles[n:]\n    return rest\n" in planted) == ("splits.py", True)
    assert "return b - a\n" in Sources(package).plant(ADD)[1]
    assert Sources(package).plant(replace(ADD, at="_add")) == Sources(package).plant(ADD)
    two = replace(ADD, old="return a - b", new="a = 0\nreturn b")
    assert Sources(package).plant(two)[1].endswith("        a = 0\n        return b\n")
    (package / "baselines/other.py").write_text(path.read_text())
    path.write_text("")
    path, planted = Sources(package).plant(REST)
    assert (path.name, "    rest = titles[n:]\n" in planted) == ("other.py", True)


def test_fault_without_its_place_is_stale(package):
    for fault in (replace(REST, old="titles[:n]"), replace(REST, at="add")):
        with pytest.raises(StaleFaultError, match=f"rest: its code occurs 0 times in {fault.at}, not once"):
            Sources(package).plant(fault)
    for at in ("hold_aut", "tests/hold_out.js"):
        with pytest.raises(StaleFaultError, match=f"rest: {at} does not exist"):
            Sources(package).plant(replace(REST, at=at))
    with pytest.raises(StaleFaultError, match="occurs 2 times"):
        Sources(package).plant(replace(REST, old="rest"))
    for new, message in (("sorted( titles[n:] )", "changes nothing"), ("sorted(", "never closed")):
        [problem] = mutations.stale_faults(Sources(package), [replace(REST, new=new)])
        assert message in problem


def test_test_of_a_fault_is_found_by_name(package):
    sources = Sources(package)
    assert sources.test_id(REST) == "tests/data/test_splits.py"
    assert sources.test_id(ADD) == "tests/data/test_splits.py::test_rest"
    (package / "tests/test_splits.py").write_text("def test_rest():\n    pass\n")
    for fault in (REST, ADD):
        with pytest.raises(StaleFaultError, match=f"2 tests are called {fault.test}, not one"):
            Sources(package).test_id(fault)


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
    fault = Fault(
        name="no change",
        at="squad:normalise",
        old='" ".join(words)',
        new='(" ".join(words))',
        test="test_squad",
    )
    assert copy.outcome(fault).verdict == "survived"
    broken = replace(fault, at="squad:ARTICLES", old="ARTICLES =", new="import no_such_module;")
    assert copy.outcome(broken).verdict == "broken"
    with pytest.raises(StaleFaultError, match="0 times in squad:normalise"):
        copy.outcome(replace(fault, old="no_such_function(text)"))
