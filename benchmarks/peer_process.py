"""The loop of a peer's process: requests on standard input, answers with their times on standard output.

Imported by the scripts that a peer's interpreter runs, so it needs nothing but that interpreter and torch.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

Answer = Callable[[list[dict[str, str]], int], list[str]]
"""Texts of the answers to questions, read in batches of a size."""


def answer_requests(load: Callable[[str], Answer]) -> None:
    """``SCRIPT MODEL QUESTIONS.json THREADS``: load the model, then answer each line that comes.

    A line is a batch size and a number of questions; its reply is JSON: wall and CPU seconds, and the texts.
    """
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    folder, questions_file, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    questions = json.loads(Path(questions_file).read_text(encoding="utf-8"))
    answer = load(folder)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        batch, count = map(int, line.split())
        wall, cpu = time.perf_counter(), time.process_time()
        texts = answer(questions[:count], batch)
        took = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": took[0], "cpu": took[1], "texts": texts}), flush=True)
