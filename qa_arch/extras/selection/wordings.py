"""Synthetic questions with their class (Li & Roth 2002): every class in four wordings.

The fourth wording of a class is not used for training, and no name occurs in two splits, so that
calibration and dev measure generalisation.
"""

from __future__ import annotations

import re
from random import Random

from qa_arch.data.synthetic.names import SPLITS, Names, Split
from qa_arch.errors import ConfigError

SIZES = {"train": 2000, "calibration": 300, "dev": 300}
"""Questions."""
SEED = 20
_THINGS = """
bridge lamp clock wheel tower lantern kettle mirror basket violin ladder anchor compass saddle needle bell
"""
_PURSUITS = "weaving rowing archery pottery baking fencing sailing carving dyeing brewing chess skating"
_BEASTS = "otter heron badger falcon salmon lynx beetle tortoise weasel raven mole viper"
_WORDINGS = """
ABBR:abb What is the abbreviation for the {clan} {guild}? | How is the {guild} Society abbreviated? |
    What letters are short for the {place} Assembly? |
    Which abbreviation do people use for the {guild} Office?
ABBR:exp What does the abbreviation {code} stand for? | What is the full form of {code}? |
    {code} is short for what? | What do the letters {code} mean?
DESC:def What is {pursuit}? | What is a {thing}? | What does {pursuit} mean? |
    What is meant by a {thing}?
DESC:desc What is the {thing} of {place} like? | What did {person} say about {place}? |
    What happened at {place} after the flood? | What does the {beast} of {place} do at night?
DESC:manner How do you repair a {thing}? | How did {person} cross the {river}? |
    How can I learn {pursuit}? | How is a {thing} made?
DESC:reason Why did {person} leave {place}? | Why is the {river} so dark? |
    What caused the fall of {place}? | What is the reason that the {beast} sleeps by day?
ENTY:animal What animal lives under the {thing} of {place}? | What kind of animal is a {beast}? |
    Which beast did {person} keep? | What species of bird nests in {place}?
ENTY:body What part of the body did {person} hurt? | Which organ cleans the blood? |
    What bone lies in the foot of a {beast}? | Which part of the {beast} holds its eyes?
ENTY:color What color is the {thing} of {place}? | What colors are on the flag of {province}? |
    Which color did {person} paint the {thing}? | In what color does the {river} shine?
ENTY:cremat What book did {person} write? | What is the title of the song about {place}? |
    Which film did {person} direct? | What poem tells of the {river}?
ENTY:currency What currency is used in {province}? | What type of currency did {place} have? |
    Which money do people pay with in {province}? | What is the currency of {province}?
ENTY:dismed What disease did {person} die of? | What illness is carried by the {beast}? |
    Which medicine helps against fever? | What sickness spread in {place}?
ENTY:event What battle was fought at {place}? | What war did the {clan} lose? |
    Which festival is held in {place}? | What event ended the rule of {person}?
ENTY:food What food does a {beast} eat? | What dish is {place} known for? |
    Which fruit grows in {province}? | What do people of {place} eat at noon?
ENTY:instru What instrument did {person} play? | Which musical instrument has two strings? |
    What instrument is heard in the songs of {province}? |
    What kind of musical instrument came from {place}?
ENTY:lang What language is spoken in {province}? | What languages did {person} speak? |
    In which language was the book of {place} written? | What is the official language of {province}?
ENTY:letter What letter begins the name {person}? | Which letter of the alphabet comes last? |
    What letter stands on the {thing} of {place}? | What is the first letter of {place}?
ENTY:other What did {person} carry to {place}? | What is kept in the tower of {place}? |
    What object lies in the {river}? | What does the {clan} Clan worship?
ENTY:plant What plant grows beside the {river}? | What kind of tree stands in {place}? |
    Which flower did {person} grow? | What plants does the {beast} hide in?
ENTY:product What product does the {guild} Company sell? | What brand of {thing} did {person} use? |
    What product is made in {place}? | Which goods does the {guild} Company make?
ENTY:religion What religion does {person} follow? | What is the main religion of {province}? |
    Which faith did {place} take up? | What religion forbids the {beast}?
ENTY:sport What sport is played in {place}? | What game did {person} invent? |
    Which sport uses a {thing}? | What sport is {person} famous for?
ENTY:substance What is the {thing} of {place} made of? | What metal is found in {province}? |
    Which substance turns water red? | What material did {person} build with?
ENTY:symbol What is the symbol of {province}? | What sign marks the {guild} Guild? |
    Which symbol stands on the shield of {person}? | What symbol do the {clan} wear?
ENTY:techmeth What method is used to mend a {thing}? | What technique did {person} use to paint? |
    Which process turns milk into cheese? | What method did {place} use to count its people?
ENTY:termeq What is another name for a {thing}? | What do you call a young {beast}? |
    What is the word for a maker of a {thing}? | What is the term for one who keeps a {beast}?
ENTY:veh What vehicle did {person} drive? | What was the name of the ship of {person}? |
    Which boat crossed the {river}? | What kind of vehicle reached {place} first?
ENTY:word What word rhymes with {thing}? | What word means a small {thing}? |
    Which word is spelled with two names of a {beast}? | What word did {person} shout most often?
HUM:desc Who was {person}? | Who is {person} of {place}? | Who were the {clan}? |
    Who exactly is {person}?
HUM:gr What company makes the {thing}? | Which team won the cup of {place}? |
    What tribe lived beside the {river}? | What organization did {person} lead?
HUM:ind Who wrote the {book}? | Who invented the {thing}? | What man ruled {province}? |
    Which woman first crossed the {river}?
HUM:title What title did {person} hold? | What was the rank of {person}? |
    What is the profession of {person}? | What office did {person} have in {place}?
LOC:city What city is the capital of {province}? | What town did {person} come from? |
    Which city lies on the {river}? | In what city did the {clan} settle?
LOC:country What country did {person} rule? | What country is {place} in? |
    Which nation fought the {clan}? | What is the home country of the {beast}?
LOC:mount What mountain rises above {place}? | What is the highest peak of {province}? |
    Which mountain range lies behind the {river}? | What volcano stands near {place}?
LOC:other Where is {place}? | Where was {person} born? | What river runs through {place}? |
    Where do you find the {beast}?
LOC:state What state is {place} in? | What province did {person} govern? |
    Which state has the most mills? | In which state does the {river} begin?
NUM:code What is the zip code of {place}? | What is the telephone number of the {guild} Guild? |
    What area code does {place} have? | What is the number of the bus to {place}?
NUM:count How many people live in {place}? | How many books did {person} write? |
    What is the population of {province}? | How many legs has a {beast}?
NUM:date When was {person} born? | What year did {place} burn? |
    On what day did {person} reach the {river}? | In which month does the {beast} wake?
NUM:dist How far is it from {place} to the {river}? | How tall is the tower of {place}? |
    How long is the {river}? | How high does a {beast} jump?
NUM:money How much does a {thing} cost? | What is the price of a {thing} in {place}? |
    How much did {person} earn? | What salary did {person} get?
NUM:ord What chapter of the {book} tells of {place}? | Where does {place} rank among the towns? |
    What place did {person} take in the race? | Which number in line was {person} for the throne?
NUM:other What is the best score in {pursuit}? | What is the number on the {thing} of {person}? |
    What were the odds of {person}? | What is the frequency of the bell of {place}?
NUM:perc What percentage of {place} can read? | What percent of the {river} is salt? |
    What fraction of a {beast} is water? | What share of {province} is forest?
NUM:period How long did {person} rule? | How old is {person}? |
    How many years did the war of {place} last? | For how long does a {beast} sleep?
NUM:speed How fast can a {beast} run? | What is the speed of the {river}? | How fast did {person} row? |
    At what speed does a {thing} fall?
NUM:temp What is the temperature of the {river}? | How hot is {place} in summer? |
    How cold does {province} get? | At what temperature does a {thing} melt?
NUM:volsize How big is {province}? | What is the area of {place}? | How large is a {beast}? |
    What is the size of the {thing} of {place}?
NUM:weight How much does a {beast} weigh? | What is the weight of a {thing}? |
    How heavy is the bell of {place}? | How many pounds does {person} weigh?
"""
WORDINGS = {
    label: tuple(wording.strip() for wording in wordings.split("|"))
    for label, wordings in (block.split(" ", 1) for block in re.split(r"\n(?=\S)", _WORDINGS.strip()))
}
"""The wordings of each class."""


def named(which: str) -> list[tuple[str, str]]:
    """The embedded questions of a split, as settings name it; ConfigError for another."""
    if which not in SPLITS:
        raise ConfigError(f"types:synthetic:{which} is unknown: write train, calibration or dev")
    return questions(SIZES[which], SEED, which)


def questions(count: int, seed: int, split: Split) -> list[tuple[str, str]]:
    """(class, question) of ``count`` questions, the classes in turn; the same arguments, the same questions.

    Raises ConfigError for a count below 1.
    """
    if count < 1:
        raise ConfigError(f"count={count}: at least 1 is needed")
    rng = Random(f"{seed}/types/{split}")
    names, labels = Names(rng, split), list(WORDINGS)
    generated = []
    for number in range(count):
        label = labels[number % len(labels)]
        wordings = WORDINGS[label][:-1] if split == "train" else WORDINGS[label]
        generated.append((label, _filled(rng.choice(wordings), rng, names)))
    rng.shuffle(generated)
    return generated


def _filled(wording: str, rng: Random, names: Names) -> str:
    names.fresh()
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
