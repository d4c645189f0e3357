"""What ``import hosim`` offers as functions: names, paths or objects in; plans, results and pandas frames out.

:mod:`hosim.api.inputs` reads the arguments, :mod:`hosim.api.one_plan` has what is asked of one plan, :mod:`hosim.api.many_runs` what takes
many. :mod:`hosim` maps its public names to these modules and imports each one when it is first used.
"""
