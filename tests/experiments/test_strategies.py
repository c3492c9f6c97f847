"""Losses of the same steps, taken in different ways."""

import pytest
from scripts import load

from qa_arch.records import Epoch

tables = load("strategies/tables.py")


def test_difference_is_the_largest_of_the_first_steps():
    whole = {49: 2.0, 50: 4.0, 51: 1.0}
    assert tables.largest_difference({49: 2.0, 50: 4.004, 51: 9.0}, whole) == pytest.approx(1e-3)
    assert tables.largest_difference({49: 1.996, 50: 4.004, 51: 1.0}, whole) == pytest.approx(2e-3)


def test_a_run_without_a_step_of_the_other_has_no_difference():
    with pytest.raises(KeyError):
        tables.largest_difference({50: 4.0}, {49: 2.0, 50: 4.0})


def test_losses_of_epochs_by_step():
    epoch = Epoch.from_flat({"epoch": 0, "train_loss": 3.0, "train_loss_by_step": {"1": 3.5, "10": 2.5}})
    assert tables.step_losses([epoch, Epoch.from_flat({"epoch": 1})]) == {1: 3.5, 10: 2.5}
