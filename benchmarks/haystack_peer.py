"""Run by the peer's interpreter: ``python haystack_peer.py MODEL QUESTIONS.json THREADS`` (``peer_process``).

The reader takes one query per call.
"""

from __future__ import annotations


def load(folder: str):
    from haystack import Document
    from haystack_integrations.components.readers.transformers import TransformersExtractiveReader

    reader = TransformersExtractiveReader(
        model=folder, max_seq_length=384, stride=128, answers_per_seq=20, no_answer=False, top_k=1
    )
    reader.warm_up()

    def answer(questions: list[dict[str, str]], batch: int) -> list[str]:
        return [best(item["question"], [Document(content=item["context"])], batch) for item in questions]

    def best(query: str, documents: list, batch: int) -> str:
        answers = reader.run(query=query, documents=documents, max_batch_size=batch)["answers"]
        return answers[0].data or "" if answers else ""

    return answer


if __name__ == "__main__":
    from peer_process import answer_requests

    answer_requests(load)
