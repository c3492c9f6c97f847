"""A hundred malformed records a command: each is used or refused in one line; good ones stay listed."""

from __future__ import annotations

import json
import random

import pytest
from broken_records import REMOVED, changed

from qa_arch.cli.main import main
from qa_arch.records import RECORD

VALUES = (
    *(
        REMOVED,
        None,
        True,
        "",
        "x",
        "\x1b[2J",
        "[/red]",
        "../..",
        "-1",
        "é" * 5000,
        [],
        [[]],
        {},
        {"x": None},
    ),
    *(0, -1, 10**9, 10**300, 1e-320, float("nan"), float("inf"), ["x", 1, None], {"": {}}, {"f1": "x"}),
)
COMMANDS = {
    "show": ["show", "{runs}/malformed"],
    "tables": ["tables", "{runs}"],
    "report": ["report", "{runs}", "--out", "{runs}/../report.html"],
}


def places(value, path=()):
    """The path of every field, outermost first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_malformed_record_is_used_or_refused_in_one_line(make_run, question_set, capsys, command):
    runs = make_run("good", question_set()).parent
    path = make_run("malformed", question_set(), model="albert") / RECORD
    sound, rng = json.loads(path.read_text()), random.Random(f"{command} 2026")
    words = [word.format(runs=runs) for word in COMMANDS[command]]
    every = [(place, value) for place in places(sound) for value in VALUES]
    failed = []
    for place, value in rng.sample(every, 100):
        path.write_text(json.dumps(changed(sound, place, value)))
        code = main(words)
        out, err = capsys.readouterr()
        told = err.splitlines()
        refused = code == 5 and len(told) == 1 and str(path) in err
        listed = code == 0 and (command != "tables" or "bert" in out)
        if not (refused or listed):
            failed.append((place, value if value is REMOVED else str(value)[:40], code, err[-300:]))
    assert not failed, "\n".join(map(str, failed))
