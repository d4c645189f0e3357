"""Studies: questions that take more than one replay."""
