"""The distinguishing game: settings, setup, trials, workers and records on disk.

`settings` are parsed once and checked together. `setup` fixes noise, order and thresholds by
theory. `play` divides an audit into blocks and plays a block, or all until the bound is
sufficient, and `workers` distribute the blocks. `store` keeps the trials on disk, and `binding`
ties them to their audit: to its settings and data, and to the code that a trial can reach, which
`reachable_code` finds in the `sources`.
"""
