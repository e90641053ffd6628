"""The protocols that choose a best run."""

from audit.tuning.random_search import Winners, best_of_runs

__all__ = ["Winners", "best_of_runs"]
