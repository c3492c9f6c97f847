"""Encoders for tests: the families offered by installed extras, and any encoder from a few settings."""

from dataclasses import fields
from typing import Any

from qa_arch.config.schema import EncoderSettings
from qa_arch.manifest import from_extras
from qa_arch.nn.encoder import AnyEncoder
from qa_arch.nn.encoder_factory import build_encoder

EXTRA_FAMILIES = tuple(from_extras("families"))
SETTINGS = tuple(field.name for field in fields(EncoderSettings))


def new_encoder(**given: Any) -> AnyEncoder:
    """The encoder with the settings among ``given`` and no others: pretrained if these have a ``name``, else
    random; nothing is frozen. What else is given goes to ``build_encoder``."""
    init = "pretrained" if "name" in given else "random"
    values = dict.fromkeys(SETTINGS) | {"init": init, "freeze": "none"} | given
    settings = EncoderSettings(**{key: values.pop(key) for key in SETTINGS})
    return build_encoder(settings, **values)
