"""The jobs of docs/clusters.md on a local SLURM: a controller and two nodes on one host."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pages import BLOCK
from stops import results_of

from qa_arch.records import RunRecord, read_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("slurmctld"), reason="no SLURM: apt-get install slurm-wlm munge"),
    pytest.mark.skipif(os.geteuid() != 0, reason="munged and slurmd are started by root"),
]
PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
NODES = ("127.0.0.1", "127.0.0.2")
"""Names of the nodes: addresses, since the ranks connect to the name of the first."""
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
MpiDefault=none
MinJobAge=2
KillWait=5
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=60
"""
TINY = (
    *("model=bert", "debug=fast", "data.train_questions=24", "features.cache_dir=null", "model.dropout=0"),
    *(
        "features.max_length=96",
        "encoder.initializer_range=0.1",
        "encoder.hidden_dropout=0",
        "encoder.attention_dropout=0",
    ),
    *("trainer.max_steps=-1", "trainer.epochs=20", "trainer.checkpoint_minutes=1e-9", "optim.lr=1e-3"),
)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory) -> Iterator[None]:
    """Start a SLURM of two nodes without accounting, which the commands of this process use."""
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname()
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    with ExitStack() as probes:
        bound = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [probe.getsockname()[1] for probe in bound]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, ports=ports, nodes=NODES))
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *munge],
        ["slurmctld", "-D", "-f", conf],
        *(["slurmd", "-D", "-f", conf, "-N", node] for node in NODES),
    ]
    with pytest.MonkeyPatch.context() as patch, (folder / "daemons.log").open("wb") as log:
        patch.setenv("SLURM_CONF", str(conf))
        patch.setenv("OMP_NUM_THREADS", "1")
        daemons = []
        try:
            for command in commands:
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
                wait_for((folder / "munge.sock").exists, 10)
            wait_for(lambda: output_of("sinfo", "--noheader", "--format=%t %D") == "idle 2", 60)
            yield
            output_of("scancel", "--me")
            wait_for(lambda: not output_of("squeue", "--noheader"), 60)
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(30)


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} seconds"
        time.sleep(0.1)


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def qa_arch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qa_arch.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def tiny(few_questions) -> list[str]:
    return [*TINY, *few_questions]


@pytest.fixture(scope="module")
def expected(tiny, tmp_path_factory) -> tuple[RunRecord, bytes]:
    """Record and weights of a run that starts its two ranks itself, with SLURM's commands installed."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    ranks = ("trainer=ddp", "trainer.devices=2", "trainer.batch_size=3")
    done = qa_arch("train", *tiny, *ranks, "--folder", str(folder))
    assert (done.returncode, "srun" in done.stderr) == (0, False), done.stderr
    return result(folder)


def result(folder: Path) -> tuple[RunRecord, bytes]:
    return read_record(folder), (folder / "model" / "model.safetensors").read_bytes()


def check_same(folder: Path, expected: tuple[RunRecord, bytes]) -> None:
    """Compare all but the config hash: the page's torchrun command does not set the strategy."""
    record, weights = result(folder)
    assert results_of(replace(record, run_hash="")) == results_of(replace(expected[0], run_hash=""))
    assert record.batch == expected[0].batch
    assert weights == expected[1]


def submit(name: str, tiny: list[str], folder: Path) -> str:
    """Submit the page's ``job.sh`` with one task on each of two nodes; returns the job id."""
    job, torchrun = (
        block for block in BLOCK.findall(PAGE.read_text()) if re.search("^srun ", block, re.MULTILINE)
    )
    script = job if name == "srun" else job[: job.index("\nsrun ") + 1] + torchrun
    settings = " ".join([*tiny, "trainer.batch_size=3", f"runs_dir={folder}/runs"])
    for old, new in (
        ("/shared/qa_arch/.venv", sys.prefix),
        ("/shared/qa_arch", str(folder)),
        ("model=bert experiment=squad2", settings),
        *((("--nproc-per-node 4", "--nproc-per-node 1"),) if name == "torchrun" else ()),
    ):
        assert old in script
        script = script.replace(old, new)
    (folder / "job.sh").write_text(script)
    tasks = ["--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--time=10"]
    return output_of("sbatch", "--parsable", *tasks, f"--output={folder}/job.out", str(folder / "job.sh"))


@pytest.mark.parametrize("name", ["srun", "torchrun"])
def test_documented_jobs_match_self_started_ranks(name, tiny, expected, tmp_path):
    submit(name, tiny, tmp_path)
    wait_for(lambda: not output_of("squeue", "--noheader"), 900)
    print((tmp_path / "job.out").read_text())
    (folder,) = (tmp_path / "runs" / "debug").iterdir()
    check_same(folder, expected)


def test_requeued_job_resumes_from_its_checkpoint(tiny, expected, tmp_path):
    job = submit("srun", tiny, tmp_path)
    wait_for(lambda: list(tmp_path.glob("runs/debug/*/last.ckpt")), 300)
    output_of("scontrol", "requeue", job)
    (folder,) = (tmp_path / "runs" / "debug").iterdir()
    assert read_record(folder).status == "running"
    wait_for(lambda: not output_of("squeue", "--noheader"), 900)
    output = (tmp_path / "job.out").read_text()
    assert output.count("training starts from the beginning") == 1, output
    check_same(folder, expected)


def test_cancelled_sweep_point_is_reported_and_rerun(tiny, tmp_path):
    pytest.importorskip("submitit")
    sweep = ["train", "-m", *tiny, "seed=1,2,3", f"sweep.folder={tmp_path}/sweep", "trainer.epochs=1"]
    sweep += ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=10", "sweep.n_jobs=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qa_arch.cli.main", *sweep],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: len(output_of("squeue", "--array", "--noheader").splitlines()) == 3, 300)
    array = output_of("squeue", "--noheader", "--format=%F").split()[0]
    output_of("scancel", f"{array}_1")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 1, output
    assert "3 points: 2 ok, 1 killed" in output
    assert re.search(rf"seed=2 .*killed .*its job {array}_1 was cancelled", output), output
    rerun = qa_arch(*sweep)
    assert "3 points: 3 ok" in rerun.stdout, rerun.stderr
