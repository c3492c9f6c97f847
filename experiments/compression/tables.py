"""Smaller models: what pruning and 8 bits cost in EM and F1, and what they save in size, latency and memory.

Filled by: qa-arch train -m experiment=real_part name=compression model=bert,proposed seed=13,14,15; then
qa-arch compress, qa-arch evaluate --final and python -m benchmarks.compression for each (see README.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.results.experiments import Published, baseline_table, pairwise_table, pareto_plot, runs_table
from qa_arch.results.tables import Table

ON_1_1 = "SQuAD 1.1, all of train, all of dev"
ON_2_0 = "SQuAD 2.0, all of train, all of dev; model card"
PUBLISHED = (
    Published("BERT-large, block-pruned, 2.15 × as fast", {"f1": 83.2}, f"{ON_2_0}; 85.85 unpruned"),
    Published("BERT-large, block-pruned, 2.63 × as fast", {"f1": 82.6}, f"{ON_2_0}; 85.85 unpruned"),
    Published("TinyBERT-6L-768, distilled", {"exact": 73.8, "f1": 77.2}, ON_2_0),
    Published(
        "BERT-base, block-pruned, 1.84 × as fast", {"f1": 88.7}, f"{ON_1_1}; model card; 88.5 unpruned"
    ),
    Published(
        "BERT-base, block-pruned, 2.44 × as fast", {"f1": 87.7}, f"{ON_1_1}; model card; 88.5 unpruned"
    ),
    Published("DistilBERT, 1.6 × as fast", {"f1": 85.8}, f"{ON_1_1}; the paper"),
)
SMALLER = ("torch/**", "onnx/**")
STUDENTS = ("bert labels=1 soft_targets=0 temperature=1", "bert labels=0.5 soft_targets=0.5 temperature=2")
AT_ONCE = "bert-sparse50 of seeds 14 and 15 and proposed-sparse50 are pruned at once, without recovery"
ALONE = "ratios are to the uncompressed model of the same kind and seed, in turn with it in the same process"


def tables(folder: Path) -> list[Table]:
    scores = ("exact", "f1", "HasAns_f1", "NoAns_f1", "spans_f1")
    costs = ("weights_mb", "latency_ms", "latency_ratio", "memory_mb", "memory_ratio")
    return [
        runs_table(
            folder,
            "Smaller models: MiniLM-L6 on an eighth of SQuAD 2.0, dev fold A",
            columns=("model", "seed", "engine", "read_in", *scores, "parameters", "nonzero", *costs),
            published=PUBLISHED,
            records=SMALLER,
            sort=("model", "engine", "seed"),
            notes=[ALONE, AT_ONCE],
        ),
        *(_tested(folder, model, spans=spans) for model in ("bert", "proposed") for spans in (True, False)),
        pairwise_table(
            folder,
            "Students of three layers: with a teacher (B) and without (A), dev fold A",
            *STUDENTS,
            records="distillation/**",
            unit="article",
        ),
    ]


def _tested(folder: Path, model: str, *, spans: bool) -> Table:
    """Every smaller form of ``model`` against the whole one."""
    what = ", the null never allowed" if spans else ""
    title = f"Tested against the whole {model}, dev fold A{what}"
    records = f"torch/{model}*"
    return baseline_table(folder, title, model, spans=spans, unit="article", records=records, paired=True)


def figures(folder: Path) -> list[Sequence[Path]]:
    title = "F1 and F1 of spans against size, latency and memory on a CPU, dev fold A"
    return [pareto_plot(folder, "pareto", title, measures=("f1", "spans_f1"), records=SMALLER, notes=[ALONE])]
