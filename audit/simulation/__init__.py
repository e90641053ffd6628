"""Tuning protocols carried out on batches of simulated runs, for the audits of `audit.game`."""

from audit.simulation.random_search import best_of_runs
from audit.simulation.winners import Winners

__all__ = ["Winners", "best_of_runs"]
