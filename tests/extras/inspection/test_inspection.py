"""An inspection's numbers: layers, heads and what attends to what, in table, page and JSON alike."""

import json
from dataclasses import replace

import numpy as np
import pytest

from qa_arch.errors import ConfigError
from qa_arch.extras.inspection.layers import (
    ALL,
    CAVEAT,
    MATCH,
    MEAN,
    AttentionLayer,
    Inspection,
    Unit,
    heatmaps,
    inspection_table,
    select_heads,
    write_page,
)

QUESTION = "Who  built it?"
PASSAGE = "So far. Ada built $5 and $6 mills. It fell."
EVIL = ' </script><img src=x onerror="window.broken=1"> 𝔸'


def units(text: str, part, words) -> tuple[Unit, ...]:
    """Units of ``words``, each at its next occurrence in ``text``."""
    result, end = [], 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        result.append(Unit(word, part, start, end))
    return tuple(result)


def special(name: str) -> tuple[Unit, ...]:
    return (Unit(name, "special", 0, 0),)


def make_inspection(*, evil: bool = False) -> Inspection:
    """Random weights: 3 layers of 2 heads over 16 tokens, and a match-LSTM over pieces."""
    passage = PASSAGE + (EVIL if evil else "")
    question = QUESTION + (EVIL if evil else "")
    question_units = units(question, "question", ["Who", "built", "it", "?", *(["𝔸"] if evil else [])])
    passage_units = units(passage, "passage", ["Ada", "built", "$", "5", "and", "$", "6", "mills", "."])
    tokens = (*special("[CLS]"), *question_units, *special("[SEP]"), *passage_units, *special("[SEP]"))
    random = np.random.default_rng(0)

    def draw(heads: int, rows: int, columns: int) -> np.ndarray:
        return random.dirichlet(np.full(columns, 0.3), size=(heads, rows)).astype(np.float32)

    layers = [
        AttentionLayer(str(number), ("1", "2"), draw(2, len(tokens), len(tokens)), tokens, tokens)
        for number in (1, 2, 3)
    ]
    columns = (*question_units, *special("(nothing)"))
    weights = draw(2, len(passage_units), len(columns))
    layers.append(AttentionLayer(MATCH, ("forward", "backward"), weights, passage_units, columns))
    answer = passage.index("Ada")
    name = f"bert{EVIL}" if evil else "bert"
    end = passage_units[-1].end
    return Inspection(
        name, question, passage, 2, 3, passage_units[0].start, end, (answer, answer + 3), tuple(layers)
    )


INSPECTION = make_inspection()
FIRST, LAST, MATCHING = INSPECTION.layers[0], INSPECTION.layers[2], INSPECTION.layers[3]


def test_share_crossing_between_question_and_passage():
    weights = FIRST.weights[:, 1:5, 6:15]  # [CLS] 4 [SEP] 9 [SEP]
    assert FIRST.crossing() == pytest.approx(weights.sum(-1).mean(-1))
    assert MATCHING.crossing() == pytest.approx(1 - MATCHING.weights[..., -1].mean(-1), abs=1e-6)


@pytest.mark.parametrize(
    ("layer", "head", "expected"),
    [
        (None, None, ["3 mean"]),
        ("1", "2", ["1 2"]),
        (ALL, "1", ["1 1", "2 1", "3 1"]),
        (MATCH, "backward", ["match backward"]),
        (ALL, ALL, ["1 1", "1 2", "2 1", "2 2", "3 1", "3 2", "match forward", "match backward"]),
    ],
)
def test_layers_and_heads_are_chosen_by_name(layer, head, expected):
    chosen = select_heads(INSPECTION.layers, layer, head)
    assert [f"{item.name} {name}" for item, name in chosen] == expected
    assert select_heads([MATCHING], None, None) == [(MATCHING, MEAN)], "without an encoder"
    with pytest.raises(ConfigError, match=r"the model has no layer '4' \(known: 1, 2, 3, match, all\)"):
        select_heads(INSPECTION.layers, "4", head)
    with pytest.raises(ConfigError, match=r"no head '1' \(known: forward, backward, mean, all\)"):
        select_heads(INSPECTION.layers, MATCH, "1")


def test_json_holds_all_weights():
    value = json.loads(json.dumps(INSPECTION.as_dict(select_heads(INSPECTION.layers, "2", "1"))))
    assert value["answer"] == {"text": "Ada", "start": 8, "end": 11}
    assert value["window"] == {"number": 2, "of": 3, "start": 8, "end": 34}
    (item,) = value["attention"]
    assert (item["layer"], item["head"]) == (2, 1)
    assert np.array(item["weights"]) == pytest.approx(INSPECTION.layers[1].weights[0], abs=1e-6)
    assert item["rows"] == item["columns"]
    for unit in item["rows"]:
        text = {"question": INSPECTION.question, "passage": PASSAGE}.get(unit["part"])
        assert text is None or text[unit["start"] : unit["end"]] == unit["text"]


def test_table_lists_the_largest_weights_of_a_head_or_the_share_of_several():
    table = inspection_table(INSPECTION, [(FIRST, "2")])
    assert [row["token"] for row in table.rows] == ["Who", "built", "it", "?"]
    weights = FIRST.weights[1, 1]
    best = int(weights.argmax())
    assert table.rows[0]["units"].startswith(f"{FIRST.columns[best].text} {weights[best]:.2f}  ")
    assert any("window 2 of 3, characters 8 to 34 of 43" in note for note in table.notes)
    assert table.notes[1:] == ["answer: Ada", CAVEAT]
    attended = inspection_table(INSPECTION, [(MATCHING, "forward")])
    weights = MATCHING.weights[0, :, 0]
    best = int(weights.argmax())
    assert attended.rows[0]["units"].startswith(f"{MATCHING.rows[best].text} {weights[best]:.2f}  ")
    assert attended.columns[1].heading == "is attended by"
    several = inspection_table(INSPECTION, select_heads(INSPECTION.layers, ALL, ALL))
    assert [row["layer"] for row in several.rows] == ["1", "2", "3", MATCH]
    assert several.rows[2]["2"] == pytest.approx(100 * LAST.crossing()[1])


def test_figure_holds_every_layer_and_head_and_shows_the_first():
    chosen = select_heads(INSPECTION.layers, ALL, ALL)
    figure = heatmaps(chosen)
    assert [trace.visible for trace in figure.data] == [True, True] + [False] * 6
    for trace, (layer, head) in zip(figure.data, chosen, strict=True):
        assert trace.z / 100 == pytest.approx(layer.head(head), abs=0.0051)
        assert (trace.zmin, trace.zmax) == (0, round(100 * layer.head(head).max()))
    buttons = {button.label: button.args for button in figure.layout.updatemenus[0].buttons}
    assert list(buttons) == ["layer 1", "layer 2", "layer 3", "match-LSTM"]
    visible, changes = buttons["match-LSTM"]
    assert visible["visible"] == [False] * 6 + [True, True]
    for axis, units in (("x", MATCHING.columns), ("y", MATCHING.rows)):
        for number in ("", "2"):
            assert changes[f"{axis}axis{number}.ticktext"] == [unit.text for unit in units]
    assert figure.layout.yaxis.range == (len(FIRST.rows) - 0.5, -0.5), "the first row is on top"
    low = replace(FIRST, weights=0.03 * FIRST.weights / FIRST.weights.max())
    (trace,) = heatmaps([(low, "1")]).data
    assert trace.z / 1000 == pytest.approx(low.weights[0], abs=0.00051), "small weights are in per mille"
    assert "%{z}‰" in trace.hovertemplate


def test_page_is_one_file_without_markup_of_the_texts(tmp_path):
    evil = make_inspection(evil=True)
    page = write_page(evil, tmp_path / "a.html", [(evil.layers[0], MEAN)]).read_text(encoding="utf-8")
    assert EVIL not in page
    assert page.count("</script>") == page.count("<script"), "no text ends the page's script"
    assert "<mark>Ada</mark>" in page
    assert CAVEAT in page


@pytest.mark.slow
def test_page_in_a_browser(tmp_path, visit):
    evil = make_inspection(evil=True)
    chosen = select_heads(evil.layers, ALL, ALL)
    page = visit(write_page(evil, tmp_path / "a.html", chosen))
    page.locator(".updatemenu-header").click()
    page.locator(".updatemenu-dropdown-button").nth(3).click()
    page.wait_for_selector("text=match-LSTM, backward")
    assert "(nothing)" in page.locator(".xtick text").all_text_contents()
