"""Allocators: where in device memory bytes lie, and what that takes beyond the bytes themselves. They know nothing of the engine."""

from hosim.engine.allocators.caching import CachingAllocator
from hosim.engine.allocators.state import AllocatorStats, BlockState, Driver, SegmentState

__all__ = ["AllocatorStats", "BlockState", "CachingAllocator", "Driver", "SegmentState"]
