"""Score pairs of questions, and questions against the sentences of their passage, by three cosines.

    python experiments/paraphrases/scores.py RUN

RUN is the QA-LSTM that README.md trains. Reads ``rewordings.jsonl`` and, below ``$QA_ARCH_DATA``, SQuAD's
training part and calibration, UnAnsQ and Quoref's contrast set; dev is not used. Writes ``pairs.parquet``
and ``sentences.parquet`` in ``records/``: ids, numbers of clusters and cosines, no text. Kinds of pairs:

- ``rewording``, ``twin``, ``other``: a training question with its rewording, with its unanswerable twin
  (Zhu et al. 2019), and with the first question of its passage, or else of its article, that has another
  answer; cluster: article
- ``generated``, ``opposite``: two wordings of one relation about one subject, and a relation with its
  opposite (``qa_arch/data/synthetic.py``); cluster: relation, because only the names differ within one
- ``edit``: a question of Quoref and its edit, whose answer differs (Gardner et al. 2020); cluster: article
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from qa_arch import load_predictor
from qa_arch.data.sentences import sentence_spans
from qa_arch.data.squad import read
from qa_arch.data.synthetic import RELATIONS, SUBJECTS, Names
from qa_arch.features.vectors import read_vectors
from qa_arch.files import data_folder
from qa_arch.types import Example

HERE = Path(__file__).parent
SEED = 13
BATCH = 64
"""Texts that MiniLM reads at once."""
Floats = npt.NDArray[np.float64]
Cosine = Callable[[Sequence[tuple[str, str]]], Floats]


class QuestionPair(NamedTuple):
    kind: str
    cluster: str
    id: str
    first: str
    second: str


def plain(text: str) -> str:
    """Lower-case words and marks, separated by spaces: UnAnsQ's questions are like that, the others not."""
    return " ".join(re.findall(r"\w+|[^\w\s]", re.sub(r" n't\b", "n't", text))).lower()


def texts_of(example: Example) -> set[str]:
    return {gold.text for gold in example.answers}


# Pairs ----------------------------------------------------------------------------------------------


def of_training(
    rewordings: Mapping[str, str], twins: Mapping[str, str], questions: Sequence[Example]
) -> Iterator[QuestionPair]:
    """Three pairs of each reworded question. KeyError for an id that has no question or no twin."""
    by_id = {example.id: example for example in questions}
    for id_, rewording in rewordings.items():
        own = by_id[id_]
        article = (example for example in questions if example.title == own.title)
        others = (example for example in article if texts_of(own).isdisjoint(texts_of(example)))
        other = min(others, key=lambda example: example.context != own.context)
        seconds = {"rewording": rewording, "twin": twins[id_], "other": other.question}
        yield from (
            QuestionPair(kind, own.title, id_, own.question, second) for kind, second in seconds.items()
        )


def generated(count: int) -> Iterator[QuestionPair]:
    """``count`` pairs of two wordings, and as many pairs with the opposite as their relations have one."""
    rng = Random(SEED)
    names = Names(rng, "train")
    relations = [(type_, RELATIONS[name]) for type_ in SUBJECTS for name in type_.relations]
    several = [(type_, relation) for type_, relation in relations if len(relation.wordings) > 1]
    for number, (type_, relation) in enumerate(islice(cycle(several), count)):
        names.reset()
        subject = names.subject(type_.name)
        opposite = RELATIONS[relation.opposite] if relation.opposite else None
        cluster = min(relation.name, opposite.name if opposite else relation.name)
        wordings = dict(zip(("first", "generated"), rng.sample(relation.wordings, 2), strict=True))
        wordings |= {"opposite": rng.choice(opposite.wordings)} if opposite else {}
        text = {kind: wording.question.format(s=subject, n="") for kind, wording in wordings.items()}
        first = text.pop("first")
        yield from (QuestionPair(kind, cluster, str(number), first, second) for kind, second in text.items())


def edits(originals: Sequence[Example], edited: Sequence[Example], count: int) -> list[QuestionPair]:
    """The first ``count`` edited questions by the id of their original (a hash), one of each original."""
    by_id = {example.id: example for example in originals}
    pairs: dict[str, QuestionPair] = {}
    for example in edited:
        own = by_id.get(example.original or "")
        if own and plain(own.question) != plain(example.question) and texts_of(own) != texts_of(example):
            pairs.setdefault(own.id, QuestionPair("edit", own.title, own.id, own.question, example.question))
    return [pairs[id_] for id_ in sorted(pairs)][:count]


def all_pairs(data: Path) -> list[QuestionPair]:
    lines = (HERE / "rewordings.jsonl").read_text(encoding="utf-8").splitlines()
    rewordings = {row["id"]: row["question"] for row in map(json.loads, lines)}
    answerable, unanswerable = (
        [line.split("\t") for line in (data / f"unansq/train-{kind}-questions.txt").open(encoding="utf-8")]
        for kind in ("answerable", "unanswerable")
    )
    twins = {own[0]: twin[1] for own, twin in zip(answerable, unanswerable, strict=True)}
    original, perturbed = (
        read(data / f"quoref_contrast/{name}.json", on_error="skip").examples
        for name in ("original", "perturbed")
    )
    return [
        *of_training(rewordings, twins, read(data / "squad/train-v1.1.part.json").examples),
        *generated(len(rewordings)),
        *edits(original, perturbed, len(rewordings)),
    ]


# Cosines --------------------------------------------------------------------------------------------


def by_vectors(encode: Callable[[Sequence[str]], Floats]) -> Cosine:
    """Cosine of the vectors (T, D) that ``encode`` gives to texts; 0 where one has none."""

    def cosines(pairs: Sequence[tuple[str, str]]) -> Floats:
        row = {text: number for number, text in enumerate(dict.fromkeys(t for pair in pairs for t in pair))}
        vectors = encode(list(row))
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        first, second = ([row[pair[side]] for pair in pairs] for side in (0, 1))
        return (unit[first] * unit[second]).sum(1)

    return cosines


def glove_means(texts: Sequence[str]) -> Floats:
    """Means of the vectors of GloVe 6B 50d, over the words that have one; marks are left out."""
    split = [[word for word in text.split() if word.isalnum()] for text in texts]
    vectors = read_vectors("glove-6b-50d", words={word for text in split for word in text})
    rows = [row[row > 0] for row in map(vectors.rows, split)]
    return np.stack([vectors.matrix[row].mean(0) if len(row) else vectors.matrix[0] for row in rows])


def minilm_means(texts: Sequence[str]) -> Floats:
    """Means of MiniLM's last states over all tokens, as its authors use it for sentences."""
    import torch
    from transformers import AutoModel

    from qa_arch.models.store import open_tokenizer
    from qa_arch.nn.encoder_configs import place

    tokenizer, model = open_tokenizer("minilm"), AutoModel.from_pretrained(**place("minilm")).eval()
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    means = np.zeros((len(texts), model.config.hidden_size))
    for begin in range(0, len(order), BATCH):
        rows = order[begin : begin + BATCH]
        batch = tokenizer([texts[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        means[rows] = ((states * mask).sum(1) / mask.sum(1)).numpy()
    return means


def best_sentences(questions: Sequence[Example], cosine: Cosine) -> Floats:
    """The highest cosine of each question with a sentence of its passage."""
    sentences = [
        [plain(example.context[start:end]) for start, end in sentence_spans(example.context)]
        for example in questions
    ]
    pairs = [(plain(e.question), text) for e, own in zip(questions, sentences, strict=True) for text in own]
    return np.maximum.reduceat(cosine(pairs), np.cumsum([0, *map(len, sentences[:-1])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="folder of the QA-LSTM's run")
    qa_lstm = load_predictor(parser.parse_args().run)
    data = Path(data_folder())
    cosines: dict[str, Cosine] = {
        "glove": by_vectors(glove_means),
        "qa_lstm": lambda pairs: np.array(qa_lstm.similarities(pairs)),
        "minilm": by_vectors(minilm_means),
    }
    pairs = all_pairs(data)
    texts = [(plain(pair.first), plain(pair.second)) for pair in pairs]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(pair.cluster for pair in pairs))}
    columns: dict[str, Sequence[object]] = {
        "kind": [pair.kind for pair in pairs],
        "id": [pair.id for pair in pairs],
        "cluster": [number_of[pair.cluster] for pair in pairs],
    }
    write("pairs", columns, {name: cosine(texts) for name, cosine in cosines.items()})
    calibration = read(data / "squad/calibration-v2.0.json")
    columns = {"id": [e.id for e in calibration.examples], "article": calibration.article_numbers}
    best = {name: best_sentences(calibration.examples, cosine) for name, cosine in cosines.items()}
    write("sentences", columns, best)


def write(name: str, columns: Mapping[str, Sequence[object]], scores: Mapping[str, Floats]) -> None:
    rounded = {scorer: values.round(5).astype(np.float32) for scorer, values in scores.items()}
    pq.write_table(pa.table({**columns, **rounded}), HERE / f"records/{name}.parquet")
    print(f"{name}: {len(columns['id'])} rows")


if __name__ == "__main__":
    main()
