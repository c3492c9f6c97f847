"""Manifest of the compat extra: names that transformers 5 removed; no ``qa-arch`` commands."""

from __future__ import annotations

from qa_arch.manifest import Extra

EXTRA = Extra("compat")
