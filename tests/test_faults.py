"""Every fault can be planted, and patterns match by structure: what the slow run of faults relies on."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from faults import FAULTS
from mutations import stale_faults
from patterns import Pattern
from planting import Fault, Sources, StaleFaultError

ROOT = Path(__file__).parents[1]


def test_every_fault_can_be_planted_and_has_its_test():
    problems = stale_faults(Sources(ROOT), FAULTS)
    assert not problems, "\n".join(problems)


def test_faults_are_distinct():
    assert not [name for name, times in Counter(fault.name for fault in FAULTS).items() if times > 1]
    assert len({(fault.at, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


def rewritten(source, old, new):
    """``source`` with the single match of ``old`` replaced, without comments and layout."""
    pattern = Pattern(old, new)
    [(nodes, bound)] = pattern.places(ast.parse(source))
    return ast.unparse(ast.parse(pattern.replaced(source, nodes, bound)))


MATCHES = [
    ("c = a - b", "_a - _b", "_b - _a", "c = b - a"),
    ("é = 'é' if é >= x else (y,\n  # why\n  z)", "_a >= _b", "_a > _b", "é = 'é' if é > x else (y, z)"),
    ("f(a, b, k=1, m=2)", "f(___, m=2)", "f(___, m=3)", "f(a, b, k=1, m=3)"),
    ("d = {'a': 1, 'c': 2}", "{**___, 'a': _x}", "{**___, 'a': 3, 'e': _x}", "d = {'a': 3, 'c': 2, 'e': 1}"),
    ("if a:\n    f()\n    g()", "if _a: ___", "if not _a: ___", "if not a:\n    f()\n    g()"),
    ("if a:\n    f()", "f()", "", "if a:\n    pass"),
    ("def f():\n    return a", "return _a", "b = _a; return -b", "def f():\n    b = a\n    return -b"),
    ("def f(a: int):\n    g(a)", "def f(_x: _t): ___", "def h(_x: _t): ___", "def h(a: int):\n    g(a)"),
]
NON_MATCHES = [
    ("a - b", "_a + _b"),
    ("a - b", "_a - _a"),
    ("f(1)", "f(True)"),
    ("f(a, k=1)", "f(___, m=_m)"),
    ("'_a'", "'_b'"),
    ("x.f(a)", "f(_a)"),
]


def test_only_matches_are_replaced():
    for source, old, new, result in MATCHES:
        assert rewritten(source, old, new) == result
    for source, old in NON_MATCHES:
        assert not Pattern(old, old).places(ast.parse(source)), (source, old)
    source = "# first\nx = [1,2,   # odd\n   3]\ny = (a\n   >= b)  # why\nz  =  4\n"
    pattern = Pattern("_a >= _b", "_a > _b")
    [(nodes, bound)] = pattern.places(ast.parse(source))
    assert pattern.replaced(source, nodes, bound) == source.replace("a\n   >= b", "(a > b)")
    with pytest.raises(ValueError, match="_c is not in _a - _b"):
        Pattern("_a - _b", "_a - _c")


@pytest.fixture
def package(tmp_path):
    """A small checkout."""
    for folder in ("qa_arch/data", "baselines", "tests/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "qa_arch/data/splits.py").write_text(
        "SEED = 3\n\n\ndef hold_out(titles, n):\n    rest = titles[n:]\n    return rest\n\n\n"
        "class Reader:\n    def add(self, a, b):\n        return a - b\n"
    )
    (tmp_path / "tests/data/test_splits.py").write_text("def test_rest():\n    pass\n")
    return tmp_path


REST = Fault(name="rest", at="hold_out", old="_t[_n:]", new="_t[_n + 1:]", test="test_splits")
ADD = Fault(name="add", at="Reader.add", old="_a - _b", new="_b - _a", test="test_rest")


def test_fault_survives_refactoring(package):
    path, planted = Sources(package).plant(REST)
    assert (path.name, "rest = (titles[n + 1:])" in planted) == ("splits.py", True)
    assert "return (b - a)" in Sources(package).plant(ADD)[1]
    assert Sources(package).plant(replace(ADD, at="_add")) == Sources(package).plant(ADD)
    moved = package / "baselines/other.py"
    moved.write_text(
        path.read_text().replace("titles", "pages").replace("rest", "left").replace("  a, b", "b, a")
    )
    path.write_text("")
    path, planted = Sources(package).plant(REST)
    assert (path, "left = (pages[n + 1:])" in planted) == (moved, True)


def test_fault_without_its_place_is_stale(package):
    cases = {
        ("hold_out", "_t[:_n]"): r"stale: .* occurs 0 times in hold_out \(qa_arch/data/splits.py\)",
        (
            "hold_aut",
            "_t[_n:]",
        ): "no hold_aut; similar names: hold_out; it occurs once in qa_arch.data.splits:hold_out",
        ("Reader.sub", "_a * _b"): "there is no Reader.sub; .*; it occurs once in no other place",
    }
    for (at, old), message in cases.items():
        with pytest.raises(StaleFaultError, match=message):
            Sources(package).plant(Fault(name="stale", at=at, old=old, new="0", test="test_splits"))


def test_test_of_a_fault_is_found_by_name(package):
    checkout = Sources(package)
    assert checkout.test_id(REST) == "tests/data/test_splits.py"
    assert checkout.test_id(ADD) == "tests/data/test_splits.py::test_rest"
    (package / "tests/test_splits.py").write_text("def test_rest():\n    pass\n")
    for fault in (REST, ADD):
        with pytest.raises(StaleFaultError, match=f"2 tests are called {fault.test}, not one"):
            Sources(package).test_id(fault)
