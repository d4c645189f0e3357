"""Analytic builders of language-model graphs, and what goes with them."""
