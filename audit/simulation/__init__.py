"""Tuning protocols carried out on batches of simulated runs, for the audits of `audit.game`."""

from audit.simulation.simulator import GameContext, Winners, best_of_runs, tune

__all__ = ["GameContext", "Winners", "best_of_runs", "tune"]
