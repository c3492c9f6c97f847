"""``qa-arch compress``, and the other commands on compressed runs."""

import json

import pytest

QUESTION = ("--question", "Who wrote it?", "--context", "The song was written by Ada Stone.")


@pytest.mark.slow
def test_compressed_run_works_with_every_command(
    qa_arch, run_folder, tmp_path, monkeypatch, read_json, unchecked_shapes
):
    monkeypatch.chdir(tmp_path)
    code, out, err = qa_arch(
        *("compress", run_folder, "--out", "narrow", "--method", "widths", "--width", 24),
        *("--windows", 16, "--epochs", 1, "--lr", "1e-3"),
    )
    assert code == 0, err
    assert "bert-ffn24" in out
    assert "MB on disk" in out
    assert out.splitlines()[-1] == "record: narrow/run.json"
    code, out, err = qa_arch(
        "compress", "narrow", "--out", "small", "--method", "magnitude", "--sparsity", "0.5"
    )
    assert code == 0, err
    scores = read_json("small/run.json")["scores"]["dev"]["calibrated"]
    code, out, err = qa_arch("evaluate", "--json", "--run", "small")
    assert code == 0, err
    assert json.loads(out)["calibrated"]["f1"] == scores["metrics"]["f1"]
    assert qa_arch("ask", "small", *QUESTION)[0] == 0
    code, out, _ = qa_arch("show", "small")
    assert code == 0
    for words in ("compressed from", "narrow (config", "compression.1.width", "MB on disk"):
        assert words in out, words
    assert qa_arch("compare", run_folder, "small")[0] == 0
    assert qa_arch("report", run_folder, "small", "--out", "report.html")[0] == 0
    assert "bert-ffn24-sparse50" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert qa_arch("export", "small", "--to", "hf", "--out", "hf")[0] == 0
    assert read_json("hf/config.json")["intermediate_size"] == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "magnitude", "--sparsity", "0"], "compress.sparsity: 0.0 is out of range"),
        (["--method", "magnitude"], "compress: missing sparsity"),
        (
            ["--method", "layers", "--layers", "2", "--width", "2"],
            "--width is not an option of --method layers, which accepts --choose",
        ),
        (["--method", "magnitude", "--sparsity", "0.6", "--lr", "1e-3"], "--lr has no effect without"),
        (["--method", "widths", "--width", "9999"], "width: 9999 is not less than the 64"),
    ],
)
def test_invalid_options_print_one_line_and_leave_nothing(qa_arch, parent, tmp_path, options, message):
    code, out, err = qa_arch("compress", parent, "--out", tmp_path / "small", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_missing_package_is_reported_before_the_run_is_read(qa_arch, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    options = ("--out", tmp_path / "small", "--method", "heads", "--heads", 1)
    code, _, err = qa_arch("compress", tmp_path / "nowhere", *options)
    assert (code, "pip install -e '.[compress]'" in err) == (6, True)
