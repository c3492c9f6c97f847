"""``typos:SEED:SOURCE``: one typo per question, drawn by seed and id; nothing else changes."""

import json
from dataclasses import replace

import pytest

from qa_arch.data.formats.typos import misspell
from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import available, files, identity, licence, open_passages, portable
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "set.json"
    path.write_text(json.dumps(write(generate(2, 3, 1, "dev"))))
    return str(path)


def test_typos_of_a_word():
    """Expected by hand: neighbouring keys, no swap of equal letters; first and last letter stay."""
    words = {misspell("Is it Cool?", draw).removeprefix("Is it ").removesuffix("?") for draw in range(200)}
    replaced = {f"C{other}ol" for other in "iklp"} | {f"Co{other}l" for other in "iklp"}
    assert words == {"Col", "Coool"} | replaced
    assert {misspell("THEN", draw) for draw in range(200)} >= {"TEHN", "TEN", "THHEN", "TYEN", "THWN"}
    assert misspell("Who is he?", 7) == "Who is he?", "no word of four letters"
    assert {misspell("имя?", draw) for draw in range(9)} == {"имя?"}
    assert len({misspell("Когда?", draw) for draw in range(200)}) == 8, (
        "no keyboard: 2 swaps, 3 deletions, 3 doublings"
    )


def test_every_question_gets_one_typo_and_nothing_else_changes(source):
    before, after = (open_passages(name).examples for name in (source, f"typos:13:{source}"))
    for old, new in zip(before, after, strict=True):
        assert replace(new, question=old.question) == old
        changed = [(a, b) for a, b in zip(old.question.split(), new.question.split(), strict=True) if a != b]
        assert len(changed) == 1, (old.question, new.question)
        assert abs(len(changed[0][0]) - len(changed[0][1])) <= 1


def test_typo_depends_only_on_seed_and_id(source, tmp_path):
    """Neither the order of the questions nor the other questions matter."""
    texts = {e.id: e.question for e in open_passages(f"typos:13:{source}").examples}
    whole = open_passages(source)
    part = question_set("part", reversed(whole.examples[::2]), whole.protocol)
    (tmp_path / "part.json").write_text(json.dumps(write(part)))
    again = open_passages(f"typos:13:{tmp_path}/part.json")
    assert {e.id: e.question for e in again.examples}.items() < texts.items()
    other = open_passages(f"typos:14:{source}").examples
    assert sum(texts[example.id] == example.question for example in other) < len(other) / 2


def test_fingerprint_and_identity_distinguish_seeds_and_sources(source, tmp_path, monkeypatch):
    named = [source, f"typos:1:{source}", f"typos:2:{source}", f"language:de:{source}"]
    named += [f"language:es:{source}", f"typos:1:language:de:{source}"]
    for key in (identity, lambda name: open_passages(name).fingerprint):
        assert len(set(map(key, named))) == len(named)
    assert open_passages(f"typos:1:language:de:{source}").language == "de"
    assert files(f"typos:1:language:de:{source}") == files(source)
    assert available(f"typos:1:{source}")
    assert not available("typos:1:hub:some/set:dev")
    assert licence("typos:1:language:en:synthetic:dev") == licence("synthetic:dev") != ""
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path))
    assert portable(f"typos:1:{source}") == "typos:1:$QA_ARCH_DATA/set.json"


@pytest.mark.parametrize("rest", ["x:set.json", "13", "13:", "-1:set.json"])
def test_malformed_source_is_refused(rest):
    with pytest.raises(DataError, match="write typos:SEED:SOURCE, such as typos:13:FILE"):
        open_passages(f"typos:{rest}")
