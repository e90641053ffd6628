"""Studies that use the package. They run from a source checkout and are not installed with it."""
