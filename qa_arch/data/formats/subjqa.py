"""``subjqa:FILE``: SubjQA's CSV files of questions about reviews (Bjerva et al. 2020); several make one set.

As in the published counts, every row is a question: judgements of several annotators are separate questions,
numbered after the id of question and review. A row whose span contains ``ANSWERNOTFOUND`` is unanswerable;
the files append that word to every review, but it is not part of the passage. Articles are the reviewed
items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.input_files import Paths, as_list, csv_rows, expand, read_text
from qa_arch.data.question_sets import RawQuestion, RecordError, build, clip
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import QuestionSet

_COLUMNS = ("item_id", "q_review_id", "question", "review", "human_ans_spans", "human_ans_indices")
_NOTHING = "ANSWERNOTFOUND"


@gc_disabled()
def _open(paths: Paths, *, name: str = "", on_error: OnError = "raise", use: Use = "training") -> QuestionSet:
    files = ((str(path), True, _questions(path)) for path in expand(paths))
    return build(name or "+".join(Path(path).stem for path in as_list(paths)), files, on_error, use)


def _questions(path: Path) -> Iterator[RawQuestion | RecordError]:
    seen: Counter[str] = Counter()
    for line, row in csv_rows(path, read_text(path), _COLUMNS, "is it a SubjQA file?"):
        item, identity, question, review, span, indices = (row[name] for name in _COLUMNS)
        seen[identity] += 1
        context, answers = review.removesuffix(_NOTHING).rstrip(), []
        if _NOTHING not in span:
            pair = re.fullmatch(r"\((\d{1,9}), *(\d{1,9})\)", indices)
            start, end = map(int, pair.groups()) if pair else (0, 0)
            if not context[start:end].strip():
                fault = f"{clip(indices)} is not a pair of offsets around a text"
                yield RecordError(f"line {line}, human_ans_indices", fault)
                continue
            answers = [{"text": context[start:end], "answer_start": start}]
        fields = {"id": f"{identity}-{seen[identity]}", "title": item, "question": question}
        yield RawQuestion(f"line {line}", {**fields, "context": context, "answers": answers})


FORMAT = Format("subjqa:FILE", "a SubjQA file", open=_open, joins=True)
