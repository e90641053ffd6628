"""Training loops with and without mistakes: the controls of the differential test.

`loops` holds the data, the models and one DP-SGD loop whose parts can be exchanged; `broken` and
`correct` are the controls; `python -m benchmarks.training_loops` makes the documentation's table.
"""
