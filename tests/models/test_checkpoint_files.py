"""Checkpoints: their names, where their files come from, and revisions."""

import json
import math
import re
import shutil

import pytest
import torch
from checkpoints import make_checkpoint
from families import new_encoder
from huggingface_hub import constants

from qa_arch.errors import RunError, UnavailableError
from qa_arch.models.checkpoint_files import names_checkpoint, open_checkpoint, record_folder
from qa_arch.models.store import open_tokenizer
from qa_arch.nn.encoder import Encoder
from qa_arch.qa.loading import load_predictor

COMMIT = "5f1d" * 10
TEXTS = ["Mira paints red boats in the harbour of Velmora."]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_checkpoint("bert", tmp_path_factory.mktemp("hub") / "tiny-bert", TEXTS)


@pytest.fixture
def hub(tiny, tmp_path, monkeypatch):
    """A local hub cache with one commit of ``velmora/tiny``."""
    model = tmp_path / "hub" / "models--velmora--tiny"
    shutil.copytree(tiny, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return model


def test_checkpoint_names_are_recognised(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert names_checkpoint(tiny)
    assert names_checkpoint("deepset/roberta-base-squad2")
    for other in ("runs", "runs/mistyped", "mistyped", "a/b/c", "../mistyped/x", tmp_path / "x", ".hidden/x"):
        assert not names_checkpoint(other), other


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("distilbert-base-cased-distilled-squad", "distilbert"),
        ("distilbert-base-uncased-distilled-squad", "distilbert"),
        ("bert-large-cased-whole-word-masking-finetuned-squad", "google-bert"),
        ("bert-large-uncased-whole-word-masking-finetuned-squad", "google-bert"),
    ],
)
def test_ids_that_once_had_no_owner_are_read_from_their_owner(hub, name, owner):
    assert names_checkpoint(name)
    assert record_folder(name).as_posix() == f"{owner}/{name}"
    with pytest.raises(UnavailableError, match=f"^{owner}/{name}: neither"):
        open_checkpoint(name)


def test_folder_with_a_record_is_a_run(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "exported")
    (folder / "run.json").write_text("{}")
    assert not names_checkpoint(folder)


def test_hub_id_is_read_from_the_cache(hub):
    files = open_checkpoint("velmora/tiny")
    assert (files.revision, files.name) == (COMMIT, "tiny")
    assert record_folder("velmora/tiny").as_posix() == "velmora/tiny"
    predictor = load_predictor("velmora/tiny", device="cpu")
    assert predictor.record.model == "tiny"
    assert predictor.record.config["encoder"]["name"] == "velmora/tiny"
    assert predictor.record.config["model"]["revision"] == COMMIT


def test_scored_revision_is_read_again(hub):
    shutil.copytree(hub / "snapshots" / COMMIT, hub / "snapshots" / ("a" * 40))
    (hub / "refs" / "main").write_text("a" * 40)
    assert open_checkpoint("velmora/tiny").revision == "a" * 40
    assert open_checkpoint("velmora/tiny", COMMIT).folder.name == COMMIT


def test_unreachable_hub_is_an_error(hub):
    with pytest.raises(UnavailableError, match=r"velmora/other: neither a local folder nor .* the network"):
        open_checkpoint("velmora/other")


def test_changed_checkpoint_folder_is_refused(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "copy")
    before = open_checkpoint(folder).revision
    assert before == open_checkpoint(tiny).revision  # wherever it is
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(RunError, match="is not the checkpoint that was scored"):
        open_checkpoint(folder, before)


def test_pickle_is_never_opened(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UnavailableError, match=r"holds no model\.safetensors; .* can run code"):
        load_predictor(folder, device="cpu")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"qa_outputs.bias": "weights.bin"}, "metadata": {}}, "names 'weights.bin'"),
        ({"weight_map": {"x": "../../e.safetensors"}, "metadata": {}}, "names '../../e.safetensors'"),
        ({"weight_map": {"x": 3}, "metadata": {}}, "names 3; only safetensors"),
        ({"weight_map": {}}, "is not a weight index"),
    ],
)
def test_weight_index_may_only_name_safetensors_in_its_folder(tiny, tmp_path, index, message):
    folder = shutil.copytree(tiny, tmp_path / "sharded")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({"qa_outputs.bias": torch.zeros(2)}, folder / "weights.bin")
    for load in (lambda: load_predictor(folder, device="cpu"), lambda: new_encoder(name=str(folder))):
        with pytest.raises(RunError, match=f"index.json: {re.escape(message)}"):
            load()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"hidden_act": "os.system"}, UnavailableError),
        ({"num_hidden_layers": 10**6}, UnavailableError),
        ({"num_labels": 2000}, UnavailableError),
        ({"dtype": math.inf}, UnavailableError),
        ({"deep": json.loads("[" * 500 + "]" * 500)}, RunError),
    ],
)
def test_unusable_configuration_error_is_one_line(tiny, tmp_path, change, kind):
    folder = shutil.copytree(tiny, tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    for load in (lambda: load_predictor(folder, device="cpu"), lambda: new_encoder(name=str(folder))):
        with pytest.raises(kind) as caught:
            load()
        assert str(caught.value).count("\n") == 0


def test_checkpoint_cannot_choose_its_attention(tiny, tmp_path, monkeypatch):
    """The library would fetch OWNER/NAME from the hub and run it."""
    folder = shutil.copytree(tiny, tmp_path / "kernel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attn_implementation": "velmora/kernel"}))
    encoder = new_encoder(name=str(folder))
    description = encoder.describe() | {"attn_implementation": "velmora/kernel"}
    models = (load_predictor(folder, device="cpu").model, encoder, Encoder.from_description(description))
    assert {model.backbone.config._attn_implementation for model in models} <= {"sdpa", "qa_arch_sdpa"}


def test_checkpoint_code_is_never_run(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "trap")
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "trap.Config", "AutoModelForQuestionAnswering": "trap.Model"}
    (folder / "trap.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for kind in ("bert", "unheard-of"):
        (folder / "config.json").write_text(json.dumps({**config, "model_type": kind, "auto_map": classes}))
        if kind == "bert":
            load_predictor(folder, device="cpu")
        else:
            path = folder / "tokenizer_config.json"
            marks = {"tokenizer_class": "Trap", "auto_map": {"AutoTokenizer": ["trap.Tokenizer", None]}}
            path.write_text(json.dumps({**json.loads(path.read_text()), **marks}))
            for load in (load_predictor, open_tokenizer, lambda place: new_encoder(name=place)):
                with pytest.raises(UnavailableError, match="qa_arch never runs a checkpoint's code"):
                    load(str(folder))
    assert not (tmp_path / "ran").exists()
