"""Program that runs fits on one of several ranks: ``python fits.py FOLDER`` with torchrun's variables set.

``FOLDER/fits.json`` lists the fits: ``name``, ``config``, and optionally ``stop`` (after that many
checkpoints) or ``resume``. Rank 0 writes the gradients of every step to ``NAME-gradients.pt`` and the epochs
to ``NAME-epochs.json``, and logs to ``csv`` in the folder of the fit; each rank writes the window numbers of
its batches to ``NAME-order-RANK.json``.
"""

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from pytorch_lightning.loggers import CSVLogger

from qa_arch.config.schema import validate
from qa_arch.qa import task
from qa_arch.training.checkpoint import KeepLast
from qa_arch.training.fit import fit, span_fitting, start_process
from qa_arch.training.loggers import RunLogger
from qa_arch.training.module import TrainingModule


class StoppedError(Exception):
    pass


@dataclass
class FitRecorder:
    """Gradients and batches of a fit, recorded by hooks that can also stop it."""

    stop: int = 0
    gradients: list[torch.Tensor] = field(default_factory=list)
    order: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def install(self) -> None:
        step, save, before_step = (
            TrainingModule.training_step,
            KeepLast._save,
            TrainingModule.on_before_optimizer_step,
        )

        def training_step(module, batch, batch_idx):
            weight = batch.labels.weight.tolist()
            rows = [row for row, real in zip(batch.index.tolist(), weight, strict=True) if real]
            self.order.append((module.current_epoch, batch_idx, rows))
            return step(module, batch, batch_idx)

        def on_before_optimizer_step(module, optimizer):
            full = (getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in module.model.parameters())
            self.gradients.append(torch.cat([gradient.flatten().clone() for gradient in full]))
            before_step(module, optimizer)

        def saving(callback, trainer):
            save(callback, trainer)
            self.stop -= 1
            if self.stop == 0:
                raise StoppedError

        TrainingModule.training_step, KeepLast._save = training_step, saving
        TrainingModule.on_before_optimizer_step = on_before_optimizer_step


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank, environment = int(os.environ["RANK"]), dict(os.environ)
    dist.init_process_group("gloo")
    recorder = FitRecorder()
    recorder.install()
    for case in json.loads((folder / "fits.json").read_text()):
        os.environ.update(environment)  # Lightning removes WORLD_SIZE after a fit
        run_folder = folder / case.get("folder", case["name"])
        (run_folder / "model").mkdir(parents=True, exist_ok=True)  # where the best weights are saved
        recorder.stop = case.get("stop", 0)
        recorder.gradients.clear()
        recorder.order.clear()
        config = validate(case["config"])
        trainer = replace(config.trainer, accelerator="cpu", devices=dist.get_world_size())
        config = start_process(replace(config, trainer=trainer))
        epochs: list = []
        parts, resume = task.assemble(config), case.get("resume", False)
        with suppress(StoppedError):
            loggers = [RunLogger(CSVLogger(str(run_folder), "csv"))] if rank == 0 else []
            fit(
                config,
                span_fitting(config, parts),
                run_folder,
                resume=resume,
                publish=epochs.extend,
                loggers=loggers,
            )
        (folder / f"{case['name']}-order-{rank}.json").write_text(json.dumps(recorder.order))
        if rank == 0:
            torch.save(recorder.gradients, folder / f"{case['name']}-gradients.pt")
            (folder / f"{case['name']}-epochs.json").write_text(json.dumps(epochs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
