"""Networks of timm by `timm:NAME`, where timm is installed."""

import difflib
import importlib
import re
from typing import Any

from torch import nn

from sween.errors import BadInput, MissingExtra, describe_error
from sween.factories import TIMM_PREFIX
from sween.models.normalize import Normalize

_NAME = re.compile(r"[\w.-]+", re.ASCII)
"""Names of timm's own models. Others, such as hf-hub:PLACE, would make it fetch files."""


def create_timm_model(
    name: str, *, num_classes: int, image_shape: tuple[int, int, int]
) -> nn.Module:
    """A network of timm with fresh weights, its normalisation in front.

    Mean and deviation are those of timm's pretrained configuration, 0.5 where it has none for this
    number of channels. Nothing is downloaded.

    Args:
        name: `timm:` and a name that `timm.list_models` gives, with or without a tag.
        num_classes: number of logits.
        image_shape: (C, H, W); passed on to networks made for one size, as transformers are.
    """
    try:
        timm: Any = importlib.import_module("timm")
    except Exception as error:  # torchvision, which timm imports, raises what it likes
        if isinstance(error, ModuleNotFoundError) and error.name == "timm":
            raise MissingExtra("timm", "timm", f"architecture {name!r}") from None
        raise BadInput(
            f"architecture {name!r}",
            expected="timm, with a torchvision that was built for this torch",
            got=describe_error(error),
            fix="install torch and torchvision together, from the same source",
        ) from error
    asked = name.removeprefix(TIMM_PREFIX)
    if not _NAME.fullmatch(asked) or not timm.is_model(asked):
        near = difflib.get_close_matches(asked, timm.list_models(), n=1, cutoff=0.4)
        raise BadInput(
            f"architecture {name!r}",
            expected="a name that timm.list_models() gives",
            got=asked,
            fix=f"did you mean {TIMM_PREFIX}{near[0]}?" if near else "check the name",
        )
    about: Any = timm.get_pretrained_cfg(asked)
    channels, *size = image_shape
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": channels}
    if getattr(about, "fixed_input_size", False):
        options["img_size"] = tuple(size)
    network = timm.create_model(asked, pretrained=False, **options)
    mean, std = (getattr(about, key, None) or () for key in ("mean", "std"))
    if len(mean) != channels or len(std) != channels:
        mean = std = (0.5,) * channels
    return nn.Sequential(Normalize(mean, std), network)
