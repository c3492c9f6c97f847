"""The search for cycles is off inside, and afterwards as it was before."""

from __future__ import annotations

import gc

import pytest

from qa_arch.system.garbage import gc_disabled


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


def test_off_inside_and_on_again():
    with gc_disabled():
        assert not gc.isenabled()
        with gc_disabled():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_on_again_after_an_error():
    with pytest.raises(ValueError, match="told"), gc_disabled():
        raise ValueError("told")
    assert gc.isenabled()


def test_left_off_where_it_was_off():
    gc.disable()
    with gc_disabled():
        pass
    assert not gc.isenabled()


def test_as_a_decorator():
    @gc_disabled()
    def enabled() -> bool:
        return gc.isenabled()

    assert [enabled(), enabled()] == [False, False]
    assert gc.isenabled()
