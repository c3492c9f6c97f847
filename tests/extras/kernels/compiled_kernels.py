"""The kernels compiled for an H200, without one: ``TRITON_INTERPRET=0 python`` and this file.

A line for each: what it takes of a multiprocessor, and how often it releases and acquires.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from qa_arch.extras.kernels.fused.backward import backward_kernel, keys_kernel
from qa_arch.extras.kernels.fused.forward import forward_kernel
from qa_arch.extras.kernels.fused.launch import BLOCK
from qa_arch.extras.kernels.fused.parts import ROWS, UNITS

HOPPER = GPUTarget("cuda", 90, 32)
WHOLE = ("C", "B", "Q", "first", "last", "group0")
OTHER = {"reversal": "*i64", "mask": "*i1", "arrived": "*i32"}


def tile(hidden: int, precision: str) -> dict[str, Any]:
    slices = -(-hidden // UNITS)
    sizes = {"H": hidden, "NS": slices, "R": ROWS, "U": UNITS, "QB": BLOCK, "KB": 2 * BLOCK}
    return {**sizes, "PART": 0, "PRECISION": precision}


def describe(kernel: Any, fixed: dict[str, Any], warps: int) -> str:
    """Compiles ``kernel`` for fp32 tensors."""
    kinds = {name: OTHER.get(name, "*fp32") for name in kernel.arg_names}
    kinds |= {name: "i32" for name in WHOLE if name in kinds} | dict.fromkeys(fixed, "constexpr")
    aligned = [i for i, name in enumerate(kernel.arg_names) if kinds[name].startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=kinds,
        constexprs={(kernel.arg_names.index(name),): value for name, value in fixed.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": warps, "launch_cooperative_grid": "PART" in fixed}
    made = triton.compile(source, target=HOPPER, options=options)
    ptx = made.asm["ptx"]
    return (
        f"kernel={kernel.__name__} hidden={fixed['H']} precision={fixed.get('PRECISION')} "
        f"threads={warps * 32} registers={_registers(made.asm['cubin'])} shared={made.metadata.shared} "
        f"releases={ptx.count('.release.')} acquires={ptx.count('.acquire.')}"
    )


def _registers(cubin: bytes) -> int:
    """Registers of a thread, as Triton's own copy of cuobjdump reads them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+)", said.stdout + said.stderr)
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    for hidden in (150, 384):
        for precision in ("tf32x3", "tf32"):
            for kernel in (forward_kernel, backward_kernel):
                print(describe(kernel, tile(hidden, precision), warps=8), flush=True)
        print(describe(keys_kernel, {"H": hidden, "S": 4, "U": 32, "QB": BLOCK}, warps=4), flush=True)
