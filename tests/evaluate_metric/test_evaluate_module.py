"""The metric as a module of ``evaluate``: it loads without a network and agrees with our scorer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qa_arch.evaluate_metric

FILE = Path(qa_arch.evaluate_metric.__file__).with_name("squad.py")

SCRIPT = """
import json, socket, sys

def refuse(*args, **kwargs):
    raise OSError("the network was asked for")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import evaluate
from qa_arch.errors import DataError

metrics = {name: evaluate.load(sys.argv[1], name, keep_in_memory=True) for name in ("2.0-texts", "1.1")}
metrics["2.0"] = metric = evaluate.load(sys.argv[1], keep_in_memory=True)
texts = {"q1": "mill", "q2": "Ferry", "q3": "", "q4": "lamp"}
golds = {"q4": [], "q3": [], "q2": ["the ferry"], "q1": ["red mill", "mill stone"]}
null = {"q1": 0.1, "q2": 0.2, "q3": 0.9, "q4": 0.3}
references = [{"id": k, "answers": {"text": v, "answer_start": [0] * len(v)}} for k, v in golds.items()]
plain = [{"id": k, "prediction_text": v} for k, v in texts.items()]
full = [row | {"no_answer_probability": null[row["id"]]} for row in plain]
half = [r for r in references if r["answers"]["text"]]

def attempt(name="2.0", **arguments):
    try:
        return metrics[name].compute(**arguments)
    except DataError as error:
        return str(error)

metric.add_batch(predictions=full[:2], references=references[:2])
metric.add_batch(predictions=full[2:], references=references[2:])
results = {
    "added": metric.compute(),
    "plain": attempt("2.0-texts", predictions=plain, references=references),
    "full": attempt(predictions=full, references=references),
    "threshold": attempt(predictions=full, references=references, no_answer_threshold=0.25),
    "v1": attempt("1.1", predictions=plain[:2], references=half),
    "no_probability": attempt("2.0-texts", predictions=plain, references=references, no_answer_threshold=0),
    "duplicate": attempt(predictions=full[:1] * 4, references=references),
    "unpaired": attempt(predictions=full[:2], references=references[:2]),
}
from qa_arch.evaluate_metric import load
try:
    load("3")
except DataError as error:
    results["unknown"] = str(error)
results["direct"] = load().compute(predictions=full, references=references)
print("RESULT" + json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One process for all: importing ``evaluate`` takes seconds."""
    home = tmp_path_factory.mktemp("home")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE", "XDG_"))}
    environment |= {"HF_HOME": str(home / "hf"), "HOME": str(home)}
    command = [sys.executable, "-c", SCRIPT, str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.partition("RESULT")[2])


def test_it_scores_as_the_official_script(results):
    # F1: q1 "mill" against "red mill" (p 1, r 1/2) 2/3; q2, q3 1; q4 0. Exact: q2, q3.
    assert results["plain"]["f1"] == pytest.approx(100 * (2 / 3 + 2) / 4)
    assert results["plain"]["exact"] == 50.0
    assert (results["plain"]["HasAns_total"], results["plain"]["NoAns_total"]) == (2, 2)
    assert "best_f1" not in results["plain"]
    assert results["plain"]["metric_version"]


def test_probabilities_decide_only_with_a_threshold(results):
    assert results["full"]["exact"] == 50.0
    # Ranks q1 .1 (F1 2/3), q2 .2 (1), q4 .3 (-1), q3: from 2, 2 2/3, 3 2/3 at 0.2
    assert results["full"]["best_f1"] == pytest.approx(100 * (11 / 3) / 4)
    assert results["full"]["best_f1_thresh"] == 0.2
    # Above 0.25: q3 and q4, both unanswerable.
    assert (results["threshold"]["exact"], results["threshold"]["NoAns_exact"]) == (75.0, 100.0)


def test_batches_and_direct_loading_agree(results):
    assert results["added"] == results["full"] == results["direct"]


def test_protocol_11(results):
    assert results["v1"]["exact_match"] == 50.0
    assert results["v1"]["f1"] == pytest.approx(100 * (2 / 3 + 1) / 2)


def test_errors(results):
    assert "no_answer_threshold needs the probabilities" in results["no_probability"]
    assert "configuration is '3'" in results["unknown"]
    assert "predictions: the id q1 occurs twice" in results["duplicate"]
    assert "4 ids are not in both predictions and references" in results["unpaired"]


def test_each_import_stands_on_its_own_line():
    imports = re.findall(r"^(?:import|from)\b.*$", FILE.read_text("utf-8"), flags=re.MULTILINE)
    assert len(imports) > 5
    assert not [line for line in imports if "," in line or "(" in line]
