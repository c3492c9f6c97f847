"""The types that a checker must infer for the Python API; ``test_reader.py`` runs mypy on this file."""

from collections.abc import Iterator
from typing import assert_type

import qa_arch
from qa_arch import Answer, Query, Reader, Run, Span

qa = qa_arch.load("RUN", device="cpu", precision="bf16")
assert_type(qa, Reader)
assert_type(qa("Who?", "text"), Answer)
assert_type(qa("Who?", ["text", "another"], top_k=3, distinct=False), Answer)
assert_type(qa(["Who?", "When?"], "text", null_threshold=0), list[Answer])
assert_type(qa(["Who?"], [["text", "another"]]), list[Answer])
assert_type(qa.stream((question, "text") for question in ("Who?", "When?")), Iterator[Answer])
assert_type(qa.answer([Query("Who?", ("text",), max_answer_tokens=5)]), list[Answer])
assert_type(qa("Who?", "text").spans, tuple[Span, ...])
assert_type(qa("Who?", "text").start, int | None)
assert_type(qa("Who?", "text").confidence, float)

run = qa_arch.train(["model=bert", "debug=fast"], if_exists="resume")
assert_type(run, Run)
assert_type(qa_arch.load(run), Reader)
assert_type(run.record.seed, int)

qa_arch.train(["model=bert"], if_exists="overwrite")  # type: ignore[arg-type]
qa("Who?", "text", topk=3)  # type: ignore[call-overload]
qa("Who?", "text", top_k="3")  # type: ignore[call-overload]
qa("Who?", 5)  # type: ignore[call-overload]
