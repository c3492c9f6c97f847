"""Refused commands: their exit code and one-line message; they print and write nothing else."""

import io
import shlex
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import make_checkpoint
from kills import contents
from line_answers import rows, write_lines

from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.files import write_json
from qa_arch.records import read_record, write_record

QUESTION = "--question Who? --context Ada."
HF = "export run --to hf --out hf"
TINY = "evaluate --run tiny-electra"
OWN = "model=bert debug=fast data=files data.train=faulty.json trainer.progress=false features.cache_dir=null"

REFUSED = [
    ("Who?\n| ask run", 2, "--context or --file"),
    ("| ask run --question Who?", 2, "standard input: is empty"),
    ("| ask run --question Who? --context ' '", 2, "--context: is empty"),
    ("x| ask run --question ' '", 2, "question: is empty"),
    ("/help\n| ask run --context x", 2, "/help: /file PATH"),
    ("caf\xe9\n| ask run --context x", 4, "standard input: byte 3 is not UTF-8"),
    ("x| ask run --question x --top-k 0", 2, "top_k: 0 is out of range"),
    (f"ask run {QUESTION} --null-threshold nan", 2, "--null-threshold: 'nan' is not a number"),
    ("data split --data dev.json --out x --parts train", 2, "--parts train: write NAME=SHARE"),
    ("data split --data dev.json --out x --parts a=0.5 a=0.5", 2, "with different names"),
    ("data split --data dev.json --out x --parts a=0.5 b=0.4", 2, "sum to 1"),
    ("evaluate", 2, "give --data and --predictions, or --run RUN"),
    ("evaluate --run run --predictions x.json", 2, "--predictions is for prediction files"),
    ("evaluate --run run --final", 2, "--final: synthetic-dev is not held out"),
    ("evaluate --run run --language de", 2, "--language is that of --data"),
    ("evaluate --data dev.json --predictions p.json --out dev.json", 2, "--out dev.json: writing it would"),
    ("evaluate --run run --out run/predictions.json", 2, "overwrite what is read; name another file"),
    ("report run --data dev.json --out ./dev.json", 2, "'./dev.json' does not end in .html"),
    ("inspect run --data dev.json --id x --html dev.json", 2, "'dev.json' does not end in .html"),
    ("data synthetic --articles 1 --out questions.csv", 2, "'questions.csv' does not end in .json"),
    ("data synthetic --articles 1 --out dev.json", 2, "dev.json: already exists and was not changed"),
    (
        "stats --data data/none.json",
        4,
        "check the path or, for data of an experiment, QA_ARCH_DATA (data)",
    ),
    ("compare run run --measure auroc --forced-f1", 2, "--forced-f1: not allowed with argument --measure"),
    ("adopt run --predictions x.json", 2, "give either SOURCE"),
    ("adopt run --decode grid --seed 0", 2, "--seed is for --predictions"),
    ("adopt --predictions x.json --name x --data dev.json --decode grid", 2, "--decode is for a checkpoint"),
    ("adopt --predictions x.json --data dev.json", 2, "needs the --data that was answered, and a --name"),
    ("adopt --predictions p.json --data dev.json --name x --calibration dev.json", 2, "given together"),
    ("adopt run", 2, "is a run already"),
    ("adopt run --set features.stride=9", 2, "--set is for a downloaded checkpoint"),
    ("adopt run --decode grid --on-error skip", 2, "--on-error is for --calibration"),
    ("report none --out page.html", 5, "none: no such run or folder"),
    ("tables run --publish experiments/x --columns typo", 2, "--columns is for tables"),
    ("tables run --publish experiments/x --format csv", 2, "--format is for tables"),
    ("compare run run --top -3", 2, "--top: -3 is out of range, it must be >= 0"),
    ("adopt run run", 2, "takes each run only once"),
    ("adopt run tiny-electra", 2, "adopt it alone"),
    ("adopt run --calibration dev.json --name ...", 2, "--name: needs a letter"),
    (TINY, 2, "--data: tiny-electra has no dev set of its own"),
    ("adopt tiny-electra --set optim.lr=1", 2, "optim: describes"),
    ("adopt tiny-electra --set features.max_length=0256", 2, "max_length: expected an integer, got '0256'"),
    ("evaluate --predictions p.json --data dev.json --device cpu", 2, "give --run"),
    ("export run --to onnx --out g --push me/model", 2, "are for --to hf"),
    (f"{HF} --precision int8", 2, "holds fp32 weights"),
    (f"{HF} --push a/b/c", 2, "--push: "),
    (f"{HF} --push me/model", 6, "HF_HUB_OFFLINE is set"),
    ("export x --to onx", 2, "--to: 'onx' is not a choice (did you mean 'onnx'?)"),
    ("list modle", 2, "nothing is called 'modle' (did you mean 'model'?)"),
    ("list lr", 2, "nothing is called 'lr'; a setting is: qa-arch list settings lr"),
    ("list settings batchsize", 2, "nothing matches 'batchsize' (did you mean 'trainer.batch_size'?)"),
    ("params seed=1 model=bert +seed=2", 2, "seed=1 and +seed=2: give seed once"),
    ("params model=bert glove.name=6B.50d", 2, "glove.name=6B.50d: has no effect, as no word vectors are"),
    ("power run --baseline bert --seeds 5,x", 2, "'x': give numbers >= 2"),
    ("predict run --data dev.json --out out --device abacus", 6, "--device cpu"),
    ("predict killed --data dev.json --out out", 5, "killed"),
    ("predict run --data dev.json --out killed", 2, "--out killed: is a run, whose own predictions stay"),
    ("predict run --out out.jsonl --data a.jsonl b.jsonl", 2, "give one file"),
    ("predict run --data lines.jsonl --out folder --top-k 2", 2, "--top-k is for JSON lines"),
    ("predict run --data dev.json --out out --if-exists resume", 2, "--if-exists resume is for JSON lines"),
    ("predict run --data dev.json --out A.JSONL", 2, "A.JSONL: give FILE.jsonl, or a folder"),
    ("serve run --port PORT", 6, "choose another --port"),
    ("serve run tiny-electra run", 2, "given twice"),
    ("serve run --timeout inf", 2, "--timeout: inf is out of range, it must be > 0 and finite"),
    ("serve run --token-file none", 2, "--token-file"),
    ("serve run --allow-host http://qa.org/qa", 2, "'http://qa.org/qa' is not a host name; give qa.org"),
    ("evaluate --data dev.json --predictions p.json --out=", 2, "--out=: is empty (an unset shell varia"),
    ("show ''", 2, "show '': is empty (an unset shell variable?)"),
    ("serve run --allow-host ::1 --allow-host '*.qa.org' --port 70000", 2, "--port: 70000"),
    ("serve empty --port 0", 5, "empty: "),
    ("stats --data dev.json --data dev.json", 2, "argument --data: is given twice; write all its values"),
    ("pretrain compare-tokenizers x --text a --text b", 2, "argument --text: is given twice"),
    ("suite shift", 2, "shift: no such suite or file (did you mean 'shifts'?)"),
    ("train --models bert,roberta model=proposed --dry-run", 2, "model=proposed and model=bert: give model"),
    ("tables run --columns ,", 2, "--columns: ',' names nothing"),
    ("tables --all --columns f1", 2, "leave out RUNS and other options"),
]
"""(command run in ``places``, exit code, part of the message); text before a pipe is standard input."""


@pytest.fixture(scope="module")
def places(trained, tmp_path_factory) -> Path:
    """Folder of a run twice, a killed run, a downloaded checkpoint, questions and an empty folder."""
    folder = tmp_path_factory.mktemp("places")
    shutil.copytree(trained, folder / "run")
    shutil.copytree(trained, folder / "again")
    write_record(folder / "killed", replace(read_record(trained), status="killed"))
    questions = generate(1, 4, 1, "dev")
    write_json(folder / "dev.json", write(questions))
    write_lines(folder / "lines.jsonl", rows(3))
    texts = [text for e in questions.examples for text in (e.question, e.context)]
    make_checkpoint("electra", folder / "tiny-electra", texts, max_position_embeddings=96)
    (folder / "empty").mkdir()
    return folder


READERS = [
    ("stats --data faulty.json", "--on-error skip"),
    ("predict run --data faulty.json --out answers", "--on-error skip"),
    ("adopt --data faulty.json --predictions answers.json --name x", "--on-error skip"),
    ("adopt run --calibration faulty.json --folder x", "--on-error skip"),
    ("evaluate --data faulty.json --predictions answers.json", ""),
    ("compare run again --data faulty.json", ""),
    (f"train {OWN} runs_dir=own", "data.on_error=skip"),
]
"""(command that reads a set with a faulty record, what makes it leave that out)."""


@pytest.mark.parametrize(("command", "remedy"), READERS)
def test_remedy_for_a_faulty_record_is_one_that_the_command_accepts(
    places, tmp_path, qa_arch, monkeypatch, command, remedy
):
    shutil.copytree(places, tmp_path / "places")
    monkeypatch.chdir(tmp_path / "places")
    questions = generate(4, 4, 1, "dev")
    content = write(questions)
    content["data"][0]["paragraphs"][0]["qas"][0]["question"] = " "
    write_json("faulty.json", content)
    write_json("answers.json", {example.id: "" for example in questions.examples})
    code, _, err = qa_arch(*shlex.split(command))
    assert (code, err.count("question: is empty (' '); fill it in")) == (4, 1)
    assert ("skip" in err, f"({remedy} leaves out faulty records)" in err) == (bool(remedy), bool(remedy))
    if remedy:
        assert qa_arch(*shlex.split(f"{command} {remedy}"))[0] == 0


@pytest.mark.parametrize(("command", "code", "message"), REFUSED)
def test_refused_command_writes_nothing(places, qa_arch, monkeypatch, command, code, message):
    monkeypatch.chdir(places)
    monkeypatch.setattr("qa_arch.cli.serve.open_reader", None)  # refused before models are loaded
    text, _, arguments = command.rpartition("|")
    stdin = SimpleNamespace(buffer=io.BytesIO(text.encode("latin-1")), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    before = contents(places)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        actual, out, err = qa_arch(*(port if word == "PORT" else word for word in shlex.split(arguments)))
    assert (actual, out, len(err.splitlines())) == (code, "", 1), err
    assert message in err
    assert "None" not in err
    assert contents(places) == before
