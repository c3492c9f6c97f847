"""A small world: question sets, and the folders of six runs on them, invented without training.

``build(folder)`` always writes the same: the sets, answers of a system without weights, two systems of two
seeds with rows of dev and calibration, an adopted system, a run that failed, a suite, and plans to register;
outside ``runs``, a run of each of the two systems on another dev set.
"""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

from scripts import load

from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.files import write_atomic, write_json
from qa_arch.metrics.abstention import fit_threshold
from qa_arch.qa.files import operating_points, question_rows
from qa_arch.records import (
    CALIBRATION,
    DEV,
    BatchSizes,
    Confidence,
    Device,
    Epoch,
    Parameters,
    RunRecord,
    Seconds,
    SplitFacts,
    Threshold,
    questions_folder,
    write_questions,
    write_record,
)
from qa_arch.types import Candidate, Prediction, QuestionSet

SETS = {"train": 3, CALIBRATION: 5, DEV: 6}
"""Split -> number of generated articles."""
LEVELS = load("synthetic/level3.py").LEVELS
SYSTEMS = {"bert": 0.6, "proposed": 0.85}
"""System -> share of its questions that it gets right."""
SUITE = """sets:
  dev: {data: dev.json, unit: passage, published: {people: 89.5}}
  more: {data: more.json}
"""
FILES = "data=files data.train=train.json data.calibration=calibration.json data.dev=dev.json"
ARM = f"model=bert debug=fast {FILES} data.open_dev=false name=planned"
PLANS = {
    "plan": f"arms:\n  short: {ARM}\n  long: {ARM} trainer.epochs=2\nseeds: [1, 2]\n",
    "changed": f"arms: {{short: {ARM}}}\nseeds: [1]\n",
    "twice": f"arms: {{short: {ARM}, same: {ARM}}}\nseeds: [1]\n",
    "open": f"arms: {{short: {ARM} data.open_dev=true}}\nseeds: [1]\n",
    "renamed": f"arms: {{short: {ARM} name=other}}\nseeds: [1]\n",
    "mistyped": f"arms: {{short: {ARM} optim.lrr=1}}\nseeds: [1]\n",
}


def build(folder: Path) -> Path:
    """Write the world into ``folder`` and return it."""
    sets = {split: generate(size, 5, {1: 0.5, 3: 0.5}, split, LEVELS) for split, size in SETS.items()}
    for split, questions in sets.items():
        write_json(folder / f"{split}.json", write(questions))
    faulty = json.loads((folder / "dev.json").read_text())
    faulty["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "no such text", "answer_start": 0}]
    write_json(folder / "faulty.json", faulty)
    for split in (DEV, CALIBRATION):
        answers = invented_answers(sets[split], Random(f"gpt {split}"), 0.7)
        write_json(folder / f"{split}-answers.json", {a.id: a.text(0.5) for a in answers})
        write_json(folder / f"{split}-spans.json", {a.id: a.best.text for a in answers})
        write_json(folder / f"{split}-odds.json", {a.id: a.null_odds for a in answers})
    write_atomic(folder / "suite.yaml", SUITE)
    for name, plan in PLANS.items():
        write_atomic(folder / f"experiments/planned/{name}.yaml", plan)
    more = generate(4, 6, 2, "dev")
    write_json(folder / "more.json", write(more))
    for model, right in SYSTEMS.items():
        for seed in (1, 2):
            write_run(folder / f"runs/trial/{model}-s{seed}", model, seed, right, sets)
        write_run(folder / f"other/{model}-s1", model, 1, right, {**sets, DEV: more})
    failed = replace(invented_record("bert", 3, "trial"), status="failed", dirty=True)
    write_record(folder / "runs/trial/bert-s3", replace(failed, error="ValueError: NaN loss"))
    adopted = replace(invented_record("gpt-x", 0, "adopted"), data={DEV: SplitFacts.of(sets[DEV])})
    answers = invented_answers(sets[DEV], Random(f"gpt {DEV}"), 0.7)
    scores = {DEV: {"given": operating_points(sets[DEV], answers, 0.5)["calibrated"]}}
    run = folder / "runs/adopted/gpt-x-s0"
    write_questions(run, question_rows(sets[DEV], answers, 0.5))
    config = {"name": "adopted", "seed": 0, "predictions": "dev-answers.json"}
    write_record(run, replace(adopted, config=config, scores=scores))
    return folder


def invented_answers(questions: QuestionSet, draw: Random, right: float) -> list[Prediction]:
    """An answer to each question, right with probability ``right``; else a wrong span or a wrong null."""
    answers = []
    for example in questions.examples:
        start, end, is_right = 0, 9, draw.random() < right
        if example.answers and (is_right or draw.random() < 0.5):
            start, end = example.answers[0].start, example.answers[0].end
            if draw.random() < 0.2:  # one word too many, if there is one
                end = max(end, example.context.find(" ", end + 2))
        odds = round(0.5 + (-1 if example.answerable == is_right else 1) * draw.expovariate(1), 3)
        span = Candidate(example.context[start:end], start, end, 1.0, round(draw.random(), 3))
        answers.append(Prediction(example.id, span, odds, windows=1))
    return answers


def invented_record(model: str, seed: int, name: str) -> RunRecord:
    """The record of a run without data, costs and scores."""
    trainer = {"batch_size": 8, "epochs": 2, "precision": "fp32"}
    sections = {"optim": {"lr": 3e-4 if model == "bert" else 1e-3}, "encoder": {"name": "small"}}
    return RunRecord(
        status="ok",
        name=name,
        model=model,
        seed=seed,
        config={"name": name, "seed": seed, "model": {"name": model}, "trainer": trainer, **sections},
        settings_hash=f"{seed}{model}".encode().hex().ljust(64, "0"),
        run_hash=f"{model}{seed}".encode().hex().ljust(64, "0"),
        commit="c0ffee" * 6 + "beef",
        dirty=False,
        code="0" * 64,
        created="2026-01-02T03:04:05+00:00",
        versions={"python": "3.11.9", "qa-arch": "0.2.0", "torch": "2.8.0"},
        device=Device(kind="cpu", name="a processor", cores=2, threads=2, memory_gb=8.0),
    )


def write_run(folder: Path, model: str, seed: int, right: float, sets: dict[str, QuestionSet]) -> None:
    """Write the run folder of a finished run: its threshold fitted on calibration, rows, scores, record."""
    answers, scores = {}, {}
    for split in (CALIBRATION, DEV):
        answers[split] = invented_answers(sets[split], Random(f"{model} {seed} {split}"), right)
    fitted_on = question_rows(sets[CALIBRATION], answers[CALIBRATION], 0.0)
    threshold = fit_threshold(*(fitted_on[name] for name in ("null_odds", "span_f1", "answerable")))
    for split, given in answers.items():
        rows = question_rows(sets[split], given, threshold)
        draw = Random(f"confidence {model} {seed} {split}")
        rows["confidence"] = [round(draw.random(), 3) for _ in given]
        write_questions(questions_folder(folder, split), rows)
        scores[split] = operating_points(sets[split], given, threshold)
    always_null = operating_points(sets[DEV], answers[DEV], -1e9)["calibrated"]
    curve = {"train_loss": (2.0, 1.0), "calibration_loss": (1.5, 1.2), "calibration_f1": (60.0, 70.0)}
    epochs = [{key: values[epoch] for key, values in curve.items()} | {"epoch": epoch} for epoch in (0, 1)]
    facts = {name: replace(SplitFacts.of(s), titles=tuple(sorted(s.titles))) for name, s in sets.items()}
    blocks = {"encoder": 1_200_000, "head": 34_567}
    record = replace(
        invented_record(model, seed, "trial"),
        data=facts,
        batch=BatchSizes(micro=8, accumulate=1, devices=1, global_size=8),
        parameters=Parameters(total=1_234_567, trainable=1_234_567, blocks=blocks),
        seconds=Seconds(prepare=1.5, fit=61.25, fit_with_validation=70.5, predict=3.5),
        examples_per_second=123.4,
        peak_memory_mb=512.0,
        epochs=tuple(map(Epoch.from_flat, epochs)),
        best_epoch=1,
        threshold=Threshold(value=threshold, fitted_on=CALIBRATION),
        confidence=Confidence(method="temperature", value=1.5, fitted_on=CALIBRATION),
        references={DEV: {"always-no-answer": replace(always_null, threshold=None)}},
        scores=scores,
    )
    write_record(folder, record)
