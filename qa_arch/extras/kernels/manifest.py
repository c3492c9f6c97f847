"""Manifest of the kernels extra: the match-LSTM recurrence as one fused GPU kernel."""

from __future__ import annotations

from qa_arch.manifest import Extra

EXTRA = Extra("kernels", kernels=f"{__package__}.proof")
