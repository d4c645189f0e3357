"""The refinement pipeline: candidates, selection, placement, refinement, budget loop."""
