"""Networks as lists of layers, one file per kind of layer.

A layer is created from an `nn.Module`. It provides both forms of its gradients: torch operations on
R runs (`Layer.forward`, `Layer.backward`) and a row in the table of the compiled extension
(`Layer.compile`). Each file in this folder registers its layers with `@describes`.

Activations are [R, m, ...]: R runs, m records, any strides. The input of the first layer is the
same in every run and has no run dimension, [m, ...], so that one matrix product serves all runs.
"""

import importlib
import pkgutil

from audit.dpsgd.layers.base import FirstLayer, Layer, Network, describes, parse_network, sequence

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_found.name}")

__all__ = ["FirstLayer", "Layer", "Network", "describes", "parse_network", "sequence"]
