"""Run by the peer's interpreter: ``python pipeline_peer.py MODEL QUESTIONS.json THREADS``.

Reads requests from standard input, one a line: a batch size and a number of questions. Answers each
with a line of JSON: wall and CPU seconds, and the texts.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path


def main() -> None:
    import torch
    from transformers import pipeline
    from transformers.utils import logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    folder, questions_file, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    questions = json.loads(Path(questions_file).read_text(encoding="utf-8"))
    answer = pipeline("question-answering", model=folder, tokenizer=folder, device="cpu")
    settings = {"max_seq_len": 384, "doc_stride": 128, "max_answer_len": 30, "align_to_words": False}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        batch, count = map(int, line.split())
        wall, cpu = time.perf_counter(), time.process_time()
        answers = answer(questions[:count], batch_size=batch, **settings)
        took = time.perf_counter() - wall, time.process_time() - cpu
        texts = [item["answer"] for item in (answers if isinstance(answers, list) else [answers])]
        print(json.dumps({"wall": took[0], "cpu": took[1], "texts": texts}), flush=True)


if __name__ == "__main__":
    main()
