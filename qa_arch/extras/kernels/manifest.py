"""What the kernels add: the match-LSTM's recurrence as one kernel on a GPU."""

from __future__ import annotations

from qa_arch.manifest import Extra

EXTRA = Extra("kernels", kernels=f"{__package__}.proof")
