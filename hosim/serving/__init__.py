"""Serving: many requests over time on one engine with a paged key-value cache, iteration by iteration."""
