"""Comparisons of systems: differences by subset and measure, their variance, and power."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qa_arch import effects as effects_of
from qa_arch.data.question_sets import question_set as build_set
from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.abstention import area_values, auroc_values, fit_threshold
from qa_arch.metrics.significance import contrast, holm
from qa_arch.records import (
    CALIBRATION,
    QUESTIONS,
    RECORD,
    find_runs,
    questions_folder,
    read_questions,
    write_questions,
    write_record,
)
from qa_arch.results.compare import changed_table, effects_table, pair_table, pooled_table, power_table
from qa_arch.results.effects import (
    FITTED,
    MEASURES,
    SINGLE_RUN,
    Sample,
    _jackknife_thresholds,
    _scores_at_threshold,
    samples_of,
)
from qa_arch.results.errors import scores_table
from qa_arch.results.suite import SuiteSet, suite_tables
from qa_arch.results.systems import (
    System,
    find_system,
    group_by_system,
    load_aligned,
    load_questions,
    two_systems,
)
from qa_arch.types import question_word


@pytest.fixture
def with_articles(two_seeds):
    """The systems of ``two_seeds`` with the article of each question in their rows, 12 in total."""
    folder, a, b, _ = two_seeds
    for run in (path for path, _ in [*a.runs, *b.runs]):
        rows = read_questions(run)
        f1 = [max(value, 0.25) for value in rows["f1"]]  # unlike exact match
        write_questions(run, {**rows, "f1": f1, "article": (np.arange(120) // 10).tolist()})
    return folder, a, b


@pytest.mark.parametrize(("unit", "sample"), [("question", "120 questions"), (None, "12 articles")])
def test_every_measure_uses_its_own_questions_and_articles(with_articles, unit, sample):
    _, a, b = with_articles
    table = pair_table(a, b, unit=unit)
    rows = {side: load_aligned(system.runs, "dev") for side, system in (("a", a), ("b", b))}
    first, all_questions = rows["a"][0], np.ones(120, dtype=bool)
    answerable, kinds = first.answerable, np.array([kind or "" for kind in first.kind])
    expected = {
        f"{prefix}{name}": (lambda run, key=key: getattr(run, key), where)
        for prefix, where in (("", all_questions), ("HasAns ", answerable), ("NoAns ", ~answerable))
        for name, key in (("EM", "exact"), ("F1", "f1"))
    } | {
        MEASURES["forced_f1"]: (lambda run: run.span_f1, answerable),
        MEASURES["auroc"]: (lambda run: auroc_values(-run.null_odds, run.answerable), all_questions),
        MEASURES["aurc"]: (
            lambda run: area_values(run.null_odds, run.span_f1, run.answerable),
            all_questions,
        ),
        "entity_swap": (lambda run: run.f1, kinds == "entity_swap"),
        "negation": (lambda run: run.f1, kinds == "negation"),
    }
    assert [row["name"] for row in table.rows] == list(expected)
    for row, (measure, where) in zip(table.rows, expected.values(), strict=True):
        scores = {side: 100 * np.stack([measure(run)[where] for run in runs]) for side, runs in rows.items()}
        articles = None if unit else np.arange(120)[where] // 10
        tested = contrast([-scores["a"], scores["b"]], articles=articles)
        assert row["questions"] == where.sum()
        for side, matrix in scores.items():
            moments = (matrix.mean(), matrix.mean(1).std(ddof=1))
            assert (row[f"{side}_mean"], row[f"{side}_sd"]) == pytest.approx(moments, abs=1e-6)
        actual = (row["delta"], row["delta_95_low"], row["delta_95_high"], row["p"])
        assert actual == pytest.approx((tested.delta, *tested.interval, tested.p), abs=1e-6)
    tagged = table.rows[-2:]
    assert [row["p_holm"] for row in tagged] == pytest.approx(holm([row["p"] for row in tagged]), abs=1e-6)
    for result in (table, effects_table(samples_of([a, b], "dev", unit), a.label)):
        assert any(f"over {sample} and seeds" in note for note in result.notes)
        assert SINGLE_RUN not in result.notes


def test_untagged_questions_are_grouped_by_question_word(make_run, question_set):
    texts = ("Who's there?", "In how many?", "Name it.", "?")
    assert [question_word(text) for text in texts] == ["who", "how many", "other", "other"]
    examples = [replace(example, kind=None) for example in question_set(copies=2).examples]
    questions = build_set("made-up", examples, "2.0")

    def kind_rows(name, rows, **options):
        runs = [make_run(f"{name}-{n}", questions, model=n, rows=rows) for n in "ab"]
        return pair_table(*two_systems(*(find_runs([run]) for run in runs)), **options).rows[9:], runs[1]

    by_text, second = kind_rows("plain", {}, questions=questions, unit="question")
    counts = {"how many": 2, "when": 4, "which": 2, "who": 4}
    assert {row["name"]: row["questions"] for row in by_text} == counts
    starts_with_who = np.array([example.question.startswith("Who") for example in examples])
    f1 = np.array(read_questions(second)["f1"])
    assert by_text[3]["b_mean"] == pytest.approx(100 * f1[starts_with_who].mean(), abs=1e-6)
    by_word, _ = kind_rows("words", {"word": [question_word(example.question) for example in examples]})
    assert {row["name"]: row["questions"] for row in by_word} == counts
    # of a language whose question words are not known
    for rows in ({}, {"word": ["other"] * len(examples)}):
        assert kind_rows(f"unknown-{len(rows)}", rows)[0] == []


def test_most_changed_questions_come_first(make_run, question_set):
    """By change in F1, in percent, ties by change in null odds; with equal F1 a question did not change."""
    questions = question_set()
    columns = {"abstained": [False] * 6, "null_odds": [0.0] * 6}
    mixed = {"exact": [1, 0, 0, 1, 0, 1], "f1": [1, 0.5, 0, 1, 0, 1], "abstained": [False] * 4 + [True] * 2}
    a = make_run("a", questions, rows={"exact": [1] * 6, "f1": [1] * 6, **columns}, model="a")
    b = make_run("b", questions, rows={**columns, **mixed, "null_odds": [0, 9, 1, 9, 5, 9]}, model="b")
    systems = two_systems(find_runs([a]), find_runs([b]))
    outcomes = "both right: 3; A right, B wrong: 3; A wrong, B right: 0; both wrong: 0"
    assert outcomes in pair_table(*systems).notes
    changed = changed_table(*systems, questions=questions).rows
    assert [(row["id"], row["a"], row["b"]) for row in changed] == [
        ("q5-0", 100, 0),
        ("q3-0", 100, 0),
        ("q2-0", 100, 50),
    ]
    spans = zip(*(read_questions(b)[column] for column in ("start", "end")), strict=True)
    texts = [e.context[slice(*span)] for e, span in zip(questions.examples, spans, strict=True)]
    assert [row["b_answers"] for row in changed] == ["no answer", texts[2], texts[1]]
    rows = {"f1": [0.8] * 6}  # its mean over seeds is rounded to 2.4000000000000004 / 3
    folders = [make_run(f"run{seed}", questions, seed=seed, rows=rows) for seed in range(4)]
    first, *others = find_runs(folders)
    assert changed_table(*two_systems([first], others)).rows == []


def test_comparison_on_calibration_if_dev_is_held_out(two_seeds):
    folder, a, b, _ = two_seeds
    on_dev = pair_table(a, b)
    assert FITTED not in effects_table(samples_of([a, b], "dev"), a.label).notes
    for run in (path for path, _ in [*a.runs, *b.runs]):
        text = (run / RECORD).read_text().replace('"dev": {', '"calibration": {')
        (run / RECORD).write_text(text)
        (run / "sets" / "calibration").mkdir(parents=True)
        (run / QUESTIONS).rename(run / "sets" / "calibration" / QUESTIONS)
    groups = group_by_system(find_runs([path for path, _ in [*a.runs, *b.runs]]))
    assert pair_table(*groups, split="calibration").rows == on_dev.rows
    assert effects_table(samples_of(groups, "calibration"), groups[0].label).notes[-1] == FITTED
    (folder / "poor-1" / "sets" / "calibration" / QUESTIONS).unlink()
    with pytest.raises(RunError, match=r"calibration.*missing.*train the run again"):
        pair_table(*groups, split="calibration")


def test_mismatched_question_rows_are_refused_by_name(make_run, question_set):
    questions = question_set()
    a = make_run("a", questions)
    shuffled = make_run("c", questions, rows={"id": read_questions(a)["id"][::-1]})
    with pytest.raises(RunError, match="another order"):
        load_aligned(find_runs([a, shuffled]), "dev")
    point = {"ranked": {"accuracy": 50.0, "mrr": 0.6, "protocol": "selection", "metric_version": "1"}}
    data = {"dev": {"name": "d", "fingerprint": "f", "protocol": "selection", "questions": 6}}
    ranked = make_run("d", questions, scores={"dev": point}, data=data)
    with pytest.raises(RunError, match=r"finds no spans.*qa-arch tables"):
        load_questions(*find_runs([ranked])[0])


def test_invalid_compare_calls_are_refused(two_seeds, make_run, qa_arch):
    folder, *_, questions = two_seeds
    unknown = {"null_odds": [np.nan] * len(questions)}
    for name in ("silent", "quiet"):
        config = {"name": "adopted", "model": {"name": name}, "predictions": "answers.json"}
        make_run(name, questions, model=name, config=config, keep_spans=False, rows=unknown)
    poor, both = f"{folder}/poor-*", (f"{folder}/poor-1", f"{folder}/good-1")
    for arguments, code, message in (
        ([f"{folder}/*-1", f"{folder}/x"], 5, "A: these runs differ in more than the seed (model"),
        ([poor, both[0]], 5, "/poor-1: is on both sides of the comparison"),
        ([poor, "--baseline", "poor"], 5, "no other system is finished"),
        ([*both, "--split", "test"], 5, "no scores of test"),
        ([folder, "--baseline", "poor", "--order", "good,nobody"], 2, "'nobody' is not one of the systems"),
        ([*both, "--baseline", "poor", "--pool"], 2, "--pool is for two systems"),
        ([folder, "--baseline", "poor", "--measure", "auroc"], 5, "null odds (qa-arch adopt ... --na-prob)"),
        ([folder, "--baseline", "poor", "--forced-f1"], 5, "answers from a file that"),
    ):
        refused, _, error = qa_arch("compare", *arguments)
        assert (refused, message in error) == (code, True), error
    assert "/quiet; " in error, "all adopted systems without the measure are named"


def test_suite_compares_with_the_dev_set_of_the_runs(make_run, question_set):
    """Of one without unanswerable questions with the best spans. A mean over fewer seeds is left empty."""
    folder = make_run("a", question_set(copies=3))
    ((_, record),) = find_runs([folder])
    facts, points = record.facts("dev"), record.scores["dev"]
    forced = {"forced": replace(points["calibrated"], protocol="1.1", threshold=None)}
    data = {**record.data, "dev": replace(facts, fingerprint="other", protocol="1.1"), "mixed": facts}
    write_questions(questions_folder(folder, "mixed"), read_questions(folder))
    write_record(folder, replace(record, data=data, scores={"dev": forced, "mixed": points}))
    grid, details = suite_tables(group_by_system(find_runs([folder])), [SuiteSet("mixed", facts)])
    assert grid.rows[0]["own_dev_mean"] == grid.rows[0]["mixed_mean"]
    assert details.rows[0]["from_dev"] is None
    sets = question_set(copies=3), question_set(copies=3, suffix=" Then?")
    runs = [(1, sets[0]), (2, sets[0]), (1, sets[1])]
    folders = [make_run(f"run-{n}", questions, seed=seed) for n, (seed, questions) in enumerate(runs)]
    records = find_runs(folders)
    tests = [SuiteSet(name, records[run][1].facts("dev")) for name, run in (("first", 0), ("second", 2))]
    grid, _ = suite_tables(group_by_system(records), tests)
    (row,) = grid.rows
    assert (row["seeds"], "first_mean" in row, "second_mean" in row) == (2, True, False)
    assert "no mean of second: missing in bert, seed 2" in grid.notes


def test_fixed_order_and_equivalence_tests(with_articles):
    _, a, b = with_articles
    systems = [replace(a, label="plain"), replace(b, label="good"), replace(a, label="same")]
    samples = samples_of(systems, "dev")
    table = effects_table(samples, "plain", order=["same"], equivalence=1.0)
    rows = {row["model"]: row for row in table.rows}
    assert rows["good"]["p"] < rows["same"]["p"] == 1.0
    assert rows["good"]["p_holm"] == 1.0, "tested after one that did not differ"
    assert rows["same"]["p_equivalent"] < rows["good"]["p_equivalent"]
    for margin in (0, np.nan, np.inf, "1", True):
        with pytest.raises(ConfigError, match=r"^equivalence: "):
            effects_table(samples, "plain", equivalence=margin)


def test_experiments_on_disjoint_articles_are_pooled(qa_arch):
    """The figures of an independent computation on the committed records."""
    answer, decision = (f"experiments/{name}/records" for name in ("answer", "decision"))
    first = (f"{answer}/*-bert", f"{answer}/*-ablation_together")
    pairs = (*first, f"{decision}/plain-*", f"{decision}/together-*")
    (table,) = json.loads(qa_arch("compare", *pairs, "--pool", "--json")[1])
    pooled = {row["measure"]: row for row in table["rows"] if row["experiment"] == "pooled"}
    for heading, expected in (
        (MEASURES["f1"], (1.2, 0.3, 2.1)),
        (MEASURES["forced_f1"], (2.4, 1.6, 3.3)),
        (MEASURES["auroc"], (1.0, 0.2, 1.8)),
    ):
        row = pooled[heading]
        figures = (row["delta"], row["delta_95_low"], row["delta_95_high"])
        assert tuple(round(value, 1) for value in figures) == expected
        assert row["units"] == 31
    stated = "experiment 2: 5 seeds of A, 5 seeds of B; intervals of differences and p: over 15 articles"
    assert any(note.startswith(stated) for note in table["notes"])
    code, _, err = qa_arch("compare", *first, *first, "--pool")
    assert (code, "share 6078 questions" in err) == (5, True), err


def test_experiments_of_other_units_are_not_pooled(two_seeds, make_run):
    """Articles of one and questions of the other would be added up."""
    _, poor, good, questions = two_seeds
    rows = {"article": (np.arange(120) % 12).tolist()}
    known = [make_run(f"{model}-known", questions, model=model, rows=rows) for model in ("poor", "good")]
    other = two_systems(*(find_runs([folder]) for folder in known))
    with pytest.raises(RunError, match=r"questions, articles\); add --unit question"):
        pooled_table([(poor, good), other])
    with pytest.raises(RunError, match="share 120 questions"):
        pooled_table([(poor, good), other], unit="question")
    first, record = other[0].runs[0]
    facts, points = record.facts("dev"), record.scores["dev"]
    older = {name: replace(point, metric_version="0") for name, point in points.items()}
    for changes, message in (
        ({"data": {"dev": replace(facts, protocol="1.1")}}, r"of SQuAD 2\.0 and 1\.1; pool those of one"),
        ({"data": {"dev": replace(facts, details={"language": "de"})}}, "in language en and de"),
        ({"scores": {"dev": older}}, r"scored by metric version .* and 0"),
    ):
        unlike = replace(other[0], runs=((first, replace(record, **changes)),))
        with pytest.raises(RunError, match=message):
            pooled_table([(poor, good), (unlike, other[1])])


def test_overlap_with_the_training_data_is_noted_with_every_test(two_seeds):
    """As it is below the table of runs, where ``evaluate --allow-overlap`` promises a mark."""
    _, poor, good, _ = two_seeds
    (folder, record), *others = good.runs
    points = {name: replace(point, overlap=("Title 0",)) for name, point in record.scores["dev"].items()}
    marked = replace(good, runs=((folder, replace(record, scores={"dev": points})), *others))
    note = "scored although 1 article of it are also in its training data"
    for table in (
        pair_table(poor, marked),
        effects_table(samples_of([poor, marked], "dev"), poor.label),
        pooled_table([(poor, marked)]),
    ):
        assert [line for line in table.notes if "scored although" in line] == [f"{folder}: {note}"]
    assert f"dev: {note}" in scores_table(marked.runs[0][1]).notes


def test_paired_comparison_matches_runs_by_unique_seed(two_seeds):
    folder, *_ = two_seeds
    systems = group_by_system(find_runs([folder / "poor-1", folder / "poor-2", folder / "good-1"]))
    parent, child = find_system(systems, "poor"), find_system(systems, "good")
    table = effects_table(samples_of(systems, "dev"), parent.label, paired=True)
    f1 = [100 * np.mean(read_questions(folder / name)["f1"]) for name in ("poor-1", "good-1")]
    (delta,) = (row["delta"] for row in table.rows if row["model"] == "good")
    assert delta == pytest.approx(f1[1] - f1[0], abs=1e-6)
    assert "against poor, run by run of the same seed; " in table.notes[1]
    second_seed = replace(parent, runs=parent.runs[1:])
    with pytest.raises(RunError, match="good: no run of poor has the seed 1"):
        effects_table(samples_of([second_seed, child], "dev"), second_seed.label, paired=True)
    duplicated = replace(child, runs=(*child.runs, (folder / "copy", child.record)))
    with pytest.raises(RunError, match=r"good: seed 1 occurs twice \(.*good-1, .*copy\)"):
        effects_table(samples_of([parent, duplicated], "dev"), parent.label)
    other_set = {**child.record.data, "dev": replace(child.record.facts("dev"), fingerprint="other")}
    on_two_sets = replace(child, runs=(*child.runs, (folder / "b", replace(child.record, data=other_set))))
    with pytest.raises(RunError, match="scores on different sets"):
        effects_table(samples_of([parent, on_two_sets], "dev"), parent.label)


def test_articles_are_read_from_the_set_if_rows_lack_them(two_seeds):
    _, a, b, questions = two_seeds
    with pytest.raises(RunError, match=r"lack the article.*--data FILE"):
        pair_table(a, b, unit="article")
    table = pair_table(a, b, unit="article", questions=questions)
    assert "with only 2 articles intervals are very wide" in " ".join(table.notes)
    articles = np.array([int(example.title == "Title 1") for example in questions.examples])
    x, y = (100 * np.stack([run.f1 for run in load_aligned(s.runs, "dev")]) for s in (a, b))
    assert table.rows[1]["p"] == pytest.approx(contrast([-x, y], articles=articles).p, abs=1e-6)
    single_article = build_set("made-up", [replace(e, title="") for e in questions.examples], "2.0")
    with pytest.raises(RunError, match="all questions come from one article"):
        pair_table(a, b, unit="article", questions=single_article)
    with pytest.raises(ConfigError, match="--articles: the rows of these runs do not know several articles"):
        power_table(samples_of([a, b], "dev"), a.label, runs=(5,), units=(48,))


ANSWER = Path(__file__).resolve().parents[2] / "experiments/answer/records"
"""Real records: 4 calibration articles and 16 dev articles."""


@pytest.fixture(scope="module")
def answer() -> list[System]:
    """BERT and the proposed model, two seeds of each."""
    runs = find_runs([ANSWER])
    return group_by_system([run for run in runs if run[1].seed < 15 and run[1].model in ("bert", "proposed")])


def test_thresholds_are_fitted_leaving_out_each_calibration_article(answer):
    samples = samples_of(answer, "dev")
    for system in answer:
        fitted = samples.systems[system.label].thresholds
        assert fitted.shape == (2, 4)
        for (folder, record), by_article in zip(system.runs, fitted, strict=True):
            rows = load_questions(folder, record, CALIBRATION)
            for article, threshold in zip(np.unique(rows.article), by_article, strict=True):
                rest = rows.article != article
                columns = (rows.null_odds[rest], rows.span_f1[rest], rows.answerable[rest])
                assert threshold == fit_threshold(*(column.tolist() for column in columns), 0.5)


def test_thresholds_are_left_out_as_they_were_fitted(answer):
    folder, record = answer[0].runs[0]
    rows = load_questions(folder, record, CALIBRATION)

    def fitted(where, width):
        columns = (rows.null_odds[where], rows.span_f1[where], rows.answerable[where])
        return fit_threshold(*(column.tolist() for column in columns), 0.5, width)

    smooth = replace(record.threshold, value=fitted(np.ones(len(rows), dtype=bool), 0.15), width=0.15)
    rescored = replace(rows, f1=_scores_at_threshold(rows, "f1", smooth.value))
    left_out = _jackknife_thresholds(replace(record, threshold=smooth), rescored)
    assert left_out.tolist() == [fitted(rows.article != one, 0.15) for one in np.unique(rows.article)]


def test_calibration_variance_enters_only_tests_with_a_threshold(answer, monkeypatch):
    samples = samples_of(answer, "dev")
    f1, spans = (
        samples.contrast({"bert": -1, "proposed": 1}, measure).variance for measure in ("f1", "forced_f1")
    )
    assert (f1.calibration_units, spans.calibration_units) == (4, 0)
    scores = {
        label: [sample.left_out("f1", samples.where("f1"))] for label, sample in samples.systems.items()
    }
    left_out = np.concatenate(scores["proposed"]) - np.concatenate(scores["bert"])
    assert f1.calibration_variance == pytest.approx(3 / 4 * ((left_out - left_out.mean()) ** 2).sum())
    expected = []
    for rows, fitted in zip(samples.systems["bert"].rows, samples.systems["bert"].thresholds, strict=True):
        abstained = rows.null_odds > fitted[0]
        expected.append(100 * np.where(abstained, ~rows.answerable, rows.span_f1).mean())
    assert scores["bert"][0][0] == pytest.approx(np.mean(expected))
    monkeypatch.setattr("qa_arch.results.effects.GROUPS", 3)  # of the articles left out
    grouped = samples_of(answer, "dev")
    assert grouped.systems["bert"].thresholds.shape == (2, 3)
    assert "over 4 calibration articles;" in effects_table(grouped, "bert").notes[1]


def test_rows_scored_at_another_threshold_have_no_leave_one_out_thresholds(answer):
    folder, record = answer[0].runs[0]
    rows = load_questions(folder, record)
    assert Sample([record], [rows]).thresholds is not None
    rescored = replace(rows, f1=np.where(rows.null_odds > 50, ~rows.answerable, rows.span_f1))
    assert Sample([record], [rescored]).thresholds is None


def test_power_command_extrapolates_from_the_records(answer, qa_arch):
    runs = [folder for system in answer for folder, _ in system.runs]
    command = ("power", *runs, "--baseline", "bert", "--measure", "forced_f1")
    code, out, error = qa_arch(*command, "--seeds", "2,40", "--articles", "16,500", "--json")
    assert (code, error) == (0, "")
    rows = {(row["units"], row["seeds"]): row for row in json.loads(out)[0]["rows"]}
    effect = samples_of(answer, "dev").contrast({"bert": -1, "proposed": 1}, "forced_f1")
    assert rows[16, 2]["detectable"] == pytest.approx(effect.detectable, rel=1e-4)
    assert rows[16, 2]["at_0.5"] < rows[16, 2]["at_1"] < rows[500, 40]["at_1"]
    assert rows[500, 40]["detectable"] < rows[16, 40]["detectable"] < rows[16, 2]["detectable"]
    for option in ("--seeds", "--articles", "--calibration-articles"):
        code, _, error = qa_arch(*command, option, "1")
        assert (code, "numbers >= 2" in error) == (2, True)
    code, _, error = qa_arch(*command, "--calibration-articles", "8")
    assert (code, "--calibration-articles: no variance" in error) == (2, True)
    bert, proposed = answer
    single = replace(proposed, runs=proposed.runs[:1])
    notes = power_table(samples_of([bert, single], "dev"), bert.label, runs=(5,)).notes
    note = "variances as those of 2 runs of bert, 1 run of proposed on dev"
    assert notes[1:3] == [note, "one run of proposed: seed variance unknown, taken as zero"]
    repeated = replace(bert, runs=(*bert.runs, (Path("copy"), bert.record)))
    with pytest.raises(RunError, match=r"bert: seed 13 occurs twice \(.*, copy\)"):
        power_table(samples_of([repeated, proposed], "dev"), repeated.label, runs=(5,))


def test_note_names_the_systems_whose_threshold_is_taken_as_fixed(answer):
    bert, proposed = answer
    adopted = [(folder, replace(record, threshold=None)) for folder, record in proposed.runs]
    samples = samples_of([bert, proposed, System("silent", tuple(adopted))], "dev")
    of_bert, of_silent = (effects_table(samples, label).notes[1] for label in ("bert", "silent"))
    fixed = "taken as fixed, its uncertainty ignored"
    assert f"the null threshold over 4 calibration articles (for silent: {fixed});" in of_bert
    assert f", the null threshold {fixed};" in of_silent


@pytest.mark.parametrize(
    ("size", "measure", "message"),
    [
        (1, "f1", "the scores are of a single question"),
        (2, "auroc", "dev has only answerable questions, so no AUROC, answerable\n"),
    ],
)
def test_sets_too_small_for_a_measure_are_refused(make_run, question_set, qa_arch, size, measure, message):
    questions = build_set("made-up", question_set().examples[:size], "2.0")
    folder = make_run("a", questions).parent
    make_run("b", questions, model="proposed")
    code, _, error = qa_arch("compare", folder, "--baseline", "bert", "--measure", measure)
    assert (code, message in error) == (5, True)


def test_unfinished_run_is_left_out_with_a_note(two_seeds, qa_arch, make_run, question_set):
    folder, *_ = two_seeds
    before = json.loads(qa_arch("compare", folder, "--baseline", "poor", "--json")[1])[0]
    unfinished = make_run("late", question_set(), model="good", seed=3, status="running", scores={}, data={})
    (table,) = json.loads(qa_arch("compare", folder, "--baseline", "poor", "--json")[1])
    note = f"left out, no scores of dev yet: {unfinished} (running)"
    assert table == {**before, "notes": [*before["notes"], note]}
    assert effects_of(folder, "poor").notes[-1] == note
    result = qa_arch("compare", f"{folder}/poor-*", f"{folder}/[gl]*", "--json")
    assert json.loads(result[1])[0]["notes"][-1] == note
    with pytest.raises(RunError, match=r"no scores of dev \(status running"):
        effects_of(unfinished, "good")


def test_components_are_the_standard_errors_of_the_variance(with_articles):
    _, a, b = with_articles
    (row,) = [
        row for row in effects_table(samples_of([a, b], "dev"), a.label, components=True).rows if "p" in row
    ]
    variance = samples_of([a, b], "dev").contrast({a.label: -1, b.label: 1}, "f1").variance
    errors = [row[f"se_{key}"] for key in ("units", "interaction", "seeds", "calibration", "total")]
    interaction = sum(part.interaction for part in variance.seeds)
    parts = (variance.unit_variance, interaction, variance.seed_variance, 0.0, variance.total)
    assert errors == pytest.approx(np.sqrt(parts), abs=1e-5)
    assert row["freedom"] == pytest.approx(variance.freedom, abs=1e-5)
