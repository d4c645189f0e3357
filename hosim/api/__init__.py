"""What ``import hosim`` offers as functions: names, paths or objects in; plans, results and pandas frames out.

:mod:`hosim.api.inputs` reads the arguments, :mod:`hosim.api.one_plan` has what is asked of one plan, :mod:`hosim.api.many_runs` what takes
many, :mod:`hosim.api.searches` what looks for a value, :mod:`hosim.api.plotting` what is drawn, :mod:`hosim.api.serving_run` what serves
requests. :mod:`hosim` maps its public names to these modules and imports each one when it is first used.
"""
