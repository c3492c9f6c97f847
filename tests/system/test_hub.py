"""The hub's real clients against a local hub: faults, revisions, restrictions, uploads, whole commands."""

import logging
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from logging.handlers import BufferingHandler
from runpy import run_path

import huggingface_hub
import pytest
from families import new_encoder
from hub_server import QUESTIONS, Fault, data_card, rows
from huggingface_hub.errors import HTTPError
from transformers import PretrainedConfig
from transformers.modeling_utils import is_env_variable_true
from wandb.env import error_reporting_enabled

import qa_arch as package
from qa_arch import hub
from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.data.sources import open_passages
from qa_arch.data.squad import write
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.files import write_json
from qa_arch.models.checkpoint_files import open_checkpoint
from qa_arch.models.store import open_tokenizer
from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.records import DEV, read_record
from qa_arch.serving.pipeline import pipeline
from qa_arch.training.jobs import require_hub


def configured(*overrides: str) -> Config:
    return validate(compose(["model=bert", "data=demo", *overrides]))


ENCODER = configured("encoder.name=tiny/bert").encoder


def test_broken_transfer_is_an_error_of_one_line(monkeypatch, tmp_path):
    """The errors of the hub's HTTP library are no OSError."""

    def broken(*_, **__):
        raise HTTPError("peer closed connection\nwithout sending complete message body")

    assert not issubclass(HTTPError, OSError)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    monkeypatch.setattr(PretrainedConfig, "get_config_dict", broken)
    for load in (lambda: open_checkpoint("velmora/tiny"), lambda: new_encoder(name="velmora/tiny")):
        with pytest.raises(UnavailableError, match=r"^.*\(peer closed connection\).*$"):
            load()
    with pytest.raises(ZeroDivisionError):
        hub.retried(lambda: 1 / 0)


@pytest.fixture
def filled(online, repositories):
    """A hub with the encoder tiny/bert and the data set tiny/set."""
    shutil.copytree(repositories, online.root)
    files = {f"{split}.jsonl": rows(questions) for split, questions in QUESTIONS.items()}
    online.add("datasets", "tiny/set", {"README.md": data_card(), **files})
    return online


def test_hub_that_did_not_answer_is_not_called_the_users_choice(online, monkeypatch):
    """Nor in processes that this one starts. What users set is theirs."""
    hub.go_offline()
    assert hub.state() == "the hub did not answer before; a new process asks it again"
    command = "from huggingface_hub import constants; from qa_arch import hub"
    command += "; print(constants.HF_HUB_OFFLINE, hub.state())"
    child = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert child.stdout.startswith("True the hub did not answer before")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.go_offline()
    assert hub.state() == "HF_HUB_OFFLINE is set"


@pytest.mark.parametrize(("here", "other"), [("main", "v1"), ("v1", "main")])
def test_model_in_a_cache_below_the_home_folder_is_found_by_its_revision(tmp_path, monkeypatch, here, other):
    """Without one it is ``main``, as for the hub's client: any other would fail when it is loaded."""
    for file, text in ((f"refs/{here}", "1"), ("snapshots/1/config.json", "{}")):
        path = tmp_path / "hub/models--me--model" / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", "~/hub")
    assert hub.cached("models", "me/model", here)
    assert not hub.cached("models", "me/model", other)
    assert hub.cached("models", "me/model") == (here == "main")
    assert not hub.cached("models", "me/other")


# Revisions and configurations ----------------------------------------------------------------------


def test_pinned_revision_of_a_data_set_is_read_offline_too(filled, online):
    old = {"validation.jsonl": rows(QUESTIONS["train"])}
    commit = online.add("datasets", "tiny/set", {"README.md": data_card(), **old}, "v1")
    first, newest = (open_passages(f"hub:tiny/set{at}:validation") for at in ("@v1", ""))
    assert first.fingerprint == QUESTIONS["train"].fingerprint != newest.fingerprint
    hub.go_offline()
    for revision in ("v1", commit):
        again = open_passages(f"hub:tiny/set@{revision}:validation")
        assert again.fingerprint == first.fingerprint
        assert hub.cached("datasets", "tiny/set", revision)
    assert open_passages("hub:tiny/set:validation").fingerprint == newest.fingerprint
    for revision in ("v2", "0" * 40):
        assert not hub.cached("datasets", "tiny/set", revision)
        with pytest.raises(UnavailableError, match=f"revision {revision} was not downloaded before"):
            open_passages(f"hub:tiny/set@{revision}:validation")


def test_configurations_of_a_data_set_are_named(online):
    names = {"xquad.de": QUESTIONS["train"], "xquad.en": QUESTIONS["validation"]}
    files = {f"{name}/validation.jsonl": rows(questions) for name, questions in names.items()}
    online.add("datasets", "tiny/xquad", {"README.md": data_card(*names), **files})
    for name, questions in names.items():
        read = open_passages(f"hub:tiny/xquad:validation:{name}")
        assert (read.fingerprint, read.name) == (questions.fingerprint, f"tiny/xquad:validation:{name}")
    assert len(open_passages("hub:tiny/xquad:validation[:3]:xquad.de")) == 3
    for source in ("hub:tiny/xquad:validation", "hub:tiny/xquad@main:validation[:3]"):
        for config in ("", ":xquad.fr"):
            with pytest.raises(DataError) as caught:
                open_passages(f"{source}{config}")
            assert f"name a configuration: {source}:CONFIG (" in str(caught.value)
            assert all(name in str(caught.value) for name in names)


def test_encoder_is_pinned(filled, online, repositories):
    folder = repositories / "models/tiny/bert@main"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = files["config.json"].replace(b'"layer_norm_eps": 1e-12', b'"layer_norm_eps": 1e-06')
    commit = online.add("models", "tiny/bert", files | {"config.json": config}, "v1")
    for revision in ("v1", commit):
        pinned = build_encoder(configured(f"encoder.name=tiny/bert@{revision}").encoder)
        assert pinned.backbone.config.layer_norm_eps == 1e-6
        assert hub.commit_of("models", "tiny/bert", revision) == commit
        assert open_tokenizer(f"tiny/bert@{revision}").vocab_size
    assert build_encoder(ENCODER).backbone.config.layer_norm_eps == 1e-12


def test_checkpoint_is_read_in_the_revision_that_is_given(filled, online, repositories):
    files = {path.name: path.read_bytes() for path in (repositories / "models/tiny/bert@main").iterdir()}
    config = files["config.json"].replace(b'"layer_norm_eps": 1e-12', b'"layer_norm_eps": 1e-06')
    commit = online.add("models", "tiny/bert", files | {"config.json": config}, "v1")
    for revision, expected in (("v1", 1e-6), (commit, 1e-6), ("main", 1e-12), (None, 1e-12)):
        model = pipeline(model="tiny/bert", revision=revision, device="cpu").model
        assert model.config.layer_norm_eps == expected
        pinned = "tiny/bert" if revision is None else f"tiny/bert@{revision}"
        reader = package.load(pinned, device="cpu")
        assert reader.model.model.config.layer_norm_eps == expected
        assert reader.record.setting("model", "revision") == hub.commit_of("models", "tiny/bert", revision)


def test_closed_checkpoint_says_how_to_read_it(filled, online):
    online.closed = {"closed/gated": "gated", "closed/private": "private"}
    for name in online.closed:
        online.add("models", name, {"config.json": "{}"})
    for name, message in (
        (
            "closed/gated",
            "access to closed/gated is restricted; ask for it at .*/closed/gated, then set HF_TOK",
        ),
        (
            "closed/private",
            "closed/private is not on the hub, or private; check the spelling, or set HF_TOKEN",
        ),
        ("tiny/none", "tiny/none is not on the hub, or private; check the spelling, or set HF_TOKEN"),
    ):
        with pytest.raises(UnavailableError, match=f"^{message}"):
            open_checkpoint(name)
    with pytest.raises(
        UnavailableError, match=r"^tiny/bert has no revision 'v7'; name a branch, a tag or a comm"
    ):
        open_checkpoint("tiny/bert", "v7")


def test_closed_data_set_says_how_to_read_it(online):
    online.closed = {"closed/gated": "gated", "closed/private": "private"}
    for name in online.closed:
        online.add("datasets", name, {"README.md": data_card()})
    for name, message in (
        ("closed/gated", "access to closed/gated is restricted; ask for it at .*/datasets/closed/gated,"),
        ("closed/private", "closed/private is not on the hub, or private; check the spelling, or set HF_"),
        ("tiny/none", "tiny/none is not on the hub, or private; check the spelling, or set HF_TOKEN"),
    ):
        with pytest.raises(UnavailableError, match=f"^hub:{name}:train: {message}"):
            open_passages(f"hub:{name}:train")


# What is checked before a run ----------------------------------------------------------------------


def test_all_ids_are_checked_with_one_request_each(filled, online, monkeypatch):
    """Members may read what is restricted."""
    online.moved = {"bert": "tiny/bert"}
    online.closed = {"closed/gated": "gated", "closed/private": "private"}
    for name in online.closed:
        online.add("models", name, {"config.json": "{}"})
    names = ("tiny/bert", "bert", "tiny/bert@v7", "closed/gated", "closed/private", "tiny/none")
    data = ["data=files", "data.train=hub:tiny/absent:train", "data.dev=hub:tiny/set:validation"]
    configs = [configured(f"encoder.name={name}", *data) for name in names] * 2
    with pytest.raises(UnavailableError) as caught:
        require_hub(configs)
    message = str(caught.value)
    for part in (
        "tiny/bert has no revision 'v7'",
        f"access to closed/gated is restricted; ask for it at {online.url}/closed/gated, then set HF_TOKEN,",
        "closed/private is not on the hub, or private; check the spelling, or set HF_TOKEN",
        "tiny/none is not on the hub",
        "tiny/absent is not on the hub",
    ):
        assert part in message
    assert "\n" not in message
    assert "tiny/set" not in message
    asked = [request for request in online.requests if request != "HEAD /"]
    assert len(asked) == len(names) + 2 + 1  # two data sets, and one redirect
    monkeypatch.setenv("HF_TOKEN", "hf_member")
    require_hub([configured(f"encoder.name={name}") for name in online.closed])


@pytest.mark.parametrize(
    ("path", "times", "status", "message"),
    [("config.json", 1, 503, None), ("tiny/bert", 99, 403, r"refuses tiny/bert \(403 .*set HF_TOKEN")],
    ids=["busy for a moment", "refused"],
)
def test_check_of_a_repository_is_repeated_unless_it_is_refused(online, path, times, status, message):
    online.add("models", "tiny/bert", {"config.json": "{}"})
    online.faults = [Fault(path, times=times, status=status)]
    with pytest.raises(UnavailableError, match=message) if message else nullcontext():
        require_hub([configured("encoder.name=tiny/bert")])
    assert online.faults[0].times < times


def test_busy_hub_counts_as_unreachable(filled, online):
    """What is cached is read at once; without the cache it is an error."""
    data = ("data=files", "data.train=hub:tiny/set:train", "data.dev=null")
    config = configured("encoder.name=tiny/bert", *data)
    online.faults = [Fault("", status=429)]
    with pytest.raises(UnavailableError, match="not downloaded before, and the hub answers 429"):
        require_hub([config])
    online.faults = []
    build_encoder(config.encoder)
    open_passages("hub:tiny/set:train")
    online.faults, online.requests = [Fault("", status=429)], []
    begun = time.monotonic()
    require_hub([config])
    build_encoder(config.encoder)
    assert open_passages("hub:tiny/set:train").fingerprint == QUESTIONS["train"].fingerprint
    assert time.monotonic() - begun < 30
    assert len(online.requests) <= 1


def test_time_limit_is_a_setting(online, monkeypatch):
    online.faults = [Fault("HEAD /$", delay=0.3)]
    monkeypatch.setenv(hub.TIMEOUT, "0.1")
    assert hub.state() == "the hub does not answer"
    hub._silence.cache_clear()
    monkeypatch.setenv(hub.TIMEOUT, "20")
    assert not hub.state()
    hub._silence.cache_clear()
    for wrong in ("fast", "0", "-1", "inf"):
        monkeypatch.setenv(hub.TIMEOUT, wrong)
        with pytest.raises(ConfigError, match="QA_ARCH_HUB_TIMEOUT"):
            hub.state()


# Interrupted transfers -----------------------------------------------------------------------------

READERS = {
    "encoder": (lambda: build_encoder(ENCODER), "GET /tiny/bert.*safetensors"),
    "tokenizer": (lambda: open_tokenizer("tiny/bert"), "GET /tiny/bert.*tokenizer.json"),
    "checkpoint": (lambda: open_checkpoint("tiny/bert"), "GET /tiny/bert.*safetensors"),
    "data": (lambda: open_passages("hub:tiny/set:train"), "GET /datasets/tiny/set.*train.jsonl"),
}
BAD_GATEWAY = ({"status": 502}, "answers 502")


@pytest.mark.parametrize("name", READERS)
def test_lasting_fault_is_one_line_and_a_passing_one_is_repeated(filled, online, monkeypatch, name):
    """The line has the cause; the client's own reports are silenced."""
    read, pattern = READERS[name]
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [heard := BufferingHandler(99)])
    fault, cause = ({"cut": 100}, "closed|incomplete") if name in ("data", "encoder") else BAD_GATEWAY
    online.faults = [Fault(pattern, **fault)]
    with pytest.raises(UnavailableError, match=cause) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert not heard.buffer
    online.faults = [Fault(pattern, times=1, **fault)]
    assert read()
    assert online.faults[0].times == 0


# Uploads -------------------------------------------------------------------------------------------


@pytest.fixture
def member(online, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_member")
    return online


def test_folder_is_uploaded_in_one_commit(member, tmp_path):
    folder = tmp_path / "export"
    (folder / "deeper").mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "deeper/vocab.txt").write_text("word\n")
    hub.require_upload("me/model")
    url = hub.upload(folder, "me/model", private=True)
    there = member.folder("models", "me/model", "main")
    assert url == f"{member.url}/me/model/commit/{member.commit(there)}"
    assert member.closed == {"me/model": "private"}
    assert {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()} == {
        "config.json",
        "deeper/vocab.txt",
    }
    (folder / "config.json").write_text('{"a": 2}')
    hub.upload(folder, "me/model", private=True)
    assert (there / "config.json").read_text() == '{"a": 2}'
    member.faults.append(Fault("/commit/main", status=403))
    with pytest.raises(UnavailableError):
        hub.upload(folder, "me/model", private=True)
    assert there.exists(), "it was there before"


@pytest.mark.parametrize(("path", "status"), [("repos/create", 403), ("/commit/main", 500)])
def test_failed_upload_leaves_no_repository_and_has_a_remedy(member, tmp_path, path, status):
    (tmp_path / "config.json").write_text("{}")
    member.faults.append(Fault(path, status=status))
    with pytest.raises(UnavailableError) as error:
        hub.upload(tmp_path, "they/model", private=False)
    assert f"hf upload they/model {tmp_path}" in str(error.value)
    assert str(status) in str(error.value)
    assert "\n" not in str(error.value)
    assert not member.folder("models", "they/model", "main").exists()


def test_impossible_upload_is_refused_before_any_request(member, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UnavailableError, match="hf auth login"):
        hub.require_upload("me/model")
    hub.require_upload("me/model", dry=True)
    assert {request.split("?")[0] for request in member.requests} <= {"HEAD /"}


def test_libraries_report_nothing_to_their_makers_unless_the_user_lets_them(monkeypatch):
    """As the libraries themselves read the environment."""
    names = ("DISABLE_SAFETENSORS_CONVERSION", "HF_HUB_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING")
    for given, expected in ((None, (True, True, False)), ("0", (False, False, False))):
        for name in names:
            monkeypatch.delenv(name) if given is None else monkeypatch.setenv(name, given)
        run_path(package.__file__)
        silent = run_path(huggingface_hub.constants.__file__)["HF_HUB_DISABLE_TELEMETRY"]
        assert (is_env_variable_true(names[0]), silent, error_reporting_enabled()) == expected


def test_training_and_what_follows_it(filled, online, qa_arch, tmp_path, monkeypatch):
    """Records name the weights that a run started from, and the official file is the hub's set."""
    commit = online.commit(online.folder("models", "tiny/bert", "main"))
    monkeypatch.chdir(tmp_path)
    settings = [
        *("model=bert", "experiment=squad2", "encoder.name=tiny/bert@main", "logger=none"),
        *("data.train=hub:tiny/set:train", "data.dev=hub:tiny/set:validation"),
        *("features.max_length=64", "features.stride=16", "features.max_question=24"),
        *("trainer.max_steps=2", "trainer.progress=false", "trainer.accelerator=cpu"),
    ]
    code, _, err = qa_arch("train", *settings, "--folder", "online")
    assert code == 0, err
    record = read_record("online")
    assert record.initial.commit == commit
    official = write(QUESTIONS["validation"])
    for article in official["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                if question["is_impossible"]:
                    question["plausible_answers"] = [{"text": paragraph["context"][:3], "answer_start": 0}]
    write_json("dev.json", official)
    assert qa_arch("show", "online", "--data", "dev.json")[0] == 0
    hub.go_offline()
    online.requests.clear()
    code, _, err = qa_arch("train", *settings, "seed=14", "--folder", "offline")
    assert code == 0, err
    assert online.requests == []
    again = read_record("offline")
    assert again.initial == record.initial
    assert again.fingerprint(DEV) == record.fingerprint(DEV)
    assert qa_arch("compare", "online", "offline", "--data", "dev.json")[0] == 0
