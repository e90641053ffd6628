"""Canaries: the record z in which the two neighbouring data sets differ."""
