"""Runs on many machines of a cluster."""
