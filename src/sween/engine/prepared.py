"""What preparing a member gives."""

import dataclasses

from torch import nn

from sween.engine.cuda_graph import Forward


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared forward pass.

    Attributes:
        run: the pass.
        compiled: whether it was compiled.
        arithmetic: for records.
        shared: whether it uses the module's own parameters, so that it changes with them.
        rewritten: whether it runs what torch.fx read for images of one size.
        form: the module that is run, unless it is custom kernels.
        one_at_a_time: whether the images of a batch are run one by one.
    """

    run: Forward
    compiled: bool
    arithmetic: str
    shared: bool = False
    rewritten: bool = False
    form: nn.Module | None = None
    one_at_a_time: bool = False
