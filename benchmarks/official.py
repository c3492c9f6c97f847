"""The SQuAD 2.0 evaluation, structured like the official script: gold texts are normalised at each use.

Also a script: ``python benchmarks/official.py DATA PREDICTIONS`` prints the scores as JSON.
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections import Counter
from pathlib import Path
from typing import Any

Articles = list[dict[str, Any]]


def normalise(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces."""
    punctuation = set(string.punctuation)
    stripped = "".join(c for c in text.lower() if c not in punctuation)
    articles = re.compile(r"\b(a|an|the)\b", re.UNICODE)
    return " ".join(re.sub(articles, " ", stripped).split())


def exact(gold: str, text: str) -> int:
    return int(normalise(gold) == normalise(text))


def f1(gold: str, text: str) -> float:
    """F1 of the two bags of words; 1 if both are empty."""
    gold_tokens = normalise(gold).split() if gold else []
    tokens = normalise(text).split() if text else []
    if not gold_tokens or not tokens:
        return int(gold_tokens == tokens)
    overlap = sum((Counter(gold_tokens) & Counter(tokens)).values())
    if overlap == 0:
        return 0
    precision, recall = 1.0 * overlap / len(tokens), 1.0 * overlap / len(gold_tokens)
    return (2 * precision * recall) / (precision + recall)


def evaluate(articles: Articles, predictions: dict[str, str]) -> dict[str, Any]:
    """Exact match and F1 in percent, over all, answerable and unanswerable questions."""
    answerable: dict[str, bool] = {}
    exacts: dict[str, float] = {}
    overlaps: dict[str, float] = {}
    for article in articles:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                id_ = qa["id"]
                answerable[id_] = bool(qa["answers"])
                golds = [a["text"] for a in qa["answers"] if normalise(a["text"])] or [""]
                exacts[id_] = max(exact(gold, predictions[id_]) for gold in golds)
                overlaps[id_] = max(f1(gold, predictions[id_]) for gold in golds)
    groups = {"": list(answerable)}
    groups["HasAns_"] = [id_ for id_, has_answer in answerable.items() if has_answer]
    groups["NoAns_"] = [id_ for id_, has_answer in answerable.items() if not has_answer]
    scores: dict[str, Any] = {}
    for prefix, ids in groups.items():
        if ids:
            scores[f"{prefix}exact"] = 100.0 * sum(exacts[id_] for id_ in ids) / len(ids)
            scores[f"{prefix}f1"] = 100.0 * sum(overlaps[id_] for id_ in ids) / len(ids)
            scores[f"{prefix}total"] = len(ids)
    return scores


def main() -> None:
    import numpy  # noqa: F401  imported by the published script

    articles, predictions = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    print(json.dumps(evaluate(articles["data"], predictions), indent=2))


if __name__ == "__main__":
    main()
