"""Request loop of a peer's process: requests on standard input, timed answers on standard output.

Imported by scripts that a peer's interpreter runs, so it needs only that interpreter and torch.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

Answer = Callable[[list[dict[str, str]], int], list[str]]
"""Function (questions, batch size) -> texts of the answers."""


def answer_requests(load: Callable[[str], Answer]) -> None:
    """``SCRIPT MODEL QUESTIONS.json THREADS``: load the model, then answer each line of input.

    A line is a batch size and a number of questions; the reply is JSON: wall and CPU seconds, and the texts.
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
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": wall, "cpu": cpu, "texts": texts}), flush=True)
