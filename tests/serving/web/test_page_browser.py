"""The page in a real browser: questions by form, link and keyboard, without errors or foreign requests.

Needs playwright (extra ``dev``) and a system Chromium (Debian: apt-get install chromium).
"""

from urllib.parse import quote, unquote, urlsplit

import pytest
from service import RuleReader

from qa_arch.manifest import module_of

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[dev]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install -e '.[dev]'")
expect = sync_api.expect

PASSAGE = "By the mill stands a bridge."
slow = pytest.mark.slow
"""All but one question and its answer run nightly only."""


@pytest.fixture
def visit(visit, address):
    """``visit(path, width, **context)`` -> the page, which may send requests to the service only."""
    return lambda path="/", *size, **options: visit(
        f"{address}{path}", *size, within=f"{address}/", **options
    )


@pytest.fixture(autouse=True)
def long_timeout():
    expect.set_options(timeout=20_000)


def ask(page, question, context=PASSAGE):
    page.get_by_label("Passage", exact=True).fill(context)
    page.get_by_label("Question", exact=True).fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()


@pytest.mark.slow
def test_answer_far_down_a_passage_is_scrolled_into_view(visit):
    page = visit()
    ask(
        page,
        "Where is the mill?",
        "A long story. " * 500 + "By the mill stands a bridge. " + "The end. " * 500,
    )
    box, mark = (page.locator(name).bounding_box() for name in (".passage", "mark"))
    assert box["y"] < mark["y"] < box["y"] + box["height"]


@pytest.mark.slow
def test_answer_is_marked_in_its_passage(visit):
    """Also behind characters of several UTF-16 units and text that looks like markup."""
    page, passage = visit(), "👩‍🚀 𝔸 <b>By</b> the mill stands a bridge."
    ask(page, "Where is the mill?", passage)
    expect(page.locator(".answer")).to_have_text("mill")
    expect(page.locator("mark")).to_have_text("mill")
    expect(page.locator(".passage")).to_have_text(passage)
    direct = RuleReader()("Where is the mill?", passage, top_k=3)
    shares = f"confidence {direct.confidence:.0%}, no answer {direct.no_answer_probability:.0%}"
    expect(page.locator(".confidence")).to_have_text(shares)
    others = [f"{span.text}{span.confidence:.0%}" for span in direct.spans[1:]]
    assert others
    expect(page.locator(".alternatives li")).to_have_text(others)
    expect(page.get_by_role("status").first).to_have_text("Answer: mill.")


@slow
def test_no_answer_is_stated(visit):
    page = visit()
    ask(page, "Where is the dam?")
    expect(page.locator(".answer")).to_have_text("No answer in this passage")
    direct = RuleReader()("Where is the dam?", PASSAGE)
    expect(page.locator(".confidence")).to_have_text(
        f"probability of no answer {direct.no_answer_probability:.0%}"
    )
    expect(page.locator("mark")).to_have_count(0)
    expect(page.get_by_role("status").first).to_have_text("No answer in this passage.")


@slow
def test_example_button_asks_the_example(visit):
    page = visit()
    page.get_by_role("button", name="Try an example").click()
    expect(page.locator(".card")).to_be_visible()
    assert page.get_by_label("Question", exact=True).input_value()


@slow
def test_missing_input_shows_a_hint(visit):
    """The hint goes when the form changes."""
    page = visit()
    ask(page, "Where?", " ")
    expect(page.get_by_role("status").first).to_have_text("Enter a passage first.")
    expect(page.get_by_label("Passage", exact=True)).to_be_focused()
    ask(page, "", PASSAGE)
    expect(page.get_by_role("status").first).to_have_text("Enter a question first.")
    page.get_by_label("Question", exact=True).fill("W")
    expect(page.get_by_role("status").first).to_have_text("")


@slow
def test_models_are_switched_and_compared(visit):
    page = visit()
    ask(page, "mill?")
    expect(page.locator(".card h2")).to_have_text("first")
    page.get_by_label("Model").select_option("second")
    expect(page.locator(".card h2")).to_have_text("second")
    page.get_by_label("Compare with").select_option("first")
    expect(page.locator(".card h2")).to_have_text(["second", "first"])
    left, right = (page.locator(".card").nth(index).bounding_box() for index in (0, 1))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    page.route("**/v1/answer", lambda route: (
        route.fulfill(status=200, body="no JSON")
        if "second" in (route.request.post_data or "") else route.continue_()
    ))  # fmt: skip
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".card h2")).to_have_text(["first"])
    expect(page.get_by_role("status").first).to_contain_text("second: ")


@slow
def test_link_restores_the_question(visit, address):
    page, requested = visit(), []
    page.get_by_label("Compare with").select_option("second")
    page.on("request", lambda request: requested.append(request.url))
    ask(page, "Where is the 🌉 bridge & mill?", "A + b = 100% #mill\nand a line")
    expect(page.locator(".card")).to_have_count(2)
    link = page.url
    assert "mill" in unquote(urlsplit(link).fragment)
    assert not [url for url in requested if "mill" in url]
    again = visit(link.removeprefix(address))
    expect(again.locator(".card h2")).to_have_text(["first", "second"])
    assert again.get_by_label("Question", exact=True).input_value() == "Where is the 🌉 bridge & mill?"
    assert again.get_by_label("Passage", exact=True).input_value() == "A + b = 100% #mill\nand a line"


@slow
@pytest.mark.parametrize("by_link", [False, True])
def test_scripts_are_shown_as_text(visit, by_link):
    evil = '</p><img src=x onerror="window.broken=1"><script>window.broken=1</script> mill'
    if by_link:
        page = visit(f"/#q={quote(evil)}&c={quote(evil)}&m={quote(evil)}")
    else:
        page = visit()
        ask(page, evil, evil)
    expect(page.locator("mark")).to_have_text("mill")
    expect(page.locator(".passage")).to_have_text(evil)
    page.locator("summary").click()
    expect(page.locator(".words button").first).to_be_visible()
    assert page.evaluate("() => window.broken") is None
    assert page.locator("main img").count() == 0


@slow
def test_offsets_are_characters(visit):
    page = visit()
    for context in ("👩‍🚀 𝔸𝔹 mill 👍🏽!", "‏הטחנה mill נשרפה", "e\u0301 x\u0000 mill"):
        ask(page, "🌉 mill", context)
        expect(page.locator(".passage")).to_have_text(context)
        expect(page.locator("mark")).to_have_text("mill")


@slow
def test_lone_surrogate_is_replaced_on_the_page(visit):
    page = visit()
    page.evaluate(
        r"""() => { document.getElementById("context").value = "\ud83d the mill";
        document.getElementById("question").value = "mill \udc00 mill"; }"""
    )
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("mark")).to_have_text("mill")


@slow
def test_page_works_by_keyboard_alone(visit):
    page = visit()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the question")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Question", exact=True)).to_be_focused()
    page.keyboard.type("Where is the mill?")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.type(PASSAGE)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("mark")).to_have_text("mill")
    for _ in range(12):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => [document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert focused[1] == "solid", focused
        if focused[0] == "SUMMARY":
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(".words button").first).to_be_visible()
    link = page.url
    page.get_by_role("link", name="Skip to the question").press("Enter")
    assert page.url == link


@slow
@pytest.mark.skipif(module_of("attention") is None, reason="no extra shows attention")
def test_attention(visit):
    page = visit()
    ask(page, "Which mill?", "👍 The mill moved.")
    page.locator("summary").click()
    expect(page.locator(".words button")).to_have_text(["Which", "mill", "?", "(nothing)"])
    page.get_by_role("button", name="mill", exact=True).click()
    shaded = page.locator(".heat span").evaluate_all(
        "(spans) => spans.filter((span) => span.dataset.weight > 0.5).map((span) => span.textContent)"
    )
    assert shaded == ["mill", "moved"]
    expect(page.locator(".heat")).to_have_text("👍 The mill moved.")
    page.get_by_label("Model").select_option("second")
    expect(page.locator(".card h2")).to_have_text("second")
    expect(page.locator("summary")).to_have_count(0)


@slow
def test_page_asks_for_the_token(browser, running):
    with running(QA_ARCH_TOKEN="s3cret") as (_, address, _), browser.new_context() as context:
        page = context.new_page()
        page.goto(address)
        ask(page, "mill")  # before the models are known
        expect(page.get_by_role("status").first).to_contain_text("A token is required")
        page.get_by_label("Token").fill("s3cret")
        page.get_by_label("Token").press("Enter")
        expect(page.get_by_label("Model")).to_have_value("first")
        expect(page.locator("mark")).to_have_text("mill")
        expect(page.get_by_label("Token")).to_be_hidden()
        assert "s3cret" not in page.url


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_accessibility(visit, width, scheme):
    """No axe violation and no sideways scrolling: empty, with answers, with an error."""
    page = visit("/", width, color_scheme=scheme, bypass_csp=True)
    assert_accessible(page, width)
    page.get_by_label("Compare with").select_option("second")
    ask(page, "Where is the mill?", "By the mill. " * 100)
    expect(page.locator(".card")).to_have_count(2)
    page.locator("summary").click()
    expect(page.locator(".words button").first).to_be_visible()
    assert_accessible(page, width)
    ask(page, "Where is the dam?")
    expect(page.locator(".answer").first).to_have_text("No answer in this passage")
    ask(page, " ")
    expect(page.get_by_role("status").first).to_have_text("Enter a question first.")
    assert_accessible(page, width)
    assert_accessible(visit("/docs", width, color_scheme=scheme, bypass_csp=True), width)


def assert_accessible(page, width):
    results = axe.Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
