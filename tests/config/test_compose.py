"""Every file of ``conf/`` composes and is valid; invalid settings and folders are refused before a run."""

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

import hydra
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.version import getbase

from qa_arch.cli.own_models import write_model
from qa_arch.config.check import Range, convert, from_mapping
from qa_arch.config.compose import compose, merge, multirun, parse_sections, to_yaml
from qa_arch.config.find import config_folders, groups
from qa_arch.config.schema import Config, refuse_without_effect, validate
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.manifest import from_extras
from qa_arch.models.store import check_model
from qa_arch.records import read_record
from qa_arch.sweep import read_manifest

CHOICES = {
    group: [choice for choice in choices if not choice.startswith("_")]
    for group, choices in groups(config_folders()).items()
}
OVERLAYS = ("experiment", "debug")
SEARCHES = CHOICES.pop("hparams_search")
"""For ``train -m`` alone."""
for section in from_extras("sections"):  # chosen by the models that read them
    CHOICES.pop(section, None)
SEPARATE = ("encoder", "distillation")
"""Groups with choices that need, or only work with, certain choices of other groups."""
TEACHER = "distillation.teacher=runs/teacher"
OWN = "data.train=a.json data.dev=b.json"
REQUIRED = {
    "data=files": ["data.train=some.json"],
    "experiment=finetune": ["data.train=some.json"],
    "encoder=minilm_l3": ["distillation=layers", TEACHER],
    **{f"distillation={choice}": [TEACHER] for choice in CHOICES["distillation"] if choice != "none"},
}
SPECIAL = set(CHOICES.pop("special"))
"""``OVERLAY/MODEL`` pairs with settings of their own, which are chosen with them."""


def covering_overrides() -> list[list[str]]:
    """Overrides that cover every choice; those of ``SEPARATE`` groups stand alone."""
    others = [group for group in CHOICES if group not in (*OVERLAYS, *SEPARATE, "model")]
    longest = max(len(CHOICES[group]) for group in (*others, "model"))
    rows = [
        [f"{group}={CHOICES[group][n % len(CHOICES[group])]}" for group in ("model", *others)]
        for n in range(longest)
    ]
    rows += [[f"{group}={choice}"] for group in SEPARATE for choice in CHOICES[group]]
    return [[*row, *(word for choice in row for word in REQUIRED.get(choice, ()))] for row in rows]


@cache
def name_of(model: str) -> str:
    return compose([f"model={model}"])["model"]["name"]


def test_a_hydra_program_composes_and_keeps_its_own_state(tmp_path):
    (tmp_path / "own.yaml").write_text("a: 1")
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        own = GlobalHydra.instance().hydra
        assert compose(["model=bert"])["model"]["name"] == "bert"
        with pytest.raises(ConfigError, match=r"unknown setting 'sed' \(did you mean 'seed'"):
            compose(["sed=1"])
        with multirun(["model=bert", "seed=1,2"]) as sweep:
            assert len(sweep.grid()) == 2
        assert GlobalHydra.instance().hydra is own
        assert (str(getbase()), hydra.compose("own")) == ("1.2", {"a": 1})
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("overrides", covering_overrides(), ids=lambda overrides: overrides[0])
def test_every_choice_composes_and_is_valid(overrides):
    assert isinstance(validate(compose(overrides)), Config)


def overlay_pairs():
    """All pairs of model and overlay; all but special pairs, and one per debug overlay, are slow.

    The goldens have a dry run of every experiment.
    """
    overlays = [f"{group}={choice}" for group in OVERLAYS for choice in CHOICES[group]]
    for row, overlay in enumerate(overlays):
        group, _, choice = overlay.partition("=")
        quick = {pair.partition("/")[2] for pair in SPECIAL if pair.partition("/")[0] == choice}
        if group == "debug":
            quick |= {CHOICES["model"][row]}
        for model in CHOICES["model"]:
            yield pytest.param(model, overlay, marks=() if model in quick else pytest.mark.slow)


@pytest.mark.parametrize(("model", "overlay"), list(overlay_pairs()))
def test_every_overlay_works_with_every_model(model, overlay):
    config = validate(compose([f"model={model}", overlay, *REQUIRED.get(overlay, ())]))
    assert config.model["name"] == name_of(model)


def test_experiments_override_groups_and_the_user_overrides_both():
    assert validate(compose(["experiment=squad2_8gb"])).trainer.accumulate == 4
    assert validate(compose(["experiment=squad2_8gb", "trainer.global_batch=12"])).trainer.accumulate == 2
    assert validate(compose(["experiment=demo", "trainer.global_batch=64"])).trainer.accumulate == 2
    smoke = [validate(compose([f"experiment={name}", "debug=fast"])) for name in ("squad2", "thesis", "demo")]
    assert [(config.trainer.batch_size, config.trainer.accumulate) for config in smoke] == [(4, 1)] * 3
    assert validate(compose(["model=albert", "experiment=real_part"])).encoder.name == "minilm"


def test_experiment_settings_for_a_single_model():
    def composed(*overrides):
        config = validate(compose(["experiment=ablations", *overrides]))
        return config.encoder.family, config.encoder.name, config.features.max_length, config.optim.lr

    assert composed("model=bert") == ("bert", "minilm", 384, 1e-4)
    assert composed("model=match_lstm/boundary") == ("words", None, 1024, 2e-3)
    assert composed("model=match_lstm/boundary", "optim.lr=1") == ("words", None, 1024, 1.0)
    other = validate(compose(["experiment=real_part", "model=match_lstm/boundary"]))
    assert other.encoder.name == "minilm"


SIZES = [f"encoder.{size}" for size in ("family=bert", "layers=1", "width=8", "heads=2", "init=random")]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("experiment=null", "experiment=null: names no choice"),
        ("=3", "'=3' is not KEY=VALUE"),
        ("optim.Lr=1", "optim.Lr.*did you mean 'optim.lr'?"),
        ("model=propsed", "model=propsed does not exist .did you mean 'proposed'?"),
        ("zzz.qqq=4", "'zzz.qqq'.*known: .*trainer.*qa-arch list settings"),
        ("model=proposed model.hiden=3", "'model.hiden' .did you mean 'model.hidden'?"),
        ("model=bert model.widht=3", "'model.widht'; if the class of model takes it, .* write .model.widht="),
        ("hydra.searchpath=[x]", "hydra.searchpath.*--config-dir DIR"),
        ("logger=wandb,csv", r"name several loggers in brackets, as in logger=\[wandb,csv\]"),
        ("model=[bert]", r"^model=\[bert\]: takes one name, without brackets"),
        ("special=x", "^special=x: follows from experiment, debug and model"),
        ("experiment=ablations ~special", "^~special: follows from experiment, debug and model"),
        ("logger=[wandb,csv] logger.texts=true", "'logger.texts' .did you mean 'logger.wandb.texts'?"),
        ("~logger", "logger: a YAML file chooses a list|config: missing logger"),
        ("data.dev=hub:me/set:dev[:9]", r"a value that contains = , \[ { spaces .* needs quotes"),
        ("model.name=modèle", "^model.name=modèle; a value that contains .* outside ASCII needs quotes"),
        ("glove.path=~/glove.txt", r"^glove.path=~/glove.txt; .*; write \$HOME for ~$"),
        ("encoder.freeze=some", "encoder.freeze: 'some' is not one of none|all or an integer >= 1"),
        ("trainer.epochs=0", "trainer.epochs: 0 trains nothing; .* init_from=RUN"),
        (f"trainer.batch_size={10**20}", "^trainer.batch_size: 1.* is too large, an integer has 64 bits"),
        ("init_from=nowhere", "init_from: nowhere has no config.yaml"),
        ("~data.dev", "data: missing dev"),
        ("~model.task", "model: has no task; name it in its YAML .known: span, "),
        ("model.task=tagging", "model.task: 'tagging' is not a choice .known: span, "),
        ("encoder.name=null", "encoder.name: missing"),
        ("encoder.init=random", "encoder.layers, encoder.width, encoder.heads, encoder.vocabulary"),
        (" ".join(SIZES), "also needs encoder.vocabulary"),
        ("debug=fast encoder.width=15", "not a multiple of encoder.heads"),
        ("debug=fast encoder.name=./mine", "name=./mine: would not be loaded.*encoder.init=pretrained"),
        ("experiment=demo encoder.name=org/model", "org/model: would not be loaded"),
        ("experiment=demo ++encoder.name=org/model", "org/model: would not be loaded"),
        ("experiment=demo encoder=minilm", "encoder=minilm: would not be loaded"),
        (f"debug=fast {OWN}", "a.json: data.calibration=synthetic:calibration would .* add data=files, or"),
        (f"experiment=demo {OWN}", "12000 would .* add data=files and data.train_questions=0, or"),
        ("debug=fast data={train:a.json}", "^data={train:a.json}: write data=files data.train=FILE"),
        (f"experiment=demo data=files {OWN}", "data.train_questions=12000 .* give data.train_questions"),
        ("experiment=squad2 data.dev=b.json", "b.json: data.train=hub:.*add data=files, or give data.train"),
        ("model=match_lstm/boundary encoder.name=minilm", "minilm: would not be loaded.*a new words"),
        ("encoder.layers=3 encoder.width=8", "encoder.layers, encoder.width: a pretrained encoder has"),
        ("features.stride=320", "features.stride: 320 leaves no step.*must be below"),
        ("trainer=cpu trainer.precision=fp16", "fp16 needs a GPU"),
        ("data.hold_out_share=1.0", "data.hold_out_share: 1.0 is out of range, it must be >= 0 and < 1"),
        ("trainer.max_epochs=5", "^trainer.max_epochs: use trainer.epochs$"),
        ("+trainer.limit_val_batches=2", "^trainer.limit_val_batches: a null threshold needs all windows"),
        (
            "trainer.limit_train_batches=1.5",
            "limit_train_batches: 1.5 is not an integer >= 1 or a number > 0",
        ),
        ("name=../up", "name: '../up' cannot be the name of a folder"),
        ("trainer.select=last trainer.patience=2", "trainer.patience.*trainer.select=last"),
        ("data=demo data.calibration=null trainer.patience=2", "trainer.patience"),
        (
            "distillation.temperature=2",
            "distillation.temperature: has no effect without distillation.teacher",
        ),
        (
            "distillation=soft_targets distillation.teacher=[]",
            "^distillation.layers: has no effect without distillation.teacher",
        ),
        ("encoder.tokenizer=mine", "^encoder.tokenizer: a pretrained encoder has its own"),
        (f"{TEACHER} model=match_lstm/sequence", "task sequence cannot learn .* only those of span"),
        (f"{TEACHER} distillation.relations=1", "unknown setting .distillation.relations"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(overrides, message):
    with pytest.raises(QaArchError, match=message) as caught:
        validate(compose(overrides.split(" ")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("model=bert glove.name=6B.50d", "no word vectors are read"),
        ("data=part1 data.hold_out_share=0.3", "calibration questions are those of data.hold_out_articles=4"),
        ("data=demo data.hold_out_articles=3", "those of data.calibration=synthetic:calibration"),
        ("model=question_types data=trec data.hold_out_articles=3 data.hold_out_share=0.1", "articles=3"),
        ("data=demo data.calibration=null trainer.select=loss", "there are no calibration questions"),
        (
            "experiment=demo encoder.tokenizer=x encoder.vocabulary=77",
            "encoder.tokenizer=x has its own",
        ),
        ("glove=file glove.path=x model=match_lstm/boundary encoder.layers=4", "words has no layers"),
        ("glove=file glove.path=x model=match_lstm/sequence decode=greedy", "sequences have no search"),
        ("data=demo data.split_seed=3", "nothing is held out or drawn"),
        (f"data=demo {TEACHER}", "it gives neither soft targets nor layers"),
        (f"{TEACHER} distillation=layers distillation.temperature=2", "distillation.soft_targets is 0"),
    ],
)
def test_typed_setting_that_nothing_reads_is_refused(overrides, message):
    *before, word = overrides.split(" ")
    ignores = validate(compose([*before, word]))
    with pytest.raises(ConfigError, match=f"^{word}: has no effect, as .*{message}.*; leave it out$"):
        refuse_without_effect([*before, word], [ignores])
    reads = validate(compose(["model=proposed", "glove=file", "glove.path=x"]))
    refuse_without_effect([word], [ignores, reads])  # of a sweep
    refuse_without_effect([*before, "debug=fast", word], [ignores])
    refuse_without_effect(before, [ignores])


def test_settings_just_inside_the_limits_are_accepted():
    assert validate(compose(["features.stride=319"])).features.stride == 319  # leaves a step of one token
    assert validate(compose([*SIZES, TEACHER])).encoder.vocabulary is None  # taken from the teacher
    explicit = [*SIZES, "encoder=minilm", "encoder.vocabulary=99"]
    assert validate(compose(explicit)).encoder.title == "bert, randomly initialised: 1 layer, hidden size 8"


@pytest.mark.parametrize(
    "overrides",
    [
        f"debug=fast data=files {OWN}",
        f"experiment=demo data=files data.train_questions=0 {OWN}",
        f"experiment=squad2 {OWN}",
        "data=demo data.train=a.json",
        "experiment=demo data.calibration=null data.dev=null",
    ],
)
def test_sources_that_belong_together_are_accepted(overrides):
    validate(compose(overrides.split(" ")))


def test_an_empty_variable_names_no_folder(monkeypatch):
    """Paths would begin at the root of the file system."""
    for name in ("QA_ARCH_DATA", "QA_ARCH_GLOVE", "MRQA"):
        monkeypatch.setenv(name, "")
    config = validate(compose(["data=balanced", "glove=file", "glove.name=6B.50d"]))
    assert config.data.train == "data/squad/train-v2.0.balanced.json"
    assert config.glove.source == "data/glove/glove.6B.50d.txt"
    assert compose(["data=mrqa"])["data"]["train"] == "mrqa:mrqa/train/SQuAD.jsonl.gz"


def test_an_encoder_of_ones_own_is_a_file_in_its_group(tmp_path):
    for group, text in {
        "encoder": "defaults: [_base]\nname: google/electra-small-discriminator\nfamily: electra\n",
        "model": "defaults: [bert, {override /encoder@_global_.encoder: electra}]\nname: electra\n",
    }.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "electra.yaml").write_text(text)
    for trial in ("debug=fast", "experiment=demo"):
        assert validate(compose(["model=electra", trial], str(tmp_path))).encoder.family == "electra"
        with pytest.raises(ConfigError, match="encoder=electra: would not be loaded"):
            compose(["encoder=electra", trial], str(tmp_path))


def test_a_config_written_as_yaml_reads_back_the_same(tmp_path):
    plain = compose(["model=proposed", "experiment=demo"])
    (tmp_path / "config.yaml").write_text(to_yaml(plain))
    assert merge(tmp_path / "config.yaml", []) == plain
    changed = merge(tmp_path / "config.yaml", ["seed=5", "optim.lr=2e-5"])
    assert (changed["seed"], changed["optim"]["lr"]) == (5, 2e-5)
    with pytest.raises(ConfigError, match=r"'sed'.*did you mean 'seed'"):
        validate(merge(tmp_path / "config.yaml", ["sed=5"]))


@pytest.mark.parametrize("word", ["model.name=no", "model.name=010", "model.name='a=b'", "seed=1_0", "name="])
def test_a_setting_of_a_repeated_config_is_read_as_a_composed_one(tmp_path, word):
    """YAML 1.1 reads no as false, and 010 as 8."""
    (tmp_path / "config.yaml").write_text(to_yaml(compose([])))
    assert merge(tmp_path / "config.yaml", [word]) == compose([word])


@pytest.mark.parametrize("word", ["seed=1,2", "~data.dev", "data.dev=a=b", "data.dev"])
def test_a_word_that_is_no_single_setting_is_refused(tmp_path, word):
    (tmp_path / "config.yaml").write_text(to_yaml(compose([])))
    with pytest.raises(ConfigError, match=r"needs quotes: \"KEY='a=b'\""):
        merge(tmp_path / "config.yaml", [word])
    with pytest.raises(ConfigError, match=r"is not SECTION|needs quotes"):
        parse_sections([word])


@pytest.mark.parametrize("text", ["seed: 1", "encoder: {init: random, name: bert}"])
def test_an_incomplete_config_is_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    for override in ("encoder=minilm", "encoder.name=minilm"):
        with pytest.raises(ConfigError, match="encoder"):
            validate(merge(tmp_path / "config.yaml", [override]))


def test_a_recorded_config_reads_no_environment(tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml({"data": {"train": ["a", "${oc.env:HOME}"]}}))
    with pytest.raises(ConfigError, match=r"config\.yaml: config\.data\.train: '\$\{oc\.env:HOME\}'"):
        merge(tmp_path / "config.yaml", ["seed=5"])


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, Range(1, 4)]
    rate: Annotated[float, Range(0, above=True)] = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    mode: Literal["fast", "slow"] = "fast"
    share: Annotated[float, Range(0, 1)] | None = None
    count: Literal["all"] | Annotated[int, Range(1)] = "all"
    names: list[str] = field(default_factory=list)
    table: dict[str, dict[str, Any]] = field(default_factory=dict)
    flag: bool = False


VALID = {"name": "x", "inner": {"depth": 2}}


def test_values_are_converted_and_missing_ones_get_defaults():
    assert from_mapping(Outer, VALID) == Outer("x", Inner(2))
    actual = from_mapping(
        Outer, {**VALID, "inner": {"depth": 4, "rate": 2}, "share": 1, "count": 3, "names": ["a"]}
    )
    assert actual == Outer("x", Inner(4, 2.0), share=1.0, count=3, names=["a"])
    assert type(actual.inner.rate) is type(actual.share) is float
    assert [convert(str | list[str] | None, value, "x") for value in ("a", ["a"], None)] == ["a", ["a"], None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nmae": 1}, "unknown setting 'nmae' (did you mean 'name'?)"),
        ({"zzz": 1}, "unknown setting 'zzz' (known: count, flag, inner, mode, name, names, share, table)"),
        ({"inner": 3}, "inner: expected a mapping, got 3"),
        ({"inner": {"depth": 0}}, "inner.depth: 0 is out of range, it must be >= 1 and <= 4"),
        ({"inner": {"depth": True}}, "inner.depth: expected an integer, got True"),
        ({"inner": {"depth": 2, "rate": 0}}, "inner.rate: 0.0 is out of range, it must be > 0"),
        ({"inner": {"depth": 2, "rate": float("inf")}}, "inner.rate: expected a number, got inf"),
        ({"inner": {"depth": 2, "rate": 10**400}}, "inner.rate: expected a number, got 1000"),
        ({"mode": "fst"}, "mode: 'fst' is not a choice (did you mean 'fast'?)"),
        ({"count": 0}, "count: 0 is not one of all or an integer >= 1"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"names": ["a", 2]}, "names[1]: expected a string, got 2"),
    ],
)
def test_invalid_values_are_named(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        from_mapping(Outer, {**VALID, **change})
    assert "\n" not in str(caught.value)


def section(*overrides: str) -> dict:
    return validate(compose(list(overrides))).model


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+model.head.hiden=3"], "unknown setting 'model.head.hiden' (did you mean 'model.head.hidden'?)"),
        (["~model.head.hidden"], "model.head: PointerHead also needs hidden"),
        (["~model.head._target_"], "model.head: has no _target_; name its class"),
        (["model.head._target_=os.system"], "model.head._target_: 'os.system' is outside qa_arch"),
        (
            ["model.head._target_=qa_arch.nn.heads.Verifier"],
            "model.head._target_: Verifier does not take in_dim, sentinel",
        ),
    ],
)
def test_invalid_head_is_reported_before_a_model_is_built(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_model(section("model=proposed", *overrides))


def test_head_of_another_package_needs_trust(tmp_path, monkeypatch):
    (tmp_path / "others.py").write_text(
        "class Head:\n    def __init__(self, in_dim, sentinel, *, depth: int = 1): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = {**section("model=bert"), "head": {"_target_": "others.Head", "depth": 2}}
    with pytest.raises(ConfigError, match="add --trust others"):
        check_model(model)
    assert check_model(model, ("qa_arch", "baselines", "others"))
    with pytest.raises(ConfigError, match=re.escape("model.head.depth: expected an integer")):
        check_model({**model, "head": {"_target_": "others.Head", "depth": "x"}}, ("baselines", "others"))


EXPERIMENT = """\
# @package _global_
defaults:
  - override /model: mine
name: ours
seed: 5
"""


@pytest.fixture
def config_dir(tmp_path, monkeypatch):
    """A config folder with a model from ``new-model``, an experiment and unrelated YAML files."""
    folder = tmp_path / "with space"
    write_model("mine", folder)
    for name, text in {
        "experiment/ours.yaml": EXPERIMENT,
        "docker-compose.yaml": "unrelated: true\n",
        "notes/x.yaml": "unrelated: true\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


def test_user_choices_are_composed(config_dir):
    composed = compose(["model=mine", "model.hidden=4"], str(config_dir))
    assert (composed["model"]["_target_"], composed["model"]["hidden"]) == ("mine.model.Mine", 4)
    composed = compose(["experiment=ours"], str(config_dir))
    assert (composed["model"]["name"], composed["seed"]) == ("mine", 5)
    assert compose(["model=bert"], str(config_dir)) == compose(["model=bert"])


def test_suggestions_include_both_folders(config_dir):
    for override, suggestion in {"model=mien": "mine", "model=brt": "bert", "experiment=our": "ours"}.items():
        with pytest.raises(ConfigError, match=f"{override} does not exist .did you mean '{suggestion}'"):
            compose([override], str(config_dir))
    with pytest.raises(ConfigError, match=r"did you mean 'model\.hidden'"):
        compose(["model=mine", "model.hiden=3"], str(config_dir))


def test_useless_folder_is_refused(config_dir, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        config_folders(tmp_path / "none")
    (tmp_path / "empty" / "notes").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no choice of any group, such as model/NAME\.yaml"):
        config_folders(tmp_path / "empty")
    shutil.copy(config_dir / "model" / "mine.yaml", config_dir / "model" / "bert.yaml")
    with pytest.raises(ConfigError, match=r"model/bert\.yaml has the name of one of qa_arch's own"):
        compose(["model=mine"], str(config_dir))
    (config_dir / "model" / "bert.yaml").write_text("[" * 600 + "]" * 600)
    (config_dir / "model" / "bert.yaml").rename(config_dir / "model" / "deep.yaml")
    with pytest.raises(ConfigError, match=r"^.*model/deep\.yaml: is not valid YAML: maximum recursion.*$"):
        compose(["model=mine"], str(config_dir))


def test_packages_in_the_folder_need_trust(config_dir, qa_arch):
    command = ("params", "model=mine", "debug=fast", "--config-dir", config_dir, "--json")
    code, _, err = qa_arch(*command)
    assert (code, "--trust mine" in err) == (ConfigError.exit_code, True)
    assert str(config_dir) not in sys.path
    code, out, err = qa_arch(*command, "--trust", "mine")
    assert code == 0, err
    assert json.loads(out)["total"] > 0


@pytest.mark.slow
def test_sweep_points_import_from_the_folder(config_dir, qa_arch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("model=mine", "debug=fast", "features.cache_dir=null", "trainer.progress=false", "seed=1")
    options = ("--config-dir", config_dir, "--trust", "mine", "sweep.folder=sweep", "seed=1,2")
    code, out, err = qa_arch("train", "-m", *settings[:-1], "trainer.max_steps=1", *options)
    assert code == 0, (out, err)
    manifest = read_manifest(tmp_path / "sweep")
    assert manifest.config_dir == str(config_dir)
    assert {read_record(tmp_path / "sweep" / entry.name).model for entry in manifest.points} == {"mine"}
