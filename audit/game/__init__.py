"""The distinguishing game: settings, setup, trials, workers and records on disk.

`settings` are parsed once; `validation` checks them, and `groups` are the subsets that other
modules use. `setup` fixes noise, order and thresholds by theory. `blocks` divides an audit, `play`
plays a block, `workers` distribute the blocks, and `audit_loop` stops an audit early. `store` keeps
the trials on disk, and `binding` ties them to their audit: to its settings and data, and to the
code that a trial can reach, which `reachable_code` finds in the `sources` by their `syntax`.
"""
