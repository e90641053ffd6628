"""Studies that use the package and are not installed with it: they run from a checkout."""
