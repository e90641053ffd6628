"""Threat models: what the adversary of the distinguishing game may do."""
