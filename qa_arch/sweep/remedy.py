"""What to try after an out-of-memory, from the config that had it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def remedy(config: Mapping[str, Any]) -> str:
    """Overrides that need less memory and keep the global batch, the cheapest first."""
    trainer = config["trainer"]
    batch, accumulate = trainer["batch_size"], trainer["accumulate"]
    tries = []
    if trainer.get("token_budget"):
        budget = trainer["token_budget"] // 2
        tries.append(f"trainer.token_budget={budget} trainer.accumulate={2 * accumulate}")
    elif parts := next((n for n in range(2, batch + 1) if batch % n == 0), None):
        tries.append(f"trainer.batch_size={batch // parts} trainer.accumulate={accumulate * parts}")
    if not trainer["gradient_checkpointing"]:
        tries.append("trainer.gradient_checkpointing=true")
    if trainer["precision"] == "fp32":
        tries.append("trainer.precision=bf16")
    return " or ".join(tries) or "a shorter features.max_length or a smaller encoder"
