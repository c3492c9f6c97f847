"""Manifest of the sample extra; it must not import heavy packages."""

from __future__ import annotations

from pathlib import Path

from qa_arch.manifest import Command, Extra, TaskEntry

EXTRA = Extra(
    "sample",
    commands={"greet": Command("sample_extra.command", "greet somebody")},
    tasks={
        "first_span": TaskEntry(
            "sample_extra.task",
            "passages",
            ("encoder", "vectors"),
            {"_target_": "sample_extra.task.FirstSpanLoss"},
        )
    },
    columns="sample_extra.columns",
    conf=Path(__file__).parent / "conf",
)
