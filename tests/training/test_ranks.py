"""Several ranks take the same steps as one process and give the same answers."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from qa_arch.data.question_sets import question_set
from qa_arch.errors import RunError
from qa_arch.features.batches import Collator
from qa_arch.features.cache import windows_of
from qa_arch.provenance import Identity
from qa_arch.qa import files as formats
from qa_arch.qa import task
from qa_arch.qa.search import SpanCollector
from qa_arch.records import BatchSizes
from qa_arch.tensors import SpanLogits
from qa_arch.training import ranks
from qa_arch.training.module import gather
from qa_arch.training.ranks import OUT_OF_MEMORY

QUESTIONS = (1, 5, 7)
SCRIPTS = "Zoë Ångström sang «Ωmega ½» in 東京 🎻 before the Łódź choir, naïve façade — там, где снег. " * 8


def readings(config) -> list[tuple[SpanCollector, list[SpanLogits]]]:
    """Empty collectors and random logits for sets of 1, 5 and 7 questions and a set in many scripts."""
    parts = task.assemble(config)
    pairs = []
    scripts = [replace(e, context=SCRIPTS, answers=(), plausible=()) for e in parts.sets["dev"].examples[:3]]
    sets = [*(parts.sets["dev"].examples[:n] for n in QUESTIONS), tuple(scripts)]
    for n, examples in enumerate(sets):
        questions = question_set(f"set {n}", examples, "2.0")
        table = windows_of(questions, parts.tokenizer, config.features, segments=parts.encoder.has_segments)
        windows = []
        for row in range(len(table)):
            torch.manual_seed(row)
            context = Collator(table)([row]).context
            start, end = torch.randn(2, *context.shape).masked_fill(~context, -torch.inf)
            windows.append(SpanLogits(start, end, *torch.randn(2, 1)))
        pairs.append((SpanCollector(questions, table, config.decode), windows))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_gathered_ranking_matches_a_single_process(configure, tmp_path, world):
    """Prediction files too, byte for byte. Cases: more ranks than windows, windows of one question on several
    ranks, one window read by two ranks, a rank that reads nothing, answers in many scripts."""
    pairs = readings(configure("features.max_length=48", "features.stride=8"))
    assert len(pairs[2][1]) > QUESTIONS[2]
    assert len(pairs[3][1]) > 3 * world
    torch.save(pairs, tmp_path / "readings.pt")
    run_ranks("join", world, tmp_path)
    expected = []
    for number, (collector, windows) in enumerate(pairs):
        for row, logits in enumerate(windows):
            collector.add(SimpleNamespace(index=torch.tensor([row])), logits)
        ranking = gather(collector)
        formats.write_parts(tmp_path / f"said-1-0-{number}", [ranking], 0.0)
        columns = ("offsets", "start", "end", "probability")
        expected.append({name: getattr(ranking, name).tolist() for name in columns})
    for rank in range(world):
        assert json.loads((tmp_path / f"join-{world}-{rank}.json").read_text()) == expected
        for number in range(len(pairs)):
            single, gathered = (
                {path.name: path.read_bytes() for path in (tmp_path / f"said-{ranks}-{number}").iterdir()}
                for ranks in ("1-0", f"{world}-{rank}")
            )
            assert gathered == single
            assert single
    texts = json.loads((tmp_path / "said-1-0-3" / "nbest_predictions.json").read_text(encoding="utf-8"))
    assert any(not row["text"].isascii() for rows in texts.values() for row in rows)


FROZEN = ("trainer.epochs=2", "trainer.accumulate=2", "optim.clip=0", "optim.lr=1e-9")


def test_two_devices_match_one_device(run_training, before_step, monkeypatch):
    """Ranks x batch size x accumulation of 2 x 2 x 2 and 1 x 4 x 2: each step has the same windows.

    No step sends Python objects, which would wait for a GPU.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Lightning sets it otherwise
    in_steps, counts, send = [], [0], dist.broadcast_object_list

    def counted(*args, **options):
        counts[0] += 1
        return send(*args, **options)

    monkeypatch.setattr(dist, "broadcast_object_list", counted)
    before_step(lambda module, batch, batch_idx: in_steps.append((batch_idx, counts[0])))
    before = dict(os.environ)
    single = run_training(*FROZEN, "trainer.batch_size=4", name="one").record
    double = run_training(*FROZEN, "trainer.batch_size=2", "trainer.devices=2", name="two").record
    assert dict(os.environ) == before
    assert (double.status, double.strategy) == ("ok", "ddp")
    assert double.batch == BatchSizes(micro=2, accumulate=2, devices=2, global_size=8)
    for first, second in zip(single.epochs, double.epochs, strict=True):
        assert (first.step, first.windows, first.lr) == (second.step, second.windows, second.lr)
        assert first.train_loss == pytest.approx(second.train_loss, rel=1e-6)
        assert first.value("calibration_loss") == pytest.approx(second.value("calibration_loss"), rel=1e-6)
        assert first.value("calibration_f1") == pytest.approx(second.value("calibration_f1"), abs=1e-6)
    within = [after - before for (_, before), (batch, after) in pairwise(in_steps) if batch]
    assert counts[0] > 0 == sum(within)
    assert len(within) > 6


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
