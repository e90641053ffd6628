"""The distinguishing game: settings, set-up, play, workers, records on disk.

One direction: `settings` fix what is asked; `setup` fixes order and thresholds by theory; `play`
runs blocks of trials and knows no statistics; `workers` hand them out; `store` keeps what they
leave, bound to its audit by `binding`.
"""
