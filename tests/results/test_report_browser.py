"""The report in a real browser: every figure is drawn, filters work, and there is no network access.

Needs playwright (extra ``dev``) and a system Chromium (Debian: apt-get install chromium).
"""

import csv
import json
import shlex

import pytest
from reports import page_parts, page_tables

from qa_arch.records import find_runs
from qa_arch.results.report import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")

pytestmark = pytest.mark.slow
WIDTHS = (390, 900, 1440)
FIGURES = (
    "loss",
    "learned",
    *(f"cost-{key}" for key in ("peak_memory_mb", "parameters")),
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_at_every_width(report, visit, scheme):
    page = visit(report[0], WIDTHS[0], color_scheme=scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        check_figures(page, width)
        until(page, PLOTS_FIT)


PLOTS_FIT = """() => [...document.querySelectorAll(".js-plotly-plot")].every(
    (plot) => !plot.checkVisibility() ||
        [plot._fullLayout.width, plot.querySelector("svg").viewBox.baseVal.width].every(
        (width) => Math.abs(width - plot.clientWidth) <= 1))"""


def check_figures(page, width: int) -> None:
    for name in FIGURES:
        figure = page.locator(f"#figure-{name}")
        figure.scroll_into_view_if_needed()
        until(page, f"document.querySelector('#figure-{name} svg') !== null")
        assert figure.locator("svg.main-svg").count() >= 1, name
        assert figure.locator(".scatterlayer .trace").count() >= 1, name
        box = figure.locator(".plot").bounding_box()
        assert box["width"] <= width, name
        assert box["height"] > 60, name
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.broken") is None


def marks(page) -> list[str]:
    return page.locator("#question-list .marks").all_inner_texts()


def choose(page, name: str, value: str, count: int) -> None:
    page.select_option(f"[data-filter='{name}']", value)
    until(page, f"document.querySelector('#question-count').textContent.startsWith('{count} of')")


def test_questions_filter_by_outcome_facets_and_text(report, visit):
    page = visit(report[0])
    assert len(marks(page)) == 24
    assert page.locator("[data-filter=System] option:checked").inner_text() == "proposed, seed 1"
    value, packs = page_parts(report[0])
    runs = {name: json.loads(packs[f"0-run{name}"]) for name in value["runs"]}
    (own,) = (name for name, run in value["runs"].items() if run["label"] == "proposed, seed 1")
    outcomes = runs[own]["outcome"]
    for outcome in sorted(set(outcomes)):
        choose(page, "Outcome", outcome, outcomes.count(outcome))
        assert {mark.split()[0] for mark in marks(page)} <= ({"✓"} if outcome == "right" else {"✗", "∅"})
    alone = [q for q in range(24) if [n for n in runs if runs[n]["exact"][q]] == [own]]
    choose(page, "Outcome", "alone", len(alone))
    choose(page, "Outcome", "any", 24)
    page.select_option("[data-filter='Kind, as tagged']", label="negation (8)")
    until(page, "document.querySelector('#question-count').textContent.startsWith('8 of')")
    page.fill("#question-search", "how many mills")
    until(page, "document.querySelector('#question-count').textContent.startsWith('4 of')")
    page.fill("#question-search", "no such words")
    page.wait_for_selector("text=No question passes")


def test_questions_are_sorted_by_loss_and_walked_by_key(make_run, question_set, tmp_path, visit):
    rows = {"exact": [1, 0, 0, 0, 1, 1], "f1": [1, 0.5, 0.1, 0, 1, 1], "abstained": [False] * 6}
    folder = make_run("a", question_set(), rows=rows)
    page = visit(write_report(find_runs([folder]), tmp_path / "r.html").path)
    page.select_option("[data-filter=Order]", "loss")
    until(page, "document.querySelector('#question-list .asked').textContent === 'q4-0'")
    assert page.locator("#question-list .asked").all_inner_texts() == [
        "q4-0",
        "q3-0",
        "q2-0",
        "q1-0",
        "q5-0",
        "q6-0",
    ]
    page.keyboard.press("j")
    assert page.inner_text("#question-detail h3") == "q3-0"
    page.keyboard.press("k")
    page.focus("#question-list")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#question-detail h3") == "q2-0"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "question-search"
    for error, count in (("boundary", 1), ("near", 1), ("wrong_span", 2)):
        choose(page, "Outcome", error, count)


@pytest.mark.parametrize("width", WIDTHS)
def test_link_scrolls_to_its_section_below_the_bar(report, visit, width):
    page = visit(report[0], width)
    height = "(bar) => (getComputedStyle(bar).position === 'sticky' ? bar.offsetHeight : 0)"
    for name in ("errors", "questions"):
        page.goto("about:blank")
        page.goto(f"{report[0].resolve().as_uri()}#{name}")
        page.wait_for_selector("html[data-ready=yes]")
        page.wait_for_timeout(300)  # late drawing would move it
        top = page.locator(f"#{name}").evaluate("(section) => section.getBoundingClientRect().top")
        assert -1 <= top - page.locator("#bar").evaluate(height) < 40


def test_legend_switches_a_system_in_figures_and_questions(report, visit):
    page = visit(report[0])
    drawn = """[...document.querySelector('#figure-risk .plot').data].filter(({ visible }) => visible)
        .map(({ name }) => name).every((name) => name === 'proposed')"""
    page.locator("#figure-risk").scroll_into_view_if_needed()
    until(page, "document.querySelector('#figure-risk .plot').data !== undefined")
    assert not page.evaluate(drawn)
    page.click("#legend button:has-text('bert')")
    assert page.locator("#legend button[aria-pressed=false]").all_inner_texts() == ["bert"]
    until(page, drawn)
    until(page, "document.querySelectorAll('#question-detail .answers tr').length === 4")
    page.click("#theme")
    until(page, drawn)


def test_tables_are_sorted_and_filtered(report, visit):
    page = visit(report[0])
    names = "#runs table.sortable >> nth=0 >> tbody tr:visible td:first-child"
    assert page.locator(names).all_inner_texts()[:2] == ["proposed", "bert"]
    heading = page.locator("#runs th button:text-is('F1')").first
    heading.click()
    heading.click()
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    assert page.locator(names).all_inner_texts()[:3] == [
        "bert",
        "proposed",
        "always-no-answer (untrained heuristic)",
    ]
    page.fill("#filter", "prop")
    assert page.locator(names).all_inner_texts() == ["proposed"]
    page.fill("#filter", "gpt")
    assert page.locator(names).count() == 0


def test_link_of_a_system_opens_the_details_of_its_run(report, visit):
    page = visit(report[0])
    page.click("#runs table.sortable a:text-is('proposed')")
    detail = page.locator("#run-2")
    assert detail.is_visible()
    until(page, "document.querySelector('#figure-run-2-loss .plot')?.data?.length >= 2")
    record = dict(
        row.split("\t") for row in detail.locator("table").last.locator("tbody tr").all_inner_texts()
    )
    assert (record["seed"], record["commit"]) == ("1", "abcdef012345, with uncommitted changes")
    command = page.locator("details:has(#run-2) .empty code").last.inner_text()
    assert [word.rpartition("/")[2] for word in shlex.split(command)[3::2]] == ["it's proposed 1"] * 2


def test_every_table_downloads_as_csv(report, visit):
    page = visit(report[0])
    assert page.locator("table:not(.answers)").count() == page.locator("a.csv").count() > 5
    with page.expect_download() as saved:
        page.click("[aria-label='Systems as CSV']")
    assert saved.value.suggested_filename == "systems.csv"
    rows = list(csv.DictReader(saved.value.path().read_text().splitlines()))
    assert rows == page_tables(report[0])["Systems"]


def test_nothing_is_cut_off_in_print(report, visit):
    page = visit(report[0], 1440)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 1040, "height": 700})
    page.wait_for_timeout(300)
    cut = """(all) => all
        .filter((el) => el.checkVisibility() && el.getBoundingClientRect().right > innerWidth + 1)
        .map((el) => el.closest("figure, section").id)"""
    assert page.locator("table, svg.main-svg").evaluate_all(cut) == []
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.legend .key')).printColorAdjust") == "exact"
    )
    assert page.locator("#legend .key").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(report, visit, scheme):
    """axe reports no violation, contrast of 4.5:1 included. The heading order depends on the data."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]'")
    page = visit(report[0], color_scheme=scheme)
    page.wait_for_selector("#question-detail .passage")
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    result = axe.Axe().run(page, options={"rules": {"heading-order": {"enabled": False}}})
    assert [(v["id"], v["nodes"][0]["html"][:90]) for v in result.response["violations"]] == []


def test_texts_are_laid_out_in_their_own_direction(report, visit):
    page = visit(report[0])
    page.wait_for_selector("#question-detail .passage")
    detail = "#question-detail"
    for texts in ("#question-list .asked", f"{detail} h3", f"{detail} .passage", f"{detail} td:nth-child(2)"):
        found = page.locator(texts).evaluate_all("(all) => all.map((element) => element.dir)")
        assert set(found) == {"auto"}, texts
