"""Reading and writing SQuAD files: formats, protocols, Unicode, round trips, fingerprints."""

import csv
import gzip
import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.data.sources import identity, open_passages
from qa_arch.data.splits import require_disjoint
from qa_arch.data.squad import read, write
from qa_arch.errors import DataError, FaultyRecordError
from qa_arch.types import Example, Gold

TOWER = "The north tower was raised in 1204 by masons from the coast."
RIVER = "A river runs below; the river floods in March."


def save_json(path: Path, value) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def flat(identity: str, answers: dict[str, int] | None = None, context: str = TOWER, title: str = "Tower"):
    answers = answers or {}
    return {
        "id": identity,
        "title": title,
        "context": context,
        "question": f"What of {identity}?",
        "answers": {"text": list(answers), "answer_start": list(answers.values())},
    }


def nested(*qas: dict, version: str | None = "v2.0", context: str = TOWER) -> dict:
    data = [{"title": "Tower", "paragraphs": [{"context": context, "qas": list(qas)}]}]
    return {"data": data} if version is None else {"version": version, "data": data}


def qa(identity: str, text: str = "", start: int = 0, **more) -> dict:
    answers = [{"text": text, "answer_start": start}] if text else []
    return {"id": identity, "question": f"What of {identity}?", "answers": answers, **more}


def test_squad_2_file_is_read(tmp_path):
    plausible = [{"text": "masons", "answer_start": 38}]
    value = nested(
        qa("a", "1204", 30, is_impossible=False),
        qa("b", is_impossible=True, plausible_answers=plausible, kind="entity_swap"),
    )
    questions = read(save_json(tmp_path / "tower-v2.0.json", value))
    assert questions.name == "tower-v2.0"
    assert questions.protocol == "2.0"
    assert questions.skipped == ()
    assert questions.examples == (
        Example("a", "What of a?", TOWER, "Tower", (Gold("1204", 30),)),
        Example("b", "What of b?", TOWER, "Tower", (), (Gold("masons", 38),), "entity_swap"),
    )


@pytest.mark.parametrize(
    ("version", "flag", "protocol"),
    [
        ("1.1", {}, "1.1"),
        (None, {}, "1.1"),
        ("v2.0", {}, "2.0"),
        (None, {"is_impossible": False}, "2.0"),
        (None, {"is_impossible": None}, "1.1"),
        ("1.1", {"is_impossible": False}, "2.0"),
        (2, {}, "2.0"),
        (" V2.1 ", {}, "2.0"),
        ("2019-03-02", {}, "1.1"),
        ("20230101", {}, "1.1"),
    ],
)
def test_protocol_follows_version_and_is_impossible(tmp_path, version, flag, protocol):
    file = save_json(tmp_path / "a.json", nested(qa("a", "1204", 30, **flag), version=version))
    assert read(file).protocol == protocol
    save_json(file, nested(qa("a", "1204", 30), qa("b"), version=version))
    if protocol == "2.0" and not flag:
        assert [example.answerable for example in read(file).examples] == [True, False]
    else:
        with pytest.raises(DataError, match="answers: is empty; give an answer, or set is_impossible to"):
            read(file)


NO_ANSWER = [{"text": "", "answer_start": 0}]


@pytest.mark.parametrize(
    ("fields", "identity", "answers"),
    [
        ({"id": 262.0}, "262", ["1204"]),
        ({"id": 2**60 + 1}, str(2**60 + 1), ["1204"]),
        ({"answers": [{"text": "1204", "answer_start": "30"}]}, "a", ["1204"]),
        ({"answers": [{"text": "1204", "answer_start": 30.0}]}, "a", ["1204"]),
        ({"answers": [{"text": "1204"}]}, "a", ["1204"]),
        ({"answers": [*NO_ANSWER, {"text": "1204", "answer_start": 30}]}, "a", ["1204"]),
        ({"is_impossible": "False"}, "a", ["1204"]),
        ({"answers": [], "is_impossible": 1.0}, "a", []),
        ({"answers": NO_ANSWER, "is_impossible": True}, "a", []),
        ({"answers": [{"text": " ", "answer_start": -1}]}, "a", []),
    ],
)
def test_values_as_annotation_tools_and_pandas_write_them(tmp_path, fields, identity, answers):
    question = {**qa("a", "1204", 30), **fields}
    for value in (nested(question, version=None), [{"context": TOWER, **question}]):
        questions = read(save_json(tmp_path / "a.json", value))
        (example,) = questions.examples
        assert (example.id, [gold.text for gold in example.answers]) == (identity, answers)
        assert all(TOWER.startswith(gold.text, gold.start) for gold in example.answers)
        assert questions.protocol == ("2.0" if not answers or "is_impossible" in fields else "1.1")


def test_scoring_needs_texts_where_training_needs_places(tmp_path):
    golds = [("raised by masons", -1), ("masons", 37), ("masons", None), ("1204", 30)]
    answers = [{"text": text, "answer_start": start} for text, start in golds]
    value = nested(qa("a", "1204", 30), {**qa("b"), "answers": answers})
    source = str(save_json(tmp_path / "a.json", value))
    expected = (Gold("raised by masons", -1), Gold("masons", -1), Gold("masons", 38), Gold("1204", 30))
    for use in ("scoring", "answering"):
        _, example = open_passages(source, use=use, language="de").examples
        assert (example.answers, example.located) == (expected, expected[2])
    assert (expected[0].end, expected[2].end) == (-1, 44)
    with pytest.raises(FaultyRecordError, match="is -1, but 'raised by masons' occurs nowhere"):
        open_passages(source)
    for use in ("training", "scoring"):  # records of sets read so keep their fingerprints
        assert len(open_passages(source, use=use, on_error="skip").skipped) == 1


@pytest.mark.parametrize(
    ("version", "answers", "protocol"),
    [
        ("1.1", {}, "1.1"),
        ("1.1", {"answers": []}, "1.1"),
        ("v2.0", {}, "2.0"),
        (None, {"answers": None}, "1.1"),
    ],
)
def test_questions_without_labels_can_be_answered(tmp_path, version, answers, protocol):
    question = {"id": "a", "question": "Who?", **answers}
    file = str(save_json(tmp_path / "a.json", nested(question, version=version)))
    questions = open_passages(file, use="answering")
    assert ([e.answers for e in questions.examples], questions.protocol) == ([()], protocol)
    with pytest.raises(DataError, match="answers: is "):
        open_passages(file, use="scoring")
    save_json(tmp_path / "a.json", {"context": TOWER, "question": "Who?", "id": "a"})
    (tmp_path / "a.csv").write_text("id,question,context\na,Who?,One\n")
    for source in (file, str(tmp_path / "a.csv")):
        assert open_passages(source, use="answering").protocol == "1.1"


def test_flat_formats_give_the_same_set(tmp_path):
    records = [flat("a", {"1204": 30, "in 1204": 27}), flat("b"), flat("c", {"river": 2}, RIVER, "River")]
    lines = "\n".join(json.dumps(record) for record in records)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["id", "title", "question", "context", "answers", "starts"])
        rows.writeheader()
        for record, (answers, starts) in zip(
            records, [('["1204", "in 1204"]', "[30, 27]"), ("", ""), ("river", 2)], strict=True
        ):
            rows.writerow(record | {"answers": answers, "starts": starts})
    files = {
        "list.json": json.dumps(records).encode(),
        "data.json": json.dumps({"data": records}).encode(),
        "lines.json": lines.encode(),
        "crlf.jsonl": lines.replace("\n", "\r\n").encode(),
        "packed.jsonl": gzip.compress(lines.encode()),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in (*files, "table.csv"):
        questions = read(tmp_path / name, name="set")
        assert [(example.title, example.answers) for example in questions.examples] == [
            ("Tower", (Gold("1204", 30), Gold("in 1204", 27))),
            ("Tower", ()),
            ("River", (Gold("river", 2),)),
        ], name
        assert questions.protocol == "2.0"
        assert questions.examples[0].context is questions.examples[1].context


COLUMNS = ("id", "title", "context", "question", "answers")
RECORDS = [flat("a", {"1204": 30}), flat("b", {"1204": 30, "masons": 38}), flat("c")]
QAS = [
    qa("a", "1204", 30, is_impossible=False),
    {**qa("b", "1204", 30), "answers": [{"text": "1204", "answer_start": 30}, {"text": "masons"}]},
    qa("c", is_impossible=True),
]
PARAGRAPH = {"title": "Tower", "context": TOWER, "qas": QAS}
LAYOUTS = {
    "articles.json": [{"title": "Tower", "paragraphs": [{"context": TOWER, "qas": QAS}]}],
    "article.json": {"title": "Tower", "paragraphs": [{"context": TOWER, "qas": QAS}]},
    "paragraphs.json": [PARAGRAPH],
    "data.json": {"data": [PARAGRAPH]},
    "paragraphs.jsonl": PARAGRAPH,
    "columns.json": {name: {str(n): r[name] for n, r in enumerate(RECORDS)} for name in COLUMNS},
    "lists.json": {name: [r[name] for r in RECORDS] for name in COLUMNS},
    "split.json": {
        "columns": COLUMNS,
        "index": [0, 1, 2],
        "data": [[r[n] for n in COLUMNS] for r in RECORDS],
    },
    "index.json": {str(n): record for n, record in enumerate(RECORDS)},
}
"""JSON of other tools: SQuAD without its outer objects, and what pandas and datasets write."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_json_of_other_tools_is_read_where_it_is_unambiguous(tmp_path, name):
    examples = read(save_json(tmp_path / "flat.json", RECORDS)).examples
    assert read(save_json(tmp_path / name, LAYOUTS[name])).examples == examples


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_csv_needs_starts_only_where_an_answer_occurs_twice(tmp_path, separator):
    file = tmp_path / "mine.csv"

    def answers(*rows):
        file.write_text("\n".join(rows).replace(",", separator))
        return [example.answers for example in read(file).examples]

    first = ["id,question,context,answers", "a,Q?,One text,text"]
    found = answers(*first, "b,Q?,Two by two,T", "c,Q?,Two by two,")
    assert found == [(Gold("text", 4),), (Gold("T", 0),), ()]
    assert (read(file).name, read(file).article_numbers) == ("mine", [0, 1, 1])
    with pytest.raises(DataError, match=r"line 3, .* is missing, but 'o' occurs at 2 and 9; add answer_"):
        answers(*first, "b,Q?,Two by two,o")
    for name in ("starts", "answer_start"):
        found = answers(f"id,question,context,answers,{name}", "b,Q?,Two by two,o,9")
        assert found == [(Gold("o", 9),)]


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        ("['Ada', 'Ada ']", ["Ada", "Ada "]),
        ("{'text': ['Ada'], 'answer_start': [0]}", ["Ada"]),
        ("[A]", ["[A]"]),
        ("['Ada' 'Ada ']", None),
        ("{'text': array(['Ada'], dtype=object), 'answer_start': array([0])}", None),
    ],
)
def test_lists_that_pandas_prints_are_no_texts(tmp_path, cell, texts):
    file = tmp_path / "mine.tsv"
    file.write_text(f"id\tquestion\tcontext\tanswers\na\tQ?\tAda [A]\t{cell}\n")
    for use in ("training", "scoring"):
        if texts is None:
            with pytest.raises(DataError, match=r"line 2, question 'a', answers(.text)?: is a string .* a l"):
                open_passages(str(file), use=use)
        else:
            (example,) = open_passages(str(file), use=use).examples
            assert [gold.text for gold in example.answers] == texts


def test_tables_and_saved_sets_are_paths(tmp_path, monkeypatch):
    import datasets

    monkeypatch.chdir(tmp_path)
    examples = read(save_json(tmp_path / "flat.json", RECORDS)).examples
    table = datasets.Dataset.from_list(RECORDS)
    table.to_parquet("rows/b.parquet")
    table.select([1]).save_to_disk("saved", num_shards=1)
    Path("damaged").mkdir()
    Path("damaged/state.json").write_text('{"_data_files": [{}]}')
    with pytest.raises(DataError, match=r"^damaged: its state.json does not list its files"):
        open_passages("damaged")
    datasets.DatasetDict(train=table, dev=table.select([0])).save_to_disk("splits")
    for source in ("rows/b.parquet", "rows", "splits/train", "splits/train/data-00000-of-00001.arrow"):
        assert open_passages(source).examples == examples
    shutil.copy("rows/b.parquet", "saved/cache-1.arrow")  # left over: the set's own files are listed in it
    saved = open_passages("saved")
    assert (saved.name, saved.examples) == ("saved", examples[1:2])
    assert identity("saved") != identity("splits/train") != identity("rows")
    with pytest.raises(DataError, match=r"holds several splits .* name one of splits/dev, splits/train$"):
        open_passages("splits/")
    datasets.Dataset.from_list([RECORDS[0] | {"question": ""}]).to_parquet("rows/b.parquet")
    with pytest.raises(DataError, match=r"^rows/b.parquet: record \[0\], question 'a', question: is empty"):
        open_passages("rows")


def test_csv_may_state_kind_and_is_impossible_in_some_rows(tmp_path):
    header, file = "id,question,context,answers,starts,is_impossible,kind", tmp_path / "mine.csv"
    rows = ["a,Q?,One text,text,4,False,", "b,Q?,One text,,,TRUE,swap", "c,Q?,One text,,,,"]
    file.write_text("\n".join([header, *rows]))
    assert [(e.answerable, e.kind) for e in read(file).examples] == [
        (True, None),
        (False, "swap"),
        (False, None),
    ]
    file.write_text("\n".join([header, rows[0]]))
    assert read(file).protocol == "2.0"
    file.write_text("\n".join([header, rows[0].replace("False", "no")]))
    with pytest.raises(DataError, match=r"is_impossible: is a string \('no'\)"):
        read(file)


def test_json_questions_without_titles_are_grouped_by_passage(tmp_path):
    """Annotation tools leave titles out or empty; articles named "" would count as shared."""
    records = [flat("a"), flat("b"), flat("c", context=RIVER)]
    del records[0]["title"]
    records[1]["title"], records[2]["title"] = None, ""
    article = nested(qa("d", is_impossible=True), qa("e", is_impossible=True), context="Third.")
    del article["data"][0]["title"]
    a = read(save_json(tmp_path / "flat.json", records))
    b = read(save_json(tmp_path / "nested.json", article))
    assert (a.article_numbers, b.article_numbers) == ([0, 0, 1], [0, 0])
    require_disjoint(a=a, b=b)


def test_csv_may_have_any_line_ends_and_long_passages(tmp_path):
    passage = "x " * 80_000 + "end"
    rows = ["id,question,context,answers,starts", f'a,Q?,"{passage}",end,160000', "b,Q?,Two,Two,0"]
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "mine.csv").write_bytes(end.join(rows).encode())
        first, second = read(tmp_path / "mine.csv").examples
        assert (first.context, second.id) == (passage, "b"), end


def test_folders_globs_and_lists_keep_their_order(tmp_path):
    for name in ("b", "a", "c"):
        save_json(tmp_path / f"{name}.json", [flat(name, {"1204": 30})])
    (tmp_path / "notes.txt").write_text("no data", encoding="utf-8")

    def ids(source) -> str:
        return "".join(example.id for example in read(source).examples)

    assert ids(tmp_path) == "abc"
    assert ids(str(tmp_path / "[bc].json")) == "bc"
    assert ids([tmp_path / "c.json", tmp_path / "a.json"]) == "ca"
    assert read([tmp_path / "c.json", tmp_path / "a.json"]).name == "c+a"
    assert read(tmp_path).name == tmp_path.name
    (tmp_path / "d.ndjson").write_text(json.dumps(flat("d", {"1204": 30})))
    assert read(tmp_path / "d.ndjson").name == "d"
    assert open_passages(str(tmp_path / "a.json"), name="mine").name == "mine"


ODD_TEXT = """Zoë dined at the Café Brûlé, Zoe\u0308 at the Cafe\u0301. It takes 10½ hours, or 1⁄3 of a day…
A 👩\u200d🚀 waved 🇫🇮 flags at 𝔛. הספינה יצאה בשנת 1887 مع البحارة.  two\u00a0 spaces\u2009here\t\tand
there zero\u200bwidth\ufeffmark\u00adsoft one\u2028two\u2029three\u0085four\x0bfive\x1csix
ｆｕｌｌ ﬁne ① № x\x00y """
"""Accents combining and precomposed, fractions, emoji, right to left, spaces, separators, widths, a null."""


def test_unicode_survives(tmp_path):
    """An answer starts at every character, so offsets in bytes or UTF-16 units would fail."""
    starts = range(len(ODD_TEXT))
    spans = [(s, e) for s in starts for e in (s + 1, s + 3, len(ODD_TEXT)) if ODD_TEXT[s:e].strip()]
    record = flat("a", None, ODD_TEXT, ODD_TEXT) | {"question": ODD_TEXT, "id": ODD_TEXT}
    record["answers"] = {"text": [ODD_TEXT[s:e] for s, e in spans], "answer_start": [s for s, _ in spans]}
    plain = json.dumps(record, ensure_ascii=False)
    for name, content in {
        "escaped.json": json.dumps([record]).encode(),
        "bom.json": f"[{plain}]".encode("utf-8-sig"),
        "set.jsonl": plain.encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        (example,) = read(tmp_path / name).examples
        assert {example.id, example.title, example.question, example.context} == {ODD_TEXT}
        expected = [(ODD_TEXT[s:e], s) for s, e in spans]
        assert [(gold.text, gold.start) for gold in example.answers] == expected, name


def test_write_and_read_are_inverse(tmp_path):
    odd = Example("½", ODD_TEXT, ODD_TEXT, ODD_TEXT, (Gold(ODD_TEXT[:5], 0),), original="é\u0301")
    negative = replace(BASE, id="n", answers=(), plausible=(Gold("coast", 54), Gold("1204", 30)))
    two = [replace(BASE, plausible=()), odd, negative, replace(odd, id="x", answers=(), kind="a\u2028b")]
    for protocol, examples in (("2.0", two), ("1.1", two[:2])):
        questions = question_set("set", examples, protocol)
        assert read(save_json(tmp_path / "set.json", write(questions))) == questions


def test_write_groups_adjacent_questions_and_marks_negatives():
    first = Example("a", "Q?", TOWER, "Tower", (Gold("1204", 30),))
    others = (
        replace(first, id="b", answers=()),
        replace(first, context=RIVER),
        replace(first, title="Other"),
    )
    articles = write(question_set("set", [first, *others], "2.0"))["data"]
    assert [(article["title"], len(article["paragraphs"])) for article in articles] == [
        ("Tower", 2),
        ("Other", 1),
    ]
    assert articles[0]["paragraphs"][0]["qas"] == [
        {
            "id": "a",
            "question": "Q?",
            "answers": [{"text": "1204", "answer_start": 30}],
            "is_impossible": False,
        },
        {"id": "b", "question": "Q?", "answers": [], "is_impossible": True},
    ]
    version_one = write(question_set("set", [first], "1.1"))
    assert version_one["version"] == "1.1"
    assert "is_impossible" not in version_one["data"][0]["paragraphs"][0]["qas"][0]


BASE = Example("a", "Q?", TOWER, "Tower", (Gold("1204", 30),), (Gold("coast", 54),), "negation")


def fingerprint(examples):
    return question_set("", examples, "2.0").fingerprint


def test_fingerprint_depends_on_fields_and_order_but_not_on_object_identity():
    changes = [
        *({"id": "b"}, {"context": TOWER + " "}, {"title": "tower"}, {"plausible": ()}, {"kind": None}),
        *({"original": "b"}, {"answers": ()}, {"answers": (Gold("1204", 30), Gold("1204", 30))}),
        {"answers": (), "plausible": (Gold("1204", 30),)},
    ]
    assert len({fingerprint([replace(BASE, **change)]) for change in [{}, *changes]}) == 10
    other, copy = replace(BASE, id="b", context=RIVER), replace(BASE, id="c", context="".join(list(TOWER)))
    assert fingerprint([BASE, other]) != fingerprint([other, BASE])
    assert fingerprint([BASE, copy]) == fingerprint(iter([BASE, replace(copy, context=BASE.context)]))


def test_fingerprint_is_fixed():
    """Recorded runs store it: a different value would make every old record look like one of other data."""
    text = f'["a", "Tower", "Q?", "{TOWER}", [["1204", 30]], [["coast", 54]], "negation"]'
    assert fingerprint([BASE]) == sha256(text.encode()).hexdigest()
    official = replace(BASE, kind=None)  # plausible_answers, which the hub's set lacks
    assert fingerprint([official]) == fingerprint([replace(official, plausible=())])


@pytest.mark.data
@pytest.mark.parametrize("name", ["dev-v2.0", "dev-v1.1", "train-v2.0.part", "calibration-v2.0"])
def test_real_sets_survive_a_round_trip(real_data, tmp_path, name):
    questions = read(real_data / "squad" / f"{name}.json")
    assert read(save_json(tmp_path / f"{name}.json", write(questions))) == questions
