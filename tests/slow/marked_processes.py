"""Processes that belong to a test, recognised by a mark in their environment."""

from pathlib import Path


def marked_processes(mark: str) -> dict[int, str]:
    """Command lines of living processes with ``mark`` in their environment, by process id."""
    commands = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return commands
