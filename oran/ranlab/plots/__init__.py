"""Plots of the RAN lab's experiments."""
