"""Level 3 of the generated data: entity and relation must both be matched.

    python experiments/synthetic/level3.py --out data/synthetic

writes train.json, calibration.json and dev.json. A passage has two subjects with the same relations, and
there are all six kinds of unanswerable question of Rajpurkar, Jia and Liang 2018 (Table 2):

- ``negation``: the passage denies what is asked, or asserts what the question denies.
- ``antonym``: asks for the opposite of a stated relation.
- ``entity_swap``: asks one subject for what is stated only of the other.
- ``mutual_exclusion``: gives the subject a trait that its own excludes.
- ``impossible_condition``: adds a condition that no fact meets.
- ``other_neutral``: asks for a relation that is not mentioned, nor is its opposite.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from qa_arch.data import synthetic
from qa_arch.data.squad import write
from qa_arch.data.synthetic import (
    ANSWERABLE,
    DEMO_SEED,
    DEMO_SIZES,
    RELATIONS,
    SUBJECTS,
    UNANSWERABLE,
    Fact,
    Level,
    Names,
    Passage,
    PassageSubject,
    Question,
    Relation,
)
from qa_arch.files import write_json

KINDS = ("negation", "antonym", "entity_swap", "mutual_exclusion", "impossible_condition", "other_neutral")
EVENTS = (
    "the great flood",
    "the long drought",
    "the silver fair",
    "the second siege",
    "the harvest riots",
    "the night of comets",
)
_TRAIT_SHARE = 0.3
_CONDITION_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Request:
    """Content of a question before it is worded; ``fact`` answers it, or only seems to."""

    subject: PassageSubject
    relation: Relation
    fact: Fact | None
    never: bool = False
    trait: str | None = None
    event: str | None = None


def two_subjects(rng: Random, names: Names) -> Passage:
    """Generate a passage on two subjects of the same type that share relations.

    Two relations are stated of both subjects, two of only one; one fact is denied and one tied to an event.
    """
    names.reset()
    type_ = rng.choice(SUBJECTS)
    pair = (synthetic.draw_subject(rng, names, type_), synthetic.draw_subject(rng, names, type_))
    first, second, third, fourth = synthetic.draw_relations(rng, type_, 4)
    stated = [(pair[0], second), (pair[1], second), (pair[0], third), (pair[1], third)]
    stated += [(rng.choice(pair), first), (rng.choice(pair), fourth)]
    facts = synthetic.draw_facts(rng, names, stated)
    facts[-1] = replace(facts[-1], denied=True)
    dated = rng.randrange(len(facts) - 1)
    facts[dated] = replace(facts[dated], lead=f"After {rng.choice(EVENTS)}, ")
    return synthetic.compose_passage(rng, names, pair, facts)


def ask(rng: Random, passage: Passage) -> list[Question]:
    """Draw questions on different facts, which may mention a true trait or condition, and questions that the
    passage does not answer."""
    questions: list[Question] = []
    for fact in rng.sample(passage.facts, min(ANSWERABLE, len(passage.facts))):
        trait = fact.subject.trait if rng.random() < _TRAIT_SHARE else None
        event = event_of(fact) if fact.lead and rng.random() < _CONDITION_SHARE else None
        request = Request(fact.subject, fact.relation, fact, fact.denied, trait, event)
        questions.append((phrase(rng, request), fact, None))
    unanswerable: dict[str, Question] = {}
    for kind in rng.sample(KINDS, len(KINDS)) * 2:
        if len(unanswerable) == UNANSWERABLE:
            break
        if options := list(requests(passage, kind)):
            request = rng.choice(options)
            question = phrase(rng, request)
            unanswerable.setdefault(question, (question, request.fact, kind))
    return questions + list(unanswerable.values())


def event_of(fact: Fact) -> str:
    return fact.lead.removeprefix("After ").removesuffix(", ")


def phrase(rng: Random, request: Request) -> str:
    """Text of a question, in any wording."""
    subject, trait, wordings = request.subject, request.trait, request.relation.wordings
    name = f"the {trait} {subject.noun} {subject.name}" if trait else subject.name
    wording = wordings[rng.randrange(len(wordings))]
    question = wording.question.format(s=name, n="never " if request.never else "")
    return f"{question[:-1]} after {request.event}?" if request.event else question


def requests(passage: Passage, kind: str) -> Iterator[Request]:
    """Yield all possible unanswerable questions of one kind about a passage."""
    stated = {(fact.subject.name, fact.relation.name) for fact in passage.facts}
    events = {event_of(fact) for fact in passage.facts if fact.lead}
    mentioned = {relation for _, relation in stated}
    if kind == "other_neutral":
        for subject in passage.subjects:
            for relation in map(RELATIONS.__getitem__, subject.type.relations):
                if mentioned.isdisjoint((relation.name, relation.opposite)):
                    yield Request(subject, relation, None)
        return
    for fact in passage.facts:
        subject, relation = fact.subject, fact.relation
        if kind == "negation":
            yield Request(subject, relation, fact, never=not fact.denied)
        elif kind == "mutual_exclusion":
            yield Request(subject, relation, fact, never=fact.denied, trait=subject.excluded)
        elif fact.denied:
            continue
        elif kind == "antonym" and relation.opposite and (subject.name, relation.opposite) not in stated:
            yield Request(subject, RELATIONS[relation.opposite], fact)
        elif kind == "entity_swap":
            others = [s for s in passage.subjects if (s.name, relation.name) not in stated]
            yield from (Request(other, relation, fact) for other in others)
        elif kind == "impossible_condition":
            unmet = [event for event in EVENTS if event not in events]
            yield from (Request(subject, relation, fact, event=event) for event in unmet)


LEVELS: Mapping[int, Level] = {**synthetic.LEVELS, 3: Level(two_subjects, ask)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder to write to")
    out = parser.parse_args().out
    for split, articles in DEMO_SIZES.items():
        questions = synthetic.generate(articles, DEMO_SEED, 3, split, LEVELS)
        path = write_json(out / f"{split}.json", write(questions), indent=None)
        print(f"{path}: {len(questions)} questions in {len(questions.titles)} articles")


if __name__ == "__main__":
    main()
