"""Parts of the data that other rooms see as :mod:`hosim.graph`, :mod:`hosim.cache_plan`,
:mod:`hosim.hardware` and :mod:`hosim.result`.
"""
