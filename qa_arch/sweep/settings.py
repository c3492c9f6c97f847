"""How a sweep is carried out: the ``sweep`` section of the config, which no result depends on."""

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
    """Whether points run side by side, on what, and where the sweep is kept."""

    folder: str | None = None
    """None: below ``runs_dir/name``, named by what is fixed and which settings are swept."""
    n_jobs: Annotated[int, Range(1)] | None = None
    """Points that run at the same time; None: as many as the devices allow, without devices one."""
    devices: list[int | str] | None = None
    """GPUs to hand out to points; None: every point sees what this process sees."""
    fail_fast: bool = False
    """Stop everything at the first point that fails (an out-of-memory is a result and stops nothing)."""


def read_settings(raw: Mapping[str, Any]) -> Settings:
    """The checked settings; ConfigError names the dotted key."""
    settings = read(Settings, raw, "sweep")
    devices = settings.devices
    if devices is not None and (not devices or len(set(map(str, devices))) < len(devices)):
        raise ConfigError(f"sweep.devices: {devices} must name at least one device, and each once")
    return settings


def device_pool(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The devices as CUDA_VISIBLE_DEVICES names them; numbers count within what is visible already."""
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
