"""Tuning protocols carried out on batches of simulated runs, for the audits of `audit.game`."""

from audit.simulation.simulator import Winners, best_of_runs

__all__ = ["Winners", "best_of_runs"]
