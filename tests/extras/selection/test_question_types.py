"""Question words and answer types, on questions of our own."""

from __future__ import annotations

import pytest

from qa_arch.extras.selection.scores import answer_type, asking_word, question_type


@pytest.mark.parametrize(
    ("question", "word", "kind"),
    [
        ("Who painted the boats ?", "who", "PERSON"),
        ("To whom did Mira give them ?", "whom", "PERSON"),
        ("Where does Tarn live ?", "where", "LOCATION"),
        ("When did the ferry sink ?", "when", "NUMBER"),
        ("How many bees are there ?", "how", "NUMBER"),
        ("How does honey keep ?", "how", "DESCRIPTION"),
        ("Why did it sink ?", "why", "DESCRIPTION"),
        ("In what year was it built ?", "what", "NUMBER"),
        ("What city lies behind the hill ?", "what", "LOCATION"),
        ("Which famous singer came ?", "which", "PERSON"),
        ("What did Mira paint ?", "what", "ENTITY"),
        ("Is the tram late ?", "yes/no", "YES/NO"),
        ("Was it where they met ?", "yes/no", "YES/NO"),
        ("The ferry carried what ?", "what", "ENTITY"),
        ("Name the isle .", "other", "ENTITY"),
        ("", "other", "ENTITY"),
    ],
)
def test_types(question, word, kind):
    words = question.split()
    assert (asking_word(words), answer_type(words)) == (word, kind)
    assert question_type(words) == f"{word}:{kind}"
