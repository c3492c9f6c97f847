"""``gc_disabled`` turns off cyclic garbage collection and then restores its state."""

import gc

import pytest

from qa_arch.process import gc_disabled


@pytest.mark.parametrize("before", [True, False])
def test_gc_is_disabled_inside_and_restored_afterwards(before):
    (gc.enable if before else gc.disable)()
    try:
        with gc_disabled():
            with gc_disabled():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() == before
        with pytest.raises(ValueError, match="no"), gc_disabled():
            raise ValueError("no")
        assert gc.isenabled() == before
        assert [gc_disabled()(gc.isenabled)() for _ in range(2)] == [False, False]  # as a decorator
    finally:
        gc.enable()
