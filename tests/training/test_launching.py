"""Launchers: ranks started by the run itself, torchrun or SLURM are recognised and train the same model."""

import os
import socket
import subprocess
import sys

import pytest

from qa_arch.errors import ConfigError
from qa_arch.process import Launched, launched
from qa_arch.records import BatchSizes, read_record

TWO = ("trainer.batch_size=2", "trainer.accumulate=2", "encoder.hidden_dropout=0.1")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1")
RENDEZVOUS = {"LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SLURM_STEP = {
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_JOB_ID": "123456",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, None),  # a rank started by the run itself
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", **RENDEZVOUS}, Launched(5, 8, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", **RENDEZVOUS}, Launched(1, 2, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Launched(0, 1, 1)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", **RENDEZVOUS},
            Launched(3, 4, 2),
        ),
        (SLURM_STEP, Launched(5, 8, 4)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),  # the batch script itself, before srun
        (SLURM_STEP | {"SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_launcher_is_read_from_the_environment(environ, expected):
    assert launched(dict(environ)) == expected


def test_slurm_step_sets_the_variables_of_torchrun():
    """Each step of each job gets a port of its own."""
    environ = dict(SLURM_STEP)
    assert launched(environ) == launched(environ)
    actual = [environ[name] for name in ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")]
    assert actual == ["1", "1", "gpu03", "23456"]
    ports = set()
    for job in range(123456, 123466):
        for step in range(20):
            environ = SLURM_STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
            launched(environ)
            ports.add(int(environ["MASTER_PORT"]))
    assert len(ports) == 200
    assert 20000 <= min(ports) <= max(ports) < 40000


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("login,gpu1", "login"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[9,03-05]-ib,login", "gpu9-ib"),
        ("rack[1-2]n[01-04],rack3n1", "rack1n01"),
    ],
)
def test_master_address_is_the_first_host_of_a_slurm_step(nodes, host):
    environ = SLURM_STEP | {"SLURM_STEP_NODELIST": nodes}
    launched(environ)
    assert environ["MASTER_ADDR"] == host


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2", **RENDEZVOUS}, "are inconsistent"),
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2", **RENDEZVOUS}, "are inconsistent"),
        (
            {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2", **RENDEZVOUS},
            r"3 processes on 2 machines, not equally many on each \(1 on this one\); give the same --nproc",
        ),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "not MASTER_ADDR, MASTER_PORT"),
        (SLURM_STEP | {"SLURM_STEP_NUM_TASKS": "7"}, "7 processes on 2 machines, not equally many on each"),
        (SLURM_STEP | {"SLURM_STEP_TASKS_PER_NODE": "5,3"}, r"not equally many on each \(5,3\)"),
        ({"RANK": "one", "WORLD_SIZE": "2", **RENDEZVOUS}, "RANK='one' in the environment is not a number"),
    ],
)
def test_inconsistent_launch_environment_is_refused(environ, message):
    with pytest.raises(ConfigError, match=message):
        launched(environ)


def test_more_devices_than_processes_are_refused(few_questions, monkeypatch, capsys):
    from qa_arch.cli.main import main

    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **RENDEZVOUS}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", *few_questions, "trainer.devices=4", "debug=fast"]) == 2
    assert "trainer.devices=4, but 2 processes were started" in capsys.readouterr().err
    assert main(["train", "--models", "bert,albert", *few_questions, "debug=fast"]) == 2
    assert "--models asks for several" in capsys.readouterr().err


@pytest.mark.slow
def test_torchrun_matches_self_started_ranks(run_training, tiny_run, tmp_path):
    """Two agents with one process each, as on two nodes: weights are identical bit for bit, a finished run is
    not repeated, and another config is refused."""
    two = (*TWO, "trainer.devices=2", "trainer.strategy=ddp", "trainer.epochs=2")
    own = run_training(*two, name="own")
    assert own.record.strategy == "ddp"
    folder = tmp_path / "torchrun"
    settings = [*TWO, "trainer.strategy=ddp", "trainer.epochs=2", f"runs_dir={tmp_path}"]
    command = ["train", *tiny_run(*settings), "--folder", str(folder), "--resume"]
    assert torchrun(command) == [0, 0]
    record = read_record(folder)
    assert record.status == "ok"
    assert record.batch == own.record.batch == BatchSizes(micro=2, accumulate=2, devices=2, global_size=8)
    assert record.config["trainer"]["devices"] == 2
    assert (folder / "model" / "model.safetensors").read_bytes() == own.weights
    assert record.scores == own.record.scores
    assert record.run_hash == own.record.run_hash
    before = (folder / "run.json").stat().st_mtime_ns
    assert torchrun(command) == [0, 0]
    assert torchrun([*command, "seed=14"]) != [0, 0]
    assert (folder / "run.json").stat().st_mtime_ns == before


def torchrun(arguments: list[str]) -> list[int]:
    """Exit codes of two agents, standing in for two nodes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rendezvous = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    agents = [
        subprocess.Popen(
            [*TORCHRUN, "--node-rank", str(node), *rendezvous, "-m", "qa_arch.cli.main", *arguments],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        for node in (0, 1)
    ]
    output = [agent.communicate(timeout=240)[1] for agent in agents]
    sys.stderr.write("\n".join(text.decode(errors="replace")[-3000:] for text in output))
    return [agent.returncode for agent in agents]
