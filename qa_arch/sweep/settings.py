"""Execution settings of a sweep: the ``sweep`` section of the config, which does not affect results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from qa_arch.config.check import Range, read
from qa_arch.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Settings:
    """Folder, parallelism and devices of a sweep."""

    folder: str | None = None
    """None: below ``runs_dir/name``, named after the fixed and the swept settings."""
    n_jobs: Annotated[int, Range(1)] | None = None
    """Points that run in parallel; None: as many as the devices allow, 1 without devices."""
    devices: list[int | str] | None = None
    """GPUs to assign to points; None: every point sees those of this process."""
    fail_fast: bool = False
    """Stop at the first failed point (an out-of-memory error is a result and does not stop the sweep)."""


def read_settings(raw: Mapping[str, Any]) -> Settings:
    """Validated settings; ConfigError names the dotted key."""
    settings = read(Settings, raw, "sweep")
    devices = settings.devices
    if devices is not None and (not devices or len(set(map(str, devices))) < len(devices)):
        raise ConfigError(f"sweep.devices: {devices} must name at least one device, and each once")
    return settings


def device_pool(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Devices as CUDA_VISIBLE_DEVICES names them; numbers index the devices that are already visible."""
    if settings.devices is None:
        return None
    visible = environment.get(VISIBLE)
    if visible is None:
        return [str(device) for device in settings.devices]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    pool = []
    for device in settings.devices:
        if isinstance(device, int) and not 0 <= device < len(names):
            raise ConfigError(
                f"sweep.devices: there is no device {device}; {VISIBLE}={visible} leaves {len(names)},"
                f" counted from 0"
            )
        pool.append(names[device] if isinstance(device, int) else device)
    return pool
