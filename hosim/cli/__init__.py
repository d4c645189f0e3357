"""The command line: one file per command. It parses, calls and prints; every computation is
elsewhere.

Modules here import nothing heavy at the top: ``hosim --help`` has to answer at once.
"""
