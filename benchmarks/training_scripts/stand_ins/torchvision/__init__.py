"""A stand-in for torchvision: small random images and the transforms of Opacus's examples.

Activations that change their input in place fail under the backward hooks of current torch, so that
they are made to return a new tensor.
"""

from typing import Any

from torch import nn

for _activation in (nn.ReLU, nn.LeakyReLU):

    def _init(self: Any, *args: Any, _original: Any = _activation.__init__, **options: Any) -> None:
        _original(self, *args, **options)
        self.inplace = False

    _activation.__init__ = _init  # type: ignore[method-assign]
