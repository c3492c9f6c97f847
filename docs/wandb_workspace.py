"""A wandb workspace for runs of qa_arch: curves over seeds, scores, cost and settings.

pip install wandb-workspaces; python docs/wandb_workspace.py ENTITY [PROJECT]. It prints the address of a new
view of the project.
"""

import sys

from wandb_workspaces import workspaces as ws
from wandb_workspaces.reports import v2 as plots

MODEL, BATCH, LR = (plots.Config(key) for key in ("model.name", "trainer.batch_size", "optim.lr"))
COLUMNS = (BATCH, LR, plots.SummaryMetric("dev/f1"))
OVER_SEEDS = {"groupby": MODEL, "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
PANELS = {
    "Learning": [
        plots.LinePlot(x="epoch", y=["train/loss", "calibration/loss"], **OVER_SEEDS),
        plots.LinePlot(x="epoch", y=["calibration/f1", "calibration/exact"], **OVER_SEEDS),
        plots.LinePlot(x="epoch", y=["calibration/forced_f1"], **OVER_SEEDS),
        *(
            plots.LinePlot(x="trainer/global_step", y=[f"step/{name}"])
            for name in ("loss", "gradient_norm", "windows_per_second")
        ),
        # The head's rate, or the common one where head_lr is not set.
        plots.LinePlot(x="trainer/global_step", y=["step/lr/head", "step/lr/encoder-head"]),
    ],
    "Result": [
        plots.BarPlot(metrics=["dev/f1", "dev/exact"], **OVER_SEEDS),
        plots.BarPlot(metrics=["dev/HasAns_f1", "dev/NoAns_f1"], **OVER_SEEDS),
        plots.ScatterPlot(title="gain from the fitted threshold", x="dev/threshold_0_f1", y="dev/f1"),
    ],
    "Cost": [
        plots.ScatterPlot(x="seconds/fit", y="dev/f1", log_x=True),
        plots.ScatterPlot(x=BATCH, y="peak_memory_mb"),
    ],
    "Settings": [
        plots.ParallelCoordinatesPlot(
            columns=[plots.ParallelCoordinatesPlotColumn(column) for column in COLUMNS]
        )
    ],
}


def workspace(entity: str, project: str = "qa_arch") -> ws.Workspace:
    """The workspace, which ``save`` sends to wandb."""
    sections = [ws.Section(name=name, panels=panels, is_open=True) for name, panels in PANELS.items()]
    groups = ws.RunsetSettings(groupby=[ws.Metric("Group"), ws.Config("model.name")])
    return ws.Workspace(entity, project, name="qa_arch", sections=sections, runset_settings=groups)


if __name__ == "__main__":
    workspace(*sys.argv[1:]).save()
