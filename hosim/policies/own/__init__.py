"""hosim's own policies, one a file; :mod:`hosim.policies.catalogue` lists them."""
