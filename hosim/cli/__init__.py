"""The command line: one file a command. Parses, calls, prints; every computation is elsewhere.

Modules here import nothing heavy at the top: ``hosim --help`` has to answer at once.
"""
