"""``python -m qa_arch.system.tied MODULE ...``: run a module as a program that ends with its parent.

A program of its own, as a heavy module takes seconds to import and must not outlive its parent in them.
"""

from __future__ import annotations

import runpy
import sys

from qa_arch.system.lifeline import tie

if __name__ == "__main__":
    tie()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
