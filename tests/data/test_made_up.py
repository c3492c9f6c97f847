"""Made-up unanswerable questions, on passages of our own."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from qa_arch.cli.compose import compose
from qa_arch.config.schema import validate
from qa_arch.data.made_up import ANTONYMS, MONTHS, _with_antonym, entities, with_made_up
from qa_arch.data.question_sets import question_set
from qa_arch.data.run_splits import load_splits
from qa_arch.data.squad import write
from qa_arch.errors import ConfigError
from qa_arch.types.text import Example, Gold

BRIDGE = (
    "The bridge at Lowmere was built by Ada Stone in 1871 of 1,200 oaks. In March Ben Rook painted it. "
    "The first ferry to Tarn had stopped before that."
)
MILL = "Old Tarn Mill burned down in 1902. The miller, Cora Vane, sold it to Dov Hale for 90 crowns."


def example(number: int, question: str, answer: str | None, context: str = BRIDGE) -> Example:
    golds = () if answer is None else (Gold(answer, context.index(answer)),)
    return Example(f"q{number}", question, context, "Lowmere", golds)


EXAMPLES = (
    example(0, "Who built the bridge at Lowmere?", "Ada Stone"),
    example(1, "What did Ada Stone build in 1871?", "bridge"),
    example(2, "How many oaks went into it?", "1,200"),
    example(3, "What had stopped before that?", "first ferry"),
    example(4, "Who sank the bridge?", None),
    example(5, "Who sold the mill to Dov Hale?", "Cora Vane", MILL),
)
QUESTIONS = question_set("own", EXAMPLES, "2.0")


def made(share=1.0, seed=1, **options) -> dict[str, Example]:
    """By the id of the question that each is made of."""
    result = with_made_up(QUESTIONS, share, seed, **options).examples
    return {e.id.split("-")[0]: e for e in result if e.kind}


def test_entities_by_their_look():
    kinds = [(entity.kind, entity.text) for entity in entities(BRIDGE)]
    assert kinds == [
        *[("name", "Lowmere"), ("name", "Ada Stone"), ("year", "1871"), ("number", "1,200")],
        *[("month", "March"), ("name", "Ben Rook"), ("name", "Tarn")],
    ]
    assert all(BRIDGE.startswith(entity.text, entity.start) for entity in entities(BRIDGE))
    assert [e.text for e in entities("Did Tarn burn? Tarn did. Ferries came.")] == ["Tarn", "Tarn"]
    assert [e.text for e in entities("Ada built what?")] == []
    assert [e.text for e in entities("Ada built what?", BRIDGE)] == ["Ada"]


def test_an_entity_becomes_another_of_its_kind_that_neither_question_nor_answer_holds():
    by_id = {seed: made(seed=seed, kinds=("entity",)) for seed in range(20)}
    questions = {result["q1"].question for result in by_id.values()}
    # 1871 has no other year in its passage: that of the article's other passage.
    assert questions <= {
        "What did Lowmere build in 1871?",
        "What did Ben Rook build in 1871?",
        "What did Tarn build in 1871?",
        "What did Ada Stone build in 1902?",
    }
    assert len(questions) > 2
    assert {result["q0"].question for result in by_id.values()} == {
        "Who built the bridge at Ben Rook?",
        "Who built the bridge at Tarn?",
    }
    assert {result["q5"].question for result in by_id.values()} <= {
        "Who sold the mill to Old Tarn Mill?",
        *[f"Who sold the mill to {name}?" for name in ("Lowmere", "Ada Stone", "Ben Rook", "Tarn")],
    }
    assert "q2" not in by_id[0]  # "How" is no name


def test_a_word_becomes_its_opposite():
    assert _with_antonym("Which was the FIRST and largest?", random.Random(0)) in (
        "Which was the Last and largest?",
        "Which was the FIRST and smallest?",
    )
    assert made(kinds=("antonym",))["q3"].question == "What had stopped after that?"
    assert made(kinds=("antonym",)).keys() == {"q0", "q3"}


def test_opposites_come_in_pairs():
    assert all(ANTONYMS[other] == word for word, other in ANTONYMS.items())
    assert not ANTONYMS.keys() & set(MONTHS.lower().split("|"))


def test_another_passage_of_the_article_without_the_answer():
    result = made(kinds=("paragraph",))
    assert result.keys() == {"q0", "q1", "q2", "q3", "q5"}
    assert all(result[id_].context == MILL for id_ in ("q0", "q1", "q2", "q3"))
    assert (result["q5"].context, result["q5"].question) == (BRIDGE, EXAMPLES[5].question)
    assert result["q5"].plausible == ()
    here = replace(EXAMPLES[5], id="q6", answers=(Gold("Tarn", MILL.index("Tarn")),))
    more = with_made_up(question_set("own", (*EXAMPLES, here), "2.0"), 1.0, 1, ("paragraph",))
    assert not [e for e in more.examples if e.id.startswith("q6-")]  # Tarn stands in the other as well


def test_what_is_made_is_marked_stands_behind_its_origin_and_changes_nothing_else():
    result = with_made_up(QUESTIONS, 1.0, 3)
    assert [e for e in result.examples if not e.kind] == list(EXAMPLES)
    for before, now in zip(result.examples, result.examples[1:], strict=False):
        if now.kind:
            assert now.id == f"{before.id}-{now.kind}"
            assert now.kind in ("made_up_entity", "made_up_antonym")
            assert now.context is before.context
            assert (now.answers, now.plausible) == ((), before.answers)
            assert now.question != before.question
    assert len({e.id for e in result.examples}) == len(result)
    assert (result.name, result.protocol) == ("own.made_up", "2.0")
    assert result.fingerprint != QUESTIONS.fingerprint


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.2, 1), (0.6, 3), (1.0, 4)])
def test_as_many_as_the_share_of_answerable_questions_or_as_the_rules_find(share, count):
    assert len(made(share)) == count


def test_the_seed_decides_and_the_order_of_questions_does_not():
    backwards = question_set("own", reversed(EXAMPLES), "2.0")
    same = {e.id: e.question for e in with_made_up(backwards, 1.0, 1).examples if e.kind}
    assert same == {e.id: e.question for e in made().values()}
    assert len({tuple(sorted(made(0.4, seed))) for seed in range(9)}) > 2


def test_which_kind_is_made_does_not_depend_on_which_questions_are_drawn():
    both = [replace(EXAMPLES[0], id=f"n{i}", context=f"{BRIDGE} {i}") for i in range(300)]
    drawn = with_made_up(question_set("own", both, "2.0"), 0.2, 1).examples
    counts = Counter(e.kind for e in drawn if e.kind)
    assert counts.keys() == {"made_up_entity", "made_up_antonym"}
    assert 15 <= counts["made_up_entity"] <= 45  # of 60


def test_a_question_that_is_there_already_is_not_made():
    there = example(7, "What had stopped after that?", "bridge")
    assert "q3" not in {
        e.id.split("-")[0]
        for e in with_made_up(question_set("own", (*EXAMPLES, there), "2.0"), 1.0, 1, ("antonym",)).examples
        if e.kind
    }


def test_a_set_of_version_1_becomes_one_of_version_2_only_where_something_is_made():
    plain = question_set("own", EXAMPLES[:2], "1.1")
    assert with_made_up(plain, 1.0, 1).protocol == "2.0"
    assert with_made_up(plain, 0.0, 1).protocol == "1.1"


@pytest.mark.parametrize("kinds", [None, ["paragraph"]])
def test_only_training_questions_are_made_up(tmp_path, kinds, caplog):
    (tmp_path / "train.json").write_text(json.dumps(write(QUESTIONS)))
    other = [replace(e, id=f"c{e.id}", title="Other") for e in EXAMPLES]
    (tmp_path / "other.json").write_text(json.dumps(write(question_set("other", other, "2.0"))))
    config = validate(
        compose(
            [
                "data=files",
                f"data.train={tmp_path}/train.json",
                f"data.calibration={tmp_path}/other.json",
                "data.made_up_share=1",
                f"data.made_up_kinds={'null' if kinds is None else kinds}".replace("'", ""),
            ]
        )
    )
    sets = load_splits(config.data, want="passages")
    seen = {e.kind for e in sets["train"].examples} - {None}
    assert seen == ({"made_up_entity", "made_up_antonym"} if kinds is None else {"made_up_paragraph"})
    assert not any(e.kind for e in sets["calibration"].examples)
    assert ("made up 4 of 5" in caplog.text) == (kinds is None)
    with pytest.raises(ConfigError, match=r"data\.made_up_share"):
        load_splits(config.data, want="candidates")
