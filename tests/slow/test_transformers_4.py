"""The question-answering pipeline against that of transformers 4.57.6, from the peer environment."""

import json
import random
import subprocess

import pytest
from checkpoints import make_checkpoint

from benchmarks.peer_env import TRANSFORMERS_4
from benchmarks.targets import NotMeasuredError
from qa_arch import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SENTENCE = (
    "Mira paints red boats in the harbour of Velmora and Old Tarn keeps nine bees there since 1,204 o'clock"
    ' Zürich naïve co-op (rope) U.S. 50% snow! Thirty-two mills, ferry; "quoted" a an the İstanbul 東京 £5'
)
QUESTIONS = ("Who paints?", "What does Old Tarn keep in the harbour since 1,204?", "Why", "  where is  it ")
FAMILIES = ("bert", "roberta", "albert", "deberta-v2")
OLD = """
import json, pathlib, sys, warnings
import transformers
assert transformers.__version__.startswith("4."), transformers.__version__
warnings.simplefilter("ignore")
folder, answers = pathlib.Path(sys.argv[1]), []
for family, pairs, options in json.loads((folder / "cases.json").read_text("utf-8")):
    qa = transformers.pipeline("question-answering", model=str(folder / family), device=-1)
    answers.append(qa(pairs, **options))
(folder / "old.json").write_text(json.dumps(answers), "utf-8")
"""


def passage(rng: random.Random, max_words: int) -> str:
    """Words of the vocabulary and some unknown ones, separated by white space of all kinds."""
    parts = []
    for _ in range(rng.randint(1, max_words)):
        word = rng.choice(SENTENCE.split(" "))
        parts.append(rng.choice((word, word.upper(), word[::-1])) if rng.random() < 0.1 else word)
        parts.append(rng.choice((" ", " ", " ", "  ", "\n", "\t", "\u202f", "\xa0")))
    return "".join(parts[: -1 if rng.random() < 0.8 else None])


def case(rng: random.Random, family: str) -> tuple[str, list[dict[str, str]], dict[str, object]]:
    options = {
        "doc_stride": rng.choice((0, 5, 30)),
        "top_k": rng.choice((1, 1, 3, 40)),
        "max_answer_len": rng.choice((1, 5, 15)),
        "handle_impossible_answer": rng.random() < 0.5,
        "align_to_words": rng.random() < 0.6,
    }
    chosen = dict(rng.sample(sorted(options.items()), rng.randint(0, len(options))))
    pairs = [
        {"question": rng.choice(QUESTIONS), "context": passage(rng, rng.choice((2, 20, 150)))}
        for _ in range(rng.choice((1, 1, 1, 3)))
    ]
    return family, pairs, chosen | {"max_seq_len": rng.choice((96, 128))}


def flat(answers: object) -> list[dict]:
    """Answers of several questions in a list, without those of probability 0, which ``top_k`` pads with."""
    if isinstance(answers, dict):
        return [answers] if answers["score"] > 1e-12 else []
    return [answer for item in answers for answer in flat(item)]


def test_random_calls_give_the_answers_of_transformers_4(tmp_path):
    try:
        interpreter = TRANSFORMERS_4.python()
    except NotMeasuredError as error:
        pytest.skip(str(error))
    for family in FAMILIES:
        texts = [f"{SENTENCE} " * 3, *QUESTIONS]
        make_checkpoint(family, tmp_path / family, texts, max_position_embeddings=162)
    rng = random.Random(457)
    cases = [case(rng, family) for family in FAMILIES for _ in range(50)]
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    completed = subprocess.run([interpreter, "-c", OLD, tmp_path], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr[-4000:]
    for (family, pairs, options), old in zip(
        cases, json.loads((tmp_path / "old.json").read_text("utf-8")), strict=True
    ):
        new = pipeline("question-answering", tmp_path / family, device=-1)(pairs, **options)
        assert [{**a, "score": pytest.approx(a["score"], rel=1e-3)} for a in flat(old)] == flat(new)
