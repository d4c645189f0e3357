"""The commands of serving: each parses, calls and prints."""
