"""The Python API: Query and Answer, Reader however it is called, and the types that a checker infers."""

import copy
import json
import math
import os
import pickle
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import combinations, product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from datasets import Dataset
from torch import nn

from qa_arch import Answer, Query, Span, load
from qa_arch.cli.main import main
from qa_arch.data.squad import write
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.files import json_items, write_json
from qa_arch.nn.reading import run_model
from qa_arch.qa.answers import plain, sentence
from qa_arch.records import read_questions, read_record


@pytest.mark.parametrize(
    ("values", "message", "error"),
    [
        ({"question": 5}, "question: must be a string, not int", ConfigError),
        ({"question": " \t"}, "question: is empty", ConfigError),
        ({"documents": "a text"}, "documents: must be a list of strings, not str", ConfigError),
        ({"documents": ("", " \n\u00a0")}, "documents: no text to read", ConfigError),
        ({"documents": ("a \ud83d",)}, r"documents\[0\]: character 2 .*surrogate", DataError),
        ({"max_answer_tokens": 0}, "max_answer_tokens: 0 is out of range", ConfigError),
        ({"null_threshold": math.nan}, "null_threshold: nan is not a number", ConfigError),
    ],
)
def test_invalid_value_names_its_field(values, message, error):
    with pytest.raises(error, match=f"^{message}"):
        Query(**{"question": "Who?", "documents": ("a",), **values})
    query = Query("?", ["", "\x00 <b>"], np.int64(2), np.int32(9), -math.inf, False)  # type: ignore[arg-type]
    assert query.documents == ("", "\x00 <b>")


def answer(document="the cat sat", start=4, end=7, question="Who?", spans=()):
    scores = 1.0, 0.876, 0.1, -1.0, 0.0
    return Answer(document[start:end], start, end, 0, *scores, 1, spans, Query(question, (document,)))


def no_answer(**values):
    query = Query("Who?", ("a text",))
    return Answer("", None, None, None, None, 0.5, 0.5, math.inf, -math.inf, 1, query=query, **values)


def test_answer_serializes_to_json_and_is_falsy_without_text():
    assert answer()
    assert not no_answer()
    assert repr(no_answer()) == "Answer(no answer, no_answer_probability=0.500, null_odds=inf)"
    assert repr(answer()) == "Answer('cat', start=4, end=7, document=0, confidence=0.876)"
    written = json.loads(json.dumps(no_answer().as_dict(), allow_nan=False))
    assert written["null_odds"] is written["null_threshold"] is None
    written = json.loads(json.dumps(answer(spans=(Span("cat", 4, 7, 0, 2.5, 0.5),)).as_dict()))
    assert set(written) == {field.name for field in fields(Answer)} - {"query"}
    assert written["spans"][0]["score"] == 2.5


def test_alternatives_are_the_other_spans():
    """Offsets -1: scattered words of a sequence model."""
    keys = [("cat", 4, 7, 0), ("cat mat", -1, -1, 0), ("cat sat", -1, -1, 0), ("cat sat", -1, -1, 1)]
    spans = {key: Span(*key, 1.0, 0.1) for key in keys}
    for own in (*keys, ("", None, None, None)):
        result = Answer(*own, 1.0, 0.3, 0.1, -1.0, 0.0, 1, tuple(spans.values()))
        assert result.alternatives == tuple(span for key, span in spans.items() if key != own)
        assert result._repr_html_().count("<small>") == len(result.alternatives)


def parsed(html: str) -> tuple[set[str], str, str]:
    """Tags, text and marked text of HTML, whose tags must be nested properly."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    marked = "".join(text for mark in root.iter("mark") for text in mark.itertext())
    return {element.tag for element in root.iter()}, "".join(root.itertext()), marked


def test_html_marks_the_answer_or_states_that_there_is_none():
    assert parsed(answer()._repr_html_())[1:] == ("Who?the cat satcat (88%)", "cat")
    html = no_answer(spans=(Span("text", 2, 6, 0, 0.0, 0.2),))._repr_html_()
    assert parsed(html)[1:] == ("Who?no answer (50%)text (20%)", "")


@pytest.mark.parametrize("field", ["question", "before", "answer", "after", "span"])
def test_html_escapes_every_text(field):
    evil = '</div><script>alert("&1")</script>'
    texts = {name: evil if name == field else "word" for name in ("question", "before", "answer", "after")}
    start = len(texts["before"])
    spans = (Span(evil, 0, len(evil), 0, 0.0, 0.2),) if field == "span" else ()
    document = texts["before"] + texts["answer"] + texts["after"]
    html = answer(document, start, start + len(texts["answer"]), texts["question"], spans)._repr_html_()
    tags, text, marked = parsed(html)
    assert tags <= {"div", "b", "mark", "small", "em"}
    assert evil in text
    assert marked == texts["answer"]


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("It stood. Odo built it. It burnt.", "Odo", ("", "Odo", " built it.")),
        ("It stood.\nOdo built it\nIt burnt", "built", ("Odo ", "built", " it")),
        ("他来了。她走了。", "她", ("", "她", "走了。")),
        ("red\x1b[31m and\tblue", "and", ("red [31m ", "and", " blue")),
    ],
)
def test_sentence_around_a_span(text, span, expected):
    start = text.index(span)
    assert sentence(text, start, start + len(span)) == expected
    assert plain("a\x1b]0;x\x07\u2028\x85b\ud83d") == "a ]0;x   b "
    assert plain("é 世界 👩‍👩‍👧") == "é 世界 👩‍👩‍👧"


TEXT = "The baker of Harn sold forty loaves before noon. Her brother keeps the mill."
QUESTION = "What does the baker sell?"
INF = math.inf


@pytest.fixture(scope="module")
def pairs(question_set):
    return [(example.question, example.context) for example in question_set.examples]


def same(actual, expected) -> bool:
    """Equal up to rounding in differently composed batches."""
    spans = zip(actual.spans, expected.spans, strict=True)
    equal = [(a.text, a.start, a.end, a.document) == (b.text, b.start, b.end, b.document) for a, b in spans]
    return (
        all(equal)
        and (actual.text, actual.start, actual.end) == (expected.text, expected.start, expected.end)
        and (actual.windows, actual.null_threshold) == (expected.windows, expected.null_threshold)
        and actual.null_odds == pytest.approx(expected.null_odds, abs=1e-4)
        and actual.confidence == pytest.approx(expected.confidence, abs=1e-4)
    )


def test_question_that_is_cut_says_so_until_the_limit_is_raised(span_run, reader, pairs):
    """Two questions that differ only beyond the limit of 24 tokens."""
    long = [f"{'a ' * 24}{end}?" for end in "bc"]
    cut = reader(long, TEXT)
    assert cut[0].null_odds == cut[1].null_odds
    assert all(answer.question_cut > 0 for answer in cut)
    assert all(f"question_cut={answer.question_cut}" in repr(answer) for answer in cut)
    assert f"the last {cut[0].question_cut} tokens" in cut[0]._repr_html_()
    longer = load(span_run, device="cpu", max_question=24 + cut[0].question_cut)
    whole = longer(long, TEXT)
    assert whole[0].null_odds != whole[1].null_odds
    assert [answer.question_cut for answer in whole] == [0, 0]
    questions, contexts = zip(*pairs[:20], strict=True)
    answers = zip(longer(questions, contexts), reader(questions, contexts), strict=True)
    assert all(same(*pair) and not pair[1].question_cut for pair in answers)
    for limit in (23, 29):
        with pytest.raises(ConfigError, match=f"max_question: {limit} is out of range; give at least 24"):
            load(span_run, device="cpu", max_question=limit)


def test_question_limit_is_that_of_the_encoder_whatever_a_users_model_calls_it(span_run):
    reader = load(span_run, device="cpu")
    reader.model = nn.Sequential(reader.model)
    reader.config = replace(reader.config, features=replace(reader.config.features, max_length=60))
    reader.raise_question_limit(28)
    assert reader.longest == {"longest_question": 28, "longest_window": 64}


def test_all_ways_of_calling_agree(reader, pairs):
    questions, contexts = zip(*pairs, strict=True)
    single = [reader(question, context, top_k=2) for question, context in pairs]
    assert {bool(answer) for answer in single} == {True, False}
    assert len({answer.windows for answer in single}) > 1
    rows = Dataset.from_dict({"question": questions, "context": contexts})
    ways = {
        "lists": reader(list(questions), contexts, top_k=2),
        "columns of a data set": reader(rows["question"], rows["context"], top_k=2),
        "lists of one document": reader(questions, [[context] for context in contexts], top_k=2),
        "stream": list(reader.stream(iter(pairs), top_k=2)),
        "queries": reader.answer([Query(q, (context,), top_k=2) for q, context in pairs]),
    }
    for way, answers in ways.items():
        assert all(same(*pair) for pair in zip(answers, single, strict=True)), way
    shared_context = reader(list(questions[:3]), contexts[0])
    assert all(same(a, reader(q, contexts[0])) for a, q in zip(shared_context, questions[:3], strict=True))


def test_stream_is_lazy_and_answers_what_comes_before_an_invalid_pair(reader, pairs, monkeypatch):
    monkeypatch.setattr("qa_arch.qa.reader.STREAM_SIZE", 2)
    given, taken = [pairs[0], list(pairs[1]), np.array(pairs[2]), ("Who?", " "), pairs[3]], []
    answers = reader.stream(taken.append(pair) or pair for pair in given)
    assert taken == []
    assert same(next(answers), reader(*pairs[0]))
    assert len(taken) == 2
    assert all(same(next(answers), reader(*pair)) for pair in pairs[1:3])
    with pytest.raises(ConfigError, match=r"^pair 3: documents: no text to read"):
        next(answers)


def test_queries_with_different_options_share_a_call(reader, pairs):
    queries = [
        Query(question, (context,), top_k=1 + row % 3, max_answer_tokens=(None, 2)[row % 2])
        for row, (question, context) in enumerate(pairs[:8])
    ]
    alone = [reader.answer([query])[0] for query in queries]
    assert all(same(*pair) for pair in zip(reader.answer(queries), alone, strict=True))
    assert [answer.query for answer in reader.answer(queries)] == queries
    assert reader.answer([]) == reader([], []) == list(reader.stream([])) == []


def test_most_confident_document_wins(reader, pairs):
    question, contexts = pairs[0][0], list(dict.fromkeys(context for _, context in pairs))
    alone = [reader(question, context, null_threshold=INF) for context in contexts]
    together = reader(question, contexts, null_threshold=INF)
    best = max(range(len(contexts)), key=lambda number: alone[number].confidence)
    assert (together.document, together.text, together.start) == (best, alone[best].text, alone[best].start)
    assert contexts[best][together.start : together.end] == together.text
    assert together.confidence == pytest.approx(alone[best].confidence, abs=1e-4)
    assert together.windows == sum(answer.windows for answer in alone)
    assert together.null_odds == pytest.approx(min(answer.null_odds for answer in alone), abs=1e-4)
    shown = reader(question, contexts, top_k=len(contexts)).spans
    assert [span.confidence for span in shown] == sorted((s.confidence for s in shown), reverse=True)
    assert all(contexts[span.document][span.start : span.end] == span.text for span in shown)


def test_no_answer_wins_only_if_it_wins_in_every_document(reader, pairs):
    question, contexts = pairs[0][0], list(dict.fromkeys(context for _, context in pairs))
    odds = [reader(question, context).null_odds for context in contexts]
    lowest, second = sorted(odds)[:2]
    answer = reader(question, contexts, null_threshold=(lowest + second) / 2)
    assert answer.document == odds.index(lowest)
    none = reader(question, contexts, null_threshold=lowest - 1)
    assert (none.text, none.start, none.document, none.score) == ("", None, None, None)
    nulls = [reader(question, context).no_answer_probability for context in contexts]
    assert none.confidence == none.no_answer_probability == pytest.approx(min(nulls), abs=1e-4)
    assert none.spans, "spans are returned all the same"


def test_query_threshold_overrides_the_default_even_at_zero(reader, pairs):
    assert reader.null_threshold != 0
    zero, default = (reader(*zip(*pairs, strict=True), null_threshold=threshold) for threshold in (0, None))
    assert [bool(answer) for answer in zero] != [bool(answer) for answer in default]
    for question, context in pairs[:4]:
        odds = reader(question, context).null_odds
        for threshold in (None, 0, INF, -INF, odds, math.nextafter(odds, -INF)):
            answer = reader(question, context, null_threshold=threshold)
            used = reader.null_threshold if threshold is None else threshold
            assert answer.null_threshold == used
            assert bool(answer) == (not odds > used), threshold


def test_top_k_limits_spans_and_changes_neither_answer_nor_confidence(reader, pairs):
    for question, context in pairs[:5]:
        single = reader(question, context, null_threshold=INF, distinct=False)
        assert len(single.spans) == 1
        for top_k in (2, 40, 500, 2**64):
            answer = reader(question, context, top_k=top_k, null_threshold=INF, distinct=False)
            assert (answer.text, answer.start) == (single.text, single.start)
            assert answer.confidence == pytest.approx(single.confidence, rel=1e-4)
            assert len(answer.spans) == top_k or top_k > 500, "'no answer' does not count towards top_k"
            assert len({(span.start, span.end) for span in answer.spans}) == len(answer.spans)


def test_distinct_spans_overlap_little_and_fill_top_k(reader, pairs):
    for question, context in pairs[:5]:
        spans = reader(question, context, top_k=6).spans
        assert len(spans) == 6
        for a, b in combinations(spans, 2):
            shared = min(a.end, b.end) - max(a.start, b.start)
            assert shared <= 0.5 * min(a.end - a.start, b.end - b.start)
        (best,) = reader(question, context, distinct=False).spans
        assert (spans[0].text, spans[0].start) == (best.text, best.start)
    overlapping = [reader(*pair, top_k=6, distinct=False).spans for pair in pairs[:5]]
    assert any(a.start < b.end and b.start < a.end for s in overlapping for a, b in combinations(s, 2))


def test_max_answer_tokens_limits_span_length(reader, pairs):
    lengths = dict.fromkeys((1, 3, None, 10**9), 0)
    for limit, (question, context) in product(lengths, pairs[:6]):
        tokens = reader.tokenizer(context, return_offsets_mapping=True)["offset_mapping"]
        for span in reader(question, context, max_answer_tokens=limit, top_k=3).spans:
            inside = sum(span.start <= first < last <= span.end for first, last in tokens)
            lengths[limit] = max(lengths[limit], inside)
    assert lengths[1] == 1
    assert 1 < lengths[3] <= 3 < lengths[None] <= lengths[10**9]


def test_confidence_is_the_calibrated_softmax(reader, pairs):
    assert reader.temperature == 1.7
    for question, context in pairs[:6]:
        (prediction,) = reader.predict([(question, context)])
        shifts = [0 if candidate.text else reader.null_threshold for candidate in prediction.candidates]
        scores = [candidate.score for candidate in prediction.candidates]
        weights = [math.exp((score - shift) / 1.7) for score, shift in zip(scores, shifts, strict=True)]
        null = [candidate.text for candidate in prediction.candidates].index("")
        answer = reader(question, context)
        assert answer.confidence == pytest.approx(max(weights) / sum(weights), rel=1e-4)
        assert answer.no_answer_probability == pytest.approx(weights[null] / sum(weights), rel=1e-4)


@pytest.mark.parametrize(
    "context",
    [
        *("x", "x" * 3000, "?", "\x00", TEXT, "½ teaspoon … of naïve crème brûlée — 10½", "\u202eشكرا"),
        *("e\u0301tude cafe\u0301 \u200b zero\u200dwidth", "👩‍👩‍👧 family 🏴‍☠️ flag"),
        "\x00\x07 control \ufeff characters \ud7ff",
    ],
)
def test_every_text_gets_a_result(reader, context):
    for question in ("?", "why " * 2000):
        (prediction,) = reader.predict([(question, context)])
        assert prediction.windows >= 1
        assert not math.isnan(prediction.null_odds)
        assert all(c.text == context[c.start : c.end] for c in prediction.candidates)
        assert prediction.best is None or prediction.best.text
        assert sum(c.probability for c in prediction.candidates) == pytest.approx(1, abs=1e-5)
        for threshold in (None, INF):
            answer = reader(question, context, null_threshold=threshold, top_k=3)
            assert 0 <= answer.no_answer_probability <= 1
            assert answer.text == (context[answer.start : answer.end] if answer else "")
            assert repr(answer)
            assert answer._repr_html_()
            assert answer.as_dict()


def test_100_000_characters_are_read_in_full(reader):
    context = (TEXT + " ") * 1300
    answer = reader(QUESTION, context, null_threshold=INF)
    assert len(context) > 100_000
    assert answer.windows > 500
    assert answer.text == context[answer.start : answer.end] != ""
    assert len(answer._repr_html_()) < 3000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda qa: qa(5, TEXT), "question: must be a string or a list of strings, not int; Reader.stream"),
        (lambda qa: qa("Who?", None), "context: must be a string or a list of strings, not NoneType"),
        (lambda qa: qa("Who?", ""), "documents: no text to read"),
        (lambda qa: qa(["Who?", ""], TEXT), "pair 1: question: is empty"),
        (lambda qa: list(qa.stream(["ab"])), r"pair 0: must be \(question, text\), not str"),
        (lambda qa: list(qa.stream([{"q": "Who?", "c": TEXT}])), r"pair 0: must be .*, not dict"),
        (lambda qa: qa(["Who?"], [TEXT, TEXT]), "context: there are 1 questions and 2 texts"),
        (lambda qa: qa(b"Who?", TEXT), "question: .* not bytes"),
        (lambda qa: qa.answer(Query("Who?", [TEXT])), "queries: must be a list of Query, not Query"),
        (lambda qa: list(qa.stream(None)), r"pairs: must be an iterable of \(question, text\), not NoneType"),
        (lambda qa: qa.answer(["Who?"]), r"queries: must be a list of Query, not of str; qa\("),
    ],
)
def test_invalid_call_names_the_argument(reader, call, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        call(reader)


CALLS = {"answer": lambda qa: qa(QUESTION, TEXT), "predict": lambda qa: qa.predict([(QUESTION, TEXT)])}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("call", CALLS)
def test_other_processes_are_told_to_load_the_reader_themselves(reader, call):
    """A forked one would wait for ever for a thread of its parent, even if no thread reads."""
    with reader._lock:  # as while another thread reads
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                CALLS[call](reader)
            except UnavailableError:
                os._exit(0)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnavailableError, match=r"call qa_arch\.load in each process"):
            copied(reader)


@pytest.mark.parametrize("call", CALLS)
def test_threads_use_the_model_one_at_a_time(reader, monkeypatch, call):
    active, concurrent = [], []

    def counted(*arguments, **options):
        active.append(None)
        concurrent.append(len(active))
        time.sleep(0.01)  # long enough for another thread to enter
        ranking = run_model(*arguments, **options)
        active.pop()
        return ranking

    monkeypatch.setattr("qa_arch.qa.reader.run_model", counted)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: CALLS[call](reader), range(4)))
    assert concurrent == [1] * 4


def test_reader_repr(reader):
    described = repr(reader)
    threshold = f"null_threshold={reader.null_threshold:.2f}"
    for word in ("Reader(bert", "temperature=1.70", "engine=torch fp32", "device=cpu", threshold):
        assert word in described


def test_scattered_words_of_a_sequence_model_have_no_offsets(sequence_run, question_set):
    reader, scattered = load(sequence_run, device="cpu"), 0
    for example in question_set.examples[:12]:
        answer = reader(example.question, example.context, top_k=4, null_threshold=INF)
        assert answer.text
        for span in answer.spans:
            if span.start < 0:
                scattered += 1
                assert (span.start, span.end) == (-1, -1)
                assert all(word in example.context for word in span.text.split())
            else:
                assert example.context[span.start : span.end] == span.text
        assert ("<mark" in answer._repr_html_()) == (answer.start >= 0)
    assert scattered


@pytest.mark.parametrize("name", ["span_run", "sequence_run"])
def test_reader_matches_answers_and_confidence_of_evaluate(request, name, question_set, tmp_path):
    run = Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "run"))
    data = write_json(tmp_path / "served.json", write(question_set))
    assert main(["evaluate", "--run", str(run), "--data", str(data)]) == 0
    qa, scored = load(run, device="cpu"), run / "sets" / "served"
    answers = list(qa.stream((example.question, example.context) for example in question_set.examples))
    assert {bool(answer) for answer in answers} == {True, False}
    with json_items(tmp_path / "answers.json") as add:
        for example, answer in zip(question_set.examples, answers, strict=True):
            add(example.id, answer.text)
    assert (tmp_path / "answers.json").read_bytes() == (scored / "predictions.json").read_bytes()
    assert qa.temperature == read_record(run).temperature == 1.7
    for answer, confidence in zip(answers, read_questions(scored)["confidence"], strict=True):
        assert answer.confidence == pytest.approx(confidence, abs=1e-4)


def test_temperature_defaults_to_1(span_run, tmp_path):
    run = Path(shutil.copytree(span_run, tmp_path / "run"))
    raw = json.loads((run / "run.json").read_text())
    del raw["confidence"]
    write_json(run / "run.json", raw)
    assert load(run, device="cpu").temperature == read_record(run).temperature == 1.0


@pytest.mark.slow
def test_users_see_precise_types():
    """By the checker that users run."""
    api = pytest.importorskip("mypy.api", reason="no mypy: pip install -e '.[dev]'")
    sample, config = Path(__file__).with_name("typed_sample.py"), Path(__file__).parents[2] / "pyproject.toml"
    output, errors, code = api.run(["--config-file", str(config), str(sample)])
    assert code == 0, output + errors
