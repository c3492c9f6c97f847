"""Run by the peer's interpreter: ``pipeline_peer.py MODEL QUESTIONS.json THREADS`` (see ``peer_process``)."""

from __future__ import annotations

SETTINGS = {"max_seq_len": 384, "doc_stride": 128, "max_answer_len": 30, "align_to_words": False}


def load(folder: str):
    from transformers import pipeline

    pipe = pipeline("question-answering", model=folder, tokenizer=folder, device="cpu")

    def answer(questions: list[dict[str, str]], batch: int) -> list[str]:
        answers = pipe(questions, batch_size=batch, **SETTINGS)
        return [item["answer"] for item in (answers if isinstance(answers, list) else [answers])]

    return answer


if __name__ == "__main__":
    from peer_process import answer_requests

    answer_requests(load)
