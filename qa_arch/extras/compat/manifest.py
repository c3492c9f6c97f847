"""The names that transformers 5 removed are imported from here; they add nothing to ``qa-arch``."""

from __future__ import annotations

from qa_arch.manifest import Extra

EXTRA = Extra("compat")
