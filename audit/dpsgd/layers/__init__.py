"""Networks as lists of plain layers, one file for each kind.

A layer describes itself once, from its `nn.Module`, and from that description come both forms of
its gradients: torch operations over R runs (`Layer.forward`, `Layer.backward`) and a row in the
table of the compiled ones (`Layer.compile`). A file registers what it describes with `@describes`
and is found by being here.

Activations are [R, m, ...]: R runs, m records, any strides. The input of the first layer is the
same in every run and has no run dimension, [m, ...]; its work is then one matrix product for all
runs.
"""

import importlib
import pkgutil

from audit.dpsgd.layers.base import FirstLayer, Layer, Network, describes, parse_network, sequence

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_found.name}")

__all__ = ["FirstLayer", "Layer", "Network", "describes", "parse_network", "sequence"]
