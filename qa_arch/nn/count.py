"""Parameter counts by block."""

from __future__ import annotations

from torch import nn

from qa_arch.nn.features import WordFeatures
from qa_arch.records import Parameters


def parameter_blocks(model: nn.Module) -> Parameters:
    """Count the parameters of ``model`` per direct child with parameters; works on meta tensors.

    A frozen table of word vectors is counted separately.
    """
    blocks = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    features = [module for module in model.modules() if isinstance(module, WordFeatures)]
    frozen = {id(table): table.numel() for module in features for table in module.buffers()}
    return Parameters(
        total=sum(p.numel() for p in model.parameters()),
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        blocks={name: count for name, count in blocks.items() if count},
        word_vectors=sum(frozen.values()),
    )
