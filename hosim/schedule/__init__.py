"""What all planners and policies share: idle intervals, lower tiers, placement, bandwidth, and the insertion of cache ops."""
