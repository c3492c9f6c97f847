"""Expected best score of a number of trials."""

from itertools import product
from statistics import fmean

import pytest

from qa_arch.errors import RunError
from qa_arch.results.tuning import expected_best, expected_best_table


@pytest.mark.parametrize("trials", [1, 2, 4])
def test_expected_best_is_the_mean_over_all_draws(trials):
    scores = [61.0, 48.5, 48.5, 57.0]
    assert expected_best(scores, trials) == pytest.approx(fmean(map(max, product(scores, repeat=trials))))


def test_models_are_compared_up_to_the_smaller_budget(make_record, tmp_path):
    def trial(model, exact, seed):
        return tmp_path / f"{model}{seed}", make_record(model, exact, split="calibration", seed=seed)

    runs = [trial("bert", exact, seed) for seed, exact in enumerate((50.0, 52.0, None))]
    runs += [trial("proposed", exact, seed) for seed, exact in enumerate((40.0, 60.0, 44.0))]
    bert, proposed = expected_best_table(runs).rows
    assert bert == {"model": "bert", "trials": 2, "best_1": 53.0, "best_2": pytest.approx(53.5)}
    assert proposed["trials"] == 3
    assert proposed["best_2"] == pytest.approx(2 + (60 * 5 + 44 * 3 + 40) / 9)
    with pytest.raises(RunError, match="no run was scored on calibration"):
        expected_best_table(runs[2:3])
    elsewhere = make_record("bert", 50.0, split="calibration", data="d2")
    with pytest.raises(RunError, match="2 different calibration sets"):
        expected_best_table([*runs, (tmp_path / "other", elsewhere)])
