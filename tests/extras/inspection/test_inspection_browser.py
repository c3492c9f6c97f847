"""The page of ``qa-arch inspect`` in a real browser: by mouse and keyboard, accessible, no errors."""

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


def wait_for_text(page, selector: str, text: str) -> None:
    """Wait for ``text``; playwright's own waiting evaluates strings, which the page's policy forbids."""
    for _ in range(300):
        if page.inner_text(selector) == text:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{selector}: {page.inner_text(selector)!r}, never {text!r}")


def shown_weights(page) -> list[tuple[str, float]]:
    """All units and weights of the selected token as the page shows them."""
    page.wait_for_selector("#every tbody tr")
    rows = [row.split("\t") for row in page.locator("#every tbody tr").all_inner_texts()]
    return [(row[0].strip(), float(row[-1])) for row in rows]


def assert_weights(page, units, weights) -> None:
    shown = shown_weights(page)
    assert [text for text, _ in shown] == [unit.text for unit in units]
    assert [value for _, value in shown] == pytest.approx(weights, abs=1e-4)


def token(page, name: str, nth: int = 0):
    return page.locator(f"#tokens [role=option]:text-is('{name}')").nth(nth)


@pytest.mark.slow
def test_page_shows_the_answer_and_opens_at_the_given_head(visit):
    page = visit()
    assert page.inner_text("#answered") == "Ada"
    assert page.inner_text("#caveat").startswith("Attention says where a model looks, not why it answers")
    assert page.inner_text("#shown") == "Layer 2, head 1"
    assert page.inner_text("#selected") == "“Ada” attends to"
    ada = next(i for i, unit in enumerate(SECOND.rows) if unit.text == "Ada")
    assert_weights(page, SECOND.columns, SECOND.weights[0, ada])
    assert "total 1.0000" in page.inner_text("#sums")
    assert page.evaluate("window.broken") is None


@pytest.mark.slow
def test_tokens_are_chosen_by_mouse_and_keyboard(visit):
    page = visit()
    who = next(i for i, unit in enumerate(SECOND.rows) if unit.text == "Who")
    token(page, "Who").hover()
    wait_for_text(page, "#selected", "“Who” attends to")
    assert_weights(page, SECOND.columns, SECOND.weights[0, who])
    page.hover("h1")
    wait_for_text(page, "#selected", "“Ada” attends to")
    token(page, "Who").click()
    page.hover("h1")
    wait_for_text(page, "#selected", "“Who” attends to")
    page.keyboard.press("ArrowRight")
    wait_for_text(page, "#selected", "“built” attends to")
    page.keyboard.press("Home")
    wait_for_text(page, "#selected", "“[CLS]” attends to")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    wait_for_text(page, "#selected", "“.” attends to")
    assert_weights(page, SECOND.columns, SECOND.weights[0, len(SECOND.rows) - 2])
    assert page.locator("#tokens [tabindex='0']").count() == 1
    page.click("#direction button:has-text('attention to the token')")
    wait_for_text(page, "#selected", "“.” is attended by")
    assert_weights(page, SECOND.rows, SECOND.weights[0, :, len(SECOND.rows) - 2])


@pytest.mark.slow
def test_layers_and_heads_are_chosen_by_mouse_and_keyboard(visit):
    page = visit()
    ada = next(i for i, unit in enumerate(FIRST.rows) if unit.text == "Ada")
    page.click("#grid [data-layer='0'][data-head='1']")
    wait_for_text(page, "#shown", "Layer 1, head 2")
    assert_weights(page, FIRST.columns, FIRST.weights[1, ada])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    wait_for_text(page, "#shown", "Layer 3, head 2")
    page.keyboard.press("Home")
    wait_for_text(page, "#shown", "Layer 3, mean")
    assert_weights(page, THIRD.columns, THIRD.head(MEAN)[ada])
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    wait_for_text(page, "#shown", "Layer 2, head 1")
    checked = page.locator("#grid [aria-checked=true]")
    assert checked.count() == 1
    share = round(100 * float(SECOND.crossing()[0]))
    assert checked.get_attribute("aria-label") == f"layer 2, head 1: {share}%"


@pytest.mark.slow
def test_match_lstm_has_its_own_units(visit):
    page = visit()
    page.click("#grid [data-layer='3'][data-head='1']")
    wait_for_text(page, "#shown", "Match-LSTM, backward")
    wait_for_text(page, "#selected", "“Ada” attends to")
    assert_weights(page, MATCHING.columns, MATCHING.weights[1, 0])
    token(page, "Who").click()
    wait_for_text(page, "#selected", "“Who” is attended by")
    assert_weights(page, MATCHING.rows, MATCHING.weights[1, :, 0])


@pytest.mark.slow
def test_text_is_complete_and_shaded_by_weight(visit):
    page = visit()
    question, passage = page.locator(".spread").all_inner_texts()
    assert INSPECTION.question.rstrip() in question.replace("[CLS]", "").replace("[SEP]", "").replace(
        "\n", ""
    )
    assert "… Ada built $5 and $6 mills." in passage
    shares = page.locator("#tokens [role=option]").evaluate_all(
        "(all) => all.map((node) => Number(getComputedStyle(node).getPropertyValue('--share')))"
    )
    ada = next(i for i, unit in enumerate(SECOND.rows) if unit.text == "Ada")
    texts = [i for i, unit in enumerate(SECOND.columns) if unit.part != "special" and i != ada]
    most = SECOND.weights[0, ada, texts].max()
    assert shares == pytest.approx(np.minimum(SECOND.weights[0, ada] / most, 1), abs=2e-3)


@pytest.mark.slow
def test_page_is_accessible_and_fits_every_width(visit):
    """No axe violation, contrast on every shade included, and no sideways scrolling."""

    def check(page, width):
        page.set_viewport_size({"width": width, "height": 900})
        page.click("#grid [data-layer='1'][data-head='0']")
        shown_weights(page)
        results = axe.Axe().run(page)
        assert results.violations_count == 0, results.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#grid [data-layer='3'][data-head='-1']")
        wait_for_text(page, "#shown", "Match-LSTM, mean")
        page.hover("h1")
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page = visit(390)
    (light,) = {check(page, width) for width in (390, 900, 1440)}
    page.click("#theme")
    dark = check(page, 390)
    assert dark != light
    assert check(visit(900, dark=True), 900) == dark
