"""Loading run folders, which may be untrusted or incomplete."""

import json
import math
import shutil
import sys
from functools import reduce
from pathlib import Path

import pytest
import torch
from broken_records import change_record
from checkpoints import relabel
from safetensors.torch import load_file

import qa_arch
from qa_arch.config.target import locate
from qa_arch.errors import ConfigError, QaArchError, RunError, UnavailableError
from qa_arch.models import store
from qa_arch.qa.loading import load_predictor


@pytest.fixture
def copied(span_run, tmp_path):
    return shutil.copytree(span_run, tmp_path / "copy")


@pytest.fixture
def booby_trap(tmp_path, monkeypatch):
    """A module whose import leaves a trace."""
    (tmp_path / "booby_trap.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nclass Model: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "sprung"
    sys.modules.pop("booby_trap", None)


def test_run_folder_chooses_neither_cache_nor_logger(copied, tmp_path):
    change_record(copied, config__features__cache_dir=str(tmp_path / "anywhere"))
    change_record(copied, config__logger={"_target_": "pytorch_lightning.loggers.CometLogger"})
    config = load_predictor(copied, device="cpu").config
    assert (config.features.cache_dir, config.logger) == (".cache/features", {"_target_": None})


def test_untrusted_class_is_refused_without_import(copied, booby_trap):
    change_record(copied, config__model___target_="booby_trap.Model")
    with pytest.raises(ConfigError, match=r"booby_trap\.Model.*not imported.*--trust booby_trap"):
        qa_arch.load(copied)
    assert not booby_trap.exists()
    assert "booby_trap" not in sys.modules


def test_trusted_package_that_is_not_found_says_how_to_add_its_folder(copied):
    change_record(copied, config__model___target_="elsewhere.model.Model")
    with pytest.raises(ConfigError, match=r"'elsewhere'\); .* --config-dir \(in Python: add it to sys\.path"):
        qa_arch.load(copied, trust=["elsewhere"])
    with pytest.raises(ConfigError, match=r"cannot be imported \([^()]*\)$"):  # another folder would not help
        locate("qa_arch.nowhere.Model")
    change_record(copied, config__model___target_="qa_arch.types.Gold")
    with pytest.raises(ConfigError, match="Gold is not a model"):
        qa_arch.load(copied)


@pytest.mark.parametrize(
    "target",
    ["os.system", "qa_arch_evil.Model", "qa_arch", "qa_arch..x", "", None, "qa_arch.process.subprocess",
     "qa_arch.errors.__loader__", "qa_arch.data.squad.write"],
)  # fmt: skip
def test_targets_that_are_not_classes_of_trusted_modules_are_refused(target):
    with pytest.raises(ConfigError, match="_target_"):
        locate(target)


def edit(path, *keys, value):
    content = json.loads(path.read_text())
    reduce(lambda inner, key: inner[key], keys[:-1], content)[keys[-1]] = value
    path.write_text(json.dumps(content))


TOKENIZER = "model/tokenizer/tokenizer.json", "model"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("model/encoder.json", "num_hidden_layers"), 10**6, "encoder.json: is damaged .* more than 1000"),
        (("model/encoder.json", "hidden_size"), 10**6, "encoder.json: is damaged .* far larger than its"),
        (("model/encoder.json", "hidden_size"), 32, r"model\.safetensors: does not fit"),
        (("model/encoder.json", "num_attention_heads"), -1, "do not make a working model .RuntimeError: inv"),
        (("model/encoder.json", "layer_norm_eps"), math.nan, "do not make a working model .*not finite"),
        (("run.json", "config", "features", "max_length"), 999, "999 is more than the 64 tokens"),
        ((*TOKENIZER, "vocab"), {}, "do not make a working model .*Missing .UNK. token"),
        ((*TOKENIZER, "vocab", "[UNK]"), 10**6, "the encoder bert has .* embeddings, .* id 1000000"),
        (("model/tokenizer/tokenizer_config.json", "model_max_length"), "x", "do not make .*TypeError"),
    ],
)  # fmt: skip
def test_files_that_make_no_working_model_are_refused(copied, place, value, message):
    """Before anything of the size that they claim is built."""
    edit(copied / place[0], *place[1:], value=value)
    with pytest.raises((RunError, ConfigError), match=f"^.{{,300}}{message}"):
        qa_arch.load(copied)


@pytest.mark.parametrize(("kind", "names"), [("I32", ""), ("U32", "query.weight")])
def test_relabelled_weights_are_refused(copied, kind, names):
    relabel(copied / "model" / store.WEIGHTS, kind, names)
    with pytest.raises(RunError, match=r"does not fit the run's config: \S+ holds torch.u?int32, not torch"):
        qa_arch.load(copied)


def test_width_of_the_recorded_model_is_limited_by_its_files(copied):
    change_record(copied, config__model___target_="qa_arch.models.proposed.BertMatch")
    edit(copied / "run.json", "config", "model", "hidden", value=10**6)
    with pytest.raises(RunError, match=r"no.*far larger than its files"):
        qa_arch.load(copied)


@pytest.mark.parametrize("name", ["run.json", "model/model.safetensors", "model/encoder.json"])
def test_missing_and_truncated_files_are_named(copied, name):
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=Path(name).name):
        qa_arch.load(copied)
    (copied / name).unlink()
    with pytest.raises(RunError, match=Path(name).name):
        qa_arch.load(copied)
    if name != "run.json":
        shutil.rmtree(copied / "model")
        with pytest.raises(RunError, match=r"no weights .* qa-arch train --config-from \S*copy --folder RUN"):
            qa_arch.load(copied)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("encoder.json", '{"model_type": "evil"}'),
        ("encoder.json", '{"model_type": "bert", "hidden_act": "evil"}'),
        ("tokenizer/tokenizer.json", "no JSON"),
        ("tokenizer/tokenizer.json", "{}"),
        (store.WEIGHTS, None),
    ],
)
def test_damaged_model_file_is_named(copied, name, content):
    if content is None:
        state = load_file(copied / "model" / name)
        next(iter(state.values())).view(-1)[0] = float("nan")
        store.save_state(copied / "model", state)
    else:
        (copied / "model" / name).write_text(content)
    with pytest.raises(RunError, match=rf"{Path(name).name}: is damaged \(.{{,250}}\)"):
        qa_arch.load(copied)


def test_tokenizer_at_which_its_library_panics_is_named(copied):
    """It names special tokens that it does not have; a panic passes ``except Exception``."""
    file = copied / "model/tokenizer/tokenizer.json"
    content = json.loads(file.read_text())
    content["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"tokenizer\.json: is damaged \(.*no entry found"):
        qa_arch.load(copied)
    # Other classes of the library write their special tokens themselves.
    (file.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UnavailableError, match=r"no tokenizer for .*no entry found"):
        store.open_tokenizer(str(file.parent))


@pytest.mark.parametrize("temperature", [0, -1.0])
def test_temperature_that_makes_no_probabilities_is_refused(copied, temperature):
    confidence = {"method": "temperature", "value": temperature, "fitted_on": "calibration"}
    change_record(copied, confidence=confidence)
    with pytest.raises(RunError, match=r"run\.json: confidence\.value: .* must be > 0"):
        qa_arch.load(copied)


@pytest.mark.parametrize(
    ("file", "options", "error", "message"),
    [
        ("", {"precision": "float16"}, ConfigError, "choose from fp32, bf16, fp16, int8"),
        ("", {"device": "gpu"}, UnavailableError, "device gpu: cannot be used"),
        ("", {"device": -1}, UnavailableError, "device -1: cannot be used"),
        ("", {"max_question": "200"}, ConfigError, "^max_question: '200' is not a whole number"),
        ("", {"max_question": 40.5}, ConfigError, "^max_question: 40.5 is not a whole number"),
        ("", {"trust": 3}, ConfigError, "^trust: expected a string, got 3"),
        ("", {"trust": [b"mine"]}, ConfigError, "^trust: expected a string, got b'mine'"),
        ("model/model.safetensors", {}, RunError, "is a file; name the folder"),
    ],
)
def test_wrong_arguments_are_refused(copied, file, options, error, message):
    with pytest.raises(error, match=message):
        qa_arch.load(copied / file, **options)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_precision_of_an_ensemble_does_not_depend_on_the_order(copied, span_run, monkeypatch, precision):
    """That of training if all members have the same, else fp32: any of them may be a graph in int8."""
    monkeypatch.setattr("qa_arch.qa.loading.bf16_is_faster", lambda: True)
    change_record(copied, precision=precision)
    for sources in ([copied, span_run], [span_run, copied]):
        reader = qa_arch.load(sources, device="cpu", precision=None)
        assert (reader.precision, {p.dtype for p in reader.model.parameters()}) == ("fp32", {torch.float32})
    if precision == "bf16":
        twin = shutil.copytree(copied, copied.with_name("twin"))
        assert qa_arch.load([copied, twin], device="cpu", precision=None).precision == "bf16"


def test_nothing_to_load_and_no_trusted_package(copied):
    with pytest.raises(ConfigError, match=r"^source: names no model; give a run"):
        qa_arch.load([])
    for wrong in (None, 3, [3], b"run"):
        with pytest.raises(ConfigError, match=r"^source: expected a string, got"):
            qa_arch.load(wrong)
    assert qa_arch.load(folder for folder in [copied])
    assert qa_arch.load(qa_arch.Run(qa_arch.Run(copied)), trust=None)


def test_int8_buffer_of_a_users_model_loads_as_saved(tmp_path):
    model = torch.nn.Module()
    model.register_buffer("table", torch.ones(2, 3, dtype=torch.int8))
    store.save_weights(tmp_path, model)
    model.table.zero_()
    store.load_weights(tmp_path, model)
    assert model.table.sum() == 6


def test_failed_save_keeps_the_old_files(tmp_path, monkeypatch):
    model = torch.nn.Linear(2, 2)
    store.save_weights(tmp_path, model)
    before = (tmp_path / store.WEIGHTS).read_bytes()

    def half(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "save_file", half)
    with pytest.raises(QaArchError, match="No space left"):
        store.save_weights(tmp_path, torch.nn.Linear(2, 2))
    assert [path.name for path in tmp_path.iterdir()] == [store.WEIGHTS]
    assert (tmp_path / store.WEIGHTS).read_bytes() == before


def test_model_with_tied_weights_loads_as_saved(tmp_path):
    """As a whole, as a slice and transposed: state_dict lists each of them separately."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.write = torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False)
            self.write.weight = self.read.weight
            self.register_buffer("first", self.read.weight.detach()[:2])
            self.register_buffer("turned", self.read.weight.detach().T)

    model, copy = Tied(), Tied()
    store.save_weights(tmp_path, model)
    store.load_weights(tmp_path, copy)
    assert copy.write.weight is copy.read.weight
    assert all(torch.equal(copy.state_dict()[name], value) for name, value in model.state_dict().items())
