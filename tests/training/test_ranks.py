"""Several ranks: launched in any way, they train and rank as one process, resume exactly and end together."""

import csv
import json
import os
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from stops import stopped_after

from qa_arch.data.memory import given
from qa_arch.errors import ConfigError, RunError
from qa_arch.process import Launched, launched
from qa_arch.provenance import Identity
from qa_arch.records import BatchSizes, RunRecord, read_record, write_record
from qa_arch.training import ranks
from qa_arch.training.module import TrainingModule
from qa_arch.training.ranks import OUT_OF_MEMORY, exit_when_lost

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
        ({"RANK": "0", "WORLD_SIZE": "1"}, Launched(0, 1, 1)),
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
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2", **RENDEZVOUS}, "are inconsistent"),
        (
            {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2", **RENDEZVOUS},
            r"3 processes on 2 machines, not equally many on each \(1 on this one\); give the same --nproc",
        ),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "not MASTER_ADDR, MASTER_PORT"),
        (SLURM_STEP | {"SLURM_STEP_TASKS_PER_NODE": "5,3"}, r"not equally many on each \(5,3\)"),
        ({"RANK": "one", "WORLD_SIZE": "2", **RENDEZVOUS}, "RANK='one' in the environment is not a number"),
    ],
)
def test_inconsistent_launch_environment_is_refused(environ, message):
    with pytest.raises(ConfigError, match=message):
        launched(environ)


def test_more_devices_than_processes_are_refused(few_questions, monkeypatch, qa_arch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **RENDEZVOUS}.items():
        monkeypatch.setenv(name, value)
    for arguments, message in (
        (("trainer.devices=4",), "trainer.devices=4, but 2 processes were started"),
        (("--models", "bert,albert"), "--models asks for several"),
    ):
        code, _, err = qa_arch("train", *arguments, *few_questions, "debug=fast")
        assert (code, message in err) == (2, True)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(arguments: list[str]) -> list[int]:
    """Exit codes of two agents, standing in for two nodes."""
    rendezvous = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
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


FROZEN = ("trainer.epochs=2", "optim.clip=0", "optim.lr=1e-9")
"""The weights hardly change, so that the gradient of a step depends on its windows alone."""


def test_two_devices_match_one_device(run_training, few_questions, before_step, monkeypatch):
    """Ranks x batch size x accumulation of 2 x 1 x 2 and 1 x 2 x 2: each step has the same gradient.

    Also the last, in which rank 1 has no window. Every rank reads rows given in memory. No step sends Python
    objects, which would wait for a GPU.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Lightning sets it otherwise
    in_steps, counts, send, gradients = [], [0], dist.broadcast_object_list, []

    def counted(*args, **options):
        counts[0] += 1
        return send(*args, **options)

    def note_gradient(module, optimizer):
        gradients.append(torch.cat([p.grad.flatten().clone() for p in module.parameters()]))

    monkeypatch.setattr(dist, "broadcast_object_list", counted)
    monkeypatch.setattr(TrainingModule, "on_before_optimizer_step", note_gradient)
    before_step(lambda module, batch, batch_idx: in_steps.append((batch_idx, counts[0])))
    paths = dict(word.removeprefix("data.").split("=") for word in few_questions)
    with given({split: json.loads(Path(path).read_text())["data"] for split, path in paths.items()}) as rows:
        before = dict(os.environ)
        settings = (*FROZEN, *rows, "trainer.accumulate=2")
        single = run_training(*settings, "trainer.batch_size=2", name="one").record
        double = run_training(*settings, "trainer.batch_size=1", "trainer.devices=2", name="two").record
        assert dict(os.environ) == before
    assert (double.status, double.strategy) == ("ok", "ddp")
    assert double.batch == BatchSizes(micro=1, accumulate=2, devices=2, global_size=4)
    for first, second in zip(single.epochs, double.epochs, strict=True):
        assert (first.step, first.windows, first.lr) == (second.step, second.windows, second.lr)
        assert first.train_loss == pytest.approx(second.train_loss, rel=1e-6)
        assert first.value("calibration_loss") == pytest.approx(second.value("calibration_loss"), rel=1e-6)
        assert first.value("calibration_f1") == pytest.approx(second.value("calibration_f1"), abs=1e-6)
    assert len(gradients) == 2 * 12  # 21 windows: the last step of an epoch has one
    for expected, actual in zip(gradients[:12], gradients[12:], strict=True):
        assert (actual.double() - expected.double()).norm() < 1e-6 * expected.double().norm()
    within = [after - before for (_, before), (batch, after) in pairwise(in_steps) if batch]
    assert counts[0] > 0 == sum(within)


@pytest.mark.slow
def test_ranks_with_different_configs_are_refused(run_training, monkeypatch):
    """The config hash of rank 0 is patched; rank 1 reads its config from the record."""
    monkeypatch.setattr("qa_arch.training.module.identify", lambda config: Identity("another", ""))
    with pytest.raises(RunError, match=r"different configs \(rank 0: another, rank 1: [0-9a-f]{8}\)"):
        run_training("trainer.devices=2")


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (OUT_OF_MEMORY, torch.OutOfMemoryError, "rank 1 ran out of memory"),
        (1, RuntimeError, "Connection closed by peer"),
    ],
)
def test_out_of_memory_on_another_rank_is_reported_as_such(monkeypatch, tmp_path, code, error, message):
    """Rank 0 sees only a closed connection, some time before the other rank exits."""
    rank_1 = [sys.executable, "-c", f"import time; time.sleep(0.3); raise SystemExit({code})"]
    monkeypatch.setattr(ranks, "start_rank", lambda *_: subprocess.Popen(rank_1))
    with (
        pytest.raises(RuntimeError, match=message) as raised,
        ranks.other_ranks(2, tmp_path, resume=False, trusted=()),
    ):
        raise RuntimeError("Connection closed by peer")
    assert raised.type is error


@pytest.mark.slow
def test_fsdp_matches_ddp(run_training):
    """FSDP on gloo, stopped and resumed: logged norms of gradients, optimizer moments, full weights."""
    settings = (*FROZEN, "trainer.batch_size=2", "trainer.accumulate=2", "trainer.devices=2", "logger=csv")
    settings = (*settings, "trainer.log_every=1", "trainer.checkpoint_minutes=1e-9")
    ddp = run_training(*settings, name="ddp")
    with stopped_after(4):
        run_training(*settings, "trainer.strategy=fsdp", name="fsdp")
    fsdp = run_training(*settings, "trainer.strategy=fsdp", name="fsdp", resume=True)
    logged, expected = (
        [
            float(norm)
            for path in sorted(done.folder.glob("csv/*/metrics.csv"))
            for row in csv.DictReader(path.open())
            if (norm := row.get("step/gradient_norm"))
        ]
        for done in (fsdp, ddp)
    )
    assert len(logged) == 6
    assert logged == pytest.approx(expected, rel=1e-5)
    first, second = (done.state["optimizer_states"][0] for done in (ddp, fsdp))
    numbers = [number for group in second["param_groups"] for number in group["params"]]  # by group in both
    assert len(numbers) == len(first["state"]) == len(second["state"])
    for number, state in zip(numbers, first["state"].values(), strict=True):
        assert int(state["step"]) == int(second["state"][number]["step"]) == 6
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(second["state"][number][moment], state[moment], rtol=1e-4, atol=1e-7)
    first, second = (load_file(done.folder / "model" / "model.safetensors") for done in (ddp, fsdp))
    torch.testing.assert_close(second, first, rtol=0, atol=1e-7)


KILLED = "import os; os.kill(os.getpid(), 9)"


def run_rank_0(rank_2: str, folder, sleep: float) -> None:
    """Sleep as rank 0, beside a rank 1 that keeps running and a rank 2 that runs the program ``rank_2``."""
    programs = ("import time; time.sleep(99)", rank_2)
    others = [subprocess.Popen([sys.executable, "-S", "-c", program]) for program in programs]
    try:
        with exit_when_lost(others, folder, notice=0.1):
            time.sleep(sleep)
    finally:
        others[0].kill()


@pytest.mark.parametrize(
    ("rank_2", "sleep", "code", "status", "error"),
    [
        ("raise SystemExit(3)", 60, 1, "failed", "rank 2 failed (exit code 3)"),
        (KILLED, 60, 1, "killed", "rank 2 was killed by signal 9"),
        (f"raise SystemExit({OUT_OF_MEMORY})", 60, 1, "oom", "rank 2 ran out of memory"),
        ("pass", 0.8, 0, "running", None),
    ],
)
def test_rank_0_exits_when_a_rank_is_lost(tmp_path, rank_2, sleep, code, status, error):
    config = {"trainer": {}}
    write_record(
        tmp_path,
        RunRecord(
            status="running", name="n", model="m", seed=1, config=config, settings_hash="-", run_hash="-"
        ),
    )
    child = os.fork()
    if child == 0:
        try:
            run_rank_0(rank_2, tmp_path, sleep)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    record = read_record(tmp_path)
    assert record.status == status
    assert error is None or error in str(record.error)
