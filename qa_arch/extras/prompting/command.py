"""``qa-arch prompt``: answer a question set with a language model and adopt the answers as a run.

The folder contains ``prompt.json`` with the exact prompt and, per set, ``NAME-HASH.jsonl`` with one answer
per line, appended batch by batch, and the run ``NAME-HASH``. Repeating an interrupted command resumes it, and
commands for other sets share the calibration answers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.cli.runs import add_questions, system_folder
from qa_arch.config.files import file_stem, read_json, write_atomic, write_json
from qa_arch.data.answer_files import read_answers
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.prompting.prompts import TEMPLATE, as_span, draw_shots, messages
from qa_arch.records import (
    CALIBRATION,
    DEV,
    TRAIN,
    Parameters,
    RunRecord,
    Seconds,
    SplitFacts,
    changing,
    write_record,
)
from qa_arch.system import lock
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Example, QuestionSet

if TYPE_CHECKING:
    from qa_arch.extras.prompting.local import LocalModel
    from qa_arch.extras.prompting.server import ServerModel

    Model = LocalModel | ServerModel

log = logging.getLogger(__name__)
LOG_INTERVAL = 60
"""Seconds between progress lines in the log."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qa-arch prompt --model models/smollm2.gguf --data dev-v2.0.json"
        " --calibration calibration-v2.0.json --name SmolLM2"
    )
    add: Any = parser.add_argument
    source = {"nargs": "+", "metavar": "SOURCE"}
    models = "a folder, OWNER/NAME or GGUF file for transformers; with --url, the model's name on the server"
    add("--model", required=True, metavar="M", help=models)
    add_questions(parser)
    add("--calibration", **source, help="question set for fitting null threshold and confidence")
    add("--name", required=True, metavar="X", help="name of the system in tables")
    folder = "folder for prompt, answers and one run per set (default: runs/prompted/NAME-sSEED)"
    add("--folder", metavar="DIR", help=folder)
    reading = "generate: greedy decoding (default); spans: most likely span of the passage"
    add("--reading", choices=("generate", "spans"), default="generate", help=reading)
    add("--shots", type=int, default=0, metavar="K", help="few-shot examples in the prompt (default: 0)")
    add("--train", **source, help="question set to draw the shots from")
    add("--seed", type=int, default=0, metavar="S", help="seed for drawing the shots (default: 0)")
    add("--batch-size", type=int, default=8, metavar="N", help="prompts or requests at a time (default: 8)")
    add("--device", help="cpu, cuda, cuda:1 (default: a GPU if available)")
    url = "OpenAI-compatible server (http://localhost:8000/v1); the key is read from QA_ARCH_API_KEY"
    add("--url", metavar="U", help=url)
    price = "price per 1,000 tokens, or per 1,000 prompt tokens and per 1,000 answer tokens"
    add("--price", nargs="+", type=float, metavar="P", help=price)


def run(args: argparse.Namespace) -> int:
    """Answer the remaining questions, adopt the answers, and print scores and cost."""
    default = system_folder("prompted", args.name, args.seed)
    _check_options(args)
    folder = Path(args.folder or default)
    sets = [open_passages(source, use="scoring") for source in (args.data, args.calibration) if source]
    train = open_passages(args.train, use="scoring") if args.shots else None
    shots = draw_shots(train, args.shots, args.seed, sets) if train else []
    with gc_disabled():
        from qa_arch.adopt import adopt, check_articles

        if args.calibration:
            check_articles(*sets)
        model = _load(args)
    prompt = _prompt(args, model, train, shots)
    with lock.hold(folder, "folder of prompted answers"):
        _check_prompt(folder / "prompt.json", prompt)
        files = [_answer_set(model, questions, shots, folder, args.batch_size) for questions in sets]
        if empty := getattr(model, "empty", ()):
            reasons = ", ".join(sorted({*empty}))
            log.warning("%d empty replies, counted as no answer (finish reason: %s)", len(empty), reasons)
        answers = [read_answers(file, questions) for file, questions in zip(files, sets, strict=True)]
        calibration = None
        if any(answer_set.null_odds is None for answer_set in answers):
            log.warning("no null odds, so no threshold is fitted: answers are scored as they are")
        elif args.calibration:
            calibration = replace(sets[1], name=CALIBRATION), answers[1]
        else:  # abstain where "unanswerable" is more likely than the answer
            odds = answers[0].null_odds or {}
            texts = {id_: "" if odds[id_] > 0 else text for id_, text in answers[0].texts.items()}
            answers[0] = replace(answers[0], texts=texts)
        target = folder / files[0].stem
        about = {"name": args.name, "seed": args.seed, "file": files[0].name}
        record = adopt(sets[0], answers[0], target, **about, calibration=calibration)
        cost = _cost(files[0], args.price)
        with changing(target):
            write_record(target, _with_prompt(record, prompt, model, train, shots, cost))
    point = record.compared_point(DEV)
    assert point is not None
    fitted = f", null threshold {record.null_threshold:.4g}" if calibration else ""
    print(f"EM {point.exact:.2f} F1 {point.f1:.2f}: {target} ({len(sets[0]):,} questions{fitted})")
    costs = [f"{value:,.6g} {key.replace('_', ' ')}" for key, value in cost.items()]
    uncounted = [] if "prompt_tokens" in cost else ["tokens unknown (the server reports no token counts)"]
    print("per 1,000 answers: " + ", ".join([*costs, *uncounted]))
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Raise ConfigError for invalid or incompatible options."""
    if args.shots < 0 or args.batch_size < 1:
        raise ConfigError("--shots must be >= 0 and --batch-size >= 1")
    if bool(args.shots) != bool(args.train):
        raise ConfigError("--shots K and --train SOURCE: give both, or neither")
    if args.price and (len(args.price) > 2 or min(args.price) < 0):
        raise ConfigError("--price: give one or two numbers >= 0")
    if args.url and args.reading == "spans":
        raise ConfigError("--reading spans: needs log-probabilities of any text, which servers do not return")


def _load(args: argparse.Namespace) -> Model:
    if args.url:
        from qa_arch.extras.prompting.server import ServerModel

        return ServerModel(args.url, args.model)
    from qa_arch.extras.prompting.local import load

    return load(args.model, args.reading, args.device)


def _prompt(
    args: argparse.Namespace, model: Model, train: QuestionSet | None, shots: Sequence[Example]
) -> dict[str, Any]:
    """Everything the answers depend on; the prompt has placeholders for passage and question."""
    placeholders = Example("", "{question}", "{passage}")
    return {
        "model": args.model if args.url or not Path(args.model).exists() else Path(args.model).name,
        "weights": model.identity,
        "url": args.url,
        "reading": args.reading,
        "seed": args.seed if shots else None,
        "shots": [shot.id for shot in shots],
        "train": train.fingerprint if train else None,
        "prompt": model.prompt(messages(placeholders, shots)),
    }


def _check_prompt(file: Path, prompt: dict[str, Any]) -> None:
    """Write the prompt; RunError if the folder contains answers to another one."""
    if not file.exists():
        write_json(file, prompt)
        return
    recorded = read_json(file, "choose another --folder")
    recorded = recorded if isinstance(recorded, dict) else {}
    if changed := [key for key in prompt if recorded.get(key) != prompt[key]]:
        raise RunError(
            f"{file}: its answers were made with another {', '.join(changed)}; choose another --folder"
        )


def _answer_set(
    model: Model, questions: QuestionSet, shots: Sequence[Example], folder: Path, batch_size: int
) -> Path:
    """Write a file with one answer per line, keeping existing answers, and return its path.

    Batches group questions of similar length and depend on the set only, so that an interrupted file resumes
    at a batch.
    """
    from qa_arch.cli.watch import watching

    name = file_stem(questions.name)
    file = folder / f"{name}-{questions.fingerprint[:8]}.jsonl"
    ordered = sorted(questions.examples, key=lambda e: len(e.context) + len(e.question), reverse=True)
    batches = [ordered[begin : begin + batch_size] for begin in range(0, len(ordered), batch_size)]
    lines = _answer_lines(file)
    complete = [batch for batch in batches if all(example.id in lines for example in batch)]
    done = [example.id for batch in complete for example in batch]
    # Drop the incomplete batch of a killed process.
    write_atomic(file, "".join(f"{lines[id_]}\n" for id_ in done))
    remaining = [batch for batch in batches if batch not in complete]
    count, begun, logged = len(done), time.monotonic(), time.monotonic()
    with file.open("a", encoding="utf-8") as out, watching(f"answering {name}", "questions") as watch:
        for batch in remaining:
            start = time.monotonic()
            replies = model.answer(batch, [messages(example, shots) for example in batch])
            seconds = round((time.monotonic() - start) / len(batch), 4)
            for example, reply in zip(batch, replies, strict=True):
                fields = {key: value for key, value in asdict(reply).items() if value is not None}
                fields |= {"text": as_span(reply.text, example.context), "written": reply.text}
                out.write(json.dumps({"id": example.id, **fields, "seconds": seconds}) + "\n")
            out.flush()
            os.fsync(out.fileno())
            count += len(batch)
            watch(count, len(ordered))
            if (now := time.monotonic()) - logged > LOG_INTERVAL:
                logged, rate = now, (count - len(done)) / (now - begun)
                minutes = (len(ordered) - count) / rate / 60
                log.info("%s: %d of %d, %.2f/s, %.0f min left", name, count, len(ordered), rate, minutes)
    return file


def _answer_lines(file: Path) -> dict[str, str]:
    """Question id -> line; truncated lines are skipped."""
    lines = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            lines[json.loads(line)["id"]] = line
        except (ValueError, KeyError, TypeError):
            continue
    return lines


def _cost(file: Path, price: Sequence[float] | None) -> dict[str, float]:
    """Seconds, tokens and money per 1,000 answers; only seconds if some answer has no token counts."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    counted = ("prompt_tokens", "answer_tokens")
    keys = ("seconds", *(counted if all(key in row for row in rows for key in counted) else ()))
    total = {key: sum(row[key] for row in rows) for key in keys}
    if price and "prompt_tokens" in total:
        total["money"] = (total["prompt_tokens"] * price[0] + total["answer_tokens"] * price[-1]) / 1000
    return {key: 1000 * value / len(rows) for key, value in total.items()}


def _with_prompt(
    record: RunRecord,
    prompt: dict[str, Any],
    model: Model,
    train: QuestionSet | None,
    shots: Sequence[Example],
    cost: dict[str, float],
) -> RunRecord:
    """Add prompt and cost to the record; shots by id, since records contain no dataset text."""
    settings = {k: v for k, v in prompt.items() if k not in ("prompt", "shots", "train", "seed")}
    settings |= {"shots": len(shots), "template": TEMPLATE}
    prompt_hash = hashlib.sha256(prompt["prompt"].encode()).hexdigest()
    dev = record.data[DEV]
    costs = {f"{key}_per_1000_answers": round(value, 4) for key, value in cost.items()}
    data = {**record.data, DEV: replace(dev, extra={**dev.extra, **costs, "prompt_sha256": prompt_hash})}
    if train is not None:
        data[TRAIN] = SplitFacts(
            name=train.name,
            fingerprint=train.fingerprint,
            protocol=train.protocol,
            questions=len(shots),
            unanswerable=sum(not shot.answerable for shot in shots),
            titles=tuple(sorted({shot.title for shot in shots})),
            extra={"shots": [shot.id for shot in shots]},
        )
    return replace(
        record,
        config={**record.config, "prompting": settings},
        data=data,
        parameters=Parameters(total=model.parameters),
        seconds=Seconds(predict=round(cost["seconds"] * (dev.questions or 0) / 1000, 3)),
    )
