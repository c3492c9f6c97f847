"""The report in a real browser: every figure is drawn, filters work, and there is no network access.

Needs playwright (extra ``dev``) and a system Chromium (Debian: apt-get install chromium).
"""

import csv
import json
import shlex

import numpy as np
import pytest

from qa_arch.records import find_runs, read_questions, write_questions
from qa_arch.results.report.page import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'qa-arch[dev]'")

pytestmark = pytest.mark.slow
WIDTHS = (390, 900, 1440)
FIGURES = (
    "loss",
    "learned",
    *(f"cost-{key}" for key in ("memory", "parameters")),
    "thresholds",
    "risk",
    "abstain",
    "reliability-answerability",
    "reliability-answers",
    "reliability-fitted",
    *(f"by-{key}" for key in ("answerable", "kind", "word", "type", "answer", "article")),
)
EVIL = ' </script><img src=x onerror="window.broken=1"> 𝔸'


@pytest.fixture
def report(make_run, question_set, tmp_path):
    questions = question_set(copies=4, suffix=EVIL)
    for model, right in (("bert", 0.5), ("proposed", 0.8)):
        for seed in (1, 2):
            fields = {"seed": seed, "right": right, "peak_memory_mb": 900.0 + seed}
            fields |= {"commit": "abcdef0123456789", "dirty": True}
            fields |= {"parameters": {"blocks": {"match": 5}, "total": 9}} if model == "proposed" else {}
            folder = make_run(f"it's {model} {seed}", questions, model=model, **fields)
    (folder / "model").mkdir()
    runs = find_runs([folder.parent])
    return write_report(runs, tmp_path / "r.html", questions=questions, baseline="bert").path, questions


def until(page, expression: str) -> None:
    """Wait until ``expression`` holds; Playwright's own waiting evaluates strings, which the CSP forbids."""
    for _ in range(300):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never came true: {expression}")


def table(page) -> list[str]:
    return page.locator("#table tbody tr:not(.reference) td.name").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_at_every_width(report, visit, scheme):
    page = visit(report[0], WIDTHS[0], color_scheme=scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        until(page, PLOTS_FIT)
        check_figures(page, width)


PLOTS_FIT = """() => [...document.querySelectorAll(".figures .js-plotly-plot")].every(
    (plot) => [plot._fullLayout.width, plot.querySelector("svg").viewBox.baseVal.width].every(
        (width) => Math.abs(width - plot.clientWidth) <= 1))"""


def check_figures(page, width: int) -> None:
    for name in FIGURES:
        figure = page.locator(f"#figure-{name}")
        assert figure.locator("svg.main-svg").count() >= 1, name
        assert figure.locator(".scatterlayer .trace").count() >= 1, name
        box = figure.locator(".plot").bounding_box()
        assert box["width"] <= width, name
        assert box["height"] > 60, name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.broken") is None


def marks(page) -> list[str]:
    return page.locator("#question-list .marks").all_inner_texts()


def test_questions_filter_by_outcome_facets_and_text(report, visit):
    page = visit(report[0])
    page.wait_for_selector("#question-list .item")
    total = len(marks(page))
    assert total == 24
    counts = {}
    right = {"aOnly": (True, False), "bOnly": (False, True), "both": (True, True), "neither": (False, False)}
    for outcome in right:
        page.select_option("[data-filter=Outcome]", outcome)
        page.wait_for_timeout(100)  # the filter is asynchronous, and the count may stay the same
        for mark in marks(page):
            a, b = mark.split()
            assert (a == "✓", b == "✓") == right[outcome]
        counts[outcome] = len(marks(page))
    assert sum(counts.values()) == total
    page.select_option("[data-filter=Outcome]", "any")
    page.select_option("[data-filter='Kind, as tagged']", label="negation (8)")
    until(page, "document.querySelector('#question-count').textContent.startsWith('8 of')")
    page.fill("#question-search", "how many mills")
    until(page, "document.querySelector('#question-count').textContent.startsWith('4 of')")
    page.fill("#question-search", "no such words")
    page.wait_for_selector("text=No question passes")


def test_errors_are_split_by_outcome_and_question(report, visit):
    page = visit(report[0])
    assert page.locator("#figure-errors .barlayer .trace").count() == 5  # one per outcome
    assert page.locator("#figure-wrong-spans tbody tr").count() == 2  # one per system
    page.select_option("[data-filter='A’s error']", "undue_answer")
    until(page, "!document.querySelector('#question-count').textContent.startsWith('24 of')")
    assert {mark.split()[0] for mark in marks(page)} == {"✗"}


def test_questions_filter_by_boundary_errors_and_near_misses(make_run, question_set, tmp_path, visit):
    rows = {"exact": [0] * 6, "f1": [0.4, 0.5, 0, 0, 0, 0], "abstained": [False] * 6}
    folder = make_run("a", question_set(), rows=rows)
    page = visit(write_report(find_runs([folder]), tmp_path / "r.html").path)
    for error, count in (("wrong_span", 3), ("boundary", 2), ("near", 1)):
        page.select_option("[data-filter='A’s error']", error)
        until(page, f"document.querySelector('#question-count').textContent.startsWith('{count} of')")


@pytest.mark.parametrize("width", WIDTHS)
def test_link_scrolls_to_its_section_below_the_bar(report, visit, width):
    page = visit(report[0], width)
    height = "(bar) => (getComputedStyle(bar).position === 'sticky' ? bar.offsetHeight : 0)"
    for name, link in (("errors", "errors"), ("questions", "at=questions&measure=exact")):
        page.goto("about:blank")
        page.goto(f"{report[0].resolve().as_uri()}#{link}")
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_timeout(300)  # late drawing would move it
        top = page.locator(f"#{name}").evaluate("(section) => section.getBoundingClientRect().top")
        assert -1 <= top - page.locator("#bar").evaluate(height) < 40


def test_hidden_systems_and_empty_filters_are_shown_as_such(report, visit):
    page = visit(report[0])
    page.click("#chips button:has-text('bert')")
    off = page.locator("#chips button[aria-pressed=false]")
    assert off.all_inner_texts() == ["bert"]
    off.click()
    assert page.locator("#chips button[aria-pressed=true]").count() == 2
    page.fill("#filter", "gpt")
    assert page.inner_text("#table tbody") == "No system matches “gpt”."


def test_missing_figures_and_tests_of_adopted_systems_are_explained(make_run, question_set, tmp_path, visit):
    config = {"name": "adopted", "predictions": "answers.json"}
    fields = {"config": config | {"model": {"name": "bert"}}, "keep_spans": False}
    ranked = make_run("ranked", question_set(), **fields)
    page = visit(write_report(find_runs([ranked]), tmp_path / "r.html").path)
    for key, reason in (
        ("answerability", "have their own scale"),
        ("answers", "no probabilities"),
        ("fitted", "--calibration"),
    ):
        assert reason in page.inner_text(f"#figure-reliability-{key} .empty")
    assert "lack the best spans; an adopted system needs a file" in page.inner_text("#table-notes")
    silent = make_run("silent", question_set(), **fields, rows={"null_odds": [np.nan] * 6})
    page = visit(write_report(find_runs([silent]), tmp_path / "r.html").path)
    assert "--na-prob" in page.inner_text("#figure-risk .empty")
    assert "evaluate --run" not in page.inner_text("body")


def test_nothing_is_cut_off_in_print(report, visit):
    page = visit(report[0], 1440)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 1040, "height": 700})
    page.wait_for_timeout(300)
    cut = """(all) => all
        .filter((el) => el.checkVisibility() && el.getBoundingClientRect().right > innerWidth + 1)
        .map((el) => el.closest("figure, section").id)"""
    assert page.locator("table, svg.main-svg").evaluate_all(cut) == []
    assert page.evaluate("getComputedStyle(document.querySelector('.legend i')).printColorAdjust") == "exact"
    assert page.locator("#chips .key").first.is_visible()


def test_link_restores_the_view(report, visit):
    page = visit(report[0])
    assert "=" not in page.evaluate("location.hash"), "the initial view has no state"
    page.click("#measure button:text-is('EM')")
    page.click("#rows button:has-text('Runs')")
    page.click("[data-key=seed]")
    page.fill("#filter", "bert")
    page.click("#chips button:has-text('bert')")
    page.select_option("[data-run=beside]", label="bert, seed 1")
    page.select_option("[data-filter=A]", label="bert, seed 2")
    page.select_option("[data-filter='Kind, as tagged']", label="negation (8)")
    page.fill("#question-search", "mills")
    until(page, "document.querySelector('#question-count').textContent.startsWith('4 of')")
    page.click("#question-list [data-place='2']")
    page.click("#copy-link")
    address = page.url
    page.evaluate("""() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }""")
    page.click("#copy-link")
    until(page, "window.copied !== undefined")
    assert page.evaluate("window.copied").startswith("r.html#"), "no local path"
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]")
    until(page, "document.querySelector('#question-count')?.textContent.startsWith('4 of')")
    assert page.inner_text("#measure [aria-pressed=true]") == "EM"
    assert page.inner_text("#rows [aria-pressed=true]") == "Runs"
    assert page.get_attribute("th[aria-sort]", "aria-sort") == "descending"
    assert table(page) == ["bert", "bert"]
    assert page.locator("#chips button[aria-pressed=true]").all_inner_texts() == ["proposed"]
    assert page.locator("[data-run=beside] option:checked").inner_text() == "bert, seed 1"
    assert page.locator("[data-filter=A] option:checked").inner_text() == "bert, seed 2"
    assert page.get_attribute(".item[aria-current]", "data-place") == "2"
    until(page, f"location.href === {json.dumps(address)}")


def test_every_table_downloads_as_csv(report, visit):
    page = visit(report[0])
    assert page.locator("table").count() == page.locator("button.csv").count() > 5
    with page.expect_download() as saved:
        page.click("[aria-label='Runs as CSV']")
    heads, *rows = csv.reader(saved.value.path().read_text().splitlines())
    assert saved.value.suggested_filename == "runs.csv"
    values = {row[0]: dict(zip(heads, row, strict=True)) for row in rows}
    shown = page.evaluate("JSON.parse(document.getElementById('qa-data').textContent)")
    f1 = [run["scores"]["dev"]["calibrated"]["f1"] for run in shown["runs"] if run["model"] == "proposed"]
    assert float(values["proposed"]["F1"].split()[0]) == pytest.approx(np.mean(f1), abs=0.05)
    assert values["bert"]["ΔF1"] == ""


def test_run_view_lists_differences_to_another_run(report, visit):
    page = visit(report[0])
    page.click("#rows button:has-text('Runs')")
    page.click("[aria-label='Show bert, seed 2']")
    assert page.locator("[data-run=run] option:checked").inner_text() == "bert, seed 2"
    record = dict(row.split("\t") for row in page.locator("#run-record tbody tr").all_inner_texts())
    assert (record["Seed"], record["Commit"], record["Batch size"]) == ("2", "abcdef0123+", "8")
    assert page.locator("#figure-run-loss .scatterlayer .trace").count() >= 2
    (command,) = page.locator("code.command").all_inner_texts()
    assert [word.rpartition("/")[2] for word in shlex.split(command)[3::2]] == ["it's bert 2"] * 2
    page.select_option("[data-run=beside]", label="bert, seed 1")
    rows = [row.split("\t") for row in page.locator("#run-unlike tbody tr").all_inner_texts()]
    assert rows == [["seed", "2", "1"]]
    page.click("#run-settings summary")
    rows = [row.split("\t") for row in page.locator("#run-settings tbody tr").all_inner_texts()]
    assert ["trainer.batch_size", "8", "8"] in rows


def test_significantly_better_values_are_bold(make_run, question_set, tmp_path, visit):
    questions = question_set(copies=20)
    for model, right in (("bert", 0.5), ("bit_better", 0.52), ("worse", 0.2), ("proposed", 0.95)):
        make_run(model, questions, model=model, right=right)
    page = visit(write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html", baseline="bert").path)
    bold = page.locator("#table tbody tr:has(td.better) td.name").all_inner_texts()
    assert bold == ["proposed"]
    weights = page.locator("#table tbody td").evaluate_all(
        """(cells) => cells.filter((cell) => getComputedStyle(cell).fontWeight > 400)
        .map((cell) => cell.className)"""
    )
    assert weights
    assert set(weights) == {"better"}
    without_baseline = visit(write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html").path)
    assert without_baseline.locator("td.better").count() == 0


def test_curves_show_mean_and_range_of_seeds(report, make_run, question_set, tmp_path, visit):
    for seed, loss in ((1, 1.0), (2, 2.0), (3, 6.0)):
        epochs = [{"train_loss": 3.0, "calibration_loss": loss * factor} for factor in (2, 1)]
        make_run(f"only-{seed}", question_set(), model="only", seed=seed, epochs=epochs)
    folders = [tmp_path / "runs" / f"only-{seed}" for seed in (1, 2, 3)]
    page = visit(write_report(find_runs(folders), tmp_path / "r.html").path)
    curves = page.evaluate(
        """document.querySelector('#figure-loss .plot').data.filter((trace) => trace.mode === 'lines')
        .map(({ y }) => y)"""
    )
    train, low, high, mean = curves
    assert (train, low, high, mean) == ([3, 3], [2, 1], [12, 6], [6, 3])


def test_mark_on_a_curve_is_the_score_of_its_run(make_run, question_set, tmp_path, visit):
    folder = make_run("only", question_set(copies=4))
    rows = read_questions(folder)
    odds = [0.6 if abstained else -9.0 for abstained in rows["abstained"]]  # around the threshold of 0.5
    write_questions(folder, rows | {"null_odds": odds})
    runs = find_runs([folder])
    page = visit(write_report(runs, tmp_path / "r.html").path)
    (mark,) = page.evaluate("document.querySelector('#figure-thresholds .plot').data.at(-1).y")
    assert mark == pytest.approx(runs[0][1].compared_point("dev").f1, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(report, visit, scheme):
    """axe reports no violation, contrast of 4.5:1 included. The heading order depends on the data."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'qa-arch[dev]'")
    page = visit(report[0], color_scheme=scheme)
    page.wait_for_selector("#question-detail .passage")
    page.click("#run-settings summary")
    result = axe.Axe().run(page, options={"rules": {"heading-order": {"enabled": False}}})
    assert [(v["id"], v["nodes"][0]["html"][:90]) for v in result.response["violations"]] == []


def test_texts_are_laid_out_in_their_own_direction(report, visit):
    page = visit(report[0])
    page.wait_for_selector("#question-detail .passage")
    detail = "#question-detail"
    for texts in ("#question-list .asked", f"{detail} h3", f"{detail} .passage", f"{detail} td:nth-child(2)"):
        found = page.locator(texts).evaluate_all("(all) => all.map((element) => element.dir)")
        assert set(found) == {"auto"}, texts
