"""Compose and validate every file of ``conf/``; invalid settings are refused before anything loads."""

from __future__ import annotations

from functools import cache

import pytest
import yaml

from qa_arch.cli.compose import compose, merge, to_yaml
from qa_arch.config.find import conf_folder, config_folders, groups
from qa_arch.config.schema import GROUP_ENCODERS, Config, validate
from qa_arch.errors import ConfigError, QaArchError

CHOICES = {
    group: [choice for choice in choices if not choice.startswith("_")]
    for group, choices in groups(config_folders()).items()
}
OVERLAYS = ("experiment", "debug")
SEPARATE = ("encoder", "distillation", "special")
"""Groups with choices that need, or only work with, certain choices of other groups."""
TEACHER = "distillation.teacher=runs/teacher"
REQUIRED = {
    "data=files": ["data.train=some.json"],
    "encoder=minilm_l3": ["distillation=layers", TEACHER],
    **{f"distillation={choice}": [TEACHER] for choice in CHOICES["distillation"] if choice != "none"},
}
for special in CHOICES["special"]:
    overlay, _, model = special.partition("/")
    group = "debug" if overlay in CHOICES["debug"] else "experiment"
    REQUIRED[f"special={special}"] = [f"{group}={overlay}", f"model={model}"]


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


@pytest.mark.parametrize("overrides", covering_overrides(), ids=lambda overrides: overrides[0])
def test_every_choice_composes_and_is_valid(overrides):
    assert isinstance(validate(compose(overrides)), Config)


SPECIAL = set(CHOICES["special"])
"""``OVERLAY/MODEL`` pairs with settings of their own."""


def overlay_pairs():
    """All pairs of model and overlay; all but special pairs and one per overlay are slow."""
    overlays = [f"{group}={choice}" for group in OVERLAYS for choice in CHOICES[group]]
    for row, overlay in enumerate(overlays):
        for column, model in enumerate(CHOICES["model"]):
            special = f"{overlay.partition('=')[2]}/{model}" in SPECIAL
            fast = special or column == row % len(CHOICES["model"])
            yield pytest.param(model, overlay, marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(("model", "overlay"), list(overlay_pairs()))
def test_every_overlay_works_with_every_model(model, overlay):
    config = validate(compose([f"model={model}", overlay]))
    assert config.model["name"] == name_of(model)


def test_experiments_override_groups_and_the_user_overrides_both():
    assert validate(compose(["experiment=squad2_8gb"])).trainer.accumulate == 4
    assert validate(compose(["experiment=squad2_8gb", "trainer.accumulate=2"])).trainer.accumulate == 2
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
        ("optim.Lr=1", "optim.Lr.*did you mean 'optim.lr'?"),
        ("model=propsed", "model=propsed does not exist .did you mean 'proposed'?"),
        ("trainr.batch_size=4", "'trainr.batch_size'.*did you mean 'trainer.batch_size'?"),
        ("zzz.qqq=4", "'zzz.qqq'.*known: .*trainer.*qa-arch list settings"),
        ("model=proposed model.hiden=3", "'model.hiden' .did you mean 'model.hidden'?"),
        ("hydra.run.dir=x", "hydra.run.dir=x.*--folder DIR"),
        ("hydra.searchpath=[x]", "hydra.searchpath.*--config-dir DIR"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib.*train -m"),
        ("trainer.epochs=[1", "a value that contains"),
        ("encoder.freeze=some", "encoder.freeze: 'some' is not one of none|all or an integer >= 1"),
        ("model.task=tagging", "model.task: 'tagging' is not a choice .known: span, "),
        ("encoder.name=null", "encoder.name: missing"),
        ("encoder.init=random", "encoder.layers, encoder.width, encoder.heads, encoder.vocabulary"),
        (" ".join(SIZES), "also needs encoder.vocabulary"),
        ("debug=fast encoder.width=15", "not a multiple of encoder.heads"),
        ("debug=fast encoder.name=./mine", "./mine would not be loaded.*encoder.init=pretrained"),
        ("experiment=demo encoder.name=org/model", "org/model would not be loaded"),
        ("experiment=demo encoder=minilm", "encoder=minilm: would not be loaded"),
        ("model=match_lstm/boundary encoder.name=minilm", "minilm would not be loaded.*a new words"),
        ("encoder.layers=3 encoder.width=8", "encoder.layers, encoder.width: a pretrained encoder has"),
        ("features.stride=320", "features.stride: 320 leaves no step.*must be below"),
        ("trainer=cpu trainer.precision=fp16", "fp16 needs a GPU"),
        ("trainer.max_steps=0", "0 trains nothing"),
        ("trainer.select=last trainer.patience=2", "trainer.patience.*trainer.select=last"),
        ("data=demo data.calibration=null trainer.patience=2", "trainer.patience"),
        (
            "distillation.temperature=2",
            "distillation.temperature: has no effect without distillation.teacher",
        ),
        (f"{TEACHER} model=match_lstm/sequence", "task sequence cannot learn .* only those of span"),
        (f"{TEACHER} distillation.relations=1", "unknown setting .distillation.relations"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(overrides, message):
    with pytest.raises(QaArchError, match=message) as caught:
        validate(compose(overrides.split(" ")))
    assert "\n" not in str(caught.value)


def test_settings_just_inside_the_limits_are_accepted():
    assert validate(compose(["features.stride=319"])).features.stride == 319  # leaves a step of one token
    assert validate(compose([*SIZES, TEACHER])).encoder.vocabulary is None  # taken from the teacher
    explicit = [*SIZES, "encoder=minilm", "encoder.vocabulary=99"]
    assert validate(compose(explicit)).encoder.title == "bert, randomly initialised: 1 layer, hidden size 8"


def test_encoder_labels_match_the_config_groups():
    files = (yaml.safe_load(path.read_text()) for path in (conf_folder() / "encoder").glob("[!_]*.yaml"))
    assert {file["name"]: file["family"] for file in files if "name" in file} == GROUP_ENCODERS


def test_a_config_written_as_yaml_reads_back_the_same(tmp_path):
    plain = compose(["model=proposed", "experiment=demo"])
    (tmp_path / "config.yaml").write_text(to_yaml(plain))
    assert merge(tmp_path / "config.yaml", []) == plain
    changed = merge(tmp_path / "config.yaml", ["seed=5", "optim.lr=2e-5"])
    assert (changed["seed"], changed["optim"]["lr"]) == (5, 2e-5)
    with pytest.raises(ConfigError, match=r"'sed'.*did you mean 'seed'"):
        validate(merge(tmp_path / "config.yaml", ["sed=5"]))
