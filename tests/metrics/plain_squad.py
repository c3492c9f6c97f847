"""The SQuAD evaluations in their plainest form, straight from the definition: slow and independent.

Imports nothing of the package and works on raw SQuAD articles as the official scripts do. Each function
takes everything it needs and normalises every text each time it is compared.
"""

import re
import string
from collections import Counter


def normal(text):
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact(gold, text):
    return int(normal(gold) == normal(text))


def f1(gold, text, both_empty):
    a = normal(gold).split()
    b = normal(text).split()
    same = sum((Counter(a) & Counter(b)).values())
    if not a and not b:
        return both_empty
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(b), 1.0 * same / len(a)
    return (2 * precision * recall) / (precision + recall)


def f1_11(gold, text):
    return f1(gold, text, both_empty=0)


def f1_20(gold, text):
    return f1(gold, text, both_empty=1)


def all_questions(articles):
    return [qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]


def evaluate_11(articles, predictions):
    questions = all_questions(articles)
    exact_sum = f1_sum = 0
    for qa in questions:
        if qa["id"] in predictions:
            text = predictions[qa["id"]]
            exact_sum += max(exact(answer["text"], text) for answer in qa["answers"])
            f1_sum += max(f1_11(answer["text"], text) for answer in qa["answers"])
    return {"exact_match": 100.0 * exact_sum / len(questions), "f1": 100.0 * f1_sum / len(questions)}


def raw_20(articles, predictions):
    """id -> (exact, f1) of every question that has a prediction."""
    raw = {}
    for qa in all_questions(articles):
        golds = [answer["text"] for answer in qa["answers"] if normal(answer["text"])] or [""]
        if qa["id"] in predictions:
            text = predictions[qa["id"]]
            raw[qa["id"]] = (max(exact(g, text) for g in golds), max(f1_20(g, text) for g in golds))
    return raw


def best_at(raw, column, predictions, na, has):
    """Best score and its threshold: start from abstaining on all, then answer one question at a time."""
    current = sum(1 for id_ in raw if not has[id_])
    best, at = current, 0.0
    for id_ in sorted(na, key=lambda k: na[k]):
        if has[id_]:
            current += raw[id_][column]
        elif predictions[id_]:
            current += -1
        if current > best:
            best, at = current, na[id_]
    return 100.0 * best / len(raw), at


def area(value, na, has):
    """Average precision of ``value(id)`` over the thresholds between different probabilities."""
    order = sorted(na, key=lambda k: na[k])
    positives = sum(1 for id_ in order if has[id_])
    hits, before, total = 0.0, 0.0, 0.0
    for i, id_ in enumerate(order):
        hits += value(id_) if has[id_] else 0
        if i + 1 == len(order) or na[order[i + 1]] != na[id_]:
            recall = hits / float(positives)
            total += hits / float(i + 1) * (recall - before)
            before = recall
    return 100.0 * total


def evaluate_20(articles, predictions, na=None, threshold=1.0):
    has = {qa["id"]: bool(qa["answers"]) for qa in all_questions(articles)}
    raw = raw_20(articles, predictions)
    final = {}
    for id_, pair in raw.items():
        abstained = na is not None and na[id_] > threshold
        final[id_] = (float(not has[id_]),) * 2 if abstained else pair
    groups = {"": list(final)}
    groups["HasAns_"] = [id_ for id_ in final if has[id_]]
    groups["NoAns_"] = [id_ for id_ in final if not has[id_]]
    result = {}
    for prefix, ids in groups.items():
        if ids:
            result[prefix + "exact"] = 100.0 * sum(final[i][0] for i in ids) / len(ids)
            result[prefix + "f1"] = 100.0 * sum(final[i][1] for i in ids) / len(ids)
            result[prefix + "total"] = len(ids)
    if na is not None:
        result["best_exact"], result["best_exact_thresh"] = best_at(raw, 0, predictions, na, has)
        result["best_f1"], result["best_f1_thresh"] = best_at(raw, 1, predictions, na, has)
        if groups["HasAns_"]:
            result["pr_exact_ap"] = area(lambda i: raw[i][0], na, has)
            result["pr_f1_ap"] = area(lambda i: raw[i][1], na, has)
            result["pr_oracle_ap"] = area(lambda i: 1.0, na, has)
    return result
