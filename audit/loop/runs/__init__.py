"""Runs of a user's training function: with fixed randomness, observed, and coupled."""
