"""Two Ray actors write the same JSON lines as a single process, even if a node is killed."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from line_answers import first_words, rows, write_lines

from qa_arch.cli.main import main
from qa_arch.data import synthetic
from qa_arch.errors import DataError, UnavailableError
from qa_arch.serving import lines as json_lines
from qa_arch.serving.lines import LineCounts, answer_file, answer_part
from qa_arch.serving.ray import actors

pytest.importorskip("ray", reason="no ray: pip install -e '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ("model=bert", "debug=fast", "encoder.initializer_range=0.2", "features.cache_dir=null")


@pytest.fixture(autouse=True)
def local_ray(monkeypatch):
    """Use a local Ray cluster whose actors can import the tests' modules, with one thread per process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    tests = Path(__file__).resolve().parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests.parent), str(tests)]))


def test_two_actors_write_the_same_file_as_one_process(tmp_path, monkeypatch):
    assert main(["train", *SMALL, f"runs_dir={tmp_path}", "trainer.progress=false"]) == 0
    (run,) = (tmp_path / "debug").glob("bert-*")
    monkeypatch.setattr(json_lines, "PART_LINES", 20)
    lines = [{"question": e.question, "context": e.context} for e in synthetic.named("dev").examples[:200]]
    data = write_lines(tmp_path / "data.jsonl", [*lines, {"question": "no context"}])
    predict = ["predict", str(run), "--data", str(data), "--on-error", "skip", "--out"]
    assert main([*predict, str(tmp_path / "local.jsonl")]) == 0
    assert main([*predict, str(tmp_path / "ray.jsonl"), "--on", "ray", "--actors", "2"]) == 0
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


def answer_on_ray(data, out, load, **options):
    start = partial(actors, load, 2)
    return answer_file(str(data), str(out), start, models=[], settings={}, **options)


def answers_of_one_process(data: Path) -> bytes:
    parts = json_lines.parts_of(data.open("rb"), str(data), lambda: 0)
    return b"".join(answer_part(p, first_words, file=str(data), options={}).content for p in parts)


def test_killed_node_loses_nothing(tmp_path, monkeypatch):
    """Two actors run on three nodes with one CPU each; a node dies, and the spare one takes its place."""
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(json_lines, "PART_LINES", 5)
    data, death = write_lines(tmp_path / "data.jsonl", rows(203)), str(tmp_path / "death")
    name = str(data)

    def load():
        def kill_and_answer(queries):
            import ray

            node_id = ray.get_runtime_context().get_node_id()
            heads = [node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]]
            late = int(queries[0].question.strip("Who ?")) > 30
            if late and node_id not in heads and not Path(death).exists():
                Path(death).write_text(node_id)
                os.kill(os.getppid(), signal.SIGKILL)  # the raylet, whose workers end with it
                signal.pause()
            return first_words(queries)

        return partial(answer_part, answer_queries=kill_and_answer, file=name, options={})

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        assert answer_on_ray(data, tmp_path / "out.jsonl", load) == LineCounts(203, 0, 0)
    finally:
        cluster.shutdown()
    assert Path(death).exists()
    assert (tmp_path / "out.jsonl").read_bytes() == answers_of_one_process(data)


def test_errors_of_actors_match_those_of_one_process(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [*rows(3), "{"])

    def load_fails():
        raise UnavailableError("no such device")

    with pytest.raises(UnavailableError, match=r"^no such device$"):
        answer_on_ray(data, tmp_path / "out.jsonl", load_fails)

    def load():
        return partial(answer_part, answer_queries=first_words, file="data.jsonl", options={})

    with pytest.raises(DataError, match=r"data.jsonl: line 4: broken JSON"):
        answer_on_ray(data, tmp_path / "out.jsonl", load)


def test_more_actors_than_the_cluster_has_room_for_are_refused():
    with pytest.raises(UnavailableError, match="--actors 1000: the cluster has"), actors(list, 1000):
        pass
