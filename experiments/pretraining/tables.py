"""Does pre-training on the passages of the training articles help, and which objective helps most?

Filled by: the commands in README.md, in order; then qa-arch tables runs/pretraining/tiny --publish
experiments/pretraining/records/tiny, and the same for spans and denoising.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa_arch.records import CALIBRATION
from qa_arch.results.experiments import Wanted, baseline_table, learning_curves, records_table
from qa_arch.results.tables import Table

OBJECTIVES = ("mlm", "mlm_nsp", "mlm_sop", "causal")
SEEDS = "seed=13,14,15"
SIZES = {"tiny": SEEDS, "small": "seed=13"}
RUNS = "runs/pretraining/tiny/pretrain_{}-seed${{seed}}-*"
SPANS = f"qa-arch train -m experiment=pretrained_spans {SEEDS}"
RATES = "encoder.attention_dropout=0.0 trainer.precision=bf16 optim.lr=1e-4 optim.head_lr=5e-4"
DENOISING = {"denoising": "", "copying": " model.name=copying denoising.share=0"}
"""Model -> settings of its noise."""
TOKENIZER = "'encoder.tokenizer=runs/pretraining/tiny/pretrain_mlm-seed13-*'"  # the same for all seeds


def tables(folder: Path) -> list[Table]:
    pretraining = [_pretraining(folder, size, name) for size in SIZES for name in OBJECTIVES]
    return [*pretraining, *(_denoising(folder, model) for model in DENOISING), *_spans(folder)]


def _pretraining(folder: Path, size: str, objective: str) -> Table:
    """One table per objective and size, as their predictions are not comparable."""
    pairs = ("sentence_accuracy", "sentence_f1") if objective in ("mlm_nsp", "mlm_sop") else ()
    command = f"qa-arch train -m experiment=pretrain_{size} model=pretrain/{objective} {SIZES[size]}"
    return records_table(
        folder,
        f"Pre-training, {size}, {objective}: passages of the calibration articles",
        split=CALIBRATION,
        records=f"{size}/pretrain_{objective}-seed*",
        sort=("seed",),
        columns=(
            *("model", "seed", "token_accuracy", "perplexity", "bits_per_byte"),
            *pairs,
            *("parameters", "steps", "seconds"),
        ),
        wanted=[Wanted(objective, command)],
    )


def _denoising(folder: Path, model: str) -> Table:
    return records_table(
        folder,
        f"A decoder, {model}: generated texts of the calibration part",
        split=CALIBRATION,
        records=f"denoising/{model}-*",
        columns=(
            *("model", "seed", "token_accuracy", "restored_tokens", "exact_copies"),
            *("bleu_noisy", "bleu", "rouge_l"),
            *("perplexity", "written_perplexity", "parameters", "steps", "seconds"),
        ),
        wanted=[Wanted(model, f"qa-arch train -m experiment=pretrain_denoising{DENOISING[model]}")],
    )


def _spans(folder: Path) -> list[Table]:
    names = ",".join(RUNS.format(objective) for objective in OBJECTIVES)
    wanted = [
        Wanted("bert", f"{SPANS} 'encoder.name={names}'"),
        Wanted("scratch", f"{SPANS} model.name=scratch encoder=qa_transformer_tiny {TOKENIZER}"),
        Wanted("minilm", f"{SPANS} model.name=minilm encoder=minilm {RATES}"),
    ]
    return [
        records_table(
            folder,
            "Spans from these encoders: 3,000 training questions, 3 epochs, calibration",
            split=CALIBRATION,
            records="spans",
            sort=("model", "encoder", "seed"),
            columns=("model", "encoder", "seed", "forced_f1", "auroc", "f1", "parameters", "seconds"),
            wanted=wanted,
            notes=[
                "answerable F1 (forced answer) needs no threshold; that of F1 is fitted on this same set",
                "bert: the plain span head on the encoder of a pre-training run of the same seed",
            ],
        ),
        baseline_table(
            folder,
            "Answerable F1 (forced answer), against no pre-training: calibration",
            "scratch",
            split=CALIBRATION,
            measure="forced_f1",
            records="spans",
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    measures = ("train_loss", "calibration_loss")
    return [
        learning_curves(
            folder, name, f"Pre-training, {name}", measures, records=f"tiny/pretrain_{name}-seed*"
        )
        for name in OBJECTIVES
    ]
