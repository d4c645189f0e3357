"""Builders of model graphs from sizes alone, and their parts."""
