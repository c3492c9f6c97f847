"""Run by the peer's interpreter: ``python haystack_peer.py MODEL QUESTIONS.json THREADS``.

Reads requests from standard input, one a line: a batch size and a number of questions. Answers each
with a line of JSON: wall and CPU seconds, and the texts. The reader takes one query a call.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path


def main() -> None:
    import torch
    from haystack import Document
    from haystack_integrations.components.readers.transformers import TransformersExtractiveReader
    from transformers.utils import logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    folder, questions_file, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    questions = json.loads(Path(questions_file).read_text(encoding="utf-8"))
    reader = TransformersExtractiveReader(
        model=folder, max_seq_length=384, stride=128, answers_per_seq=20, no_answer=False, top_k=1
    )
    reader.warm_up()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        batch, count = map(int, line.split())
        wall, cpu = time.perf_counter(), time.process_time()
        texts = []
        for item in questions[:count]:
            documents = [Document(content=item["context"])]
            answers = reader.run(query=item["question"], documents=documents, max_batch_size=batch)["answers"]
            texts.append(answers[0].data if answers and answers[0].data else "")
        took = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": took[0], "cpu": took[1], "texts": texts}), flush=True)


if __name__ == "__main__":
    main()
