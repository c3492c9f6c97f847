"""The page of ``qa-arch inspect`` in a real browser: by mouse and keyboard, quiet, alone and accessible."""

from __future__ import annotations

import numpy as np
import pytest
from extras.inspection.inspections import make_inspection

from qa_arch.extras.inspection.layers import MEAN, write_page

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="no axe: pip install 'qa-arch[dev]'"
)
INSPECTION = make_inspection(evil=True)
FIRST, SECOND, THIRD, MATCHING = INSPECTION.layers


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspection")
    return write_page(INSPECTION, folder / "a.html", SECOND, "1")


@pytest.fixture
def visit(visit, file):
    """``visit(width, dark=False)`` -> the page with all its numbers."""

    def go(width=1200, *, dark=False):
        page = visit(file, width, color_scheme="dark" if dark else "light")
        page.click("#all summary")
        return page

    return go


def settle(page, selector: str, text: str) -> None:
    """Waits until it holds; playwright's own waiting evaluates strings, which the page's policy forbids."""
    for _ in range(300):
        if page.inner_text(selector) == text:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{selector}: {page.inner_text(selector)!r}, never {text!r}")


def numbers(page) -> list[tuple[str, float]]:
    """All weights of the selected token, as the page tells them."""
    page.wait_for_selector("#every tbody tr")
    rows = [row.split("\t") for row in page.locator("#every tbody tr").all_inner_texts()]
    return [(row[0].strip(), float(row[-1])) for row in rows]


def check(page, units, weights) -> None:
    shown = numbers(page)
    assert [text for text, _ in shown] == [unit.text for unit in units]
    assert [value for _, value in shown] == pytest.approx(weights, abs=1e-4)


def token(page, name: str, nth: int = 0):
    return page.locator(f"#tokens [role=option]:text-is('{name}')").nth(nth)


@pytest.mark.slow
def test_it_says_what_was_answered_and_opens_at_the_head_that_was_named(visit):
    page = visit()
    assert page.inner_text("#answered") == "Ada"
    assert page.inner_text("#caveat").startswith("Attention says where a model looks, not why it answers")
    assert page.inner_text("#shown") == "Layer 2, head 1"
    assert page.inner_text("#selected") == "“Ada” attends to"
    at = next(i for i, unit in enumerate(SECOND.rows) if unit.text == "Ada")
    check(page, SECOND.columns, SECOND.weights[0, at])
    assert "total 1.0000" in page.inner_text("#sums")
    assert page.evaluate("window.broken") is None


@pytest.mark.slow
def test_a_token_is_chosen_by_mouse_and_by_keyboard(visit):
    page = visit()
    who = next(i for i, unit in enumerate(SECOND.rows) if unit.text == "Who")
    token(page, "Who").hover()
    settle(page, "#selected", "“Who” attends to")
    check(page, SECOND.columns, SECOND.weights[0, who])
    page.hover("h1")
    settle(page, "#selected", "“Ada” attends to")
    token(page, "Who").click()
    page.hover("h1")
    settle(page, "#selected", "“Who” attends to")
    page.keyboard.press("ArrowRight")
    settle(page, "#selected", "“built” attends to")
    page.keyboard.press("Home")
    settle(page, "#selected", "“[CLS]” attends to")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    settle(page, "#selected", "“.” attends to")
    check(page, SECOND.columns, SECOND.weights[0, len(SECOND.rows) - 2])
    assert page.locator("#tokens [tabindex='0']").count() == 1
    page.click("#direction button:has-text('attention to the token')")
    settle(page, "#selected", "“.” is attended by")
    check(page, SECOND.rows, SECOND.weights[0, :, len(SECOND.rows) - 2])


@pytest.mark.slow
def test_layers_and_heads_are_chosen_by_mouse_and_by_keyboard(visit):
    page = visit()
    at = next(i for i, unit in enumerate(FIRST.rows) if unit.text == "Ada")
    page.click("#grid [data-layer='0'][data-head='1']")
    settle(page, "#shown", "Layer 1, head 2")
    check(page, FIRST.columns, FIRST.weights[1, at])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    settle(page, "#shown", "Layer 3, head 2")
    page.keyboard.press("Home")
    settle(page, "#shown", "Layer 3, mean")
    check(page, THIRD.columns, THIRD.head(MEAN)[at])
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    settle(page, "#shown", "Layer 2, head 1")
    checked = page.locator("#grid [aria-checked=true]")
    assert checked.count() == 1
    share = round(100 * float(SECOND.crossing()[0]))
    assert checked.get_attribute("aria-label") == f"layer 2, head 1: {share}%"


@pytest.mark.slow
def test_the_match_lstm_has_units_of_its_own(visit):
    page = visit()
    page.click("#grid [data-layer='3'][data-head='1']")
    settle(page, "#shown", "Match-LSTM, backward")
    settle(page, "#selected", "“Ada” attends to")
    check(page, MATCHING.columns, MATCHING.weights[1, 0])
    token(page, "Who").click()
    settle(page, "#selected", "“Who” is attended by")
    check(page, MATCHING.rows, MATCHING.weights[1, :, 0])


@pytest.mark.slow
def test_the_text_is_whole_and_shaded_by_weight(visit):
    page = visit()
    question, passage = page.locator(".spread").all_inner_texts()
    assert INSPECTION.question.rstrip() in question.replace("[CLS]", "").replace("[SEP]", "").replace(
        "\n", ""
    )
    assert "… Ada built $5 and $6 mills." in passage
    shares = page.locator("#tokens [role=option]").evaluate_all(
        "(all) => all.map((node) => Number(getComputedStyle(node).getPropertyValue('--share')))"
    )
    at = next(i for i, unit in enumerate(SECOND.rows) if unit.text == "Ada")
    texts = [i for i, unit in enumerate(SECOND.columns) if unit.part != "special" and i != at]
    most = SECOND.weights[0, at, texts].max()
    assert shares == pytest.approx(np.minimum(SECOND.weights[0, at] / most, 1), abs=2e-3)


@pytest.mark.slow
def test_it_is_accessible_and_fits_every_width(visit):
    """No violation that axe knows of, contrast of text on every shade included; nothing scrolls sideways."""

    def require(page, width):
        page.set_viewport_size({"width": width, "height": 900})
        page.click("#grid [data-layer='1'][data-head='0']")
        numbers(page)
        results = axe.Axe().run(page)
        assert results.violations_count == 0, results.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#grid [data-layer='3'][data-head='-1']")
        settle(page, "#shown", "Match-LSTM, mean")
        page.hover("h1")
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page = visit(390)
    (light,) = {require(page, width) for width in (390, 900, 1440)}
    page.click("#theme")
    dark = require(page, 390)
    assert dark != light
    assert require(visit(900, dark=True), 900) == dark
