"""``types:FILE`` and ``types:synthetic:SPLIT``: questions with classes, in the format of the TREC files.

``train_5500.label`` and ``TREC_10.label`` (Li & Roth 2002) have one question per line: ``MAIN:sub``, then the
words of the question, separated by spaces. Generated questions use four wordings per class
(``wordings.tsv``). The fourth is not used for training and no name occurs in two splits, so calibration and
dev measure generalisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from qa_arch.config.files import user_path
from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.question_sets import clip
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.selection.sets import CLASSES, class_set
from qa_arch.types.text import SelectionSet

if TYPE_CHECKING:  # keeps the generator out of help texts, which list this source
    from qa_arch.data.synthetic.names import Names, Split

SIZES = {"train": 2000, "calibration": 300, "dev": 300}
"""Number of generated questions per split."""
SEED = 20
_SYNTHETIC = "synthetic:"
_THINGS = """
bridge lamp clock wheel tower lantern kettle mirror basket violin ladder anchor compass saddle needle bell
"""
_PURSUITS = "weaving rowing archery pottery baking fencing sailing carving dyeing brewing chess skating"
_BEASTS = "otter heron badger falcon salmon lynx beetle tortoise weasel raven mole viper"


def _open(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> SelectionSet:
    """Open a file or ``synthetic:SPLIT`` (train, calibration, dev). Raises DataError naming file and line."""
    (source,) = sources
    if source.startswith(_SYNTHETIC):
        from qa_arch.data.synthetic.names import SPLITS

        split = source.removeprefix(_SYNTHETIC)
        if split not in SPLITS:
            raise ConfigError(f"types:{source} is unknown: write train, calibration or dev")
        return class_set(name or split, generated_questions(SIZES[split], SEED, split))
    path = user_path(source)
    return class_set(name or path.stem, _lines(path))


def _files(source: str) -> tuple[Path, ...]:
    return () if source.startswith(_SYNTHETIC) else (user_path(source),)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """(class, question) of each non-blank line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "name train_5500.label or TREC_10.label, or types:synthetic:train"
        raise DataError(f"{path}: cannot be read ({error.strerror}); {hint}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # the encoding of the published files
    for number, line in enumerate(text.split("\n"), start=1):
        label, _, question = line.strip().partition(" ")
        if label and (label not in CLASSES or not question):
            raise DataError(
                f"{path}: line {number}: {clip(label)} is not a class with a question; write MAIN:sub, a"
                " space and the question (DESC:def What is ...), as in train_5500.label"
            )
        if label:
            yield label, question.strip()


def wordings() -> dict[str, list[str]]:
    """Class -> its wordings."""
    text = Path(__file__).with_name("wordings.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {label: templates for label, *templates in rows}


def generated_questions(count: int, seed: int, split: Split) -> list[tuple[str, str]]:
    """``count`` pairs (class, question), cycling through the classes; deterministic."""
    from qa_arch.data.synthetic.names import Names

    rng = Random(f"{seed}/types/{split}")
    names, by_class = Names(rng, split), wordings()
    labels = list(by_class)
    generated = []
    for number in range(count):
        label = labels[number % len(labels)]
        templates = by_class[label][:-1] if split == "train" else by_class[label]
        generated.append((label, _filled(rng.choice(templates), rng, names)))
    rng.shuffle(generated)
    return generated


def _filled(wording: str, rng: Random, names: Names) -> str:
    names.reset()
    kinds = ("place", "province", "river", "clan", "guild", "book")
    values = {kind: names.word(kind) for kind in kinds if f"{{{kind}}}" in wording}
    return wording.format(
        **values,
        person=names.person(),
        thing=rng.choice(_THINGS.split()),
        pursuit=rng.choice(_PURSUITS.split()),
        beast=rng.choice(_BEASTS.split()),
        code="".join(word[0] for word in (names.word("guild"), names.word("place"), names.word("clan"))),
    )


FORMAT = Format("types:FILE", "a file of questions with classes", open=_open, holds="classes", files=_files)
