"""The command line: a file for each command, or for the short ones of a section of the help. It
parses, calls and prints; every computation is elsewhere.

Modules here import nothing heavy at the top: ``hosim --help`` has to answer at once.
"""
